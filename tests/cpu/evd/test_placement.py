"""The eigensolvers' host arrays go where they are faster, by what is known of the devices of the table."""

from __future__ import annotations

import numpy as np
import pytest
import threadpoolctl

import spectile
from spectile.core import device, placement
from spectile.core.devices import TABLE
from spectile.evd import api, costs
from spectile.evd.types import Subset

SLOW = sorted(name for name, one in TABLE.items() if one.fp64_divisor > 2)
FAST = sorted(set(TABLE) - set(SLOW))
N = 12
DENSE = np.exp(-abs(np.subtract.outer(np.arange(N), np.arange(N))) / 2.0)
BAND = np.array([np.full(N, 2.0), np.ones(N)])
CALLS = {
    "eigh": lambda t, **_: spectile.eigh(DENSE.astype(t), **_),
    "generalized": lambda t, **_: spectile.eigh(DENSE.astype(t), np.eye(N), **_),
    "x0": lambda t, **_: spectile.eigh(DENSE.astype(t), x0=np.eye(N), **_),
    "batch": lambda t, **_: spectile.eigh(np.stack([DENSE.astype(t)] * 3), **_),
    "list": lambda t, **_: spectile.eigh(DENSE.astype(t).tolist(), **_),
    "eigvalsh": lambda t, **_: spectile.eigvalsh(DENSE.astype(t), subset_by_index=(0, 3), **_),
    "tridiagonalize": lambda t, **_: spectile.tridiagonalize(DENSE.astype(t), **_).d,
    "eigh_tridiagonal": lambda t, **_: spectile.eigh_tridiagonal(BAND[0], BAND[1, 1:], **_),
    "eigvalsh_tridiagonal": lambda t, **_: spectile.eigvalsh_tridiagonal(BAND[0], BAND[1, 1:], **_),
    "eig_banded": lambda t, **_: spectile.eig_banded(BAND.astype(t), lower=True, **_),
    "eigvals_banded": lambda t, **_: spectile.eigvals_banded(BAND.astype(t), lower=True, **_),
    "expm": lambda t, **_: spectile.expm(DENSE.astype(t), **_),
    "matrix_function_frechet": lambda t, **_: spectile.matrix_function_frechet("exp", DENSE.astype(t), DENSE, **_)[1],
}


def parts(found):
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["RTX 4090", "H200"])
def test_small_or_slow_problems_are_the_hosts(here, name, call, dtype):
    """Every public function says what it costs: one that does not would ask for the device, which is not there."""
    expected = CALLS[call](dtype, backend="cpu")
    here(name)
    for one, other in zip(parts(CALLS[call](dtype)), parts(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def where(work):
    return device.choose_backend("auto", False, "evd", lambda: work)


def works(n, dtype, count=1):
    like = np.zeros((1, 1), dtype)
    for vectors in (False, True):
        yield costs.dense((count, n, n), (like,), vectors=vectors)
        yield costs.dense((count, n, n), (like, like), vectors=vectors)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.int32])
@pytest.mark.parametrize("name", SLOW)
def test_no_order_takes_slow_float64_to_the_device(here, name, dtype):
    like = np.zeros((1, 1), dtype)
    for cores in (1, 2, 16):
        here(name, cores)
        for n in (1, 50, 500, 5_000, 50_000):
            assert {where(work) for work in works(n, dtype)} == {"cpu"}
            assert where(costs.banded(np.broadcast_to(like, (3, n)), vectors=True)) == "cpu"
            assert where(costs.tridiagonal(np.broadcast_to(like[0], (n,)), like[0], vectors=True)) == "cpu"


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.float64, np.complex128])
@pytest.mark.parametrize("name", TABLE)
def test_large_problems_of_fast_arithmetic_are_the_devices(here, name, dtype):
    here(name)
    if name in FAST or np.finfo(dtype).bits == 32:
        assert {where(work) for work in works(8192, dtype)} == {"cuda"}
        assert {where(work) for work in works(100, dtype)} == {"cpu"}


@pytest.mark.parametrize("cores", [2, 16])
def test_what_was_measured_goes_where_it_was_faster(here, cores):
    """The H200's side of docs/performance/evd.md, of which each lies a factor of three or more from the host's."""
    here("H200", cores)
    like, line = np.zeros((1, 1)), np.zeros(8192)
    for work in (
        costs.dense((4096, 4096), (like,), vectors=True),
        costs.dense((2048, 2048), (like, like), vectors=True),
        costs.dense((4096, 4096), (like,), vectors=True, subset=Subset(True, 0, 9)),
        costs.dense((10_000, 8, 8), (like,), vectors=True),
        costs.dense((1_000, 32, 32), (like,), vectors=True),
        costs.dense((500, 100, 100), (like,), vectors=True),
        costs.dense((8, 1024, 1024), (like,), vectors=True),
        costs.banded(np.broadcast_to(0.0, (17, 2048)), vectors=True),
        costs.banded(np.broadcast_to(0.0, (33, 4096)), vectors=False),
        costs.tridiagonal(line[:2000], line[:1999], vectors=False),
        costs.tridiagonal(line, line[1:], vectors=True),
    ):
        assert where(work) == "cuda"


