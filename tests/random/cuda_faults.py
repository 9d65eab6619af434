"""Plant single faults in CUDA sources and see which the GPU's tests find: ``python -m tests.random.cuda_faults``.

Works on copies of the tree in a temporary folder, on a machine with a GPU; ``--check`` says, on any machine, whether
each fault still has its place, and compiles.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.random.mutate import ROOT, run_tests

SOURCES = ROOT / "src/spectile"


class Fault(NamedTuple):
    """What stands at one place of a source below src/spectile, what takes its place, and what is to find it."""

    path: str
    old: str
    new: str
    tests: tuple[str, ...]


def _tests(file: str, *names: str, only: str = "") -> tuple[str, ...]:
    """Return what pytest is told: tests of a file of GPU tests, those alone whose names hold some words."""
    return (*(f"tests/gpu/{file}::{name}" for name in names), *(("-k", only) if only else ()))


NORMS = _tests("nearsparse/test_spamm.py", "test_norm_map")
RANGES = _tests(
    "nearsparse/test_range.py",
    "test_norms_near_zero_are_rounded_up",
    "test_errors_are_within_their_bounds_over_the_whole_range",
)
VALID = _tests(
    "nearsparse/test_spamm.py",
    "test_what_lies_behind_an_operand_is_not_read",
    "test_strict_multiplies_exactly_the_valid_set",
)
EQUAL = _tests("nearsparse/test_spamm.py", "test_products_of_norms_that_equal_the_threshold_are_multiplied")
ROWS = _tests("tsparse/test_spgemm.py", "test_every_kind_of_row", "test_rows_of_every_number_of_products")
ROOM = _tests(
    "tsparse/test_spgemm.py", "test_bitmaps_without_room_are_made_again", "test_numeric_of_bitmaps_without_room"
)
INPUT = _tests("tsparse/test_spgemm.py", "test_bad_input")
HUBS = _tests("tsparse/test_hubs.py", "test_both_ways_have_the_same_bits", only="column")
PIECES = _tests("tsparse/test_hubs.py", "test_pieces_of_long_rows_meet_a_dense_matrix")
MASKS = _tests("tsparse/test_semirings.py", "test_what_is_no_number_stays_whatever_comes_after")
STURM = _tests("evd/test_eigh.py", "test_eigenvalues_of_tridiagonals")
HALVES = _tests("evd/test_eigh.py", "test_divide_and_conquer", "test_families", only="not complex")
ANYWHERE = _tests("evd/test_not_finite.py", "test_every_thread_finds_what_it_alone_meets")
SMALL = _tests("evd/test_problems.py", "test_batches", only="complex")
ALONE = _tests("evd/test_problems.py", "test_vectors_that_fall_off_fast_are_made_one_by_one")
DENSITY = _tests("kpm/test_kpm.py", "test_public_functions_equal_the_cpu")
SHAPES = _tests("kpm/test_operators.py", "test_matrices_of_every_shape")
GROUPED = ("tests/gpu/kpm/test_inspection.py",)
SLICED = _tests("kpm/test_rows.py", "test_a_step_is_within_its_rounding", only="sliced")
BY_ROWS = _tests("kpm/test_rows.py", "test_a_step_is_within_its_rounding", only="csr")
TILES = _tests(
    "tiles/test_tiles.py", "test_operations_are_those_of_the_host_within_their_bounds", "test_range_of_entries"
)
GRIDS = ("tests/gpu/tiles/test_grid.py",)
_KERNELS, _ROWS, _EVD, _KPM = "nearsparse/cuda/kernels", "tsparse/cuda/rows", "evd/cuda", "kpm/cuda"

FAULTS = (
    # SpAMM: the last column of an edge tile, a bound of an edge, the test itself, the order of norms, its range.
    Fault(
        f"{_KERNELS}/norm_map.cu",
        "i < kVector && column + i < columns",
        "i < kVector && column + i + 1 < columns",
        NORMS,
    ),
    Fault(
        f"{_KERNELS}/norm_map.cu",
        "const int rows = min(32, task.rows - first);",
        "const int rows = min(31, task.rows - first);",
        NORMS,
    ),
    Fault(
        f"{_KERNELS}/norm_map.cu", "const int exponent = ilogb(largest), half", "const int exponent = 0, half", RANGES
    ),
    Fault(f"{_KERNELS}/product.cu", "if (!(norm_a * norm_b < tau))", "if (!(norm_a * norm_b <= tau))", EQUAL),
    Fault(f"{_KERNELS}/product.cu", "first + row < rows ? max(0", "first + row <= rows ? max(0", VALID),
    Fault(
        f"{_KERNELS}/product.cu",
        "if (w < warp) position += warp_totals[w];",
        "if (w <= warp) position += warp_totals[w];",
        VALID,
    ),
    # Sparse products: a table's collision, places within a word, rows that fall, exact ends.
    Fault("tsparse/cuda/scan.cuh", "if (w < warp) before +=", "if (w && w < warp) before +=", ROWS),
    Fault(
        f"{_ROWS}/block.cu",
        "q = s_first[s + d] + THREADS + t; q <",
        "q = s_first[s + d] + 2 * THREADS + t; q <",
        ROWS,
    ),
    Fault(f"{_ROWS}/rows.cuh", "u32 bit = 1u << (offset & 31);", "u32 bit = 1u << (offset & 15);", ROWS),
    Fault(f"{_ROWS}/rows.cuh", "q < stop; q += THREADS) set", "q + 1 < stop; q += THREADS) set", ROWS),
    Fault(f"{_ROWS}/window.cu", "if (slot[row] + used > capacity)", "if (slot[row] + used > capacity + 64)", ROOM),
    Fault("tsparse/cuda/check.cu", "begin > end || end > nnz", "begin > end", INPUT),
    # The eigensolver: the ends of an interval, the sign of a coupling, deflation, what is not read, the range.
    Fault(f"{_EVD}/tridiagonal/sturm.cu", "base + i < n && base + i > 0", "base + i < n && i > 0", STURM),
    Fault(f"{_EVD}/tridiagonal/sturm.cu", "counted.below <= first + own", "counted.below < first + own", STURM),
    Fault(f"{_EVD}/tridiagonal/divide.cu", "i >= h && coupling[base + h - 1] < 0 ? -z : z", "z", HALVES),
    Fault(f"{_EVD}/tridiagonal/divide.cu", "other < value || (other == value && i >= h)", "other < value", HALVES),
    Fault(
        f"{_EVD}/matrix.cu",
        "most = max(most, own);",
        "most = c == y ? own : most;",
        ANYWHERE,
    ),
    Fault(f"{_EVD}/small/rotations.cu", "if (conjugate) value = conj(value);", "", SMALL),
    # KPM: a group's edge, fill-in, a sum's last part, phases of a later vector.
    Fault(f"{_KPM}/vectors.cu", "other |= indices[at] != indices[at - (begin - before)];", ";", GROUPED),
    Fault(f"{_KPM}/vectors.cu", "k < length ? data[at + k] : zero()", "k <= length ? data[at + k] : zero()", SHAPES),
    Fault(
        f"{_KPM}/vectors.cu",
        "random_phase(seed, row, first + i % width)",
        "random_phase(seed, row, i % width)",
        DENSITY,
    ),
    Fault(f"{_KPM}/sliced/kernel.cu", "k < now.more; k += UNROLL", "k + 1 < now.more; k += UNROLL", SLICED),
    Fault(f"{_KPM}/csr/kernel.cu", "if (wanted >= place.count) e.value[u] = zero();", "", BY_ROWS),
    # Hub rows, masks, dense factors: the last product of a chunk, what is no number, a count for the next columns.
    Fault(f"{_ROWS}/hub.cu", "for (int j = 0; j < held; ++j) sum", "for (int j = 0; j + 1 < held; ++j) sum", HUBS),
    Fault("tsparse/cuda/masked.cu", "better || product != product ? product", "better ? product", MASKS),
    Fault("tsparse/cuda/dense.cu", "if (s_last) done[of.sums] = 0;", "", PIECES),
    # A column that is stored twice, the third entry of a row of U.
    Fault("kpm/cuda/inspect.cu", "at > begin && column <= indices", "at > begin && column < indices", GROUPED),
    Fault(f"{_EVD}/tridiagonal/inverse.cu", "second[at] = swap ? beyond : 0;", "second[at] = 0;", ALONE),
    # Tiles: terms of an entry, range, the largest of a warp, what stands for two entries.
    Fault("tiles/cuda/search.cu", "++count, length += sizes[k]", "++count, length += 1", TILES),
    Fault("tiles/cuda/tiles.cu", "if (most > 0 && !isinf(most)) frexp(most, &exponent);", "", TILES),
    Fault("tiles/cuda/tiles.cu", "most_column = largest_of_warp(most_column);", "", TILES),
    Fault("tiles/cuda/grid.cu", "const double weight = twice && s > r ? 2 : 1;", "const double weight = 1;", GRIDS),
    Fault("tiles/cuda/grid.cu", "terms += grid.height(k)", "terms += 1", GRIDS),
    Fault("tiles/cuda/grid.cu", "return 0x1p-10 * 1.06 * once", "return 0x1p-13 * once", GRIDS),
)


def units() -> Iterator[Any]:
    """Yield the library's CUDA units."""
    for folder in sorted(SOURCES.rglob("units.py")):
        yield from importlib.import_module(".".join(folder.relative_to(ROOT / "src").with_suffix("").parts)).UNITS


