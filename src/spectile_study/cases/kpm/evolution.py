"""The study of vectors of one's own: the iterator over T_m(H̃)|v⟩, and states that evolve in time.

Each width R is a group of methods, ``<method>_r<R>``; M is the row's number of moments:

=================  ==========================================================================================
``iterator``       ``chebyshev``: from the first of M items to the last one, the vectors of H's type
``chain``          the same recurrence by cuSPARSE's SpMM and one fused kernel (SciPy's product and NumPy)
``evolve``         ``evolve`` as called, bounds given: R complex states after a time of M over half the
                   spectrum's width, which takes some more than M terms
``evolve_setup``   the same for a time of a few terms: what is before and after the steps
``evolve_chain``   the same sum by SpMM and one fused kernel, which shifts and adds to the sum
``expm_multiply``  the same states by SciPy on a CPU, of small matrices
=================  ==========================================================================================

The bytes of all are those of the recurrence alone, complex states of a real H being twice as many real vectors: what
sums cost beside it shows as a lower share of ``copy``'s rate.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spectile.kpm import chebyshev, evolve, reference
from spectile.kpm.functions import series
from spectile_study.bench.case import Context, Method, Problem, Skipped
from spectile_study.cases.kpm import matrices, model, spmm
from spectile_study.cases.kpm.shared import CALL_LIMIT

#: Rows up to which SciPy's states are computed, and those up to which a CPU is given the case.
SCIPY_ROWS, CPU_ROWS = 50_000, 200_000
#: A time, over half the spectrum's width, that takes a few terms, and the largest error of all terms left out.
SHORT, TOLERANCE = 1e-6, 1e-12
NAMES = ("iterator", "chain", "evolve", "evolve_setup", "evolve_chain", "expm_multiply")


def build(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one matrix."""
    if context.device == "cpu" and int(row["rows"]) > CPU_ROWS:
        return Problem([Skipped(name, "a matrix of so many rows is for a GPU") for name in NAMES])
    return _Evolution(row, context).problem()


