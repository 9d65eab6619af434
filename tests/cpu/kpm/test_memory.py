"""Memory: what a call asks for is what it uses, for every kind of operator."""

import tracemalloc

import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator

from spectile import kpm
from spectile.core import memory
from spectile.kpm import SpectralDensity, correlator
from spectile.kpm.cpu import engine as cpu_engine
from spectile.kpm.moments import make_engine
from spectile.kpm.operators.lattices import anderson, chain, graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator


class Ring:
    """A ring by the protocol, which writes to `out` without more memory."""

    def __init__(self, size, dtype):
        self.shape, self.dtype = (size, size), np.dtype(dtype)

    def matmat(self, block, out):
        np.negative(block[1:], out=out[:-1])
        np.negative(block[0], out=out[-1])
        out[1:] -= block[:-1]
        out[0] -= block[-1]

    def bounds(self):
        return -2.0, 2.0

    def memory_bytes(self, num_vectors):
        return 0


def linear(dtype):
    matrix = graphene(100, 100).astype(dtype)
    return LinearOperator(matrix.shape, matvec=lambda x: matrix @ x, matmat=lambda x: matrix @ x, dtype=dtype)


def many_rows(dtype):
    """Return a matrix of which no rows are equal."""
    matrix = anderson(27, disorder=2, rng=1).tocsr()
    matrix.data *= 1 + np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)) * 1e-6
    return ((matrix + matrix.T) / 2).tocsr().astype(dtype)


KINDS = {
    "patterns": lambda dtype: graphene(100, 100).astype(dtype),
    "entries": many_rows,
    "linear": linear,
    "own": lambda dtype: Ring(20_000, dtype),
}


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("kind", [*KINDS, "stencil"])
def test_a_vector_takes_what_is_counted_for_it(kind, dtype, monkeypatch):
    if kind == "stencil":
        if dtype != "complex128":
            pytest.skip("the sample is complex128")
        H = TopologicalInsulator(20, 20, 12)
    else:
        H = KINDS[kind](dtype)
    engine, free = make_engine(H, "cpu"), 10**15
    for module in (memory, cpu_engine):
        monkeypatch.setattr(module, "host_free_bytes", lambda: free)
    if hasattr(engine, "_free_bytes"):
        engine._free_bytes = lambda: free
    asked = 0.9 * free / engine.capacity()

    def peak(num_vectors):
        tracemalloc.start()
        try:
            engine.random(1, 0, num_vectors, 0.3, 0.0).advance(3)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2)
    used = (peak(56) - peak(24)) / 32  # without what does not grow with the vectors
    assert 0.9 * asked < used < 1.1 * asked, (used, asked)


def test_a_density_whose_vectors_fit_one_by_one_is_right(monkeypatch):
    H = linear("float64")
    whole = SpectralDensity(H, 16, 3, rng=1, bounds=(-3.1, 3.1))
    monkeypatch.setattr(cpu_engine, "host_free_bytes", lambda: int(4 * 20_000 * 8 / 0.9) + 100)
    passes = SpectralDensity(H, 16, 3, rng=1, bounds=(-3.1, 3.1))
    assert passes._engine.capacity() == 1
    np.testing.assert_allclose(passes.moments, whole.moments, atol=1e-9)


@pytest.mark.parametrize("vectors_kept", [60, 204, 2 * 204, 2 * 300, 4 * 204])
def test_a_correlator_keeps_no_more_than_its_limit(vectors_kept):
    """Where one vector's terms fit in part, where those of one, two or four do, and where there is room for more."""
    H, num_moments, num_vectors = chain(10_000), 128, 4
    limit = vectors_kept * 8 * H.shape[0]

    def peak(num_moments):
        tracemalloc.start()
        try:
            correlator(
                H,
                None,
                None,
                num_moments=num_moments,
                num_vectors=num_vectors,
                rng=1,
                backend="cpu",
                memory_limit=limit,
            )
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2)  # what a first call keeps
    assert peak(num_moments) < limit + 3 * 16 * num_vectors * num_moments**2


RING = kpm.LatticeModel([[1.0]], [[0.0]], {(1,): [[-1.0]], (-1,): [[-1.0]]})
COUNTED = {
    "kpm_dos": lambda H, count: kpm.kpm_dos(H, count, 1, backend="cpu"),
    "vectors": lambda H, count: kpm.kpm_dos(H, 8, count, backend="cpu"),
    "add_moments": lambda H, count: kpm.kpm_dos(H, 8, 1, rng=1, backend="cpu").add_moments(count),
    "ldos": lambda H, count: kpm.ldos(H, [0], count, backend="cpu"),
    "correlator": lambda H, count: correlator(H, None, None, num_moments=count, backend="cpu"),
    "count": lambda H, count: kpm.count(H, (0, 1), num_moments=count, backend="cpu"),
    "filter_diagonalize": lambda H, count: kpm.filter_diagonalize(H, (0, 1), num_moments=count, backend="cpu"),
    "apply": lambda H, count: kpm.apply(np.exp, H, np.ones(9), num_moments=count, backend="cpu"),
    "evolve": lambda H, count: kpm.evolve(H, np.ones(9), float(count), backend="cpu"),
    "greens_function": lambda H, count: kpm.greens_function(H, 0, 0, 0.0, 1 / count, backend="cpu"),
    "sample": lambda H, count: RING.sample([count]),
}


@pytest.mark.parametrize("count", [10**12, 10**30])
@pytest.mark.parametrize("call", COUNTED)
def test_a_number_that_no_memory_holds_is_refused_before_it_is_tried(call, count):
    if call in ("evolve", "greens_function") and count > 1e16:  # no memory would help: rounding hides it
        expected = pytest.raises(ValueError, match=r"rounding of .* hides")
    else:
        expected = pytest.raises(MemoryError, match=r"bytes of memory and .* are free")
    with expected:
        COUNTED[call](chain(9), count)
