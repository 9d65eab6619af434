"""Divide and conquer on several devices: the last merges, nearly all of the products, make columns on each."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np

from spectile.core.pointers import address
from spectile.evd.cuda.blas import Blas
from spectile.evd.cuda.matrix import Matrix, as_array, empty_matrix
from spectile.evd.cuda.multi.partition import pieces
from spectile.evd.cuda.multi.team import Member, Team
from spectile.evd.cuda.multi.workspace import CHUNK, in_place
from spectile.evd.cuda.tridiagonal.divide import merge_below
from spectile.evd.cuda.tridiagonal.merge import Merges
from spectile.evd.cuda.workspace import padded_order
from spectile.evd.types import Scalar, Subset


def eigenvectors(
    d: Any, e: Any, scalar: Scalar, subset: Subset | None, team: Team, *, within: bool = False
) -> tuple[Any, list[tuple[Matrix, slice]]]:
    """Return eigenvalues, shape (m,), and eigenvectors of a tridiagonal matrix, as `divide_and_conquer`.

    d and e, float64 of shape (n,), lie on the home of the team, whose device and stream are current; n is above that of
    four leaves, and a subset is by index.  The eigenvectors are, of each member, its piece of them in double precision
    on its device, and which they are.  With `within` home's piece lies in Q, half of which is free: it needs no memory
    of its own, and Q is kept for it.
    """
    n = len(d)
    levels, order = padded_order(n)
    q = empty_matrix(order, order, np.float64)
    w, bound, merges, (shift, other), _ = merge_below(d, e, q, n, levels - 1)
    first, stop = (0, n) if subset is None else (subset.low, subset.high + 1)
    dealt = pieces(stop - first, len(team.members))
    most = max(piece.stop - piece.start for piece in dealt)
    halves = _merge_halves(merges, q, shift, team, (n + 15) * most * scalar.parts)
    merges.solve(q, order, other)
    solved, parts = team.home.mark(), []
    for member, half, piece in zip(team.members, halves, dealt, strict=True):
        columns = slice(first + piece.start, first + piece.stop)
        member.wait(solved)
        with member.current():
            own = within and not member.number and in_place(scalar, n, piece.stop - piece.start)
            room = _Room(q, shift) if own else None
            parts.append((_merge_whole(member, merges, half, n, columns, scalar, room), piece))
    team.join()  # they have read what home may now write over
    return w[first:stop] * bound, parts


class _Room(NamedTuple):
    """Q, in which the eigenvectors of the second half stand below column `shift`, and what is above them is free."""

    q: Matrix
    shift: int


class _Blocks(NamedTuple):
    """Eigenvectors of parts of the matrix on a device: where each block begins, their leading dimension, the owner."""

    places: list[int]
    ld: int
    matrix: Matrix


def _merge_halves(merges: Merges, q: Matrix, shift: int, team: Team, room: int = 0) -> list[_Blocks]:
    """Make both merges of the last level but one, pieces of their columns on each member, and bring them to all.

    The merges are on home, after their `solve`.  The blocks of the first half begin at column `shift`, and go to where
    those of the second half stand; `room` is as of `_merge_pairs`.  Returns the eigenvectors of both halves on each
    member.
    """
    order, h, quarter = merges.order, merges.order // 2, merges.order // 4
    solved, found = team.home.mark(), []
    for member in team.members:
        with member.current():
            both = empty_matrix(h, order, np.float64) if member.number else q
        columns = (0, h) if member.number else (h - shift, shift)
        rows = (0, 0) if member.number else (0, h)
        found.append(_Blocks([both.at(*place) for place in zip(rows, columns, strict=True)], both.ld, both))
    corners = [(0, shift), (quarter, shift + quarter), (h, h - shift), (h + quarter, h - shift + quarter)]
    given = _Blocks([q.at(*corner) for corner in corners], q.ld, q)
    for member, own, piece in zip(team.members, found, pieces(h, len(team.members)), strict=True):
        member.wait(solved)
        with member.current():
            _merge_pairs(member, merges, given, own, piece, room)
        for other in found:
            if other is not own:
                for source, target in zip(own.places, other.places, strict=True):
                    start, count = 8 * piece.start, piece.stop - piece.start
                    member.copy(
                        target + start * other.ld, 8 * other.ld, source + start * own.ld, 8 * own.ld, 8 * h, count
                    )
    team.meet()
    return found


def _merge_pairs(member: Member, merges: Merges, given: _Blocks, own: _Blocks, piece: slice, room: int) -> None:
    """Make a piece of the columns of both merges on a member, whose device and stream are current.

    The blocks are copied to memory of `room` real numbers at least, in which the member's eigenvectors have room next.
    """
    import cupy

    h, quarter = merges.order // 2, merges.order // 4
    if member.number:
        local = empty_matrix(quarter, max(merges.order, -(-room // quarter)), np.float64)
        places = [local.at(0, number * quarter) for number in range(4)]
        for target, source in zip(places, given.places, strict=True):
            member.copy(target, 8 * local.ld, source, 8 * given.ld, 8 * quarter, quarter)
        given, merges = _Blocks(places, local.ld, local), _fetched(member, merges)
    count = piece.stop - piece.start
    blas, chunk = Blas(np.float64), max(1, min(CHUNK, count))
    s = cupy.empty(2 * h * chunk, np.float64)
    for first in range(piece.start, piece.stop, chunk):
        width = min(chunk, piece.stop - first)
        merges.write_vectors(s, width, h, first=first)
        for number, block in enumerate(given.places):
            whole, top = number // 2, number % 2 * quarter
            blas.gemm(
                *(quarter, width, quarter, 1.0, block, given.ld, address(s) + 8 * (whole * h * width + top), h),
                *(0.0, own.places[whole] + 8 * (top + first * own.ld), own.ld),
            )


def _merge_whole(
    member: Member, merges: Merges, halves: _Blocks, n: int, columns: slice, scalar: Scalar, room: _Room | None = None
) -> Matrix:
    """Make some columns of the last merge on a member, whose device and stream are current.

    The merges are on home, after their last `solve`; the result, in double precision of `scalar`, goes to `room` or to
    memory of its own.
    """
    import cupy

    order, h = merges.order, merges.order // 2
    if member.number:
        merges = _fetched(member, merges)
    count = columns.stop - columns.start
    wide = empty_matrix(n, count, np.complex128) if scalar.is_complex else None
    if room is None:
        z = empty_matrix(n, count, np.float64)
        starts = [z.at(0, 0), z.at(h, 0)]
    else:
        # The rows of each half are made where the other half's eigenvectors are not, and those below are moved last.
        q, shift = room
        z = Matrix(q.at(0, shift), q.ld, q.itemsize, q.owner)
        starts = [z.at(0, 0), q.at(h, h - shift)]
    blas, chunk = Blas(np.float64), max(1, min(CHUNK, count))
    s = cupy.empty(order * chunk, np.float64)
    for start in range(0, count, chunk):
        width = min(chunk, count - start)
        merges.write_vectors(s, width, order, first=columns.start + start)
        for half, rows in enumerate((h, n - h)):
            blas.gemm(
                *(rows, width, h, 1.0, halves.places[half], halves.ld, address(s) + 8 * half * h, order),
                *(0.0, starts[half] + 8 * start * z.ld, z.ld),
            )
    if room is not None:
        member.copy(z.at(h, 0), 8 * z.ld, starts[1], 8 * z.ld, 8 * (n - h), count)
    if wide is None:
        return z
    as_array(wide, n, count).T[...] = as_array(z, n, count).T
    return wide


def _fetched(member: Member, merges: Merges) -> Merges:
    """Return the merges with all that they know on a member."""
    import cupy

    own = copy.copy(merges)
    for name, value in vars(merges).items():
        if isinstance(value, cupy.ndarray):
            setattr(own, name, member.fetched(value))
    return own
