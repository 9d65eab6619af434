"""Functions of Hermitian matrices of NumPy, against other means; what they refuse; what they hold."""

import doctest
import tracemalloc

import numpy as np
import pytest
import scipy.linalg

import spectile
from spectile.autodiff import matrices
from tests.eigenproblems import LAYOUTS
from tests.matrix_functions import DTYPES, SHIFTS, check, direction, operand
from tests.spectra import SPECTRA

NAMES = ("matrix_function", "matrix_function_frechet", "expm", "logm", "sqrtm", "sign", "polar")
CASES = [
    # Every layout with some function, spectrum, dtype and triangle.
    (list(SHIFTS)[i % 5], list(SPECTRA)[i % 4], DTYPES[i // 2 % 4], layout, bool(i % 3))
    for i, layout in enumerate(5 * LAYOUTS)
]


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch):
    monkeypatch.setattr("spectile.core.device.available", lambda: False)


@pytest.mark.parametrize(("name", "spectrum", "dtype", "layout", "lower"), CASES)
def test_values_and_derivatives(name, spectrum, dtype, layout, lower):
    check(np, name, spectrum, dtype, layout, lower)


def test_relatives_share_one_decomposition(monkeypatch):
    a, calls, whole = operand("random", -1.3, "complex128"), [], matrices.evd.eigh
    monkeypatch.setattr(matrices.evd, "eigh", lambda *given, **words: calls.append(1) or whole(*given, **words))
    u, p = spectile.polar(a)
    assert len(calls) == 1
    for found, wanted in zip((u, p), scipy.linalg.polar(a), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-13)
    np.testing.assert_allclose(spectile.sign(a), u, atol=1e-13)
    positive = operand("cluster", 0.7, "float64")
    np.testing.assert_allclose(spectile.sqrtm(positive) @ spectile.sqrtm(positive), positive, atol=1e-13)
    np.testing.assert_allclose(spectile.expm(spectile.logm(positive)), positive, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_callables_real_and_complex(dtype):
    a = operand("coinciding", 0.0, dtype)
    e = direction(len(a), "complex128")
    scale = 1e4 * np.finfo(dtype).eps
    found = spectile.matrix_function(lambda w: np.exp(-1j * w.astype("float64")), a)
    assert found.dtype == np.result_type(a.dtype, np.complex64)
    np.testing.assert_allclose(found, scipy.linalg.expm(-1j * a.astype("complex128")), atol=scale)
    _, derivative = spectile.matrix_function_frechet(lambda w: w**3, a, e, df=lambda w: 3 * w**2)
    np.testing.assert_allclose(derivative, e @ a @ a + a @ e @ a + a @ a @ e, atol=scale)
    # Between eigenvalues of either sign 1 / w has a pole, at which no slope is taken.
    b = operand("random", -1.3, dtype)
    _, derivative = spectile.matrix_function_frechet(lambda w: 1 / w, b, e, df=lambda w: -1 / w**2)
    inverse = np.linalg.inv(b)
    np.testing.assert_allclose(derivative, -inverse @ e @ inverse, atol=100 * scale)


def test_a_function_that_writes_to_its_argument_changes_nothing_else():
    def square(w):
        w *= w
        return w

    a, e = operand("random", 0.0, "float64"), np.eye(5)
    value, derivative = spectile.matrix_function_frechet(square, a, e, df=lambda w: 2 * w)
    np.testing.assert_allclose(value, a @ a, atol=1e-13)
    np.testing.assert_allclose(derivative, 2 * a, atol=1e-13)


def test_shapes_and_kinds():
    a = operand("random", 0.7, "float64")
    many = spectile.matrix_function_frechet("log", a, np.ones((3, 1, 5, 5)))
    assert many[0].shape == (5, 5) and many[1].shape == (3, 1, 5, 5)
    assert spectile.expm(np.zeros((0, 0))).shape == (0, 0)
    np.testing.assert_allclose(spectile.sqrtm([[4, 0], [0, 9]]), np.diag([2.0, 3.0]))
    np.testing.assert_allclose(spectile.expm(np.zeros((2, 2), np.int8)), np.eye(2))
    owned = np.asfortranarray(a)
    np.testing.assert_allclose(spectile.sqrtm(owned, overwrite_a=True), spectile.sqrtm(a), atol=1e-14)
    torch = pytest.importorskip("torch")
    assert isinstance(spectile.expm(torch.eye(2)), torch.Tensor)


EYE = np.eye(3)
REFUSED = {
    "unknown name": (("cube", EYE), {}, ValueError, "no function is called 'cube'"),
    "no function": ((3, EYE), {}, TypeError, "f = 3 is no function"),
    "no derivative": ((np.sin, EYE, EYE), {}, ValueError, "df is no function"),
    "a word for it": ((np.sin, EYE, EYE), {"df": "cos"}, TypeError, "df is no function"),
    "one too many": (("exp", EYE, EYE), {"df": np.exp}, ValueError, "leave it out"),
    "other order": (("exp", EYE, np.eye(2)), {}, ValueError, "e is of order 2 and a of 3"),
    "other batch": (("exp", np.stack([EYE] * 2), np.stack([EYE] * 3)), {}, ValueError, r"\(2,\) of a and \(3,\) of e"),
    "beyond": (("exp", 600 * EYE, 1e100 * EYE), {}, ValueError, "direction e leaves the range"),
    "NaN direction": (("exp", EYE, EYE * np.nan), {}, ValueError, "e holds NaN"),
    "NaN": (("exp", EYE * np.nan), {}, ValueError, "infs or NaNs"),
    "not square": (("exp", np.ones((2, 3))), {}, ValueError, "square"),
    "outside": (("log", -EYE), {}, ValueError, "log needs eigenvalues that are positive"),
    "slope": (("sqrt", 0 * EYE, EYE), {}, ValueError, "derivative of sqrt needs"),
    "overflow": (("exp", 1e3 * EYE), {}, ValueError, "not finite at the eigenvalue 1e"),
    "pole": ((lambda w: 1 / w, 0 * EYE), {}, ValueError, "not finite at the eigenvalue 0"),
    "its slope": ((np.sqrt, 0 * EYE, EYE), {"df": lambda w: 0.5 / np.sqrt(w)}, ValueError, "derivative of f is not"),
    "one value": ((lambda w: w.sum(keepdims=True), EYE), {}, ValueError, "one value for each"),
    "no array": ((lambda w: 1.0, EYE), {}, TypeError, "return an array"),
    "no numbers": ((lambda w: w.astype(str), EYE), {}, TypeError, "return an array"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    given, words, error, said = REFUSED[case]
    call = spectile.matrix_function if len(given) == 2 else spectile.matrix_function_frechet
    with pytest.raises(error, match=said) as refused:
        call(*given, **words)
    assert "\n" not in str(refused.value)
    np.testing.assert_array_equal(EYE, np.eye(3))


def test_a_derivative_holds_what_it_asks_for(monkeypatch):
    asked = []
    monkeypatch.setattr(matrices.memory, "require_host_free", lambda size, what: asked.append(size))
    for dtype in ("float64", "complex128"):
        a = np.diag(np.arange(1.0, 401)).astype(dtype)
        spectile.matrix_function_frechet("exp", a[:4, :4] / 400, a[:4, :4])
        asked.clear()
        tracemalloc.start()
        spectile.matrix_function_frechet("exp", a / 400, a)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert asked[0] / 3 < peak < asked[0]


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_docstrings_run(name):
    said, runner = [], doctest.DocTestRunner()
    for test in doctest.DocTestFinder(recurse=False).find(getattr(spectile, name), name, globs={}):
        runner.run(test, out=said.append)
    assert not runner.failures and runner.tries, "".join(said)
