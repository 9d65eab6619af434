"""The public SpAMM functions: check the input, choose the backend, call it."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from spectile.core.arrays import on_device
from spectile.core.device import choose_backend

if TYPE_CHECKING:
    from spectile.nearsparse.result import SpammResult

Backend = Literal["auto", "cpu", "cuda"]
Precision = Literal["fp16", "fp16c16", "fp32", "tf32x3", "fp64"]

# Precision of the product -> (dtype of the inputs, dtype of C).
PRECISIONS: dict[str, tuple[str, str]] = {
    "fp16": ("float16", "float32"),
    "fp16c16": ("float16", "float16"),
    "fp32": ("float32", "float32"),
    "tf32x3": ("float32", "float32"),
    "fp64": ("float64", "float64"),
}


def spamm(
    a: Any,
    b: Any,
    *,
    tau: float | None = None,
    valid_ratio: float | None = None,
    rtol: float | None = None,
    block: int = 32,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    out: Any = None,
    strict: bool = False,
    precision: Precision | None = None,
    check_finite: bool | None = None,
    backend: Backend = "auto",
    devices: int | Sequence[int] | None = None,
    split: Literal["rows", "columns"] = "rows",
) -> SpammResult:
    """Multiply near-sparse matrices, skipping the tile products whose norms are small (SpAMM).

    C = alpha A B + beta C, where the product of the tiles A_ik and B_kj is left out when
    ``||A_ik||_F ||B_kj||_F < tau``.  Give exactly one of `tau`, `valid_ratio` and `rtol`.

    Parameters
    ----------
    a : array, shape (..., m, k)
        float16, float32 or float64; a NumPy or CuPy array, or any object with ``__cuda_array_interface__`` or
        ``__dlpack__``.  Leading dimensions are batches and broadcast as in `numpy.matmul`.
    b : array, shape (..., k, n)
        Of the same dtype and kind as `a`.
    tau : float, optional
        Threshold, >= 0.  0 gives the dense product, infinity gives zero.
    valid_ratio : float, optional
        Wanted share of tile products, in (0, 1]; tau is searched as in :func:`tune_tau` with a tolerance of 0.01 or
        a tenth of the ratio, whichever is less, for each product of a batch.
    rtol : float, optional
        Wanted error: the largest tau (to a relative 1e-6) with the guarantee ``||E||_F <= rtol ||A||_F ||B||_F``,
        where E holds what was skipped and the rounding of the sums (for each product of a batch; alpha = 1, beta = 0).
    block : int, default 32
        Tile size (LoNum in the paper), a power of two from 8 to 128 on CUDA, any positive number on the CPU.
    alpha, beta : float
        Factors of the product and of `c`.
    c : array, shape (..., m, n), optional
        Needed when `beta` is not 0; not read otherwise, and never written unless it is also `out`.
    out : array, shape (..., m, n), optional
        Receives the result; C-contiguous, of the dtype of C.
    strict : bool, default False
        Multiply exactly the valid tile products.  By default a backend may multiply some more where that is faster,
        which only lowers the error; the result's `executed_ratio` counts them.
    precision : {"fp16", "fp16c16", "fp32", "tf32x3", "fp64"}, optional
        By default the dtype of the inputs, with a float32 C for float16.  "fp16c16" rounds C to float16;
        "tf32x3" multiplies float32 by three TF32 products on CUDA's tensor cores.
    check_finite : bool, optional
        Raise for NaN and infinity in `a` and `b`, seen in the norm maps.  By default host arrays are checked and GPU
        arrays are not, because reading the answer back would synchronise.  Unchecked, NaN and infinity
        propagate as in a dense product, since a norm product that is NaN is not below tau.
    backend : {"auto", "cpu", "cuda"}
        "auto" takes CUDA where the inputs are GPU arrays or a device is found, else the CPU.
    devices : int or sequence of int, optional
        Spread the product over the first so many GPUs of this host, or over those named: each multiplies rows of C, or
        whole products of a batch of at least as many.  All arrays lie in host memory (pinned, to be fast), or on one of
        the GPUs, or are lists as :func:`distribute` makes them, with `c` and `out` cut as C is; `c` of the result lies
        alike.  To the bit the result of one GPU.
    split : {"rows", "columns"}
        How the operands in lists were distributed.

    Returns
    -------
    SpammResult
        `c` of the kind of the inputs, with tau, the valid and executed ratio and the error bound.

    Raises
    ------
    ValueError
        For mismatched shapes, a parameter out of range, NaN or infinity, or an `rtol` below what rounding allows.
    TypeError
        For a dtype other than float16, float32 and float64, or inputs of different dtypes.
    RuntimeError
        If ``backend="cuda"`` and there is no usable device.
    MemoryError
        With the bytes needed, where the device has too few.  Two matrices in host memory that do not fit it beside C
        are multiplied in blocks of rows, for which B and some rows must fit.

    Notes
    -----
    cuSpAMM (Liu et al.), Algorithms 1 and 2, Section 3.5.2 for the search.
    """
    _check_choice(tau, valid_ratio, rtol)
    _check_scalars(block, alpha, beta)
    options: dict[str, Any] = {
        "tau": tau, "valid_ratio": valid_ratio, "rtol": rtol, "block": block, "alpha": alpha, "strict": strict,
    }  # fmt: skip
    if split not in ("rows", "columns"):
        raise ValueError(f"split = {split!r} is unknown: choose 'rows' or 'columns'")
    spread: dict[str, Any] = {"c": c if beta != 0 else None, "beta": beta, "out": out, "precision": precision}
    spread |= {"check_finite": check_finite, "split": split}
    if devices is not None:
        if backend == "cpu":
            raise ValueError("devices spread a product over GPUs: leave backend at 'auto' or 'cuda'")
        return _spread(a, b, devices, **spread, **options)
    on_gpu = on_device(a) or on_device(b)
    chosen = choose_backend(backend, on_gpu)
    like = a
    if not on_gpu:
        a, b = _host_array(a), _host_array(b)
    precision = _check_operands(a, b, precision, chosen)
    shape = result_shape(_shape(a), _shape(b))
    dtype = PRECISIONS[precision][1]
    if c is not None and beta != 0:
        _check_result_array("c", c, shape, None)
        _check_dtype("c", _dtype(c))
    elif beta != 0:
        raise ValueError(f"beta = {beta} needs c: pass the matrix of shape {shape} that beta multiplies")
    if out is not None:
        _check_result_array("out", out, shape, dtype)
        if isinstance(out, np.ndarray) and not (out.flags.c_contiguous and out.flags.writeable):
            raise ValueError("out is not C-contiguous and writeable: pass np.empty(shape, dtype)")
    if chosen == "cuda":
        from spectile.nearsparse.cuda import run as gpu

        if not on_gpu and len(shape) == 2 and 0 not in (*shape, _shape(a)[1]):
            from spectile.nearsparse.multi import run as gpu_multi

            if not gpu_multi.fits(a, b, dtype):
                return _spread(a, b, gpu_multi.current_device(), **spread, **options)
        # GPU arrays arrive as the user gave them, host arrays as NumPy's, shapes and dtypes checked; the backend
        # converts, works on the current stream and returns a SpammResult of the same kind.
        result = gpu.spamm_cuda(
            a,
            b,
            **options,
            beta=beta,
            c=c if beta != 0 else None,
            out=out,
            precision=precision,
            check_finite=(not on_gpu) if check_finite is None else check_finite,
        )
    else:
        from spectile.nearsparse.cpu import product as cpu

        result = cpu.spamm_cpu(
            a,
            b,
            **options,
            beta=beta,
            c=_host_array(c) if beta != 0 else None,
            out=None if out is None else _host_array(out),
            precision=precision,
            check_finite=check_finite is not False,
        )
    if out is not None:
        result.c = out
    elif not on_gpu:
        result.c = _same_kind(result.c, like)
    return result


def _spread(
    a: Any,
    b: Any,
    devices: int | Sequence[int],
    *,
    c: Any,
    out: Any,
    precision: Precision | None,
    check_finite: bool | None,
    split: Literal["rows", "columns"],
    **options: Any,
) -> SpammResult:
    """Check operands that several GPUs multiply, and multiply them."""
    from spectile.nearsparse.multi import run as gpu_multi

    chosen, like = gpu_multi.device_list(devices), a
    distributed = isinstance(a, list | tuple)
    if distributed:
        on_gpu = True
        for name, parts in (("a", a), ("b", b), ("c", c), ("out", out)):
            if parts is not None and not (isinstance(parts, list | tuple) and len(parts) == len(chosen)):
                raise ValueError(
                    f"{name} is no list of {len(chosen)} arrays, one a device, as lists of distributed operands are: "
                    "see distribute"
                )
    else:
        on_gpu = on_device(a) or on_device(b)
        if not on_gpu:
            a, b, c = _host_array(a), _host_array(b), None if c is None else _host_array(c)
        for name, array in (("a", a), ("b", b), ("c", c), ("out", out)):
            if array is not None and on_device(array) != on_gpu:
                raise ValueError(f"of a and b one is a GPU array, and {name} lies elsewhere: move one of them")
        if split != "rows":
            raise ValueError("split = 'columns' is said of operands distributed by columns: see distribute")
    a_parts, b_parts, c_parts, targets = (
        parts if distributed and parts is not None else [parts] * len(chosen if distributed else [0])
        for parts in (a, b, c, out)
    )
    for x, y, added, target in zip(a_parts, b_parts, c_parts, targets, strict=True):
        kind = _check_operands(x, y, precision, "cuda")
        shape = result_shape(_shape(x), _shape(y))
        if options["beta"] != 0:
            if added is None:
                raise ValueError(f"beta = {options['beta']} needs c: pass the matrix that beta multiplies")
            _check_result_array("c", added, shape, None)
            _check_dtype("c", _dtype(added))
        if target is not None:
            _check_result_array("out", target, shape, PRECISIONS[kind][1])
    _check_parts(a_parts, b_parts, split)
    check = (not on_gpu) if check_finite is None else check_finite
    options |= {"precision": kind, "check_finite": check}
    result = gpu_multi.spamm_devices(a, b, c=c, out=out, devices=chosen, split=split, **options)
    if out is None and not on_gpu:
        result.c = _same_kind(result.c, like)
    return result


def _check_parts(a: Sequence[Any], b: Sequence[Any], split: Literal["rows", "columns"]) -> None:
    """Check the shapes of parts and copies, or of the operands that are whole."""
    shapes_a, shapes_b = [_shape(x) for x in a], [_shape(x) for x in b]
    if max(map(len, (*shapes_a, *shapes_b))) > 2:
        empty = all(0 in (*result_shape(x, y), x[-1]) for x, y in zip(shapes_a, shapes_b, strict=True))
        if len(a) > 1 and (split != "rows" or {len(x) for x in (*shapes_a, *shapes_b)} - {2, 3}):
            raise ValueError("a distributed batch has whole products on every device, along one leading dimension")
    else:
        copies, cut, axis = (shapes_b, shapes_a, 0) if split == "rows" else (shapes_a, shapes_b, 1)
        if len(set(copies)) > 1:
            name = "b" if split == "rows" else "a"
            raise ValueError(f"{name} has shapes {copies}, and every device holds all of {name}: see distribute")
        empty = 0 in (sum(x[axis] for x in cut), *copies[0])
    if empty:
        raise ValueError("a product without entries is not spread: leave devices out")


def distribute(
    a: Any,
    b: Any,
    tau: float,
    devices: int | Sequence[int],
    *,
    block: int = 32,
    split: Literal["rows", "columns"] = "rows",
) -> tuple[list[Any], list[Any]]:
    """Copy rows of A, cut so that every GPU has the same work at a threshold, and all of B to the GPUs of this host.

    Parameters
    ----------
    a : array, shape ([items,] m, k)
        NumPy or GPU array.
    b : array, shape ([items,] k, n)
        Of the same dtype.
    tau : float
        Threshold of the products to come.  Another is computed as well, with the work less even.
    devices : int or sequence of int
        The first so many GPUs, or those named.
    block : int, default 32
        Tile size.
    split : {"rows", "columns"}
        "columns" copies all of A and columns of B instead: for few rows, since units of 128 rows or 256 columns are
        dealt.  Of a batch whole products are dealt in any case.

    Returns
    -------
    a_parts, b_parts : list of cupy.ndarray
        Rows of A in order, shapes (m_p, k), and copies of B; or copies of A and columns of B, shapes (k, n_p); or items
        of the batch.  One array of each a GPU.
    """
    _check_choice(tau, None, None)
    _check_scalars(block, 1.0, 0.0)
    _check_operands(a, b, None, "cuda")
    if split not in ("rows", "columns"):
        raise ValueError(f"split = {split!r} is unknown: choose 'rows' or 'columns'")
    batch = result_shape(_shape(a), _shape(b))[:-2]
    if len(batch) > 1 or any(_shape(x)[:-2] not in ((), batch) for x in (a, b)):
        raise ValueError("distribute takes two matrices, or a batch of them along one leading dimension: reshape it")
    from spectile.nearsparse.multi import run as gpu_multi

    chosen = gpu_multi.device_list(devices)
    return gpu_multi.distribute(a, b, float(tau), chosen, block=block, split=split)


def norm_map(a: Any, block: int = 32) -> Any:
    """Return the Frobenius norms of the tiles of a matrix (the paper's normmap).

    Parameters
    ----------
    a : array, shape (m, n)
        float16, float32 or float64; NumPy or GPU array.
    block : int, default 32
        Tile size; the last tiles of a row or column may be smaller.

    Returns
    -------
    array, shape (ceil(m / block), ceil(n / block))
        float64 on the CPU, where squares and sums are float64 too; float32 or float64 on the GPU.
    """
    _check_scalars(block, 1.0, 0.0)
    if on_device(a):
        from spectile.nearsparse.cuda import run as gpu

        return gpu.norm_map_cuda(a, block)
    from spectile.nearsparse.cpu import product as cpu

    a = _host_array(a)
    if a.ndim != 2:
        raise ValueError(f"a norm map is of a matrix, not of an array with {a.ndim} dimensions: pass one matrix")
    _check_dtype("a", _dtype(a))
    return cpu.norm_map(a, block)


def tune_tau(
    norms_a: Any, norms_b: Any, valid_ratio: float, iterations: int = 20, tolerance: float = 0.01
) -> tuple[float, float]:
    """Search the threshold tau that leaves a wanted share of the tile products.

    Binary search over [0, k ave], where ave is the mean norm product and the first trial; the upper bound grows while
    it leaves more than wanted (Section 3.5.2; k doubles where the paper adds one, which is the same up to k = 2).

    Parameters
    ----------
    norms_a : array, shape (p, q)
        Norm map of A.
    norms_b : array, shape (q, r)
        Norm map of B.
    valid_ratio : float
        Wanted share, in (0, 1].
    iterations : int, default 20
        Most bisections.
    tolerance : float, default 0.01
        Absolute difference of the valid ratio at which the search ends.

    Returns
    -------
    tau : float
        The threshold that came nearest.
    valid_ratio : float
        The share that it leaves.
    """
    _check_choice(None, valid_ratio, None)
    if on_device(norms_a):
        from spectile.nearsparse.cuda import run as gpu

        return gpu.tune_tau_cuda(norms_a, norms_b, valid_ratio, iterations, tolerance)
    from spectile.nearsparse.cpu import product as cpu

    norms_a, norms_b = np.asarray(norms_a, dtype=np.float64), np.asarray(norms_b, dtype=np.float64)
    if norms_a.ndim != 2 or norms_b.ndim != 2 or norms_a.shape[1] != norms_b.shape[0]:
        raise ValueError(
            f"norm maps of shapes {norms_a.shape} and {norms_b.shape} do not multiply: the columns of the first must "
            "be the rows of the second"
        )
    return cpu.tune_tau(norms_a, norms_b, valid_ratio, iterations, tolerance)


def result_shape(shape_a: tuple[int, ...], shape_b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of A B, with leading dimensions broadcast as in `numpy.matmul`."""
    if len(shape_a) < 2 or len(shape_b) < 2:
        raise ValueError(
            f"operands of shapes {shape_a} and {shape_b}: both need at least two dimensions, reshape a vector to a "
            "matrix with one row or column"
        )
    if shape_a[-1] != shape_b[-2]:
        raise ValueError(
            f"operands of shapes {shape_a} and {shape_b} do not multiply: the columns of a ({shape_a[-1]}) must be the "
            f"rows of b ({shape_b[-2]})"
        )
    try:
        batch = np.broadcast_shapes(shape_a[:-2], shape_b[:-2])
    except ValueError:
        raise ValueError(
            f"the leading dimensions of operands of shapes {shape_a} and {shape_b} do not broadcast together"
        ) from None
    return (*batch, shape_a[-2], shape_b[-1])


def _check_choice(tau: float | None, valid_ratio: float | None, rtol: float | None) -> None:
    given = {k: v for k, v in (("tau", tau), ("valid_ratio", valid_ratio), ("rtol", rtol)) if v is not None}
    if len(given) != 1:
        what = "none" if not given else " and ".join(given)
        raise ValueError(
            f"give exactly one of tau, valid_ratio and rtol; {what} {'was' if not given else 'were'} given"
        )
    if tau is not None and not tau >= 0:
        raise ValueError(f"tau = {tau} is not a threshold: it is compared with products of norms, give a number >= 0")
    if valid_ratio is not None and not 0 < valid_ratio <= 1:
        raise ValueError(f"valid_ratio = {valid_ratio} lies outside (0, 1]: give the share of tile products to keep")
    if rtol is not None and not 0 < rtol < math.inf:
        raise ValueError(f"rtol = {rtol} is not a tolerance: give a finite number > 0")


def _check_scalars(block: int, alpha: float, beta: float) -> None:
    if isinstance(block, bool) or not isinstance(block, (int, np.integer)) or block < 1:
        raise ValueError(f"block = {block!r} is not a tile size: give a positive integer, 32 in the paper")
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not math.isfinite(value):
            raise ValueError(f"{name} = {value} is not finite: give a real number")


def _host_array(array: Any) -> Any:
    if isinstance(array, np.ndarray) or hasattr(array, "__array__") or not hasattr(array, "__dlpack__"):
        return np.asarray(array)
    return np.from_dlpack(array)


def _same_kind(c: Any, like: Any) -> Any:
    """Return a NumPy result in the kind of a host operand: by ``from_dlpack`` of its library, where it has one."""
    library = sys.modules.get(type(like).__module__.partition(".")[0])
    if isinstance(like, np.ndarray) or not hasattr(like, "__dlpack__") or not hasattr(library, "from_dlpack"):
        return c
    return library.from_dlpack(c)  # type: ignore[union-attr]


def _shape(array: Any) -> tuple[int, ...]:
    return tuple(array.shape if hasattr(array, "shape") else array.__cuda_array_interface__["shape"])


def _dtype(array: Any) -> str:
    if not hasattr(array, "dtype"):
        return str(np.dtype(array.__cuda_array_interface__["typestr"]))
    return str(array.dtype).removeprefix("torch.")


def _check_dtype(name: str, dtype: str) -> None:
    if dtype not in ("float16", "float32", "float64"):
        raise TypeError(f"{name} has dtype {dtype}: SpAMM multiplies float16, float32 and float64, convert it first")


def _check_operands(a: Any, b: Any, precision: str | None, backend: str) -> Precision:
    kind, other = _dtype(a), _dtype(b)
    _check_dtype("a", kind)
    _check_dtype("b", other)
    if kind != other:
        raise TypeError(f"a is {kind} and b is {other}: convert one, a mixed product would hide a conversion")
    default = {"float16": "fp16", "float32": "fp32", "float64": "fp64"}[kind]
    precision = default if precision is None else precision
    if precision not in PRECISIONS:
        raise ValueError(f"precision = {precision!r} is unknown: choose one of {', '.join(PRECISIONS)}")
    if PRECISIONS[precision][0] != kind:
        raise TypeError(f"precision {precision!r} multiplies {PRECISIONS[precision][0]}, and the operands are {kind}")
    if precision == "tf32x3" and backend == "cpu":
        raise ValueError("precision 'tf32x3' needs CUDA's tensor cores: use 'fp32' on the CPU")
    return precision  # type: ignore[return-value]


def _check_result_array(name: str, array: Any, shape: tuple[int, ...], dtype: str | None) -> None:
    if _shape(array) != shape:
        raise ValueError(f"{name} has shape {_shape(array)}, and the product has {shape}")
    if dtype is not None and _dtype(array) != dtype:
        raise TypeError(f"{name} is {_dtype(array)}, and the product is {dtype}: pass an array of that dtype")
