"""Functions of a Hamiltonian against dense ones and SciPy: time evolution, any function, Green's functions."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator, expm_multiply

from spectile.core.progress import Progress
from spectile.kpm import apply, chebyshev, evolve, functions, greens_function
from spectile.kpm.checkpoint import Run
from spectile.kpm.cpu import operator
from spectile.kpm.iterator import Terms, engine_for
from spectile.kpm.operators.lattices import anderson, chain
from spectile.kpm.operators.topological_insulator import TopologicalInsulator

REAL = anderson(5, disorder=2, rng=1)
SAMPLE = TopologicalInsulator(3, 4, 3)
FORMS = {"real": REAL, "complex": SAMPLE.matrix(), "stencil": SAMPLE, "operator": aslinearoperator(REAL)}


def dense(H):
    if isinstance(H, TopologicalInsulator):
        H = H.matrix()
    return H.toarray() if sp.issparse(H) else H @ np.eye(H.shape[0])


def states(n, columns, kind):
    rng = np.random.default_rng(2)
    block = rng.standard_normal((n, columns))
    return block if kind == "f" else block + 1j * rng.standard_normal(block.shape)


@pytest.mark.parametrize("kind", ["f", "c"])
@pytest.mark.parametrize("form", FORMS)
def test_evolution_is_scipys_and_unitary(form, kind):
    H, psi = FORMS[form], states(FORMS[form].shape[0], 2, kind)
    times = [3.0, -1.5, 0.0, 20.0]
    found = evolve(H, psi, times, backend="cpu")
    assert found.shape == (4, *psi.shape) and found.dtype == np.complex128
    matrix = sp.csr_array(dense(H))
    for state, time in zip(found, times, strict=True):
        exact = expm_multiply(-1j * time * matrix.astype(complex), psi.astype(complex))
        assert np.linalg.norm(state - exact) < 1e-12 * np.linalg.norm(psi) * max(1, abs(time))
        np.testing.assert_allclose(np.linalg.norm(state, axis=0), np.linalg.norm(psi, axis=0), rtol=1e-12)


@pytest.mark.parametrize("kind", ["f", "c"])
@pytest.mark.parametrize("form", FORMS)
def test_sums_of_the_last_two_terms_are_those_of_copies(form, kind, monkeypatch):
    H = FORMS[form]
    psi = states(H.shape[0], 3, kind)

    def found():
        images = [apply(f, H, psi, backend="cpu") for f in (np.cos, lambda e: np.exp(1j * e), lambda e: 0 * e + 2)]
        return [evolve(H, psi, 3.0, backend="cpu"), *images]

    paired = found()
    monkeypatch.setattr(functions, "PAIRED", 0)
    for one, other in zip(paired, found(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-13 * abs(other).max())


@pytest.mark.parametrize("kind", ["f", "d", "F", "D"])
def test_threads_share_a_sum_of_two_terms(kind, monkeypatch):
    monkeypatch.setattr(operator, "num_threads", lambda: 3)
    rng = np.random.default_rng(5)
    drawn = rng.standard_normal((3, 100_003, 2))
    a, b, total = (drawn @ [1, 1j] if kind in "FD" else drawn[..., 0]).astype(kind)
    x, y = a[:2]
    wanted = total + x * a + y * b
    operator.add_pair(a, b, x, y, total)
    np.testing.assert_allclose(total, wanted, rtol=1e-5, atol=1e-5 if kind in "fF" else 1e-12)


def test_complex_states_in_chunks_of_real_numbers_have_one_sum(monkeypatch):
    """As a kernel of wide blocks keeps them: (chunks, N, columns of a chunk)."""
    H, psi = chain(30), states(30, 4, "c")
    engine, block = engine_for(H, psi, "cpu")
    terms = Terms(engine, block, (-2.1, 2.1), Progress("chunks", shown=False))
    blocks, own, made = terms.blocks, terms.own, []
    monkeypatch.setattr(
        terms, "blocks", lambda: [np.ascontiguousarray(one.reshape(30, 2, 4).swapaxes(0, 1)) for one in blocks()]
    )
    whole = lambda one: one.swapaxes(0, 1).reshape(30, 1, 8)  # noqa: E731
    monkeypatch.setattr(terms, "own", lambda given: own([whole(one) for one in given]))
    copied = functions._copied
    monkeypatch.setattr(
        functions, "_copied", lambda terms, weights, *rest: made.append(weights) or copied(terms, weights, *rest)
    )
    c = np.random.default_rng(2).standard_normal((9, 2)) @ [[1], [1j]]
    with Run("chunks", H, False) as run:
        found = functions.summed(terms, c, run)
    (weights,) = made
    assert weights.shape == c.shape and weights.dtype.kind == "c"
    wanted = sum(weight * term for weight, term in zip(c[:, 0], chebyshev(H, psi, 9, bounds=(-2.1, 2.1)), strict=True))
    np.testing.assert_allclose(found[0], wanted, atol=1e-13)


@pytest.mark.parametrize("sums", [1, 3])
@pytest.mark.parametrize("count", [2, 3, 4, 12, 13, 14])
def test_steps_add_every_term_once_while_they_have_it(count, sums):
    rng = np.random.default_rng(count)
    weights = rng.standard_normal((count, sums)) * (rng.random((count, sums)) < 0.6)
    weights[:, 0] = np.arange(1, count + 1)
    values = np.concatenate([[np.nan] * 2, rng.standard_normal(count), [np.nan] * 2])
    found, additions = np.zeros(sums), 0
    for step, each in enumerate(functions.additions(weights), 1):
        if each is not None:
            found += np.where(each == 0, 0, each * values[step : step + 3]).sum(axis=1)
            additions += int(each[0].any())
    np.testing.assert_allclose(found, values[2:-2] @ weights, atol=1e-13)
    assert additions == -(-count // 3)  # of a sum of all terms: when none of those at hand is in it


def test_many_times_in_passes_a_far_offset_and_one_state():
    H = chain(60) + 50 * sp.eye_array(60)
    psi = states(60, 1, "c")[:, 0]
    times = np.random.default_rng(3).permutation(np.linspace(-4, 6, 45))
    found = evolve(H, psi, times, backend="cpu")
    energies, vectors = np.linalg.eigh(dense(H))
    exact = np.exp(-1j * np.outer(times, energies)) * (vectors.T @ psi) @ vectors.T
    np.testing.assert_allclose(found, exact, atol=1e-11)
    np.testing.assert_allclose(
        evolve(H, psi, 2.0, backend="cpu"), expm_multiply(-2j * H.astype(complex), psi), atol=1e-11
    )
    assert evolve(H, psi, [], backend="cpu").shape == (0, 60)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-10])
def test_the_error_is_below_the_tolerance(tolerance):
    psi = states(125, 3, "f")
    energies, vectors = np.linalg.eigh(REAL.toarray())
    found = evolve(REAL, psi, 7.0, tolerance=tolerance, backend="cpu")
    exact = vectors @ (np.exp(-7j * energies)[:, None] * (vectors.T @ psi))
    assert np.all(np.linalg.norm(found - exact, axis=0) <= tolerance * np.linalg.norm(psi, axis=0))

    def f(energy):
        return np.exp(-3 * energy)

    found = apply(f, REAL, psi, tolerance=tolerance, backend="cpu")
    error = np.linalg.norm(found - vectors @ (f(energies)[:, None] * (vectors.T @ psi)), axis=0)
    assert np.all(error <= tolerance * f(energies.min() - 1) * np.linalg.norm(psi, axis=0))


@pytest.mark.parametrize("kind", ["f", "c"])
@pytest.mark.parametrize("form", FORMS)
def test_functions_are_those_of_the_eigenvalues(form, kind):
    H, psi = FORMS[form], states(FORMS[form].shape[0], 3, kind)
    energies, vectors = np.linalg.eigh(dense(H))
    for f, real in (
        (np.cos, True),
        (lambda energy: 1 / (energy - 2 - 3j), False),
        (lambda energy: energy**3 - 1, True),
        (lambda energy: 2.5, True),
    ):
        exact = vectors @ (np.broadcast_to(f(energies), energies.shape)[:, None] * (vectors.conj().T @ psi))
        found = apply(f, H, psi, backend="cpu")
        np.testing.assert_allclose(found, exact, atol=1e-9)
        assert (found.dtype.kind == "f") == (real and kind == "f" and form in ("real", "operator"))
    np.testing.assert_allclose(apply(lambda e: e, H, psi, num_moments=2, backend="cpu"), dense(H) @ psi, atol=1e-11)
    single = apply(np.cos, H.astype("float32") if form == "real" else H, psi.astype("complex64"), backend="cpu")
    assert single.dtype == (np.complex64 if form == "real" else np.complex128)


def test_a_partition_function_of_heisenbergs_chain():
    # Eight spins 1/2 in a ring, by two-site exchanges: S·S' = (P − 1/2)/2.
    sites = 8
    index = np.arange(2**sites)
    H = sp.csr_array((2**sites, 2**sites))
    for site in range(sites):
        other = (site + 1) % sites
        differ = ((index >> site) ^ (index >> other)) & 1
        swapped = index ^ (differ << site) ^ (differ << other)
        H = (
            H
            + sp.csr_array((np.full(index.size, 0.5), (index, swapped)), shape=H.shape)
            - 0.25 * sp.eye_array(index.size)
        )
    energies = np.linalg.eigvalsh(H.toarray())
    for beta in (0.5, 2.0):
        thermal = apply(lambda e, beta=beta: np.exp(-beta * e), H, np.eye(256), tolerance=1e-15, backend="cpu")
        partition = np.trace(thermal)
        assert partition == pytest.approx(np.exp(-beta * energies).sum(), rel=1e-12)


@pytest.mark.parametrize("width", [1.0, 1e-2, 1e-3, 3e-4, 1e-4])
def test_a_narrow_gaussian_is_not_taken_for_zero(width):
    for middle in np.random.default_rng(8).uniform(-0.99, 0.99, 20):
        coefficients = functions.series(lambda e, at=middle: np.exp(-(((e - at) / width) ** 2) / 2), 1.0, 0.0, 1e-9)
        assert np.polynomial.chebyshev.chebval(middle, coefficients) == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("background", [0.0, 1.0])
@pytest.mark.parametrize("width", [1e-2, 1e-3, 1e-20])
def test_a_narrow_peak_in_the_middle_is_seen_or_refused(width, background):
    """Whatever lies beside it, and where bounds are rounding apart, as of a multiple of one."""
    x = np.array([0.0, width, 0.5])
    for scale in (1.0, 1e-12):
        peak = lambda e, width=width * scale: background + np.exp(-((e / width) ** 2))  # noqa: E731
        try:
            coefficients = functions.series(peak, scale, 0.0, 1e-9)
        except ValueError:
            assert width < 1e-3
        else:
            found = np.polynomial.chebyshev.chebval(x, coefficients)
            np.testing.assert_allclose(found, peak(scale * x), atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_narrow_function_of_the_zero_matrix_is_not_zero(dtype):
    zero, psi = sp.csr_array((5, 5), dtype=dtype), np.ones(5, dtype)
    np.testing.assert_allclose(apply(lambda e: np.exp(-((e / 1e-3) ** 2)), zero, psi, backend="cpu"), 1, rtol=1e-6)
    with pytest.raises(ValueError, match="smooth"):
        apply(lambda e: np.exp(-((e / 1e-20) ** 2)), zero, psi, backend="cpu")


@pytest.mark.parametrize("tolerance", [1e-15, 1e-30])
@pytest.mark.parametrize("width", [1e-3, 1.0, 30.0, 3e3])
def test_a_smooth_function_ends_where_rounding_does_whatever_is_asked(width, tolerance):
    rng = np.random.default_rng(5)
    noise = 1 + np.finfo(float).eps * rng.uniform(-2, 2, 1 << 20)  # of the exponential of another library
    coefficients = functions.series(lambda e: np.cos(width * e) * noise[: e.size], 1.0, 0.0, tolerance)
    x = np.linspace(-1, 1, 101)
    assert len(coefficients) < 2 * width + 64
    found = np.polynomial.chebyshev.chebval(x, coefficients)
    np.testing.assert_allclose(found, np.cos(width * x), atol=1e-13 * max(1, width))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("eta", [0.5, -0.4])
def test_greens_functions_are_inverses(form, eta):
    H = FORMS[form]
    n = H.shape[0]
    energies = [-2.0, 0.1, 30.0]
    exact = np.array([np.linalg.inv((energy + 1j * eta) * np.eye(n) - dense(H)) for energy in energies])
    rows, columns = [0, 7, -1], [3, 4]
    np.testing.assert_allclose(
        greens_function(H, rows, columns, energies, eta, backend="cpu"), exact[:, rows][:, :, columns], atol=1e-9
    )
    np.testing.assert_allclose(
        greens_function(H, None, columns, energies, eta, backend="cpu"), exact[:, :, columns], atol=1e-9
    )
    one = greens_function(H, 5, 6, 0.1, eta, backend="cpu")
    assert np.ndim(one) == 0 and abs(one - exact[1, 5, 6]) < 1e-9
    assert greens_function(H, 5, [6], 0.1, eta, backend="cpu").shape == (1,)
    assert greens_function(H, [5], 6, [0.1], eta, backend="cpu").shape == (1, 1)
    np.testing.assert_allclose(greens_function(H, None, 6, 0.1, eta, backend="cpu"), exact[1, :, 6], atol=1e-9)


def test_columns_at_many_energies_are_the_entries():
    energies = np.linspace(-5, 5, 37)
    columns = greens_function(REAL, None, [2, 9], energies, 0.5, backend="cpu")
    np.testing.assert_allclose(
        columns, greens_function(REAL, range(125), [2, 9], energies, 0.5, backend="cpu"), atol=1e-9
    )


@pytest.mark.parametrize("level", [0.0, 2.5])
def test_a_resolvent_of_one_level(level):
    H = sp.diags_array(np.full(5, level))
    energies = np.array([0.1, 2.5, -30.0])
    with np.errstate(all="raise", under="ignore"):
        found = greens_function(H, 2, 2, energies, 0.2, backend="cpu")
    np.testing.assert_allclose(found, 1 / (energies + 0.2j - level), rtol=1e-11)


def test_an_eta_below_what_memory_or_rounding_resolves_is_refused():
    with pytest.raises(MemoryError, match="so small an eta"):
        greens_function(REAL, 0, 0, 0.1, 1e-9, backend="cpu")
    with pytest.raises(ValueError, match=r"eta = .* hides"):
        greens_function(REAL, 0, 0, 0.1, 1e-300, backend="cpu")


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint64"])
def test_row_numbers_are_of_any_type_of_integers(dtype):
    rows = np.array([3, 120], dtype)
    found = greens_function(sp.block_diag([REAL, REAL, REAL], "csr"), rows, rows, 0.1, 0.5, backend="cpu")
    np.testing.assert_array_equal(found, greens_function(sp.block_diag([REAL] * 3, "csr"), [3, 120], [3, 120], 0.1, 0.5,
                                                         backend="cpu"))  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "exponents"), [(np.float64, (-1000, -900, -600, 600, 900)), (np.float32, (-110, -80, 80, 100))]
)
def test_vectors_of_any_size_have_their_functions_and_their_watch(dtype, exponents):
    psi, H = np.random.default_rng(3).normal(size=(125, 3)).astype(dtype), REAL.astype(dtype)
    for exponent in exponents:
        sized = np.ldexp(psi, [exponent, 0, exponent])
        for call in (
            lambda x, **k: evolve(H, x, [3.0, -1.0], backend="cpu", **k),
            lambda x, **k: apply(np.exp, H, x, backend="cpu", **k),
        ):
            exact, found = call(psi), call(sized)
            for part in (np.real, np.imag):
                back = np.ldexp(part(found).astype(np.float64), [-exponent, 0, -exponent])
                np.testing.assert_allclose(
                    back, part(exact), rtol=0, atol=100 * float(np.finfo(dtype).eps) * abs(exact).max()
                )
            # The norms of the first and the last one show it, too.
            for column in (0, 1):
                with pytest.raises(ValueError, match="leaves the bounds"):
                    call(sized[:, column], bounds=(-0.5, 0.5))
        for bounds in (None, (-0.5, 0.5)) if exponent < -550 or (dtype == np.float32 and exponent < 0) else ():
            with pytest.raises(ValueError, match="below the range"):
                list(chebyshev(H, sized, 40, backend="cpu", bounds=bounds))


def test_a_function_beyond_the_range_of_the_type_is_refused():
    H, psi = REAL.astype(np.float32), np.ones(125, np.float32)
    with pytest.raises(ValueError, match="beyond the range of float32"):
        apply(lambda energy: 1e60 * np.exp(energy), H, psi, backend="cpu")


def test_bad_input_is_one_sentence():
    psi = np.ones(125)
    for call, message in (
        (lambda: evolve(REAL, psi, [1, np.nan], backend="cpu"), "times have shape"),
        (lambda: evolve(REAL, psi, 1, tolerance=0, backend="cpu"), "tolerance = 0"),
        (lambda: evolve(REAL, psi[:-1], 1, backend="cpu"), "one row for each of the 125"),
        (lambda: evolve(REAL, psi, 1, bounds=(-1, 1), backend="cpu"), "leaves the bounds"),
        (lambda: evolve(REAL, psi, 1, bounds=(0, 1e-14), backend="cpu"), "leaves the bounds"),
        (lambda: apply(np.exp, REAL, psi, bounds=(0, 1e-14), backend="cpu"), "leaves the bounds"),
        (lambda: apply(lambda e: 1.0 * (e < 0), REAL, psi, backend="cpu"), "f is not smooth"),
        (lambda: apply(lambda e: 1 / (e - 100) ** 0.5, REAL, psi, backend="cpu"), "not finite"),
        (lambda: apply(lambda e: e[:3], REAL, psi, backend="cpu"), "one value for each"),
        (lambda: greens_function(REAL, 0, 0, 1.0, 0.0, backend="cpu"), "eta=0"),
        (lambda: greens_function(REAL, 125, 0, 1.0, 0.1, backend="cpu"), "i=125"),
        (lambda: greens_function(REAL, 0, [], 1.0, 0.1, backend="cpu"), "j="),
        (lambda: greens_function(REAL, 0, 1.5, 1.0, 0.1, backend="cpu"), "j=1.5"),
    ):
        with np.errstate(invalid="ignore"), pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="f is a float"):
        apply(3.0, REAL, psi, backend="cpu")
