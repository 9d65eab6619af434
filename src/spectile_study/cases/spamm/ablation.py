"""The kernel without one idea at a time, and with what the paper has in its place: units that only the study builds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from spectile.core import device
from spectile.core.compile import Unit
from spectile.core.tiling import ceil_div
from spectile.nearsparse.cuda import kernels
from spectile.nearsparse.cuda.choose import Choice, Problem, Way, choose
from spectile.nearsparse.cuda.tuning import PORTABLE, WGMMA, Kernel
from spectile.nearsparse.cuda.units import hopper_unit, norm_unit, portable_unit
from spectile.nearsparse.types import PRECISIONS
from spectile_study.bench.case import Context, Method, Skipped
from spectile_study.bench.case import Problem as Case
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.spamm.device import VENDOR_MODES, Operands
from spectile_study.cases.spamm.thresholds import BLOCK, TABLE_1

# How the lanes of a block are summed in the paper: by a tree in shared memory, and by a matrix of ones.
REDUCTIONS = {"norm_shared": "TREE", "norm_ones": "ONES"}
# How tiles are given to clusters without drawing them.
SCHEDULES = {"stride": "STRIDE", "no_balance": "RUNS"}
_FAST: Kernel = "wgmma_wide_pair"
# A warpgroup takes 64 x 128 of C, not 64 x 256, and its epilogue leaves room for a stage less.
_HALVES = dataclasses.replace(WGMMA[_FAST], group=128, stages=6)


def reduction_unit(dtype: str, reduction: str) -> Unit:
    """Return the norm kernel of an input dtype with another reduction of the lanes."""
    plain = norm_unit(dtype)
    library = kernels.__name__
    sources = (f"{library}:norms.cuh", "reductions.cu", f"{library}:norm_map.cu")
    return Unit(__package__, sources, plain.archs, {**plain.defines, "REDUCTION": reduction})


@dataclasses.dataclass(frozen=True)
class Variant:
    """The product with another choice of its kernel, or another norm kernel."""

    choice: Choice | None = None
    norms: Unit | None = None


def variants(precision: str, problem: Problem) -> dict[str, Variant]:
    """Return the variants of a product by the idea that each lacks, or that replaces ours."""
    current, replace, dtype = device.describe(), dataclasses.replace, PRECISIONS[precision].dtype
    variants = {name: Variant(norms=reduction_unit(dtype, how)) for name, how in REDUCTIONS.items()}
    if precision.startswith("fp16"):
        shallow = replace(WGMMA[_FAST], stages=2)
        variants["double_buffer_only"] = Variant(choose(problem, current, Way(_FAST), tuned=shallow))
        variants["stride"] = Variant(choose(problem, current, Way(_FAST), extra=("STRIDE",)))
        variants["no_balance"] = Variant(choose(problem, current, Way(_FAST), extra=("RUNS",)))
        variants["no_cluster"] = Variant(choose(problem, current, Way("wgmma_wide")))
        variants["half_parts"] = Variant(choose(problem, current, Way(_FAST), tuned=_HALVES))
        variants["no_large_tile"] = Variant(choose(problem, current, Way("wgmma_small")))
        variants["no_wgmma"] = Variant(choose(problem, current, Way("portable")))
        return variants
    if precision == "tf32x3":
        variants["stride"] = Variant(choose(problem, current, Way("wgmma_tf32"), extra=("STRIDE",)))
        variants["no_balance"] = Variant(choose(problem, current, Way("wgmma_tf32"), extra=("RUNS",)))
        variants["no_wgmma"] = Variant(choose(problem, current, Way("portable")))
        return variants
    tuned = PORTABLE[precision]
    variants["no_compaction"] = Variant(choose(problem, current, Way("portable"), extra=("LIST_ALL_STEPS",)))
    variants["no_double_buffering"] = Variant(choose(problem, current, Way("portable"), tuned=replace(tuned, stages=1)))
    variants["stride"] = Variant(strided(choose(problem, current, Way("portable"), extra=("STRIDE",)), problem))
    return variants


def strided(choice: Choice, problem: Problem) -> Choice:
    """Return a choice whose blocks take 2 x 2 tiles at equal distances: the paper's stride s = 2 (Figure 4)."""
    counts = ceil_div(problem.m, choice.tile[0]), ceil_div(problem.n, choice.tile[1])
    return dataclasses.replace(
        choice, launch=dataclasses.replace(choice.launch, grid=(math.prod(ceil_div(size, 2) for size in counts), 1))
    )


def ablation(row: Mapping[str, Any], context: Context) -> Case:
    """Time the kernel at 30 % and 5 % without one idea at a time, and with what the paper has in its place."""
    n, precision = row["n"], row["precision"]
    operands = Operands(n, precision, context.seed)
    problem = Problem.of(operands.a, operands.b, operands.out, BLOCK, precision)
    # The variants lack an idea of the large product's kernel, at every size.
    kernels_: dict[str, Kernel] = {"fp16": _FAST, "fp16c16": _FAST, "tf32x3": "wgmma_tf32"}
    kernel = kernels_.get(precision, "portable")
    methods: list[Method | Skipped] = []
    for ratio, tau in ((30, TABLE_1[n][0]), (5, TABLE_1[n][-1])):
        methods.append(operands.spamm(f"spectile_{ratio:02}", tau))
        for name, variant in variants(precision, problem).items():
            choice = variant.choice or choose(problem, device.describe(), Way(kernel))
            methods.append(operands.spamm(f"{name}_{ratio:02}", tau, choice, variant.norms))
    methods.append(operands.vendor("cublas", VENDOR_MODES[precision], operands.limit))
    return Case(methods, inputs={"a": digest_array(operands.first)})


def _units() -> tuple[Unit, ...]:
    """Return the units of the variants, as the sheet's rows need them."""
    units = [reduction_unit(dtype, how) for dtype in ("float16", "float32", "float64") for how in REDUCTIONS.values()]
    units += [hopper_unit(WGMMA[_FAST], output, how) for output in ("float32", "float16") for how in SCHEDULES.values()]
    units += [hopper_unit(WGMMA["wgmma_tf32"], "float32", how) for how in SCHEDULES.values()]
    shapes = _HALVES, dataclasses.replace(WGMMA[_FAST], stages=2)
    units += [hopper_unit(shape, output) for shape in shapes for output in ("float32", "float16")]
    for precision in ("fp32", "fp64"):
        tuned = PORTABLE[precision]
        units += [portable_unit(precision, tuned, True, (extra,)) for extra in ("LIST_ALL_STEPS", "STRIDE")]
        units += [portable_unit(precision, dataclasses.replace(tuned, stages=1), True)]
    return tuple(dict.fromkeys(units))


UNITS = _units()
