"""The eigensolver on CUDA: from the caller's arrays to eigenpairs in their kind, by our stages or the vendor's code.

cuBLAS does the products, our kernels panels, chasing, T and the back-transformation.  Nothing synchronises except where
the host needs d and e, or the largest entry.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from spectile.core import arrays, device, memory, replay
from spectile.core.choice import Candidate
from spectile.core.compile import Unit, prepare
from spectile.core.devices import Device
from spectile.core.launch import kernel
from spectile.core.pointers import address, overwritable
from spectile.evd.arguments import refuse_ragged
from spectile.evd.cuda import choose, generalized, units
from spectile.evd.cuda import matrix as matrix_kernels
from spectile.evd.cuda.back import panels as back_panels
from spectile.evd.cuda.back import sweeps as back_sweeps
from spectile.evd.cuda.chasing import chase
from spectile.evd.cuda.choose import (
    Solver,
    candidates,
    direct_size,
    reduction_parameters,
    solver_of,
    sturm_lanes,
    widened_order,
)
from spectile.evd.cuda.load import fits_in_place, load_matrix
from spectile.evd.cuda.matrix import (
    Matrix,
    Word,
    as_array,
    empty_matrix,
    load_triangle,
    require_in_range,
    scaled_values,
    widened,
    zero_matrix,
)
from spectile.evd.cuda.reduction import direct, panel
from spectile.evd.cuda.reduction.band import band_reduction
from spectile.evd.cuda.small import rotations
from spectile.evd.cuda.tridiagonal import divide, inverse, sturm
from spectile.evd.cuda.vendor import batched
from spectile.evd.cuda.vendor import dense as vendor
from spectile.evd.cuda.workspace import SMALL_ORDER, padded_order, workspace_bytes
from spectile.evd.types import SCALARS, Definite, Options, Scalar, Subset, require_finite, scalar_of, working_dtype


def eigh(a: Any, options: Options, definite: Definite | None = None) -> Any:
    """`api.eigh` on the current device.

    Parameters
    ----------
    a : array, shape (..., n, n)
        On the device or on the host; the results are of its kind.
    options : Options
    definite : Definite, optional
        The second matrix, of the same shape or one that broadcasts.
    """
    if definite is None and rotations.takes(a, options):
        arrays.require_here("a", a)
        w, v = rotations.eigh(a, options)
        return (w, v) if options.vectors else w
    if definite is not None and rotations.takes_pair(a, definite.b, options):
        arrays.require_here("a", a)
        arrays.require_here("b", definite.b)
        w, v = rotations.eigh_pair(a, definite, options)
        return (w, v) if options.vectors else w
    with _naming_memory(a):
        array, to_caller_kind, options = _to_device(a, options)
        if definite is None:
            w, v = _solve_all(array, options)
        else:
            b, _, _ = _to_device(definite.b, options, "b")
            array, b = _as_pair(array, b)
            w, v = _solve_each(array, options, definite._replace(b=b))
        return (to_caller_kind(w), to_caller_kind(v)) if options.vectors else to_caller_kind(w)


def _as_pair(a: Any, b: Any) -> tuple[Any, Any]:
    """Return both operands in one dtype and one shape."""
    import cupy

    if a.dtype == b.dtype and a.shape == b.shape:
        return a, b
    dtype = np.promote_types(a.dtype, b.dtype)
    shape = np.broadcast_shapes(a.shape, b.shape)
    wide = dtype.char in "dD"
    return tuple(cupy.broadcast_to((widened(x) if wide else x).astype(dtype, copy=False), shape) for x in (a, b))


def tridiagonalize(a: Any, options: Options) -> tuple[Any, Any, Any]:
    """`api.tridiagonalize` on the current device, for one matrix."""
    with _naming_memory(a):
        array, to_caller_kind, options = _to_device(a, options)
        if array.shape[-1] == 0:
            d, q = _empty(array, (0,)), _empty(array, (0, 0), real=False)
            return to_caller_kind(d), to_caller_kind(d.copy()), to_caller_kind(q) if options.vectors else None
        bandwidth, block = _parameters(array, options)
        d, e, q = tridiagonalize_by_stages(array, options, bandwidth=bandwidth, block=block)
        return to_caller_kind(d), to_caller_kind(e), None if q is None else to_caller_kind(q)


def _naming_memory(a: Any) -> AbstractContextManager[None]:
    """Name what the device has no memory for, where no stage does: the operand's copies and the results."""
    shape = np.shape(a)
    return memory.allocating(f"the operand and the results of shape {shape}", 2 * 8 * math.prod(shape))


