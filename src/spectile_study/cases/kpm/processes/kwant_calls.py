"""Calls of Kwant, timed in an environment of its own by ``kwant_run.py``."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from spectile.kpm import bounds

#: Environment variable that names a Python which has Kwant.
KWANT = "SPECTILE_KWANT"
ABSENT = f"Kwant 1.5 needs NumPy 1: install it in an environment of its own, and name its Python in {KWANT}"


def is_named() -> bool:
    """Return whether the environment names a Python with Kwant."""
    return KWANT in os.environ


def call(matrix: Any, vectors: Any, moments: int, limits: tuple[float, float], **wanted: Any) -> tuple[Any, float]:
    """Return what is wanted of a call of Kwant, and its seconds.

    Parameters
    ----------
    matrix : scipy CSR matrix, shape (N, N)
    vectors : array, shape (R, N)
    moments : int
    limits : (float, float)
        Bounds of the spectrum.
    **wanted
        ``energies`` for a density, or ``velocity``, a CSR matrix, and ``few`` for the first moments of two of them.

    Raises
    ------
    RuntimeError
        If Kwant fails.
    """
    if "velocity" in wanted:
        v = wanted["velocity"]
        wanted |= {"velocity": v.data, "velocity_indices": v.indices, "velocity_indptr": v.indptr}
    with tempfile.TemporaryDirectory() as folder:
        problem = f"{folder}/problem.npz"
        np.savez(
            problem, data=matrix.data, indices=matrix.indices, indptr=matrix.indptr, vectors=vectors, moments=moments,
            bounds=limits, eps=2 - 2 * bounds.FILL, **wanted,
        )  # fmt: skip
        command = [os.environ[KWANT], str(Path(__file__).with_name("kwant_run.py")), problem]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    if done.returncode:
        raise RuntimeError(f"Kwant ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    answer = json.loads(done.stdout)
    return np.array(answer["wanted"]), answer["seconds"]
