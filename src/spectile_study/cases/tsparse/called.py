"""What a user gets: public functions on CuPy matrices by wall clock, beside CuPy's product and cuSPARSE's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spectile.tsparse import spgemm, symbolic
from spectile_study.bench.case import Method, Skipped
from spectile_study.cases.tsparse.checks import Check

#: A sample of throughput takes about so long, and between so many calls.
THROUGHPUT_S, FEWEST, MOST = 0.005, 3, 20


class Kept:
    """What products of a known pattern keep from call to call.

    Parameters
    ----------
    one_at_a_time : bool
        Keep one of them, and none while other methods run: all of a large product leave too little memory.
    """

    def __init__(self, one_at_a_time: bool = False) -> None:
        self.one_at_a_time = one_at_a_time
        self._made: dict[Callable[[], Any], Any] = {}
        self._users: set[str] = set()

    def __call__(self, make: Callable[[], Any]) -> Any:
        """Return what `make` made, now or earlier."""
        if make not in self._made:
            if self.one_at_a_time:
                self.clear()
            self._made[make] = make()
        return self._made[make]

    def clear(self) -> None:
        """Keep nothing any more."""
        self._made.clear()

    def ready(self, methods: Sequence[Method], make: Callable[[], Any]) -> list[Method]:
        """Return methods that find what `make` makes before each call; it is not in their times."""
        for method in methods if self.one_at_a_time else ():
            method.prepare = lambda: self(make)
            self._users.add(method.name)
        return list(methods)

    def absent(self, methods: Sequence[Method | Skipped]) -> None:
        """Let all other methods find nothing kept, before they prepare themselves."""
        for method in methods if self.one_at_a_time else ():
            if isinstance(method, Method) and method.name not in self._users:
                method.prepare = self._cleared_before(method.prepare)

    def _cleared_before(self, prepare: Callable[[], None] | None) -> Callable[[], None]:
        def cleared() -> None:
            self.clear()
            if prepare is not None:
                prepare()

        return cleared


def product(left: Any, right: Any, precision: Any, counts: Mapping[str, Any], check: Check) -> list[Method]:
    """Return ``spectile_<precision>_as_called``, and ``..._throughput`` where the vendor has the precision."""
    methods = _both(
        f"spectile_{precision}", precision, lambda: spgemm(left, right, precision=precision), counts, check, _itself
    )
    return methods if precision in ("float64", "float32") else methods[:1]


def beside(left: Any, right: Any, precision: Any, counts: Mapping[str, Any], check: Check, kept: Kept) -> list[Method]:
    """Return CuPy's product as called, and products with a known pattern: ours and cuSPARSE's.

    ``numeric_<precision>`` and ``cusparse_reuse_<precision>`` are the device's own time, their endings the calls.
    """
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    from spectile_study.cases.tsparse.reuse import ReusedProduct

    vendor = _both(f"cupyx_{precision}", precision, lambda: left @ right, counts, check, _itself)

    def pattern() -> tuple[Any, Any]:
        found = symbolic(left, right)
        # The first values list the products; where one pattern is kept at a time, that is not the call's time either.
        found.numeric(left.data, right.data)
        return found, cupy.full(found.nnz, cupy.nan, left.dtype)

    def numeric() -> Any:
        found, out = kept(pattern)
        return found.numeric(left.data, right.data, out=out)

    def with_pattern(values: Any) -> Any:
        found, _ = kept(pattern)
        return csr_matrix((values, found.indices, found.indptr), shape=found.shape)

    def reused() -> ReusedProduct:
        return ReusedProduct(left, right)

    ours = _all(f"numeric_{precision}", precision, numeric, counts, check, with_pattern)
    # Sorted for the check, where cuSPARSE must find its own order again.
    theirs = _all(f"cusparse_reuse_{precision}", precision, lambda: kept(reused)(), counts, check, lambda C: C.copy())
    return [*vendor, *kept.ready(ours, pattern), *kept.ready(theirs, reused)]


def _itself(C: Any) -> Any:
    return C


def _all(name: str, precision: str, run: Any, counts: Mapping[str, Any], check: Check, matrix: Any) -> list[Method]:
    own = check.method(name, precision, run, counts, clock="events")
    own.check = lambda result: check(name, precision, matrix(result))
    return [own, *_both(name, precision, run, counts, check, matrix)]


def _both(name: str, precision: str, run: Any, counts: Mapping[str, Any], check: Check, matrix: Any) -> list[Method]:
    """Return a call with one wait at its end, and the mean of calls with one wait after the last."""
    latency = check.method(f"{name}_as_called", precision, _waited(run), counts)
    throughput = check.method(f"{name}_throughput", precision, _repeated(run), counts, clock="external")
    latency.check = lambda result: check(latency.name, precision, matrix(result))
    throughput.check = lambda result: check(throughput.name, precision, matrix(result))
    return [latency, throughput]


def _waited(run: Callable[[], Any]) -> Callable[[], Any]:
    import cupy

    def call() -> Any:
        result = run()
        cupy.cuda.get_current_stream().synchronize()
        return result

    return call


def _repeated(run: Callable[[], Any]) -> Callable[[], tuple[Any, float]]:
    import cupy

    calls = FEWEST

    def loop() -> tuple[Any, float]:
        nonlocal calls
        stream = cupy.cuda.get_current_stream()
        stream.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            result = run()
        stream.synchronize()
        seconds = (time.perf_counter() - begin) / calls
        calls = max(FEWEST, min(MOST, int(THROUGHPUT_S / seconds)))
        return result, seconds

    return loop
