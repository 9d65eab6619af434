"""The two-stage eigensolver on CUDA: a matrix from the input to its eigenpairs, by our stages or the vendor's code.

cuBLAS does the products, our kernels panels, chasing, T and back.  Nothing synchronises except where the host needs d
and e, or the largest entry.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core import arrays, memory
from spectile.evd.cuda import vendor as gpu_vendor
from spectile.evd.cuda.back import apply_chasing, apply_panels, back_columns, tile_bytes
from spectile.evd.cuda.band import Panels, band_reduction, extract_band, largest_order, panel_bandwidth
from spectile.evd.cuda.chasing import chase_band
from spectile.evd.cuda.divide import divide_and_conquer, merge_sizes, padded_order
from spectile.evd.cuda.load import fits_in_place, load_matrix
from spectile.evd.cuda.matrix import Matrix, as_array, empty_matrix, zero_matrix
from spectile.evd.cuda.sturm import eigenvalues
from spectile.evd.cuda.units import BANDWIDTHS

# Eigenvalues alone and with vectors are taken from the vendor below these orders (docs/performance/evd.md).
CROSSOVER_VALUES = {"float64": 640, "float32": 640, "complex128": 896, "complex64": 1024}
CROSSOVER_VECTORS = {"float64": 1024, "float32": 1024, "complex128": 1100, "complex64": 1536}


def calls_vendor(n: int, dtype: Any, *, vectors: bool) -> bool:
    """Return whether `solve` calls cuSOLVER: below the crossover, or beyond what the panel kernel holds."""
    crossover = CROSSOVER_VECTORS if vectors else CROSSOVER_VALUES
    return n < crossover[np.dtype(dtype).name] or n > largest_order()


def parameters(n: int, dtype: Any, *, vectors: bool) -> tuple[int, int]:
    """Return bandwidth b and block nb for a matrix of order n: the best measured (docs/performance/evd.md).

    A wide band makes A W faster and the chasing slower; with eigenvectors of a large matrix it halves the passes over
    them.
    """
    wanted = 64 if n >= (12000 if vectors else 13000) else 32
    return panel_bandwidth(n, dtype, wanted), 512


def eigh(
    array: Any, *, lower: bool, eigvals_only: bool, check_finite: bool, choose: Any, bandwidth: int, block: int,
    overwrite_a: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """Solve one matrix by our two stages, whatever its order.

    Parameters
    ----------
    array : cupy.ndarray, shape (n, n)
    lower, eigvals_only, check_finite : bool
    choose : callable
        ``choose(w)`` of all eigenvalues, a NumPy array, is the slice of those wanted.
    bandwidth, block : int
        b and nb.
    overwrite_a : bool
        Work in the memory of `array` where its layout allows.

    Returns
    -------
    w : cupy.ndarray, shape (m,)
    v : cupy.ndarray, shape (n, m), or None
    """
    import cupy

    n, dtype = array.shape[0], array.dtype
    real = np.empty(0, dtype).real.dtype
    a, scale = load_matrix(array, lower=lower, bandwidth=bandwidth, check_finite=check_finite, overwrite=overwrite_a)
    panels = band_reduction(a, n, bandwidth=bandwidth, block=block)
    d, e = chase_band(extract_band(panels), n, bandwidth, None if eigvals_only else a)
    if eigvals_only:
        w = cupy.ldexp(eigenvalues(d, e), -scale)
        wanted = choose(w)
        return w[wanted].astype(real), None
    w, z = _tridiagonal_vectors(d, e, dtype)
    w = cupy.ldexp(w, -scale)
    wanted = choose(w)
    columns = wanted.stop - wanted.start
    z = Matrix(z.at(0, wanted.start), z.ld, z.itemsize, z.owner)
    if columns:
        z = _take_back(panels, z, columns)
    return w[wanted].astype(real), as_array(z, n, columns).astype(dtype, copy=False)


def _tridiagonal_vectors(d: Any, e: Any, dtype: Any) -> tuple[Any, Matrix]:
    """`divide_and_conquer`, with the eigenvectors as float64 or, for a complex `dtype`, as complex128."""
    n = len(d)
    if dtype.kind != "c":
        return divide_and_conquer(d, e)
    z = empty_matrix(n, n, np.complex128)
    _, order = padded_order(n)
    q = Matrix(z.pointer, -(-order // 16) * 16, 8, z.owner.view(np.float64))
    w, q = divide_and_conquer(d, e, q)
    source, target = as_array(q, n, n).T, as_array(z, n, n).T
    # From the last column on, so many at a time that what is written lies behind what is still to be read.
    stop = n
    while stop:
        start = min(-(-stop * q.ld // (2 * z.ld)), stop - 1)
        part = source[start:stop]
        target[start:stop] = part.copy() if stop <= 2 else part
        stop = start
    return w, z


def _take_back(panels: Panels, z: Matrix, columns: int) -> Matrix:
    """Return Q1 Q2 Z in the precision of the panels; Z, in double precision, is overwritten."""
    a, n = panels.a, panels.n
    apply_chasing(a, n, panels.bandwidth, z.pointer, z.ld, columns)
    if z.owner.dtype != a.owner.dtype:
        narrow = empty_matrix(n, columns, a.owner.dtype)
        as_array(narrow, n, columns).T[...] = as_array(z, n, columns).T
        z = narrow
    apply_panels(panels, z.pointer, z.ld, columns)
    return z


def _to_device(array: Any) -> tuple[Any, Any]:
    found, to_caller_kind = arrays.to_device(array)
    if found.dtype.kind in "biu":
        found = found.astype(np.float64)
    elif found.dtype == np.float16:
        found = found.astype(np.float32)
    elif found.dtype.name not in BANDWIDTHS:
        raise TypeError(f"dtype {found.dtype} is not supported: pass float32, float64, complex64 or complex128")
    return found, to_caller_kind


def workspace_bytes(n: int, dtype: Any, *, vectors: bool, overwrite_a: bool = False) -> int:
    """Return the bytes of device memory that `eigh` needs beyond its input.

    About n² elements, with eigenvectors 2.2 n² (from n = 16,384 on), and n² fewer in the input's own memory.  The
    eigenvectors of float32 and complex64 are formed in double precision, which takes 2 n² more.
    """
    itemsize, wide = np.dtype(dtype).itemsize, 16 if np.dtype(dtype).kind == "c" else 8
    bandwidth, block = parameters(n, dtype, vectors=vectors)
    matrix = (0 if overwrite_a else itemsize * n * n) + n * (itemsize * bandwidth + 64 * 8)
    reduction = itemsize * 4 * block * n
    if not vectors:
        return matrix + reduction
    order = padded_order(n)[1]
    columns, rows = merge_sizes(n)
    merging = 8 * (order * (columns + rows) + 2 * rows * columns)
    reflectors, width = back_columns(n)
    taking_back = max(tile_bytes(n), itemsize * reflectors * (n + 2 * min(n, width)))
    narrow = 0 if itemsize == wide else itemsize * n * n
    return matrix + max(reduction, max(8 * order**2, wide * n * n) + max(merging, taking_back + narrow))


def solve(
    array: Any,
    *,
    lower: bool,
    eigvals_only: bool,
    overwrite_a: bool,
    check_finite: bool,
    select: tuple[str, Any] | None,
) -> Any:
    """`api.eigh` on the current device, for one matrix of order at least 1.

    Parameters
    ----------
    array : array, shape (n, n)
        On the device or on the host; the results are of its kind.
    lower, eigvals_only, overwrite_a, check_finite : bool
    select : None or tuple
        As for `api.chosen_range`.
    """
    import cupy

    from spectile.evd.api import chosen_range

    found, to_caller_kind = _to_device(array)
    n = found.shape[0]
    vectors = not eigvals_only
    if calls_vendor(n, found.dtype, vectors=vectors):
        # cuSOLVER works in a copy of the matrix and in about four times its size.
        with memory.allocating(f"cuSOLVER's eigensolver of order {n:,}", 5 * found.nbytes):
            w, v = gpu_vendor.eigh(found, lower=lower, eigvals_only=eigvals_only, check_finite=check_finite)
        if select:
            wanted = chosen_range(cupy.asnumpy(w), select)
            w, v = w[wanted], None if v is None else v[:, wanted]
    else:
        bandwidth, block = parameters(n, found.dtype, vectors=vectors)
        overwrite = _may_overwrite(array, found, overwrite_a)
        what = f"the eigenproblem of order {n:,}"
        needed = workspace_bytes(n, found.dtype, vectors=vectors, overwrite_a=overwrite)
        memory.require_free(needed, what)
        with memory.allocating(what, needed):
            w, v = eigh(
                found,
                lower=lower,
                eigvals_only=eigvals_only,
                check_finite=check_finite,
                choose=lambda w: chosen_range(cupy.asnumpy(w), select) if select else slice(0, n),
                bandwidth=bandwidth,
                block=block,
                overwrite_a=overwrite,
            )
    return to_caller_kind(w) if eigvals_only else (to_caller_kind(w), to_caller_kind(v))


def _may_overwrite(array: Any, found: Any, overwrite_a: bool) -> bool:
    """Whether `found`, `array` on the device, is ours to overwrite, a copy or allowed, and laid out for it."""
    copied = not arrays.on_device(array) or found.data.ptr != arrays.to_device(array)[0].data.ptr
    return (overwrite_a or copied) and fits_in_place(found)


def solve_tridiagonal(
    array: Any, *, lower: bool, calc_q: bool, overwrite_a: bool, check_finite: bool,
    bandwidth: int | None = None, block: int | None = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """`api.tridiagonalize` on the current device, for one matrix of order at least 1.

    Parameters
    ----------
    array : array, shape (n, n)
    lower, calc_q, overwrite_a, check_finite : bool
    bandwidth, block : int, optional
        b and nb.
    """
    import cupy

    found, to_caller_kind = _to_device(array)
    n, dtype = found.shape[0], found.dtype
    best = parameters(n, dtype, vectors=calc_q)
    bandwidth, block = bandwidth or best[0], block or best[1]
    overwrite = _may_overwrite(array, found, overwrite_a)
    needed = workspace_bytes(n, dtype, vectors=calc_q, overwrite_a=overwrite)
    memory.require_free(needed, f"the tridiagonalization of order {n:,}")
    with memory.allocating(f"the tridiagonalization of order {n:,}", needed):
        a, scale = load_matrix(found, lower=lower, bandwidth=bandwidth, check_finite=check_finite, overwrite=overwrite)
        panels = band_reduction(a, n, bandwidth=bandwidth, block=block)
        d, e = chase_band(extract_band(panels), n, bandwidth, a if calc_q else None)
        q = None
        if calc_q:
            z = zero_matrix(n, n, np.complex128 if dtype.kind == "c" else np.float64)
            as_array(z, n, n)[np.arange(n), np.arange(n)] = 1
            z = _take_back(panels, z, n)
            q = to_caller_kind(as_array(z, n, n))
    real = np.empty(0, dtype).real.dtype
    d, e = (cupy.ldexp(x, -scale).astype(real) for x in (d, e[: n - 1]))
    return to_caller_kind(d), to_caller_kind(e), q
