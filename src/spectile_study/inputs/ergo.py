"""Fock and density matrices of a Hartree-Fock calculation, made by the program ergo where it is installed.

ergo (Rudberg et al., SoftwareX 7, 107) is the program of the paper's case study; Debian packages it as ``ergo``, and
``envs/ergo.yaml`` names it for conda.  Its basis "6-31Gss" is 6-31G**; it orders basis functions by position, and
writes ten digits of each entry.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from spectile_study.inputs.water import Cluster, load_symmetric, save_symmetric, write_xyz

#: Operators of a converged calculation and the files that hold them; of numbered ones the last iteration's is read.
OPERATORS = {
    "fock_ergo": ("Fock matrix (ergo, Hartree-Fock)", "F_matrix_*.mtx"),
    "density_ergo": ("density matrix (ergo, Hartree-Fock)", "D_matrix_*.mtx"),
    "overlap_ergo": ("overlap S (ergo)", "S_matrix.mtx"),
    "core_hamiltonian_ergo": ("core Hamiltonian (ergo)", "H_core_matrix.mtx"),
}


def program() -> str | None:
    """Return the path of ergo: the variable ``SPECTILE_ERGO``, or what the search path holds."""
    return shutil.which(os.environ.get("SPECTILE_ERGO", "ergo"))


def input_text(xyz: str, convergence: float = 5e-3, iterations: int = 30) -> str:
    """Return ergo's input: a rough start in a minimal basis, then Hartree-Fock in 6-31G** with its matrices written.

    Parameters
    ----------
    xyz : str
        Name of the molecule's file.
    convergence : float
        Largest entry of the commutator FDS - SDF at which the calculation ends.
    iterations : int
        Most iterations of the second calculation.
    """
    return f"""J_K.threshold_2el_J = 1e-5
J_K.threshold_2el_K = 1e-4
basis = "STO-3G"
scf.convergence_threshold = 1e-2
molecule "{xyz}"
run "HF"
basis = "6-31Gss"
initial_density = "density.bin"
scf.convergence_threshold = {convergence:g}
scf.max_number_of_iterations = {iterations}
scf.create_mtx_file_S = 1
scf.create_mtx_file_H_core = 1
scf.create_mtx_files_F = 1
scf.create_mtx_files_D = 1
run "HF"
"""


def run_ergo(cluster: Cluster, folder: Path, convergence: float = 5e-3, iterations: int = 30) -> dict[str, Path]:
    """Run ergo on a cluster in `folder`; return the file of each operator.

    Raises
    ------
    FileNotFoundError
        If ergo is not installed.
    RuntimeError
        If it fails, or does not converge.
    """
    ergo = program()
    if ergo is None:
        raise FileNotFoundError(
            "ergo is not installed: install the Debian package ergo or the environment envs/ergo.yaml, or let "
            "SPECTILE_ERGO name the program"
        )
    write_xyz(cluster, folder / "cluster.xyz")
    (folder / "calculation.ergo").write_text(input_text("cluster.xyz", convergence, iterations))
    done = subprocess.run([ergo, "calculation.ergo"], cwd=folder, capture_output=True, text=True)
    log = folder / "ergoscf.out"
    text = log.read_text(errors="replace") if log.exists() else ""
    if done.returncode != 0:
        raise RuntimeError(f"ergo ended with status {done.returncode}: {(done.stderr or text)[-300:].strip()}")
    if len(re.findall(r"RESC CONVERGED after", text)) < 2:
        raise RuntimeError(f"ergo did not converge in {iterations} iterations to {convergence:g}; its log is {log}")
    files = {}
    for operator, (_, pattern) in OPERATORS.items():
        dumps = sorted(folder.glob(pattern), key=lambda path: [int(x) for x in re.findall(r"\d+", path.stem)])
        if not dumps:
            raise RuntimeError(f"ergo wrote no {pattern} in {folder}: its version may not know the option")
        files[operator] = dumps[-1]
    return files


def read_matrix(path: Path) -> np.ndarray:
    """Read a symmetric matrix that ergo wrote in the MatrixMarket format, dense float64, shape (n, n).

    Raises
    ------
    ValueError
        If the file is not a whole, real, symmetric matrix of finite entries.
    """
    from scipy.io import mminfo, mmread

    try:
        rows, columns, _, layout, field, symmetry = mminfo(path)
        if (layout, field, symmetry) != ("coordinate", "real", "symmetric") or rows != columns:
            raise ValueError(f"it is a {rows} x {columns} {layout} {field} {symmetry} matrix")
        matrix: Any = mmread(path, spmatrix=False).toarray()
    except ValueError as error:
        raise ValueError(f"{path} is not a symmetric matrix as ergo writes it: {error}") from None
    if not np.isfinite(matrix).all():
        raise ValueError(f"{path} holds entries that are not finite: run ergo again")
    return matrix


def ergo_matrix(operator: str, cluster: Cluster, resources: Path) -> np.ndarray:
    """Return a matrix of a Hartree-Fock calculation from ``<resources>/water``, where one run puts all four.

    Parameters
    ----------
    operator : str
        A key of ``OPERATORS``.
    cluster : Cluster
        Molecules; 60 take minutes on two cores, 120 a third of an hour.
    resources : Path
        Folder of resources.
    """
    if operator not in OPERATORS:
        raise ValueError(f"operator = {operator!r} is unknown: choose one of {', '.join(OPERATORS)}")
    stem = f"{len(cluster.coordinates)}_{cluster.digest}.npz"
    wanted = resources / "water" / f"{operator}_{stem}"
    if not wanted.exists():
        with tempfile.TemporaryDirectory() as folder:
            for name, path in run_ergo(cluster, Path(folder)).items():
                save_symmetric(resources / "water" / f"{name}_{stem}", read_matrix(path))
    return load_symmetric(wanted)
