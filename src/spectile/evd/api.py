"""The public eigensolver functions: check the arguments, choose the backend, run."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any, Literal

from spectile.core import device
from spectile.core.choice import Candidate, not_taken
from spectile.core.device import Backend
from spectile.core.options import flag, word
from spectile.core.placement import Work
from spectile.core.protocols import ArrayLike
from spectile.core.ranks import on_every_rank, require_communicator
from spectile.evd import costs, refine
from spectile.evd.arguments import any_on_device, check_driver, check_type, definite_of, require_square, subset_of
from spectile.evd.dispatch import backend_module, chosen_backend
from spectile.evd.distributed.matrix import BlockCyclicMatrix
from spectile.evd.types import Definite, EighResult, Options, Tridiagonalization

Driver = Literal["ev", "evd", "evr", "evx", "gv", "gvd", "gvx"]


def eigh(
    a: ArrayLike,
    b: ArrayLike | None = None,
    *,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    type: Literal[1, 2, 3] = 1,
    check_finite: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    subset_by_value: tuple[float, float] | None = None,
    driver: Driver | None = None,
    UPLO: Literal["L", "U", "l", "u"] | None = None,
    x0: Any = None,
    comm: Any = None,
    devices: Any = None,
    backend: Backend = "auto",
) -> Any:
    """Solve the standard or generalized eigenproblem of a real symmetric or complex Hermitian matrix.

    A is brought to a band by detached band reduction, the band to tridiagonal form by bulge chasing, and the
    eigenvectors of the tridiagonal matrix are transformed back through both stages.  The keywords are those of
    `scipy.linalg.eigh`.

    Parameters
    ----------
    a : array, shape (..., n, n)
        float32, float64, complex64 or complex128 (integers are taken as float64, float16 as float32); a NumPy or CuPy
        array, or any object with ``__cuda_array_interface__`` or ``__dlpack__``.  Leading dimensions are batches.
        Only one triangle, and the real part of the diagonal, is read.
    b : array, shape (..., n, n), optional
        Hermitian and positive definite: the second matrix of a generalized problem, of the kind of `a`.
    lower : bool, default True
        Which triangle is read.
    eigvals_only : bool, default False
        Return the eigenvalues alone.
    overwrite_a : bool, default False
        The memory of `a` may be used as work space, which saves n² elements.  This needs a column-major array, or on
        CUDA a real row-major one, with columns of a multiple of 128 bytes, that is writeable and of which no two
        entries share memory, in a batch neither; any other is left as it is.
    overwrite_b : bool, default False
        The memory of `b` may be used likewise.
    type : {1, 2, 3}
        With `b`: A v = w B v, A B v = w v, or B A v = w v.
    check_finite : bool, default True
        Raise ValueError for NaN and infinity in the triangle that is read; without the check, which costs nothing, they
        raise LinAlgError.  With CuPy arrays, a call for small matrices, which one launch solves, waits with the check
        until they have been read; without it the call does not wait, and they give NaN.
    subset_by_index : (int, int), optional
        First and last index, both included, of the wanted eigenvalues in ascending order.
    subset_by_value : (float, float), optional
        Half-open interval (low, high] of the wanted eigenvalues; infinities are allowed.  An eigenvalue within
        roundoff of an end, 4 ε ‖A‖ with the Frobenius norm, counts as equal to it, so that all copies of a multiple one
        do.  Of a batch, all matrices must have equally many.
    driver : {"ev", "evd", "evr", "evx", "gv", "gvd", "gvx"}, optional
        LAPACK's driver to call on the CPU instead of the fastest; the last three with `b`.  On CUDA the name is checked
        and has no effect.
    UPLO : {"L", "U"}, optional
        NumPy's and CuPy's form of `lower`, in upper or lower case; it takes precedence.
    x0 : array, shape (..., n, n), optional
        Eigenvectors, in columns, of a matrix nearby (the step before in a self-consistent field), or its result: they
        are refined by products of matrices until residual and orthogonality are those of a full solution, and each
        lies close to the vector that it came from.  Where they are too far, all is solved anew, so that the result
        never depends on how good they are.  For all eigenvectors of `type` 1, without a driver.
    comm : mpi4py.MPI.Comm, optional
        Ranks, on any hosts, that solve one problem of `type` 1 together, all of which make the same call: by ScaLAPACK,
        or by cuSOLVERMp if the operands lie on GPUs, one a rank, whose current device it is.
        `a` and `b` are then :class:`spectile.evd.BlockCyclicMatrix`, of which each rank has made its part
        (without `comm` their own communicator counts), or arrays that each rank has whole.  Every rank gets all
        eigenvalues, and eigenvectors as such a matrix; a part of them costs what all cost.  A problem of which not
        every rank has a whole block is solved by one of them.
    devices : int or sequence of int, optional
        GPUs of this host that solve the problem together: the first so many, or those named, each once.  An operand on
        a GPU lies on one of them, which then has the results; of operands on the host they are on the host.
    backend : {"auto", "cpu", "cuda"}
        ``auto`` chooses CUDA for an array on a GPU, and for arrays on the host where the device is predicted to be
        faster than the cores, copies included; float64 and complex128 stay on the host where the device has FP64 at
        1/32 or 1/64 of FP32.  `spectile.explain` tells it.  Several ranks work where the operands lie, and with
        ``cuda`` copy arrays on the host to their GPUs.

    Returns
    -------
    w : array, shape (..., m)
        Eigenvalues, ascending, real, in the precision of `a`.
    v : array, shape (..., n, m)
        Eigenvectors in columns; not returned with `eigvals_only`.  The pair is a named tuple, of ``eigenvalues`` and
        ``eigenvectors``.  With `b` they are normalized as SciPy's: vᴴ B v = I,
        or vᴴ B⁻¹ v = I for `type` 3.

    Raises
    ------
    ValueError
        If `a` is not square, holds NaN or infinity, or a subset is not valid.
    TypeError
        If the dtype is not supported, entries are masked, or the matrix is sparse.
    OverflowError
        If an eigenvalue is beyond the range of its dtype, as it may be for entries near the largest number.
    MemoryError
        If the matrix and the work space do not fit; the message has the bytes.
    numpy.linalg.LinAlgError
        If the iteration on the tridiagonal matrix does not converge, or `b` is not positive definite.
    ImportError
        With `comm`, if there is no ScaLAPACK, or no cuSOLVERMp on GPUs; what one rank raises, all raise.

    See Also
    --------
    eigvalsh : eigenvalues alone.
    eig_banded, eigh_tridiagonal : of matrices of few diagonals.
    spectile.kpm_dos, spectile.filter_diagonalize : of sparse matrices too large for this.

    Notes
    -----
    On CUDA a part of at most n/8 eigenvectors of an order above 1,024 is made by inverse iteration, and generalized
    problems go through the Cholesky factor of `b`.  Matrices up to an order of 32 to 64, by dtype, one or a batch,
    are solved in one launch, as pairs of them are; that of single matrices a CUDA graph can capture (as without
    `check_finite`).  Larger batches go to
    cuSOLVER's batched solvers.  Where FP64 runs at 1/32 or 1/64 of FP32 (RTX, A10, L40S, B300), eigenvectors come
    from cuSOLVER, because ours take more operations, and those of float32 and complex64 pass through double
    precision.  On the CPU all but the eigenvalues of large matrices comes from the fastest LAPACK driver, and a
    part of a spectrum from those of its steps that cost least.

    A call that takes longer than ten seconds tells how far it is on the CPU, in operations: of eigenvectors after each
    step of LAPACK's, which are the reduction, the tridiagonal matrix, and the transformation back, and of eigenvalues
    of large matrices on the way.  One call of LAPACK tells nothing: that is a generalized problem, a named driver, or
    eigenvalues with many threads.

    A correction of `x0` takes seven n³ operations of matrix products on CUDA, and some in lower precision; it leaves
    the fourth power of the error, so that one is enough for most steps of a self-consistent field.  Whether the vectors
    are near enough is seen after three.  It is tried where it is estimated to be faster than a full solution: on CUDA
    from orders of a few hundred on, on the CPU from fifteen cores on.  It holds up to seventeen matrices (T. Ogita and
    K. Aishima, 2018 and 2019).

    Source: Wang et al., "Extracting the potential of emerging hardware accelerators for symmetric eigenvalue
    decomposition", Algorithms 1 to 3.  On CUDA, matrices above what the panel kernel holds go to cuSOLVER, and where
    double precision is slow also those for which two stages do not pay.  Work space beyond `a`: about n² elements,
    2.2 n² with the eigenvectors of large matrices, and n² fewer with `overwrite_a` (docs/performance/evd.md).

    Examples
    --------
    The orbital energies of a Fock matrix in a basis that is not orthogonal (docs/guide.md has the lines for PySCF):

    >>> import numpy as np, spectile
    >>> fock, overlap = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[2.0, 0.0], [0.0, 2.0]])
    >>> energies, orbitals = spectile.eigh(fock, overlap, backend="cpu")
    >>> energies.round(6).tolist()
    [-0.5, 0.5]
    >>> spectile.eigh(fock, subset_by_index=(1, 1), eigvals_only=True, backend="cpu").tolist()
    [1.0]

    The next step of a self-consistent field, from the vectors of this one:

    >>> fock[0, 0] = 1e-4
    >>> spectile.eigh(fock, overlap, x0=orbitals, backend="cpu").eigenvalues.round(6).tolist()
    [-0.499975, 0.500025]
    """
    if comm is None and (dealt := _dealt(a, b)) is not None:
        comm = dealt.comm
    x0 = getattr(x0, "eigenvectors", x0)
    problem = (
        a, b, lower, UPLO, not flag("eigvals_only", eigvals_only), overwrite_a, overwrite_b, type, check_finite,
        subset_by_index, subset_by_value, driver,
    )  # fmt: skip
    if comm is not None:
        return _on_ranks(comm, problem, x0, backend, devices)
    shape, options, definite = _problem(*problem)
    if devices is not None:
        return _on_devices(devices, a, options, definite, x0, backend)
    operands = (a,) if b is None else (a, b)
    chosen = chosen_backend(operands if x0 is None else (*operands, x0), backend, _work(shape, operands, options))
    if x0 is not None:
        if subset_by_index is not None or subset_by_value is not None or driver is not None or type != 1:
            raise ValueError("x0 is for all eigenvectors of type 1 without a driver: leave out x0, or the other words")
        near = refine.eigh(a, x0, options, definite, chosen)
        if near is not None:
            return near[0] if eigvals_only else EighResult(*near)
    found = backend_module("run", chosen).eigh(a, options, definite)
    return found if eigvals_only else EighResult(*found)


def _work(shape: tuple[int, ...], operands: tuple[Any, ...], options: Options) -> Callable[[], Work]:
    """Return what tells the cost of a problem, if it is asked."""
    return lambda: costs.dense(shape, operands, vectors=options.vectors, subset=options.subset)


def _on_devices(devices: Any, a: Any, options: Options, definite: Definite | None, x0: Any, backend: Backend) -> Any:
    """Solve a problem on several devices of this host."""
    if x0 is not None or options.driver is not None:
        raise ValueError("several devices refine nothing and call no driver: leave out x0 and driver, or devices")
    if word("backend", backend, "auto", "cpu", "cuda") == "cpu":
        raise ValueError('devices are GPUs: leave out backend="cpu", or devices')
    device.require_device(device.NO_DEVICES)
    run = importlib.import_module(f"{__package__}.cuda.multi.run")
    found = run.eigh(a, options, definite, devices)
    return EighResult(*found) if options.vectors else found


def _dealt(a: Any, b: Any) -> BlockCyclicMatrix | None:
    """Return an operand that is dealt out to ranks, if there is one."""
    return a if isinstance(a, BlockCyclicMatrix) else b if isinstance(b, BlockCyclicMatrix) else None


def _on_ranks(comm: Any, problem: tuple[Any, ...], x0: Any, backend: str, devices: Any) -> Any:
    """Solve a problem on the ranks of a communicator."""
    from spectile.evd.distributed import solver

    require_communicator(comm, "py2f")

    def checked() -> tuple[Options, Definite | None]:
        _, options, definite = _problem(*problem)
        if x0 is not None or options.driver is not None or (definite is not None and definite.kind != 1):
            raise ValueError("several ranks solve problems of type 1 by one driver: leave out the other words")
        word("backend", backend, "auto", "cpu", "cuda")
        if devices is not None:
            raise ValueError("ranks have a GPU each, their current one: leave out devices, or comm")
        return options, definite

    options, definite = on_every_rank(comm, checked)
    w, v = solver.eigh(problem[0], options, definite, comm, backend)
    return w if v is None else EighResult(w, v)


def _problem(
    a: Any, b: Any, lower: bool, uplo: str | None, vectors: bool, overwrite_a: bool, overwrite_b: bool, kind: int,
    check_finite: bool, subset_by_index: Any, subset_by_value: Any, driver: str | None,
) -> tuple[tuple[int, ...], Options, Definite | None]:  # fmt: skip
    """Check the arguments of `eigh`; return the shape that both operands have, the options, and the second matrix."""
    shape = require_square(a)
    definite, subset = None, None
    if b is None:
        check_type(kind)
    else:
        definite, shape = definite_of(shape, b, kind, flag("overwrite_b", overwrite_b))
    if subset_by_index is not None or subset_by_value is not None:
        subset = subset_of(shape, subset_by_index, subset_by_value)
    if driver is not None:
        check_driver(
            driver, generalized=b is not None, subset=subset_by_index is not None or subset_by_value is not None
        )
    lower = flag("lower", lower) if uplo is None else word("UPLO", uplo, "L", "U", "l", "u") in ("L", "l")
    overwrite_a, check_finite = flag("overwrite_a", overwrite_a), flag("check_finite", check_finite)
    return shape, Options(lower, vectors, overwrite_a, check_finite, subset, driver), definite


def eigvalsh(
    a: ArrayLike,
    b: ArrayLike | None = None,
    *,
    lower: bool = True,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    type: Literal[1, 2, 3] = 1,
    check_finite: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    subset_by_value: tuple[float, float] | None = None,
    driver: Driver | None = None,
    UPLO: Literal["L", "U", "l", "u"] | None = None,
    comm: Any = None,
    devices: Any = None,
    backend: Backend = "auto",
) -> Any:
    """Return the eigenvalues of a standard or generalized problem, ascending.

    Parameters
    ----------
    a, b, lower, overwrite_a, overwrite_b, type, check_finite, subset_by_index, subset_by_value, driver, UPLO
        As for `eigh`.
    comm, devices, backend
        As for `eigh`.

    Returns
    -------
    w : array, shape (..., m)

    Raises
    ------
    ValueError, TypeError, MemoryError, numpy.linalg.LinAlgError
        As for `eigh`.

    Examples
    --------
    >>> import numpy as np
    >>> from spectile import eigvalsh
    >>> eigvalsh(np.array([[2.0, 1.0], [1.0, 2.0]])).round(12).tolist()
    [1.0, 3.0]
    """
    return eigh(
        a, b, lower=lower, eigvals_only=True, overwrite_a=overwrite_a, overwrite_b=overwrite_b, type=type,
        check_finite=check_finite, subset_by_index=subset_by_index, subset_by_value=subset_by_value, driver=driver,
        UPLO=UPLO, comm=comm, devices=devices, backend=backend,
    )  # fmt: skip


def tridiagonalize(
    a: ArrayLike,
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

    See Also
    --------
    eigh_tridiagonal : what T is for.

    Examples
    --------
    >>> import numpy as np
    >>> from spectile import eigvalsh_tridiagonal, tridiagonalize
    >>> a = np.diag(np.arange(5.0)) + 1
    >>> t = tridiagonalize(a)
    >>> bool(np.allclose(eigvalsh_tridiagonal(t.d, t.e), np.linalg.eigvalsh(a)))
    True
    """
    shape = require_square(a)
    if len(shape) > 2:
        raise ValueError(f"tridiagonalize takes one matrix, and not shape {shape}: loop over the batch")
    options = Options(
        flag("lower", lower),
        flag("calc_q", calc_q),
        flag("overwrite_a", overwrite_a),
        flag("check_finite", check_finite),
    )
    run = backend_module("run", chosen_backend((a,), backend, _work(shape, (a,), options)))
    return Tridiagonalization(*run.tridiagonalize(a, options))


