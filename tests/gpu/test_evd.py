"""The two-stage eigensolver on a CUDA device, against float64 references; the inputs are new in every session."""

import time

import numpy as np
import pytest

from spectile import evd
from spectile.evd.families import FAMILIES, random_hermitian, residuals

cupy = pytest.importorskip("cupy")
from spectile.evd import cpu, gpu  # noqa: E402

pytestmark = pytest.mark.gpu
DTYPES = ("float64", "float32", "complex128", "complex64")
B, NB = 32, 128
SEED = time.time_ns() % 2**32
SIZES = (1, 2, 3, 5, 20, 97, B - 1, B, B + 1, 63, 64, 65, NB - 1, NB, NB + 1, 2 * NB + 1, 521, 1031)


@pytest.fixture
def rng(request):
    print(f"seed {SEED}")
    return np.random.default_rng([SEED, sum(map(ord, request.node.name))])


def solve(a, *, vectors, bandwidth=B, block=NB, lower=True):
    """Our own path, whatever the order."""
    return gpu.eigh(
        cupy.asarray(a),
        lower=lower,
        eigvals_only=not vectors,
        check_finite=True,
        choose=lambda w: slice(0, len(w)),
        bandwidth=bandwidth,
        block=block,
    )


def errors(a, w, v=None):
    return residuals(a, cupy.asnumpy(w), None if v is None else cupy.asnumpy(v))


