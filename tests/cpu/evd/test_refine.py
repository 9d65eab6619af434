"""Eigenvectors refined from those of a matrix nearby."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

import spectile
from spectile.core.devices import TABLE
from spectile.evd import refine
from spectile_study.cases.evd.sequences import grid, kinetic, wells

DTYPES = ("float32", "float64", "complex64", "complex128")


def hermitian(rng, n, dtype):
    a = rng.standard_normal((n, n))
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.standard_normal((n, n))
    return ((a + a.conj().T) / 2).astype(dtype)


def definite(rng, n, dtype):
    return (np.eye(n) + hermitian(rng, n, dtype) / (8 * np.sqrt(n))).astype(dtype)


def require_solved(a, w, v, b=None):
    """Fail unless these are the eigenpairs as a full solver gives them."""
    wide = np.result_type(a.dtype, np.float64)
    a, v, b = a.astype(wide), v.astype(wide), np.eye(len(a)) if b is None else b.astype(wide)
    epsilon, n = np.finfo(w.dtype).eps, len(a)
    size = np.linalg.norm(a) * max(1, np.linalg.norm(b, 2)) * max(1, np.linalg.norm(np.linalg.inv(b), 2))
    assert np.linalg.norm(a @ v - b @ v * w) <= 8 * np.sqrt(n) * epsilon * size
    assert np.linalg.norm(v.conj().T @ b @ v - np.eye(n)) <= 4 * n * epsilon
    np.testing.assert_allclose(w, scipy.linalg.eigh(a, b, eigvals_only=True), atol=8 * n * epsilon * abs(w).max())


def counted(monkeypatch):
    """Return a list to which each refinement adds whether it came to its end."""
    monkeypatch.setattr(refine, "worth_on_cpu", lambda threads: 6)
    ends, whole = [], refine.refined

    def noted(*args, **words):
        pair = whole(*args, **words)
        ends.append(pair is not None)
        return pair

    monkeypatch.setattr(refine, "refined", noted)
    return ends


@pytest.fixture(scope="module")
def refining():
    """Refine on these few cores, too, where it takes longer than a full solution."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(refine, "worth_on_cpu", lambda threads: 6)
        yield


def test_a_cpu_refines_where_that_is_faster():
    worth = [refine.worth_on_cpu(threads) for threads in range(1, 257)]
    assert worth[0] == worth[7] == 0 and worth[63] >= 1 and worth == sorted(worth)


