"""Densities of operators and of given vectors, integrals without damping, kernels, and orders from a resolution."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

from spectile.kpm import LorentzKernel, correlator, kpm_dos, ldos, reference, spectral_function
from spectile.kpm.operators.lattices import anderson, chain
from tests.hamiltonians import haldane

REAL = anderson(5, disorder=2, rng=1)
COMPLEX = haldane(6, mass=0.3)[0]
RNG = np.random.default_rng(3)


def exact(found, H, A, vectors):
    energies, states = np.linalg.eigh(H.toarray())
    T = np.cos(np.arange(found.num_moments)[:, None] * np.arccos((energies - found.centre) / found.scale))
    bra, ket = vectors.conj().T @ A @ states, states.conj().T @ vectors
    return np.einsum("mn,rn,nr->mr", T, bra, ket)


def operator_of(n, kind):
    matrix = RNG.standard_normal((n, n)) + 1j * RNG.standard_normal((n, n))
    return {
        "hermitian": matrix + matrix.conj().T,
        "real": (matrix + matrix.T).real,
        "imaginary": 1j * (matrix.real - matrix.real.T),
        "any": matrix,
    }[kind]


@pytest.mark.parametrize("kind", ["hermitian", "real", "imaginary", "any"])
@pytest.mark.parametrize("H", [REAL, COMPLEX], ids=["real", "complex"])
def test_moments_of_an_operator(H, kind):
    n = H.shape[0]
    A = operator_of(n, kind)
    found = kpm_dos(H, 24, 4, rng=2, operator=sp.csr_array(A), backend="cpu")
    seed = int(np.random.default_rng(2).integers(2**62))
    vectors = reference.random_phases(seed, n, 4, real=H.dtype.kind == "f")
    moments = exact(found, H, A, vectors)
    moments = moments if kind == "any" else moments.real
    np.testing.assert_allclose(found.moments, moments.mean(axis=1), atol=1e-11 * n)
    each = kpm_dos(H, 24, 4, rng=2, operator=A, mean=False, backend="cpu")
    np.testing.assert_allclose(each.moments, moments, atol=1e-11 * n)
    assert each.densities.shape == (48, 4) and found.densities.shape == found.errors.shape == (48,)
    np.testing.assert_allclose(each.densities.mean(axis=1), found.densities, atol=1e-10 * n)
    np.testing.assert_allclose(found.errors, each.densities.std(axis=1, ddof=1) / 2, rtol=1e-9)
    np.testing.assert_allclose(found(found.energies[5:9]), found.densities[5:9], rtol=1e-8, atol=1e-9 * n)
    value, error = found.integrate(return_error=True)
    assert value == pytest.approx(moments[0].mean()) and error == pytest.approx(moments[0].std(ddof=1) / 2)


@pytest.mark.parametrize("operator", [None, "matrix", "function"])
@pytest.mark.parametrize("kind", ["f", "c"])
@pytest.mark.parametrize("H", [REAL, COMPLEX], ids=["real", "complex"])
def test_given_vectors_are_taken_as_they_are(H, kind, operator):
    n = H.shape[0]
    block = RNG.standard_normal((n, 5)) + (1j * RNG.standard_normal((n, 5)) if kind == "c" else 0)
    A = operator_of(n, "real")
    given = {None: None, "matrix": A, "function": lambda x: A @ x}[operator]
    found = kpm_dos(H, 15, operator=given, vectors=block, mean=False, backend="cpu")
    moments = exact(found, H, np.eye(n) if operator is None else A, block)
    np.testing.assert_allclose(found.moments, moments, atol=1e-10 * n)
    asked = []

    def factory(number):
        asked.append(number)
        return block[:, number]

    some = kpm_dos(H, 10, 3, operator=given, vectors=factory, bounds=found.bounds, backend="cpu")
    some.add_vectors(2)
    some.add_moments(5)
    assert asked == [0, 1, 2, 3, 4] and (some.num_moments, some.num_vectors) == (15, 5)
    np.testing.assert_allclose(some.moments, moments.mean(axis=1), atol=1e-10 * n)
    with pytest.raises(ValueError, match="given as a block"):
        found.add_vectors(1)


def test_operators_of_other_things_than_numbers_are_refused_by_name():
    A = REAL.toarray().astype(object)
    for operator, message in ((A, "operator has dtype object"), (lambda block: A @ block, "operator gave numbers")):
        with pytest.raises(TypeError, match=message):
            kpm_dos(REAL, 4, 1, operator=operator, backend="cpu")


def test_each_random_vector_without_an_operator():
    mean, each = (kpm_dos(REAL, 20, 3, rng=5, mean=mean, backend="cpu") for mean in (True, False))
    np.testing.assert_allclose(each.moments.mean(axis=1), mean.moments, atol=1e-10)
    np.testing.assert_allclose(each.densities.mean(axis=1), mean.densities, atol=1e-9)


def test_local_and_momentum_resolved_densities_of_an_operator():
    A = operator_of(125, "real")
    found = ldos(REAL, [3, 7], 12, operator=A, backend="cpu")
    unit = np.eye(125)[:, [3, 7]]
    np.testing.assert_allclose(found.integrate(), np.diag(A)[[3, 7]], atol=1e-9)
    found.num_moments = 12
    np.testing.assert_allclose(found.moments, exact(found, REAL, A, unit), atol=1e-10)
    r = np.arange(125.0)[:, None]
    plain = spectral_function(REAL, [[0.3], [0.7]], r, num_moments=12, backend="cpu")
    same = spectral_function(
        REAL, [[0.3], [0.7]], r, num_moments=12, operator=np.eye(125), bounds=plain.bounds, backend="cpu"
    )
    np.testing.assert_allclose(same.moments, plain.moments, atol=1e-11)


# ---- integrals, kernels, orders


def fermi(energies, temperature):
    return 0.5 * (1 - np.tanh(energies / (2 * temperature)))


def test_undamped_integrals_of_smooth_functions_are_exact():
    energies = np.linalg.eigvalsh(REAL.toarray())
    density = kpm_dos(REAL, 512, vectors=np.sqrt(125) * np.eye(125), backend="cpu")
    temperatures = np.array([0.3, 0.5, 2.0])
    many = density.integrate(lambda e: fermi(e, temperatures[:, None]), damped=False)
    exact = [fermi(energies, t).sum() for t in temperatures]
    np.testing.assert_allclose(many, exact, rtol=1e-12)
    damped = density.integrate(lambda e: fermi(e, temperatures[:, None]))
    assert np.all(abs(damped - exact) > 1e-9)


def test_integrals_of_a_density_come_in_rows_with_errors():
    density = kpm_dos(REAL, 64, 6, rng=1, backend="cpu")

    def rows(e):
        return np.array([np.ones_like(e), e, e**2])

    values, errors = density.integrate(rows, damped=False, return_error=True)
    assert values.shape == errors.shape == (3,)
    energies = np.linalg.eigvalsh(REAL.toarray())
    assert values[0] == pytest.approx(125) and errors[0] < 1e-9
    for power in (1, 2):
        assert abs(values[power] - np.sum(energies**power)) < 5 * errors[power] + 1e-9
    assert density.integrate(rows)[0] == pytest.approx(density.integrate())
    np.testing.assert_array_equal(density.integrate(rows), density.integrate(rows, damped=True))
    assert not np.array_equal(density.integrate(rows), density.integrate(rows, damped=False))
    alone = kpm_dos(REAL, 64, 1, rng=1, backend="cpu").integrate(rows, return_error=True)
    assert np.isnan(alone[1]).all()
    with pytest.raises(ValueError, match="one value for each"):
        density.integrate(lambda e: np.ones((2, 3)))


def test_kernels_by_name_and_by_resolution():
    plain = kpm_dos(REAL, 32, 2, rng=1, kernel="none", backend="cpu")
    x = np.cos(np.pi * (np.arange(64) + 0.5) / 64)[::-1]
    series = plain.moments * np.where(np.arange(32) == 0, 1, 2)
    np.testing.assert_allclose(
        plain.densities,
        np.polynomial.chebyshev.chebval(x, series) / (np.pi * np.sqrt(1 - x**2) * plain.scale),
        rtol=1e-9,
        atol=1e-9,
    )
    for kernel, resolution in (("lorentz", 4.0), (LorentzKernel(2.5), 2.5)):
        found = kpm_dos(REAL, 32, 2, rng=1, kernel=kernel, backend="cpu")
        own = kpm_dos(REAL, 32, 2, rng=1, kernel=lambda m, w=resolution: reference.lorentz_kernel(m, w), backend="cpu")
        np.testing.assert_array_equal(found.densities, own.densities)


@pytest.mark.parametrize("resolution", [0.5, 2.0])
def test_the_order_follows_from_an_energy(resolution, tmp_path):
    density = kpm_dos(REAL, num_vectors=2, rng=1, energy_resolution=resolution, backend="cpu")
    order = int(np.ceil(2 * np.pi * density.scale / resolution))
    assert density.num_moments == order
    kept = kpm_dos(
        REAL, num_vectors=2, rng=1, energy_resolution=resolution, backend="cpu", checkpoint=tmp_path / "state"
    )
    np.testing.assert_array_equal(kept.moments, density.moments)
    for found in (
        ldos(REAL, [1], energy_resolution=resolution, backend="cpu"),
        ldos(REAL, [1], energy_resolution=resolution, operator=REAL, backend="cpu"),
        kpm_dos(REAL, num_vectors=2, rng=1, energy_resolution=resolution, mean=False, backend="cpu"),
    ):
        assert len(found.moments) == order
    assert (
        len(spectral_function(REAL, [[0.1]], np.arange(125.0), energy_resolution=resolution, backend="cpu").moments) > 2
    )


def test_bad_input_is_one_sentence(tmp_path):
    for words, message in (
        (dict(operator=np.eye(3)), "operator has shape"),
        (dict(vectors=np.ones((3, 1))), "one row for each of the 125"),
        (dict(vectors=lambda n: np.ones(3)), "one row for each of the 125"),
        (dict(energy_resolution=0), "energy_resolution = 0"),
        (dict(operator=REAL, energy_resolution=-1.0), "energy_resolution = -1"),
        (dict(operator=REAL, bounds=(-1, 1)), "leaves the"),
        (dict(vectors=np.ones((125, 1)), bounds=(-1, 1)), "leaves the"),
        (dict(operator=aslinearoperator(np.triu(np.ones((125, 125))))), "not Hermitian"),
    ):
        with pytest.raises(ValueError, match=message):
            kpm_dos(REAL, 8, 2, backend="cpu", **words)


def test_errors_have_the_unit_of_what_they_are_errors_of():
    """Where squares of densities leave the range of numbers, too; of one vector there is none."""
    H, words = chain(16), {"num_moments": 8, "num_vectors": 3, "rng": 1, "backend": "cpu"}
    known, counted = kpm_dos(H, operator=H, **words), kpm_dos(H, **words).integrate(return_error=True)[1]
    for exponent in (-520, 520):
        unit = 2.0**exponent
        with np.errstate(all="raise", under="ignore"):
            found = kpm_dos(H * unit, operator=H * unit, **words)
            np.testing.assert_allclose(found.errors, known.errors, rtol=1e-9)
            found = kpm_dos(H * unit, operator=H, **words)
            np.testing.assert_allclose(found.errors * unit, known.errors, rtol=1e-9)
            assert kpm_dos(H * unit, **words).integrate(return_error=True)[1] == pytest.approx(counted, abs=1e-12)
    one = kpm_dos(H, operator=H, **words | {"num_vectors": 1})
    assert np.isnan(one.errors).all() and one.errors.shape == one.densities.shape
    assert np.isnan(kpm_dos(H, **words | {"num_vectors": 1}).integrate(return_error=True)[1])


def test_functions_may_write_into_what_they_are_given_and_return_one_array():
    density = kpm_dos(REAL, 32, 2, rng=1, backend="cpu")
    wanted = density.integrate(np.exp), density.integrate(lambda energies: energies)
    for _ in range(2):
        found = density.integrate(lambda energies: np.exp(energies, out=energies))
        assert (found, density.integrate(lambda energies: energies)) == wanted
    kept, given = np.zeros(125), np.random.default_rng(2).standard_normal((125, 3))

    def one(number):
        kept[:] = given[:, number]
        return kept

    for operator in (None, REAL):
        options = {"operator": operator, "mean": False, "backend": "cpu"}
        found = kpm_dos(REAL, 16, 3, vectors=one, **options)
        np.testing.assert_array_equal(found.moments, kpm_dos(REAL, 16, vectors=given, **options).moments)


@pytest.mark.parametrize("H", [REAL, COMPLEX], ids=["real", "complex"])
@pytest.mark.parametrize("width", [1, 64])
def test_operators_may_return_one_array_each_time(H, width, monkeypatch):
    monkeypatch.setattr("spectile.kpm.iterator.MAX_BLOCK", width)
    held = {}

    def one(block):
        kept = held.setdefault((block.shape, block.dtype), np.empty_like(block))
        kept[...] = H @ block
        return kept

    options = {"num_moments": 8, "num_vectors": 3, "rng": 1, "backend": "cpu"}
    found = [kpm_dos(H, operator=A, mean=False, **options) for A in (one, H)]
    for each in found:
        each.add_moments(4)
    np.testing.assert_allclose(*(each.moments for each in found), atol=1e-10)
    found = (correlator(H, A, A, **options) for A in (one, H))
    np.testing.assert_allclose(*(each.moments_by_vector for each in found), atol=1e-10)


def test_a_resolution_is_positive():
    for resolution, error in ((-1.0, ValueError), (np.nan, ValueError), ("a", TypeError)):
        with pytest.raises(error, match="resolution = "):
            LorentzKernel(resolution)


@pytest.mark.parametrize(("dtype", "size"), [(float, 1e200), (complex, 1e300), (float, 1e-170), (np.complex64, 1e-170)])
@pytest.mark.parametrize("operator", [None, np.eye(30)])
def test_vectors_whose_norms_leave_the_range_are_refused(dtype, size, operator):
    H = np.diag(np.linspace(-1, 1, 30)).astype(dtype)
    vectors = np.full((30, 3), size)
    for given in (vectors, lambda number: vectors[:, number]):
        with pytest.raises(ValueError, match="range of float64: scale the vectors"):
            kpm_dos(H, 8, 3, vectors=given, operator=operator, backend="cpu")


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.float64, np.complex128])
@pytest.mark.parametrize("power", [-500, -120, -100, -45, 3, 70, 120, 500])
@pytest.mark.parametrize("operator", [None, np.diag(np.arange(30.0))])
def test_vectors_of_any_size_have_the_moments_of_others_by_its_square(dtype, power, operator):
    """In bits where the type holds the vectors; beside columns of other sizes and zeros."""
    H = np.diag(np.linspace(-1, 1, 30)).astype(dtype)
    vectors = np.random.default_rng(3).standard_normal((30, 3)).astype(dtype)
    vectors[:, 2] = 0
    kind = dtype if abs(power) < np.finfo(dtype).maxexp - 4 else np.result_type(dtype, np.float64)
    expected = kpm_dos(H, 16, 3, vectors=vectors.astype(kind), operator=operator, mean=False, backend="cpu")
    given = vectors.astype(kind) * np.array([2.0**power, 1, 1]).astype(kind)
    found = kpm_dos(H, 16, 3, vectors=given, operator=operator, mean=False, backend="cpu")
    np.testing.assert_array_equal(found.moments, expected.moments * [4.0**power, 1, 1])
    found.add_moments(10)
    assert np.isfinite(found.moments).all() and len(found.moments) == 26
