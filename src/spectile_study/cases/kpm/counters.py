"""Bytes that the GPU kernels of the stages move, counted by Nsight Compute (Figures 9 and 10).

:func:`count` starts ``ncu`` around :mod:`spectile_study.cases.kpm.counted`, which builds a ``step`` case and calls each
method between the marks that tell ``ncu`` what to count.  Nothing is timed there: kernels are replayed while counted.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

#: Counters of Nsight Compute that add up to each volume.
METRICS = {
    "dram_bytes": ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    "l2_bytes": ("lts__t_bytes.sum",),
    "l1_bytes": ("l1tex__t_bytes.sum",),
}
#: A kernel of this name begins the kernels of a method.
MARK = "counted_"
#: Seconds for all methods of a case: to build it, and to replay some ten kernels each.
LIMIT_S = 600


class NoCounters(RuntimeError):
    """Counters cannot be read here; the message says why."""


def find_ncu() -> str | None:
    """Return the command of Nsight Compute: on the path, or in the CUDA toolkit's folder."""
    toolkit = os.environ.get("CUDA_PATH") or os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    return shutil.which("ncu") or shutil.which("ncu", path=f"{toolkit}/bin")


def read(lines: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return the bytes of each method from Nsight Compute's CSV (``--csv --page raw --print-units base``).

    Parameters
    ----------
    lines : iterable of str
        The log, with what else ``ncu`` says in it (lines that begin with ``==``).

    Raises
    ------
    NoCounters
        If the driver keeps the counters for administrators, or the log holds none.
    """
    text = [line for line in lines if line.strip()]
    refused = [line for line in text if "ERR_NVGPUCTRPERM" in line]
    if refused:
        raise NoCounters("the driver keeps the GPU's counters for administrators (ERR_NVGPUCTRPERM)")
    table = list(csv.DictReader(line for line in text if line.startswith('"')))
    if not table:
        said = next((line.strip() for line in text if line.startswith("==ERROR==")), "it counted no kernel")
        raise NoCounters(f"Nsight Compute read no counters: {said}")
    volumes: dict[str, dict[str, float]] = {}
    method = None
    for row in table:
        name = row["Kernel Name"]
        if not row["ID"]:  # the units
            continue
        if name.startswith(MARK):
            method = name.removeprefix(MARK).split("(")[0]
            volumes[method] = dict.fromkeys(METRICS, 0.0)
        elif method is not None:
            for volume, counters in METRICS.items():
                volumes[method][volume] += sum(float(row[counter].replace(",", "")) for counter in counters)
    return volumes


def count(row: Mapping[str, Any], seed: int, threads: int, methods: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return, of each method of a ``step`` row, the bytes of one call by memory, and ``error_fro_rel`` of its result.

    Raises
    ------
    NoCounters
        If Nsight Compute is not installed or may not read the counters.
    RuntimeError
        If the methods fail.
    """
    ncu = find_ncu()
    if ncu is None:
        raise NoCounters("Nsight Compute (ncu) was not found: it comes with the CUDA toolkit")
    with tempfile.TemporaryDirectory() as folder:
        log, order = Path(folder) / "log.csv", Path(folder) / "order.json"
        order.write_text(json.dumps({"row": dict(row), "seed": seed, "threads": threads, "methods": list(methods)}))
        counters = ",".join(name for names in METRICS.values() for name in names)
        done = subprocess.run(
            [
                ncu, "--profile-from-start", "off", "--csv", "--page", "raw", "--print-units", "base", "--metrics",
                counters, "--log-file", str(log), sys.executable, "-m", "spectile_study.cases.kpm.counted", str(order)
            ],
            capture_output=True, text=True, check=False, timeout=LIMIT_S
        )  # fmt: skip
        said = log.read_text().splitlines() if log.exists() else []
        if done.returncode and (not said or any("application returned an error" in line for line in said)):
            raise RuntimeError(f"the counted methods ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        volumes = read(said)
    answers = [line for line in done.stdout.splitlines() if line.startswith('{"errors"')]
    errors = json.loads(answers[-1])["errors"] if answers else {}
    return {name: volumes[name] | {"error_fro_rel": errors[name]} for name in methods}