def passes(found):
    return all(error < 10 for error in found.values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family, dtype, rng):
    a = FAMILIES[family](300, rng, dtype)
    w, v = solve(a, vectors=True)
    assert passes(errors(a, w, v))
    assert passes(errors(a, solve(a, vectors=False)[0]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_sizes_around_the_blocks(n, dtype, rng):
    a = random_hermitian(n, rng, dtype)
    assert passes(errors(a, *solve(a, vectors=True)))
    assert passes(errors(a, solve(a, vectors=False)[0]))


@pytest.mark.parametrize("bandwidth", [16, 32, 64])
@pytest.mark.parametrize("block", [64, 256, 1024])
def test_parameters(bandwidth, block, rng):
    a = random_hermitian(700, rng)
    assert passes(errors(a, *solve(a, vectors=True, bandwidth=bandwidth, block=block)))


def test_large_against_invariants(rng):
    n = 5000
    a = random_hermitian(n, rng)
    w, v = (cupy.asnumpy(x) for x in evd.eigh(cupy.asarray(a)))
    eps = np.finfo(np.float64).eps
    norm = np.linalg.norm(a)
    assert abs(w.sum() - np.trace(a)) < 10 * n * eps * norm
    assert abs(np.linalg.norm(w) - norm) < 10 * n * eps * norm
    assert np.linalg.norm(a @ v - v * w) < 10 * n * eps * norm
    assert np.linalg.norm(v.T @ v - np.eye(n)) < 10 * n * eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("crossover", [0, 10**6])
def test_only_one_triangle_is_read(dtype, lower, order, crossover, rng, monkeypatch):
    monkeypatch.setattr(gpu, "CROSSOVER_VECTORS", crossover)
    n = 200
    a = random_hermitian(n, rng, dtype)
    half = np.where(np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T, a, np.nan).astype(dtype)
    device_half = cupy.array(half, order=order)
    w, v = evd.eigh(device_half, lower=lower)
    assert isinstance(w, cupy.ndarray)
    assert passes(errors(a, w, v))
    np.testing.assert_array_equal(cupy.asnumpy(device_half), half)


@pytest.mark.parametrize("crossover", [0, 10**6])
def test_subsets_host_arrays_and_batches(crossover, rng, monkeypatch):
    monkeypatch.setattr(gpu, "CROSSOVER_VECTORS", crossover)
    monkeypatch.setattr(gpu, "CROSSOVER_VALUES", crossover)
    a = random_hermitian(150, rng)
    reference = np.linalg.eigvalsh(a)
    w, v = evd.eigh(a, subset_by_index=(3, 40), backend="cuda")
    assert isinstance(v, np.ndarray)
    assert v.shape == (150, 38)
    assert passes(residuals(a, w, v, reference[3:41]))
    cut = (reference[9] + reference[10]) / 2
    w = evd.eigvalsh(a, subset_by_value=(-np.inf, cut), backend="cuda")
    assert passes(residuals(a, w, None, reference[:10]))
    assert evd.eigvalsh(a, subset_by_value=(1e6, 1e7), backend="cuda").shape == (0,)
    batch = cupy.asarray(np.stack([a, 2 * a]))
    w = evd.eigvalsh(batch)
    np.testing.assert_allclose(cupy.asnumpy(w), [reference, 2 * reference], atol=1e-11)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("crossover", [0, 10**6])
def test_not_finite(dtype, crossover, rng, monkeypatch):
    monkeypatch.setattr(gpu, "CROSSOVER_VALUES", crossover)
    a = random_hermitian(100, rng, dtype)
    for bad in (np.nan, np.inf):
        a[90, 7] = bad
        with pytest.raises(ValueError, match="NaN or infinity"):
            evd.eigvalsh(cupy.asarray(a))
        with pytest.raises(np.linalg.LinAlgError):
            evd.eigvalsh(cupy.asarray(a), check_finite=False)
        assert bool(cupy.isfinite(evd.eigvalsh(cupy.asarray(a), lower=False)).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_twice(dtype, rng):
    a = random_hermitian(600, rng, dtype)
    first, second = (solve(a, vectors=True) for _ in range(2))
    assert all(bool((x == y).all()) for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tridiagonalize(dtype, rng):
    n = 333
    a = random_hermitian(n, rng, dtype)
    t = evd.tridiagonalize(cupy.asarray(a), calc_q=True)
    d, e, q = (cupy.asnumpy(x) for x in t)
    full = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
    eps = np.finfo(dtype).eps
    assert np.linalg.norm(q @ full @ q.conj().T - a) < 10 * n * eps * np.linalg.norm(a)
    assert evd.tridiagonalize(cupy.asarray(a)).q is None


@pytest.mark.parametrize("bandwidth", [16, 32, 64])
def test_chasing_runs_under_any_occupancy(bandwidth, rng):
    """200 runs with 1 to 1,000 blocks, all with the same bits as one block alone, which cannot race."""
    n = 40 * bandwidth + 7
    band = cupy.zeros((n + 2, 2 * bandwidth))
    band[:n, : bandwidth + 1] = cupy.asarray(rng.standard_normal((n, bandwidth + 1)))
    for offset in range(1, bandwidth + 1):
        band[n - offset : n, offset] = 0
    alone = gpu.chase_band(band.copy(), n, bandwidth, None, grid=1)
    for run in range(67):
        found = gpu.chase_band(band.copy(), n, bandwidth, None, grid=(2, 3, 7, 50, 140, 400, 1000)[run % 7])
        assert bool((found[0] == alone[0]).all())
        assert bool((found[1][: n - 1] == alone[1][: n - 1]).all())


@pytest.mark.parametrize("n", [1, 5, 513, 2000])
def test_eigenvalues_of_tridiagonals(n, rng):
    d, e = rng.standard_normal(n), rng.standard_normal(n)
    w = cupy.asnumpy(gpu.eigenvalues(cupy.asarray(d), cupy.asarray(e)))
    expected, _ = cpu.eigh_tridiagonal(d, e[: n - 1], vectors=False)
    np.testing.assert_allclose(w, expected, atol=1e-13 * n**0.5)


@pytest.mark.parametrize("k", [1, 16, 100])
@pytest.mark.parametrize("n", [1, 100, 512, 1300])
def test_syr2k(n, k, rng):
    a, b = (rng.standard_normal((n, k)) for _ in range(2))
    c = np.asfortranarray(rng.standard_normal((n, n)))
    on_device = cupy.asarray(c, order="F")
    gpu.syr2k(cupy.asarray(a, order="F"), cupy.asarray(b, order="F"), on_device, alpha=-0.5, block=128)
    expected = np.tril(c - 0.5 * (a @ b.T + b @ a.T))
    np.testing.assert_allclose(np.tril(cupy.asnumpy(on_device)), expected, atol=1e-11)


def test_memory_error_has_the_bytes():
    n = 33_000
    held = cupy.empty(int(gpu.device.free_bytes() - 10 * 2**30), np.uint8)
    view = cupy.lib.stride_tricks.as_strided(cupy.zeros(1), (n, n), (0, 0))
    try:
        with pytest.raises(MemoryError, match="bytes"):
            evd.eigh(view)
    finally:
        del held
        cupy.get_default_memory_pool().free_all_blocks()