def host_as_array(x: Any, name: str = "a") -> Any:
    """Return `x` as a NumPy array, or as it is where another library or a device owns it."""
    return x if arrays.on_device(x) or hasattr(x, "__dlpack__") else arrays.host_array(name, x)


def _to_device(a: Any, options: Options, name: str = "a") -> tuple[Any, Callable[[Any], Any], Options]:
    """Return the operand on the device in a working dtype, the way back, and the options with what is ours."""
    import cupy

    if isinstance(a, cupy.ndarray):
        arrays.require_here(name, a)
        converted = a.astype(working_dtype(a.dtype, name), copy=False)
        return converted, lambda x: x, _with_own(options, converted, converted is not a)
    a = host_as_array(a, name)
    if isinstance(a, np.ndarray):
        a = a.astype(working_dtype(a.dtype, name), copy=False)
    array, to_caller_kind = arrays.to_device(a, name)
    arrays.require_here(name, array)
    converted = array.astype(working_dtype(array.dtype, name), copy=False)
    owned = not arrays.on_device(a) or converted is not array
    return converted, to_caller_kind, _with_own(options, converted, owned)


def _with_own(options: Options, array: Any, owned: bool) -> Options:
    """Return the options for a matrix that may be ours; in a small one's memory, launches would come one by one."""
    overwrite = options.overwrite or (owned and array.shape[-1] >= SMALL_ORDER)
    return options._replace(overwrite=overwrite and overwritable(array))


def _empty(array: Any, shape: tuple[int, ...], *, real: bool = True) -> Any:
    import cupy

    return cupy.empty(shape, scalar_of(array.dtype).real if real else array.dtype)


def _solve_all(array: Any, options: Options) -> tuple[Any, Any]:
    """Solve one matrix, or a batch of them: in one call where the vendor's batched solver is faster."""
    n, lead = array.shape[-1], array.shape[:-2]
    if not lead or not array.size:
        return _solve_each(array, options, None)
    batch = array.reshape(-1, n, n)
    solver = _solver(n, len(batch), scalar_of(array.dtype), options)
    if solver in ("vendor", "stages"):
        return _solve_each(array, options, None)
    together = rotations.solve if solver == "rotations" else functools.partial(batched.solve, alone=solve)
    w, v = _solve_batch(batch, options, together)
    return w.reshape(*lead, -1), None if v is None else v.reshape(*lead, *v.shape[1:])


def _has_batched() -> bool:
    return batched.library() is not None


def _solver(n: int, count: int, scalar: Scalar, options: Options) -> Solver:
    return _solver_on(n, count, scalar, options.vectors, device.describe())


@functools.lru_cache(maxsize=1024)
def _solver_on(n: int, count: int, scalar: Scalar, vectors: bool, on: Device) -> Solver:
    return solver_of(n, count, scalar, vectors=vectors, device=on, batched=_has_batched)


def explain(shape: tuple[int, ...], a: Any, options: Options, definite: Definite | None) -> list[Candidate]:
    """`api.explain` on the current device, for matrices of a shape."""
    own = arrays.to_device(a)[0] if arrays.on_device(a) else arrays.host_array("a", a)
    # A batch of generalized problems is solved one by one.
    count = math.prod(shape[:-2]) if definite is None else 1
    scalar = scalar_of(working_dtype(own.dtype))
    return candidates(shape[-1], count, scalar, vectors=options.vectors, device=device.describe(), batched=_has_batched)


def _solve_batch(batch: Any, options: Options, solve_batch: Callable[[Any, Options], tuple[Any, Any]]) -> Any:
    """Solve a batch in one call; an interval is cut from the whole spectra."""
    import cupy

    if options.subset is None or options.subset.by_index:
        return solve_batch(batch, options)
    w, v = solve_batch(batch, options._replace(subset=None))
    wanted = [options.subset.of(values) for values in cupy.asnumpy(w)]
    refuse_ragged([range(part.stop - part.start) for part in wanted])
    w = cupy.stack([own[part] for own, part in zip(w, wanted, strict=True)])
    return w, None if v is None else cupy.stack([own[:, part] for own, part in zip(v, wanted, strict=True)])


