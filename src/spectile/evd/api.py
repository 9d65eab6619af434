"""The public eigensolver functions: check the arguments, choose the backend, run."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Literal

import numpy as np

from spectile.core import arrays, device
from spectile.evd.arguments import reads_lower, require_square, subset_of
from spectile.evd.types import Options, Tridiagonalization

Backend = Literal["auto", "cpu", "cuda"]


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
    eigenvectors of the tridiagonal matrix are transformed back through both stages.  The keywords are those of
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
    shape = require_square(a)
    options = Options(
        lower=reads_lower(lower, UPLO),
        vectors=not eigvals_only,
        overwrite=overwrite_a,
        check_finite=check_finite,
        subset=subset_of(shape, subset_by_index, subset_by_value),
    )
    return _run_module(a, backend).eigh(a, options)


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
    shape = require_square(a)
    if len(shape) > 2:
        raise ValueError(f"tridiagonalize takes one matrix, and not shape {shape}: loop over the batch")
    run = _run_module(a, backend)
    options = Options(lower=lower, vectors=calc_q, overwrite=overwrite_a, check_finite=check_finite)
    return Tridiagonalization(*run.tridiagonalize(a, options))


def _run_module(a: Any, backend: str) -> ModuleType:
    """Return the module that computes, imported here so that a process on the CPU needs no CuPy."""
    chosen = device.choose_backend(backend, not isinstance(a, np.ndarray | list | tuple) and arrays.on_device(a))
    if chosen == "cuda":
        from spectile.evd.cuda import run as cuda

        return cuda
    from spectile.evd.cpu import run as cpu

    return cpu