@pytest.mark.parametrize("device", TABLE.values(), ids=TABLE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_refines_from_some_order_on(device, dtype):
    worth = [refine.worth_on_gpu(n, np.dtype(dtype), device) for n in range(64, 20_000, 64)]
    assert worth[0] == 0 and (not device.fast_fp64 or max(worth) >= 1)
    slow = dataclasses.replace(device, launch_seconds=10 * device.launch_seconds)
    assert all(refine.worth_on_gpu(64 * k, np.dtype(dtype), slow) <= worth[k - 1] for k in range(1, 100))


@pytest.mark.parametrize("dtype", DTYPES[1::2])
def test_vectors_of_nearly_equal_values_come_out_orthogonal(dtype, monkeypatch):
    """A box, most of whose levels are split a little: rounding over so small gaps must not spoil orthogonality."""
    rng, levels = np.random.default_rng(3), np.arange(1, 6) ** 2.0
    values = (levels[:, None, None] + levels[:, None] + levels).ravel()
    a = np.diag(values) + 1e-2 * hermitian(rng, len(values), dtype)
    x0 = np.linalg.eigh(a)[1]
    a += 1e-7 * np.diag(rng.standard_normal(len(values)))
    ends = counted(monkeypatch)
    w, v = spectile.eigh(a, x0=x0, backend="cpu")
    assert ends == [True]
    require_solved(a, w, v)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("generalized", [False, True])
@pytest.mark.parametrize("change", [0.0, 1e-9, 1e-4, 1e-3])
def test_vectors_of_a_matrix_nearby_are_refined(dtype, generalized, change, monkeypatch):
    rng, n = np.random.default_rng(5), 120
    a, b = hermitian(rng, n, dtype), definite(rng, n, dtype) if generalized else None
    x0 = spectile.eigh(a, b, backend="cpu").eigenvectors
    a = a + np.asarray(change, a.real.dtype) * hermitian(rng, n, dtype)
    ends, kept = counted(monkeypatch), x0.copy()
    w, v = spectile.eigh(a, b, x0=x0, backend="cpu")
    require_solved(a, w, v, b)
    assert w.dtype == a.real.dtype and v.dtype == a.dtype and (x0 == kept).all()
    assert ends == [True] or (change == 1e-3 and ends == [False])
    if ends == [True] and change <= 1e-9:  # the vectors go on, phases included
        turned = abs(1 - (x0.conj() * (v if b is None else b @ v)).sum(0))
        assert np.median(turned) < 1e-2


@pytest.mark.parametrize("x0", ["noise", "zero", "twice the same", "rotated"])
def test_the_result_does_not_depend_on_how_good_they_are(x0, monkeypatch):
    rng, n = np.random.default_rng(2), 60
    a = hermitian(rng, n, "float64")
    vectors = np.linalg.eigh(a)[1]
    start = {
        "noise": rng.standard_normal((n, n)),
        "zero": np.zeros((n, n)),
        "twice the same": vectors[:, np.arange(n) // 2 * 2],
        "rotated": np.linalg.qr(rng.standard_normal((n, n)))[0],
    }[x0]
    ends = counted(monkeypatch)
    require_solved(a, *spectile.eigh(a, x0=start, backend="cpu"))
    assert True not in ends


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 40),
    distinct=st.integers(1, 40),
    change=st.floats(-16, 0),
    exponent=st.integers(-1000, 960),
    lower=st.booleans(),
)
def test_any_spectrum_any_distance_any_scale(refining, seed, n, distinct, change, exponent, lower):
    """Values that coincide or nearly do, too, which no correction by gaps resolves."""
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    values = rng.standard_normal(distinct)[rng.integers(0, distinct, n)]
    a = (q * values) @ q.T
    a = (a + a.T) / 2 + 10.0**change * hermitian(rng, n, "float64")
    read = np.ldexp(np.tril(a) if lower else np.triu(a), exponent)
    w, v = spectile.eigh(read, lower=lower, x0=q * rng.uniform(0.5, 2, n), backend="cpu")
    require_solved(a, np.ldexp(w, -exponent), v)


def test_batches_kinds_and_values_alone(monkeypatch):
    counted(monkeypatch)
    rng, n = np.random.default_rng(3), 24
    a = np.stack([hermitian(rng, n, "float64") for _ in range(3)])
    x0 = np.linalg.eigh(a)[1]
    changed = a + 1e-8 * np.eye(n)[::-1]
    w, v = spectile.eigh(changed, x0=x0, backend="cpu")
    for matrix, values, vectors in zip(changed, w, v, strict=True):
        require_solved(matrix, values, vectors)
    assert (spectile.eigh(changed, x0=x0, eigvals_only=True, backend="cpu") == w).all()
    whole = spectile.eigh(changed, backend="cpu")
    for again in (spectile.eigh(changed, x0=near, backend="cpu") for near in (whole, whole.eigenvectors)):
        np.testing.assert_allclose(again.eigenvalues, w, rtol=1e-6)
    one = spectile.eigh(np.asfortranarray(changed[0]), x0=x0[0][:, ::-1], backend="cpu")
    require_solved(changed[0], *one)
    empty = spectile.eigh(np.zeros((0, 0)), x0=np.zeros((0, 0)), backend="cpu")
    assert empty.eigenvalues.shape == (0,) and empty.eigenvectors.shape == (0, 0)


@pytest.mark.parametrize(("change", "corrections"), [(1e-10, 1), (1e-5, 1), (1e-4, 1), (1e-2, 2)])
def test_each_correction_takes_the_error_to_its_fourth_power(change, corrections):
    rng, n = np.random.default_rng(7), 64
    a = np.diag(np.arange(float(n))) + change * hermitian(rng, n, "float64")
    found = [refine.refined(refine.Steps(a, lower=True), np.eye(n), most) is not None for most in range(5)]
    assert found == [most >= corrections for most in range(5)]