def _solve_each(array: Any, options: Options, definite: Definite | None) -> tuple[Any, Any]:
    """Solve one problem, or those of a batch one after the other."""
    n, lead = array.shape[-1], array.shape[:-2]
    if n > 0 and not lead:
        return _solve_one(array, options, definite)
    indices = list(np.ndindex(*lead)) if n else []
    if options.subset is not None and not options.subset.by_index and indices:
        own = [_solve_one(array[index], options, _own(definite, index)) for index in indices]
        refuse_ragged([w for w, _ in own])
        values, parts = zip(*own, strict=True)
        return stacked(values, lead), stacked(parts, lead) if options.vectors else None
    m = n if options.subset is None or not options.subset.by_index else options.subset.count()
    w = _empty(array, (*lead, m))
    v = _empty(array, (*lead, n, m), real=False) if options.vectors else None
    for index in indices:
        w[index], vectors = _solve_one(array[index], options, _own(definite, index))
        if v is not None:
            v[index] = vectors
    return w, v


def _own(definite: Definite | None, index: tuple[int, ...]) -> Definite | None:
    return None if definite is None else definite._replace(b=definite.b[index])


def stacked(parts: Sequence[Any], lead: tuple[int, ...]) -> Any:
    """Return results of the problems of a batch as one array."""
    import cupy

    result = cupy.empty((len(parts), *parts[0].shape), parts[0].dtype)
    for number, part in enumerate(parts):
        result[number] = part
    return result.reshape(*lead, *parts[0].shape)


def _solve_one(array: Any, options: Options, definite: Definite | None) -> tuple[Any, Any]:
    return solve(array, options) if definite is None else generalized.solve(array, definite, options, solve)


def solve(array: Any, options: Options) -> tuple[Any, Any]:
    """Solve one problem of order at least 1; return w, shape (m,), and v, shape (n, m), or None."""
    import cupy

    n, scalar = array.shape[0], scalar_of(array.dtype)
    solver, subset = _solver(n, 1, scalar, options), options.subset
    if subset is not None and (solver != "stages" or n <= choose.WHOLE_ORDER):
        w, v = solve(array, options._replace(subset=None))
        wanted = subset.of(w if subset.by_index else cupy.asnumpy(w))
        return w[wanted], None if v is None else v[:, wanted]
    if solver == "rotations":
        w, v = rotations.solve(array[None], options)
        return w[0], None if v is None else v[0]
    if solver == "vendor":
        return _solve_by_vendor(array, options)
    bandwidth, block = _parameters(array, options)
    return solve_by_stages(array, options, bandwidth=bandwidth, block=block)


def _solve_by_vendor(array: Any, options: Options) -> tuple[Any, Any]:
    n, dtype, scalar = array.shape[0], array.dtype, scalar_of(array.dtype)
    # cuSOLVER's solver of single precision does not converge for graded matrices, or loses digits in silence.
    wide = dtype != scalar.wide and n <= widened_order(device.describe())
    # cuSOLVER works in a copy of the matrix and in about four times its size.
    with memory.allocating(f"cuSOLVER's eigensolver of order {n:,}", 5 * array.nbytes * (1 + wide)):
        w, v = vendor.eigh(
            array, lower=options.lower, eigvals_only=not options.vectors, check_finite=options.check_finite, wide=wide
        )
    return w, None if v is None else v.astype(dtype, copy=False)


def _parameters(array: Any, options: Options) -> tuple[int, int]:
    return _parameters_on(array.shape[0], scalar_of(array.dtype), options.vectors, device.describe())


@functools.lru_cache(maxsize=1024)
def _parameters_on(n: int, scalar: Scalar, vectors: bool, on: Device) -> tuple[int, int]:
    return reduction_parameters(n, scalar, vectors=vectors, device=on)


def solve_by_stages(array: Any, options: Options, *, bandwidth: int, block: int) -> tuple[Any, Any]:
    """Solve one problem by our stages, whatever its order; return w, shape (m,), and v, shape (n, m), or None.

    b and nb are given; b = 1 is for the direct tridiagonalization.  Raises MemoryError, with the bytes, if the work
    space does not fit.
    """
    with _parts(array, options, bandwidth, block) as part:
        # Where the host reads nothing between the stages:
        if part.keeps and options.subset is None and (not options.vectors or len(array) < SMALL_ORDER):
            w, v, found = _solve_again(array, options, bandwidth, block, part)
        else:
            return _solve_in_parts(array, options, bandwidth, block, part)
    if not matrix_kernels.is_finite(found):
        require_finite(math.nan, options.lower, options.check_finite)
    return _in_range(w, matrix_kernels.shift_of(found)), v


