"""One look at a stored matrix on the CPU, and Lanczos steps, for any entries and any unit of energy."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm import bounds, ldos
from spectile.kpm.cpu.inspection import inspect
from spectile.kpm.moments import make_engine
from spectile.kpm.operators.engine import ProductEngine
from spectile.kpm.operators.lattices import anderson, graphene

DTYPES = ["float32", "float64", "complex64", "complex128"]


def matrix(dtype, seed, *, rows=40, hermitian):
    """Return a canonical CSR matrix with stored zeros, empty rows and entries of any size."""
    rng = np.random.default_rng(seed)
    full = rng.standard_normal((rows, rows)) * 10.0 ** rng.integers(-3, 4, (rows, rows))
    if np.dtype(dtype).kind == "c":
        full = full + 1j * rng.standard_normal((rows, rows))
    full = full * (rng.random((rows, rows)) < 0.1)
    full[rng.integers(rows, size=5)] = 0
    full = full + full.conj().T if hermitian else full
    stored = (full != 0) | (rng.random((rows, rows)) < 0.05)  # zeros that are stored, without partners
    row, column = np.nonzero(stored)
    pointer = np.concatenate([[0], np.cumsum(stored.sum(axis=1))])
    return sp.csr_array((full[row, column].astype(dtype), column, pointer), shape=full.shape)


@pytest.mark.parametrize("hermitian", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_look_finds_what_a_full_matrix_shows(dtype, hermitian):
    for seed in range(12):
        held = matrix(dtype, seed, hermitian=hermitian)
        full = held.toarray().astype("complex128")
        seen = inspect(held)
        assert seen.finite and seen.longest == np.diff(held.indptr).max()
        assert seen.largest == pytest.approx(np.abs(full).max(), rel=1e-6)
        assert seen.difference == pytest.approx(np.abs(full - full.conj().T).max(), rel=1e-6, abs=1e-7 * seen.largest)
        assert seen.bounds == pytest.approx(bounds.gershgorin(held), rel=1e-6)


@pytest.mark.parametrize("place", [0, 3, -1])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_look_finds_an_entry_that_is_not_finite(value, place):
    held = matrix("complex64", 1, hermitian=True)
    held.data[place] = value
    assert not inspect(held).finite
    with pytest.raises(ValueError, match="NaN or infinity"):
        make_engine(held, "cpu").check_hermitian()


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_entry_that_is_wrong_is_seen_wherever_it_lies(dtype):
    held = graphene(3, 3).tocsr().astype(dtype)
    held.sort_indices()
    make_engine(held, "cpu").check_hermitian()
    for place in range(held.nnz):
        other = held.copy()
        other.data[place] *= 1.01
        with pytest.raises(ValueError, match="not Hermitian"):
            make_engine(other, "cpu").check_hermitian()


@pytest.mark.parametrize("dtype", DTYPES)
def test_lanczos_steps_are_those_of_products(dtype):
    for held in (graphene(9, 8), anderson(7, disorder=4, rng=3)):
        engine = make_engine(held.astype(dtype), "cpu")
        found, expected = engine.tridiagonalize(12), ProductEngine.tridiagonalize(engine, 12)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=2e3 * np.finfo(dtype).eps)


@pytest.mark.parametrize(("dtype", "least", "most"), [("float32", -149, 122), ("complex128", -1000, 1001)])
def test_bounds_and_moments_do_not_depend_on_the_unit_of_energy(dtype, least, most):
    # Whole numbers times a power of two are exact, those below the smallest normal number too.
    held = (graphene(6, 6) * 3 + sp.diags_array(np.arange(72) % 2.0)).tocsr()
    known = make_engine(held.astype(dtype), "cpu")
    low, high = bounds.given_or_found(known, None)
    moments = ldos(held.astype(dtype), [3], 24, bounds=(low, high), backend="cpu").moments
    for exponent in range(least, most, (most - least) // 28):
        scaled = held.copy()
        scaled.data = np.ldexp(held.data, exponent)
        scaled = scaled.astype(dtype)
        found = bounds.given_or_found(make_engine(scaled, "cpu"), None)
        np.testing.assert_allclose(np.ldexp(found, -exponent), (low, high), rtol=1e-4)
        given = tuple(np.ldexp([low, high], exponent).tolist())
        again = ldos(scaled, [3], 24, bounds=given, backend="cpu").moments
        np.testing.assert_allclose(again, moments, rtol=0, atol=1e-4)
