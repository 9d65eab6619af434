"""Timed calls on MPI ranks (Figure 12, Table III); ``ranks.py`` is what each rank runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from spectile_study.bench.case import Context, Method, Problem, Skipped
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.kpm import model
from spectile_study.cases.kpm.shared import STEPS, case_values, checker, sample_of


def mpiexec() -> tuple[str, str | None]:
    """Return the command that starts MPI ranks, and why there is none."""
    command = shutil.which("mpiexec") or shutil.which("mpiexec", path=f"{sys.prefix}/bin")
    if command is None:
        return "", "no MPI runtime was found: install one (pip install mpich, or the system's openmpi-bin)"
    return command, None


class RankRuns:
    """Timed calls of one method on MPI ranks, each (scalar products, seconds).

    Ranks take seconds to start: one start times many calls, each from barrier to barrier, and hands them out.
    """

    def __init__(
        self, command: str, sample: Any, num_vectors: int, ranks: int, steps: int, seed: int, method: str, calls: int,
        first: int = 1, *further: float
    ) -> None:  # fmt: skip
        size = (sample.nx, sample.ny, sample.nz, num_vectors, steps, seed)
        self._command = [
            command,
            "-n",
            str(ranks),
            sys.executable,
            "-m",
            "spectile_study.cases.kpm.processes.ranks",
            *map(str, size),
        ]
        self._command += [method, str(calls), str(first), *map(str, further)]
        self._seconds: list[float] = []
        self._etas = np.empty(0)

    def __call__(self) -> tuple[Any, float]:
        """Return the next call; start ranks where none is left."""
        if not self._seconds:
            # Open MPI would bind all threads of a rank to one core.
            free = dict.fromkeys(
                ("OMPI_MCA_hwloc_base_binding_policy", "PRTE_MCA_hwloc_default_binding_policy"), "none"
            )
            done = subprocess.run(
                self._command, capture_output=True, text=True, check=False, timeout=600, env=os.environ | free
            )
            if done.returncode:
                raise RuntimeError(f"mpiexec ended with {done.returncode}: {done.stderr.strip()[-300:]}")
            # MPI runtimes add lines of their own.
            answers = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
            if not answers:
                raise RuntimeError(f"the ranks answered nothing: {(done.stdout + done.stderr).strip()[-300:]}")
            answer = json.loads(answers[-1])
            self._seconds, self._etas = list(answer["seconds"]), np.array(answer["etas"])
        return self._etas, self._seconds.pop()


def ranks_problem(row: Mapping[str, Any], context: Context) -> Problem:
    """Time ranks of one machine: throughput mode, a reduction every step, one reduction."""
    sample, r, ranks = sample_of(row), int(row["num_vectors"]), int(row["ranks"])
    size = (sample.shape[0], sample.nnz, r)
    values = case_values(sample)
    command, reason = mpiexec()
    if reason is None and ranks > context.threads:
        reason = f"{ranks} ranks need as many cores, and this run has {context.threads}"
    methods: list[Method | Skipped] = []
    for name in ("aug_spmv", "aug_spmmv_star", "aug_spmmv"):
        if reason is not None:
            methods.append(Skipped(name, reason))
            continue
        run = RankRuns(command, sample, r, ranks, STEPS, context.seed, name, 12)
        work = "aug_spmv" if name == "aug_spmv" else "aug_spmmv"
        methods.append(
            Method(
                name, run, checker(row, context, 1), {"error_fro_rel": 1e-12}, flops=STEPS * model.step_flops(*size),
                bytes=STEPS * model.step_bytes(work, *size), clock="external"
            )
        )  # fmt: skip
    return Problem(methods, inputs={"potential": digest_array(sample.potential)}, values=values)
