"""Generated sparse matrices, for machines without a network: labelled as what they are.

Two families are the published models behind SuiteSparse matrices and equal the collection's files in pattern, in order
and, to rounding, in value: `cage` (vanHeukelum/cage3 ... cage15) and `epidemic` (Williams/mc2depi).  The others stand
in for a kind of matrix: `banded` (nemeth21), `elasticity` (struct3, bcsstk30, pct20stif), `rmat` (wiki-Vote, web
graphs).

A family is also addressed by a name, which run sheets use (`generate`):

===============================  =======================================================================
``cage<L>``                      `cage`, 3 <= L <= 15
``mc2depi``                      `epidemic` with the collection's 512 x 1024
``mc2depi_<X>x<Y>``              `epidemic`
``banded_<n>_<k>[_d<percent>]``  `banded`: n rows, half bandwidth k, share of the band that is filled
``elasticity2d_<X>x<Y>``         `elasticity` of X x Y square elements
``elasticity3d_<X>x<Y>x<Z>``     `elasticity` of X x Y x Z cubes
``rmat_<scale>[_<edges>]``       `rmat`: 2^scale rows, edges per row (16)
===============================  =======================================================================

The three that draw random numbers take a suffix ``_s<seed>`` (0).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_CAGE_FIELD = 0.1  # half the energy, in kT, that a kink gains when it turns into the field


def banded(n: int, half_bandwidth: int, *, density: float = 1.0, seed: int = 0) -> csr_array:
    """Banded matrix with random entries.

    Parameters
    ----------
    n : int
        Rows and columns.
    half_bandwidth : int
        Entries lie at |i - j| <= half_bandwidth.
    density : float
        Share of the off-diagonal band that is filled, at random, in (0, 1]; the diagonal always is.
    seed : int
        Seed of entries and pattern.

    Returns
    -------
    csr_array of float64, shape (n, n)
        Entries uniform in [-1, 1), none of them 0.

    Raises
    ------
    ValueError
        ``n < 1``, ``half_bandwidth < 0`` or a density outside (0, 1].
    """
    if n < 1:
        raise ValueError(f"a banded matrix of n = {n} rows is empty; ask for at least 1")
    if half_bandwidth < 0:
        raise ValueError(f"half_bandwidth of a banded matrix is {half_bandwidth}; it must be at least 0")
    if not 0 < density <= 1:
        raise ValueError(f"density of a banded matrix is {density}; it must lie in (0, 1]")
    rng = np.random.default_rng(seed)
    rows, columns = [], []
    for i0 in range(0, n, 4096):  # in strips, so that a wide band does not need n x (2k + 1) of everything at once
        i = np.arange(i0, min(i0 + 4096, n))[:, None]
        j = i + np.arange(-min(half_bandwidth, n - 1), min(half_bandwidth, n - 1) + 1)[None, :]
        keep = (j >= 0) & (j < n)
        if density < 1:
            keep &= (rng.random(j.shape) < density) | (i == j)
        rows.append(np.broadcast_to(i, j.shape)[keep])
        columns.append(j[keep])
    row = np.concatenate(rows)
    values = rng.uniform(-1.0, 1.0, row.size)
    values[values == 0] = 1.0
    return _csr(values, row, np.concatenate(columns), n)


def elasticity(elements: tuple[int, ...], *, seed: int = 0) -> csr_array:
    """Stiffness matrix of linear elasticity on a regular mesh, clamped at its first face.

    Parameters
    ----------
    elements : tuple of 2 or 3 ints
        Elements along each axis: bilinear squares (plane stress, 2 unknowns a node) or trilinear cubes (3 unknowns).
    seed : int
        Seed of Young's modulus, drawn for each element from [0.5, 2); Poisson's ratio is 0.3.  Elements that differ
        keep the couplings that would cancel in a homogeneous body.

    Returns
    -------
    csr_array of float64, shape (n, n)
        Symmetric positive definite, n = dim · X · (Y + 1) [· (Z + 1)]; the unknowns of a node are neighbours.

    Raises
    ------
    ValueError
        Another number of axes, or no element along one.
    """
    from scipy.sparse import triu

    dim = len(elements)
    if dim not in (2, 3):
        raise ValueError(f"elasticity of {dim} axes is not defined; give the elements along 2 or 3 axes")
    if min(elements) < 1:
        raise ValueError(f"elasticity on {elements} elements is empty; ask for at least 1 along each axis")
    stiffness = _element_stiffness(dim)
    nodes = tuple(count + 1 for count in elements)
    node = np.arange(np.prod(nodes)).reshape(nodes)
    corners = np.stack(
        [
            node[tuple(slice(bit, bit + count) for bit, count in zip(corner, elements, strict=True))].ravel()
            for corner in np.ndindex(*(2,) * dim)
        ],
        axis=1,
    )
    unknowns = (corners[:, :, None] * dim + np.arange(dim)).reshape(len(corners), -1)
    young = np.random.default_rng(seed).uniform(0.5, 2.0, len(corners))
    a, b = np.nonzero(np.abs(stiffness) > 1e-12)  # what is 0 in exact arithmetic is no entry
    matrix = _csr(
        (young[:, None] * stiffness[a, b]).ravel(), unknowns[:, a].ravel(), unknowns[:, b].ravel(), node.size * dim
    )
    free = np.arange(node[0].size * dim, node.size * dim)
    upper = triu(matrix[free][:, free], format="csr")
    # Mirrored, since the two halves add their elements in different orders and would differ in the last bit.
    symmetric = (upper + triu(upper, 1).T).tocsr()
    symmetric.sort_indices()
    return symmetric


def _element_stiffness(dim: int) -> npt.NDArray[np.float64]:
    """Stiffness of the unit square or cube, Young's modulus 1, by 2-point Gauss integration along each axis."""
    poisson = 0.3
    if dim == 2:
        strains = [(0, 0), (1, 1), (0, 1)]
        elastic = np.diag([1.0, 1.0, (1 - poisson) / 2])
        elastic[0, 1] = elastic[1, 0] = poisson
        elastic /= 1 - poisson**2
    else:
        strains = [(0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1)]
        elastic = np.diag([1 - poisson] * 3 + [(1 - 2 * poisson) / 2] * 3)
        elastic[:3, :3] += poisson * (1 - np.eye(3))
        elastic /= (1 + poisson) * (1 - 2 * poisson)
    corners = list(np.ndindex(*(2,) * dim))
    stiffness = np.zeros((dim * len(corners),) * 2)
    for gauss in np.ndindex(*(2,) * dim):
        point = 0.5 + (np.array(gauss) - 0.5) / np.sqrt(3)
        strain = np.zeros((len(strains), dim * len(corners)))
        for k, corner in enumerate(corners):
            factors = np.where(np.array(corner) == 1, point, 1 - point)
            slopes = np.where(np.array(corner) == 1, 1.0, -1.0)
            gradient = [slopes[d] * np.prod(np.delete(factors, d)) for d in range(dim)]
            for s, (p, q) in enumerate(strains):
                strain[s, dim * k + p] = gradient[q]
                strain[s, dim * k + q] = gradient[p]
        stiffness += strain.T @ elastic @ strain / 2**dim
    return (stiffness + stiffness.T) / 2  # rounding left it symmetric only nearly