def _solve_again(array: Any, options: Options, bandwidth: int, block: int, part: replay.Direct) -> tuple[Any, Any, int]:
    """Return w, v or None, and the matrix's word, by one launch that loads the matrix, and one of all that follows."""
    n, scalar = array.shape[0], scalar_of(array.dtype)
    a, word = part.space(lambda: _room(n, scalar, options))
    load_triangle(array, options.lower, a.pointer, a.ld, address(word.device))
    word.fetch()
    w, z = part(_solve_loaded, a, word, n, bandwidth, block, options.vectors)
    v = None if z is None else as_array(z, n, n).astype(scalar.name, copy=True)
    return w.copy(), v, word.get()


def _room(n: int, scalar: Scalar, options: Options) -> tuple[Matrix, Word]:
    """Return where a matrix is loaded, and its word; what a capture may not do is done."""
    memory.require_free(_whole_bytes(n, scalar, device.describe(), options.vectors), f"the eigenproblem of order {n:,}")
    kernel(units.MATRIX[scalar.name], "scale_triangle")
    return empty_matrix(n, n, scalar.name), Word()


def _solve_loaded(
    a: Matrix, word: Word, n: int, bandwidth: int, block: int, vectors: bool
) -> tuple[Any, Matrix | None]:
    """Return all eigenvalues, and the eigenvectors or None, of the matrix whose triangle was loaded with a word."""
    scalar, z = a.scalar, None
    matrix_kernels.scale_triangle(scalar.name, a.pointer, a.ld, n, address(word.device))
    matrix_kernels.symmetrize(a, 0, n)
    panels, d, e = _reduce(a, n, bandwidth, block, vectors)
    if vectors:
        w, z = _all_vectors(d, e, scalar, replay.DIRECT)
        z = _transform_back(panels, z, n)
    else:
        w = sturm.eigenvalues(d, e)
    w = scaled_values(w, 0, scalar, word=word.device)
    word.clear()
    return w, z


def _solve_in_parts(array: Any, options: Options, bandwidth: int, block: int, part: replay.Direct) -> tuple[Any, Any]:
    """`solve_by_stages` where the host reads between the stages, or nothing is captured."""
    n, scalar = array.shape[0], scalar_of(array.dtype)
    prepare_stages(n, scalar.name, bandwidth, vectors=options.vectors, subset=options.subset)
    with _work_space("the eigenproblem", array, options) as overwrite:
        panels, d, e, scale = _tridiagonal(array, options, overwrite, bandwidth, block, part)
        if options.subset is not None:
            part = replay.DIRECT  # its launches depend on which are wanted
        if not options.vectors:
            return own_values(wanted_values(d, e, scale, options.subset, scalar, part), scale, scalar), None
        w, z, columns = wanted_vectors(d, e, scalar, scale, options.subset, part)
        if columns:
            z = part(_transform_back, panels, z, columns)
        return own_values(w, scale, scalar), as_array(z, n, columns).astype(array.dtype, copy=part.keeps)


def _parts(array: Any, options: Options, bandwidth: int, block: int) -> AbstractContextManager[replay.Direct]:
    """Give what runs the stages, of a part of the spectrum the reduction: captured in graphs.

    Not where the caller lends his matrix's memory, which saves that of a copy.
    """
    n, scalar = array.shape[0], scalar_of(array.dtype)
    if options.overwrite and fits_in_place(array):
        return nullcontext(replay.DIRECT)
    key = ("eigh", n, scalar.name, bandwidth, block, options.vectors, options.subset is None)
    return replay.parts(key, _whole_bytes(n, scalar, device.describe(), options.vectors))


@functools.lru_cache(maxsize=1024)
def _whole_bytes(n: int, scalar: Scalar, on: Device, vectors: bool) -> int:
    return workspace_bytes(n, scalar, on, vectors=vectors)


