"""The two-stage eigensolver on the CPU, against LAPACK."""

import itertools
import sys
import types

import numpy as np
import pytest
import scipy.linalg

from spectile import evd
from spectile.evd.cpu import drivers, lapack
from spectile.evd.cpu import run as cpu_run
from spectile.evd.cpu import solver as cpu
from spectile_study.cases.evd.cpu import syr2k_recursive
from spectile_study.inputs.spectra import FAMILIES, random_hermitian, residuals, with_spectrum

DTYPES = ("float64", "float32", "complex128", "complex64")
B, NB = cpu.BANDWIDTH_VECTORS, cpu.BLOCK
SIZES = (1, 2, 3, 5, 20, 97, B - 1, B, B + 1, NB - 1, NB, NB + 1, 2 * NB + 1)


@pytest.fixture(params=["lapack", "stages"])
def solver(request, monkeypatch):
    """LAPACK, which solves small matrices faster, or our stages, whatever the order."""
    monkeypatch.setattr(cpu_run, "by_stages", lambda array, *, vectors: request.param == "stages")


def rng(*seed):
    return np.random.default_rng([5, *seed])


def passes(errors):
    return all(error < 10 for error in errors.values())


@pytest.mark.parametrize("bandwidth, block", [(1, 1), (1, 4), (3, 12), (4, 4), (4, 8), (8, 32)])
@pytest.mark.parametrize("n", [1, 2, 3, 9, 20, 31])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_each_stage_keeps_the_eigenvalues(n, bandwidth, block, dtype):
    a = random_hermitian(n, rng(n), dtype)
    expected, b = np.linalg.eigvalsh(a), max(1, min(bandwidth, n - 1))
    given = np.asfortranarray(np.tril(a))
    cpu.band_reduction(given, bandwidth=b, block=max(b, block // b * b))
    stored = cpu.extract_band(given, b)
    band = np.array([[stored[j, i - j] if 0 <= i - j <= b else 0 for j in range(n)] for i in range(n)])
    np.testing.assert_allclose(np.linalg.eigvalsh(band), expected, atol=1e-12)
    d, e, _ = cpu.chase_band(stored, b, keep=False, threads=2)
    tridiagonal = np.diag(d) + np.diag(e[: n - 1], -1)
    np.testing.assert_allclose(np.linalg.eigvalsh(tridiagonal), expected, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "k", "n"), [(3, 10, 2), (10, 3, 7), (2, 1, 9), (1, 4, 1)])
def test_products_of_columns_of_any_shape(m, k, n, dtype):
    def matrix(*shape):
        real, imag = rng(*shape).standard_normal((2, *shape))
        return np.asfortranarray(real + 1j * imag if np.dtype(dtype).kind == "c" else real).astype(dtype)

    a, b, c = matrix(m, k), matrix(k, n), matrix(m, n)
    expected = 2 * a @ b + 3 * c
    for ha, hb in itertools.product((False, True), repeat=2):
        found = c.copy(order="F")
        one, two = (np.asfortranarray(x.conj().T) if h else x for x, h in ((a, ha), (b, hb)))
        lapack.gemm(2, one, two, 3, found, ha=ha, hb=hb)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("block", [1, 4, 5, 16, 64])
@pytest.mark.parametrize("n", [1, 7, 16, 37])
def test_recursive_syr2k_adds_the_triangle_in_place(n, block):
    a, b, c = (np.asfortranarray(rng(n, block, i).standard_normal((n, k))) for i, k in enumerate((3, 3, n)))
    expected = np.tril(c - 2 * (a @ b.T + b @ a.T))
    above = c.copy()
    syr2k_recursive(c, a, b, block=block, alpha=-2)
    np.testing.assert_allclose(np.tril(c), expected, atol=1e-12)
    i, j = np.indices((n, n))
    outside = (j > i) & (i // block != j // block)
    assert np.array_equal(c[outside], above[outside])


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family, dtype):
    a = FAMILIES[family](150, rng(1), dtype)
    w, v = evd.eigh(a, backend="cpu")
    assert w.dtype == a.real.dtype
    assert v.dtype == a.dtype
    assert np.all(np.diff(w) >= 0)
    assert passes(residuals(a, w, v))
    assert passes(residuals(a, evd.eigvalsh(a, backend="cpu"), None))


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_sizes_around_the_blocks(n, dtype):
    a = random_hermitian(n, rng(n), dtype)
    assert passes(residuals(a, *evd.eigh(a, backend="cpu")))


def test_size_zero():
    w, v = evd.eigh(np.empty((0, 0)), backend="cpu")
    assert w.shape == (0,)
    assert v.shape == (0, 0)
    assert evd.eigvalsh(np.empty((0, 0), "complex64"), backend="cpu").dtype == np.float32
    assert evd.tridiagonalize(np.empty((0, 0)), backend="cpu").d.shape == (0,)


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("overwrite", [True, False])
def test_only_one_triangle_is_read(dtype, lower, order, overwrite):
    n = 70
    a = random_hermitian(n, rng(2), dtype)
    half = np.where(np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T, a, np.nan)
    half[np.diag_indices(n)] = a.diagonal() + (1j if a.dtype.kind == "c" else 0)
    half = np.array(half, dtype=dtype, order=order)
    before = half.copy()
    w, v = evd.eigh(half, lower=lower, overwrite_a=overwrite, backend="cpu")
    assert passes(residuals(a, w, v))
    if not overwrite:
        np.testing.assert_array_equal(half, before)


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
@pytest.mark.parametrize("n", [drivers.COPIED_SQUARE, drivers.COPIED_SQUARE + 1, 383])
def test_one_triangle_is_copied_into_columns(n, dtype, lower, vectors):
    """Row-major matrices, and those of no order at all, come to LAPACK in squares; the rest of the copy is not read."""
    a = random_hermitian(n, np.random.default_rng(n), dtype)
    half = np.where(np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T, a, np.nan).astype(dtype)
    for given in (half, np.repeat(half, 2, axis=1)[:, ::2]):
        kept = given.copy()
        w, v = drivers.standard(given, lower, vectors)
        errors = residuals(a, w, v, np.linalg.eigvalsh(a.astype("complex128")))
        assert all(error < 10 for error in errors.values())
        np.testing.assert_array_equal(given, kept)


@pytest.mark.parametrize("uplo", ["U", "u"])
def test_uplo_wins_over_lower(uplo):
    a = np.triu(random_hermitian(9, rng(3)))
    full = a + np.triu(a, 1).T
    np.testing.assert_allclose(evd.eigvalsh(a, UPLO=uplo, backend="cpu"), np.linalg.eigvalsh(full), atol=1e-12)
    with pytest.raises(ValueError, match="UPLO"):
        evd.eigvalsh(a, UPLO="X", backend="cpu")


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("dtype", DTYPES)
def test_subsets(dtype):
    n = 80
    a = random_hermitian(n, rng(4), dtype)
    w_all = np.linalg.eigvalsh(a.astype("complex128" if a.dtype.kind == "c" else "float64"))
    for first, last in ((0, 0), (3, 17), (n - 1, n - 1), (0, n - 1)):
        w, v = evd.eigh(a, subset_by_index=(first, last), backend="cpu")
        assert v.shape == (n, last - first + 1)
        assert passes(residuals(a, w, v, w_all[first : last + 1]))
        w = evd.eigvalsh(a, subset_by_index=(first, last), backend="cpu")
        assert passes(residuals(a, w, None, w_all[first : last + 1]))
    low, high = (w_all[9] + w_all[10]) / 2, (w_all[30] + w_all[31]) / 2
    for limits, wanted in (
        ((low, high), slice(10, 31)),
        ((-np.inf, low), slice(0, 10)),
        ((high, np.inf), slice(31, n)),
    ):
        w, v = evd.eigh(a, subset_by_value=limits, backend="cpu")
        assert passes(residuals(a, w, v, w_all[wanted]))
        w = evd.eigvalsh(a, subset_by_value=limits, backend="cpu")
        assert passes(residuals(a, w, None, w_all[wanted]))
    assert evd.eigvalsh(a, subset_by_value=(1e6, 1e7), backend="cpu").shape == (0,)


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_interval_of_a_scaled_matrix(scale):
    a = random_hermitian(40, rng(6))
    w = np.linalg.eigvalsh(a)
    cut = (w[4] + w[5]) / 2 * scale
    np.testing.assert_allclose(evd.eigvalsh(a * scale, subset_by_value=(-np.inf, cut), backend="cpu") / scale, w[:5])


@pytest.mark.parametrize("limits", [(3, 2), (-1, 2), (0, 80)])
def test_wrong_index_subset(limits):
    with pytest.raises(ValueError, match="subset_by_index"):
        evd.eigvalsh(np.eye(80), subset_by_index=limits, backend="cpu")


STANDARD_SIZES = [(driver, 1, (size, 0)) for driver in (None, "evr", "evx") for size in (-1, 0, 1)]
SIZES_OF_BOTH = ((-1, 0), (1, 0), (0, 0), (0, 1), (0, -1), (-0.4, 0.4))
GENERALIZED_SIZES = [("gvx", kind, sizes) for kind in (1, 2, 3) for sizes in SIZES_OF_BOTH]


@pytest.mark.parametrize("driver, kind, sizes", STANDARD_SIZES + GENERALIZED_SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_of_graded_matrices_of_any_size(dtype, sizes, kind, driver):
    """LAPACK's drivers of parts lose digits of small matrices, because they do not scale a tolerance with them."""
    n, eps, span = 17, np.finfo(dtype).eps, 100 if np.finfo(dtype).bits == 32 else 900
    power, power_b = (int(span * part) for part in sizes)
    power_w = power - power_b if kind == 1 else power + power_b
    q = np.linalg.qr(random_hermitian(n, rng(16), dtype))[0]
    a = (q * np.logspace(-12, 0, n, dtype=q.real.dtype)) @ q.conj().T
    a = (a + a.conj().T) / 2
    b = np.ldexp(np.eye(n, dtype=a.real.dtype), power_b).astype(dtype) if driver == "gvx" else None
    scaled = a * np.ldexp(a.real.dtype.type(1), power)
    exact = np.linalg.eigvalsh(a.astype(np.complex128))
    limits = np.ldexp([(exact[13] + exact[14]) / 2, 2.0], power_w)
    parts = [({"subset_by_index": (i, i)}, slice(i, i + 1)) for i in range(n)]
    for subset, wanted in (*parts, ({"subset_by_value": limits}, slice(14, n))):
        w, v = evd.eigh(scaled, b, type=kind, driver=driver, **subset, backend="cpu")
        w, v = np.ldexp(w.astype(np.float64), -power_w), v / np.linalg.norm(v, axis=0)
        assert np.abs(w - exact[wanted]).max() < n * eps
        assert np.linalg.norm(a @ v - v * w) < 10 * n * eps


def test_worded_errors():
    a = np.eye(5)
    with pytest.raises(ValueError, match="square"):
        evd.eigh(np.ones((3, 4)), backend="cpu")
    with pytest.raises(ValueError, match="square"):
        evd.eigh(np.ones(3), backend="cpu")
    with pytest.raises(ValueError, match="low < high"):
        evd.eigh(a, subset_by_value=(1, 1), backend="cpu")
    with pytest.raises(ValueError, match="not both"):
        evd.eigh(a, subset_by_value=(0, 1), subset_by_index=(0, 1), backend="cpu")
    with pytest.raises(ValueError, match="backend"):
        evd.eigh(a, backend="gpu")
    with pytest.raises(TypeError, match="dtype"):
        evd.eigh(a.astype(object), backend="cpu")
    with pytest.raises(MemoryError, match="bytes"):
        evd.eigh(np.broadcast_to(0.0, (10**6, 10**6)), backend="cpu")


EYE = np.eye(3)
BAD_CALLS = {
    "not square": ((np.ones((3, 4)),), {}),
    "a vector": ((np.ones(3),), {}),
    "NaN": ((np.diag([1, np.nan, 1]),), {}),
    "b not square": ((EYE, np.ones((3, 4))), {}),
    "b of another order": ((EYE, np.eye(4)), {}),
    "b with infinity": ((EYE, np.diag([1, np.inf, 1])), {}),
    "type": ((EYE, EYE), {"type": 4}),
    "no driver": ((EYE,), {"driver": "foo"}),
    "driver without b": ((EYE,), {"driver": "gvd"}),
    "driver with b": ((EYE, EYE), {"driver": "evd"}),
    "driver of all": ((EYE,), {"driver": "evd", "subset_by_index": (0, 1)}),
    "driver of all, by value": ((EYE,), {"driver": "evd", "subset_by_value": (0, 2)}),
    "two subsets": ((EYE,), {"subset_by_index": (0, 1), "subset_by_value": (0, 1)}),
    "indices": ((EYE,), {"subset_by_index": (0, 3)}),
    "bounds": ((EYE,), {"subset_by_value": (1, 1)}),
    "not definite": ((EYE, np.diag([1.0, -1.0, 1.0])), {}),
    "not definite, a part": ((EYE, np.diag([1.0, -1.0, 1.0])), {"driver": "gvx", "subset_by_index": (0, 1)}),
    "objects": ((EYE.astype(object),), {}),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_errors_begin_as_scipy_words_them(case):
    operands, keywords = BAD_CALLS[case]
    with pytest.raises((ValueError, np.linalg.LinAlgError)) as theirs:
        scipy.linalg.eigh(*operands, **keywords)
    with pytest.raises(theirs.type) as ours:
        evd.eigh(*operands, **keywords, backend="cpu")
    assert str(ours.value).startswith(str(theirs.value).rstrip("."))


def test_orders_whose_work_space_is_no_32_bit_number(monkeypatch):
    """LAPACK's divide and conquer asks for too little there, and reads past the end of what it gets."""
    limit = drivers.DIVIDED_ORDER
    assert 2 * limit**2 + 6 * limit + 1 < 2**31 <= 2 * (limit + 1) ** 2 + 6 * (limit + 1) + 1
    assert drivers.fastest(limit, True) == "evd" == drivers.fastest(limit + 1, False)
    assert drivers.fastest(limit + 1, True) == "evr"
    monkeypatch.setattr(drivers, "DIVIDED_ORDER", 40)
    a, b = random_hermitian(41, rng(31)), with_spectrum(np.linspace(1, 9, 41), rng(32))
    w, v = evd.eigh(a, backend="cpu")
    assert np.linalg.norm(a @ v - v * w) < 1e-11
    w, v = evd.eigh(a, b, backend="cpu")
    assert np.linalg.norm(a @ v - b @ v * w) < 1e-11
    assert evd.eigvalsh(a, b, driver="gvd", backend="cpu").shape == (41,)
    for second, driver, other in ((None, "evd", "evr"), (b, "gvd", "gvx")):
        with pytest.raises(ValueError, match=f'Too large work array required.*"{other}"'):
            evd.eigh(a, second, driver=driver, backend="cpu")


@pytest.mark.parametrize(
    "name, wanted", [("subset_by_index", (0, 1, 2)), ("subset_by_index", ()), ("subset_by_value", 3)]
)
def test_subsets_are_two_numbers(name, wanted):
    with pytest.raises(ValueError, match=f"{name} takes two numbers"):
        evd.eigh(EYE, **{name: wanted}, backend="cpu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [24, 26, 70, 210])
def test_operands_of_a_generalized_problem_may_be_overwritten(n, dtype):
    a, b = random_hermitian(n, rng(n, 21), dtype), with_spectrum(np.linspace(1, 9, n), rng(n, 22), dtype)
    eps = np.finfo(dtype).eps
    for order in "CF":
        mine = [np.array(x, order=order) for x in (a, b)]
        w, v = evd.eigh(*mine, overwrite_a=True, overwrite_b=True, backend="cpu")
        assert np.linalg.norm(a @ v - b @ v * w) < 100 * n * eps * np.linalg.norm(a)
        kept = [np.array(x, order=order) for x in (a, b)]
        evd.eigh(*kept, backend="cpu")
        assert all(np.array_equal(one, given) for one, given in zip(kept, (a, b), strict=True))


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_not_finite(bad, dtype):
    a = random_hermitian(40, rng(7), dtype)
    a[30, 2] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        evd.eigh(a, backend="cpu")
    with pytest.raises(np.linalg.LinAlgError, match="NaN or infinity"):
        evd.eigh(a, check_finite=False, backend="cpu")
    assert np.all(np.isfinite(evd.eigvalsh(a, lower=False, backend="cpu")))


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_twice(dtype):
    a = random_hermitian(400, rng(8), dtype)
    first, second = (evd.eigh(a, backend="cpu") for _ in range(2))
    assert all(np.array_equal(x, y) for x, y in zip(first, second, strict=True))


def test_chasing_does_not_depend_on_its_threads():
    a = random_hermitian(500, rng(9))
    a[np.abs(np.subtract.outer(np.arange(500), np.arange(500))) > 8] = 0
    band = cpu.extract_band(a, 8)
    one = cpu.chase_band(band.copy(), 8, keep=True, threads=1)
    for threads in (2, 3, 5):
        other = cpu.chase_band(band.copy(), 8, keep=True, threads=threads)
        assert all(np.array_equal(x, y) for x, y in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 5, 90])
def test_tridiagonalize(n, dtype):
    a = random_hermitian(n, rng(n, 10), dtype)
    t = evd.tridiagonalize(a, calc_q=True, backend="cpu")
    assert t.d.dtype == a.real.dtype
    full = np.diag(t.d) + np.diag(t.e, 1) + np.diag(t.e, -1)
    eps = np.finfo(dtype).eps
    assert np.linalg.norm(t.q @ full @ t.q.conj().T - a) < 10 * n * eps * np.linalg.norm(a)
    assert np.linalg.norm(t.q.conj().T @ t.q - np.eye(n)) < 10 * n * eps
    assert evd.tridiagonalize(a, backend="cpu").q is None
    with pytest.raises(ValueError, match="loop over the batch"):
        evd.tridiagonalize(np.stack([a, a]), backend="cpu")


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("shape", [(3, 6, 6), (2, 2, 5, 5), (0, 4, 4)])
def test_batches(shape):
    a = rng(11).standard_normal(shape)
    a = a + a.swapaxes(-1, -2)
    w, v = evd.eigh(a, backend="cpu")
    assert w.shape == shape[:-1]
    assert v.shape == shape
    np.testing.assert_allclose(a @ v, v * w[..., None, :], atol=1e-12)
    assert evd.eigvalsh(a, subset_by_index=(1, 2), backend="cpu").shape == (*shape[:-2], 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("n", [1, 2, 16, 17, 90, 129])
def test_small_batches_read_one_triangle(n, lower, dtype):
    a = np.stack([random_hermitian(n, rng(n, each, 23), dtype) for each in range(4)])
    w, v = evd.eigh(a, backend="cpu")
    roundoff = 10 * max(10, n) * np.finfo(dtype).eps
    inside = np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T
    for outside in (np.nan, 7):
        half = np.where(inside, a, np.asarray(outside, dtype)) + (1j * np.eye(n) if a.dtype.kind == "c" else 0)
        half = half.astype(dtype)
        part = (0, n // 2)
        for found in (*evd.eigh(half, lower=lower, backend="cpu"),), (evd.eigvalsh(half, lower=lower, backend="cpu"),):
            np.testing.assert_allclose(found[0], w, atol=roundoff)
        few, vectors = evd.eigh(half, lower=lower, subset_by_index=part, backend="cpu")
        np.testing.assert_allclose(few, w[:, : n // 2 + 1], atol=roundoff)
        assert vectors.shape == (4, n, n // 2 + 1)
        for each in range(4):
            assert passes(residuals(a[each], few[each], vectors[each], w[each, : n // 2 + 1]))
    assert v.shape == a.shape
    broken = a.copy()
    broken[2, 0, 0] = np.nan
    with pytest.raises(ValueError, match="infs or NaNs"):
        evd.eigh(broken, backend="cpu")


@pytest.mark.usefixtures("solver")
def test_integers_lists_and_halves():
    np.testing.assert_allclose(evd.eigvalsh([[2, 0], [0, 1]], backend="cpu"), [1, 2])
    assert evd.eigvalsh(np.eye(3, dtype=np.int8), backend="cpu").dtype == np.float64
    assert evd.eigvalsh(np.eye(3, dtype=np.float16), backend="cpu").dtype == np.float32
    strided = random_hermitian(40, rng(12))[::2, ::2]
    np.testing.assert_allclose(evd.eigvalsh(strided, backend="cpu"), np.linalg.eigvalsh(strided), atol=1e-12)
    frozen = np.asfortranarray(strided)
    frozen.flags.writeable = False
    np.testing.assert_allclose(evd.eigvalsh(frozen, overwrite_a=True, backend="cpu"), np.linalg.eigvalsh(strided))


class Tensor:
    """A host array of another library, known by DLPack and by what NumPy asks for."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.array, dtype=dtype)

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("shape", [(20, 20), (0, 0), (2, 6, 6)])
def test_results_are_of_the_library_of_the_operand(shape, monkeypatch):
    library = types.ModuleType("tensors")
    library.from_dlpack = lambda array: Tensor(np.from_dlpack(array))
    monkeypatch.setitem(sys.modules, "tensors", library)
    monkeypatch.setattr(Tensor, "__module__", "tensors")
    a = rng(15).standard_normal(shape)
    a = a + a.swapaxes(-1, -2)
    results = [*evd.eigh(Tensor(a), backend="cpu"), evd.eigvalsh(Tensor(a), backend="cpu")]
    expected = [*evd.eigh(a, backend="cpu"), evd.eigvalsh(a, backend="cpu")]
    if len(shape) == 2:
        results += evd.tridiagonalize(Tensor(a), calc_q=True, backend="cpu")
        expected += evd.tridiagonalize(a, calc_q=True, backend="cpu")
    if shape == (20, 20):
        d, e = np.diag(a).copy(), np.diag(a, 1).copy()
        results += [*evd.eigh_tridiagonal(Tensor(d), Tensor(e), backend="cpu")]
        expected += [*evd.eigh_tridiagonal(d, e, backend="cpu")]
        results += [evd.eigvals_banded(Tensor(a[:2]), backend="cpu")]
        expected += [evd.eigvals_banded(a[:2], backend="cpu")]
    for ours, same in zip(results, expected, strict=True):
        assert isinstance(ours, Tensor)
        np.testing.assert_array_equal(ours.array, same)


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("eigvals_only", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_agrees_with_scipy_call_for_call(lower, eigvals_only, dtype):
    a = random_hermitian(20, rng(13), dtype)
    keywords = {"lower": lower, "eigvals_only": eigvals_only, "subset_by_index": (2, 9)}
    theirs = scipy.linalg.eigh(a, **keywords)
    ours = evd.eigh(a, **keywords, backend="cpu")
    if eigvals_only:
        theirs, ours = (theirs,), (ours,)
    tolerance = 200 * np.finfo(dtype).eps
    np.testing.assert_allclose(ours[0], theirs[0], atol=tolerance, rtol=tolerance)
    if not eigvals_only:
        # Up to the phase of each vector.
        overlap = np.abs(np.sum(ours[1].conj() * theirs[1], axis=0))
        np.testing.assert_allclose(overlap, 1, atol=100 * tolerance)


@pytest.mark.usefixtures("solver")
def test_rank_deficient_panels():
    values = np.zeros(140)
    values[:3] = [1, -2, 3]
    a = with_spectrum(values, rng(14))
    a[:, 40:90] = 0
    a[40:90] = 0
    assert passes(residuals(a, *evd.eigh(a, backend="cpu")))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"near_overflow", "near_underflow"}))
def test_small_parts_are_orthogonal(family, dtype):
    """A part of at most an eighth comes from bisection and inverse iteration, also out of a cluster."""
    n = 170
    a = FAMILIES[family](n, rng(3), dtype)
    reference = np.linalg.eigvalsh(a.astype(np.complex128 if np.dtype(dtype).kind == "c" else np.float64))
    for first, last in ((0, 0), (70, 90), (149, 169)):
        w, v = evd.eigh(a, subset_by_index=(first, last), backend="cpu")
        assert v.shape == (n, last - first + 1)
        assert passes(residuals(a, w, v, reference[first : last + 1]))
