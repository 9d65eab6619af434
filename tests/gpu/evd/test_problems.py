"""Generalized, batched, tridiagonal and banded problems on a CUDA device, against SciPy in float64."""

import threading

import numpy as np
import pytest
import scipy.linalg

from spectile import evd
from spectile.evd.types import Options
from spectile_study.inputs.spectra import FAMILIES, glued_wilkinson, random_hermitian, residuals, with_spectrum

cupy = pytest.importorskip("cupy")
from spectile.evd.cuda import choose, generalized  # noqa: E402
from spectile.evd.cuda.small import report, rotations  # noqa: E402
from spectile.evd.cuda.tridiagonal import inverse, sturm  # noqa: E402
from spectile.evd.cuda.vendor import batched, dense  # noqa: E402

pytestmark = pytest.mark.gpu
DTYPES = ("float64", "float32", "complex128", "complex64")
SMALL = (1, 2, 3, 7, 8, 9, 16, 31, 32, 33, 47, 48, 49, 63, 64)


@pytest.fixture
def rng(request):
    return np.random.default_rng(sum(map(ord, request.node.name)))


def wide(a):
    return np.asarray(a, np.complex128 if a.dtype.kind == "c" else np.float64)


def definite(n, rng, dtype):
    b = random_hermitian(n, rng, dtype)
    return (b @ b.conj().T / n + np.eye(n)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [1, 2, 3])
