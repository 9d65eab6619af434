"""Hamiltonians of other programs, samples of crystals, and averages over disorder and boundary conditions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spectile.core.arrays import host_array
from spectile.core.copies import Fixed
from spectile.core.memory import require_host_free
from spectile.core.options import flag, generator, kind_of, numbers, whole_number
from spectile.kpm.observables import shortest
from spectile.kpm.reference import standard_error
from spectile.kpm.types import Array


class Sample(NamedTuple):
    """A finite Hamiltonian with what a conductivity needs beside it: ``conductivity(H, "x", "y", positions, ...)``."""

    #: Sparse matrix, shape (N, N).
    H: Any
    #: Position of each row's site, shape (N, d).
    positions: Array
    #: Vectors by which a periodic sample repeats, shape (P, d), or None.
    periods: Array | None


class LatticeModel(Fixed):
    """A crystal: hoppings between the orbitals of its cells.

    Parameters
    ----------
    lattice : array_like, shape (d, d)
        Lattice vectors, one a row.
    orbitals : array_like, shape (W, d)
        Positions of a cell's orbitals.
    hoppings : mapping from d whole numbers to array_like, shape (W, W)
        ⟨0, m|H|R, n⟩ by R, the cell of the second orbital; that of R = 0 has the energies on its diagonal.  Of R and −R
        both are given.

    Raises
    ------
    ValueError
        If a shape does not fit, a number is not finite, or the hoppings of R and −R are not each other's adjoint.
    """

    def __init__(
        self, lattice: npt.ArrayLike, orbitals: npt.ArrayLike, hoppings: Mapping[tuple[int, ...], npt.ArrayLike]
    ) -> None:
        # Copies: what is checked here once does not change later.
        self.lattice, self.orbitals = numbers("lattice", lattice).copy(), numbers("orbitals", orbitals).copy()
        d = len(np.atleast_1d(self.lattice))
        if self.lattice.shape != (d, d) or self.orbitals.ndim != 2 or self.orbitals.shape[1] != d:
            raise ValueError(
                f"lattice has shape {self.lattice.shape} and orbitals {self.orbitals.shape}: give d vectors of d "
                "components, and d components for each orbital"
            )
        w = len(self.orbitals)
        if not isinstance(hoppings, Mapping):
            raise TypeError(f"hoppings is {kind_of(hoppings)}: give a mapping from cells to matrices")
        self.hoppings = {_whole("a cell's number", cell, -(2**31)): np.array(t) for cell, t in hoppings.items()}
        for cell, t in self.hoppings.items():
            if len(cell) != d or t.shape != (w, w) or t.dtype.kind not in "biufc" or not np.isfinite(t).all():
                raise ValueError(
                    f"the hopping to {cell} is {t.dtype} of shape {t.shape}: give {d} numbers and {w} x {w} "
                    "finite entries"
                )
            back = self.hoppings.get(tuple(-n for n in cell))
            size = max(abs(t).max(initial=0.0), 1e-300)
            if back is None or abs(t - back.conj().T).max(initial=0.0) > 1e-6 * size:
                raise ValueError(
                    f"the hoppings to {cell} and back are not adjoint to each other: the model is not Hermitian"
                )

    def bloch(self, k: Sequence[float]) -> Array:
        """Return the Bloch matrix Σ_R exp(i k·R) t(R), k in radians for each lattice vector."""
        total = sum(np.exp(1j * np.dot(k, cell)) * t for cell, t in self.hoppings.items())
        return np.asarray(total)

    def sample(
        self, sizes: Sequence[int], *, periodic: bool | Sequence[bool] = True, twist: Sequence[float] | None = None
    ) -> Sample:
        """Return a sample of so many cells.

        Parameters
        ----------
        sizes : sequence of d int
            Cells along each lattice vector; along periodic ones more than twice the longest hopping's.
        periodic : bool or sequence of d bool
            Which ends are joined.
        twist : sequence of d float or None
            Phases, in radians, of a hop out of the sample and in again: k is shifted by twist/size.

        Returns
        -------
        Sample
            Rows by cell, the last number fastest, and by orbital within it.

        Raises
        ------
        ValueError
            If a number does not fit.
        MemoryError
            If the sample does not fit into memory.

        Warns
        -----
        UserWarning
            If a hop has a shorter image, as in few cells of an oblique lattice: H is that of the model, and a velocity
            that is made of the positions is not.

        Examples
        --------
        >>> from spectile.kpm import LatticeModel
        >>> chain = LatticeModel([[1.0]], [[0.0]], {(1,): [[-1.0]], (-1,): [[-1.0]]})
        >>> chain.sample([4], periodic=False).H.toarray().sum()
        np.float64(-6.0)
        """
        import scipy.sparse as sp

        d, w = len(self.lattice), len(self.orbitals)
        shape = _whole("a size", sizes, 1)
        each: Any = (periodic,) * d if np.ndim(periodic) == 0 else periodic
        joined = tuple(flag("periodic", one) for one in each)
        phases = np.zeros(d) if twist is None else numbers("twist", twist)
        if len(shape) != d or len(joined) != d or phases.shape != (d,) or not np.isfinite(phases).all():
            raise ValueError(f"sizes={sizes!r}, periodic and twist must have {d} entries, and phases be finite")
        entries = sum(int(np.count_nonzero(t)) for t in self.hoppings.values())
        require_host_free(math.prod(shape) * (32 * d + 64 * entries), "a sample of so many cells")
        reach = np.abs(np.array([*self.hoppings, (0,) * d])).max(axis=0)
        for axis in range(d):
            if joined[axis] and shape[axis] <= 2 * reach[axis]:
                raise ValueError(
                    f"a periodic sample of {shape[axis]} cells is too small for hops over {reach[axis]}: take at least "
                    f"{2 * reach[axis] + 1}"
                )
        cells = np.stack(np.unravel_index(np.arange(np.prod(shape)), shape), axis=1)
        parts: list[tuple[Array, Array, Array]] = []
        for cell, t in self.hoppings.items():
            there = cells + np.array(cell)
            around = there // np.array(shape)
            kept = np.all((around == 0) | np.array(joined), axis=1)
            target = np.ravel_multi_index(tuple((there % np.array(shape))[kept].T), shape)
            turn = np.exp(1j * (around[kept] @ phases)) if phases.any() else np.ones(int(kept.sum()))
            for m, n in zip(*np.nonzero(t), strict=True):
                parts.append((np.flatnonzero(kept) * w + m, target * w + n, turn * t[m, n]))
        rows, columns, values = (np.concatenate([part[side] for part in parts] or [np.zeros(0)]) for side in range(3))
        if not np.any(values.imag):
            values = values.real
        size = len(cells) * w
        H = sp.coo_array((values, (rows.astype(int), columns.astype(int))), shape=(size, size)).tocsr()
        positions = (cells @ self.lattice)[:, None] + self.orbitals
        periods = (np.array(shape)[:, None] * self.lattice)[list(joined)]
        for cell, t in self.hoppings.items() if len(periods) else ():
            hops = (np.array(cell) @ self.lattice + self.orbitals - self.orbitals[:, None])[t != 0]
            if not np.allclose(shortest(hops.copy(), periods, np.zeros(len(hops), bool)), hops):
                told = (
                    f"a hop over {cell} has a shorter image in {shape} cells: take more cells where velocities are made"
                )
                warnings.warn(told, stacklevel=2)
                break
        return Sample(H, positions.reshape(-1, d), periods if len(periods) else None)


def read_wannier90(
    path: Any, lattice: npt.ArrayLike | None = None, centres: npt.ArrayLike | None = None
) -> LatticeModel:
    """Read the Hamiltonian that Wannier90 wrote: ``seedname_hr.dat``.

    Parameters
    ----------
    path : path
        The file.
    lattice : array_like, shape (3, 3), or None
        Lattice vectors, which the file does not hold; those of a unit cube if None.
    centres : array_like, shape (W, 3), or None
        Centres of the Wannier functions; the origin if None.

    Returns
    -------
    LatticeModel
        Its energies in eV; each entry is divided by the degeneracy of its cell.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is no such file, or not whole, or its Hamiltonian is not Hermitian.
    """
    words = Path(path).read_text().split("\n", 1)[-1].split()
    try:
        count, cells = int(words[0]), int(words[1])
        degeneracy = np.array(words[2 : 2 + cells], dtype=int)
        table = np.array(words[2 + cells :], dtype=np.float64).reshape(cells, count * count, 7)
        if count < 1 or len(degeneracy) != cells or degeneracy.min(initial=1) < 1:
            raise ValueError
    except (ValueError, IndexError):
        raise ValueError(f"{path} is no whole _hr.dat of Wannier90: write it again with write_hr = true") from None
    hoppings = {}
    for part, weight in zip(table, degeneracy, strict=True):
        t = np.zeros((count, count), complex)
        places = part[:, 3:5].astype(int) - 1
        if places.min() < 0 or places.max() >= count or (part[:, :3] != part[0, :3]).any():
            raise ValueError(f"{path} has entries of another cell, or orbital, where it should not: write it again")
        t[places[:, 0], places[:, 1]] = (part[:, 5] + 1j * part[:, 6]) / weight
        hoppings[tuple(part[0, :3].astype(int))] = t
    orbitals = np.zeros((count, 3)) if centres is None else centres
    return LatticeModel(np.eye(3) if lattice is None else lattice, orbitals, hoppings)


def from_pythtb(model: Any) -> LatticeModel:
    """Return a model of PythTB (1.8, ``tb_model``), without spin, as a :class:`LatticeModel`.

    Raises
    ------
    TypeError
        If it is no such model.
    """
    try:
        lattice, orbitals, hops = np.array(model._lat), np.array(model._orb), model._hoppings
        energies, spins = np.array(model._site_energies), model._nspin
    except AttributeError:
        raise TypeError(f"model is {kind_of(model)}: give a tb_model of PythTB 1.8") from None
    if spins != 1:
        raise TypeError("model has spin: give one whose orbitals are those of either spin")
    d = len(lattice)
    hoppings: dict[tuple[int, ...], Array] = {(0,) * d: np.diag(energies).astype(complex)}
    for amplitude, i, j, *cell in hops:
        there = tuple(int(n) for n in cell[0]) if cell else (0,) * d
        for key, m, n, t in ((there, i, j, amplitude), (tuple(-n for n in there), j, i, np.conj(amplitude))):
            hoppings.setdefault(key, np.zeros((len(orbitals),) * 2, complex))[m, n] += t
    return LatticeModel(lattice, orbitals @ lattice, hoppings)


def from_kwant(system: Any, params: Mapping[str, Any] | None = None) -> Sample:
    """Return the sparse matrix of a Kwant system and the position of each of its rows.

    Parameters
    ----------
    system : kwant.Builder or finalized system without leads that count
        A builder is finalized.
    params : mapping or None
        Kwant's ``params``.

    Raises
    ------
    TypeError
        If it is no Kwant system.
    """
    system = system.finalized() if hasattr(system, "finalized") else system
    if not hasattr(system, "hamiltonian_submatrix"):
        raise TypeError(f"system is {kind_of(system)}: give a builder or a finalized system of Kwant")
    matrix, norbs, _ = system.hamiltonian_submatrix(params=params, sparse=True, return_norb=True)
    places = np.array([system.pos(site) for site in range(len(norbs))], dtype=np.float64)
    return Sample(matrix.tocsr(), np.repeat(places, norbs, axis=0), None)


def from_pybinding(model: Any) -> Sample:
    """Return the sparse matrix of a model of pybinding with one orbital a site, and the sites' positions.

    Raises
    ------
    TypeError
        If it is no such model.
    """
    try:
        matrix, system = model.hamiltonian, model.system
        positions = np.stack([np.asarray(axis, np.float64) for axis in (system.x, system.y, system.z)], axis=1)
    except AttributeError:
        raise TypeError(f"model is {kind_of(model)}: give a Model of pybinding") from None
    if len(positions) != matrix.shape[0]:
        raise TypeError("model has several orbitals a site: repeat each site's position, and pass the matrix by itself")
    return Sample(matrix.tocsr(), positions, None)


def average(
    observe: Callable[[np.random.Generator], npt.ArrayLike],
    num_realizations: int,
    rng: int | np.random.Generator | None = None,
) -> tuple[Array, Array]:
    """Return the mean of an observable over realizations, and its standard error.

    Parameters
    ----------
    observe : callable
        ``observe(generator)`` makes a realization, of disorder, of twisted boundaries or of both, with numbers of the
        generator alone, and returns numbers, the same shape each time.
    num_realizations : int
        At least 1; the error of one is NaN.
    rng : int, Generator or None
        Seed: realization n has a generator of its own, which does not depend on how many there are.

    Returns
    -------
    ndarray, ndarray

    Raises
    ------
    ValueError
        If `num_realizations` is invalid, or what `observe` returns is no numbers or of another shape than before.

    Examples
    --------
    >>> import numpy as np
    >>> from spectile.kpm import average, kpm_dos
    >>> from spectile.kpm.operators.lattices import anderson
    >>> def density_at_zero(rng):
    ...     return kpm_dos(anderson(6, disorder=3, rng=rng), 32, 4, rng=rng, backend="cpu")(0.0) / 216
    >>> mean, error = average(density_at_zero, 5, rng=1)
    >>> bool(0.1 < mean < 0.2 and error < 0.02)
    True
    """
    count = whole_number(num_realizations, "num_realizations", 1)
    seed = int(generator("rng", rng).integers(2**62))
    if not callable(observe):
        raise TypeError(f"observe is {kind_of(observe)}: give a function of a generator")
    # Copied: it may return one array, of other numbers each time.
    found = [np.array(host_array("observe's result", observe(np.random.default_rng([seed, n])))) for n in range(count)]
    for one in found:
        if one.dtype.kind not in "biufc" or one.shape != found[0].shape:
            raise ValueError(
                f"observe gave {one.dtype} of shape {one.shape}: it must return numbers, of the same shape each time"
            )
    values = np.array(found)
    return values.mean(axis=0), standard_error(values, 0)


def _whole(name: str, values: Any, least: int) -> tuple[int, ...]:
    return tuple(whole_number(value, name, least) for value in np.atleast_1d(np.asarray(values, dtype=object)))