def explain(
    a: ArrayLike,
    b: ArrayLike | None = None,
    *,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    type: Literal[1, 2, 3] = 1,
    check_finite: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    subset_by_value: tuple[float, float] | None = None,
    driver: Driver | None = None,
    UPLO: Literal["L", "U", "l", "u"] | None = None,
    x0: Any = None,
    comm: Any = None,
    devices: Any = None,
    backend: Backend = "auto",
) -> list[Candidate]:
    """Return the solvers of which :func:`eigh` takes one with these arguments.

    Parameters
    ----------
    a, b, eigvals_only, subset_by_index, subset_by_value, driver, backend
        As for :func:`eigh`; nothing is computed.
    lower, overwrite_a, overwrite_b, type, check_finite, UPLO
        Likewise, and they decide nothing.
    comm, devices
        Likewise; nothing is sent.
    x0
        Likewise; how near it is would have to be computed, so that the solvers are those that it may fall back to.

    Returns
    -------
    list of spectile.core.choice.Candidate
        Of each its name, seconds and why.  Orders that were measured decide, so that there is no prediction: seconds
        are NaN for the solver that is taken, and None for the others.  For arrays on the host and ``backend="auto"``,
        if there is a device, the last is the backend that is not taken, with what both are predicted to take.

    Raises
    ------
    ValueError, TypeError
        As :func:`eigh`.

    Examples
    --------
    >>> import numpy as np
    >>> from spectile.evd import explain
    >>> [one.kernel for one in explain(np.eye(100), backend="cpu") if one.seconds is not None]
    ["LAPACK's evd"]
    """
    shape, options, definite = _problem(
        a, b, lower, UPLO, not flag("eigvals_only", eigvals_only), overwrite_a, overwrite_b, type, check_finite,
        subset_by_index, subset_by_value, driver,
    )  # fmt: skip
    operands = (a,) if b is None else (a, b)
    dealt = _dealt(a, b)
    if comm is not None or dealt is not None:
        on_gpus = backend == "cuda" or any_on_device(operands) or (dealt is not None and dealt.backend == "cuda")
        name = "cuSOLVERMp's syevd" if on_gpus else "ScaLAPACK's syevd" if options.vectors else "ScaLAPACK's syev"
        return [Candidate(name, math.nan, "several ranks")]
    work, placed = _work(shape, operands, options), operands if x0 is None else (*operands, x0)
    chosen = chosen_backend(placed, backend, work)
    listed: list[Candidate] = backend_module("run", chosen).explain(shape, a, options, definite)
    return listed + not_taken(chosen, device.backends(backend, any_on_device(placed), work))


#: What `spectile.explain` asks, by the name of the function.
EXPLAINED = {"eigh": explain, "eigvalsh": functools.partial(explain, eigvals_only=True)}
