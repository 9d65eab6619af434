"""Parts of a spectrum on the CPU, by steps of their own: each way to the wanted pairs, and from each to the next."""

import itertools
import math

import numpy as np
import pytest

import spectile
from spectile import evd
from spectile.evd.cpu import drivers, lapack, part, run
from spectile.evd.types import SCALARS, Subset

DTYPES = ("float32", "float64", "complex64", "complex128")
PARTS = {
    "first": Subset(True, 0, 0),
    "some": Subset(True, 13, 17),
    "half": Subset(True, 20, 39),
    "narrow": Subset(False, -0.11, 0.13),
    "below": Subset(False, -np.inf, 0.07),
    "none": Subset(False, 100.0, 101.0),
    "all": Subset(False, -100.0, np.inf),
}
N = 40


def matrix(kind, dtype):
    """A matrix of norm about 1 whose T is whole, falls into blocks, or is diagonal."""
    rng = np.random.default_rng(5)
    a = rng.standard_normal((N, N)) + (1j * rng.standard_normal((N, N)) if dtype.startswith("complex") else 0)
    a = (a + a.conj().T) / np.sqrt(8 * N)
    if kind == "blocks":
        a[: N // 3, N // 3 :] = 0
        a[N // 3 :, : N // 3] = 0
    if kind == "clusters":
        u = np.linalg.qr(a)[0][:, :5]
        a = u @ np.diag(np.linspace(-1, 1, 5)) @ u.conj().T + 0.05 * np.eye(N)
    if kind == "graded":
        scale = 10.0 ** -np.linspace(0, 3, N)
        a = scale[:, None] * a * scale
    return (np.zeros((N, N)) if kind == "zero" else np.diag(a.diagonal()) if kind == "diagonal" else a).astype(dtype)


def passes(a, w, v, reference, subset):
    epsilon, norm = float(np.finfo(a.dtype).eps), max(np.linalg.norm(reference), 1e-30)
    near = 10 * epsilon * norm
    if subset.by_index:
        wanted = reference[subset.low : subset.high + 1]
    else:
        inside, surely = ((reference > subset.low - by) & (reference <= subset.high + by) for by in (near, -near))
        assert surely.sum() <= len(w) <= inside.sum()
        wanted = reference[reference > subset.low + near][: len(w)] if len(w) == surely.sum() else w
    assert v.shape == (N, len(w)) and w.dtype == a.real.dtype and v.dtype == a.dtype
    wide = a.astype(np.complex128)
    assert np.abs(w - wanted).max(initial=0) <= near * N
    assert np.linalg.norm(wide @ v - v * w) <= 5 * N * epsilon * norm
    assert np.linalg.norm(v.conj().T @ v - np.eye(len(w))) <= 5 * N * epsilon


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["random", "blocks", "clusters", "graded", "diagonal", "zero"])
def test_each_way_finds_the_wanted_pairs(kind, dtype, name, monkeypatch):
    a, subset = matrix(kind, dtype), PARTS[name]
    reference = np.linalg.eigvalsh(a.astype(np.complex128))
    # Whichever way is the cheapest, all are tried: by bisection, by QR iteration, and by divide and conquer.
    for way, lower, order in (("stebz", True, "C"), ("sterf", False, "C"), ("stevd", True, "F")):
        monkeypatch.setattr(part, "ways", lambda *_, way=way: (way, "stevd" if way == "stevd" else "stein"))
        read = np.tri(N, dtype=bool) if lower else ~np.tri(N, k=-1, dtype=bool)
        half = np.array(np.where(read, a, a.dtype.type(7)), order=order)
        kept = half.copy()
        w, v = part.solve(half, lower, True, False, subset)
        passes(a, w, v, reference, subset)
        values, none = part.solve(half, lower, False, False, subset)
        assert none is None
        np.testing.assert_allclose(values, w, atol=20 * np.finfo(dtype).eps)
        np.testing.assert_array_equal(half, kept)


@pytest.mark.parametrize("n", range(1, 6))
def test_every_part_by_index_is_what_it_names(n):
    matrices = np.diag(np.arange(n, 0.0, -1)) * np.array([1.0, 2.0])[:, None, None]
    for low, high in itertools.combinations_with_replacement(range(n), 2):
        wanted = np.arange(low + 1.0, high + 2)
        for a, values in ((matrices[0], wanted), (matrices, np.stack([wanted, 2 * wanted]))):
            w, v = spectile.eigh(a, subset_by_index=(low, high), backend="cpu")
            np.testing.assert_array_equal(w, values)
            np.testing.assert_array_equal(a @ v, v * w[..., None, :])
            w = spectile.eigvalsh(a, subset_by_index=(low, high), backend="cpu")
            np.testing.assert_array_equal(w, values)


@pytest.mark.parametrize("failing", ["stein", "sterf", "stebz", "too few"])
def test_where_a_step_fails_divide_and_conquer_takes_its_place(failing, monkeypatch):
    a, routine = matrix("random", "float64"), drivers.routine

    def fails(name):
        def run(*args, **keywords):
            results = list(routine(name)(*args, **keywords))
            if failing == "too few" and name == "dstebz":
                results[0] -= 1
            elif name == "d" + failing:
                results[-1] = 1
            return tuple(results)

        return run

    reference = np.linalg.eigvalsh(a)
    monkeypatch.setattr(part, "ways", lambda *_: ("sterf" if failing == "sterf" else "stebz", "stein"))
    monkeypatch.setattr(drivers, "routine", fails)
    for subset in (Subset(True, 3, 3), Subset(True, 20, 35)):
        passes(a, *part.solve(a, True, True, False, subset), reference, subset)


def test_no_convergence_is_told(monkeypatch):
    routine = drivers.routine
    monkeypatch.setattr(part, "ways", lambda *_: ("stevd", "stevd"))
    monkeypatch.setattr(
        drivers, "routine", lambda name: (lambda *_, **__: (0, 0, 3)) if name.endswith("stevd") else routine(name)
    )
    with pytest.raises(np.linalg.LinAlgError, match="3 off-diagonals"):
        part.solve(matrix("random", "float64"), True, True, False, Subset(True, 0, 4))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
def test_reflectors_of_either_triangle_are_applied(lower, dtype):
    a = matrix("random", dtype)
    letter = drivers.scalar_of(a.dtype).letter
    factor, d, e, tau, _ = drivers.routine(drivers.name_of("trd", letter))(np.asfortranarray(a), lower=lower)
    q = np.eye(N, dtype=dtype, order="F")
    lapack.unmtr(factor, tau, q, lower=lower)
    t = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
    np.testing.assert_allclose(q @ t @ q.conj().T, a, atol=100 * np.finfo(dtype).eps)


@pytest.mark.parametrize("real", ["s", "d"])
def test_more_pairs_never_cost_less(real):
    """Few are bisected, many come from all: once a way is left it does not come back as more are wanted."""
    for n in (30, 300, 3000):
        for vectors in (False, True):
            taken = [part.ways(real, n, wanted, vectors) for wanted in range(1, n + 1)]
            assert taken[0] == ("stebz", "stein")
            assert taken[-1] == (("stevd", "stevd") if vectors else ("sterf", "stein"))
            assert len(set(taken)) == 1 + sum(one != other for one, other in itertools.pairwise(taken))


@pytest.mark.parametrize("scalar", SCALARS.values(), ids=list(SCALARS))
@pytest.mark.parametrize("vectors", [False, True])
def test_one_call_finds_a_few_pairs_of_a_small_matrix(scalar, vectors):
    """One call finds each pair for itself: it is left as more are wanted, and does not come back."""
    for n in (2, 3, 8, 19, 40, 90):
        taken = [part.way(scalar, n, wanted, vectors) for wanted in range(1, n + 1)]
        few = taken.count("call")
        assert taken[:few] == ["call"] * few
        assert n < 40 or 1 <= few < n // 2
        assert part.way(scalar, n, None, vectors) == taken[math.isqrt(n) - 1]
    assert part.way(scalar, part.CALLED_ORDER, 1, vectors) == "steps"


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_vectors_by_steps_are_those_of_one_call(dtype, monkeypatch):
    a = matrix("random", dtype)
    w, _ = spectile.eigh(a, driver="evd", backend="cpu")
    monkeypatch.setattr(run, "STEPS_ORDER", N)
    assert [one.kernel for one in evd.explain(a, backend="cpu") if one.seconds is not None] == ["LAPACK's steps"]
    for order in "CF":
        passes(a, *spectile.eigh(np.array(a, order=order), backend="cpu"), w, Subset(True, 0, N - 1))


@pytest.mark.parametrize(
    ("keywords", "lines"), [({}, 3), ({"subset_by_index": (3, 9)}, 3), ({"eigvals_only": True}, 2)], ids=str
)
def test_a_long_call_tells_how_far_it_is(keywords, lines, impatient, monkeypatch):
    monkeypatch.setattr(run, "STEPS_ORDER", 300)
    monkeypatch.setattr(run, "by_stages", lambda array, vectors: not vectors)
    rng = np.random.default_rng(3)
    a = rng.standard_normal((300, 300))
    spectile.eigh(a + a.T, backend="cpu", **keywords)
    told = [record.getMessage() for record in impatient.records if record.name == "spectile.progress"]
    shares = [int(line.split()[1]) for line in told]
    assert len(told) >= lines and shares == sorted(shares) and shares[-1] == 100
    assert shares[0] < 100 and all(line.startswith("eigh: ") for line in told)


@pytest.mark.parametrize(("dtype", "operations"), [("float64", "36,000,000"), ("complex128", "144,000,000")])
def test_values_by_stages_tell_how_many_operations_a_reduction_takes(dtype, operations, impatient, monkeypatch):
    monkeypatch.setattr(run, "by_stages", lambda array, vectors: not vectors)
    n = 300  # 4/3 n³, each of four of real numbers where they are complex
    spectile.eigvalsh(np.diag(np.arange(n)).astype(dtype), backend="cpu")
    told = [record.getMessage() for record in impatient.records if record.name == "spectile.progress"]
    assert told and all(f" of {operations} " in line for line in told)
