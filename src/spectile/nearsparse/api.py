"""The public SpAMM functions: check the input, choose the backend, call it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spectile.core import pointers
from spectile.core.arrays import on_device
from spectile.core.choice import Candidate
from spectile.core.device import NO_DEVICES, Backend, require_device
from spectile.core.options import flag, word
from spectile.core.places import device_ids
from spectile.core.protocols import ArrayLike
from spectile.nearsparse import checks
from spectile.nearsparse.bounds import BelowRounding
from spectile.nearsparse.types import ASKED, Method, NormMap, PrecisionName, Request, Split, Threshold

if TYPE_CHECKING:
    from spectile.nearsparse.cuda.plan import SpammPlan
    from spectile.nearsparse.result import SpammResult


def spamm(
    a: ArrayLike,
    b: ArrayLike,
    *,
    tau: float | None = None,
    valid_ratio: float | None = None,
    atol: float | None = None,
    rtol_factors: float | None = None,
    rtol: float | None = None,
    block: int = 32,
    alpha: float = 1.0,
    beta: float | None = None,
    c: Any = None,
    out: Any = None,
    strict: bool = False,
    precision: PrecisionName | None = None,
    check_finite: bool | None = None,
    backend: Backend = "auto",
    devices: int | Sequence[int] | None = None,
    split: Split = "rows",
    method: Method | None = None,
) -> SpammResult:
    """Multiply near-sparse matrices, skipping the tile products whose norms are small (SpAMM).

    C = alpha A B + beta C, where the product of the tiles A_ik and B_kj is left out when
    ``||A_ik||_F ||B_kj||_F < tau``.  Give exactly one of `tau`, `valid_ratio`, `atol`, `rtol_factors` and `rtol`.

    Parameters
    ----------
    a : array, shape (..., m, k)
        float16, bfloat16, float32, float64, complex64 or complex128; a NumPy or CuPy array, or any object with
        ``__cuda_array_interface__`` or ``__dlpack__``.  Leading dimensions are batches and broadcast as in
        `numpy.matmul`.  Complex matrices are multiplied as real ones of their parts, on a GPU with a copy of B that is
        twice its size.  Or a matrix with its norms, as :func:`spectile.nearsparse.norm_map` returns it, or `norms` of a
        result: of two such matrices the norms are not taken again.  Where `check_finite` checks, so are the largest
        of each tile row.
    b : array, shape (..., k, n)
        Of the same dtype and kind as `a`.
    tau : float, optional
        Threshold, >= 0.  0 gives the dense product, infinity gives zero.  On a GPU, tile products are multiplied where
        the product of their norms is beyond the largest number, which those of float32 never are.
    valid_ratio : float, optional
        Wanted share of tile products, in (0, 1]; tau is searched as in :func:`tune_tau` with a tolerance of 0.01 or
        a tenth of the ratio, whichever is less, for each product of a batch.  Where the tiles are few or alike, the
        nearest share may be far from it: of one tile, with a ratio below 1/2, it is 0, and C is zero.  On a GPU nothing
        waits for the search: the product reads tau from device memory, and the result when it is asked for.
    atol : float, optional
        Wanted error: the largest tau (to a relative 1e-6) with the guarantee ``||E||_F <= atol``, where E is the error
        of A B (of each product of a batch, before alpha, beta and C): what was skipped and the rounding of the sums.
        A and B may lie anywhere in the range of their dtype if C does not leave it; on a GPU, norms of A or B below
        2^-960 are too small for a bound.
    rtol_factors : float, optional
        The same relative to the factors: ``||E||_F <= rtol_factors ||A||_F ||B||_F``.  The product's own norm is
        smaller, often several times.
    rtol : float, optional
        The same relative to the product: ``||E||_F <= rtol ||A B||_F``.  The norm of A B is guessed by those of A and
        B, and where that was too high, they are multiplied once more, or twice where most of it cancels; the call waits
        for the result.  Not with `beta`, in a batch or in a graph that is captured.
    block : int, default 32
        Tile size (LoNum in the paper), a power of two from 8 to 128 on CUDA, any positive number on the CPU.
    alpha, beta : float
        Factors of the product, 1 by default, and of `c`, which has none: give both `beta` and `c`, or neither.
    c : array, shape (..., m, n), optional
        What is added; not read where `beta` is 0, as in BLAS, and never written unless it is also `out`.  NaN and
        infinity in it are in the result at their places alone, and its error bound is NaN or infinite then.
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
        By default "auto" with an error, which either product may keep, and "spamm" with `tau` or `valid_ratio`, which
        say what is left out.  "auto" takes the dense product (the vendor's on a GPU, NumPy's on a CPU) where it is
        estimated to be faster, and the result's `method` says so.  Where that depends on how much is valid, it is
        counted first, if that costs less than a wrong choice would; on a GPU, calls that repeat a layout keep to what
        was found, and count again after 1, 2, 4 ... 64 of them.  With ``strict=True``, in a graph that is captured, in
        a batch and on several GPUs SpAMM always multiplies, and on a CPU where C is added.

    Returns
    -------
    SpammResult
        `c` of the kind of the inputs, with tau, the valid and executed ratio and the error bound.  If both operands are
        in Fortran order and there is no `out`, C is in Fortran order too: C^T = B^T A^T is computed without a copy.

    Raises
    ------
    ValueError
        For mismatched shapes, `c` without `beta` or `beta` without `c`, a parameter out of range, NaN or infinity, or
        an error below what rounding allows.
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
    >>> result = spectile.spamm(a, a, rtol_factors=1e-6, backend="cpu")
    >>> bool(np.linalg.norm(result.c - a @ a) <= result.error_bound)
    True
    """
    if beta is None:
        if c is not None:
            raise ValueError("c is given without beta: pass beta=1 to add it, or leave c out")
        beta = 0.0
    if rtol is not None:
        checks.check_choice(tau, valid_ratio, atol, rtol_factors, rtol)
        if checks.check_scalars(block, alpha, beta)[2] != 0:
            raise ValueError("rtol is relative to A B, without C: leave beta out, or give atol")
        return _within(
            a, b, float(rtol), block=block, alpha=alpha, out=out, strict=strict, precision=precision, backend=backend,
            check_finite=check_finite, devices=devices, split=split, method=method,
        )  # fmt: skip
    key = None
    asked = tau, valid_ratio, atol, rtol_factors, rtol
    given = [pair for pair in zip(ASKED, asked, strict=False) if pair[1] is not None]
    kind, value = given[0] if len(given) == 1 else ("", None)
    method = _default(kind) if method is None else method
    alone = isinstance(beta, int | float) and beta == 0 and (devices is None or kind == "tau")
    first = a[0] if devices is not None and isinstance(a, list | tuple) and a else a
    if alone and _on_cupy(first) and (check_finite is None or check_finite is False):
        # A call that repeats an earlier layout needs no checks.
        options = kind, block, alpha, strict, precision, backend, split, method
        key = _repeated().key_of(a, b, out, value, *options, devices=devices)
        result = None if key is None else _repeated().execute(key, a, b, out, value)
        if result is not None:
            result._norms = norm_map, block
            return result
    (a, norms_a), (b, norms_b) = checks.kept("a", a, block), checks.kept("b", b, block)
    wanted: dict[str, Any] = dict([checks.check_choice(*asked)])
    block, alpha, beta = checks.check_scalars(block, alpha, beta)
    word("split", split, "rows", "columns")
    word("method", method, "spamm", "auto")
    c = c if beta != 0 else None
    if devices is None:
        operands = checks.operands(a, b, c, out)
        where = operands.backend(backend, block, precision, valid_ratio)
    else:
        operands, where = checks.spread_operands(a, b, c, out, split, backend), "cuda"
    request = Request(
        operands.precision(precision, where), alpha=alpha, beta=beta, block=block, strict=flag("strict", strict),
        check_finite=not operands.on_gpu if check_finite is None else flag("check_finite", check_finite),
        method="spamm" if strict else method, **wanted,
    )  # fmt: skip
    operands.check_results(request)
    for name, x, norms in (("a", operands.a, norms_a), ("b", operands.b, norms_b)):
        if norms is not None and request.check_finite:
            checks.check_kept(name, norms, block, lambda rows, size: norm_map(rows, size).norms, x)
    if norms_a is not None is not norms_b and devices is None:
        request = dataclasses.replace(request, norms=(norms_a, norms_b))
    if devices is not None:
        return operands.in_kind(_on_devices(operands, request, _listed(devices), split, key))
    if operands.by_columns:
        operands = operands.transposed()
        norms = request.norms
        request = request if norms is None else dataclasses.replace(request, norms=(norms[1].T, norms[0].T))
    if operands.a is not a or operands.b is not b:
        key = None
    made = _on_cuda(operands, request, key) if where == "cuda" else _on_cpu(operands, request)
    made._norms = norm_map, block
    return operands.in_kind(made)


def _within(a: Any, b: Any, rtol: float, **options: Any) -> Any:
    """Return the product within an error relative to its own norm."""
    block, alpha, _ = checks.check_scalars(options["block"], options["alpha"])
    product: Any = functools.partial(spamm, **options)
    one, two = (checks.kept(name, x, block)[0] for name, x in (("a", a), ("b", b)))
    if options["devices"] is None:
        given = checks.operands(one, two, None, options["out"])
    else:
        given = checks.spread_operands(one, two, None, options["out"], options["split"], options["backend"])
    # A second product reads what the first must not have written over.
    apart = pointers.apart(given.out, given.a, given.b)
    a, b = (x if mine is y else mine for x, mine, y in zip((a, b), apart, (given.a, given.b), strict=True))
    name, value = "rtol_factors", rtol / 8
    if not given.distributed:
        checks.check_two_matrices(given.a, given.b)
        a, b = (x if isinstance(x, NormMap) else norm_map(x, block) for x in (a, b))
        # As if no two products of tiles had anything in common.
        with np.errstate(over="ignore", invalid="ignore"):
            across, down = ((abs(x.norms) ** 2).sum(axis) for x, axis in ((a, 0), (b, 1)))
            guess = rtol / 8 * float((across * down).sum()) ** 0.5
        name, value = ("atol", guess) if 0 < guess < math.inf else (name, value)
    known = False
    while True:
        try:
            result = product(a, b, **{name: value})
            # Where no tau was found, reading it raises.
            bound = result.error_bound if result.tau >= 0 else math.nan
        except BelowRounding:
            # The bound of a whole product, of its tiles one by one, is less than what a search reckons with.
            name, value, known, product = "tau", 0.0, False, functools.partial(product, method="spamm")
            continue
        least = result._number("norm_c") * (1 - 1e-4) - bound
        if known or bound <= rtol * least or bound == 0:
            return result
        if name == "tau":
            reach = f"{bound / least:.2g}" if least > 0 else "more than the product"
            raise ValueError(
                f"rtol = {rtol} is below what rounding alone is bounded by here, {reach}: take a larger rtol or float64"
            )
        if 0 < least < math.inf:
            name, value, known = "atol", rtol * least / abs(alpha), True
        else:  # nothing but errors may be left in C
            value *= 1e-3


def _default(kind: str) -> Method:
    """Return the method where none is named: an error may be kept by either product."""
    return "auto" if kind in ("atol", "rtol_factors") else "spamm"


def _on_cupy(a: Any) -> bool:
    return type(a).__module__.startswith("cupy")


@functools.cache
def _repeated() -> Any:
    from spectile.nearsparse.cuda import repeated

    return repeated


def _on_cpu(operands: checks.Operands, request: Request) -> SpammResult:
    from spectile.nearsparse.cpu.run import spamm_cpu

    return spamm_cpu(operands.a, operands.b, operands.c, operands.out, request)


def _on_cuda(operands: checks.Operands, request: Request, key: Any) -> SpammResult:
    from spectile.nearsparse.cuda.run import spamm_cuda

    if operands.on_host_and_simple:
        from spectile.nearsparse.multi import run as multi

        if not multi.fits(operands.a, operands.b, request.arithmetic.output):
            return _on_devices(operands, request, multi.current_device(), "rows")
    return spamm_cuda(operands.a, operands.b, operands.c, operands.out, request, key)


def _listed(devices: int | Sequence[int], instead: str = NO_DEVICES) -> list[int]:
    """Return the ids of the devices asked for."""
    require_device(instead)
    import cupy

    return device_ids(devices, cupy.cuda.runtime.getDeviceCount())


def _on_devices(
    operands: checks.Operands, request: Request, devices: Sequence[int], split: Split, key: Any = None
) -> SpammResult:
    from spectile.nearsparse.multi import run as multi

    operands.check_spread(len(devices), split)
    return multi.spamm_devices(operands.a, operands.b, operands.c, operands.out, request, devices, split, key)


def spamm_plan(
    a: Any, b: Any, *, block: int = 32, alpha: float = 1.0, strict: bool = False, precision: PrecisionName | None = None
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
        Its ``execute(tau, out=None)``, or with `valid_ratio`, `atol` or `rtol_factors`, multiplies what
        `a` and `b` hold then, on the current stream.  Threads may share it, but only one stream, or one captured graph,
        may run it at a time.

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
        raise ValueError("a plan is of CuPy arrays: pass cupy.asarray(a) and cupy.asarray(b), or use spamm on the host")
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
    atol: float | None = None,
    rtol_factors: float | None = None,
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
    tau, valid_ratio, atol, rtol_factors, block, strict, precision, backend, method, beta
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
    kind, value = checks.check_choice(tau, valid_ratio, atol, rtol_factors)
    method = _default(kind) if method is None else method
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
    from spectile.core.launch import measured_device
    from spectile.nearsparse.cuda.candidates import candidates
    from spectile.nearsparse.cuda.choose import Problem

    one, two = (to_device(x, "an operand")[0] if operands.on_gpu else x for x in (operands.a, operands.b))
    parts, real = request.arithmetic.parts, request.real.precision
    shape = one.shape[0], parts * one.shape[1], parts * two.shape[1]
    problem = Problem.of_parts(shape, [one], [two], block, real, request.strict)
    return candidates(dataclasses.replace(problem, added=beta != 0), measured_device(), request, auto) + elsewhere


def distribute(
    a: ArrayLike, b: ArrayLike, tau: float, devices: int | Sequence[int], *, block: int = 32, split: Split = "rows"
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
    _, tau = checks.check_choice(tau)
    block, _, _ = checks.check_scalars(block)
    for name, x in (("a", a), ("b", b)):
        checks.refuse_with_error(name, x)
    a, b = checks.widened(a, b)
    checks.check_precision(a, b, None, "cuda")
    word("split", split, "rows", "columns")
    checks.check_one_batch(a, b)
    from spectile.nearsparse.multi import run as multi

    return multi.distribute(
        a, b, tau, _listed(devices, "pass the matrices themselves to spamm"), block=block, split=split
    )


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
        Its `norms` have the shape (ceil(m / block), ceil(n / block)): float64, on a GPU float32 for float16, as
        the sums of squares are; it holds `a`, and is an operand of :func:`spamm` in its place.

    See Also
    --------
    tune_tau : a threshold from norm maps.
    spamm : takes what this returns, and does not take the norms again.

    Examples
    --------
    >>> import numpy as np
    >>> from spectile.nearsparse import norm_map
    >>> norm_map(np.eye(4), block=2).norms.round(3).tolist()
    [[1.414, 0.0], [0.0, 1.414]]
    """
    block, _, _ = checks.check_scalars(block)
    given, (a,) = a, checks.widened(a)
    if on_device(a):
        from spectile.nearsparse.cuda.run import norm_map_cuda

        return NormMap(norm_map_cuda(a, block), block, given)
    from spectile.nearsparse.cpu.norms import norm_map as norm_map_cpu

    return NormMap(norm_map_cpu(checks.matrix(a), block), block, given)