def rmat(scale: int, edge_factor: int = 16, *, seed: int = 0) -> csr_array:
    """Pattern of a directed R-MAT graph with the probabilities of Graph500 (0.57, 0.19, 0.19, 0.05).

    Parameters
    ----------
    scale : int
        The graph has 2^scale vertices, in random order; 1 <= scale <= 26.
    edge_factor : int
        Edges drawn a vertex; repeated ones count once, so fewer are left.
    seed : int
        Seed of the edges and of the order.

    Returns
    -------
    csr_array of float64, shape (2^scale, 2^scale)
        All entries are 1.

    Raises
    ------
    ValueError
        A scale outside 1 ... 26, or no edges.

    Notes
    -----
    D. Chakrabarti, Y. Zhan, C. Faloutsos: R-MAT: a recursive model for graph mining. SDM 2004.
    """
    if not 1 <= scale <= 26:
        raise ValueError(f"an R-MAT graph of scale {scale} is not offered; ask for a scale from 1 to 26")
    if edge_factor < 1:
        raise ValueError(f"an R-MAT graph with {edge_factor} edges a vertex is empty; ask for at least 1")
    rng = np.random.default_rng(seed)
    n, edges = 1 << scale, edge_factor << scale
    row = np.zeros(edges, dtype=np.int64)
    column = np.zeros(edges, dtype=np.int64)
    for _ in range(scale):
        quadrant = np.searchsorted(np.cumsum([0.57, 0.19, 0.19]), rng.random(edges), side="right")
        row = 2 * row + (quadrant >> 1)
        column = 2 * column + (quadrant & 1)
    order = rng.permutation(n)
    matrix = _csr(np.ones(edges), order[row], order[column], n)
    matrix.data[:] = 1.0
    return matrix


