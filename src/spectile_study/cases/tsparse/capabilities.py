"""What other libraries' products lack or do in several steps: complex values, masks, and products larger than a device.

``complex``: ``spectile_<precision>`` beside CuPy's product, which is cuSPARSE's, or SciPy's.
``masked``: triangles of a graph, (L L) on the pattern of L, its strictly lower triangle: ``masked`` makes those entries
alone; ``selected``, CuPy's or SciPy's ``_selected`` make all and select; ``graphblas_masked`` is SuiteSparse:GraphBLAS.
``streamed``: factors and product on the host, the product made on the device in pieces: ``row_blocks`` as they come,
``limited`` by `spgemm` with a `memory_limit`, beside CuPy's product as a whole; ``link`` is the copy of so many bytes.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from spectile.tsparse import row_blocks, spgemm, symbolic
from spectile_study.bench.case import Context, Method, Problem, Skipped
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.tsparse import second_set
from spectile_study.cases.tsparse.checks import Check

NO_GPU = "needs a CUDA device"
PRECISIONS = ("complex128", "complex64")
#: The limit of a streamed product, in parts of the bytes of C.
PIECES = 4
Factors = tuple[sp.csr_array, sp.csr_array]


def streamed_pairs() -> dict[str, Callable[[], Factors]]:
    """Return what makes the factors of products of about 10^8 entries, and of a small one."""
    return {
        "random_1e6_10": lambda: (second_set.random(10**6, 10**6, 10, 12),) * 2,
        "laplacian_3d_27_100": lambda: (second_set.laplacian((100, 100, 100), 27),) * 2,
        "random_2000_10": lambda: (second_set.random(2000, 2000, 10, 12),) * 2,
    }


def problem(row: Mapping[str, Any], context: Context, matrix: Callable[[], sp.csr_array]) -> Problem:
    """Return the problem of one row: the square of what `matrix` returns, or the product that the row names."""
    if not row.get("product"):
        A = matrix()
        factors = A, A
    else:
        pairs = second_set.pairs() | streamed_pairs()
        factors = pairs[row["product"]]()
    return CAPABILITIES[row["part"]](*factors, context)


def _placed(A: sp.csr_array, dtype: str, on_gpu: bool) -> Any:
    if not on_gpu:
        return A.astype(dtype)
    from spectile_study.cases.tsparse.device import to_device

    return to_device(A, dtype)


def _waited(run: Callable[[], Any], on_gpu: bool) -> Callable[[], Any]:
    """Return a call that is over when its result is there."""

    def call() -> Any:
        result = run()
        if on_gpu:
            importlib.import_module("cupy").cuda.get_current_stream().synchronize()
        return result

    return call


def _scipys(A: Any, B: Any) -> Any:
    C = A @ B
    C.sort_indices()
    return C


def _complex(A: sp.csr_array, B: sp.csr_array, context: Context) -> Problem:
    """Products of matrices whose entries are turned by random angles."""
    rng, same = np.random.default_rng(context.seed), B is A
    A = _turned(A, rng)
    B = A if same else _turned(B, rng)
    sizes, exact = _scipys(abs(A), abs(B)), _scipys(A, B)
    if exact.nnz != sizes.nnz:
        raise ValueError("entries of this product cancel, which SciPy leaves out: choose another seed")
    terms = int(np.diff(A.indptr).max(initial=0)) + 4  # of an entry, its factors' rounding included

    def check(unit: float, C: Any) -> dict[str, float]:
        C = C.get() if hasattr(C, "get") else C
        C.sort_indices()
        if C.nnz != exact.nnz or (C.indptr != exact.indptr).any() or (C.indices != exact.indices).any():
            return {"error_pattern": 1.0, "error_bound_ratio": float("nan")}
        ratio = abs(C.data - exact.data) / (4 * terms * unit * sizes.data)
        return {"error_pattern": 0.0, "error_bound_ratio": float(ratio.max(initial=0))}

    on_gpu = context.device == "cuda"
    products = int(np.diff(B.indptr).astype(np.int64)[A.indices].sum())
    methods: list[Method | Skipped] = []

    def add(name: str, run: Callable[[], Any], precision: str) -> None:
        bound = functools.partial(check, float(np.finfo(precision).eps))
        limits = {"error_pattern": 0.0, "error_bound_ratio": 1.0}
        if on_gpu:
            methods.append(Method(f"{name}_{precision}", run, bound, limits, flops=8.0 * products, clock="events"))
        ending = "_as_called" if on_gpu else ""
        called = _waited(run, on_gpu)
        methods.append(Method(f"{name}_{precision}{ending}", called, bound, limits, flops=8.0 * products))

    for precision in PRECISIONS:
        left = _placed(A, precision, on_gpu)
        right = left if same else _placed(B, precision, on_gpu)
        add("spectile", lambda left=left, right=right: spgemm(left, right, backend=context.device), precision)  # type: ignore[misc]
        if on_gpu:
            add("cupyx", lambda left=left, right=right: left @ right, precision)  # type: ignore[misc]
        else:
            add("scipy", lambda left=left, right=right: _scipys(left, right), precision)  # type: ignore[misc]
    inputs = {"A": digest_array(A.data, A.indices), "B": digest_array(B.data, B.indices)}
    return Problem(methods, inputs, {"nnz_a": int(A.nnz), "nnz_c": int(exact.nnz)})


def _turned(A: sp.csr_array, rng: np.random.Generator) -> sp.csr_array:
    angles = np.exp(2j * np.pi * rng.random(A.nnz))
    return sp.csr_array((A.data * angles, A.indices, A.indptr), shape=A.shape)


def lower_triangle(A: sp.csr_array) -> sp.csr_array:
    """Return the strictly lower triangle of the graph's symmetric pattern, entries 1."""
    L = sp.csr_array(sp.tril(A + A.T, -1))
    L.data = np.ones(L.nnz)
    L.sort_indices()
    return L


