"""Long calls on the GPU: ended by a signal they go on from their file, to the same numbers; iterators too."""

import os
import signal

import numpy as np
import pytest

from spectile.kpm import (
    Chebyshev,
    apply,
    chebyshev,
    conductivity,
    correlator,
    evolve,
    filter_diagonalize,
    greens_function,
    kpm_dos,
    ldos,
)
from spectile.kpm.checkpoint import Run
from spectile.kpm.operators.lattices import anderson, graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from tests.hamiltonians import haldane

pytestmark = pytest.mark.gpu

REAL, HALL, STENCIL = anderson(8, disorder=3, rng=1), haldane(8, mass=0.3), TopologicalInsulator(6, 5, 8)
STATES = np.random.default_rng(2).standard_normal((512, 5)) + 1j * np.eye(512)[:, :5]
CALLS = {
    "evolve": lambda **o: evolve(REAL, STATES, [4.0, -3.0, 9.0], backend="cuda", **o),
    "evolve stencil": lambda **o: evolve(STENCIL, np.eye(STENCIL.shape[0])[:, :8], [4.0, 6.0], backend="cuda", **o),
    "evolve single": lambda **o: evolve(
        graphene(20, 20).astype("float32"), np.eye(800, dtype="float32")[:, :33], 5.0, backend="cuda", **o
    ),
    "apply": lambda **o: apply(np.exp, HALL[0], np.eye(128)[:, :3], backend="cuda", **o),
    "entries": lambda **o: greens_function(REAL, [3, 1], range(5), [0.1, 0.7], 0.2, backend="cuda", **o),
    "columns": lambda **o: greens_function(REAL, None, range(5), [0.1, 0.7], 0.3, backend="cuda", **o),
    "correlator": lambda **o: (
        correlator(
            REAL, None, REAL, num_moments=80, num_vectors=10, rng=3, memory_limit=512 * 8 * 8 * 60, backend="cuda", **o
        ).moments
    ),
    "conductivity": lambda **o: (
        conductivity(
            HALL[0], "x", "y", HALL[1], periods=HALL[2], num_moments=70, num_vectors=2, rng=3, backend="cuda", **o
        ).correlator.moments
    ),
    "filter_diagonalize": lambda **o: filter_diagonalize(REAL, (5.0, 6.0), rng=2, backend="cuda", **o).eigenvalues,
    "ldos": lambda **o: ldos(REAL, range(5), 300, backend="cuda", **o).moments,
    "ldos of the stencil": lambda **o: ldos(STENCIL, range(5), 300, backend="cuda", **o).moments,
    "ldos of an operator": lambda **o: ldos(REAL, range(5), 150, operator=abs(REAL), backend="cuda", **o).moments,
    "kpm_dos of vectors": lambda **o: kpm_dos(REAL, 300, vectors=STATES, mean=False, backend="cuda", **o).moments,
}


def on_host(array):
    return array if isinstance(array, np.ndarray) else array.get()


def pauses(monkeypatch, call, end=None):
    """Make a call, ended by SIGTERM in its pause of this number; return the number of its pauses."""
    seen, pause = [], Run.pause

    def counted(self, state):
        seen.append(1)
        if len(seen) == end:
            os.kill(os.getpid(), signal.SIGTERM)
        pause(self, state)

    with monkeypatch.context() as once:
        once.setattr(Run, "pause", counted)
        if end is None:
            call()
        else:
            with pytest.raises(SystemExit):
                call()
    return len(seen)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_ended_goes_on(name, tmp_path, monkeypatch):
    path, call = tmp_path / "run.npz", CALLS[name]
    exact = on_host(call())
    many = pauses(monkeypatch, lambda: call(checkpoint=path))
    assert not path.exists()
    for number in sorted({1, many // 2, many}):
        pauses(monkeypatch, lambda: call(checkpoint=path), number)
        assert path.exists()
        found = on_host(call(checkpoint=path))
        assert not path.exists()
        # Products of matrices may take another kernel beside other work: not the same bits for certain.
        tolerance = 1e-4 if "single" in name else 1e-9
        np.testing.assert_allclose(found, exact, rtol=0, atol=tolerance * abs(exact).max())


@pytest.mark.parametrize("width", [1, 8, 33])
@pytest.mark.parametrize("H", [REAL, HALL[0], STENCIL], ids=["real", "complex", "stencil"])
def test_an_iterator_goes_on(H, width, tmp_path):
    start = np.random.default_rng(1).standard_normal((H.shape[0], width))
    exact = [on_host(block).copy() for block in chebyshev(H, start, 12, backend="cuda")]
    terms = chebyshev(H, start, 12, backend="cuda")
    for given in range(12):
        terms.save(tmp_path / "terms.npz")
        again = Chebyshev.load(tmp_path / "terms.npz", H, backend="cuda")
        assert again.order == given - 1
        for block, wanted in zip(again, exact[given:], strict=True):
            np.testing.assert_allclose(on_host(block), wanted, atol=1e-12 * abs(wanted).max())
        next(terms)