def tridiagonalize_by_stages(array: Any, options: Options, *, bandwidth: int, block: int) -> tuple[Any, Any, Any]:
    """Bring one matrix to tridiagonal form; parameters as for `solve_by_stages`.  Q comes with ``options.vectors``."""
    n, scalar = array.shape[0], scalar_of(array.dtype)
    with _work_space("the tridiagonalization", array, options) as overwrite:
        panels, d, e, scale = _tridiagonal(array, options, overwrite, bandwidth, block)
        q = None
        if options.vectors:
            z = zero_matrix(n, n, scalar.wide)
            as_array(z, n, n)[np.arange(n), np.arange(n)] = 1
            q = as_array(_transform_back(panels, z, n), n, n)
    d, e = (own_values(x, scale, scalar) for x in (d, e[: n - 1]))
    return d, e, q


def own_values(w: Any, scale: int, scalar: Scalar) -> Any:
    """Return numbers of the size of the eigenvalues, in float64 and of a matrix times 2**scale, as they are.

    Raises OverflowError if one is beyond the range of its dtype.
    """
    return _in_range(scaled_values(w, -scale, scalar), scale)


def _in_range(w: Any, scale: int) -> Any:
    # The largest entry was below 2**16, and an eigenvalue is below the sum of a row.
    return require_in_range(w, 17 + len(w).bit_length() + 16 - scale)


def prepare_stages(
    n: int, dtype: str, bandwidth: int, *, vectors: bool, subset: Subset | None, dense: bool = True
) -> None:
    """Begin to compile side by side what the first such call launches, for a band without what reduces to one."""
    on = device.describe()
    few = vectors and inverse.may_pay(n, subset)
    # How many an interval holds is not known yet: few, as a rule.
    count = n if subset is None else subset.count() if subset.by_index else 1
    lanes = sturm_lanes(count, on) if few or not vectors else None
    fills = None
    if vectors and bandwidth > 1:
        fills = back_sweeps.Sweeps(n, bandwidth, SCALARS[dtype], count, on).fills
    reduction: tuple[Unit, ...] = ()
    if bandwidth == 1:
        reduction = (units.DIRECT[(dtype, *direct_size(n))],)
    elif dense:
        kinds = panel.panel_kernels(n - bandwidth, on)
        reduction = units.PRODUCTS[dtype, bandwidth], *(units.PANEL[dtype, bandwidth, one] for one in kinds)
    _prepare(dtype, bandwidth, reduction, lanes, fills, few, vectors=vectors)


@functools.cache
def _prepare(
    dtype: str,
    bandwidth: int,
    reduction: tuple[Unit, ...],
    lanes: int | None,
    fills: bool | None,
    few: bool,
    *,
    vectors: bool,
) -> None:
    key = dtype, bandwidth
    wanted = [units.MATRIX[dtype], *reduction]
    if bandwidth > 1:
        wanted.append(units.CHASING[key])
    if vectors:
        wanted += [units.INVERSE] if few else [units.DIVIDE, units.ROOTS, units.VECTORS, units.LEAVES]
        wanted += [units.BACK_PANELS[key]] if reduction else []
    if fills is not None:
        wanted += back_sweeps.units_of(SCALARS[dtype], bandwidth, fills)
    if lanes is not None:
        wanted.append(units.STURM[lanes])
    prepare(*wanted)


@contextmanager
def _work_space(what: str, array: Any, options: Options) -> Iterator[bool]:
    """Check that the stages' work space fits; the block is told whether they work in the memory of `array`."""
    n, scalar = array.shape[0], scalar_of(array.dtype)
    overwrite = options.overwrite and fits_in_place(array)
    what = f"{what} of order {n:,}"
    needed = workspace_bytes(n, scalar, device.describe(), vectors=options.vectors, overwrite=overwrite)
    memory.require_free(needed, what)
    with memory.allocating(what, needed):
        yield overwrite


def _tridiagonal(
    array: Any, options: Options, overwrite: bool, bandwidth: int, block: int, part: replay.Direct = replay.DIRECT
) -> tuple[panel.Panels, Any, Any, int]:
    """Return the panels, whose matrix holds the chasing reflectors if any and wanted, d, e, and the scale."""
    n = array.shape[0]
    into = part.space(lambda: empty_matrix(n, n, array.dtype)) if part.keeps else None
    a, scale = load_matrix(
        array, lower=options.lower, check_finite=options.check_finite, overwrite=overwrite, into=into
    )
    panels, d, e = part(_reduce, a, n, bandwidth, block, options.vectors)
    return panels, d, e, scale