@pytest.mark.parametrize(
    ("n", "vectors", "cores", "seconds"),
    [(4096, True, 16, 2.00), (4096, False, 16, 1.22), (4096, True, 2, 7.08), (2000, False, 2, 0.272),
     (1000, True, 2, 0.103), (300, True, 2, 6.46e-3), (100, True, 2, 0.848e-3)],
)  # fmt: skip
def test_predictions_on_a_host_are_near_what_was_measured(n, vectors, cores, seconds):
    work = costs.dense((n, n), (np.zeros((1, 1)),), vectors=vectors)
    cpu, _ = placement.candidates(work, TABLE["H200"], cores)
    assert seconds / 2 < cpu.seconds < 2 * seconds


@pytest.mark.parametrize(
    ("n", "vectors", "seconds"),
    [(4096, True, 0.0555), (8192, True, 0.167), (16_384, True, 0.838), (8192, False, 0.0894), (16_384, False, 0.283)],
)
def test_predictions_on_a_device_are_near_what_was_measured(n, vectors, seconds):
    work = costs.dense((n, n), (np.zeros((1, 1)),), vectors=vectors)._replace(moved=0)
    _, cuda = placement.candidates(work, TABLE["H200"], 1)
    assert seconds / 2 < cuda.seconds < 5 * seconds  # two stages do not stream the matrix


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
@pytest.mark.parametrize("vectors", [True, False])
def test_operands_and_results_are_moved(dtype, vectors):
    n, rows, count = 400, 5, 3
    a, band, line = (np.empty((count, *shape), dtype) for shape in ((n, n), (rows, n), (n,)))
    results = n * a.itemsize * (n if vectors else 0)  # beside the eigenvalues
    for work, operands in (
        (costs.dense(a.shape, (a,), vectors=vectors), n * n),
        (costs.dense(a.shape, (a, a), vectors=vectors), 2 * n * n),
        (costs.banded(band, vectors=vectors), rows * n),
        (costs.tridiagonal(line, line[:, 1:], vectors=vectors), 2 * n),
    ):
        moved = count * (operands * a.itemsize + results)
        assert moved <= work.moved <= moved + count * n * a.itemsize
    part = costs.dense(a.shape, (a,), vectors=True, subset=Subset(True, 5, 14))
    assert part.moved == pytest.approx(count * n * (n + 10) * a.itemsize)


def test_vectors_of_twice_the_order_take_eight_times_the_products():
    like = np.zeros((1, 1))
    for work in (
        lambda n: costs.dense((3, n, n), (like,), vectors=True),
        lambda n: costs.dense((n, n), (like, like), vectors=False),
        lambda n: costs.banded(np.broadcast_to(like, (3, n)), vectors=True),
    ):
        assert work(400).flops == pytest.approx(8 * work(200).flops)


def test_threads_and_repetitions_change_nothing(here):
    here("A100", 8)
    asked = [placement.candidates(work, TABLE["A100"], 8) for work in works(700, np.float64)]
    with threadpoolctl.threadpool_limits(1):
        assert asked == [placement.candidates(work, TABLE["A100"], 8) for work in works(700, np.float64)]


def test_a_large_call_asks_for_the_device(here, monkeypatch):
    asked = []

    class Stop(Exception):
        pass

    def module(name, backend):
        asked.append((name, backend))
        raise Stop

    monkeypatch.setattr(api, "backend_module", module)
    large = np.broadcast_to(0.0, (8192, 8192))
    for name in ("H200", "RTX 4090"):
        here(name)
        for call in (spectile.eigh, spectile.eigvalsh, spectile.tridiagonalize):
            with pytest.raises(Stop):
                call(large)
        with pytest.raises(Stop):
            spectile.eigh(large, backend="cuda")
    assert asked == [("run", "cuda")] * 4 + [("run", "cpu")] * 3 + [("run", "cuda")]


def test_explain_tells_what_was_not_taken(here):
    assert "cuda" not in [one.kernel for one in spectile.explain(spectile.eigh, DENSE, backend="cpu")]
    here("RTX 4090")
    *_, last = spectile.explain(spectile.eigh, DENSE)
    assert last.kernel == "cuda" and last.seconds is None and "1/64" in last.why
    pytest.importorskip("cupy")
    here("H200")
    *_, last = spectile.explain(spectile.eigh, np.broadcast_to(0.0, (8192, 8192)))
    assert last.kernel == "cpu" and last.seconds is None and "16 cores" in last.why