class _Evolution(matrices._Matrix):
    """The methods of one matrix, on the device of the run."""

    def __init__(self, row: Mapping[str, Any], context: Context) -> None:
        super().__init__(row, context)
        self.complex = np.result_type(self.dtype, np.complex64)
        self.time = self.moments * self.scaling[0]
        self.last = functools.cache(self._last)
        self.state = functools.cache(self._state)
        self.weights = functools.cache(self._weights)

    def of_width(self, width: int) -> list[Method | Skipped]:
        """Return the methods of so many vectors."""
        return [
            self.iterator(width),
            self.chain(width),
            self.evolve("evolve", width, self.time),
            self.evolve("evolve_setup", width, SHORT * self.scaling[0]),
            self.evolve_chain(width),
            self.expm(width),
        ]

    def iterator(self, width: int) -> Method:
        """Return the iterator, whose engine and first vectors are there."""
        live: dict[str, Any] = {}

        def prepare() -> None:
            live.clear()
            live["terms"] = chebyshev(
                self.matrix, self._vectors(width, self.dtype), self.moments, bounds=self.bounds,
                backend=self.context.device, progress=False,
            )  # fmt: skip

        def run() -> Any:
            (last,) = collections.deque(live["terms"], maxlen=1)
            return last

        return self.method("iterator", width, width, self.moments - 1, run, prepare, self.last)

    def chain(self, width: int) -> Method:
        """Return the recurrence by the vendor's product."""
        blocks: dict[str, Any] = {}

        def run() -> Any:
            update = spmm.shift_and_dots if self.context.device == "cuda" else _shift_and_dots
            steps = self.moments - 1
            spmm.etas_fused(blocks["product"], update, blocks["v"], blocks["w"], steps, *self.scaling)
            return blocks["w" if steps % 2 else "v"]

        prepare = functools.partial(self._begin, blocks, self._vectors, width, self.dtype)
        return self.method("chain", width, width, self.moments - 1, run, prepare, self.last)

    def evolve(self, name: str, width: int, time: float) -> Method:
        """Return a call of `evolve`."""
        psi = functools.cache(lambda: self._states(width, self.complex))

        def run() -> Any:
            return evolve(
                self.matrix, psi(), time, tolerance=TOLERANCE, bounds=self.bounds, backend=self.context.device,
                progress=False,
            )  # fmt: skip

        wanted = functools.partial(self.state, time=time)
        return self.method(name, width, self.columns(width), len(self.weights(time)) - 1, run, None, wanted)

    def evolve_chain(self, width: int) -> Method:
        """Return the states by the vendor's product and one kernel of all that is left."""
        blocks: dict[str, Any] = {}
        weights, (a, b) = self.weights(self.time), self.scaling

        def run() -> Any:
            v, w, product = (blocks[name] for name in ("v", "w", "product"))
            total = weights[0] * v.view(self.complex)
            for m, weight in enumerate(weights[1:]):
                if m:
                    v, w = w, v
                factor = 2 * a if m else a
                product(v, w, factor, -1.0)
                self.add(v.view(self.complex), w.view(self.complex), -factor * b, weight, total)
            return total

        prepare = functools.partial(self._begin, blocks, self._states, width, self.complex)
        wanted = functools.partial(self.state, time=self.time)
        return self.method("evolve_chain", width, self.columns(width), len(weights) - 1, run, prepare, wanted)

    def expm(self, width: int) -> Method | Skipped:
        """Return SciPy's states."""
        if self.matrix.shape[0] > SCIPY_ROWS:
            return Skipped(f"expm_multiply_r{width}", f"SciPy is given at most {SCIPY_ROWS:,} rows")
        from scipy.sparse.linalg import expm_multiply

        @functools.cache
        def operands() -> tuple[Any, Any]:
            matrix, psi = self.matrix, self._states(width, self.complex)
            if self.xp is not np:
                matrix, psi = matrix.get(), psi.get()
            return -1j * self.time * matrix, psi

        wanted = functools.partial(self.state, time=self.time)
        method = self.method(
            "expm_multiply", width, self.columns(width), len(self.weights(self.time)) - 1,
            lambda: self.xp.asarray(expm_multiply(*operands())), None, wanted,
        )  # fmt: skip
        method.once = True
        return method

    def method(
        self, name: str, width: int, columns: int, steps: int, run: Any, prepare: Any, wanted: Callable[[int], Any]
    ) -> Method:
        """Return a method of so many steps of so many columns, whose first and last vector are looked at."""
        size = (self.matrix.shape[0], self.matrix.nnz, columns, self.dtype)

        def check(found: Any) -> dict[str, float]:
            here = wanted(width)
            return {"error_fro_rel": float(self.xp.linalg.norm(found[:, _ends(width)] - here) / np.sqrt(here.size))}

        return Method(
            f"{name}_r{width}", run, check, {"error_fro_rel": CALL_LIMIT[str(self.dtype)]},
            flops=steps * model.step_flops(*size), bytes=steps * model.step_bytes("aug_spmmv", *size), prepare=prepare,
            values=lambda _: {"moments": steps + 1},
        )  # fmt: skip

    def columns(self, states: int) -> int:
        """Return how many vectors of H's type so many states are."""
        return states if self.dtype.kind == "c" else 2 * states

    def _weights(self, time: float) -> Any:
        """Return the series of exp(−iHt) from its values, as the library's is from Bessel functions."""
        a, b = self.scaling
        return series(lambda energy: np.exp(-1j * time * energy), 1 / a, b, TOLERANCE)

    def _begin(self, blocks: dict[str, Any], vectors: Any, width: int, dtype: Any) -> None:
        """Write start vectors, of H's type where they are complex and it is not, and zeros; the product once."""
        start = vectors(width, dtype).view(self.dtype)
        if not blocks:
            blocks["v"], blocks["w"] = self.xp.empty_like(start), self.xp.empty_like(start)
            blocks["product"] = self._product(blocks["v"], blocks["w"])
        blocks["v"][...] = start
        blocks["w"].fill(0)

    def _product(self, v: Any, w: Any) -> spmm.Product:
        if self.context.device == "cuda":
            return spmm.Vendor(self.matrix, v, w)

        def product(v: Any, w: Any, alpha: float, beta: float) -> None:
            w *= beta
            w += alpha * (self.matrix @ v)

        return product

    @functools.cached_property
    def add(self) -> Callable[..., None]:
        """``add(v, w, factor, weight, total)``: W += factor V and total += weight W, in one pass on a device."""
        if self.context.device == "cuda":
            fused: Any = self.xp.ElementwiseKernel(
                "T v, T w, T factor, T weight, T total", "T fresh, T sum",
                "const T x = w + factor * v; fresh = x; sum = total + weight * x", "study_shift_and_add",
            )  # fmt: skip
            return lambda v, w, factor, weight, total: fused(v, w, factor, complex(weight), total, w, total)

        def add(v: Any, w: Any, factor: float, weight: complex, total: Any) -> None:
            w += factor * v
            total += weight * w

        return add

    def _states(self, width: int, dtype: Any) -> Any:
        """Return complex start vectors, whatever the type of H."""
        if self.xp is np:
            return reference.random_phases(self.seed, self.matrix.shape[0], width, dtype=dtype)
        from spectile_study.cases.kpm.rivals import fill_rows

        block = self.xp.empty((self.matrix.shape[0], width), dtype)
        fill_rows(block, self.seed)
        return block

    def _last(self, width: int) -> Any:
        """Return T_M−1 of the first and the last vector, in float64."""
        (last,) = collections.deque(self._terms(self._vectors(width, self.dtype), self.moments), maxlen=1)
        return last

    def _state(self, width: int, time: float) -> Any:
        """Return the first and the last state after a time, in float64."""
        weights = self.weights(time)
        terms = self._terms(self._states(width, self.complex), len(weights))
        return sum(weight * term for weight, term in zip(weights, terms, strict=True))

    def _terms(self, start: Any, count: int) -> Any:
        """Yield T_m of the first and the last of these vectors, by the array module's products in float64."""
        v = start[:, _ends(start.shape[1])].astype(np.result_type(start.dtype, np.float64))
        (a, b), matrix, before = self.scaling, self.matrix.astype(v.dtype), None
        for m in range(count):
            yield v
            image = (2 * a if m else a) * (matrix @ v - b * v)
            before, v = v, image if before is None else image - before


def _ends(width: int) -> list[int]:
    return sorted({0, width - 1})


def _shift_and_dots(v: Any, w: Any, factor: float, sums: Any) -> None:
    w += factor * v
    sums += [(abs(v) ** 2).sum(axis=0), (w.conj() * v).sum(axis=0).real]
