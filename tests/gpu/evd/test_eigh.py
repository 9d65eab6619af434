"""The two-stage eigensolver on a CUDA device, against float64 references; the inputs are new in every session."""

import math

import numpy as np
import pytest

from spectile import evd
from spectile_study.inputs.spectra import FAMILIES, random_hermitian, residuals

cupy = pytest.importorskip("cupy")
from spectile.core import device, memory  # noqa: E402
from spectile.evd.cpu import solver as cpu  # noqa: E402
from spectile.evd.cuda import choose  # noqa: E402
from spectile.evd.cuda import run as gpu  # noqa: E402
from spectile.evd.cuda.back.sweeps import apply_chasing  # noqa: E402
from spectile.evd.cuda.chasing.chase import chase_band, extract_band  # noqa: E402
from spectile.evd.cuda.choose import largest_order  # noqa: E402
from spectile.evd.cuda.load import fits_in_place, load_matrix  # noqa: E402
from spectile.evd.cuda.matrix import as_array, zero_matrix  # noqa: E402
from spectile.evd.cuda.reduction.band import band_reduction  # noqa: E402
from spectile.evd.cuda.tridiagonal import divide as gpu_divide  # noqa: E402
from spectile.evd.cuda.tridiagonal.divide import divide_and_conquer  # noqa: E402
from spectile.evd.cuda.tridiagonal.sturm import eigenvalues  # noqa: E402
from spectile.evd.cuda.workspace import padded_order, workspace_bytes  # noqa: E402
from spectile.evd.types import SCALARS, Options  # noqa: E402
from spectile_study.cases.evd import ozaki  # noqa: E402
from spectile_study.cases.evd import syr2k as updates  # noqa: E402
from spectile_study.cases.evd.syr2k import syr2k  # noqa: E402

pytestmark = pytest.mark.gpu
DTYPES = ("float64", "float32", "complex128", "complex64")
B, NB = 32, 128
SEED = 20
SIZES = (1, 2, 3, 5, 20, 97, B - 1, B, B + 1, 63, 64, 65, NB - 1, NB, NB + 1, 2 * NB + 1, 521, 1031)


@pytest.fixture
def rng(request):
    return np.random.default_rng([SEED, sum(map(ord, request.node.name))])


def solve(a, *, vectors, bandwidth=B, block=NB, lower=True):
    """Our own path, whatever the order."""
    options = Options(lower=lower, vectors=vectors)
    return gpu.solve_by_stages(cupy.asarray(a), options, bandwidth=bandwidth, block=block)


def work_space(n, dtype, *, overwrite=False):
    return workspace_bytes(n, SCALARS[dtype], device.describe(), vectors=True, overwrite=overwrite)


def errors(a, w, v=None):
    return residuals(a, cupy.asnumpy(w), None if v is None else cupy.asnumpy(v))


def passes(found):
    return all(error < 10 for error in found.values())


@pytest.mark.parametrize("bandwidth", [1, B])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family, dtype, bandwidth, rng):
    a = FAMILIES[family](300, rng, dtype)
    w, v = solve(a, vectors=True, bandwidth=bandwidth)
    assert passes(errors(a, w, v))
    assert passes(errors(a, solve(a, vectors=False, bandwidth=bandwidth)[0]))