@pytest.mark.parametrize("worth", [0, 1])
def test_a_refinement_is_tried_where_one_correction_is_worth_it(worth, monkeypatch):
    rng, n, ends = np.random.default_rng(7), 24, counted(monkeypatch)
    monkeypatch.setattr(refine, "worth_on_cpu", lambda threads: worth)
    a = hermitian(rng, n, "float64")
    x0 = np.linalg.eigh(a)[1]
    require_solved(a, *spectile.eigh(a, x0=x0, backend="cpu"))
    assert ends == [True] * worth


@pytest.mark.parametrize("n", range(2, 12))
def test_one_pair_of_nearly_equal_values_is_solved_in_a_matrix_of_any_order(n):
    a = np.diag([*range(1, n), n - 1.0])
    a[-1, -2] = a[-2, -1] = 1e-9
    pair = refine.refined(refine.Steps(a, lower=True), np.eye(n), 1)
    assert pair is not None
    require_solved(a, *pair)


@pytest.mark.parametrize("step", [2, 3, 4, 5, 6])
def test_steps_of_a_self_consistent_field_take_one_correction_or_two(step):
    n = 256
    h, change = kinetic(grid(n)) + np.diag(wells(grid(n), 0)), np.diag(wells(grid(n), 1))
    x0 = np.linalg.eigh(h)[1]
    pair = refine.refined(refine.Steps(h + 10.0**-step * change, lower=True), x0, 1 if step > 3 else 2)
    assert pair is not None
    require_solved(h + 10.0**-step * change, *pair)


@pytest.mark.parametrize("far", [0.1, 1.0])
def test_vectors_that_are_too_far_are_seen_at_the_first_look(far, monkeypatch):
    looks, look, rng, n = [], refine.Steps.look, np.random.default_rng(4), 200
    monkeypatch.setattr(refine.Steps, "look", lambda steps, shares: looks.append(1) or look(steps, shares))
    a = hermitian(rng, n, "float64")
    x0 = np.linalg.eigh(a)[1]
    assert refine.refined(refine.Steps(a + far * hermitian(rng, n, "float64"), lower=True), x0) is None
    assert len(looks) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("generalized", [False, True])
def test_no_more_is_used_than_is_asked_for(refining, monkeypatch, dtype, generalized):
    rng, asked, n = np.random.default_rng(3), [], 300
    operands = [hermitian(rng, n, dtype), *([definite(rng, n, dtype)] if generalized else [])]
    _, x = scipy.linalg.eigh(*operands)
    operands[0] = operands[0] + np.asarray(1e-4, operands[0].real.dtype) * hermitian(rng, n, dtype)
    monkeypatch.setattr(refine.memory, "require_host_free", lambda size, what: asked.append(size))
    spectile.eigh(np.eye(3), x0=np.eye(3), backend="cpu")  # what a first call keeps
    asked.clear()
    tracemalloc.start()
    try:
        spectile.eigh(*operands, x0=x, backend="cpu")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < asked[0] < 2 * peak


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"x0": np.eye(3)}, "x0 has shape"),
        ({"x0": np.ones(4)}, "x0 has shape"),
        ({"x0": np.ones((2, 4, 4))}, "x0 has shape"),
        ({"x0": np.eye(4) * 1j}, "the matrices are real"),
        ({"x0": np.full((4, 4), np.nan)}, "no finite number"),
        ({"x0": np.full((4, 4), "x")}, "no finite number"),
        ({"x0": np.eye(4), "subset_by_index": (0, 1)}, "all eigenvectors"),
        ({"x0": np.eye(4), "subset_by_value": (0, 1)}, "all eigenvectors"),
        ({"x0": np.eye(4), "driver": "evr"}, "all eigenvectors"),
        ({"x0": np.eye(4), "b": np.eye(4), "type": 2}, "all eigenvectors"),
    ],
)
def test_what_is_no_start_is_refused(words, said):
    with pytest.raises(ValueError, match=said):
        spectile.eigh(np.diag([1.0, 2.0, 3.0, 4.0]), **words, backend="cpu")


def test_what_is_not_finite_or_not_definite_is_said_as_without_them(refining):
    broken = np.diag([1.0, np.nan, 3.0])
    with pytest.raises(ValueError, match=r"NaN or infinity|infs or NaNs"):
        spectile.eigh(broken, x0=np.eye(3), backend="cpu")
    with pytest.raises(np.linalg.LinAlgError):
        spectile.eigh(np.eye(3), np.diag([1.0, -1.0, 1.0]), x0=np.eye(3), backend="cpu")
