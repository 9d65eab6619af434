"""Products and triangular solutions by cuBLAS, Cholesky factors by cuSOLVER, and the rank-2k update (Algorithm 3)."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from spectile.core.cupy_parts import part
from spectile.core.pointers import address
from spectile.evd.cuda.matrix import Matrix
from spectile.evd.types import scalar_of


class Blas:
    """cuBLAS products on pointers, on the current stream, which may be captured.

    CuPy's own bindings refuse a stream that is captured.  There cuBLAS works in memory of the caller's allocator, which
    the graph may use again; elsewhere in its own.  With the address of a `stream`, on which all products are and
    nothing else of this thread's meanwhile, the host does less for each.
    """

    def __init__(self, dtype: Any, stream: int | None = None) -> None:
        import cupy

        self.dtype = np.dtype(dtype)
        self._gemm, self._batched, self._trsm, self._geam, self._rank_k, self._set_stream = _functions(self.dtype.char)
        self._op = {"N": 0, "C": 2 if self.dtype.kind == "c" else 1}
        self._scalar = functools.partial(_factor, self.dtype.char)
        self._handle, self._current = part("get_cublas_handle")(), cupy.cuda.get_current_stream
        captured = stream is None and self._current().is_capturing()
        self._settled = captured or stream is not None
        if self._settled:  # elsewhere it is set at each call
            _check(self._set_stream(self._handle, self._current().ptr if captured else stream))
        if captured:
            self._room = cupy.empty(_ROOM, np.uint8)
            _check(_library()["cublasSetWorkspace_v2"](self._handle, address(self._room), _ROOM))

    def _on_stream(self) -> Any:
        """Return the handle, set to the current stream whatever it was used for since."""
        if not self._settled:  # in a graph that would take its memory, too
            _check(self._set_stream(self._handle, self._current().ptr))
        return self._handle

    def gemm(
        self, m: int, n: int, k: int, alpha: float, a: int, lda: int, b: int, ldb: int, beta: float, c: int, ldc: int,
        ops: str = "NN",
    ) -> None:  # fmt: skip
        """C = alpha op(A) op(B) + beta C; "C" in `ops` is the conjugate transpose."""
        if m == 0 or n == 0 or (k == 0 and beta == 1):
            return
        alpha_pointer, beta_pointer = self._scalar(alpha), self._scalar(beta)
        _check(
            self._gemm(
                *(self._on_stream(), self._op[ops[0]], self._op[ops[1]], m, n, k),
                *(alpha_pointer, a, lda, b, ldb, beta_pointer, c, ldc),
            )
        )

    def gram(self, n: int, k: int, a: int, lda: int, b: int, ldb: int, c: int, ldc: int, *, lower: bool = True) -> None:
        """C = Aᴴ B, known to be Hermitian, below the diagonal or above it; A and B are k x n."""
        one, zero = self._scalar(1.0), self._scalar(0.0)  # of a complex zero the real part is read
        triangle = _LOWER if lower else _UPPER
        _check(self._rank_k(self._on_stream(), triangle, self._op["C"], n, k, one, a, lda, b, ldb, zero, c, ldc))

    def product_of_parts(self, n: int, alpha: float, a: int, b: int, ld: int, beta: float, c: int, ldc: int) -> None:
        """C = alpha A B + beta C of order n in single precision; A and B are float16, or complex for TensorFloat-32."""
        kind, read, compute = _PARTS[self.dtype.char]
        _check(
            _library()["cublasGemmEx"](
                *(self._on_stream(), 0, 0, n, n, n, self._scalar(alpha), a, read, ld, b, read, ld),
                *(self._scalar(beta), c, kind, ldc),
                *(compute, _ANY_ALGORITHM),
            )
        )

    def batched(
        self, m: int, n: int, k: int, alpha: float, a: int, lda: int, stride_a: int, b: int, ldb: int, stride_b: int,
        beta: float, c: int, ldc: int, stride_c: int, count: int, ops: str = "NN",
    ) -> None:  # fmt: skip
        """`count` products with constant strides, in elements."""
        if m == 0 or n == 0 or count <= 0:
            return
        alpha_pointer, beta_pointer = self._scalar(alpha), self._scalar(beta)
        _check(
            self._batched(
                *(self._on_stream(), self._op[ops[0]], self._op[ops[1]], m, n, k),
                *(alpha_pointer, a, lda, stride_a, b, ldb, stride_b, beta_pointer, c, ldc, stride_c, count),
            )
        )

    def solve_lower(self, side: str, op: str, m: int, n: int, lower: int, ld: int, b: int, ldb: int) -> None:
        """B = op(L)⁻¹ B, or B op(L)⁻¹ for side "R", with L lower triangular and B m x n."""
        if m and n:
            _check(
                self._trsm(
                    *(self._on_stream(), "LR".index(side), _LOWER, self._op[op], _WITH_DIAGONAL),
                    *(m, n, self._scalar(1.0), lower, ld, b, ldb),
                )
            )

    def add(self, m: int, n: int, a: int, lda: int, b: int, ldb: int) -> None:
        """B = A + B, both m x n."""
        if m and n:
            one, op = self._scalar(1.0), self._op["N"]
            _check(self._geam(self._on_stream(), op, op, m, n, one, a, lda, one, b, ldb, b, ldb))


#: Memory that cuBLAS has for its own use in a graph, as it is recommended for Hopper.
_ROOM = 2**25
#: Of cuBLAS's enumerations: the triangles, and a diagonal that is read; any way of a product, and types of a result
#: and of what is multiplied, and sums.
_LOWER, _UPPER, _WITH_DIAGONAL = 0, 1, 0
_ANY_ALGORITHM, _PARTS = -1, {"f": (0, 2, 68), "F": (4, 4, 77)}
_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
#: Parameters of what is called: a pointer, an integer, or one of 64 bits.
_PARAMETERS = {
    "gemm_v2": [_P, *[_I] * 5, _P, _P, _I, _P, _I, _P, _P, _I],
    "gemmStridedBatched": [_P, *[_I] * 5, _P, _P, _I, _L, _P, _I, _L, _P, _P, _I, _L, _I],
    "trsm_v2": [_P, *[_I] * 6, _P, _P, _I, _P, _I],
    "geam": [_P, *[_I] * 4, _P, _P, _I, _P, _P, _I, _P, _I],
}
_RANK_K = [_P, *[_I] * 4, _P, _P, _I, _P, _I, _P, _P, _I]


@functools.cache
def _library() -> dict[str, Any]:
    """Return the functions of the cuBLAS that CuPy has loaded."""
    import cupy

    part("get_cublas_handle")()
    loaded = ctypes.CDLL(f"libcublas.so.{cupy.cuda.runtime.runtimeGetVersion() // 1000}")
    functions: dict[str, list[Any]] = {
        "cublasSetStream_v2": [_P, _P],
        "cublasSetWorkspace_v2": [_P, _P, ctypes.c_size_t],
        "cublasGemmEx": [_P, *[_I] * 5, _P, *[_P, _I, _I] * 2, _P, _P, *[_I] * 4],
        **{f"cublas{letter}{name}": kinds for letter in "SDCZ" for name, kinds in _PARAMETERS.items()},
        **{f"cublas{letter}syrkx": _RANK_K for letter in "SD"},
        **{f"cublas{letter}herkx": _RANK_K for letter in "CZ"},
    }
    found = {name: loaded[name] for name in functions}  # a new object at each look
    for name, kinds in functions.items():
        found[name].argtypes = kinds
    return found


@functools.cache
def _functions(kind: str) -> tuple[Any, ...]:
    """Return what `Blas` calls for a kind of entries, but for what it seldom does."""
    letter, library = scalar_of(np.dtype(kind)).letter.upper(), _library()
    names = "gemm_v2", "gemmStridedBatched", "trsm_v2", "geam", "herkx" if letter in "CZ" else "syrkx"
    return *(library[f"cublas{letter}{name}"] for name in names), library["cublasSetStream_v2"]


@functools.lru_cache(maxsize=256)
def _factor(kind: str, value: float) -> Any:
    """Return memory of the host with a factor of a product, which cuBLAS reads during the call."""
    return ctypes.create_string_buffer(np.array(value, kind).tobytes())


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"cuBLAS fails with its status {status}")


def add_lower(
    blas: Blas, n: int, k: int, alpha: float, v: int, ldv: int, x: int, ldx: int, c: Matrix, row: int, block: int
) -> None:
    """Add alpha V Xᴴ, known to be Hermitian, to the lower triangle of C[row:, row:] (Algorithm 3 in place).

    One batch of diagonal blocks, then batches of ever larger square blocks below the diagonal; with V = [A B] and
    X = [B A] this is the rank-2k update A Bᴴ + B Aᴴ.
    """
    size = c.itemsize
    whole, rest = divmod(n, block)
    step = block * (1 + c.ld)
    blas.batched(
        *(block, block, k, alpha, v, ldv, block, x, ldx, block, 1.0, c.at(row, row), c.ld, step, whole), ops="NC"
    )
    if rest:
        start = whole * block
        end = c.at(row + start, row + start)
        blas.gemm(rest, rest, k, alpha, v + start * size, ldv, x + start * size, ldx, 1.0, end, c.ld, ops="NC")
    while block < n:
        whole = n // (2 * block)
        step = 2 * block
        below = c.at(row + block, row)
        blas.batched(
            *(block, block, k, alpha, v + block * size, ldv, step, x, ldx, step),
            *(1.0, below, c.ld, step * (1 + c.ld), whole),
            ops="NC",
        )
        start = whole * step
        rows = n - start - block
        if rows > 0:
            end = c.at(row + start + block, row + start)
            left, right = v + (start + block) * size, x + start * size
            blas.gemm(rows, block, k, alpha, left, ldv, right, ldx, 1.0, end, c.ld, ops="NC")
        block *= 2


def factorize(dtype: Any, n: int, b: int, ld: int, info: int) -> None:
    """Overwrite the lower triangle of B, column-major, with its Cholesky factor; `info` is an int32's address."""
    import cupy

    cublas, cusolver = part("cublas"), part("cusolver")
    letter, handle = scalar_of(dtype).letter, part("get_cusolver_handle")()
    head = (handle, cublas.CUBLAS_FILL_MODE_LOWER, n, b, ld)
    size = getattr(cusolver, f"{letter}potrf_bufferSize")(*head)
    work = cupy.empty(size, dtype)
    getattr(cusolver, f"{letter}potrf")(*head, address(work), size, info)
