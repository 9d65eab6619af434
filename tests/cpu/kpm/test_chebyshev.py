"""The public iterator: T_m(H̃)|v⟩ and ⟨bra|T_m|v⟩ of every form of H against dense eigenvalues, and worded errors."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

import spectile
from spectile.kpm import chebyshev, spectral_bounds
from spectile.kpm.operators.lattices import anderson, chain, graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator

SAMPLE = TopologicalInsulator(3, 4, 3)


def random_hermitian(n, dtype, seed=1):
    rng = np.random.default_rng(seed)
    matrix = sp.random_array((n, n), density=0.1, rng=rng, dtype=np.float64)
    if np.dtype(dtype).kind == "c":
        matrix = matrix + 1j * sp.random_array((n, n), density=0.1, rng=rng, dtype=np.float64)
    return (matrix + matrix.conj().T).tocsr().astype(dtype)


FORMS = {
    "real": random_hermitian(90, "float64"),
    "complex": random_hermitian(90, "complex128"),
    "float32": random_hermitian(90, "float32"),
    "complex64": random_hermitian(90, "complex64"),
    "rows that repeat": graphene(6, 7),
    "dense": anderson(4, disorder=2, rng=1).toarray(),
    "operator": aslinearoperator(anderson(4, disorder=2, rng=1)),
    "stencil": SAMPLE,
    "far from zero": chain(80) + 1e5 * sp.eye_array(80),
}


def dense(H):
    if isinstance(H, TopologicalInsulator):
        return H.matrix().toarray()
    return H.toarray() if sp.issparse(H) else H @ np.eye(H.shape[0])


def exact_terms(H, start, count, terms):
    energies, states = np.linalg.eigh(dense(H).astype(np.complex128))
    x = np.clip((energies - terms.centre) / terms.scale, -1, 1)
    return [states @ (np.cos(m * np.arccos(x))[:, None] * (states.conj().T @ start)) for m in range(count)]


def vectors(n, columns, kind, seed=5):
    rng = np.random.default_rng(seed)
    real = rng.standard_normal((n, columns))
    return real if kind == "f" else real + 1j * rng.standard_normal((n, columns))


@pytest.mark.parametrize("kind", ["f", "c"])
@pytest.mark.parametrize("form", FORMS)
def test_items_are_chebyshev_polynomials_of_h(form, kind):
    H = FORMS[form]
    start = vectors(H.shape[0], 3, kind)
    single = H.dtype.itemsize // (2 if H.dtype.kind == "c" else 1) == 4
    if single:
        start = start.astype("complex64" if kind == "c" else "float32")
    before = start.copy()
    terms = chebyshev(H, start, 20, backend="cpu")
    exact = exact_terms(H, start, 20, terms)
    assert terms.dtype == np.result_type(H.dtype, start.dtype) and len(terms) == 20
    for m, block in enumerate(terms):
        assert terms.order == m and block.dtype == terms.dtype and block.shape == start.shape
        np.testing.assert_allclose(block, exact[m], atol=1e-4 if single else 1e-9 if form == "far from zero" else 1e-11)
        with pytest.raises(ValueError, match="read-only"):
            block[0] = 0
    assert len(terms) == 0 and list(terms) == []
    np.testing.assert_array_equal(start, before)


@pytest.mark.parametrize("form", ["real", "complex", "stencil"])
@pytest.mark.parametrize("kinds", ["ff", "fc", "cf", "cc"])
def test_with_a_bra_items_are_overlaps(form, kinds):
    H = FORMS[form]
    start, bra = vectors(H.shape[0], 4, kinds[0]), vectors(H.shape[0], 4, kinds[1], seed=6)
    terms = chebyshev(H, start, 15, bra=bra, backend="cpu")
    exact = exact_terms(H, start, 15, terms)
    for m, overlaps in enumerate(terms):
        np.testing.assert_allclose(overlaps, np.sum(bra.conj() * exact[m], axis=0), atol=1e-10)
        np.testing.assert_allclose(terms.vectors, exact[m], atol=1e-11)
    # One vector has one number.
    alone = chebyshev(H, start[:, 1], 15, bra=bra[:, 1], bounds=terms.bounds, backend="cpu")
    *_, last = alone
    assert np.ndim(last) == 0 and alone.vectors.shape == (H.shape[0],)
    np.testing.assert_allclose(last, overlaps[1], atol=1e-10)


@pytest.mark.parametrize("kind", ["f", "c"])
def test_vectors_of_a_real_matrix_are_not_copied(kind):
    terms = chebyshev(FORMS["real"], vectors(90, 2, kind), 6, backend="cpu")
    blocks = list(terms)
    for even in blocks[2::2]:
        assert np.shares_memory(even, blocks[0])
    for odd in blocks[3::2]:
        assert np.shares_memory(odd, blocks[1])


def test_precision_and_integers_follow_numpy():
    assert chebyshev(FORMS["float32"], np.ones((90, 1)), 2, backend="cpu").dtype == np.float64
    assert chebyshev(FORMS["float32"], np.ones((90, 1), np.float32), 2, backend="cpu").dtype == np.float32
    assert chebyshev(FORMS["complex64"], np.ones((90, 1)), 2, backend="cpu").dtype == np.complex128
    assert chebyshev(FORMS["float32"], np.ones((90, 1), int), 2, backend="cpu").dtype == np.float64
    assert chebyshev(FORMS["real"], np.ones((90, 1), np.complex64), 2, backend="cpu").dtype == np.complex128
    strided = np.ones((180, 3), order="F")[::2]
    _, second = chebyshev(FORMS["real"], strided, 2, backend="cpu")
    np.testing.assert_allclose(second, chebyshev_of(FORMS["real"], np.ones((90, 3))), atol=1e-13)


def chebyshev_of(H, start):
    terms = chebyshev(H, start, 2, backend="cpu")
    return (H @ start - terms.centre * start) / terms.scale


def test_one_item_zero_vectors_and_a_single_row():
    (only,) = chebyshev(FORMS["real"], np.ones((90, 2)), 1, backend="cpu")
    np.testing.assert_array_equal(only, 1)
    for block in chebyshev(FORMS["complex"], np.zeros((90, 2)), 5, backend="cpu"):
        assert not block.any()
    terms = chebyshev(np.array([[2.0]]), [1.0], 4, backend="cpu")
    assert [block.shape for block in terms] == [(1,)] * 4
    assert terms.centre == pytest.approx(2)


def test_bounds_hold_the_spectrum_closely():
    for form in ("real", "complex", "stencil", "operator"):
        energies = np.linalg.eigvalsh(dense(FORMS[form]))
        low, high = spectral_bounds(FORMS[form], backend="cpu")
        width = energies[-1] - energies[0]
        assert energies[0] - 0.2 * width < low <= energies[0] + 1e-9 and -1e-9 <= high - energies[-1] < 0.2 * width
    terms = chebyshev(FORMS["real"], np.ones(90), 3, bounds=(-9.9, 29.7), backend="cpu")
    assert (terms.scale, terms.centre) == pytest.approx((20, 9.9)) and terms.bounds == (-9.9, 29.7)


@pytest.mark.parametrize("num_moments", [3, 9, 40])
@pytest.mark.parametrize("form", ["real", "complex", "operator"])
def test_a_spectrum_outside_the_bounds_never_ends_in_numbers(form, num_moments):
    low, high = spectral_bounds(FORMS[form], backend="cpu")
    middle = (low + high) / 2
    start = vectors(FORMS[form].shape[0], 2, "f")
    narrow = middle + (low - middle) / 3, middle + (high - middle) / 3
    with pytest.raises(ValueError, match="leaves the bounds"):
        list(chebyshev(FORMS[form], start, num_moments, bounds=narrow, backend="cpu"))


def test_bad_input_is_one_sentence():
    H, start = FORMS["real"], np.ones((90, 2))
    for wrong, message in (
        (dict(vectors=np.ones((89, 2))), "one row for each of the 90"),
        (dict(vectors=np.ones((90, 2, 1))), "one row for each of the 90"),
        (dict(vectors=np.ones((90, 0))), "at least one column"),
        (dict(vectors=np.full((90, 1), np.nan)), "NaN or infinity"),
        (dict(bra=np.ones((90, 3))), "and 2 columns"),
        (dict(num_moments=0), "num_moments = 0"),
        (dict(bounds=(1, 0)), "hold no spectrum"),
        (dict(H=sp.csr_array(np.triu(np.ones((90, 90))))), "not Hermitian"),
    ):
        arguments = dict(H=H, vectors=start, num_moments=4, backend="cpu") | wrong
        with pytest.raises(ValueError, match=message):
            list(chebyshev(**arguments))
    for name in ("vectors", "bra"):
        for wrong in (np.full((90, 2), "a"), np.full((90, 2), None), np.ones((90, 2), np.longdouble)):
            with pytest.raises(TypeError, match=f"{name} are {wrong.dtype}: convert"):
                chebyshev(H, **(dict(vectors=start, bra=start) | {name: wrong}), num_moments=4, backend="cpu")

    class Writes:
        shape, dtype = (90, 90), np.dtype(np.float64)

        def __matmul__(self, x):
            x *= 2
            return x

    with pytest.raises(ValueError, match="writes into"):
        chebyshev(Writes(), start, 4, backend="cpu")
    assert spectile.chebyshev is chebyshev and spectile.spectral_bounds is spectral_bounds


def test_vectors_may_be_written_over_between_items():
    H, given = chain(30), np.random.default_rng(3).standard_normal((30, 2))
    wanted = np.array(list(chebyshev(H, given, 6, bra=given, backend="cpu")))
    start, bra = given.copy(), given.copy()
    for found, right in zip(chebyshev(H, start, 6, bra=bra, backend="cpu"), wanted, strict=True):
        np.testing.assert_array_equal(found, right)
        start[:] = bra[:] = 7