@pytest.mark.parametrize("bandwidth", [1, B])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_sizes_around_the_blocks(n, dtype, bandwidth, rng):
    a = random_hermitian(n, rng, dtype)
    assert passes(errors(a, *solve(a, vectors=True, bandwidth=bandwidth)))
    assert passes(errors(a, solve(a, vectors=False, bandwidth=bandwidth)[0]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_size_of_the_direct_tridiagonalization(dtype, rng):
    """Orders where the threads of a block change, and where columns do not fit into shared memory."""
    most, largest = choose.direct_order(SCALARS[dtype], device.describe()), math.prod(choose.DIRECT_SIZES[-1])
    sizes = {order for threads, rows in choose.DIRECT_SIZES for order in (threads * rows, threads * rows + 1)}
    for n in sorted({n for n in sizes if n < most} | {most, min(most + 100, largest)}):
        a = random_hermitian(n, rng, dtype)
        assert passes(errors(a, *solve(a, vectors=True, bandwidth=1))), n


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
@pytest.mark.parametrize("vendor", [False, True])
def test_only_one_triangle_is_read(dtype, lower, order, vendor, rng, monkeypatch):
    monkeypatch.setattr(choose, "calls_vendor", lambda *_, **__: vendor)
    n = 200
    a = random_hermitian(n, rng, dtype)
    half = np.where(np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T, a, np.nan).astype(dtype)
    device_half = cupy.array(half, order=order)
    w, v = evd.eigh(device_half, lower=lower)
    assert isinstance(w, cupy.ndarray)
    assert passes(errors(a, w, v))
    np.testing.assert_array_equal(cupy.asnumpy(device_half), half)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("vendor", [False, True])
def test_views_with_gaps_and_backwards(dtype, lower, vendor, rng, monkeypatch):
    monkeypatch.setattr(choose, "calls_vendor", lambda *_, **__: vendor)
    wide = cupy.asarray(random_hermitian(260, rng, dtype))
    for view in (wide[::2, ::2], wide[::-1, ::-1], wide.T[7:, 7:]):
        assert passes(errors(cupy.asnumpy(view), *evd.eigh(view, lower=lower)))


@pytest.mark.parametrize("vendor", [False, True])
def test_subsets_host_arrays_and_batches(vendor, rng, monkeypatch):
    monkeypatch.setattr(choose, "calls_vendor", lambda *_, **__: vendor)
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
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
def test_in_the_memory_of_the_input(dtype, lower, order, rng, monkeypatch):
    monkeypatch.setattr(choose, "calls_vendor", lambda *_, **__: False)
    n = 256  # columns of a multiple of 128 bytes
    a = random_hermitian(n, rng, dtype)
    half = np.where(np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T, a, np.nan).astype(dtype)
    owned = cupy.array(half, order=order)
    in_place = order == "F" or np.dtype(dtype).kind != "c"
    assert fits_in_place(owned) == in_place
    assert not fits_in_place(owned[1:, 1:])
    w, v = evd.eigh(owned, lower=lower, overwrite_a=True)
    assert passes(errors(a, w, v))
    kept = np.array_equal(cupy.asnumpy(owned), half, equal_nan=True)
    assert kept == (not in_place)
    smaller = work_space(n, dtype, overwrite=True)
    assert work_space(n, dtype) - smaller == n * n * np.dtype(dtype).itemsize


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vendor", [False, True])
def test_not_finite(dtype, vendor, rng, monkeypatch):
    monkeypatch.setattr(choose, "calls_vendor", lambda *_, **__: vendor)
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
    alone = chase_band(band.copy(), n, bandwidth, None, grid=1)
    for run in range(67):
        found = chase_band(band.copy(), n, bandwidth, None, grid=(2, 3, 7, 50, 140, 400, 1000)[run % 7])
        assert bool((found[0] == alone[0]).all())
        assert bool((found[1][: n - 1] == alone[1][: n - 1]).all())


@pytest.mark.parametrize("n", [1, 5, 513, 2000])
def test_eigenvalues_of_tridiagonals(n, rng):
    d, e = rng.standard_normal(n), rng.standard_normal(n)
    w = cupy.asnumpy(eigenvalues(cupy.asarray(d), cupy.asarray(e)))
    expected, _ = cpu.eigh_tridiagonal(d, e[: n - 1], vectors=False)
    np.testing.assert_allclose(w, expected, atol=1e-13 * n**0.5)


@pytest.mark.parametrize("n", [64, 65, 66, 95, 96, 97, 128, 129, 161])
def test_panels_in_two_halves(n, rng):
    a = random_hermitian(n, rng)
    assert passes(errors(a, *solve(a, vectors=True, bandwidth=64, block=128)))


def device_symmetric(n, seed):
    """A random symmetric matrix that never leaves the device."""
    a = cupy.random.RandomState(seed).standard_normal((n, n))
    for start in range(0, n, 4096):
        stop = min(n, start + 4096)
        a[start:stop, stop:] = a[stop:, start:stop].T
        a[start:stop, start:stop] = (a[start:stop, start:stop] + a[start:stop, start:stop].T) / 2
    return a


def test_panels_of_more_rows_than_half_the_threads(rng):
    n = largest_order(device.describe()) // 2 + 300
    a = device_symmetric(n, SEED)
    trace, norm = float(cupy.trace(a)), float(cupy.linalg.norm(a.ravel()))
    w = evd.eigvalsh(a, overwrite_a=True)
    eps = np.finfo(np.float64).eps
    assert abs(float(w.sum()) - trace) < 10 * n * eps * norm
    assert abs(float(cupy.linalg.norm(w)) - norm) < 10 * n * eps * norm
    del a, w
    cupy.get_default_memory_pool().free_all_blocks()


class PeakMemory(cupy.cuda.MemoryHook):
    """Most bytes of CuPy's pool in use."""

    name = "PeakMemory"

    def __init__(self):
        self.now = self.most = 0

    def malloc_postprocess(self, **event):
        self.now += event["mem_size"]
        self.most = max(self.most, self.now)

    def free_postprocess(self, **event):
        self.now -= event["mem_size"]


@pytest.mark.parametrize("n", [8192, 8207, 16_384])
def test_work_space_with_vectors(n, monkeypatch):
    monkeypatch.setattr(choose, "calls_vendor", lambda *_, **__: False)
    a = device_symmetric(n, SEED)
    with PeakMemory() as peak:
        w, v = evd.eigh(a)
    assert n * n * 8 * 1.5 < peak.most <= 2.25 * a.nbytes
    assert peak.most <= work_space(n, "float64")
    some = slice(n // 2, n // 2 + 50)
    eps = np.finfo(np.float64).eps
    assert float(cupy.linalg.norm(a @ v[:, some] - v[:, some] * w[some])) < 10 * n * eps * float(cupy.abs(w).max())
    del a, w, v
    cupy.get_default_memory_pool().free_all_blocks()


@pytest.mark.parametrize(("dtype", "bandwidth"), [*((dtype, B) for dtype in DTYPES), ("float64", 16), ("float64", 64)])
@pytest.mark.parametrize("n", [2, 17, 64, 65, 66, 200])
def test_reflectors_of_the_chasing(n, dtype, bandwidth, rng):
    """Q2 takes the tridiagonal matrix back to the band."""
    b = bandwidth
    dense = random_hermitian(n, rng, dtype)
    dense[np.abs(np.subtract.outer(np.arange(n), np.arange(n))) > b] = 0
    band = cupy.zeros((n + 2, 2 * b), dtype)
    for offset in range(min(b + 1, n)):
        band[: n - offset, offset] = cupy.asarray(np.diag(dense, -offset).copy())
    reflectors = zero_matrix(n, n, dtype)
    d, e = (cupy.asnumpy(x) for x in chase_band(band, n, b, reflectors))
    z = zero_matrix(n, n, np.complex128 if np.dtype(dtype).kind == "c" else np.float64)
    as_array(z, n, n)[np.arange(n), np.arange(n)] = 1
    apply_chasing(reflectors, n, b, z.pointer, z.ld, n)
    q = cupy.asnumpy(as_array(z, n, n))
    tridiagonal = np.diag(d) + np.diag(e[: n - 1], 1) + np.diag(e[: n - 1], -1)
    eps = np.finfo(dtype).eps
    assert np.linalg.norm(q @ tridiagonal @ q.conj().T - dense) < 10 * n * eps * np.linalg.norm(dense)
    assert np.linalg.norm(q.conj().T @ q - np.eye(n)) < 10 * n * eps


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("chunks", [(1024, 2048), (50, 30)])
@pytest.mark.parametrize("n", [1, 2, 32, 33, 64, 65, 257, 1030])
def test_divide_and_conquer(n, chunks, in_place, rng, monkeypatch):
    if in_place:
        monkeypatch.setattr(gpu_divide, "SMALL_ORDER", 0)
    order = padded_order(n)[1]
    monkeypatch.setattr(gpu_divide, "merge_sizes", lambda n: (min(chunks[0], order), min(chunks[1], order // 2)))
    d, e = rng.standard_normal(n), rng.standard_normal(n)
    w, q = divide_and_conquer(cupy.asarray(d), cupy.asarray(e))
    a = np.diag(d) + np.diag(e[: n - 1], 1) + np.diag(e[: n - 1], -1)
    assert passes(errors(a, w, as_array(q, n, n)))


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("k", [1, 16, 100])
@pytest.mark.parametrize("n", [1, 100, 512, 1300])
def test_syr2k(n, k, joined, rng, monkeypatch):
    monkeypatch.setattr(updates, "JOINED", (k if joined else 0, 0))
    a, b = (rng.standard_normal((n, k)) for _ in range(2))
    c = np.asfortranarray(rng.standard_normal((n, n)))
    on_device = cupy.asarray(c, order="F")
    syr2k(cupy.asarray(a, order="F"), cupy.asarray(b, order="F"), on_device, alpha=-0.5, block=128)
    expected = np.tril(c - 0.5 * (a @ b.T + b @ a.T))
    np.testing.assert_allclose(np.tril(cupy.asnumpy(on_device)), expected, atol=1e-11)


@pytest.mark.parametrize("k", [1, 32, 100])
@pytest.mark.parametrize("n", [1, 100, 1100])
def test_updates_from_int8_products(n, k, rng):
    a, b = (rng.standard_normal((n, k)) * 10.0 ** rng.integers(-9, 9, (n, 1)) for _ in range(2))
    expected = np.tril(a @ b.T + b @ a.T)
    rows = np.linalg.norm(np.hstack([a, b]), axis=1)
    scale = rows[:, None] * rows
    for count, limit in ((15, 4e-16 * (k + 4)), (12, 1e-12)):
        c = cupy.zeros((n, n), order="F")
        ozaki.syr2k(cupy.asarray(a, order="F"), cupy.asarray(b, order="F"), c, count=count)
        assert bool((np.abs(np.tril(cupy.asnumpy(c)) - expected) <= limit * scale).all())


def test_band_reduction_from_int8_products(rng):
    n = 700
    a = random_hermitian(n, rng)
    matrix, _ = load_matrix(cupy.asarray(a), lower=True, check_finite=True)
    panels = band_reduction(matrix, n, bandwidth=B, block=NB, update=ozaki.add_lower)
    w = eigenvalues(*chase_band(extract_band(panels), n, B, None))
    assert passes(errors(a, w))


def test_memory_error_has_the_bytes():
    n = 33_000
    held = cupy.empty(max(int(memory.free_bytes()) - 10 * 2**30, 0), np.uint8)  # others may run on the device
    view = cupy.lib.stride_tricks.as_strided(cupy.zeros(1), (n, n), (0, 0))
    try:
        with pytest.raises(MemoryError, match="bytes"):
            evd.eigh(view)
    finally:
        del held
        cupy.get_default_memory_pool().free_all_blocks()


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("decades", [8, 25, 30, 36])
@pytest.mark.parametrize("n", [65, 100, 257, 641])
@pytest.mark.parametrize("seed", [7, 11, 3351887100])
def test_cusolver_solves_graded_matrices_in_single_precision(seed: int, n: int, decades: int, dtype: str) -> None:
    """Entries fall to 10**-decades of the largest: their squares are below what float32 holds."""
    from spectile.evd.cuda.vendor import batched, dense

    batch = n < 641
    if batch and batched.library() is None:
        pytest.skip("this cuSOLVER has no batched solver for these types")
    rng = np.random.default_rng(seed)
    grades = 10.0 ** -np.linspace(0, decades / 2, n)

    def graded(largest: float) -> np.ndarray:
        a = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if dtype == "complex64" else 0)
        a = grades[:, None] * (a + a.conj().T) * grades
        return (a * (largest / abs(a).max())).astype(dtype)

    def solved(given: cupy.ndarray, vectors: bool) -> tuple[cupy.ndarray, cupy.ndarray]:
        if batch:
            return batched.solve(given, Options(vectors=vectors), gpu.solve)
        w, v = dense.eigh(given[0], lower=True, eigvals_only=not vectors, check_finite=True)
        return w[None], None if v is None else v[None]

    # Each matrix of a batch is scaled by itself.
    batches = [[1.0, 1e-30, 1e36]] if batch else [[1.0], [1e-30], [1e36]]
    for given in (cupy.asarray(np.stack([graded(largest) for largest in sizes])) for sizes in batches):
        (w, v), (values, none) = solved(given, True), solved(given, False)
        assert none is None
        for a, found, vectors, alone in zip(given, w, v, values, strict=True):
            wide = vectors.astype(np.complex128 if dtype == "complex64" else np.float64)
            size = float(cupy.abs(a).max())
            residual = a.astype(wide.dtype) / size @ wide - wide * (found.astype(np.float64) / size)
            assert float(cupy.linalg.norm(wide.conj().T @ wide - cupy.eye(n))) < 1e-3, f"seed {seed}"
            assert float(cupy.linalg.norm(residual)) < 1e-3, f"seed {seed}"
            cupy.testing.assert_allclose(alone, found, rtol=0, atol=1e-4 * size)
