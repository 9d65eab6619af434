"""Matrices of users: the recurrence on stored Hamiltonians of every type, and the public calls on them.

Each width R of the block vector is a group of methods, ``<method>_r<R>``:

=====================  ======================================================================================
``step``               STEPS steps of the recurrence in the format that the library chooses: the device's time
``product``            the same steps with CuPy's (SciPy's) product and array arithmetic
``spmm``               the same steps by cuSPARSE's SpMM and one fused kernel, on a device alone
``as_called``          ``kpm_dos`` from the matrix to the curve, M moments: latency, one call at a time
``as_called_loop``     the mean of CALLS such calls, one after the other, with one wait at the end: throughput
``as_called_ldos``     ``ldos`` of R rows
=====================  ======================================================================================

``copy`` is the rate at which the device (the CPU) copies memory, of which a step is a share.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spectile.kpm import api, bounds, moments, reference
from spectile.kpm.operators.user import OperatorRecursion, ProductOperator
from spectile.kpm.reference import seed_of
from spectile_study.bench.case import Clock, Context, Method, Problem, Skipped
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.kpm import model, spmm
from spectile_study.cases.kpm.shared import CALL_LIMIT, NO_DEVICE, STEPS
from spectile_study.inputs.hamiltonians import hamiltonian

#: Widths of the block vector, up to the row's R.
WIDTHS = (1, 8, 32)
#: Calls of the loop that measures throughput.
CALLS = 4
#: Bytes that ``copy`` reads, and writes.
_COPIED = {"cpu": 2**28, "cuda": 2**30}


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one matrix."""
    return _Matrix(row, context).problem()