@pytest.mark.parametrize(("n", "lower"), [(1, True), (2, False), (33, True), (33, False), (200, True), (1100, True)])
def test_generalized(n, kind, dtype, lower, rng):
    if n > 1000 and (dtype, kind) not in (("float64", 1), ("float64", 3)):
        pytest.skip("one large problem of each path is enough")
    a, b = random_hermitian(n, rng, dtype), definite(n, rng, dtype)
    halves = [cupy.asarray(np.tril(x) if lower else np.triu(x)) for x in (a, b)]
    w, v = (cupy.asnumpy(x) for x in evd.eigh(*halves, type=kind, lower=lower))
    a, b, eps = wide(a), wide(b), np.finfo(dtype).eps
    left, right = {1: (a @ v, b @ v * w), 2: (a @ (b @ v), v * w), 3: (b @ (a @ v), v * w)}[kind]
    size = np.linalg.norm(a) * np.linalg.norm(b) * np.linalg.norm(v)
    assert np.linalg.norm(left - right) < 10 * n * eps * max(size, 1)
    gram = v.conj().T @ (np.linalg.solve(b, v) if kind == 3 else b @ v)
    assert np.linalg.norm(gram - np.eye(n)) < 300 * n * eps
    part = evd.eigvalsh(*halves, type=kind, lower=lower, subset_by_index=(0, n // 2))
    np.testing.assert_allclose(cupy.asnumpy(part), w[: n // 2 + 1], atol=100 * n * eps * np.abs(w).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [1, 2, 3])
@pytest.mark.parametrize("n", [1000, 1024, 1025, 2900])
def test_generalized_by_products(n, kind, dtype, rng, monkeypatch):
    """As large problems are reduced: one block, two halves of which one is a row, three blocks and a part of one."""
    if n == 2900 and (dtype, kind) not in (("float64", 1), ("complex64", 1), ("float32", 2)):
        pytest.skip("one large problem of each path is enough")
    monkeypatch.setattr(generalized, "SOLVED_ORDER", 500)
    a, b = random_hermitian(n, rng, dtype), definite(n, rng, dtype)
    w, v = evd.eigh(cupy.asarray(np.tril(a)), cupy.asarray(np.tril(b)), type=kind)
    eps, (a, b) = np.finfo(dtype).eps, (cupy.asarray(wide(x)) for x in (a, b))
    v = v.astype(a.dtype)
    left, right = {1: (a @ v, b @ v * w), 2: (a @ (b @ v), v * w), 3: (b @ (a @ v), v * w)}[kind]
    norm = cupy.linalg.norm
    assert float(norm(left - right)) < 10 * n * eps * float(norm(a) * norm(b) * norm(v))
    gram = v.conj().T @ (cupy.linalg.solve(b, v) if kind == 3 else b @ v)
    assert float(norm(gram - cupy.eye(n))) < 300 * n * eps


def test_second_matrix_that_is_not_definite(rng):
    b = np.eye(50)
    b[30, 30] = -1
    with pytest.raises(np.linalg.LinAlgError, match="leading minor of order 31"):
        evd.eigh(cupy.eye(50), cupy.asarray(b))
    b[30, 30] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity"):
        evd.eigh(cupy.eye(50), cupy.asarray(b))


def test_generalized_batches_broadcast(rng):
    a = np.stack([random_hermitian(20, rng) for _ in range(3)])
    b = definite(20, rng, "float64")
    w, v = (cupy.asnumpy(x) for x in evd.eigh(cupy.asarray(a), cupy.asarray(b)))
    for i in range(3):
        np.testing.assert_allclose(w[i], scipy.linalg.eigh(a[i], b, eigvals_only=True), atol=1e-11)
        np.testing.assert_allclose(a[i] @ v[i], b @ v[i] * w[i], atol=1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [*SMALL, 65, 100])
@pytest.mark.parametrize("lower", [True, False])
def test_batches(n, dtype, lower, rng):
    """Small ones by rotations, others by cuSOLVER's batched solver."""
    batch = np.stack([random_hermitian(n, rng, dtype) * s for s in (1, 1e-3, 1e3, 1e-30, 1e30)]).astype(dtype)
    half = np.where(np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T, batch, np.nan).astype(dtype)
    given = cupy.asarray(half)
    w, v = evd.eigh(given, lower=lower)
    assert v.shape == batch.shape
    for i, a in enumerate(batch):
        assert all(error < 10 for error in residuals(a, cupy.asnumpy(w[i]), cupy.asnumpy(v[i])).values())
    values = evd.eigvalsh(given, lower=lower, subset_by_index=(0, (n - 1) // 2))
    for i, a in enumerate(batch):
        tolerance = 100 * n * float(np.finfo(dtype).eps) * np.linalg.norm(wide(a))  # 1e-30 squared is no float32
        np.testing.assert_allclose(
            cupy.asnumpy(values[i]), np.linalg.eigvalsh(wide(a))[: (n - 1) // 2 + 1], atol=tolerance
        )
    np.testing.assert_array_equal(cupy.asnumpy(given), half)
    given[2, -1 if lower else 0, 0 if lower else -1] = np.inf
    with pytest.raises(ValueError, match="NaN or infinity"):
        evd.eigh(given, lower=lower)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [2, 5])
def test_matrices_of_a_batch_that_cusolver_solves_wrongly(group, dtype, rng, monkeypatch):
    """What it calls eigenvalues is in another order, or NaN, without a word: those matrices are solved again."""
    if batched.library() is None:
        pytest.skip("this cuSOLVER has no XsyevBatched")
    n, count, syev, seen = 65, 5, batched._syev, []
    spectrum = np.linspace(-3, 3, n)
    q = [np.linalg.qr(random_hermitian(n, rng, dtype))[0] for _ in range(count)]
    batch = np.stack([(own * spectrum) @ own.conj().T for own in q]).astype(dtype)
    given = cupy.asarray(batch)
    monkeypatch.setattr(batched, "GROUP_BYTES", group * n * n * batch.itemsize)

    def faulty(matrices, lower, vectors, report):
        w, info = syev(matrices, lower, vectors, report)
        first = sum(seen) % count
        for number in range(first, first + len(w)):
            if number == 1:
                w[number - first] = w[number - first, ::-1].copy()
            if number == 2:
                w[number - first, n // 2] = cupy.nan
        seen.append(len(w))
        return w, info

    monkeypatch.setattr(batched, "_syev", faulty)
    allowed = 10 * n * np.finfo(dtype).eps * 3
    for part, wanted in (
        ({}, slice(0, n)),
        ({"subset_by_index": (1, 40)}, slice(1, 41)),
        ({"subset_by_value": (-1, 1)}, np.abs(spectrum) < 1),
    ):
        w, v = (wide(cupy.asnumpy(x)) for x in evd.eigh(given, **part))
        values = wide(cupy.asnumpy(evd.eigvalsh(given, **part)))
        assert np.abs(w - spectrum[wanted]).max() < allowed and np.abs(values - spectrum[wanted]).max() < allowed
        assert np.abs(wide(batch) @ v - v * w[:, None]).max() < allowed
        assert np.abs(v.conj().swapaxes(1, 2) @ v - np.eye(w.shape[1])).max() < allowed
    assert sum(seen) == 6 * count
    np.testing.assert_array_equal(cupy.asnumpy(given), batch)


def test_batches_of_clustered_spectra(rng):
    """Eigenvalues of 201 such matrices were not all ascending."""
    n, count = 321, 201
    u = cupy.asarray(rng.standard_normal((count, n, n // 16)))
    a = 0.5 * cupy.eye(n) + u @ u.swapaxes(1, 2) / n
    w = cupy.asnumpy(evd.eigvalsh(a))
    assert (np.diff(w, axis=1) >= 0).all()
    assert np.abs(w - np.linalg.eigvalsh(cupy.asnumpy(a))).max() < 1e-12


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("byte", [0xFF, 0x7F])
@pytest.mark.parametrize("vectors", [True, False])
def test_a_matrix_that_cusolver_solves_wrongly(vectors, byte, dtype, rng, monkeypatch):
    """The first number is NaN, or a large one: solved again in double precision, or refused."""
    n, part, times = 100, dense.part, []

    class Faulty:
        def __getattr__(self, name):
            return getattr(part("cusolver"), name)

        def xsyevd(self, *operands):
            part("cusolver").xsyevd(*operands)
            times.append(1)
            if len(times) == 1:
                size = np.dtype(dtype).type(0).real.nbytes
                cupy.cuda.get_current_stream().synchronize()
                cupy.cuda.runtime.memset(operands[9], byte, size)  # the address of the eigenvalues
                cupy.cuda.runtime.deviceSynchronize()

    monkeypatch.setattr(dense, "part", lambda name: Faulty() if name == "cusolver" else part(name))
    a = random_hermitian(n, rng, dtype)

    def solve():
        return dense.eigh(cupy.asarray(a), lower=True, eigvals_only=not vectors, check_finite=True)

    if np.finfo(dtype).bits == 64:
        with pytest.raises(np.linalg.LinAlgError, match="not ascending"):
            solve()
    w, v = (x if x is None else cupy.asnumpy(x) for x in solve())
    assert len(times) == 2
    assert w.dtype == a.real.dtype
    assert all(error < 10 for error in residuals(a, w, v).values())


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_that_cusolver_leaves_out_of_order(dtype, rng, monkeypatch):
    """Those of one eigenvalue are sorted with their vectors, and nothing is solved twice."""
    n, part, times = 96, dense.part, []
    a = with_spectrum(np.repeat(np.linspace(-1, 1, n // 4), 4), rng, dtype)

    class Shuffled:
        def __getattr__(self, name):
            return getattr(part("cusolver"), name)

        def xsyevd(self, *operands):
            part("cusolver").xsyevd(*operands)
            times.append(1)
            for at, shape in ((operands[9], (n,)), (operands[6], (n, n))):  # eigenvalues, and rows that are vectors
                kind = np.dtype(dtype) if len(shape) > 1 else np.dtype(dtype).type(0).real.dtype
                memory = cupy.cuda.UnownedMemory(at, int(np.prod(shape)) * kind.itemsize, None)
                own = cupy.ndarray(shape, kind, cupy.cuda.MemoryPointer(memory, 0))
                own[8:12] = own[8:12][::-1].copy()

    monkeypatch.setattr(dense, "part", lambda name: Shuffled() if name == "cusolver" else part(name))
    for vectors in (True, False):
        results = dense.eigh(cupy.asarray(a), lower=True, eigvals_only=not vectors, check_finite=True)
        w, v = (x if x is None else cupy.asnumpy(x) for x in results)
        assert (np.diff(w) >= 0).all() and all(error < 10 for error in residuals(a, w, v).values())
    assert len(times) == 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [97, 333])
def test_families_as_called(family, n, dtype, rng):
    a = FAMILIES[family](n, rng, dtype)
    w, v = (cupy.asnumpy(x) for x in evd.eigh(cupy.asarray(a)))
    assert w.dtype == a.real.dtype and v.dtype == a.dtype
    assert all(error < 10 for error in residuals(a, w, v).values())
    pair = (cupy.asnumpy(x) for x in evd.eigh(cupy.asarray(np.stack([a, a]))))
    for w, v in zip(*pair, strict=True):
        assert all(error < 10 for error in residuals(a, w, v).values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_families_by_rotations(family, dtype, rng):
    batch = np.stack([FAMILIES[family](n, rng, dtype) for n in [27] * 5])
    for given in (batch, batch.swapaxes(1, 2).conj().copy().swapaxes(1, 2).conj()):
        w, v = (cupy.asnumpy(x) for x in evd.eigh(cupy.asarray(given)))
        for i, a in enumerate(batch):
            assert all(error < 10 for error in residuals(a, w[i], v[i]).values())
    w, v = (cupy.asnumpy(x) for x in evd.eigh(cupy.asarray(batch[0])))
    assert all(error < 10 for error in residuals(batch[0], w, v).values())


@pytest.mark.parametrize("n", [5, 32])
def test_small_batches_in_a_graph(n, rng):
    """The launch can be captured; a matrix that is not finite gives NaN, because the host hears of nothing."""
    first, second = (np.stack([random_hermitian(n, rng) for _ in range(6)]) for _ in range(2))
    given, stream = cupy.asarray(first), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        evd.eigh(given)  # loads the kernel and fills the pool
        stream.begin_capture()
        w, v = evd.eigh(given)
        graph = stream.end_capture()
        for batch in (first, second):
            given.set(batch)
            graph.launch(stream)
            stream.synchronize()
            for i, a in enumerate(batch):
                assert all(error < 10 for error in residuals(a, w[i].get(), v[i].get()).values())
        given[1, 2, 0] = np.nan
        graph.launch(stream)
        stream.synchronize()
    assert bool(cupy.isnan(w[1]).all()) and bool(cupy.isnan(v[1]).all())
    assert all(error < 10 for error in residuals(second[0], w[0].get(), v[0].get()).values())


def test_batches_that_cusolver_solves_are_refused_in_a_graph(rng):
    """Nobody would read what it reports."""
    if batched.library() is None:
        pytest.skip("this cuSOLVER has no XsyevBatched")
    batch = np.stack([random_hermitian(90, rng) for _ in range(3)])
    given, stream = cupy.asarray(batch), cupy.cuda.Stream(non_blocking=True)
    evd.eigvalsh(given)
    with stream:
        stream.begin_capture()
        with pytest.raises(RuntimeError, match="captured in a CUDA graph"):
            evd.eigvalsh(given)
        stream.end_capture()
    np.testing.assert_allclose(evd.eigvalsh(given).get(), np.linalg.eigvalsh(batch), atol=1e-11)


@pytest.mark.parametrize("count", [None, 1, 2, 300, 5000])
def test_small_matrices_tell_of_what_is_not_finite(count, rng):
    """The last block that has read its matrix tells for all, and the next call begins anew."""
    n = 7
    batch = np.stack([random_hermitian(n, rng) for _ in range(count or 1)])
    given = cupy.asarray(batch[0] if count is None else batch)
    for bad in (0, (count or 1) // 2, (count or 1) - 1):
        broken = given.copy()
        broken[(n - 1, 0) if count is None else (bad, n - 1, 0)] = np.nan
        for _ in range(2):
            with pytest.raises(ValueError, match="NaN or infinity"):
                evd.eigh(broken)
        w = cupy.asnumpy(evd.eigh(given)[0]).reshape(-1, n)
        np.testing.assert_allclose(w, np.linalg.eigvalsh(batch), atol=1e-12)


def test_small_matrices_behind_other_work(rng):
    """What the host looks at comes later than it looks."""
    batch = np.stack([random_hermitian(16, rng) for _ in range(300)])
    given, other = cupy.asarray(batch), cupy.ones((6000, 6000))
    broken = given.copy()
    broken[299, 3, 3] = np.inf
    for _ in range(3):
        other = other @ other / 6000
    w, _ = evd.eigh(given)
    other = other @ other / 6000
    with pytest.raises(ValueError, match="NaN or infinity"):
        evd.eigh(broken)
    np.testing.assert_allclose(cupy.asnumpy(w), np.linalg.eigvalsh(batch), atol=1e-12)


def test_small_matrices_of_many_threads(rng):
    """Each launch has a word and a counter of its own, and they are as few as there are threads."""
    counts = (None, 1, 300, 2000)
    batches = [np.stack([random_hermitian(9, rng) for _ in range(count or 1)]) for count in counts]
    free = report.free_words(cupy.cuda.runtime.getDevice(), report.Word)
    before, wrong = len(free), []

    def solve(first):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for call in range(40):
                batch, count = batches[(first + call) % 4], counts[(first + call) % 4]
                given = cupy.asarray(batch[0] if count is None else batch)
                if call % 3 == 0:
                    given[..., -1, 0] = np.nan
                try:
                    w, _ = evd.eigh(given)
                    stream.synchronize()
                    right = np.allclose(w.get().reshape(-1, 9), np.linalg.eigvalsh(batch), atol=1e-12)
                    if call % 3 == 0 or not right:
                        wrong.append((first, call))
                except ValueError:
                    if call % 3:
                        wrong.append((first, call))

    threads = [threading.Thread(target=solve, args=(first,), daemon=True) for first in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert not wrong
    assert len(free) <= max(before, 6)


@pytest.mark.parametrize("stops", [RuntimeError, KeyboardInterrupt])
def test_a_launch_that_is_interrupted(stops, rng):
    """The host waits for the kernel before it lets go of the word that the kernel will write."""
    a = random_hermitian(20, rng)
    given = cupy.asarray(a)
    expected = cupy.asnumpy(evd.eigh(given)[0])

    def launch(word):
        rotations.solve(given[None], Options(check_finite=False))
        raise stops

    with pytest.raises(stops):
        report.told(launch)
    np.testing.assert_array_equal(cupy.asnumpy(evd.eigh(given)[0]), expected)


@pytest.mark.parametrize("n", [1, 16, 32])
def test_small_batches_without_the_check(n, rng):
    """Nobody waits; a matrix that is not finite gives NaN, and the others their eigenpairs."""
    batch = np.stack([random_hermitian(n, rng) for _ in range(4)])
    given = cupy.asarray(batch)
    given[2, n - 1, 0] = np.inf
    w, v = (cupy.asnumpy(x) for x in evd.eigh(given, check_finite=False))
    assert np.isnan(w[2]).all() and np.isnan(v[2]).all()
    for i in (0, 1, 3):
        assert all(error < 10 for error in residuals(batch[i], w[i], v[i]).values())
    with pytest.raises(ValueError, match="NaN or infinity"):
        evd.eigh(given)


@pytest.mark.parametrize("n", [1, 2, 33, 500])
def test_tridiagonal(n, rng):
    d, e = rng.standard_normal(n), rng.standard_normal(n - 1)
    a = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
    w, v = evd.eigh_tridiagonal(cupy.asarray(d), cupy.asarray(e))
    assert isinstance(v, cupy.ndarray)
    assert all(error < 10 for error in residuals(a, cupy.asnumpy(w), cupy.asnumpy(v)).values())
    for scale in (1e-300, 1e300):
        values = evd.eigvalsh_tridiagonal(d * scale, e * scale, backend="cuda")
        np.testing.assert_allclose(values / scale, cupy.asnumpy(w), atol=1e-12 * n)
    w, v = evd.eigh_tridiagonal(cupy.asarray(d), cupy.asarray(e), select="i", select_range=(0, n // 2))
    assert v.shape == (n, n // 2 + 1)
    assert all(
        error < 10
        for error in residuals(a, cupy.asnumpy(w), cupy.asnumpy(v), np.linalg.eigvalsh(a)[: n // 2 + 1]).values()
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize(
    ("n", "u"), [(1, 0), (2, 1), (50, 0), (50, 1), (64, 3), (300, 17), (300, 32), (301, 40), (300, 70)]
)
def test_banded(n, u, lower, dtype, rng):
    a = random_hermitian(n, rng, dtype)
    a[np.abs(np.subtract.outer(np.arange(n), np.arange(n))) > u] = 0
    band = np.zeros((u + 1, n), dtype)
    for offset in range(u + 1):
        if lower:
            band[offset, : n - offset] = np.diag(a, -offset)
        else:
            band[u - offset, offset:] = np.diag(a, offset)
    w, v = evd.eig_banded(cupy.asarray(band), lower=lower)
    assert v.dtype == np.dtype(dtype)
    assert all(error < 10 for error in residuals(a, cupy.asnumpy(w), cupy.asnumpy(v)).values())
    values = evd.eigvals_banded(band, lower=lower, backend="cuda")
    assert isinstance(values, np.ndarray)
    assert all(error < 10 for error in residuals(a, values, None).values())


@pytest.mark.parametrize("whole_order", [0, 600])
@pytest.mark.parametrize("family", ["random", "glued"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_of_a_spectrum(family, dtype, whole_order, rng, monkeypatch):
    """Made by themselves, and cut from the whole."""
    monkeypatch.setattr(choose, "calls_vendor", lambda *_, **__: False)
    monkeypatch.setattr(choose, "WHOLE_ORDER", whole_order)
    n, eps = 600, np.finfo(dtype).eps
    a = random_hermitian(n, rng, dtype) if family == "random" else glued_wilkinson(n).astype(dtype)
    reference = np.linalg.eigvalsh(wide(a))
    norm = np.abs(reference).max()

    def check(w, v, expected):
        w, v = wide(cupy.asnumpy(w)), wide(cupy.asnumpy(v))
        assert np.abs(w - expected).max() < 10 * n * eps * norm
        assert np.linalg.norm(wide(a) @ v - v * w) < 10 * n * eps * np.linalg.norm(a)
        assert np.linalg.norm(v.conj().T @ v - np.eye(len(w))) < 10 * n * eps

    for first, last in ((0, 0), (0, 9), (n // 2, n // 2 + n // 10), (n - 5, n - 1)):
        check(*evd.eigh(cupy.asarray(a), subset_by_index=(first, last)), reference[first : last + 1])
    low, high = reference[10] - 1e-3, reference[20] + 1e-3
    check(*evd.eigh(cupy.asarray(a), subset_by_value=(low, high)), reference[(reference > low) & (reference <= high)])
    w, v = evd.eigh(cupy.asarray(a), subset_by_value=(2 * norm, 3 * norm))
    assert w.shape == (0,)
    assert v.shape == (n, 0)
    assert evd.eigvalsh(cupy.asarray(a), subset_by_value=(2 * norm, 3 * norm)).shape == (0,)


@pytest.mark.parametrize("first", [0, 300, 980])
def test_vectors_that_fall_off_fast_are_made_one_by_one(first):
    """Vectors that are wrong would be made anew as part of all, without a word."""
    n, count = 1000, 20
    d, e = cupy.arange(float(n)), cupy.ones(n)
    w = sturm.eigenvalues(d, e, slice(first, first + count))
    v = inverse.eigenvectors(d, e, w)
    assert v is not None
    T = cupy.diag(d) + cupy.diag(e[1:], 1) + cupy.diag(e[1:], -1)
    assert float(abs(T @ v - v * w).max()) < 1e-10 and float(abs(v.T @ v - cupy.eye(count)).max()) < 1e-12


@pytest.mark.parametrize(("n", "whole_order"), [(97, 0), (97, 97), (1100, 0)])
def test_values_of_a_part(n, whole_order, rng, monkeypatch):
    """Those of an interval are counted before they are computed, each by as many lanes as its part is worth."""
    monkeypatch.setattr(choose, "calls_vendor", lambda *_, **__: False)
    monkeypatch.setattr(choose, "WHOLE_ORDER", whole_order)
    a = cupy.asarray(random_hermitian(n, rng, "float64"))
    w = cupy.asnumpy(evd.eigvalsh(a))
    band = cupy.zeros((2, n))
    d, e, _ = (cupy.asnumpy(x) if x is not None else x for x in evd.tridiagonalize(a))
    band[0], band[1, : n - 1] = cupy.asarray(d), cupy.asarray(e)
    allowed = 10 * n * np.finfo(float).eps * np.abs(w).max()
    for first, last in ((0, 0), (n // 3, n // 3), (0, n // 2), (n // 2, n - 1), (1, n - 1), (n - 1, n - 1)):
        middles = np.concatenate([[-np.inf], (w[1:] + w[:-1]) / 2, [np.inf]])
        interval = (middles[first], middles[last + 1])
        for part in (
            evd.eigvalsh(a, subset_by_index=(first, last)),
            evd.eigvalsh(a, subset_by_value=interval),
            evd.eigvalsh_tridiagonal(d, e, select="i", select_range=(first, last), backend="cuda"),
            evd.eigvalsh_tridiagonal(d, e, select="v", select_range=interval, backend="cuda"),
            evd.eigvals_banded(band, lower=True, select="i", select_range=(first, last)),
            evd.eigvals_banded(band, lower=True, select="v", select_range=interval),
        ):
            part = cupy.asnumpy(part)
            assert part.shape == (last + 1 - first,)
            assert np.abs(part - w[first : last + 1]).max() < allowed


def outcome(call, *operands, **keywords):
    """Return the shapes and dtypes of the results, or the error."""
    try:
        results = call(*operands, **keywords)
    except (ValueError, TypeError) as error:
        return type(error), str(error)
    return [(x.shape, x.dtype) for x in (results if isinstance(results, tuple) else (results,))]


def as_on_the_host(call, *operands, **keywords):
    """Compare with the CPU, from arrays of the device and of the host."""
    wanted = outcome(call, *operands, backend="cpu", **keywords)
    for device_or_host in (cupy.asarray, np.asarray):
        assert outcome(call, *map(device_or_host, operands), backend="cuda", **keywords) == wanted


PARTS = (
    {},
    {"select": "i", "select_range": (0, 0)},
    {"select": "v", "select_range": (-1, 1)},
    {"select": "v", "select_range": (5, 6)},
)


@pytest.mark.parametrize("dtype", [*DTYPES, "int32"])
@pytest.mark.parametrize(
    "shape",
    [(0, 0), (1, 0), (3, 0), (0, 1), (0, 3), (1, 1), (0, 2, 3), (2, 0, 3), (2, 3, 0), (2, 1, 1), (0, 0, 0), (), (3,)],
)
def test_bands_of_no_size(shape, dtype):
    for lower in (True, False):
        for part in PARTS:
            for call in (evd.eig_banded, evd.eigvals_banded):
                as_on_the_host(call, np.zeros(shape, dtype), lower=lower, **part)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("d", "e"),
    [
        *[((0,), (0,)), ((0,), (1,)), ((1,), (0,)), ((2, 0), (2, 0)), ((0, 3), (0, 2)), ((), ()), ((3,), ())],
        *[((0, 1), (0,)), ((2, 1), (2, 0)), ((2, 1), (0,)), ((2, 3), (2,)), ((2, 3), (3, 2)), ((2, 1, 3), (4, 2))],
    ],
)
def test_tridiagonals_of_no_size_and_broadcast(d, e, dtype):
    for part in PARTS:
        for call in (evd.eigh_tridiagonal, evd.eigvalsh_tridiagonal):
            as_on_the_host(call, np.zeros(d, dtype), np.zeros(e, dtype), **part)


@pytest.mark.parametrize("dtype", [*DTYPES, "int32"])
@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3), (0, 0, 0), (0, 2, 3, 3)])
@pytest.mark.parametrize("keywords", [{}, {"subset_by_index": (0, 0)}, {"subset_by_value": (-np.inf, 5)}])
def test_matrices_of_no_size(shape, keywords, dtype):
    a = np.zeros(shape, dtype)
    for call in (evd.eigh, evd.eigvalsh):
        for operands in ((a,), (a, a), (a, np.eye(shape[-1], dtype=dtype))):
            as_on_the_host(call, *operands, **keywords)
    if not keywords:
        for calc_q in (True, False):
            as_on_the_host(lambda *x, **y: tuple(evd.tridiagonalize(*x, **y))[: 2 + y["calc_q"]], a, calc_q=calc_q)


def test_parts_of_a_batch_that_are_not_alike():
    bands = np.stack([np.ones((1, 5)), np.full((1, 5), 9.0)])
    as_on_the_host(evd.eig_banded, bands, select="v", select_range=(0, 2))
    as_on_the_host(evd.eigvalsh_tridiagonal, bands[:, 0], bands[:, 0, 1:], select="v", select_range=(0, np.nan))
    as_on_the_host(evd.eigvals_banded, bands, select="v", select_range=(np.nan, 2))
    for value in ((0, 2), (-np.inf, 2)):
        as_on_the_host(evd.eigh, np.eye(5), np.stack([np.eye(5)] * 2), subset_by_value=value)


def test_masks_on_the_device():
    hidden = np.ma.array(np.eye(3), mask=np.eye(3))
    for call in (
        lambda: evd.eigh(hidden, backend="cuda"),
        lambda: evd.eig_banded(hidden, backend="cuda"),
        lambda: evd.eigh_tridiagonal(hidden[0], np.ones(2), backend="cuda"),
    ):
        with pytest.raises(TypeError, match="has masked entries"):
            call()
    clean = np.ma.array(np.diag([1.0, 2.0, 3.0]), mask=False)
    np.testing.assert_allclose(evd.eigvalsh(clean, backend="cuda"), [1, 2, 3])
    np.testing.assert_allclose(evd.eigvals_banded(clean[:1, ::2], backend="cuda"), [0, 1], atol=1e-15)
