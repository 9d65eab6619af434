"""Matrices of users: stored Hamiltonians other than the paper's, of every type, made where they are used.

==========  ==================================================================================================
graphene    honeycomb lattice, nearest neighbours, hopping −1; 3 entries a row
anderson    cube, nearest neighbours, hopping −1, random energies of width 2; 7 entries
hopping     square lattice, random hops to 8 neighbours, no energies (off-diagonal disorder); 8 entries
wannier     square lattice of cells of 7 orbitals, random blocks to the 8 cells around; 63 entries in dense blocks
==========  ==================================================================================================

All are periodic.  Random numbers follow from the two rows that an entry couples, so that host and device make the same
matrix, and an entry and its partner are conjugate; complex ones have random phases.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

ORBITALS = 7
_NEIGHBOURS = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1)]


def hamiltonian(kind: str, rows: int, dtype: Any, xp: ModuleType = np) -> Any:
    """Return a Hermitian CSR matrix of about so many rows, columns in ascending order.

    Parameters
    ----------
    kind : {"graphene", "anderson", "hopping", "wannier"}
        The model.
    rows : int
        Rows wanted; the lattice that comes nearest from below has at least 3 cells along each side.
    dtype : dtype
        float32, float64, complex64 or complex128.
    xp : module
        numpy gives SciPy's matrix, cupy CuPy's.
    """
    columns = {"graphene": _graphene, "anderson": _cube, "hopping": _square, "wannier": _cells}[kind](rows, xp)
    columns = xp.sort(columns, axis=1)
    row = xp.arange(columns.shape[0], dtype=columns.dtype)[:, None]
    values = _values(kind, row, columns, np.dtype(dtype), xp)
    pointer = xp.arange(columns.shape[0] + 1, dtype=np.int32) * columns.shape[1]
    if xp is np:
        from scipy.sparse import csr_matrix
    else:
        from cupyx.scipy.sparse import csr_matrix
    shape = (columns.shape[0],) * 2
    matrix = csr_matrix((values.ravel(), columns.ravel(), pointer), shape=shape)
    matrix.has_sorted_indices = matrix.has_canonical_format = True
    return matrix


def _side(cells: float, dimensions: int) -> int:
    return max(3, int(round(cells ** (1 / dimensions) * 1e6) // 10**6))


def _shifted(site: Any, steps: tuple[int, ...], xp: ModuleType) -> Any:
    return xp.roll(site, [-step for step in steps], axis=tuple(range(site.ndim))).ravel()


def _lattice(cells: float, dimensions: int, xp: ModuleType) -> Any:
    side = _side(cells, dimensions)
    return xp.arange(side**dimensions, dtype=np.int32).reshape((side,) * dimensions)


def _graphene(rows: int, xp: ModuleType) -> Any:
    cell = _lattice(rows / 2, 2, xp)
    there = [_shifted(cell, step, xp) for step in ((0, 0), (1, 0), (0, 1))]
    back = [_shifted(cell, step, xp) for step in ((0, 0), (-1, 0), (0, -1))]
    # Site A of a cell couples sites B of this and the cells behind, and the other way round.
    a = xp.stack([2 * other + 1 for other in back], axis=1)
    b = xp.stack([2 * other for other in there], axis=1)
    return xp.stack([a, b], axis=1).reshape(-1, 3)


def _cube(rows: int, xp: ModuleType) -> Any:
    site = _lattice(rows, 3, xp)
    steps = [(0, 0, 0), *((s, 0, 0) for s in (1, -1)), *((0, s, 0) for s in (1, -1)), *((0, 0, s) for s in (1, -1))]
    return xp.stack([_shifted(site, step, xp) for step in steps], axis=1)


def _square(rows: int, xp: ModuleType) -> Any:
    site = _lattice(rows, 2, xp)
    return xp.stack([_shifted(site, step, xp) for step in _NEIGHBOURS if step != (0, 0)], axis=1)


def _cells(rows: int, xp: ModuleType) -> Any:
    cell = _lattice(rows / ORBITALS, 2, xp)
    cells = xp.stack([_shifted(cell, step, xp) for step in _NEIGHBOURS], axis=1)
    orbitals = (cells[:, :, None] * ORBITALS + xp.arange(ORBITALS, dtype=np.int32)).reshape(cell.size, -1)
    return xp.repeat(orbitals, ORBITALS, axis=0)


def _values(kind: str, row: Any, column: Any, dtype: np.dtype[Any], xp: ModuleType) -> Any:
    """Return each entry's value, which a hash of its two rows decides."""
    low, high = xp.minimum(row, column).astype(np.uint64), xp.maximum(row, column).astype(np.uint64)
    bits = low * np.uint64(0x9E3779B97F4A7C15) + high * np.uint64(0xC2B2AE3D27D4EB4F)
    del low, high
    for shift, factor in ((31, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    uniform = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2**-23) - np.float32(1)  # in [−1, 1)
    diagonal = row == column
    if kind == "graphene":
        values = xp.full(column.shape, -1, dtype)
    elif kind == "anderson":
        values = xp.where(diagonal, uniform, xp.float32(-1)).astype(dtype)
    else:
        values = uniform.astype(dtype)
    if dtype.kind == "c":
        # A phase of the hop, the opposite one for its partner.
        angle = ((bits & np.uint64(0xFFFF)).astype(np.float32) * np.float32(np.pi / 2**16)).astype(values.real.dtype)
        angle = xp.where(diagonal, 0, xp.where(column > row, angle, -angle))
        values *= xp.cos(angle) + 1j * xp.sin(angle)
        values.imag[diagonal] = 0
    return values
