"""Calls whose launches are captured: the third gives what the first gave, wherever and by whomever it is made."""

import threading

import numpy as np
import pytest

from spectile import eigh, eigvalsh
from spectile.core import memory, replay
from spectile.core.launch import forget_launches, launched

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """A test's process may have threads of the test runner."""
    here, real = threading.active_count(), threading.active_count
    monkeypatch.setattr(replay.threading, "active_count", lambda: 1 + real() - here)


DTYPES = ("float32", "float64", "complex64", "complex128")


def matrix(n, dtype, seed):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if np.dtype(dtype).kind == "c" else 0)
    return cupy.asarray(((a + a.conj().T) / 2).astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1537, 2050])
def test_later_calls_are_right_and_leave_earlier_results_alone(n, dtype):
    replay.drop()
    eps = np.finfo(dtype).eps
    made = []
    for seed in range(4):
        a = matrix(n, dtype, seed)
        w, v = eigh(a)
        only = eigvalsh(a)
        made.append((a, w, v, w.copy(), v.copy(), only, only.copy()))
    for a, w, v, w_then, v_then, only, only_then in made:
        assert (w == w_then).all() and (v == v_then).all() and (only == only_then).all()
        wide = a.astype(np.promote_types(dtype, "f8"))
        norm = float(cupy.linalg.norm(wide))
        v = v.astype(wide.dtype)
        assert float(cupy.linalg.norm(wide @ v - v * w)) <= 20 * n * eps * norm
        assert float(cupy.linalg.norm(v.conj().T @ v - cupy.eye(n))) <= 20 * n * eps
        assert float(abs(only - w).max()) <= 20 * n * eps * norm


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_the_same_bits_whether_captured_or_not(dtype):
    replay.drop()
    a = matrix(1600, dtype, 5)
    results = [eigh(a) for _ in range(3)]
    for w, v in results[1:]:
        assert (w == results[0][0]).all() and (v == results[0][1]).all()


def test_streams_and_threads():
    """Nothing is captured while another thread may wait for the device."""
    matrices = [matrix(1600, "float64", seed) for seed in range(6)]
    expected = [eigvalsh(a).get() for a in matrices]
    found = [None] * 6

    def work(number):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for _ in range(3):
                w = eigvalsh(matrices[number])
            stream.synchronize()
            found[number] = w.get()

    cupy.cuda.Device().synchronize()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_alternating_streams():
    a, b = matrix(1400, "float64", 1), matrix(1400, "float64", 2)
    expected = [eigvalsh(x).get() for x in (a, b)]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    results = []
    for turn in range(6):
        with streams[turn % 2]:
            results.append((turn % 2, eigvalsh((a, b)[turn % 2])))
    cupy.cuda.Device().synchronize()
    for which, w in results:
        np.testing.assert_array_equal(w.get(), expected[which])


def test_kept_memory_is_freed_on_demand():
    a = matrix(2048, "float64", 3)
    replay.drop()
    for _ in range(3):
        eigh(a)
    assert replay.kept_bytes() > a.nbytes
    with pytest.raises(MemoryError):
        memory.require_free(2**60, "a test")
    assert replay.kept_bytes() == 0


def test_what_is_replayed_counts_as_launched():
    a = matrix(1500, "float64", 3)
    eigvalsh(a)
    forget_launches()
    eigvalsh(a)
    first = launched()
    forget_launches()
    eigvalsh(a)
    assert launched() == first


def test_a_matrix_that_is_not_finite_between_good_ones():
    a = matrix(1500, "float64", 7)
    for _ in range(3):
        w = eigvalsh(a)
    bad = a.copy()
    bad[700, 3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        eigvalsh(bad)
    assert (eigvalsh(a) == w).all()