def lost() -> list[str]:
    """Return what is wrong with the faults: no place, several, or machine code that cannot be made with them."""
    known, said = list(units()), []
    for fault in FAULTS:
        path = SOURCES / fault.path
        if path.read_text().count(fault.old) != 1:
            said.append(f"no place, or several: {fault.path}: {fault.old}")
            continue
        name = Path(fault.path).name
        unit = next(one for one in known if fault.old in one.source() and f'{name}"' in one.source())
        planted, one = unit.source().replace(fault.old, fault.new), replace(unit)
        object.__setattr__(one, "source", lambda planted=planted: planted)
        try:
            one.cubin("sm_90a" if "sm_90a" in unit.archs else unit.archs[0])
        except RuntimeError as error:
            said.append(f"does not compile: {fault.path}: {fault.new}: {str(error)[-300:]}")
    return said


def verdict(fault: Fault, folder: Path, timeout_s: float) -> str:
    """Return what the tests of a fault say of a copy of the tree that has it."""
    apart = shutil.ignore_patterns(".git", ".venv", "results", "resources", "__pycache__", "logs", "cubins", "docs")
    shutil.copytree(ROOT, folder, ignore=apart, symlinks=True)
    source = folder / "src/spectile" / fault.path
    source.write_text(source.read_text().replace(fault.old, fault.new))
    said = run_tests(folder, list(fault.tests), timeout_s)
    shutil.rmtree(folder)
    return said


