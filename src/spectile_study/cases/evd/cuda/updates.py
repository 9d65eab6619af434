"""Products and updates: Algorithm 3 against cuBLAS, INT8 products, and the ceilings of the machine."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import cupy
import numpy as np

from spectile.core.pointers import address
from spectile.evd.cuda.blas import Blas, add_lower
from spectile.evd.cuda.chasing.chase import chase_band, extract_band
from spectile.evd.cuda.matrix import as_array, empty_matrix
from spectile.evd.cuda.reduction.band import band_reduction
from spectile_study.bench.case import Context, Method, Problem, Skipped
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.evd import ozaki, rivals
from spectile_study.cases.evd.common import VALUES, flops
from spectile_study.cases.evd.cuda.checks import check_values_of
from spectile_study.cases.evd.cuda.inputs import dense_of, first_columns, matrix_of, reference_values, wait
from spectile_study.cases.evd.syr2k import syr2k

#: Moduli of the INT8 products, and the error that so many may have: as accurate as FP64, and with fewer products.
INT8_COUNTS = {ozaki.ACCURATE: 1e-12, 12: 1e-9}


def update(row: Mapping[str, Any], context: Context) -> Problem:
    """The rank-2k update of Algorithm 3 against cuBLAS's (Table 1, Figure 8)."""
    n, k = row["n"], row["k"] or row["n"]
    a, b = (dense_of(n, k, context.seed + side) for side in range(2))
    c = cupy.zeros((n, n), order="F")
    rows = np.unique(np.random.default_rng(context.seed).integers(0, n, 16))
    mask = cupy.asarray(np.arange(n) <= rows[:, None])
    expected = cupy.where(mask, a[rows] @ b.T + b[rows] @ a.T, 0)
    norm = float(cupy.linalg.norm(expected))

    def check(result: Any) -> dict[str, float]:
        return {"error_fro_rel": float(cupy.linalg.norm(cupy.where(mask, c[rows], 0) - expected)) / norm}

    def clear() -> None:
        c.fill(0)

    work, limits = 2.0 * n * n * k, {"error_fro_rel": 1e-12}
    methods: list[Method | Skipped] = [
        Method("spectile", lambda: syr2k(a, b, c), check, limits, flops=work, clock="events", prepare=clear),
        Method(
            "cublas", lambda: rivals.syr2k(a, b, c, alpha=1.0), check, limits, flops=work, clock="events", prepare=clear
        ),
    ]
    return Problem(methods, inputs={"a_first_rows": digest_array(cupy.asnumpy(a[:8]))})


def int8(row: Mapping[str, Any], context: Context) -> Problem:
    """The rank-2k update, or the band reduction with it, in FP64 and from INT8 products (Ozaki's second scheme)."""
    return _int8_reduction(row, context) if row["block"] else _int8_update(row, context)


def _int8_update(row: Mapping[str, Any], context: Context) -> Problem:
    n, k = row["n"], row["k"]
    a, b = (dense_of(n, k, context.seed + side) for side in range(2))
    c = cupy.zeros((n, n), order="F")
    # FP64's own error is to be seen, too: some entries of the last rows in extended precision.
    rows = slice(n - 4, n)
    at = np.unique(np.random.default_rng(context.seed).integers(0, n - 4, 256))
    wide = [cupy.asnumpy(x).astype(np.longdouble) for x in (a[rows], b[rows], a[at], b[at])]
    expected = wide[0] @ wide[3].T + wide[1] @ wide[2].T

    def check(result: Any) -> dict[str, float]:
        difference = np.linalg.norm((cupy.asnumpy(c[rows][:, at]) - expected).astype(np.float64))
        return {"error_fro_rel": float(difference / np.linalg.norm(expected.astype(np.float64)))}

    def clear() -> None:
        c.fill(0)

    work = 2.0 * n * n * k
    methods: list[Method | Skipped] = [
        Method("spectile", lambda: syr2k(a, b, c), check, {"error_fro_rel": 1e-12}, flops=work, clock="events",
               prepare=clear),
        *(
            Method(f"int8_{count}", functools.partial(ozaki.syr2k, a, b, c, count=count), check,
                   {"error_fro_rel": limit}, flops=work, clock="events", prepare=clear)
            for count, limit in INT8_COUNTS.items()
        ),
    ]  # fmt: skip
    return Problem(methods, inputs={"a_first_rows": digest_array(cupy.asnumpy(a[:8]))})


def _int8_reduction(row: Mapping[str, Any], context: Context) -> Problem:
    n, b, block = row["n"], row["bandwidth"], row["block"]
    a = matrix_of(n, context.seed)
    check_values = check_values_of(reference_values(n, context.seed))
    target = empty_matrix(n, n, np.float64)

    def restore() -> None:
        as_array(target, n, n)[...] = a

    def reduce(update: Any) -> Any:
        return wait(extract_band(band_reduction(target, n, bandwidth=b, block=block, update=update)))

    def check(band: Any) -> dict[str, float]:
        return check_values(chase_band(band.copy(), n, b, None))

    updates = {"spectile": add_lower} | {
        f"int8_{count}": functools.partial(ozaki.add_lower, count=count) for count in INT8_COUNTS
    }
    methods: list[Method | Skipped] = [
        Method(name, functools.partial(reduce, update), check, VALUES, flops=flops(n),
               prepare=restore)
        for name, update in updates.items()
    ]  # fmt: skip
    return Problem(methods, inputs=first_columns(a, context.seed))


def roofline(row: Mapping[str, Any], context: Context) -> Problem:
    """Ceilings of the machine: a copy and a large product; and A W, the skinny product of the reduction (Figure 3)."""
    n, width = row["n"], row["bandwidth"] or row["n"]
    a, w = dense_of(n, n, context.seed), dense_of(n, width, context.seed + 1)
    out, product = cupy.empty((n, n), order="F"), cupy.empty((n, width), order="F")
    rows = np.random.default_rng(context.seed).integers(0, n, 8)
    exact = a[rows] @ w
    blas = Blas(np.float64)

    def multiply() -> Any:
        blas.gemm(n, width, n, 1.0, address(a), n, address(w), n, 0.0, address(product), n)
        return product

    def copy() -> Any:
        cupy.copyto(out, a)
        return out

    def check_product(result: Any) -> dict[str, float]:
        return {"error_fro_rel": float(cupy.linalg.norm(result[rows] - exact) / cupy.linalg.norm(exact))}

    def check_copy(result: Any) -> dict[str, float]:
        return {"error_fro_rel": float(not bool((result == a).all()))}

    moved = 8.0 * (n * n + 2 * n * width)
    return Problem(
        [
            Method("cublas", multiply, check_product, {"error_fro_rel": 1e-12}, flops=2.0 * n * n * width, bytes=moved,
                   clock="events"),
            Method("copy", copy, check_copy, {"error_fro_rel": 0.0}, bytes=16.0 * n * n, clock="events"),
        ],
        inputs={"a_first_rows": digest_array(cupy.asnumpy(a[:8]))},
    )  # fmt: skip