def _masked(A: sp.csr_array, _: sp.csr_array, context: Context) -> Problem:
    """Count the triangles of a graph, each edge's in an entry."""
    L = lower_triangle(A)
    exact = sp.csr_array((L @ L).multiply(L))
    on_gpu = context.device == "cuda"
    given = _placed(L, "float64", on_gpu)

    def check(C: Any) -> dict[str, float]:
        C = C.get() if hasattr(C, "get") else C
        if C.shape != L.shape:
            return {"error_max": float("nan")}
        return {"error_max": float(abs(sp.csr_array(C).astype(np.float64) - exact).max())}

    runs: dict[str, Callable[[], Any]] = {
        "masked": lambda: spgemm(given, given, semiring="plus_pair", mask=given, backend=context.device),
        "selected": lambda: spgemm(given, given, backend=context.device).multiply(given),
        "cupyx_selected" if on_gpu else "scipy_selected": lambda: (given @ given).multiply(given),
    }
    methods: list[Method | Skipped] = [
        Method(name, _waited(run, on_gpu), check, {"error_max": 0.0}) for name, run in runs.items()
    ]
    if on_gpu:
        methods.append(Skipped("graphblas_masked", "SuiteSparse:GraphBLAS multiplies on a CPU"))
    elif importlib.util.find_spec("graphblas") is None:
        methods.append(Skipped("graphblas_masked", "python-graphblas is not installed: pip install python-graphblas"))
    else:
        methods.append(Method("graphblas_masked", _graphblas(L, context.threads), check, {"error_max": 0.0}))
    values = {"nnz_a": int(L.nnz), "nnz_c": int(exact.nnz), "triangles": int(exact.sum())}
    return Problem(methods, {"L": digest_array(L.indices, L.indptr)}, values)


def _graphblas(L: sp.csr_array, threads: int) -> Callable[[], Any]:
    """Return GraphBLAS's masked product of a matrix that it holds, out to sorted CSR arrays."""
    gb = importlib.import_module("graphblas")
    gb.ss.config["nthreads"] = threads
    held = gb.Matrix.from_csr(L.indptr, L.indices, L.data, ncols=L.shape[1])

    def run() -> Any:
        C = held.mxm(held, gb.semiring.plus_pair).new(mask=held.S)
        indptr, indices, data = C.to_csr(sort=True)
        return sp.csr_array((data, indices, indptr), shape=L.shape)

    return run


def _streamed(A: sp.csr_array, B: sp.csr_array, context: Context) -> Problem:
    """A product from the host to the host, made on the device in pieces."""
    pattern = symbolic(A, B, backend="cpu")
    on_gpu, entries = context.device == "cuda", int(pattern.nnz)
    counts = {"n": int(A.shape[0]), "nnz": int(A.nnz), "nnz_c": entries, "products": int(pattern.products)}
    moved = 12 * entries + 8 * A.shape[0]
    limit = moved // PIECES + 12 * (A.nnz + B.nnz)
    check = Check(A, entries, context.seed, B)
    streams: dict[str, dict[str, Any]] = {"row_blocks": {}, "row_blocks_limited": {"memory_limit": limit}}

    def blocks(options: Mapping[str, Any]) -> Iterator[Any]:
        return (part for _, part in row_blocks(A, B, backend=context.device, **options))

    def check_blocks(name: str, count: int) -> dict[str, float]:
        # The parts are those of another call, for no call that is timed keeps them: all of C, once.
        C = sp.csr_array(sp.vstack(list(blocks(streams[name])), format="csr"))
        return check(name, "float64", C) if C.nnz == count else {"error_pattern": float(abs(C.nnz - count))}

    def whole() -> Any:
        return (_placed(A, "float64", True) @ _placed(B, "float64", True)).get()

    def limited() -> Any:
        return spgemm(A, B, backend=context.device, memory_limit=limit)

    found = []
    for name, options in streams.items():
        read = functools.partial(lambda options: sum(part.nnz for part in blocks(options)), options)
        found.append(check.method(name, "float64", read, counts))
        found[-1].check = functools.partial(check_blocks, name)
    found.append(check.method("limited", "float64", limited, counts))
    if on_gpu:
        found.append(check.method("cupyx", "float64", whole, counts))
    for method in found:
        method.bytes = float(moved)
    others = [_link()] if on_gpu else [Skipped(name, f"{name} {NO_GPU}") for name in ("link", "cupyx")]
    inputs = {"A": digest_array(A.data, A.indices), "B": digest_array(B.data, B.indices)}
    return Problem([*others, *found], inputs, {"nnz_a": int(A.nnz), "nnz_c": entries, "limit_bytes": int(limit)})


def _link() -> Method:
    """Return the copy of a gibibyte to pinned memory of the host."""
    import cupy
    import cupyx

    source = cupy.arange(2**27, dtype=cupy.float64)
    target = cupyx.empty_pinned(source.shape, source.dtype)

    def copy() -> Any:
        return source.get(out=target)

    def check(found: Any) -> dict[str, float]:
        return {"error_max": float(abs(found[:: 2**20] - np.arange(0, 2**27, 2**20)).max())}

    def poison() -> None:
        target[:: 2**20] = np.nan

    return Method("link", copy, check, {"error_max": 0.0}, bytes=float(source.nbytes), prepare=poison)


CAPABILITIES: Mapping[str, Callable[[sp.csr_array, sp.csr_array, Context], Problem]] = {
    "complex": _complex,
    "masked": _masked,
    "streamed": _streamed,
}