def epidemic(susceptible: int = 512, infected: int = 1024) -> csr_array:
    """Generator of the two-dimensional Markov model of an epidemic (Williams/mc2depi).

    From state (u, v) the chain moves to (u + 1, v) at rate 2025, to (u - 1, v + 1) at rate u and to (u, v - 1) at rate
    v, as far as the target lies in 0 <= u <= X, 0 <= v <= Y.

    Parameters
    ----------
    susceptible, infected : int
        Largest u and v, X and Y; at least 1.  The defaults are those of Williams/mc2depi.

    Returns
    -------
    csr_array of float64, shape (n, n), n = (X + 1)(Y + 1)
        Row sums are 0.  States are ordered by u + 2v, then by v: as they are found breadth first from (0, 0).

    Raises
    ------
    ValueError
        A size below 1.

    Notes
    -----
    MARCA collection of W. J. Stewart and R. M. Zachmann, model "TwoD".
    """
    if susceptible < 1 or infected < 1:
        raise ValueError(f"an epidemic of {susceptible} x {infected} has no states to move to; ask for at least 1 x 1")
    u, v = (axis.ravel() for axis in np.indices((susceptible + 1, infected + 1)))
    order = np.lexsort((v, u + 2 * v))
    u, v = u[order], v[order]
    place = np.empty((susceptible + 1, infected + 1), dtype=np.int64)
    place[u, v] = np.arange(u.size)
    rows, columns, rates = [], [], []
    outflow = np.zeros(u.size)
    for step_u, step_v, rate in ((1, 0, np.full(u.size, 2025.0)), (-1, 1, u.astype(float)), (0, -1, v.astype(float))):
        to_u, to_v = u + step_u, v + step_v
        inside = (to_u >= 0) & (to_u <= susceptible) & (to_v >= 0) & (to_v <= infected)
        rows.append(np.flatnonzero(inside))
        columns.append(place[to_u[inside], to_v[inside]])
        rates.append(rate[inside])
        outflow[inside] += rate[inside]
    diagonal = np.arange(u.size)
    return _csr(
        np.concatenate([*rates, -outflow]),
        np.concatenate([*rows, diagonal]),
        np.concatenate([*columns, diagonal]),
        u.size,
    )