def spamm_threshold(
    a: ArrayLike,
    b: ArrayLike,
    *,
    tau: float | None = None,
    valid_ratio: float | None = None,
    atol: float | None = None,
    rtol_factors: float | None = None,
    block: int = 32,
    precision: PrecisionName | None = None,
    backend: Backend = "auto",
) -> Threshold:
    """Return what a threshold, a valid ratio or a tolerance leaves of a product, without multiplying.

    It costs the norm maps of both matrices and a search in them.

    Parameters
    ----------
    a : array, shape (m, k)
        As :func:`spamm` takes it.
    b : array, shape (k, n)
        Of the same dtype and kind.
    tau, valid_ratio, atol, rtol_factors : float
        One of them, as in :func:`spamm`.
    block : int, default 32
        Tile size.
    precision, backend : str
        As in :func:`spamm`; the precision decides about rounding, and so about an error.

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
    tune_tau : the threshold for a share alone.

    Examples
    --------
    >>> import numpy as np, spectile
    >>> i = np.arange(512)
    >>> a = np.exp(-abs(i[:, None] - i) / 20)
    >>> before = spectile.spamm_threshold(a, a, rtol_factors=1e-6, backend="cpu")
    >>> product = spectile.spamm(a, a, tau=before.tau, backend="cpu")
    >>> product.valid_ratio == before.valid_ratio < 1
    True
    """
    wanted: dict[str, Any] = dict([checks.check_choice(tau, valid_ratio, atol, rtol_factors)])
    block, _, _ = checks.check_scalars(block)
    (a, _), (b, _) = checks.kept("a", a, block), checks.kept("b", b, block)
    operands = checks.operands(a, b, None, None)
    where = operands.backend(backend, block, precision, valid_ratio=0.0)
    request = Request(operands.precision(precision, where), block=block, check_finite=True, **wanted)
    checks.check_two_matrices(operands.a, operands.b)
    operands = operands.transposed() if operands.by_columns else operands
    if where == "cuda":
        from spectile.nearsparse.cuda.run import threshold_cuda

        return threshold_cuda(operands.a, operands.b, request)
    from spectile.nearsparse.cpu.run import threshold_cpu

    return threshold_cpu(operands.a, operands.b, request)


