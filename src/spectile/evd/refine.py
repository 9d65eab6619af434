"""Eigenpairs of a matrix from the eigenvectors of one nearby, by products of matrices alone.

With orthonormal X, S = Xᴴ A X = diag(w) + C, vectors i and j are coupled by C_ij, and turned by X ← X exp(K), where K
is found order by order: with a bar over what is divided by w_j - w_i in each place, and [C, K] = C K + (C K)ᴴ::

    K = C̄ + M + D̄,    M = [C, C̄]‾ / 2,    D = [C, M] / 2 + [[C, C̄], C̄] / 3 - [[C, C̄] off the diagonal, C̄] / 4

The last is left out where it is below rounding.  The values move by the diagonals of [C, C̄] / 2 and D.  Where two
eigenvalues are so close that C̄ is not small, they and all that they are coupled to are solved as a small problem of
their own before.  A correction takes seven n³ operations of matrix products, K² included, beside products that single
precision is enough for; A and a few random vectors show whether the result is right.  What does not come near enough is
left to the full solver, at the first look if it can be seen there.

Source: T. Ogita and K. Aishima, "Iterative refinement for symmetric eigenvalue decomposition", Japan J. Indust. Appl.
Math. 35 (2018) and, for clusters, 36 (2019).
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from spectile.core import memory
from spectile.core.devices import Device
from spectile.core.launch import measured_device
from spectile.core.threads import blas_threads
from spectile.evd.arguments import placed
from spectile.evd.steps import Steps
from spectile.evd.types import Definite, Options, scalar_of, working_dtype

#: Eigenvectors coupled by more than this share of their gap are solved together; the least that makes small problems.
STRONG = (2.0**-14, 2.0**-9, 2.0**-6)
#: The largest share of n² that the cubes of the orders of all small problems may be: the host takes 5 ns for each.
CUBES_SHARE = 1 / 8
#: The most pairs for each vector that are gathered to problems of their own: more cost more than one correction.
PAIRS = 1 / 4
#: Matrices of n² elements that are held at once.
HELD = 17
#: What is left out is below this share of what rounding makes.
NEGLIGIBLE = 1 / 16


def eigh(a: Any, x0: Any, options: Options, definite: Definite | None, backend: str) -> tuple[Any, Any] | None:
    """Return eigenvalues and eigenvectors of a matrix or a batch, or None where `x0` is too far from those of any.

    Parameters
    ----------
    a : array, shape (..., n, n)
        Of any library, unchanged.
    x0 : array
        Of the shape of `a`, or one that broadcasts to it; unchanged.
    options : Options
        The triangle; all other words were judged before.
    definite : Definite or None
        The second matrix.
    backend : {"auto", "cpu", "cuda"}

    Returns
    -------
    w, v : arrays of the kind of `a`, shapes (..., n) and (..., n, n)

    Raises
    ------
    ValueError
        If `x0` is of another shape, not finite, or complex where the matrices are real.
    MemoryError
        If the products do not fit.
    """
    operands = {"a": a, "x0": x0} | ({} if definite is None else {"b": definite.b})
    xp, given, in_kind = placed(operands, backend)
    matrices = [
        one.astype(working_dtype(one.dtype, name), copy=False)
        for name, one in zip(operands, given, strict=True)
        if name != "x0"
    ]
    dtype = np.result_type(*(one.dtype for one in matrices))
    shape = np.broadcast_shapes(*(one.shape for one in matrices))
    lead = shape[:-2]
    x = given[1]
    _require_start(x, shape, dtype)
    matrices = [xp.broadcast_to(one.astype(dtype, copy=False), shape) for one in matrices]
    pairs = _pairs(xp, matrices, xp.broadcast_to(x.astype(dtype, copy=False), shape), options.lower)
    if pairs is None:
        if not bool(xp.isfinite(x).all()):  # where they are refined, they are
            raise ValueError(NO_START)
        return None
    if not lead:
        return in_kind(pairs[0][0]), in_kind(pairs[0][1])
    w, v = (xp.stack(part).reshape(*lead, *part[0].shape) for part in zip(*pairs, strict=True))
    return in_kind(w), in_kind(v)


def _pairs(xp: Any, matrices: list[Any], x: Any, lower: bool) -> list[tuple[Any, Any]] | None:
    """Return the eigenpairs of each matrix of a batch, or None where it is not worth it, or vectors are too far."""
    n, dtype = x.shape[-1], x.dtype
    most = worth_on_cpu(blas_threads()) if xp is np else worth_on_gpu(n, dtype, measured_device())
    if most < 1 or not x.size:
        return None
    what = f"the refinement of {n:,} eigenvectors"
    (memory.require_host_free if xp is np else memory.require_free)(HELD * n * n * dtype.itemsize, what)
    steps = Steps if xp is np else importlib.import_module(f"{__package__}.cuda.refine").Steps
    pairs = []
    for i in np.ndindex(*x.shape[:-2]):
        try:
            pair = refined(steps(*(one[i] for one in matrices), lower=lower), x[i], most)
        except np.linalg.LinAlgError:
            return None
        if pair is None:
            return None
        pairs.append(pair)
    return pairs


def worth_on_cpu(threads: int) -> int:
    """Return how many corrections take no longer than LAPACK's solution, 0 where none is worth it.

    In times of a product of two matrices, LAPACK takes 4.5 on one core, of which a third is bound by memory, that few
    cores exhaust; a correction is six products, and with what lies between them 1.4 times as long.
    """
    lapack = 3 + 1.5 * threads / min(threads, 4)
    return int(lapack / 1.4 / 6)


#: Of a full solution on any GPU: seconds of latencies for a column, and operations of products for n³.
COLUMN_SECONDS, SOLUTION_FLOPS = 6e-6, 10
#: Of a correction: products, those in low precision included, matrices that are read or written, and what the host
#: does, in launches.
PRODUCTS, PASSES, LAUNCHES = 4, 30, 500
#: More corrections than this never come near enough.
MOST = 4


def worth_on_gpu(n: int, dtype: np.dtype[Any], device: Device) -> int:
    """Return how many corrections take less than 0.8 of the full solution, 0 where none is worth it."""
    scalar = scalar_of(dtype)
    products, rate = n**3 * scalar.parts**2, device.product_rate(scalar.real)
    full = COLUMN_SECONDS * n + SOLUTION_FLOPS * products / (
        device.product_rate("float64") if device.fast_fp64 else rate
    )
    correction = 2 * PRODUCTS * products / rate + PASSES * scalar.itemsize * n**2 / device.bytes_per_second
    return min(MOST, int(0.8 * full / (correction + LAUNCHES * device.launch_seconds)))


#: What is said of vectors that are no start.
NO_START = "x0 holds what is no finite number: give the eigenvectors of a matrix nearby"


def _require_start(x0: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise ValueError where vectors that a caller gave are not of the shape and dtype of the matrices."""
    fits = all(own in (1, length) for own, length in zip(x0.shape[-3::-1], shape[-3::-1], strict=False))
    if not 2 <= x0.ndim <= len(shape) or x0.shape[-2:] != shape[-2:] or not fits:
        raise ValueError(f"x0 has shape {x0.shape} and the matrices have {shape}: give all eigenvectors, in columns")
    if x0.dtype.kind == "c" and dtype.kind != "c":
        raise ValueError(f"x0 is {x0.dtype} and the matrices are real: give real vectors")
    if x0.dtype.kind not in "biufc":
        raise ValueError(NO_START)