def main() -> int:
    """Plant the faults, each in a tree of its own, and print which were found."""
    parser = argparse.ArgumentParser(prog="python -m tests.random.cuda_faults", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="only look whether every fault has its place, and compiles"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="no fault is begun after so many minutes")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds that the tests of one fault may take")
    parser.add_argument("--processes", type=int, default=1, help="faults that are looked for at a time")
    parser.add_argument(
        "numbers", nargs="*", type=int, default=list(range(len(FAULTS))), help="of faults (default: all)"
    )
    arguments = parser.parse_args()
    if arguments.check:
        said = lost()
        print("\n".join([*said, f"{len(FAULTS) - len(said)} of {len(FAULTS)} faults can be planted"]))
        return int(bool(said))
    end, verdicts = time.monotonic() + 60 * arguments.minutes, []

    def judge(number: int) -> str | None:
        begun = time.monotonic()
        if begun > end:
            return None
        fault = FAULTS[number]
        said = verdict(fault, Path(folder) / str(number), arguments.timeout)
        change = f"{fault.path}: {fault.old} -> {fault.new}"
        print(f"{number} {said} {change} ({time.monotonic() - begun:.0f} s)", flush=True)
        return said

    with tempfile.TemporaryDirectory(prefix="faults-") as folder, ThreadPoolExecutor(arguments.processes) as pool:
        verdicts = [
            done.result() for done in as_completed([pool.submit(judge, number) for number in arguments.numbers])
        ]
    kinds = ("killed", "survived", "late", "no test")
    print(", ".join(f"{verdicts.count(kind)} {kind}" for kind in kinds), f"{verdicts.count(None)} not run", sep=", ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
