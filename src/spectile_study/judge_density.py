"""`density_matrix` judged on the Hartree-Fock matrices of water: error found, bound, tiles kept.

The matrices are read from a folder of resources that the user names: ``water/h2o_569.xyz``, and F of the whole cluster
as `inputs.hartree_fock.pack` writes it, ``water/fock_569.npz`` with its sha256.  A part of it is F and S of the
molecules nearest the centre alone, so that it fits a dense eigensolver, which is the judge.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import spectile
from spectile_study.inputs import hartree_fock, water
from spectile_study.inputs.water import FUNCTIONS, OCCUPIED, Cluster


class Matrices(NamedTuple):
    """F and S of some molecules, and what is exact of them.

    Attributes
    ----------
    fock, overlap, exact : array, shape (n, n)
        NumPy or CuPy, float64, molecule by molecule along a Hilbert curve; the density matrix of one spin.
    energy, gap : float
        Trace of P F, and the gap, in hartree.
    molecules : int
        How many.
    """

    fock: Any
    overlap: Any
    exact: Any
    energy: float
    gap: float
    molecules: int


class Verdict(NamedTuple):
    """What became of one error that was asked for.

    Attributes
    ----------
    molecules, n : int
        Molecules and basis functions.
    method : str
        Polynomials of the purification.
    asked, found, bound : float
        Errors in the Frobenius norm: asked for, true, and guaranteed.
    energy_found, energy_bound : float
        Errors of the trace of P F a molecule, in hartree.
    gap, gap_bound : float
        In hartree, exact and at least.
    fill, fill_most : float
        Share of tiles that are stored of P, and after the step where it is largest.
    products : float
        Products of tiles of the steps, as a share of those of as many dense products.
    seconds : float
        Of the call.
    kept : bool
        Whether all bounds hold.
    """

    molecules: int
    n: int
    method: str
    asked: float
    found: float
    bound: float
    energy_found: float
    energy_bound: float
    gap: float
    gap_bound: float
    fill: float
    fill_most: float
    products: float
    seconds: float
    kept: bool


#: What the dense eigensolver leaves of an error, a molecule.
_EXACT = 1e-10


def matrices(resources: Path, whole: int, molecules: int, on_gpu: bool = False) -> Matrices:
    """Return F and S of the molecules nearest the centre of a packed calculation, and the exact density matrix.

    Parameters
    ----------
    resources : Path
        Its folder ``water`` has the xyz file, ``fock_<whole>.npz`` and its sha256.
    whole, molecules : int
        Molecules of the calculation, and how many of them are wanted.
    on_gpu : bool
        Solve on the current device, and return arrays on it.

    Raises
    ------
    FileNotFoundError, ValueError
        As `inputs.hartree_fock.unpack`, if the molecules are too few or too many, or F has no gap.
    """
    if not 1 <= molecules <= whole:
        raise ValueError(f"molecules = {molecules} is not from 1 to {whole}: give another number")
    cluster = water.water_cluster(whole, resources)
    f, _ = hartree_fock.unpack(resources / "water" / f"fock_{whole}.npz", cluster, resources)
    oxygens = cluster.coordinates[:, 0]
    near = np.argsort(np.linalg.norm(oxygens - oxygens.mean(axis=0), axis=1), kind="stable")[:molecules]
    near = near[water.hilbert_order(oxygens[near])]
    size = len(f) // whole
    at = (near[:, None] * size + np.arange(size)).ravel()
    f = np.ascontiguousarray(f[np.ix_(at, at)])
    s = water.overlap(Cluster(cluster.coordinates[near], cluster.origin))
    if len(s) != len(f) or size != FUNCTIONS:
        raise ValueError(f"fock_{whole}.npz has {size} functions a molecule, and the basis {FUNCTIONS}: pack another")
    f, s = water.place(f, on_gpu), water.place(s, on_gpu)
    occupied = OCCUPIED * molecules
    exact = hartree_fock.derived("density_scf", f, s, occupied) / 2
    xp = water.namespace(f)
    root = xp.linalg.cholesky(s)
    half = xp.linalg.solve(root, xp.linalg.solve(root, f).T)
    values = xp.linalg.eigvalsh((half + half.T) / 2)
    gap = float(values[occupied] - values[occupied - 1])
    return Matrices(f, s, exact, float(values[:occupied].sum()), gap, molecules)


def judge(given: Matrices, error: float, method: str = "sp2_accelerated") -> Verdict:
    """Return how `spectile.density_matrix` kept an error in the Frobenius norm."""
    n = len(given.fock)
    start = time.perf_counter()
    p = spectile.density_matrix(
        given.fock, given.overlap, electrons=OCCUPIED * given.molecules, error=error, block=FUNCTIONS,
        method=method,  # type: ignore[arg-type]
    )  # fmt: skip
    seconds = time.perf_counter() - start
    found = float(water.namespace(given.fock).linalg.norm(p.matrix.to_dense() - given.exact))
    slack = _EXACT * given.molecules
    kept = found <= p.error + slack and p.error <= error and p.gap <= given.gap + slack
    energy = abs(p.energy - given.energy)
    tiles = len(p.matrix.rows) - 1
    dense = tiles * tiles * (tiles + 1) // 2 * max(1, len(p.history))
    return Verdict(
        given.molecules, n, method, error, found, p.error, energy / given.molecules, p.energy_error / given.molecules,
        given.gap, p.gap, p.matrix.fill, max((step.fill for step in p.history), default=0.0),
        sum(step.products for step in p.history) / dense, seconds,
        kept and energy <= p.energy_error + slack,
    )  # fmt: skip