def cage(length: int) -> csr_array:
    """Transition matrix of the cage model of DNA electrophoresis (vanHeukelum/cage<length>).

    A polymer of L monomers lies on a lattice whose sites have three neighbours up the field and three down.  In each
    step a monomer is drawn; an end, and a monomer whose two neighbours share a site (a *kink*), moves to one of the six
    sites around, up with weight e^0.1 and down with e^-0.1; others stay.  In a gel the polymer cannot pass an obstacle,
    which makes the lattice a tree.  A state of the matrix is a class of configurations alike up to symmetries of the
    tree that keep the field, and up to reversal of the polymer.

    Parameters
    ----------
    length : int
        Monomers L, 3 <= L <= 15 (n = 5 ... 5,154,859).

    Returns
    -------
    csr_array of float64, shape (n, n)
        Column j holds the probabilities of leaving state j, and sums to 1.  The order of the states is that of the
        collection (see Notes).

    Raises
    ------
    ValueError
        Another length.

    Notes
    -----
    A. van Heukelum, G. T. Barkema, R. H. Bisseling: DNA electrophoresis studied with the cage model. J. Comput. Phys.
    180 (2002) 313.  The class of a configuration is known from which monomers share a site and from the sign of each
    bond.  The collection orders the states by a number: its high bits say which pairs (i, i + d) share a site, d = 2 in
    the lowest of them, then d = 4, ..., and for each d the last pair lowest; the low L - 1 bits say which bonds point
    down, the last bond lowest.  Of a configuration and its reverse the smaller number counts.
    """
    if not 3 <= length <= 15:
        raise ValueError(f"cage{length} is not one of the model's matrices; ask for cage3 to cage15")
    return _Cage(length).matrix()