def _reduce(a: Matrix, n: int, bandwidth: int, block: int, vectors: bool) -> tuple[panel.Panels, Any, Any]:
    """Return the panels, d and e of a loaded matrix, which is overwritten."""
    if bandwidth == 1:
        return direct.tridiagonalize(a, n, keep=vectors)
    panels = band_reduction(a, n, bandwidth=bandwidth, block=block)
    return panels, *chase.chase_band(chase.extract_band(panels), n, bandwidth, a if vectors else None)


def wanted_values(
    d: Any, e: Any, scale: int, subset: Subset | None, scalar: Scalar, part: replay.Direct = replay.DIRECT
) -> Any:
    """Return the wanted eigenvalues of a tridiagonal matrix times 2**scale, which comes from one of dtype `scalar`."""
    import cupy

    if subset is None:
        return part(sturm.eigenvalues, d, e)
    if subset.by_index:
        return sturm.eigenvalues(d, e, slice(subset.low, subset.high + 1))
    beside = e[: len(d) - 1]
    norm = math.sqrt(float((d * d).sum() + 2 * (beside * beside).sum()))
    ends = subset.ends(norm, scalar.real, scale)
    near = sturm.near(d, e, *ends)
    if near.start >= near.stop:
        return d[:0]
    w = sturm.eigenvalues(d, e, near)
    return w[subset.inside(cupy.asnumpy(w), ends)]


def wanted_vectors(
    d: Any, e: Any, scalar: Scalar, scale: int, subset: Subset | None, part: replay.Direct = replay.DIRECT
) -> tuple[Any, Matrix, int]:
    """Return the wanted eigenvalues and eigenvectors of a tridiagonal matrix times 2**scale, and how many they are.

    A small part of the spectrum is made by itself, by Sturm counts and inverse iteration, else cut from the whole.
    """
    import cupy

    n = len(d)
    if inverse.may_pay(n, subset):
        w = wanted_values(d, e, scale, subset, scalar)
        if len(w) == 0:
            return w, empty_matrix(n, 0, scalar.wide), 0
        x = inverse.eigenvectors(d, e, w) if inverse.pays(n, len(w)) else None
        if x is not None:
            z = empty_matrix(n, len(w), scalar.wide)
            as_array(z, n, len(w)).T[...] = x.T
            return w, z, len(w)
    w, z = _all_vectors(d, e, scalar, part)
    wanted = slice(0, n) if subset is None else subset.of(cupy.asnumpy(w), scalar.real, scale)
    return w[wanted], Matrix(z.at(0, wanted.start), z.ld, z.itemsize, z.owner), wanted.stop - wanted.start


def _all_vectors(d: Any, e: Any, scalar: Scalar, part: replay.Direct) -> tuple[Any, Matrix]:
    """`divide_and_conquer`, with the eigenvectors as float64 or, for a complex dtype, as complex128."""
    n = len(d)
    if not scalar.is_complex:
        return divide.divide_and_conquer(d, e, part=part)
    z = part.space(lambda: empty_matrix(n, n, np.complex128))
    _, order = padded_order(n)
    q = Matrix(z.pointer, -(-order // 16) * 16, 8, z.owner.view(np.float64))
    w, q = divide.divide_and_conquer(d, e, q, part)
    part(_widen, q, z, n)
    return w, z


def _widen(q: Matrix, z: Matrix, n: int) -> None:
    """Write the columns of a real Q to those of a complex Z, in whose memory Q may begin."""
    source, target = as_array(q, n, n).T, as_array(z, n, n).T
    stop = n
    while stop:
        # From the last column on, so many at a time that what is written lies behind what is still to be read.
        start = min(-(-stop * q.ld // (2 * z.ld)), stop - 1) if q.pointer == z.pointer else 0
        columns = source[start:stop]
        target[start:stop] = columns.copy() if stop <= 2 else columns
        stop = start


def _transform_back(panels: panel.Panels, z: Matrix, columns: int) -> Matrix:
    """Return Q1 Q2 Z in the precision of the panels; Z, in double precision, is overwritten."""
    a, n = panels.a, panels.n
    if panels.bandwidth > 1:
        back_sweeps.apply_chasing(a, n, panels.bandwidth, z.pointer, z.ld, columns)
    if z.owner.dtype != a.owner.dtype:
        narrow = empty_matrix(n, columns, a.owner.dtype)
        as_array(narrow, n, columns).T[...] = as_array(z, n, columns).T
        z = narrow
    back_panels.apply_panels(panels, z.pointer, z.ld, columns)
    return z
