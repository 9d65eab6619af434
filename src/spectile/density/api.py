"""Density matrices with a guarantee: purification, the certificate at its end, and the Fermi function for metals."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from spectile.core.choice import Candidate, cheapest
from spectile.core.device import require_device
from spectile.core.options import kind_of, number, word
from spectile.core.progress import MATRICES, Progress
from spectile.density.dense import candidates, inverse_root, near
from spectile.density.factor import refined
from spectile.density.functions import fermi
from spectile.density.maps import METHODS
from spectile.density.operands import hermitian_operand, positive, within_range
from spectile.density.projector import Unresolved, ends_at, projector
from spectile.density.purify import planned_to
from spectile.density.result import DensityMatrix
from spectile.tiles import Error, TileMatrix
from spectile.tiles.grid import GridMatrix, in_lists, on_grid
from spectile.tiles.layout import offsets
from spectile.tiles.spread import Spread
from spectile.tiles.types import SLACK

_LOGGER = logging.getLogger("spectile.density")


@Progress("density_matrix", unit=MATRICES)
def density_matrix(
    f: Any, s: Any = None, *, electrons: float | None = None, mu: float | None = None, error: float = 1e-6,
    beta: float | None = None, method: Literal["eigh", "sp2_accelerated", "sp2", "trs4", "mcweeny"] | None = None,
    block: Any = None, permutation: Any = None, start: DensityMatrix | None = None,
    devices: int | Sequence[int] | None = None,
) -> DensityMatrix:  # fmt: skip
    """Return the density matrix of a Fock or Kohn-Sham matrix with an error that is guaranteed.

    P projects on the states below the gap.  It is found by a purification, polynomials that take the eigenvalues to 0
    and 1, with tiles left out within budgets that follow the gap, and is judged at the end by ``F P - P F`` and
    ``P^2 - P``, which are zero for the exact one; or, where that is faster, by the lowest eigenvectors, judged by their
    residuals and, unless all are computed, by a Cholesky factor, which shows that no other eigenvalue is as low.

    Parameters
    ----------
    f : TileMatrix, array or SciPy sparse matrix of shape (n, n)
        Hermitian, to rounding: a deviation from that counts as its error.  Anything but a TileMatrix is stored in tiles
        of `block` rows, in the order `permutation`.
    s : the same, optional
        Overlap, positive definite; the identity by default.
    electrons : float, optional
        Of one spin: occupied orbitals, half of all electrons in a closed shell.  With `beta` any number.
    mu : float, optional
        Chemical potential, in place of `electrons`.
    error : float, default 1e-6
        Largest allowed error of P in the Frobenius norm.
    beta : float, optional
        Inverse temperature, in the inverse unit of `f`: P is the Fermi function of F, which needs no gap.
    method : {"eigh", "sp2_accelerated", "sp2", "trs4", "mcweeny"}, optional
        The lowest eigenvectors, or the polynomials of the purification; each guarantees the error.  By default the one
        of the first two that is predicted to be faster: eigenvectors of small matrices, of those without small
        tiles, and of those whose first products keep so many tiles that the others would take longer.  Not with `beta`.
    block : int or sequence of int, optional
        Rows of a tile, or of each: 32 by default, and 16 on a CPU where few such tiles hold the square of `f`.  Of a
        tile matrix none but its own.
    permutation : sequence of int, optional
        Order of rows and columns in which neighbours in space are neighbours, as `spectile.tiles.partition` gives it.
        Of a tile matrix none but its own.
    start : DensityMatrix, optional
        What an earlier call returned for a similar matrix, as of the last cycle of a self-consistent field: its HOMO,
        its LUMO and the inverse factor of its overlap save the search for them.  They are taken as guesses: nothing
        that is guaranteed depends on them.
    devices : int or sequence of int, optional
        How many GPUs of this host share the matrices, or which ones: each has tile rows of every matrix, as
        `TileMatrix.to_devices` gives them out, and reads what it needs of the others'.  It is for matrices that are too
        large for the memory of one: no faster, while lists of tiles, which the host makes, take most of the time.  The
        default is one, or the host, where `f` is.

    Returns
    -------
    DensityMatrix
        P as a tile matrix, energy, HOMO, LUMO, and the bounds of their errors.

    Raises
    ------
    TypeError
        As `TileMatrix.from_dense`, or if `start` is no density matrix.
    ValueError
        If there is no gap at that number of electrons, `f` is not Hermitian, `electrons` is more than n or no whole
        number, both or none of `electrons` and `mu` are given, `method` and `beta` are, `block` or `permutation` is
        not that of a tile matrix, `start` has other tiles, or the error is below what rounding allows.
    RuntimeError
        If there are `devices`, and no usable GPU.

    See Also
    --------
    spectile.eigh : orbitals and their energies.
    spectile.density.fermi : of a metal, by a chemical potential.

    Notes
    -----
    The methods: E. H. Rubensson, J. Chem. Theory Comput. 7, 1233 (2011); A. M. N. Niklasson, Phys. Rev. B 66, 155115
    (2002); A. M. N. Niklasson, C. J. Tymczak, M. Challacombe, J. Chem. Phys. 118, 8611 (2003); R. McWeeny, Rev. Mod.
    Phys. 32, 335 (1960).  The budgets: E. H. Rubensson, E. Rudberg, P. Sałek, J. Chem. Phys. 128, 074106 (2008).  The
    bound is that of a Sylvester equation: C. Davis, W. M. Kahan, SIAM J. Numer. Anal. 7, 1 (1970).

    Examples
    --------
    >>> import numpy as np, spectile
    >>> site = np.arange(200)
    >>> f = np.diag(np.where(site % 2, 1.0, -1.0)) + np.eye(200, k=1) / 2 + np.eye(200, k=-1) / 2
    >>> p = spectile.density_matrix(f, electrons=100, error=1e-5)
    >>> values, vectors = np.linalg.eigh(f)
    >>> exact = vectors[:, :100] @ vectors[:, :100].T
    >>> bool(np.linalg.norm(p.matrix.to_dense() - exact) <= p.error <= 1e-5)
    True
    >>> bool(p.homo[0] <= values[99] <= p.homo[1] and p.lumo[0] <= values[100] <= p.lumo[1])
    True
    """
    begun = time.perf_counter()
    asked = _asked(f, electrons, mu, error, beta, method, block, permutation, start, devices)
    found = _found(asked, s)
    _LOGGER.info(
        "%s in %.3g s: %d steps of %d products of tiles, error %.2g of %.2g asked for", asked.told(),
        time.perf_counter() - begun, len(found.history), found.products, found.error, asked.error,
    )  # fmt: skip
    return found


class _Asked(NamedTuple):
    """A call, its options read."""

    h: TileMatrix | GridMatrix
    electrons: float | None
    mu: float | None
    error: float
    beta: float | None
    method: str
    start: DensityMatrix | None
    ways: list[Candidate]  #: Those that were compared.

    def told(self) -> str:
        """Return what is computed and where."""
        n, grid = self.h.shape[0], len(self.h.rows) - 1
        place = self.h._place() if isinstance(self.h, TileMatrix) else f"GPU {self.h.data.device.id}"
        return f"{self.method}, n = {n}, {round(self.h.fill * grid * grid)} of {grid * grid} tiles, on {place}"


def _asked(
    f: Any, electrons: Any, mu: Any, error: Any, beta: Any, method: Any, block: Any, permutation: Any, start: Any,
    devices: Any,
) -> _Asked:  # fmt: skip
    if method is not None:
        word("method", method, "eigh", *METHODS)
    error = positive("error", error)
    electrons = None if electrons is None else number("electrons", electrons)
    mu, beta = (None if x is None else number(name, x) for name, x in (("mu", mu), ("beta", beta)))
    if (electrons is None) == (mu is None):
        raise ValueError("give electrons=, those of one spin, or mu=, a chemical potential, and not both")
    if method is not None and beta is not None:
        raise ValueError("method makes projectors, and beta asks for a Fermi function: leave one of them out")
    if isinstance(f, TileMatrix):
        tiles = None if block is None else offsets("block", f.shape[0], block)
        for name, given, own in (("block", tiles, f.rows), ("permutation", permutation, f.permutation)):
            if given is not None and not np.array_equal(given, own):
                raise ValueError(f"{name} is not that of f, which is in tiles: leave it out, or pass f.to_csr()")
    if start is not None and not isinstance(start, DensityMatrix):
        raise TypeError(f"start is {kind_of(start)}: pass what density_matrix returned")
    h: Any = hermitian_operand("f", f, 32 if block is None is not devices else block, permutation)
    within_range("f", h)
    if devices is not None:
        require_device("leave out devices to compute on the host")
        h = in_lists(h)
        h = h.to_devices(devices, near(h, error).work())
    n = h.shape[0]
    if electrons is not None and not 0 <= electrons <= n:
        raise ValueError(f"electrons is {electrons:g}, and the basis has room for 0 to {n} of one spin")
    if electrons is not None and beta is None and electrons != int(electrons):
        raise ValueError(f"electrons is {electrons}: pass a whole number, or a temperature (beta=)")
    if mu is not None and not math.isfinite(mu):
        raise ValueError(f"mu is {mu}: pass a finite number")
    if start is not None and not _alike(start.matrix, h):
        raise ValueError("start has other tiles or another order of rows than f: give both the same, or no start")
    ways = [] if beta is not None or method else candidates(h, error, _occupied(electrons))
    taken = "fermi" if beta is not None else method or cheapest("density", ways).kernel
    return _Asked(h, electrons, mu, error, beta, taken, start, ways)


def _occupied(electrons: float | None) -> int:
    """Return how many states are occupied, below 0 where a chemical potential counts them."""
    return -1 if electrons is None else int(electrons)


def _found(asked: _Asked, s: Any) -> DensityMatrix:
    """Return the density matrix."""
    h, error, beta, start = asked.h, asked.error, asked.beta, asked.start
    if s is None:
        return _orthogonal(asked, h, error)
    if getattr(s, "shape", h.shape) != h.shape:
        raise ValueError(f"s has shape {s.shape} and f {h.shape}: give both in one basis")
    overlap: Any = within_range("s", hermitian_operand("s", s, np.diff(h.rows), h.permutation))
    if isinstance(h.data, Spread):
        overlap = in_lists(overlap)._beside(h)
    if not _alike(overlap, h):
        raise ValueError("s has other tiles or another order of rows than f: give both the same")
    # Both where there is room for every tile, or both in lists; a Fermi function is made of lists.
    h, overlap = (in_lists(h), in_lists(overlap)) if beta is not None else (on_grid(h), on_grid(overlap))
    if not (isinstance(h, GridMatrix) and isinstance(overlap, GridMatrix)):
        h, overlap = in_lists(h), in_lists(overlap)
    guess: Any = None if start is None else start.factor
    if guess is not None:
        guess = GridMatrix.of_tiles(guess.to_device()) if isinstance(overlap, GridMatrix) else guess._beside(overlap)
    # A factor of another type would make P of that type.
    if guess is None or guess.dtype != overlap.dtype:
        guess = inverse_root(overlap) if asked.method == "eigh" else None
    factor = refined(overlap, min(1e-2, 0.01 * error), start=guess)
    rough = factor.norm**2
    size = max(1.0, rough) * max(1.0, h.norm("spectral"))
    unit = min(1.0, h.norm("spectral")) or 1.0  # gaps are as small as F
    refused: ValueError | None = None
    for share, sharper in ((0.5, 1.0), (0.5, 1e-2), (0.05, 1e-2), (0.05, 1e-4)):
        # What the factor and the products lack is small beside the error, and smaller where a small gap enlarges it.
        fine = 0.1 * share * sharper * error / max(1.0, rough)
        if factor.size > min(1e-2, 0.2 * fine):
            factor = refined(overlap, min(1e-2, 0.2 * fine), start=factor.z)
        # A Fermi function has no gap to be safe by: it takes the factor as inexact.
        z: Any = factor.z._bounded(factor.norm) if beta is None else factor.factor(overlap)
        inner = z.H._times(h._times(z, unit * fine / math.sqrt(size)), unit * fine, half="upper")
        try:
            found = _orthogonal(asked, inner, share * error / rough)
        except Unresolved as reason:
            refused = reason
            continue
        if beta is None:
            found = _of_pencil(found, inner, factor.size + factor.norm**2 * overlap.error.fro)
        within: Any = GridMatrix.of_tiles(found.matrix) if isinstance(z, GridMatrix) else found.matrix
        p = z._times(within, 0.02 * error / factor.norm)._times(z.H, 0.02 * error, half="upper")
        if p.error.fro <= error:
            factors = in_lists(factor.factor(overlap))
            return dataclasses.replace(found, matrix=in_lists(p), error=p.error.fro, factor=factors)
        refused = ValueError(
            f"error = {error} is below what can be guaranteed with this overlap: ask for {2 * p.error.fro:.2g} or more"
        )
    assert refused is not None
    raise refused


def explain(
    f: Any, s: Any = None, *, electrons: float | None = None, mu: float | None = None, error: float = 1e-6,
    beta: float | None = None, method: str | None = None, block: Any = None, permutation: Any = None,
    start: DensityMatrix | None = None, devices: int | Sequence[int] | None = None,
) -> list[Candidate]:  # fmt: skip
    """Return the methods of :func:`density_matrix`, and of the one that a call takes what is known before it.

    Parameters
    ----------
    f, s, electrons, mu, error, beta, method, block, permutation, start, devices
        As for :func:`density_matrix`.

    Returns
    -------
    list of spectile.core.choice.Candidate
        Without a `method` what eigenvectors and the purification are predicted to take, the latter at least where its
        steps alone take longer.  The seconds of a method that is asked for are NaN: they follow from the gap.  With a
        `start` about so many steps are told as its gap takes.

    Raises
    ------
    TypeError, ValueError
        As for :func:`density_matrix`, where nothing has to be computed to see it.

    Examples
    --------
    >>> import numpy as np, spectile
    >>> [one.kernel for one in spectile.explain(spectile.density_matrix, np.diag([0.0, 1.0]), electrons=1)]
    ['eigh', 'sp2_accelerated', 'sp2', 'trs4', 'mcweeny']
    """
    asked = _asked(f, electrons, mu, error, beta, method, block, permutation, start, devices)
    if beta is not None:
        return [Candidate("fermi", math.nan, f"a series of the Fermi function, {asked.told()}")]
    if method is None:
        return [*asked.ways, *(Candidate(one, None, "not asked for") for one in METHODS if one != asked.ways[1].kernel)]
    steps = "the steps are unknown before the gap is"
    if start is not None and start.edges is not None and method in METHODS:
        low, high = asked.h.eigenvalue_bounds()
        homo, lumo = ((high - edge) / (high - low) for edge in start.edges)
        count = len(planned_to(method, homo, lumo, ends_at(asked.error))[0])
        steps = f"about {count} steps by the gap of start"
    return [
        Candidate(one, math.nan, f"{asked.told()}; {steps}") if one == method
        else Candidate(one, None, f"not asked for: method={method!r}")
        for one in ("eigh", *METHODS)
    ]  # fmt: skip


#: What `spectile.explain` calls for a function of this module.
EXPLAINED = {"density_matrix": explain}


def _of_pencil(found: DensityMatrix, h: TileMatrix, r: float) -> DensityMatrix:
    """Return D of H for the overlap I + R, ``||R||_F <= r``, such that Z D Z^H is P.

    With M = (I + R)^(-1/2) and c in the gap, M H M - c = M (H - c - c R) M.  Of two matrices A and M A M the projectors
    on the negative eigenvalues differ by at most ``sqrt(2) (||M - I||_F + ||M^-1 - I||_F)``, whatever the gap: in the
    bases of their eigenvectors, values w > 0 > l, ``Y_ij = ((M - I)_ij l_j - w_i (M^-1 - I)_ij) / (w_i - l_j)``.  Their
    eigenvalues differ by factors from 1 / (1 + r) to 1 / (1 - r) (Ostrowski).
    """
    n, count = h.shape[0], found.electrons
    if r >= 0.5:
        raise Unresolved("s is nearly singular in this precision, or its own error is too large for an inverse factor")
    t = r / (2 * (1 - r) ** 1.5)
    turned, centre = 0.0, 0.0
    if 0 < count < n:
        assert found.homo is not None and found.lumo is not None
        centre = (found.homo[1] + found.lumo[0]) / 2
        if 2 * abs(centre) * r >= found.gap:
            raise Unresolved(f"the overlap is too inexact for a gap of {found.gap:.2g}: give it more accurately")
        turned = math.sqrt(2) * (t + r + abs(centre) * r / (found.gap - abs(centre) * r))
    bound = (found.error + turned) * SLACK
    # M D M is what stands between Z and Z^H.
    bound = (bound + t * (2 + t)) * SLACK

    def wider(ends: tuple[float, float] | None) -> tuple[float, float] | None:
        if ends is None or not math.isfinite(ends[0]):
            return ends
        off = [(abs(x - centre) + abs(centre)) * r / (1 - r) * SLACK for x in ends]
        return ends[0] - off[0], ends[1] + off[1]

    largest = h.norm("spectral") + 2 * abs(centre)
    return dataclasses.replace(
        found, matrix=found.matrix._with(error=Error.of(bound, bound)), error=bound, homo=wider(found.homo),
        lumo=wider(found.lumo), energy_error=(found.energy_error + count * largest * r / (1 - r)) * SLACK,
    )  # fmt: skip


def _alike(x: TileMatrix, y: TileMatrix | GridMatrix) -> bool:
    """Return whether two matrices have the same rows in the same tiles, on one machine."""
    first, second = (np.arange(z.shape[0]) if z.permutation is None else z.permutation for z in (x, y))
    on_host = [isinstance(z, TileMatrix) and z._xp is np for z in (x, y)]
    return on_host[0] is on_host[1] and np.array_equal(x.rows, y.rows) and np.array_equal(first, second)


def _orthogonal(asked: _Asked, h: TileMatrix | GridMatrix, error: float) -> DensityMatrix:
    """Return the density matrix of a matrix in the place of F, without an overlap, within an error."""
    electrons, mu, beta = asked.electrons, asked.mu, asked.beta
    if beta is not None:
        try:
            return _thermal(in_lists(h), electrons, mu, error, beta)
        except Unresolved as inside:
            enough = (1 if electrons is None else 4) * inside.enough * asked.error / error
            said = (
                f"error = {asked.error} is below what rounding to {h.dtype} allows here: ask for {enough:.2g} or more"
            )
            raise Unresolved(said, enough) from None
    guess = None if asked.start is None else asked.start.edges
    rivals = [one.seconds for one in asked.ways if one.kernel == "eigh" and one.seconds is not None]
    return projector(h, _occupied(electrons), mu, error, asked.method, asked.error, guess, *rivals)


def _thermal(h: TileMatrix, electrons: float | None, mu: float | None, error: float, beta: float) -> DensityMatrix:
    """Return the Fermi function, for a number of electrons by the chemical potential that gives it."""
    if not (beta > 0 and math.isfinite(beta)):
        raise ValueError(f"beta is {beta}: pass a positive inverse temperature")
    low, high = h.eigenvalue_bounds()
    if electrons is not None:
        if not 0 < electrons < h.shape[0]:
            raise ValueError(f"electrons is {electrons}: at a temperature it is more than 0 and less than {h.shape[0]}")
        mu = _chemical_potential(h, float(electrons), beta, error, low, high)
    assert mu is not None
    p = fermi(h, mu=mu, beta=beta, error=error)
    size = max(high - mu, mu - low)
    shifted = h.shifted(-mu)
    energy = float(shifted.dot(p)) + mu * float(p.trace())
    lost = p.error.fro * shifted.norm() + abs(mu) * p.error.fro * math.sqrt(h.shape[0]) + shifted.error.fro * p.norm()
    lost += 1e-13 * size * p.norm() * math.sqrt(h.shape[0])
    return DensityMatrix(p, p.error.fro, energy, lost, None, None, mu, float(p.trace()), [])


def _chemical_potential(
    h: TileMatrix, electrons: float, beta: float, error: float, low: float, high: float
) -> float:  # fmt: skip
    """Return mu whose Fermi function has the trace that is wanted, to the error, by bisection and secants."""
    n = h.shape[0]
    # At the ends even a state at the other end of the spectrum leaves too few, or too many.
    left, right = low - math.log(2 * n / electrons) / beta, high + math.log(2 * n / (n - electrons)) / beta
    coarse = max(error, 1e-4)
    mu = low + (high - low) * electrons / n
    for step in range(60):
        p = fermi(h, mu=mu, beta=beta, error=coarse)
        miss = float(p.trace()) - electrons
        if abs(miss) <= max(error, 1e-12 * n) and coarse <= error:
            return mu
        if abs(miss) < 10 * coarse * math.sqrt(n):
            coarse = max(error / 4, coarse / 100)
        left, right = (left, mu) if miss > 0 else (mu, right)
        slope = beta * (float(p.trace()) - p.norm() ** 2)
        near = mu - miss / slope if slope > 1e-8 else math.nan
        mu = near if left < near < right and step < 50 else (left + right) / 2
    raise Unresolved(f"no chemical potential is found for {electrons} electrons", abs(miss))
