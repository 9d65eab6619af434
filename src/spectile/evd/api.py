"""The public eigensolver functions: check the input, choose the backend, call it."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np

Backend = Literal["auto", "cpu", "cuda"]

_DTYPES = {"float16": "float32", "float32": "float32", "float64": "float64", "complex64": "complex64"}
_DTYPES["complex128"] = "complex128"


class Tridiagonalization(NamedTuple):
    """A = Q T Qᴴ with T real and tridiagonal.

    Attributes
    ----------
    d : array, shape (n,)
        Diagonal of T.
    e : array, shape (n - 1,)
        Subdiagonal of T.
    q : array, shape (n, n), or None
        Unitary; None unless asked for.
    """

    d: Any
    e: Any
    q: Any


def eigh(
    a: Any,
    *,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    subset_by_value: tuple[float, float] | None = None,
    UPLO: Literal["L", "U", "l", "u"] | None = None,
    backend: Backend = "auto",
) -> Any:
    """Solve the eigenproblem of a real symmetric or complex Hermitian matrix in two stages.

    A is brought to a band by detached band reduction, the band to tridiagonal form by bulge chasing, and the
    eigenvectors of the tridiagonal matrix are taken back through both stages.  The keywords are those of
    `scipy.linalg.eigh`.

    Parameters
    ----------
    a : array, shape (..., n, n)
        float32, float64, complex64 or complex128 (integers are taken as float64, float16 as float32); a NumPy or CuPy
        array, or any object with ``__cuda_array_interface__`` or ``__dlpack__``.  Leading dimensions are batches.
        Only one triangle, and the real part of the diagonal, is read.
    lower : bool, default True
        Which triangle is read.
    eigvals_only : bool, default False
        Return the eigenvalues alone.
    overwrite_a : bool, default False
        The memory of `a` may be used as work space, which saves n² elements, where its layout allows: column-major, or
        on CUDA real and row-major, too, with columns of a multiple of 128 bytes.
    check_finite : bool, default True
        Raise ValueError for NaN and infinity in the triangle that is read; without the check they raise LinAlgError,
        as no convergence (both are seen in the scaling and cost nothing).
    subset_by_index : (int, int), optional
        First and last index, both included, of the wanted eigenvalues in ascending order.
    subset_by_value : (float, float), optional
        Half-open interval (low, high] of the wanted eigenvalues; infinities are allowed.
    UPLO : {"L", "U"}, optional
        NumPy's and CuPy's word for `lower`, in either case; wins over it.
    backend : {"auto", "cpu", "cuda"}
        ``auto`` takes CUDA for an array on a GPU, or where a device is found.

    Returns
    -------
    w : array, shape (..., m)
        Eigenvalues, ascending, real, in the precision of `a`.
    v : array, shape (..., n, m)
        Eigenvectors in columns; not returned with `eigvals_only`.

    Raises
    ------
    ValueError
        If `a` is not square, holds NaN or infinity, or a subset is not valid.
    TypeError
        If the dtype is not supported.
    MemoryError
        If the matrix and the work space do not fit; the message has the bytes.
    numpy.linalg.LinAlgError
        If the iteration on the tridiagonal matrix does not converge.

    Notes
    -----
    Source: Wang et al., "Extracting the potential of emerging hardware accelerators for symmetric eigenvalue
    decomposition", Algorithms 1 to 3.  On CUDA, matrices below the measured crossover of their type (orders of about
    640 to 1,536), and above what the panel kernel holds, go to cuSOLVER.  Work space beyond `a`: about n² elements,
    2.2 n² with the eigenvectors of large matrices, and n² fewer with `overwrite_a` (docs/performance/evd.md).
    """
    chosen = _choose_backend(a, backend)
    array = _check_array(a, chosen)
    if UPLO is not None:
        if UPLO not in ("L", "U", "l", "u"):
            raise ValueError(f"UPLO is 'L' or 'U', and not {UPLO!r}")
        lower = UPLO in ("L", "l")
    n = array.shape[-1]
    select = _check_subset(n, subset_by_index, subset_by_value)
    if array.ndim > 2:
        if subset_by_value is not None:
            raise ValueError(
                "subset_by_value gives each matrix of a batch its own number of eigenvalues: loop over them"
            )
        solved = [
            eigh(
                array[index],
                lower=lower,
                eigvals_only=eigvals_only,
                overwrite_a=overwrite_a,
                check_finite=check_finite,
                subset_by_index=subset_by_index,
                backend=chosen,
            )
            for index in np.ndindex(array.shape[:-2])
        ]
        return _stack(array, solved, n, select, eigvals_only)
    if n == 0:
        w = _empty_like(array, (0,), real=True)
        return w if eigvals_only else (w, _empty_like(array, (0, 0)))
    if chosen == "cuda":
        from spectile.evd.cuda import run as gpu

        return gpu.solve(
            array,
            lower=lower,
            eigvals_only=eigvals_only,
            overwrite_a=overwrite_a,
            check_finite=check_finite,
            select=select,
        )
    from spectile.evd.cpu import solver as cpu

    _require_memory(array, eigvals_only)
    matrix, scale = _prepare(array, lower=lower, overwrite=overwrite_a, check_finite=check_finite)
    values, v = cpu.eigh(
        matrix,
        eigvals_only=eigvals_only,
        choose=lambda w: chosen_range(np.ldexp(w, -scale), select),
        threads=_threads(n),
    )
    w = np.ldexp(values, -scale)
    return w if eigvals_only else (w, v)


def eigvalsh(
    a: Any,
    *,
    lower: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    subset_by_value: tuple[float, float] | None = None,
    UPLO: Literal["L", "U", "l", "u"] | None = None,
    backend: Backend = "auto",
) -> Any:
    """Return the eigenvalues of a real symmetric or complex Hermitian matrix, ascending.

    Parameters
    ----------
    a, lower, overwrite_a, check_finite, subset_by_index, subset_by_value, UPLO, backend
        As for `eigh`.

    Returns
    -------
    w : array, shape (..., m)

    Raises
    ------
    ValueError, TypeError, MemoryError, numpy.linalg.LinAlgError
        As for `eigh`.
    """
    return eigh(
        a,
        lower=lower,
        eigvals_only=True,
        overwrite_a=overwrite_a,
        check_finite=check_finite,
        subset_by_index=subset_by_index,
        subset_by_value=subset_by_value,
        UPLO=UPLO,
        backend=backend,
    )


def tridiagonalize(
    a: Any,
    *,
    lower: bool = True,
    calc_q: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    backend: Backend = "auto",
) -> Tridiagonalization:
    """Bring a real symmetric or complex Hermitian matrix to real tridiagonal form in two stages.

    Parameters
    ----------
    a : array, shape (n, n)
        As for `eigh`, without batches.
    lower, overwrite_a, check_finite, backend
        As for `eigh`.
    calc_q : bool, default False
        Whether Q is formed too.

    Returns
    -------
    Tridiagonalization
        ``d``, ``e`` and ``q`` with A = Q T Qᴴ.

    Raises
    ------
    ValueError, TypeError, MemoryError
        As for `eigh`.
    """
    chosen = _choose_backend(a, backend)
    array = _check_array(a, chosen)
    if array.ndim > 2:
        raise ValueError(f"tridiagonalize takes one matrix, and not shape {tuple(array.shape)}: loop over the batch")
    n = array.shape[-1]
    if n == 0:
        q = _empty_like(array, (0, 0)) if calc_q else None
        return Tridiagonalization(_empty_like(array, (0,), real=True), _empty_like(array, (0,), real=True), q)
    if chosen == "cuda":
        from spectile.evd.cuda import run as gpu

        return Tridiagonalization(
            *gpu.solve_tridiagonal(
                array, lower=lower, calc_q=calc_q, overwrite_a=overwrite_a, check_finite=check_finite
            )
        )
    from spectile.evd.cpu import solver as cpu

    _require_memory(array, not calc_q)
    matrix, scale = _prepare(array, lower=lower, overwrite=overwrite_a, check_finite=check_finite)
    factors = cpu.tridiagonalize(matrix, bandwidth=cpu.BANDWIDTH, block=cpu.BLOCK, keep=calc_q, threads=_threads(n))
    q = cpu.apply_q(factors, np.eye(n, dtype=matrix.dtype)) if calc_q else None
    return Tridiagonalization(np.ldexp(factors.d, -scale), np.ldexp(factors.e, -scale), q)


def _choose_backend(a: Any, backend: str) -> Literal["cpu", "cuda"]:
    from spectile.core import arrays, device

    return device.choose_backend(backend, not isinstance(a, np.ndarray | list | tuple) and arrays.on_device(a))


def _check_array(a: Any, backend: str) -> Any:
    """Return the array in a supported dtype: NumPy for the CPU, and as it is for CUDA if it is on the device."""
    array = a if hasattr(a, "dtype") and hasattr(a, "shape") and backend == "cuda" else np.asarray(a)
    if isinstance(array, np.ndarray):
        kind = array.dtype.kind
        if kind in "biu":
            array = array.astype(np.float64)
        elif array.dtype.name not in _DTYPES:
            raise TypeError(f"dtype {array.dtype} is not supported: pass float32, float64, complex64 or complex128")
        else:
            array = array.astype(_DTYPES[array.dtype.name], copy=False)
    if len(array.shape) < 2 or array.shape[-1] != array.shape[-2]:
        raise ValueError(f"the matrix must be square, and has shape {tuple(array.shape)}")
    return array


def _check_subset(n: int, by_index: Any, by_value: Any) -> tuple[str, Any] | None:
    if by_index is not None and by_value is not None:
        raise ValueError("give subset_by_index or subset_by_value, not both")
    if by_index is not None:
        low, high = (int(x) for x in by_index)
        if not 0 <= low <= high < n:
            raise ValueError(f"subset_by_index must be 0 <= first <= last < n = {n}, and is {(low, high)}")
        return None if (low, high) == (0, n - 1) else ("i", (low, high))
    if by_value is not None:
        below, above = (float(x) for x in by_value)
        if not below < above:
            raise ValueError(
                f"subset_by_value must be an interval (low, high] with low < high, and is {(below, above)}"
            )
        return None if below == -math.inf and above == math.inf else ("v", (below, above))
    return None


def _prepare(array: Any, *, lower: bool, overwrite: bool, check_finite: bool) -> tuple[Any, int]:
    """Return the matrix as column-major lower triangle times 2**scale, and scale, so that the largest entry is near 1.

    A power of two is exact; it keeps the squares of the reflectors' norms from over- and underflow.
    """
    if not lower:
        array = array.T  # its lower triangle holds the conjugate
    conjugate = not lower and array.dtype.kind == "c"
    reuse = overwrite and array.flags.f_contiguous and array.flags.writeable
    matrix = array if reuse else np.array(array, order="F")
    if conjugate:
        np.conjugate(matrix, out=matrix)
    n = matrix.shape[0]
    largest = 0.0
    if matrix.dtype.kind == "c":
        diagonal = np.einsum("ii->i", matrix)
        diagonal.imag = 0
    for start in range(0, n, 256):
        columns = np.tril(matrix[start:, start : start + 256])
        parts = (columns.real, columns.imag) if matrix.dtype.kind == "c" else (columns,)
        # max and min propagate NaN.
        for part in parts:
            top = max(float(part.max()), -float(part.min()))
            if not math.isfinite(top):
                error = ValueError if check_finite else np.linalg.LinAlgError
                raise error(f"the {'lower' if lower else 'upper'} triangle of the matrix holds NaN or infinity")
            largest = max(largest, top)
    scale = -math.frexp(largest)[1] if largest > 0 else 0
    if -16 <= scale <= 16:
        scale = 0
    if scale:
        for part in (matrix.real, matrix.imag) if matrix.dtype.kind == "c" else (matrix,):
            np.ldexp(part, scale, out=part)
    return matrix, scale


def chosen_range(w: np.ndarray, select: tuple[str, Any] | None) -> slice:
    """Return which of all eigenvalues, ascending, a subset keeps.

    Parameters
    ----------
    w : array, shape (n,)
    select : None or ("i", (first, last)) or ("v", (low, high))
        Both ends included for "i"; the interval (low, high] for "v".
    """
    if select is None:
        return slice(0, len(w))
    kind, (low, high) = select
    if kind == "i":
        return slice(low, high + 1)
    first, last = np.searchsorted(w, [low, high], side="right")
    return slice(int(first), int(last))


def _require_memory(array: Any, values_only: bool) -> None:
    from spectile.core.memory import require_host_free

    n = array.shape[-1]
    require_host_free(array.dtype.itemsize * n * n * (2 if values_only else 5), f"the matrix of order {n:,}")


def _threads(n: int) -> int:
    """Threads of the chasing: those of the BLAS, so that threadpoolctl governs both; one where more cannot help."""
    if n < 256:
        return 1
    from threadpoolctl import threadpool_info

    return min((pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"), default=1)


def _empty_like(array: Any, shape: tuple[int, ...], real: bool = False) -> Any:
    """An empty array of the kind (NumPy or CuPy) and precision of `array`."""
    from spectile.core import arrays

    dtype = np.dtype(str(array.dtype))
    dtype = np.empty(0, dtype).real.dtype if real else dtype
    if isinstance(array, np.ndarray) or not arrays.on_device(array):
        return np.empty(shape, dtype)
    _, to_caller_kind = arrays.to_device(array)
    import cupy

    return to_caller_kind(cupy.empty(shape, dtype))


def _stack(array: Any, solved: list[Any], n: int, select: tuple[str, Any] | None, eigvals_only: bool) -> Any:
    """Stack the results of a batch; an empty batch keeps its shape."""
    lead = tuple(array.shape[:-2])
    m = n if select is None else select[1][1] - select[1][0] + 1
    if not solved:
        w = _empty_like(array, (*lead, m), real=True)
        return w if eigvals_only else (w, _empty_like(array, (*lead, n, m)))
    first = solved[0] if eigvals_only else solved[0][0]
    if isinstance(first, np.ndarray):
        stack: Any = np.stack
    else:
        import cupy

        stack = cupy.stack
    if eigvals_only:
        return stack(solved).reshape(*lead, m)
    return (
        stack([w for w, _ in solved]).reshape(*lead, m),
        stack([v for _, v in solved]).reshape(*lead, n, m),
    )
