"""The public SpAMM functions: check the input, choose the backend, call it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spectile.core.arrays import on_device
from spectile.core.choice import Candidate
from spectile.core.device import Backend, require_device
from spectile.core.options import flag, word
from spectile.core.places import device_ids
from spectile.core.protocols import ArrayLike
from spectile.nearsparse import checks, relative
from spectile.nearsparse.types import Method, NormMap, PrecisionName, Request, Split, Threshold

if TYPE_CHECKING:
    from spectile.nearsparse.cpu.run import DenseAtOnce
    from spectile.nearsparse.cuda.plan import SpammPlan
    from spectile.nearsparse.result import SpammResult


def spamm(
    a: ArrayLike,
    b: ArrayLike,
    *,
    tau: float | None = None,
    valid_ratio: float | None = None,
    rtol: float | None = None,
    rtol_factors: float | None = None,
    atol: float | None = None,
    block: int = 32,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    out: Any = None,
    strict: bool = False,
    precision: PrecisionName | None = None,
    check_finite: bool | None = None,
    backend: Backend = "auto",
    devices: int | Sequence[int] | None = None,
    split: Split = "rows",
    method: Method | None = None,
    norms: tuple[NormMap | None, NormMap | None] | None = None,
) -> SpammResult:
    """Multiply near-sparse matrices, skipping the tile products whose norms are small (SpAMM).

    C = alpha A B + beta C, where the product of the tiles A_ik and B_kj is left out when
    ``||A_ik||_F ||B_kj||_F < tau``.  Give exactly one of `tau`, `valid_ratio`, `rtol`, `rtol_factors` and `atol`.

    Parameters
    ----------
    a : array, shape (..., m, k)
        float16, bfloat16, float32, float64, complex64 or complex128; a NumPy or CuPy array, or any object with
        ``__cuda_array_interface__`` or ``__dlpack__``.  Leading dimensions are batches and broadcast as in
        `numpy.matmul`.  Complex matrices are multiplied as real ones of their parts, on a GPU with a copy of B that is
        twice its size.
    b : array, shape (..., k, n)
        Of the same dtype and kind as `a`.
    tau : float, optional
        Threshold, >= 0.  0 gives the dense product, infinity gives zero.  On a GPU, tile products are multiplied where
        the product of their norms is beyond the largest number, which those of float32 never are.
    valid_ratio : float, optional
        Wanted share of tile products, in (0, 1]; tau is searched by bisection from the mean norm product (Section
        3.5.2 of the paper) until the share is within 0.01 or a tenth of the ratio, whichever is less, for each product
        of a batch.  Where the tiles are few or alike, the nearest share may be far from it: of one tile, with a ratio
        below 1/2, it is 0, and C is zero.  On a GPU nothing waits for the search: the product reads tau from
        device memory, and the result when it is asked for.
    rtol : float, optional
        Wanted error, relative to the product: ``||E||_F <= rtol ||A B||_F`` is guaranteed, where E holds what was
        skipped and the rounding of the sums (of A B, before alpha and beta C; for each product of a batch).  The norm
        of A B is known with the product: it is estimated by eight vectors, C is made within the error that follows, and
        made again where its norm does not prove the guarantee.  A call on a GPU waits for that, some milliseconds; the
        dense product is taken where it ends before, and what rounding rules out is refused when `tau` is read.
    rtol_factors : float, optional
        Wanted error, relative to the factors, which are known before: the largest tau (to a relative 1e-6) with the
        guarantee ``||E||_F <= rtol_factors ||A||_F ||B||_F``, which is no less than ``||A B||_F`` and may be far more.
        Nothing waits for it.  A and B may lie anywhere in the range of their dtype if C does not leave it; on a GPU,
        norms of A or B below 2^-960 are too small for a bound.
    atol : float, optional
        Wanted error, absolute: likewise with ``||E||_F <= atol``.
    block : int, default 32
        Tile size (LoNum in the paper), a power of two from 8 to 128 on CUDA, any positive number on the CPU.
    alpha, beta : float
        Factors of the product and of `c`.
    c : array, shape (..., m, n), optional
        Needed when `beta` is not 0; not read otherwise, and never written unless it is also `out`.
    out : array, shape (..., m, n), optional
        Receives the result; C-contiguous, of the dtype of C.  Where it overlaps an operand, the call takes as much
        memory again.
    strict : bool, default False
        Multiply exactly the valid tile products.  By default a backend may multiply some more where that is faster,
        which only lowers the error; the result's `executed_ratio` counts them.
    precision : {"float16", "float16c16", "float32", "tf32x3", "float64", "complex64", "complex128"}, optional
        By default the dtype of the inputs.  For float16 and bfloat16 C is float32, and bfloat16 is converted to float32
        before it is multiplied.  "float16c16" rounds C to float16;
        "tf32x3" multiplies float32 by three TF32 products on CUDA's tensor cores.  The short forms "fp16", "fp16c16",
        "fp32" and "fp64" are accepted as well.
    check_finite : bool, optional
        Raise for NaN and infinity in `a` and `b`, seen in the norm maps.  By default host arrays are checked and GPU
        arrays are not, because reading the answer back would synchronise.  Unchecked, NaN and infinity
        propagate as in a dense product, since a norm product that is NaN is not below tau.  Where a search on the GPU
        finds no threshold, because of them, because products of norms overflow, or because the bound of rounding and
        underflow alone is more than the error, everything is multiplied, and reading `tau` from the result raises
        ValueError.
    backend : {"auto", "cpu", "cuda"}
        "auto" chooses CUDA for GPU arrays, and for real ones of the host if there is a device which is predicted to
        take less, all products that no `valid_ratio` excludes counted: float64 stays on the host where a GPU has it at
        1/32 or 1/64 of float32's rate.
    devices : int or sequence of int, optional
        How many GPUs of this host share the product, or which ones: each multiplies rows of C, or whole products of a
        batch that has at least as many.  All arrays are in host memory (faster if it is pinned), or on one of the GPUs,
        or are lists as :func:`distribute` makes them, with `c` and `out` cut like C; `c` of the result is
        placed in the same way.  The result has the bits of one GPU's.
    split : {"rows", "columns"}
        How the operands in lists were distributed.
    method : {"auto", "spamm"}, optional
        By default "auto" with an error, which says how large it may be, and "spamm" with `tau` or `valid_ratio`,
        which say what is left out.  "auto" takes the dense product (the vendor's on a GPU, NumPy's on a CPU) where it
        is estimated to be faster, and the result's `method` says so.  Where that depends on how much is valid, it is
        counted first, if that costs less than a wrong choice would; on a GPU, calls that repeat a layout keep to what
        was found, and count again after 1, 2, 4 ... 64 of them.  With ``strict=True``, in a graph that is captured, in
        a batch and on several GPUs SpAMM always multiplies, and on a CPU where C is added.
    norms : pair of NormMap, optional
        The norms of the tiles of `a` and of `b`, as :func:`norm_map` and `norms` of a result have them, of matrices
        that have not changed since: thresholds and bounds are by these, on a CPU.  A GPU takes norms anew, which is
        quicker there than a call that is not planned.

    Returns
    -------
    SpammResult
        `c` of the kind of the inputs, with tau, the valid and executed ratio and the error bound.  If both operands are
        in Fortran order and there is no `out`, C is in Fortran order too: C^T = B^T A^T is computed without a copy.

    Raises
    ------
    ValueError
        For mismatched shapes, a parameter out of range, NaN or infinity, or an error below what rounding allows.
    TypeError
        For another dtype, inputs of different dtypes, or a `TileMatrix` that has an error of its own.
    RuntimeError
        If ``backend="cuda"`` and there is no usable device.
    MemoryError
        If the device has too little memory; the message has the bytes.  Two matrices in host memory that do not fit on
        the device together with C are multiplied in blocks of rows, for which B and some rows must fit.

    See Also
    --------
    spamm_threshold : what a threshold would leave, without the product.
    spamm_plan : a product on a GPU that is executed many times.

    Notes
    -----
    Liu et al. (cuSpAMM, 2021): Algorithms 1 and 2, and Section 3.5.2 for the search.

    On a stream that is captured nothing is checked or read back: each launch of the graph multiplies the operands as
    they are then, and the numbers of the result, its error bound among them, are those of the last launch before they
    are read, and stay.

    Examples
    --------
    >>> import numpy as np, spectile
    >>> i = np.arange(512)
    >>> a = np.exp(-abs(i[:, None] - i) / 20)
    >>> result = spectile.spamm(a, a, rtol=1e-6, backend="cpu")
    >>> bool(np.linalg.norm(result.c - a @ a) <= result.error_bound)
    True
    """
    key, host_key = None, None
    method = ("auto" if tau is valid_ratio is None else "spamm") if method is None else method
    if type(a) is type(b) is np.ndarray and c is out is devices is norms is None:
        options = tau, valid_ratio, rtol, rtol_factors, atol, alpha, beta, strict, precision, check_finite, backend
        host_key = _host_key(a, b, block, *options, split, method)
        again = _DENSE.get(host_key)
        made = None if again is None else again(a, b)
        if made is not None:
            return made
    plain = devices is rtol is None and (check_finite is None or check_finite is False)
    if plain and isinstance(beta, int | float) and beta == 0 and _on_cupy(a):
        # A call that repeats an earlier layout needs no checks.
        kind, value = _given(tau, valid_ratio, rtol_factors, atol)
        key = _repeated().key_of(a, b, out, value, kind, block, alpha, strict, precision, backend, split, method)
        result = None if key is None else _repeated().execute(key, a, b, out, value)
        if result is not None:
            return result
    kind, value = checks.check_choice(tau=tau, valid_ratio=valid_ratio, rtol=rtol, rtol_factors=rtol_factors, atol=atol)
    wanted: dict[str, Any] = {kind: value}
    block, alpha, beta = checks.check_scalars(block, alpha, beta)
    word("split", split, "rows", "columns")
    word("method", method, "spamm", "auto")
    c = c if beta != 0 else None
    if devices is None:
        operands = checks.operands(a, b, c, out)
        where = operands.backend(backend, block, precision, valid_ratio)
    else:
        operands, where = checks.spread_operands(a, b, c, out, split, backend), "cuda"
    operands = operands.with_norms(norms, block)
    request = Request(
        operands.precision(precision, where), alpha=alpha, beta=beta, block=block, strict=flag("strict", strict),
        check_finite=not operands.on_gpu if check_finite is None else flag("check_finite", check_finite),
        method="spamm" if strict else method, **wanted,
    )  # fmt: skip
    operands.check_results(request)
    if devices is None and operands.by_columns:
        operands = operands.transposed()
    if operands.a is not a or operands.b is not b:
        key = None
    run: relative.Run
    if devices is not None:
        run = functools.partial(_on_devices, devices=_listed(devices), split=split)
    else:
        run = functools.partial(_on_cuda, key=key) if where == "cuda" else _on_cpu
    if rtol is None:
        result = run(operands, request)
    else:
        at_once = None if devices is not None else _at_once_on_cpu if where == "cpu" else _at_once_on_cuda
        result = relative.product(operands, request, run, at_once)
    if host_key is not None and where == "cpu" and result.method == "dense" and operands.a is a and operands.b is b:
        if len(_DENSE) >= _MOST:
            _DENSE.clear()
        _DENSE[host_key] = _repeated_on_cpu(operands, request)
    return operands.in_kind(result)


#: What multiplies again two matrices of the host by their layout and options, where the dense product was taken: it
#: needs no checks but a look at the numbers, which take longer than so small a product.
_DENSE: dict[Any, DenseAtOnce] = {}
_MOST = 256
#: Kinds of options that keys hold.
_PLAIN = {int, float, bool, str, type(None)}


def _host_key(a: Any, b: Any, block: Any, *options: Any) -> Any:
    """Return what decides how matrices of the host are multiplied, or None for those that are looked at anew."""
    flags = a.flags, b.flags
    if not all(x.c_contiguous and x.aligned for x in flags) or type(block) is not int:
        return None
    return (a.shape, b.shape, a.dtype, b.dtype, block, options) if _PLAIN.issuperset(map(type, options)) else None


def _given(
    tau: float | None, valid_ratio: float | None, rtol_factors: float | None, atol: float | None
) -> tuple[str, float | None]:
    """Return which of the four is given, and its value; no value unless it is one."""
    given = ("tau", tau), ("valid_ratio", valid_ratio), ("rtol_factors", rtol_factors), ("atol", atol)
    for name, value in given:
        if value is not None:
            return name, value if (tau, valid_ratio, rtol_factors, atol).count(None) == 3 else None
    return "", None


def _on_cupy(a: Any) -> bool:
    return type(a).__module__.startswith("cupy")


@functools.cache
def _repeated() -> Any:
    from spectile.nearsparse.cuda import repeated

    return repeated


def _on_cpu(operands: checks.Operands, request: Request) -> SpammResult:
    from spectile.nearsparse.cpu.run import spamm_cpu

    return spamm_cpu(operands.a, operands.b, operands.c, operands.out, request, operands.norms)


def _at_once_on_cpu(operands: checks.Operands, request: Request) -> SpammResult | None:
    alone = operands.c is operands.out is None
    return _repeated_on_cpu(operands, request)(operands.a, operands.b) if alone else None


def _at_once_on_cuda(operands: checks.Operands, request: Request) -> SpammResult | None:
    from spectile.nearsparse.cuda.dense import decide_here

    (m, k), n = checks.shape_of(operands.a), checks.shape_of(operands.b)[1]
    plain = request.alpha == 1 and request.beta == 0 and operands.out is None and not request.check_finite
    return (
        _on_cuda(operands, request, None)
        if plain and m * k * n and decide_here((m, k, n), request)[0] == "dense"
        else None
    )


def _repeated_on_cpu(operands: checks.Operands, request: Request) -> DenseAtOnce:
    from spectile.nearsparse.cpu.run import DenseAtOnce

    return DenseAtOnce((*operands.a.shape, operands.b.shape[-1]), request)


def _on_cuda(operands: checks.Operands, request: Request, key: Any) -> SpammResult:
    from spectile.nearsparse.cuda.run import spamm_cuda

    if operands.on_host_and_simple:
        from spectile.nearsparse.multi import run as multi

        if not multi.fits(operands.a, operands.b, request.arithmetic.output):
            return _on_devices(operands, request, multi.current_device(), "rows")
    return spamm_cuda(operands.a, operands.b, operands.c, operands.out, request, key)


def _listed(devices: int | Sequence[int]) -> list[int]:
    """Return the ids of the devices asked for."""
    require_device()
    import cupy

    return device_ids(devices, cupy.cuda.runtime.getDeviceCount())


def _on_devices(operands: checks.Operands, request: Request, devices: Sequence[int], split: Split) -> SpammResult:
    from spectile.nearsparse.multi import run as multi

    operands.check_spread(len(devices), split)
    return multi.spamm_devices(operands.a, operands.b, operands.c, operands.out, request, devices, split)


def spamm_plan(
    a: Any,
    b: Any,
    *,
    block: int = 32,
    alpha: float = 1.0,
    strict: bool = False,
    precision: PrecisionName | None = None,
) -> SpammPlan:
    """Plan a product of two GPU matrices, to be executed many times: ``spamm_plan(a, b).execute(tau).c``.

    Checking the arguments, choosing the kernel and packing its arguments happen once.  :func:`spamm` itself keeps such
    plans for calls that repeat; a plan of your own is for CUDA graphs, and saves the look-up.

    Parameters
    ----------
    a : cupy.ndarray, shape (m, k)
        Row-major, with entries.
    b : cupy.ndarray, shape (k, n)
        Of the same dtype, on the same device.
    block, alpha, strict, precision
        As in :func:`spamm`.

    Returns
    -------
    SpammPlan
        Its ``execute(tau, out=None)``, or ``execute(valid_ratio=...)``, ``execute(rtol_factors=...)`` or
        ``execute(atol=...)``, multiplies on the current stream.  Threads may share it, but only one stream, or one
        captured graph, may run it at a time.

    Raises
    ------
    ValueError
        If the operands are not row-major matrices on one GPU.

    See Also
    --------
    spamm : one product.

    Examples
    --------
    With `a` and `b` on a GPU:

    >>> plan = spamm_plan(a, b)  # doctest: +SKIP
    >>> c = plan.execute(1.5).c  # doctest: +SKIP
    """
    block, alpha, _ = checks.check_scalars(block, alpha)
    operands = checks.operands(a, b, None, None)
    if not (operands.on_gpu and _on_cupy(a) and _on_cupy(b)):
        raise ValueError("a plan is of CuPy arrays: pass cupy.asarray(a) and cupy.asarray(b)")
    request = Request(operands.precision(precision, "cuda"), tau=0.0, alpha=alpha, block=block, strict=strict)
    checks.check_two_matrices(a, b)
    from spectile.nearsparse.cuda.geometry import log2, row_major
    from spectile.nearsparse.cuda.plan import SpammPlan

    log2(block)
    a, b = (row_major(name, x, on_device=True) for name, x in (("a", a), ("b", b)))
    if not (a.size and b.size) or a.device != b.device:
        raise ValueError(f"a plan is of matrices with entries on one device: shapes {a.shape} and {b.shape}")
    return SpammPlan(a, b, request)


def explain(
    a: ArrayLike,
    b: ArrayLike,
    *,
    tau: float | None = None,
    valid_ratio: float | None = None,
    rtol: float | None = None,
    rtol_factors: float | None = None,
    atol: float | None = None,
    block: int = 32,
    strict: bool = False,
    precision: PrecisionName | None = None,
    backend: Backend = "auto",
    method: Method | None = None,
    beta: float = 0.0,
) -> list[Candidate]:
    """Return the products that :func:`spamm` may take on one device, and what each is predicted to take.

    Parameters
    ----------
    a, b : array, shapes (m, k) and (k, n)
        Nothing is computed with them.
    tau, valid_ratio, rtol, rtol_factors, atol, block, strict, precision, backend, method, beta
        As for :func:`spamm`.

    Returns
    -------
    list of spectile.core.choice.Candidate
        Of each its name, seconds (None where the call would not take it) and what they are made of.  Without a
        `valid_ratio` all tile products are taken for valid.  Where there is no choice, the one that works, its seconds
        NaN.

    Raises
    ------
    TypeError, ValueError
        As :func:`spamm`.

    Examples
    --------
    >>> import numpy as np
    >>> from spectile.nearsparse import explain
    >>> [one.kernel for one in explain(np.eye(64), np.eye(64), tau=1e-3, backend="cpu")]
    ['cpu']
    """
    method = ("auto" if tau is valid_ratio is None else "spamm") if method is None else method
    kind, value = checks.check_choice(tau=tau, valid_ratio=valid_ratio, rtol=rtol, rtol_factors=rtol_factors, atol=atol)
    valid_ratio = value if kind == "valid_ratio" else None
    block, _, beta = checks.check_scalars(block, 1.0, beta)
    word("method", method, "spamm", "auto")
    operands = checks.operands(a, b, None, None)
    checks.check_two_matrices(operands.a, operands.b)
    where = operands.backend(backend, block, precision, valid_ratio)
    wanted: dict[str, Any] = {kind: value}
    request = Request(operands.precision(precision, where), block=block, strict=flag("strict", strict), **wanted)
    elsewhere = operands.other_place(where, backend, block, precision, valid_ratio)
    auto = method == "auto" and not request.strict and 0 not in (*operands.a.shape, *operands.b.shape)
    if where == "cpu":
        listed = [Candidate("cpu", math.nan, "the valid tile products")]
        if auto:
            listed.append(Candidate("dense", math.nan, "where its work is less"))
        return listed + elsewhere
    from spectile.core.arrays import to_device
    from spectile.core.device import describe
    from spectile.nearsparse.cuda.candidates import candidates
    from spectile.nearsparse.cuda.choose import Problem

    one, two = (to_device(x, "an operand")[0] if operands.on_gpu else x for x in (operands.a, operands.b))
    parts, real = request.arithmetic.parts, request.real.precision
    shape = one.shape[0], parts * one.shape[1], parts * two.shape[1]
    problem = Problem.of_parts(shape, [one], [two], block, real, request.strict)
    return candidates(dataclasses.replace(problem, added=beta != 0), describe(), request, auto) + elsewhere


def distribute(
    a: ArrayLike,
    b: ArrayLike,
    tau: float,
    devices: int | Sequence[int],
    *,
    block: int = 32,
    split: Split = "rows",
) -> tuple[list[Any], list[Any]]:
    """Copy rows of A, cut so that every GPU has the same work at a threshold, and all of B to the GPUs of this host.

    Parameters
    ----------
    a : array, shape ([items,] m, k)
        NumPy or GPU array.
    b : array, shape ([items,] k, n)
        Of the same dtype.
    tau : float
        Threshold of the later products.  They may use another one, but the work is then less even.
    devices : int or sequence of int
        How many GPUs, or which ones.
    block : int, default 32
        Tile size.
    split : {"rows", "columns"}
        "columns" copies all of A and columns of B instead, which suits few rows, since the units of distribution are
        128 rows or 256 columns.  A batch is always distributed by whole products.

    Returns
    -------
    a_parts, b_parts : list of cupy.ndarray
        Rows of A in order, shapes (m_p, k), and copies of B; or copies of A and columns of B, shapes (k, n_p); or items
        of the batch.  Each list has one array for each GPU.
    """
    _, tau = checks.check_choice(tau=tau)
    block, _, _ = checks.check_scalars(block)
    for name, x in (("a", a), ("b", b)):
        checks.refuse_with_error(name, x)
    a, b = checks.widened(a, b)
    checks.check_precision(a, b, None, "cuda")
    word("split", split, "rows", "columns")
    checks.check_one_batch(a, b)
    from spectile.nearsparse.multi import run as multi

    return multi.distribute(a, b, tau, _listed(devices), block=block, split=split)


def norm_map(a: Any, block: int = 32) -> NormMap:
    """Return the Frobenius norms of the tiles of a matrix (the paper's normmap).

    Parameters
    ----------
    a : array, shape (m, n)
        As :func:`spamm` takes it.
    block : int, default 32
        Tile size; the last tiles of a row or column may be smaller.

    Returns
    -------
    NormMap
        Its `norms` have the shape (ceil(m / block), ceil(n / block)): float64, on a GPU float32 for float16.  Squares
        are summed in float64 on a CPU, and in the dtype of the product's sums on a GPU.

    See Also
    --------
    spamm_threshold : a threshold, from kept norms if there are some.

    Examples
    --------
    >>> import numpy as np
    >>> from spectile.nearsparse import norm_map
    >>> norm_map(np.eye(4), block=2).norms.round(3).tolist()
    [[1.414, 0.0], [0.0, 1.414]]
    """
    block, _, _ = checks.check_scalars(block)
    (a,) = checks.widened(a)
    if on_device(a):
        from spectile.nearsparse.cuda.run import norm_map_cuda

        return NormMap(norm_map_cuda(a, block), block)
    from spectile.nearsparse.cpu.norms import norm_map as norm_map_cpu

    return NormMap(norm_map_cpu(checks.matrix(a), block), block)


def spamm_threshold(
    a: ArrayLike,
    b: ArrayLike,
    *,
    tau: float | None = None,
    valid_ratio: float | None = None,
    rtol: float | None = None,
    rtol_factors: float | None = None,
    atol: float | None = None,
    block: int = 32,
    precision: PrecisionName | None = None,
    backend: Backend = "auto",
    norms: tuple[NormMap | None, NormMap | None] | None = None,
) -> Threshold:
    """Return what a threshold, a valid ratio or a tolerance leaves of a product, without multiplying.

    It costs the norm maps of both matrices and a search in them; with `rtol`, the product by which its norm is known.

    Parameters
    ----------
    a : array, shape (m, k)
        As :func:`spamm` takes it.
    b : array, shape (k, n)
        Of the same dtype and kind.
    tau, valid_ratio, rtol, rtol_factors, atol : float
        One of these, as in :func:`spamm`.
    block : int, default 32
        Tile size.
    precision, backend : str
        As in :func:`spamm`; the precision decides about rounding, and so about errors.
    norms : pair of NormMap, optional
        As in :func:`spamm`.

    Returns
    -------
    Threshold
        The threshold that :func:`spamm` would use, the share of tile products that it leaves, and the bound of the
        error ``||C_exact - c||_F``.

    Raises
    ------
    ValueError, TypeError, RuntimeError
        As :func:`spamm`; and ValueError for a batch.

    See Also
    --------
    spamm : the product itself.
    norm_map : norms to be kept for several searches.

    Examples
    --------
    >>> import numpy as np, spectile
    >>> i = np.arange(512)
    >>> a = np.exp(-abs(i[:, None] - i) / 20)
    >>> before = spectile.spamm_threshold(a, a, atol=1e-3, backend="cpu")
    >>> product = spectile.spamm(a, a, tau=before.tau, backend="cpu")
    >>> product.valid_ratio == before.valid_ratio < 1
    True
    """
    kind, value = checks.check_choice(tau=tau, valid_ratio=valid_ratio, rtol=rtol, rtol_factors=rtol_factors, atol=atol)
    wanted: dict[str, Any] = {kind: value}
    block, _, _ = checks.check_scalars(block)
    operands = checks.operands(a, b, None, None)
    where = operands.backend(backend, block, precision, valid_ratio=0.0)
    request = Request(operands.precision(precision, where), block=block, check_finite=True, **wanted)
    checks.check_two_matrices(operands.a, operands.b)
    if rtol is not None:
        found = spamm(
            a, b, rtol=rtol, block=block, precision=precision, check_finite=True, backend=where, method="spamm",
            norms=norms,
        )  # fmt: skip
        return Threshold(found.tau, found.valid_ratio, found.error_bound)
    operands = operands.with_norms(norms, block)
    operands = operands.transposed() if operands.by_columns else operands
    if where == "cuda":
        from spectile.nearsparse.cuda.run import threshold_cuda

        return threshold_cuda(operands.a, operands.b, request)
    from spectile.nearsparse.cpu.run import threshold_cpu

    return threshold_cpu(operands.a, operands.b, request, operands.norms)


#: What `spectile.explain` asks, by the name of the function.
EXPLAINED = {"spamm": explain}
