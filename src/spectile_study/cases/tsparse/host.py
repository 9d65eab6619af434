"""The methods measured on a CPU: ours, on all threads and on one, and SciPy's product."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from spectile.tsparse import spgemm
from spectile.tsparse.types import BY_ENTRY, PRECISIONS, lookup
from spectile_study.bench.case import Method, Skipped, Value
from spectile_study.cases.tsparse import installed
from spectile_study.cases.tsparse.checks import Check, half_reason


def methods(A: Any, counts: Mapping[str, Any], check: Check) -> list[Method | Skipped]:
    """Return the methods for the square of `A`."""
    methods: list[Method | Skipped] = []
    single = A.astype("float32")
    check.library = _scipy(single, single)
    for precision in PRECISIONS:
        if precision == "float16" and (reason := half_reason(A, BY_ENTRY)):
            methods.append(Skipped("spectile_float16", reason))
            continue
        narrow = A.astype(lookup(precision).dtype)
        phases = (lambda C: _phases(A)) if precision == "float64" else (lambda C: {})
        methods.append(
            check.method(f"spectile_{precision}", precision, product(narrow, precision, "cpu"), counts, values=phases)
        )
    for precision in ("float64", "float32"):
        run = _on_one_thread(product(A.astype(precision), precision, "cpu"))
        methods.append(check.method(f"spectile_{precision}_one_thread", precision, run, counts))
        narrow = A.astype(precision)
        methods.append(check.method(f"scipy_{precision}", precision, _scipy(narrow, narrow), counts))
    indexed = {
        dtype: sp.csr_array((A.data.astype(dtype), A.indices.astype(np.int32), A.indptr.astype(np.int32)), A.shape)
        for dtype in ("float64", "float32")
    }
    methods += installed.methods(indexed, counts, check, on_device=False)
    reason = "needs a CUDA device"
    names = ("cusparse_float64", "cusparse_float32")
    return methods + [Skipped(name, f"{name} {reason}") for name in names]


def methods_of_pair(A: Any, B: Any, counts: Mapping[str, Any], check: Check) -> list[Method | Skipped]:
    """Return the methods for the product of two matrices of the second set."""
    methods: list[Method | Skipped] = []
    for precision in ("float64", "float32"):
        left = A.astype(precision)
        right = left if B is A else B.astype(precision)

        def ours(left: Any = left, right: Any = right, precision: Any = precision) -> Any:
            return spgemm(left, right, precision=precision, backend="cpu")

        methods.append(check.method(f"spectile_{precision}", precision, ours, counts))
        methods.append(check.method(f"scipy_{precision}", precision, _scipy(left, right), counts))
    return methods


def product(A: Any, precision: Any, backend: Any) -> Callable[[], Any]:
    """Return the call of the public function."""
    return lambda: spgemm(A, A, precision=precision, backend=backend)


def _on_one_thread(run: Callable[[], Any]) -> Callable[[], Any]:
    import numba

    def call() -> Any:
        before = numba.get_num_threads()
        numba.set_num_threads(1)
        try:
            return run()
        finally:
            numba.set_num_threads(before)

    return call


def _scipy(left: Any, right: Any) -> Callable[[], Any]:
    def run() -> Any:
        C = left @ right
        C.sort_indices()
        return C

    return run


def _phases(A: Any) -> dict[str, Value]:
    """Time the phases of one product in float64: check of the factor, count of products, product."""
    import numba

    from spectile.tsparse.cpu.examine import examine
    from spectile.tsparse.cpu.one_pass import multiply
    from spectile.tsparse.cpu.work import chunks, survey

    threads = numba.get_num_threads()
    marks = [time.perf_counter()]
    indptr = A.indptr.astype(np.int64)
    examine(indptr, A.indices, A.data, A.shape[1])
    marks.append(time.perf_counter())
    work = survey(indptr, A.indices, indptr)
    marks.append(time.perf_counter())
    factor = (indptr, A.indices, A.data)
    if multiply(factor, factor, A.shape[1], work, chunks(work, threads)) is None:
        return {}
    marks.append(time.perf_counter())
    return {"phases": ["check", "count of products", "product"], "phases_s": np.diff(marks).tolist()}