class _Cage:
    """States of the cage model as arrays (one row for each state) and as numbers, and the moves between them."""

    def __init__(self, length: int) -> None:
        self.length = length
        bit = length - 1
        self.pair_bit: dict[tuple[int, int], int] = {}
        for distance in range(2, length, 2):
            for first in range(length - distance - 1, -1, -1):
                self.pair_bit[first, first + distance] = bit
                bit += 1
        site, height = self._walks()
        forward, backward = self._numbers(site, height)
        smaller = forward <= backward
        order = np.argsort(forward[smaller])
        keep = np.flatnonzero(smaller)[order]
        self.site, self.height = site[keep], height[keep]
        self.forward, self.backward = forward[keep], backward[keep]

    def _walks(self) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
        """All walks on the tree: the sites numbered in the order of their first visit, and their heights."""
        site = np.zeros((1, 1), dtype=np.int8)
        height = np.zeros((1, 1), dtype=np.int8)
        for _ in range(self.length - 1):
            here, level, fresh = site[:, -1], height[:, -1], site.max(axis=1) + 1
            parts = []
            around, up, down = self._around(site, height, here, level, leave_out=None)
            for m, mask in around:
                parts.append((mask, site[:, m], height[:, m]))
            parts.append((up < 3, fresh, level + 1))
            parts.append((down < 3, fresh, level - 1))
            site, height = (
                np.concatenate(
                    [np.column_stack([old[mask], new[mask]]) for mask, *news in parts for new in [news[which]]]
                )
                for which, old in enumerate((site, height))
            )
        return site, height

    @staticmethod
    def _around(
        site: npt.NDArray[np.int8],
        height: npt.NDArray[np.int8],
        centre: npt.NDArray[np.int8],
        level: npt.NDArray[np.int8],
        leave_out: int | None,
    ) -> tuple[list[tuple[int, npt.NDArray[np.bool_]]], npt.NDArray[np.int8], npt.NDArray[np.int8]]:
        """Occupied sites next to `centre`, each by one monomer m on it and a mask of the walks, and their number."""
        count = site.shape[1]
        up = np.zeros(len(site), dtype=np.int8)
        down = np.zeros(len(site), dtype=np.int8)
        earlier_masks: list[tuple[int, npt.NDArray[np.bool_]]] = []
        for m in range(count):
            if m == leave_out:
                continue
            mask = np.zeros(len(site), dtype=bool)
            if m > 0:
                mask |= site[:, m - 1] == centre
            if m < count - 1:
                mask |= site[:, m + 1] == centre
            for earlier, seen in earlier_masks:
                if (m - earlier) % 2 == 0:
                    mask &= ~(seen & (site[:, earlier] == site[:, m]))
            if mask.any():
                earlier_masks.append((m, mask))
                up += mask & (height[:, m] > level)
                down += mask & (height[:, m] < level)
        return earlier_masks, up, down

    def _numbers(
        self, site: npt.NDArray[np.int8], height: npt.NDArray[np.int8]
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Numbers of walks read forward and backward."""
        last = self.length - 1
        forward = np.zeros(len(site), dtype=np.uint64)
        backward = np.zeros(len(site), dtype=np.uint64)
        for (i, j), bit in self.pair_bit.items():
            alike = site[:, i] == site[:, j]
            forward |= alike.astype(np.uint64) << np.uint64(bit)
            backward |= alike.astype(np.uint64) << np.uint64(self.pair_bit[last - j, last - i])
        for i in range(last):
            down = height[:, i + 1] < height[:, i]
            forward |= down.astype(np.uint64) << np.uint64(last - 1 - i)
            backward |= (~down).astype(np.uint64) << np.uint64(i)
        return forward, backward

    def _moved(self, walks: npt.NDArray[np.intp], i: int, m: int | None, rises: bool) -> npt.NDArray[np.intp]:
        """States after monomer `i` went to the site of monomer `m` (or to an empty one), above or below its centre."""
        last = self.length - 1
        forward, backward = self.forward[walks], self.backward[walks]
        clear_forward = clear_backward = np.uint64(0)
        for j in range(i % 2, self.length, 2):
            if j != i:
                clear_forward |= np.uint64(1 << self.pair_bit[min(i, j), max(i, j)])
                clear_backward |= np.uint64(1 << self.pair_bit[last - max(i, j), last - min(i, j)])
        # The bond before i points down where i lies below its neighbours, the bond after it where i lies above.
        set_forward = set_backward = np.uint64(0)
        for bond, points_down in ((i - 1, not rises), (i, rises)):
            if 0 <= bond < last:
                clear_forward |= np.uint64(1 << (last - 1 - bond))
                clear_backward |= np.uint64(1 << bond)
                if points_down:
                    set_forward |= np.uint64(1 << (last - 1 - bond))
                else:
                    set_backward |= np.uint64(1 << bond)
        forward = (forward & ~clear_forward) | set_forward
        backward = (backward & ~clear_backward) | set_backward
        if m is not None:
            target = self.site[walks, m]
            for j in range(i % 2, self.length, 2):
                if j != i:
                    alike = (self.site[walks, j] == target).astype(np.uint64)
                    forward |= alike << np.uint64(self.pair_bit[min(i, j), max(i, j)])
                    backward |= alike << np.uint64(self.pair_bit[last - max(i, j), last - min(i, j)])
        return np.searchsorted(self.forward, np.minimum(forward, backward))

    def matrix(self) -> csr_array:
        n, last = len(self.site), self.length - 1
        columns: list[npt.NDArray[np.intp]] = []
        rows: list[npt.NDArray[np.intp]] = []
        counts: list[npt.NDArray[np.int64]] = []  # ways up, or ways down with a minus sign
        for i in range(self.length):
            if 0 < i < last:
                movable = np.flatnonzero(self.site[:, i - 1] == self.site[:, i + 1])
            else:
                movable = np.arange(n)
            neighbour = 1 if i == 0 else i - 1
            site, height = self.site[movable], self.height[movable]
            around, up, down = self._around(site, height, site[:, neighbour], height[:, neighbour], leave_out=i)
            for rises, occupied in ((True, up), (False, down)):
                ways = 3 - occupied.astype(np.int64)
                targets: list[tuple[int | None, npt.NDArray[np.bool_], npt.NDArray[np.int64]]] = [
                    (m, mask & ((height[:, m] > height[:, neighbour]) == rises), np.ones_like(ways))
                    for m, mask in around
                ]
                for m, mask, way in [*targets, (None, ways > 0, ways)]:
                    walks = movable[mask]
                    columns.append(walks)
                    rows.append(self._moved(walks, i, m, rises))
                    counts.append(way[mask] if rises else -way[mask])
        row, column, count = np.concatenate(rows), np.concatenate(columns), np.concatenate(counts)
        leaves = row != column
        row, column, count = row[leaves], column[leaves], count[leaves]
        weight_up, weight_down = (
            np.exp(sign * _CAGE_FIELD) / (6 * self.length * np.cosh(_CAGE_FIELD)) for sign in (1, -1)
        )
        # Ways are counted in whole numbers first: a probability is then rounded once, whatever the order of the moves.
        ups, downs = (_csr(np.maximum(sign * count, 0).astype(np.float64), row, column, n) for sign in (1, -1))
        leaving = weight_up * ups.sum(axis=0) + weight_down * downs.sum(axis=0)
        moves = ups * weight_up + downs * weight_down
        diagonal = np.arange(n)
        return (moves + _csr(1.0 - leaving, diagonal, diagonal, n)).tocsr()


def _csr(
    values: npt.NDArray[np.float64], rows: npt.NDArray[np.integer], columns: npt.NDArray[np.integer], n: int
) -> csr_array:
    """CSR with sorted columns; repeated entries are summed."""
    from scipy.sparse import coo_array

    index = np.int32 if max(n, len(values)) < 2**31 else np.int64
    matrix = coo_array((values, (rows.astype(index), columns.astype(index))), shape=(n, n)).tocsr()
    matrix.sum_duplicates()
    return matrix


_NAMES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], csr_array]], ...] = tuple(
    (re.compile(pattern), build)
    for pattern, build in (
        (r"cage(\d+)", lambda m: cage(int(m[1]))),
        (r"mc2depi", lambda m: epidemic()),
        (r"mc2depi_(\d+)x(\d+)", lambda m: epidemic(int(m[1]), int(m[2]))),
        (
            r"banded_(\d+)_(\d+)(?:_d(\d+))?(?:_s(\d+))?",
            lambda m: banded(int(m[1]), int(m[2]), density=int(m[3] or 100) / 100, seed=int(m[4] or 0)),
        ),
        (r"elasticity2d_(\d+)x(\d+)(?:_s(\d+))?", lambda m: elasticity((int(m[1]), int(m[2])), seed=int(m[3] or 0))),
        (
            r"elasticity3d_(\d+)x(\d+)x(\d+)(?:_s(\d+))?",
            lambda m: elasticity((int(m[1]), int(m[2]), int(m[3])), seed=int(m[4] or 0)),
        ),
        (r"rmat_(\d+)(?:_(\d+))?(?:_s(\d+))?", lambda m: rmat(int(m[1]), int(m[2] or 16), seed=int(m[3] or 0))),
    )
)


def is_family(name: str) -> bool:
    """Whether `name` addresses a generated matrix (the grammar is in this module's text)."""
    return any(pattern.fullmatch(name) for pattern, _ in _NAMES)


def generate(name: str) -> csr_array:
    """Generate the matrix that a name addresses.

    Parameters
    ----------
    name : str
        A family's name, such as ``cage11`` or ``rmat_14`` (the grammar is in this module's text).

    Returns
    -------
    csr_array of float64

    Raises
    ------
    ValueError
        The name is no family's, or its numbers are out of range.
    """
    for pattern, build in _NAMES:
        match = pattern.fullmatch(name)
        if match:
            return build(match)
    raise ValueError(
        f"{name!r} names no generated matrix; use cage<L>, mc2depi, mc2depi_<X>x<Y>, banded_<n>_<k>, "
        "elasticity2d_<X>x<Y>, elasticity3d_<X>x<Y>x<Z> or rmat_<scale>"
    )
