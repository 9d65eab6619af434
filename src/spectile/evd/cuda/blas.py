"""Products and triangular solutions by cuBLAS, Cholesky factors by cuSOLVER, and the rank-2k update (Algorithm 3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.cupy_parts import part
from spectile.core.pointers import address
from spectile.evd.cuda.matrix import Matrix
from spectile.evd.types import SCALARS, scalar_of


class Blas:
    """cuBLAS products on pointers, on the current stream."""

    def __init__(self, dtype: Any) -> None:
        import cupy

        cublas = part("cublas")
        self.dtype = np.dtype(dtype)
        prefix = SCALARS[self.dtype.name].letter
        self._gemm = getattr(cublas, prefix + "gemm")
        self._batched = getattr(cublas, prefix + "gemmStridedBatched")
        self._trsm = getattr(cublas, prefix + "trsm")
        self._geam = getattr(cublas, prefix + "geam")
        self._sides = {"L": cublas.CUBLAS_SIDE_LEFT, "R": cublas.CUBLAS_SIDE_RIGHT}
        self._lower, self._with_diagonal = cublas.CUBLAS_FILL_MODE_LOWER, cublas.CUBLAS_DIAG_NON_UNIT
        self._handle = part("get_cublas_handle")()
        cublas.setStream(self._handle, cupy.cuda.get_current_stream().ptr)
        self._op = {"N": cublas.CUBLAS_OP_N, "C": cublas.CUBLAS_OP_C if self.dtype.kind == "c" else cublas.CUBLAS_OP_T}
        self._scalars: dict[float, Any] = {}

    def _scalar(self, value: float) -> int:
        # cuBLAS reads the factors on the host during the call; the arrays stay alive here.
        if value not in self._scalars:
            self._scalars[value] = np.array(value, self.dtype)
        return address(self._scalars[value])

    def gemm(
        self, m: int, n: int, k: int, alpha: float, a: int, lda: int, b: int, ldb: int, beta: float, c: int, ldc: int,
        ops: str = "NN",
    ) -> None:  # fmt: skip
        """C = alpha op(A) op(B) + beta C; "C" in `ops` is the conjugate transpose."""
        if m == 0 or n == 0 or (k == 0 and beta == 1):
            return
        alpha_pointer, beta_pointer = self._scalar(alpha), self._scalar(beta)
        self._gemm(
            *(self._handle, self._op[ops[0]], self._op[ops[1]], m, n, k),
            *(alpha_pointer, a, lda, b, ldb, beta_pointer, c, ldc),
        )

    def batched(
        self, m: int, n: int, k: int, alpha: float, a: int, lda: int, stride_a: int, b: int, ldb: int, stride_b: int,
        beta: float, c: int, ldc: int, stride_c: int, count: int, ops: str = "NN",
    ) -> None:  # fmt: skip
        """`count` products with constant strides, in elements."""
        if m == 0 or n == 0 or count <= 0:
            return
        alpha_pointer, beta_pointer = self._scalar(alpha), self._scalar(beta)
        self._batched(
            *(self._handle, self._op[ops[0]], self._op[ops[1]], m, n, k),
            *(alpha_pointer, a, lda, stride_a, b, ldb, stride_b, beta_pointer, c, ldc, stride_c, count),
        )

    def solve_lower(self, side: str, op: str, m: int, n: int, lower: int, ld: int, b: int, ldb: int) -> None:
        """B = op(L)⁻¹ B, or B op(L)⁻¹ for side "R", with L lower triangular and B m x n."""
        if m and n:
            self._trsm(
                *(self._handle, self._sides[side], self._lower, self._op[op], self._with_diagonal),
                *(m, n, self._scalar(1.0), lower, ld, b, ldb),
            )

    def add(self, m: int, n: int, a: int, lda: int, b: int, ldb: int) -> None:
        """B = A + B, both m x n."""
        if m and n:
            one, op = self._scalar(1.0), self._op["N"]
            self._geam(self._handle, op, op, m, n, one, a, lda, one, b, ldb, b, ldb)


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
