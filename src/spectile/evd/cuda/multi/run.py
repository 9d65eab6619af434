"""The eigensolver on several GPUs of a host.

The band reduction has its panels on home, the device of operands and results, and its products and updates on all; the
sweeps that chase the band are taken by turns; the last merges of divide and conquer and both back-transformations are
independent by columns of Z, of which every device has a piece.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from spectile.core import arrays, device
from spectile.core.compile import prepare
from spectile.core.places import device_ids, home_of
from spectile.core.pointers import address
from spectile.evd.arguments import refuse_ragged
from spectile.evd.cuda import generalized, run
from spectile.evd.cuda.chasing import chase
from spectile.evd.cuda.choose import LEAF
from spectile.evd.cuda.load import load_matrix
from spectile.evd.cuda.matrix import Matrix, as_array, empty_matrix
from spectile.evd.cuda.multi import chasing, divide, reduction
from spectile.evd.cuda.multi.partition import pieces
from spectile.evd.cuda.multi.team import Member, Team
from spectile.evd.cuda.multi.units import CHASING_BY_TURNS
from spectile.evd.cuda.multi.workspace import require_free
from spectile.evd.cuda.reduction.band import band_reduction
from spectile.evd.cuda.reduction.panel import Panels
from spectile.evd.cuda.tridiagonal import inverse
from spectile.evd.types import Definite, Options, Scalar, Subset, scalar_of


def eigh(a: Any, options: Options, definite: Definite | None, devices: Any) -> Any:
    """`api.eigh` on several devices; the results lie where the operands do.

    Parameters
    ----------
    a : array, shape (..., n, n)
    options : Options
    definite : Definite, optional
    devices : int or sequence of int
    """
    import cupy

    ids = device_ids(devices, cupy.cuda.runtime.getDeviceCount())
    operands = {"a": a} if definite is None else {"a": a, "b": definite.b}
    home = home_of({name: _place(name, one) for name, one in operands.items()}, ids)
    with cupy.cuda.Device(home):
        if len(ids) == 1:
            return run.eigh(a, options, definite)
        team = Team(ids, home)
        with run._naming_memory(a):
            array, to_caller_kind, options = run._to_device(a, options)
            if definite is not None:
                b, _, _ = run._to_device(definite.b, options, "b")
                array, b = run._as_pair(array, b)
                definite = definite._replace(b=b)
            to_host = definite is None and not arrays.on_device(a)
            w, v = _solve_all(array, options, definite, team, to_host=to_host)
            return (to_caller_kind(w), to_caller_kind(v)) if options.vectors else to_caller_kind(w)


def _place(name: str, array: Any) -> int | None:
    """Return the device that an operand lies on."""
    return int(arrays.to_device(array, name)[0].device.id) if arrays.on_device(array) else None


def _solve_all(
    array: Any, options: Options, definite: Definite | None, team: Team, *, to_host: bool
) -> tuple[Any, Any]:
    """Solve one problem together, and of a batch some on each member, or each together if they are few."""
    n, lead = array.shape[-1], array.shape[:-2]
    count = math.prod(lead)
    if n == 0 or count == 0:
        return run._solve_each(array, options, definite)
    if not lead:
        return solve(array, options, team, to_host=to_host) if to_host else _solve_one(array, options, definite, team)
    problems = [x.reshape(count, n, n) for x in ((array,) if definite is None else (array, definite.b))]
    if count < len(team.members):
        found = [
            _solve_one(one, options, definite and definite._replace(b=b[0]), team)
            for one, *b in zip(*problems, strict=True)
        ]
        refuse_ragged(w for w, _ in found)
        values, vectors = ([pair[number] for pair in found] for number in range(2))
    else:
        values, vectors = _solve_apart(problems, options, definite, team)
    return run.stacked(values, lead), run.stacked(vectors, lead) if options.vectors else None


def _solve_one(array: Any, options: Options, definite: Definite | None, team: Team) -> tuple[Any, Any]:
    together = functools.partial(solve, team=team)
    return together(array, options) if definite is None else generalized.solve(array, definite, options, together)


def _solve_apart(
    problems: list[Any], options: Options, definite: Definite | None, team: Team
) -> tuple[list[Any], list[Any]]:
    """Return the results of the problems of a batch, of which each member solves some, on home."""
    import cupy

    problems = [cupy.ascontiguousarray(x) for x in problems]
    ready, count = team.home.mark(), len(problems[0])
    cuts = [number * count // len(team.members) for number in range(len(team.members) + 1)]

    def solve_some(member: Member, piece: slice) -> tuple[Any, ...]:
        member.wait(ready)
        with member.current():
            own = [member.fetched(x[piece]) if member.number else x[piece] for x in problems]
            mine = options._replace(overwrite=options.overwrite or member.number > 0)
            if definite is None:
                w, v = run._solve_all(own[0], mine)
            else:
                w, v = run._solve_each(own[0], mine, definite._replace(b=own[1]))
            return tuple(cupy.ascontiguousarray(x) for x in (w, v) if x is not None)

    found = team.each(solve_some, [slice(*ends) for ends in itertools.pairwise(cuts)])
    refuse_ragged(w[0] for w, *_ in found)
    team.join()
    here = [[team.home.fetched(x) if number else x for x in parts] for number, parts in enumerate(found)]
    team.meet()  # before the others' memory is used again
    values = [w for part in here for w in part[0]]
    return values, [v for part in here for v in part[1]] if options.vectors else []


def solve(array: Any, options: Options, team: Team, *, to_host: bool = False) -> tuple[Any, Any]:
    """Solve one problem of order at least 1 on a team whose home is current: on home alone what one device does best.

    The matrix, shape (n, n), lies on home.  With `to_host` each member brings its eigenvectors to the host, and home
    needs no memory for all of them: v, shape (n, m), is then perhaps NumPy's.
    """
    n = array.shape[0]
    bandwidth, block = run._parameters(array, options)
    if bandwidth == 1 or run._solver(n, 1, scalar_of(array.dtype), options) != "stages":
        return run.solve(array, options)
    scalar = scalar_of(array.dtype)
    shared = team.connected and reduction.pays(n, scalar, bandwidth, len(team.members), device.describe(), team.link())
    return solve_by_stages(
        array, options, team, bandwidth=bandwidth, block=block, share_reduction=shared, to_host=to_host
    )


def solve_by_stages(
    array: Any,
    options: Options,
    team: Team,
    *,
    bandwidth: int,
    block: int,
    share_reduction: bool,
    to_host: bool = False,
) -> tuple[Any, Any]:
    """Solve one problem by our two stages, whatever its order; parameters as for `run.solve_by_stages`.

    With `share_reduction` all devices take part in the band reduction, too; with `to_host` v is a NumPy array.
    """
    n, scalar = array.shape[0], scalar_of(array.dtype)
    run.prepare_stages(n, scalar.name, bandwidth, vectors=options.vectors, subset=options.subset)
    by_turns = share_reduction and chasing.pays(n, scalar, bandwidth)
    if by_turns:
        prepare(CHASING_BY_TURNS[scalar.name, bandwidth])
    with run._work_space("the eigenproblem", array, options) as overwrite:
        subset = options.subset  # of an interval there may be all
        most = subset.count() if subset is not None and subset.by_index else n
        columns = most if options.vectors else 0
        require_free(
            *(n, scalar, columns, team),
            bandwidth=bandwidth,
            block=block,
            share_reduction=share_reduction,
            overwrite=overwrite,
            to_host=to_host,
        )
        try:
            a, scale = load_matrix(array, lower=options.lower, check_finite=options.check_finite, overwrite=overwrite)
            sizes = {"bandwidth": bandwidth, "block": block}
            if share_reduction:
                panels = reduction.band_reduction(a, n, **sizes, team=team, vectors=options.vectors)
            else:
                panels = band_reduction(a, n, **sizes)
            given = chase.extract_band(panels), n, bandwidth, a if options.vectors else None
            d, e = chasing.chase_band(*given, team) if by_turns else chase.chase_band(*given)
            del given
            if not options.vectors:
                return run.own_values(run.wanted_values(d, e, scale, options.subset, scalar), scale, scalar), None
            copies = _spread(panels, team)
            w, parts = _vectors(d, e, scalar, scale, options.subset, team, within=to_host)
            columns = parts[-1][1].stop
            if to_host:
                v = np.empty((n, columns), array.dtype, order="F")
                place = Matrix(address(v), n, v.itemsize, v)
            else:
                place = empty_matrix(n, columns, array.dtype)
                v = as_array(place, n, columns)
            _transform_back(copies, parts, place, team)
            return run.own_values(w, scale, scalar), v
        finally:
            team.finish()


def _spread(panels: Panels, team: Team) -> list[Panels]:
    """Return the reflectors on every member: those of both stages lie in one matrix."""
    made, n, a = team.home.mark(), panels.n, panels.a
    copies = [panels]
    for member in team.others:
        member.wait(made)
        with member.current():
            own = empty_matrix(n, n, a.owner.dtype)
        member.fetch(own, a, n, n)
        copies.append(Panels(own, member.fetched(panels.t), panels.bandwidth, n))
    return copies


def _vectors(
    d: Any, e: Any, scalar: Scalar, scale: int, subset: Subset | None, team: Team, *, within: bool
) -> tuple[Any, list[tuple[Matrix, slice]]]:
    """Return the wanted eigenvalues of T, and of each member its piece of the eigenvectors, and which they are."""
    n = len(d)
    all_by_merging = subset is None or (subset.by_index and not inverse.pays(n, subset.count()))
    if all_by_merging and n > 4 * LEAF:
        return divide.eigenvectors(d, e, scalar, subset, team, within=within)
    w, z, columns = run.wanted_vectors(d, e, scalar, scale, subset)
    made, parts = team.home.mark(), []
    for member, piece in zip(team.members, pieces(columns, len(team.members)), strict=True):
        count = piece.stop - piece.start
        if member.number:
            member.wait(made)
            with member.current():
                own = empty_matrix(n, count, scalar.wide)
            member.fetch(own, z, n, count, of=piece.start)
        else:
            own = z
        parts.append((own, piece))
    return w, parts


def _transform_back(copies: list[Panels], parts: list[tuple[Matrix, slice]], v: Matrix, team: Team) -> None:
    """Transform every piece on its member, and bring it to its place in `v`, on home or on the host."""
    ready = team.home.mark()

    def transform(member: Member, panels: Panels, z: Matrix, piece: slice) -> None:
        count = piece.stop - piece.start
        if count == 0:
            return
        with member.current():
            z = run._transform_back(panels, z, count)
        member.wait(ready)
        member.fetch(v, z, panels.n, count, at=piece.start)

    team.each(transform, copies, *zip(*parts, strict=True))
