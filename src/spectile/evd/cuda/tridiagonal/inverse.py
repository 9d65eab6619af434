"""A few eigenvectors of a tridiagonal matrix by inverse iteration, orthonormal also where eigenvalues are close.

Every vector starts at random and takes two steps on its own.  Vectors of one cluster are then independent, and those of
different eigenvalues orthogonal up to roundoff over their gap, so a Cholesky factorization of their Gram matrix, done
again until it is near the identity, makes them orthonormal and leaves the residuals small: each vector changes only by
those before it, by a product of coefficient and gap of the size of roundoff.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.core.launch import Shape, kernel
from spectile.core.pointers import address
from spectile.evd.cuda import choose
from spectile.evd.cuda.blas import Blas, factorize
from spectile.evd.cuda.units import INVERSE
from spectile.evd.types import Subset

STEPS = 2
#: Orthonormalizations at most; a Gram matrix this near to the identity leaves nothing for another one.
PASSES, NEAR_IDENTITY = 4, 1e-6
#: Largest residual of a vector, in roundoff times the order times the norm, with which the vectors are taken.
RESIDUAL = 4.0


def pays(n: int, columns: int) -> bool:
    """Return whether so few eigenvectors are better made one by one than as part of all."""
    return n > choose.WHOLE_ORDER and 0 < columns <= n // 8


def may_pay(n: int, subset: Subset | None) -> bool:
    """Return whether the eigenvectors of a part are, or of an interval may be, better made one by one."""
    return subset is not None and n > choose.WHOLE_ORDER and (not subset.by_index or pays(n, subset.count()))


def iteration_shape(columns: int) -> Shape:
    """Launch of `inverse_iteration`: a thread a vector."""
    return Shape((-(-columns // 32),), 32)


def eigenvectors(d: Any, e: Any, w: Any) -> Any | None:
    """Return eigenvectors of the tridiagonal matrix in columns, or None where they could not be made orthonormal.

    d and e have the shape (n,), and w, (count,), are eigenvalues, ascending, as accurate as `sturm.eigenvalues` makes
    them, all float64; the result, (n, count), is row-major.
    """
    import cupy

    n, count = len(d), len(w)
    size = abs(d)  # sums over rows, the largest of which bounds the spectrum
    size[1:] += abs(e[: n - 1])
    size[:-1] += abs(e[: n - 1])
    bound = float(size.max()) or 1.0
    if not math.isfinite(bound):
        raise np.linalg.LinAlgError("the tridiagonal matrix holds NaN or infinity: no eigenvectors")
    d, e, w = d / bound, e / bound, w / bound
    x, factors = cupy.empty((n, count), np.float64), cupy.empty(4 * n * count, np.float64)
    swapped = cupy.empty(n * count, np.uint8)
    kernel(INVERSE, "inverse_iteration")(
        iteration_shape(count), d, e, np.int32(n), w, np.int32(count), np.int32(STEPS), factors, swapped, x
    )
    del factors, swapped
    if not _orthonormalize(x):
        return None
    residual = d[:, None] * x - x * w
    residual[:-1] += e[: n - 1, None] * x[1:]
    residual[1:] += e[: n - 1, None] * x[:-1]
    worst = float(cupy.sqrt((residual * residual).sum(axis=0)).max())
    return x if worst <= RESIDUAL * n * np.finfo(np.float64).eps else None


def _orthonormalize(x: Any) -> bool:
    """Make the columns of a row-major X orthonormal, each by those before it; return whether that was possible."""
    import cupy

    n, count = x.shape
    blas, info = Blas(np.float64), cupy.zeros(1, np.int32)
    diagonal = np.arange(count)
    for _ in range(PASSES):
        # X in rows is Xᵀ in columns.
        gram = cupy.empty((count, count), np.float64, order="F")
        blas.gemm(count, count, n, 1.0, address(x), count, address(x), count, 0.0, address(gram), count, ops="NC")
        difference = gram.copy()
        difference[diagonal, diagonal] -= 1
        deviation = cupy.abs(difference).max()
        factorize(gram.dtype, count, address(gram), count, address(info))
        blas.solve_lower("L", "N", count, n, address(gram), count, address(x), count)
        if int(info[0]) != 0:
            return False
        if float(deviation) <= NEAR_IDENTITY:
            return True
    return False
