"""Rank-k updates in float64 from INT8 products on CUDA: a variant, measured against FP64 tensor cores.

Rows are scaled by powers of two and rounded to integers; products of the integers modulo coprime numbers up to 256 are
INT8 products, and the Chinese remainder theorem gives the product itself.  Source: Ozaki, Uchino, Imamura, "Ozaki
Scheme II: a GEMM-oriented emulation of floating-point matrix multiplication using an integer modular technique".
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from spectile.core.compile import PORTABLE, Unit
from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.evd.cuda.blas import Blas
from spectile.evd.cuda.matrix import Matrix

OZAKI = Unit(__package__, ("ozaki.cu",), archs=PORTABLE)
UNITS = (OZAKI,)

#: Pairwise coprime.
MODULI = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193)
#: INT8 products as accurate as float64's (15), and fewer whose error LAPACK's limits still allow.
ACCURATE = 15
STRIP = 1024  # columns of C at a time
HIGH_BITS = 38


@functools.cache
def weights(count: int) -> tuple[np.ndarray, float]:
    """Return what `combine` reads for the first `count` moduli, and the bits that a row's norm may have.

    Returns
    -------
    table : numpy.ndarray, shape (4 count + 3,)
        Modulus, 2³²/modulus, and the high and low part of W a modulus; high and low part of the product P, and 1/P.
    bits : float
        Rows with norms up to 2^bits have products within ±P/2.
    """
    moduli = MODULI[:count]
    product = math.prod(moduli)
    table = []
    for modulus in moduli:
        rest = product // modulus
        table += [float(modulus), float(2**32 // modulus), *_parts(rest * pow(rest, -1, modulus) % product, product)]
    return np.array([*table, *_parts(product, product), 1 / product]), (math.log2(product) - 1) / 2 - 0.01


def _parts(value: int, product: int) -> tuple[float, float]:
    """Split an integer into a high part, whose sums of products with residues are exact, and the rest."""
    shift = product.bit_length() - HIGH_BITS
    high = value >> shift << shift
    return float(high), float(value - high)


def add_lower(
    blas: Blas, n: int, k: int, alpha: float, v: int, ldv: int, x: int, ldx: int, c: Matrix, row: int,
    block: int, *, count: int = ACCURATE,
) -> None:  # fmt: skip
    """Add alpha V Xᵀ, known to be symmetric, to the lower triangle of C[row:, row:], as `blas.add_lower`.

    Parameters
    ----------
    n, k : int
        Rows and columns of V and X, in float64.
    count : int
        Moduli, and so INT8 products.
    """
    import cupy
    from cupy_backends.cuda.libs import cublas

    table, bits = weights(count)
    moduli, table = cupy.asarray(np.array(MODULI[:count], np.int32)), cupy.asarray(table)
    depth, rows = -(-k // 16) * 16, -(-n // 64) * 64
    sides = []
    for pointer, ld in ((v, ldv), (x, ldx)):
        exponents, factors = cupy.empty(n, np.int32), cupy.empty(n, np.float64)
        matrix = (np.uintp(pointer), np.int64(ld), np.int32(n), np.int32(k))
        kernel(OZAKI, "row_exponents")(Shape((-(-n // 256),), 256), *matrix, np.float64(bits), exponents, factors)
        out = cupy.empty(count * rows * depth, np.int8)
        arguments = (*matrix, exponents, moduli, np.int32(count), out, np.int32(depth), np.int64(rows * depth))
        kernel(OZAKI, "residues")(Shape((rows // 64, -(-depth // 64)), 256), *arguments)
        sides.append((out, factors))
    (left, left_factors), (right, right_factors) = sides
    one, zero = np.array(1, np.int32), np.array(0, np.int32)
    products = cupy.empty(count * rows * min(STRIP, rows), np.int32)
    cublas.setStream(blas._handle, cupy.cuda.get_current_stream().ptr)
    for start in range(0, n, STRIP):
        high, width = rows - start, min(STRIP, rows - start)
        cublas.gemmStridedBatchedEx(
            *(blas._handle, cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N, high, width, depth, address(one)),
            *(address(left) + start * depth, _INT8, depth, rows * depth),
            *(address(right) + start * depth, _INT8, depth, rows * depth, address(zero)),
            *(address(products), _INT32, high, high * width, count, cublas.CUBLAS_COMPUTE_32I, -1),
        )
        arguments = (
            *(products, np.int64(high * width), np.int64(high), np.int32(n - start), np.int32(min(width, n - start))),
            *(np.int32(count), table, np.float64(alpha)),
            *(np.uintp(address(f) + 8 * start) for f in (left_factors, right_factors)),
            *(np.uintp(c.at(row + start, row + start)), np.int64(c.ld)),
        )
        grid = (-(-(n - start) // 256), min(width, n - start))
        kernel(OZAKI, "combine")(Shape(grid, 256), *arguments)


_INT8, _INT32 = 3, 10  # cudaDataType of CUDA_R_8I and CUDA_R_32I


def syr2k(a: Any, b: Any, c: Any, *, alpha: float = 1.0, count: int = ACCURATE) -> None:
    """Add alpha (A Bᵀ + B Aᵀ) to the lower triangle of C in place, as `syr2k.syr2k` does in FP64.

    Parameters
    ----------
    a, b : cupy.ndarray of float64, shape (n, k), column-major
    c : cupy.ndarray of float64, shape (n, n), column-major
    alpha : float
    count : int
        Moduli, and so INT8 products.
    """
    import cupy

    n, k = a.shape
    v, x = (cupy.concatenate([left.T, right.T]) for left, right in ((a, b), (b, a)))
    target = Matrix(address(c), c.strides[1] // c.itemsize, c.itemsize, c)
    add_lower(Blas(np.float64), n, 2 * k, alpha, address(v), n, address(x), n, target, 0, 0, count=count)