class _Matrix:
    """The methods of one matrix, on the device of the run."""

    def __init__(self, row: Mapping[str, Any], context: Context) -> None:
        self.context, self.dtype = context, np.dtype(row["precision"])
        self.moments = int(row["num_moments"])
        self.widths = [width for width in WIDTHS if width <= row["num_vectors"]]
        if context.device == "cuda":
            import cupy

            self.xp: Any = cupy
        else:
            self.xp = np
        self.matrix = hamiltonian(row["matrix"], int(row["rows"]), self.dtype, self.xp)
        self.engine = moments.make_engine(self.matrix, context.device)
        self.bounds = bounds.given_or_found(self.engine, None)
        self.scaling = bounds.scaling(self.bounds)
        self.seed = seed_of(context.seed)
        # Of each width one product takes as long as several calls; most methods of a width ask for the same.
        self.reference = functools.cache(self._reference)

    def problem(self) -> Problem:
        """Return all methods."""
        methods: list[Method | Skipped] = [self.copy()]
        for width in self.widths:
            methods += self.of_width(width)
        matrix = self.matrix
        data = matrix.data.get() if hasattr(matrix.data, "get") else matrix.data
        values = {"rows": matrix.shape[0], "nnz": matrix.nnz, "nnz_per_row": matrix.nnz / matrix.shape[0]}
        return Problem(methods, {"data": digest_array(data)}, values)

    def of_width(self, width: int) -> list[Method | Skipped]:
        """Return the methods of so many vectors."""
        return [
            self.step(width),
            self.product(width),
            self.spmm(width),
            self.called(width),
            self.loop(width),
            self.local(width),
        ]

    def copy(self) -> Method:
        """Return the copy of memory that is too large for any cache."""
        source = self.xp.ones(_COPIED[self.context.device] // 8)
        target = self.xp.empty_like(source)

        def run() -> Any:
            target[...] = source
            return target

        def check(result: Any) -> dict[str, float]:
            return {"error_fro_rel": float(self.xp.abs(result - 1).max())}

        clock: Clock = "events" if self.context.device == "cuda" else "wall"
        return Method("copy", run, check, {"error_fro_rel": 0.0}, flops=0.0, bytes=2.0 * source.nbytes, clock=clock)

    def step(self, width: int) -> Method:
        """Return the recurrence as the library computes it."""
        start = functools.partial(self.engine.random, self.seed, 0, width, *self.scaling)
        return self._steps("step", width, start)

    def product(self, width: int) -> Method:
        """Return the recurrence by the product of SciPy or CuPy."""

        def start() -> OperatorRecursion:
            return OperatorRecursion(ProductOperator(self.matrix), *self.scaling, self._vectors(width, self.dtype))

        return self._steps("product", width, start)

    def spmm(self, width: int) -> Method | Skipped:
        """Return the recurrence by the vendor's product of the block, and one kernel of what it leaves."""
        if self.context.device != "cuda":
            return Skipped(f"spmm_r{width}", NO_DEVICE)
        block: dict[str, Any] = {}

        def prepare() -> None:
            if not block:
                block["v"] = self._vectors(width, self.dtype)
                block["w"] = self.xp.empty_like(block["v"])
                block["product"] = spmm.Vendor(self.matrix, block["v"], block["w"])
            block["v"][...] = self._vectors(width, self.dtype)
            block["w"].fill(0)

        def run() -> Any:
            v, w, product = (block[name] for name in ("v", "w", "product"))
            return spmm.etas_fused(product, spmm.shift_and_dots, v, w, STEPS, *self.scaling)

        def check(etas: Any) -> dict[str, float]:
            wanted = self.reference(width, self.scaling)[: 2 * STEPS]
            return {"error_fro_rel": float(np.linalg.norm(etas.get() - wanted) / np.linalg.norm(wanted))}

        return self._method("spmm", width, STEPS, run, check, "events", prepare)

    def _steps(self, name: str, width: int, start: Callable[[], Any]) -> Method:
        live: dict[str, Any] = {}

        def prepare() -> None:
            live.clear()
            live["recursion"] = start()
            live["recursion"].advance(1)

        on_device = self.context.device == "cuda" and name == "step"

        def run() -> Any:
            # Enqueued alone: what the host does between the steps is in the clock, its wait for the sums is not.
            if not on_device:
                return live["recursion"].advance(STEPS)
            return live["recursion"].enqueue(STEPS)

        def check(result: Any) -> dict[str, float]:
            etas = live["recursion"].collect() if on_device else result
            wanted = self.reference(width, self.scaling)[2:]
            return {"error_fro_rel": float(np.linalg.norm(etas - wanted) / np.linalg.norm(wanted))}

        return self._method(name, width, STEPS, run, check, "events" if on_device else "wall", prepare)

    def called(self, width: int) -> Method:
        """Return one call of ``kpm_dos``."""
        return self._method("as_called", width, self.moments / 2, lambda: self.call(width), self.check_density(width))

    def loop(self, width: int) -> Method:
        """Return the mean of several calls."""

        def run() -> Any:
            self.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                density = self.call(width)
            self.synchronize()
            return density, (time.perf_counter() - start) / CALLS

        return self._method("as_called_loop", width, self.moments / 2, run, self.check_density(width), "external")

    def local(self, width: int) -> Method:
        """Return one call of ``ldos`` of adjacent rows in the middle."""
        first = self.matrix.shape[0] // 2
        rows = np.arange(first, first + width)

        def run() -> Any:
            return api.ldos(self.matrix, rows, self.moments, backend=self.context.device)

        def check(curves: Any) -> dict[str, float]:
            # Exact: one state a row, whose mean energy is the diagonal's entry; the kernel draws it to the middle.
            low, high = curves.bounds
            middle, damping = (low + high) / 2, reference.jackson_kernel(self.moments)[1]
            mean = middle + (curves.integrate(lambda energy: energy) - middle) / damping
            diagonal = self.matrix.diagonal()[first : first + width].real
            diagonal = diagonal.get() if hasattr(diagonal, "get") else diagonal
            return {
                "error_states_rel": float(np.abs(curves.integrate() - 1).max()),
                "error_mean_rel": float(np.abs(mean - diagonal).max() / (high - low)),
            }

        method = self._method("as_called_ldos", width, self.moments / 2, run, check)
        limit = CALL_LIMIT[str(self.dtype)]
        method.limits = {"error_states_rel": limit, "error_mean_rel": 10 * limit}
        return method

    def call(self, width: int) -> Any:
        """Return a density of states as a user has it computed."""
        return api.kpm_dos(self.matrix, self.moments, width, rng=self.context.seed, backend=self.context.device)

    def check_density(self, width: int) -> Callable[[Any], dict[str, float]]:
        """Return the check of a density's first moments."""

        def check(density: Any) -> dict[str, float]:
            etas = self.reference(width, bounds.scaling(density.bounds))[: 2 * STEPS]
            wanted = reference.moments_from_etas(etas).mean(axis=1)
            return {"error_fro_rel": float(np.abs(density.moments[: 2 * STEPS] - wanted).max() / wanted[0])}

        return check

    def _reference(self, width: int, scaling: tuple[float, float]) -> Any:
        """Return the scalar products of STEPS + 1 steps in float64, by the product of SciPy or CuPy."""
        wide = np.result_type(self.dtype, np.float64)
        recursion = OperatorRecursion(ProductOperator(self.matrix.astype(wide)), *scaling, self._vectors(width, wide))
        return recursion.advance(STEPS + 1)

    def _vectors(self, width: int, dtype: np.dtype[Any]) -> Any:
        """Return the start vectors that a density with this seed takes."""
        rows, real = self.matrix.shape[0], self.dtype.kind != "c"
        if self.xp is np:
            return reference.random_phases(self.seed, rows, width, real=real, dtype=dtype)
        from spectile_study.cases.kpm.rivals import fill_rows

        block = self.xp.empty((rows, width), dtype)
        fill_rows(block, self.seed)
        return block

    def _method(
        self, name: str, width: int, steps: float, run: Any, check: Any, clock: Clock = "wall", prepare: Any = None
    ) -> Method:
        size = (self.matrix.shape[0], self.matrix.nnz, width, self.dtype)
        return Method(
            f"{name}_r{width}", run, check, {"error_fro_rel": CALL_LIMIT[str(self.dtype)]},
            flops=steps * model.step_flops(*size), bytes=steps * model.step_bytes("aug_spmmv", *size), clock=clock,
            prepare=prepare,
        )  # fmt: skip

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.context.device == "cuda":
            self.xp.cuda.Device().synchronize()
