"""What the workflow measures of KPM: one function for each study; the run sheet's column ``study`` chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spectile_study.bench.case import Context, Problem, Skipped
from spectile_study.cases.kpm import conductivities, densities, evolution, films, host, interior, matrices
from spectile_study.cases.kpm.processes import mpi_runs
from spectile_study.cases.kpm.shared import COUNTED, NO_DEVICE

PAPER = "kpm"
#: Studies of one device, which ``cuda.py`` builds on a CUDA context; the others are about the CPU, or several devices.
ON_DEVICE = ("machine", "functions", "step", "counters", "dos", "surface")


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of ``config/kpm.tsv``."""
    study = row["study"]
    if context.device == "cuda" and study in ON_DEVICE:
        from spectile_study.cases.kpm.cuda import build as build_on_device

        return build_on_device(row, context)
    return _STUDIES[study](row, context)


def _counters(row: Mapping[str, Any], context: Context) -> Problem:
    return Problem([Skipped(name, f"counters are those of the GPU's memories, and {NO_DEVICE}") for name in COUNTED])


def _devices(row: Mapping[str, Any], context: Context) -> Problem:
    from spectile_study.cases.kpm.multi import build as build_on_several

    return build_on_several(row, context)


_STUDIES: dict[str, Callable[[Mapping[str, Any], Context], Problem]] = {
    "machine": host.machine,
    "host_machine": host.machine,
    "functions": host.functions,
    "step": host.step,
    "counters": _counters,
    "host_step": host.step,
    "threads": host.step,
    "dos": lambda row, context: densities.dos_problem(row, context, "cpu"),
    "host_dos": densities.host_dos,
    "surface": lambda row, context: densities.surface_problem(row, context, "cpu"),
    "conductivity": conductivities.build,
    "interior": interior.build,
    "evolution": evolution.build,
    "film": films.film_problem,
    "packet": films.packet_problem,
    "matrix": matrices.build,
    "ranks": mpi_runs.ranks_problem,
    "devices": _devices,
    "hybrid": _devices,
}
