"""Random sequences of public calls over all four systems, each result held against float64: one rule-based machine.

Faults of the kind "the third call fails because of the first two" are found by no test of a single call.  The machine
runs on NumPy and SciPy (``tests/cpu/core/test_sequences.py``) and on CuPy (``tests/gpu/core/test_sequences.py``).
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import spectile

EPS = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53, "complex64": 2.0**-24, "complex128": 2.0**-53}
SIZES = st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 127, 128, 129, 131, 200, 257]))
SEEDS = st.integers(0, 2**16)
SCALARS = ["float32", "float64", "complex64", "complex128"]


class Calls(RuleBasedStateMachine):
    """Public calls in any order; subclasses say where the arrays live and which orders are worth their time."""

    xp: Any = np
    sparse: Any = sp
    #: Orders of eigenproblems beside small ones: on a GPU those at which another kernel or more memory is taken.
    orders: tuple[int, ...] = (150, 301)

    def put(self, array: Any) -> Any:
        """Bring a NumPy array to where the machine works."""
        return self.xp.asarray(array)

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        """Bring a result to the host."""
        return array.get() if hasattr(array, "get") else np.asarray(array)

    def laid_out(self, array: Any, layout: str) -> Any:
        """Return the array with the memory layout of a caller's view."""
        if layout == "fortran":
            return self.xp.asfortranarray(self.put(array))
        if layout == "padded":
            whole = self.xp.zeros((*array.shape[:-1], array.shape[-1] + 3), array.dtype)
            whole[..., : array.shape[-1]] = self.put(array)
            return whole[..., : array.shape[-1]]
        if layout == "shifted":
            flat = self.xp.zeros(array.size + 1, array.dtype)
            flat[1:] = self.put(array).ravel()
            return flat[1:].reshape(array.shape)
        return self.put(array)

    @initialize()
    def start(self) -> None:
        self.patterns: list[tuple[Any, sp.csr_array, sp.csr_array]] = []

    @rule(
        m=SIZES, k=SIZES, n=SIZES, seed=SEEDS, dtype=st.sampled_from(["float16", "float32", "float64"]),
        layout=st.sampled_from(["C", "padded", "shifted"]), batch=st.sampled_from([(), (), (3,)]),
        choice=st.sampled_from(["tau", "valid_ratio", "rtol_factors"]), out=st.booleans(),
        block=st.sampled_from([16, 32]),
    )  # fmt: skip
    def spamm(self, m, k, n, seed, dtype, layout, batch, choice, out, block):
        rng = np.random.default_rng(seed)
        a, b = rng.standard_normal((*batch, m, k)).astype(dtype), rng.standard_normal((*batch, k, n)).astype(dtype)
        value = {"tau": 0.7 * block, "valid_ratio": 0.5, "rtol_factors": 0.02}[choice]
        target = self.xp.empty((*batch, m, n), "float32" if dtype == "float16" else dtype) if out else None
        result = spectile.spamm(
            self.laid_out(a, layout), self.laid_out(b, layout), block=block, out=target, **{choice: value}
        )
        exact = a.astype(np.float64) @ b.astype(np.float64)
        errors = np.linalg.norm(self.get(result.c) - exact, axis=(-2, -1))
        assert np.all(errors <= np.asarray(result.error_bound) * (1 + 1e-6)), (errors, result.error_bound)
        if choice == "rtol_factors":
            sizes = np.linalg.norm(a.astype(float), axis=(-2, -1)) * np.linalg.norm(b.astype(float), axis=(-2, -1))
            assert np.all(errors <= value * sizes)

    @rule(
        m=SIZES, k=SIZES, n=SIZES, seed=SEEDS, density=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
        precision=st.sampled_from(["float64", "float32", "tf32", "float16"]),
        keep=st.booleans(),
    )  # fmt: skip
    def spgemm(self, m, k, n, seed, density, precision, keep):
        a, b = self._factors(m, k, n, density, seed)
        c = spectile.spgemm(self.sparse.csr_matrix(a), self.sparse.csr_matrix(b), precision=precision)
        self._check_sparse(c, a, b, precision)
        if keep:
            symbolic = spectile.tsparse.symbolic(self.sparse.csr_matrix(a), self.sparse.csr_matrix(b))
            self.patterns = [*self.patterns[-3:], (symbolic, a, b)]

    @rule(seed=SEEDS, precision=st.sampled_from(["float64", "float32"]), which=st.integers(0, 3))
    def spgemm_again(self, seed, precision, which):
        """A kept pattern, after whatever came between, with other values."""
        if not self.patterns:
            return
        symbolic, a, b = self.patterns[which % len(self.patterns)]
        rng = np.random.default_rng(seed)
        a, b = a.copy(), b.copy()
        a.data[:], b.data[:] = rng.uniform(-1, 1, a.nnz), rng.uniform(-1, 1, b.nnz)
        c = symbolic.multiply(self.sparse.csr_matrix(a), self.sparse.csr_matrix(b), precision=precision)
        self._check_sparse(c, a, b, precision)

    def _factors(self, m, k, n, density, seed):
        rng = np.random.default_rng(seed)

        def draw(size):
            return rng.uniform(-1, 1, size)

        shapes = (m, k), (k, n)
        return tuple(
            sp.csr_array(sp.random_array(shape, density=density, rng=rng, data_sampler=draw)) for shape in shapes
        )

    def _check_sparse(self, c, a, b, precision):
        exact, size = (a @ b).toarray(), (abs(a) @ abs(b)).toarray()
        rounding = {"float64": 2.0**-53, "float32": 2.0**-24}.get(precision, 2.0**-11)
        error = np.abs(self.get(c.todense()) - exact)
        assert np.all(error <= (a.shape[1] + 4) * rounding * size + 1e-300)

    @rule(
        n=st.one_of(SIZES, st.none()), seed=SEEDS, dtype=st.sampled_from(SCALARS),
        layout=st.sampled_from(["C", "fortran", "padded"]), vectors=st.booleans(), part=st.booleans(),
        batch=st.sampled_from([(), (), (2,)]), which=st.integers(0, 9), rank=st.sampled_from([None, None, 3]),
    )  # fmt: skip
    def eigh(self, n, seed, dtype, layout, vectors, part, batch, which, rank):
        n = self.orders[which % len(self.orders)] if n is None else n
        batch = () if n > 300 else batch
        rng = np.random.default_rng(seed)
        a = rng.standard_normal((*batch, n, rank or n)).astype(dtype)
        if np.dtype(dtype).kind == "c":
            a = a + 1j * rng.standard_normal(a.shape).astype(dtype)
        right = np.conj(np.swapaxes(a, -1, -2))
        a = (a @ right if rank else a + right).astype(dtype)
        options = {"subset_by_index": (n // 3, n // 3 + (n - 1) // 2)} if part else {}
        found = spectile.eigh(self.laid_out(a, layout), eigvals_only=not vectors, **options)
        w = self.get(found[0] if vectors else found)
        exact = np.linalg.eigvalsh(a.astype(np.complex128 if np.dtype(dtype).kind == "c" else np.float64))
        rows = slice(n // 3, n // 3 + (n - 1) // 2 + 1) if part else slice(None)
        limit = 10 * n * EPS[dtype]
        scale = np.linalg.norm(a, axis=(-2, -1), keepdims=True)[..., 0] + 1e-300
        assert np.all(np.abs(w - exact[..., rows]) <= limit * scale)
        if vectors:
            v = self.get(found[1]).astype(np.complex128)
            residual = a @ v - v * w[..., None, :]
            overlap = np.conj(np.swapaxes(v, -1, -2)) @ v - np.eye(v.shape[-1])
            assert np.all(np.linalg.norm(residual, axis=(-2, -1)) <= limit * scale[..., 0])
            assert np.all(np.linalg.norm(overlap, axis=(-2, -1)) <= limit * np.sqrt(n))

    @rule(
        n=SIZES, seed=SEEDS, dtype=st.sampled_from(SCALARS),
        vectors=st.integers(1, 9), moments=st.sampled_from([2, 16, 64]), scale=st.sampled_from([1.0, 1e-18, 1e12]),
    )  # fmt: skip
    def kpm_dos(self, n, seed, dtype, vectors, moments, scale):
        rng = np.random.default_rng(seed)
        h = sp.random_array((n, n), density=min(1.0, 4 / n), rng=rng, data_sampler=rng.standard_normal).astype(dtype)
        h = sp.csr_array((scale * (h + h.T.conj()) + scale * sp.diags_array(np.arange(n) / n)).astype(dtype))
        density = spectile.kpm_dos(self.sparse.csr_matrix(h), moments, vectors, rng=seed)
        assert abs(density.integrate() - n) <= 1e-3 * n
        w = np.linalg.eigvalsh(h.toarray().astype(np.complex128))
        low, high = density.bounds
        # Bounds are at least 1e4 roundings of the largest entry on each side of a spectrum of one point.
        width = max(w[-1] - w[0], 2e4 * EPS[dtype] * max(abs(w[0]), abs(w[-1])))
        assert low <= w[0] + 1e-5 * width and high >= w[-1] - 1e-5 * width
        assert high - low <= 3 * width + 1e-300, "bounds far beyond the spectrum resolve nothing"

    @rule(n=SIZES, seed=SEEDS, workers=st.integers(2, 4))
    def in_threads(self, n, seed, workers):
        """The same call from several threads gives the same bits."""
        rng = np.random.default_rng(seed)
        a = self.put(rng.standard_normal((n, n)))
        results: list[Any] = [None] * workers
        errors: list[BaseException] = []

        def work(number: int) -> None:
            try:
                with self.stream():
                    results[number] = (
                        self.get(spectile.spamm(a, a, tau=0.5).c), self.get(spectile.eigvalsh(a + a.T)),
                    )  # fmt: skip
            except BaseException as error:
                errors.append(error)

        self.wait()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        for c, w in results[1:]:
            np.testing.assert_array_equal(c, results[0][0])
            np.testing.assert_array_equal(w, results[0][1])

    def stream(self) -> Any:
        """Return a context in which a thread works: a stream of its own on a GPU."""
        import contextlib

        return contextlib.nullcontext()

    def wait(self) -> None:
        """Wait for the device."""

    @rule(which=st.integers(0, 7))
    def bad_input(self, which):
        """A call that is refused leaves nothing behind that the next call meets."""
        nan = self.put(np.full((40, 40), np.nan))
        one, two = self.sparse.csr_matrix(sp.eye_array(5).tocsr()), self.sparse.csr_matrix(sp.eye_array(6).tocsr())
        calls = [
            lambda: spectile.eigh(nan),
            lambda: spectile.eigh(self.put(np.ones((3, 4)))),
            lambda: spectile.spamm(nan, nan, tau=1.0, check_finite=True),
            lambda: spectile.spamm(self.put(np.ones((3, 4))), self.put(np.ones((3, 4))), tau=1.0),
            lambda: spectile.spgemm(one, two),
            lambda: spectile.spgemm(one, one, memory_limit=1),
            lambda: spectile.kpm_dos(self.sparse.csr_matrix(sp.csr_array(np.triu(np.ones((6, 6)), 1))), 8, 1),
            lambda: spectile.kpm_dos(two, 8, 1, bounds=(3.0, 4.0)),
        ]
        with pytest.raises((ValueError, MemoryError, np.linalg.LinAlgError)) as caught:
            calls[which]()
        assert len(str(caught.value)) > 10
        assert np.isfinite(scipy.linalg.norm(np.eye(2)))