@np.errstate(all="ignore")  # what is not finite, or not definite, is left to the full solver
def refined(steps: Steps, x: Any, most: int = MOST) -> tuple[Any, Any] | None:
    """Return eigenvalues, ascending, and eigenvectors, or None where `x` is too far from them.

    `x`, shape (n, n), are approximate eigenvectors in columns, of any lengths, in the order of any eigenvalues; after
    `most` corrections the full solver is the faster way.  With vᴴ B v = 1 to rounding, each eigenvector is close to the
    column of `x` that it came from.
    """
    n, epsilon, before = steps.n, float(np.finfo(steps.dtype).eps), math.inf
    steps.begin(x)
    for done in range(most + 1):
        if not _orthonormal(steps):
            return None
        if done and steps.residual() <= 1:
            return steps.result()
        seen = steps.look(STRONG) if done < most else None
        if seen is None or not (math.isfinite(seen.residual) and seen.size > 0):
            return None
        error = seen.residual / (math.sqrt(n) * seen.size) / epsilon  # 1 and below: as LAPACK's
        if error <= 1 or before / 2 < error <= 4:
            return steps.result()
        found = None if error > before / 2 else _clusters(steps, seen.strong)
        if found is None:
            return None
        clusters, share = found
        turn = seen.turned[STRONG.index(share)] / math.sqrt(n)  # of a vector
        if done == most - 1 and error * turn**3 > NEGLIGIBLE:
            return None
        if clusters:
            steps.turn(clusters)
        # Of the second order tensor cores read the first bits alone where those that are left are below rounding.
        exactly = error * turn * 2.0**-11 > NEGLIGIBLE
        steps.advance(share, exactly=exactly, third=error * turn**2 > NEGLIGIBLE)
        before = error
    return None


def _orthonormal(steps: Steps) -> bool:
    """Return whether the vectors are orthonormal to rounding, or could be made so."""
    for _ in range(3):
        defect = steps.defect()
        if defect <= 1 or not math.isfinite(defect):
            return defect <= 1
        steps.orthonormalize()
    return False


def _clusters(steps: Steps, strong: list[int]) -> tuple[list[np.ndarray], float] | None:
    """Return the vectors of each set that strong pairs connect, and the share above which they are strong.

    Sets of one order are the rows of an array.  None where the sets are too large.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = steps.n
    for share, number in zip(STRONG, strong, strict=True):
        if not number:
            return [], share
        if number > PAIRS * n and number > 2:
            continue
        pairs = steps.pairs(share, number)
        _, label = connected_components(coo_array((np.ones(number), pairs), shape=(n, n)), directed=False)
        order = np.bincount(label)[label]
        if (order[order > 1] ** 2).sum() <= max(8, CUBES_SHARE * n**2):
            sets = [np.flatnonzero(order == each) for each in np.unique(order[order > 1])]
            sets = [each[np.argsort(label[each], kind="stable")] for each in sets]
            return [each.reshape(-1, order[each[0]]) for each in sets], share
    return None