def tune_tau(
    a: ArrayLike | NormMap,
    b: ArrayLike | NormMap,
    valid_ratio: float,
    iterations: int = 20,
    tolerance: float = 0.01,
    *,
    block: int = 32,
) -> tuple[float, float]:
    """Search the threshold tau that leaves a wanted share of the tile products.

    Binary search over [0, k ave], where ave is the mean norm product and the first trial; the upper bound grows while
    it leaves more than wanted (Section 3.5.2; k doubles where the paper adds one, which is the same up to k = 2).

    Parameters
    ----------
    a : array, shape (m, k), or NormMap
        A matrix, or its norm map: what :func:`norm_map` returns, or ``NormMap(norms)`` of norms made elsewhere.
    b : array, shape (k, n), or NormMap
        Likewise.
    valid_ratio : float
        Wanted share, in (0, 1].
    iterations : int, default 20
        Largest number of bisections.
    tolerance : float, default 0.01
        Absolute difference of the valid ratio at which the search ends.
    block : int, default 32
        Tile size of the norm maps of matrices.

    Returns
    -------
    tau : float
        The threshold that came nearest.
    valid_ratio : float
        The share that it leaves.

    Raises
    ------
    ValueError
        If norms are negative, NaN or infinite, their products overflow on a GPU, maps have different tile sizes, the
        shapes do not multiply, or the number of bisections is not from 1 to 2**31 - 1.
    TypeError
        If norms or the tolerance are no real numbers.

    See Also
    --------
    spamm_threshold : the threshold for an error, too.
    norm_map : norms to be kept for several searches.

    Examples
    --------
    >>> import numpy as np
    >>> from spectile.nearsparse import norm_map, tune_tau
    >>> i = np.arange(256)
    >>> a = np.exp(-abs(i[:, None] - i) / 20)
    >>> tune_tau(a, a, 0.3) == tune_tau(norm_map(a), norm_map(a), 0.3)
    True
    """
    _, valid_ratio = checks.check_choice(None, valid_ratio)
    map_a, map_b = (x if isinstance(x, NormMap) else norm_map(x, block) for x in (a, b))
    if map_a.block != map_b.block:
        raise ValueError(f"norm maps of tiles of {map_a.block} and {map_b.block}: take both with one block")
    norms_a, norms_b, on_gpu = checks.norms(map_a.norms, map_b.norms)
    iterations, tolerance = checks.check_search(iterations, tolerance)
    checks.check_norms_are_real(norms_a, norms_b)
    if on_gpu:
        from spectile.nearsparse.cuda.search import tune_tau_cuda

        return tune_tau_cuda(norms_a, norms_b, valid_ratio, iterations, tolerance)
    from spectile.nearsparse.cpu.norms import Maps
    from spectile.nearsparse.cpu.search import tune

    norms_a, norms_b = (pointers.without_read_only(np.asarray(one, np.float64)) for one in (norms_a, norms_b))
    checks.check_maps(norms_a, norms_b)
    one, two = (None if isinstance(x, NormMap) else checks.matrix(*checks.widened(x)) for x in (a, b))
    maps = Maps.of_norms(norms_a, norms_b, one, two, map_a.block)
    checks.check_finite_norms(maps.a, maps.b)
    return tune(maps, valid_ratio, iterations, tolerance)


#: What `spectile.explain` asks, by the name of the function.
EXPLAINED = {"spamm": explain}
