"""Eigenproblems on two and four GPUs of a host, against one GPU's results and the definition."""

import numpy as np
import pytest

from spectile import evd
from spectile_study.inputs.spectra import FAMILIES, random_hermitian, residuals

cupy = pytest.importorskip("cupy")
from spectile.evd.cuda import choose  # noqa: E402
from spectile.evd.cuda.chasing.chase import chase_band, extract_band  # noqa: E402
from spectile.evd.cuda.load import load_matrix  # noqa: E402
from spectile.evd.cuda.matrix import as_array  # noqa: E402
from spectile.evd.cuda.multi import chasing, divide, reduction, workspace  # noqa: E402
from spectile.evd.cuda.multi import run as multi  # noqa: E402
from spectile.evd.cuda.multi.team import Team  # noqa: E402
from spectile.evd.cuda.reduction.band import band_reduction  # noqa: E402
from spectile.evd.types import Options, Subset  # noqa: E402

pytestmark = pytest.mark.gpu
DTYPES = ("float64", "float32", "complex128", "complex64")
B, NB = 32, 128


@pytest.fixture(params=[2, 3, 4])
def devices(request):
    """The last devices of the host, home not the first."""
    count = cupy.cuda.runtime.getDeviceCount()
    if count < request.param:
        pytest.skip(f"{request.param} GPUs are needed, and there are {count}")
    return list(range(count))[-request.param :]


@pytest.fixture
def pair():
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("two GPUs are needed")
    return [0, 1]


@pytest.fixture
def rng(request):
    return np.random.default_rng(sum(map(ord, request.node.name)))


@pytest.fixture
def by_stages(monkeypatch):
    """Let small matrices take the way of large ones."""
    monkeypatch.setattr(choose, "ROTATED_ORDER", dict.fromkeys(DTYPES, 0))
    monkeypatch.setattr(choose, "calls_vendor", lambda *_, **__: False)
    monkeypatch.setattr(choose, "direct_order", lambda *_: 0)
    monkeypatch.setattr(reduction, "pays", lambda *_: True)


@pytest.fixture(autouse=True)
def by_turns(monkeypatch):
    """Let sweeps be taken by turns, however few."""
    monkeypatch.setattr(chasing, "pays", lambda *_: True)


def passes(found):
    return all(error < 10 for error in found.values())


def solve(a, devices, *, home=0, vectors=True, bandwidth=B, block=NB, share=True, subset=None, to_host=False):
    """Return the results of the stages on a team, whatever the order."""
    team = Team(devices, devices[home])
    with cupy.cuda.Device(devices[home]):
        options = Options(vectors=vectors, subset=subset)
        w, v = multi.solve_by_stages(
            cupy.asarray(a), options, team, bandwidth=bandwidth, block=block, share_reduction=share, to_host=to_host
        )
        assert w.device.id == devices[home]
        assert v is None or isinstance(v, np.ndarray) == to_host
        return cupy.asnumpy(w), None if v is None else cupy.asnumpy(v)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 5, 33, 65, 129, 257, 521, 1031])
def test_sizes_around_the_blocks(n, dtype, devices, rng):
    a = random_hermitian(n, rng, dtype)
    for share in (False, True):
        assert passes(residuals(a, *solve(a, devices, share=share, to_host=not share)))
    assert passes(residuals(a, solve(a, devices, vectors=False, home=1)[0], None))


@pytest.mark.parametrize(("bandwidth", "block"), [(16, 16), (16, 48), (32, 256), (64, 64), (64, 512)])
def test_parameters(bandwidth, block, devices, rng):
    a = random_hermitian(1203, rng)
    assert passes(residuals(a, *solve(a, devices, bandwidth=bandwidth, block=block)))


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family, devices, rng):
    a = FAMILIES[family](300, rng, "complex128" if len(devices) == 2 else "float64")
    assert passes(residuals(a, *solve(a, devices)))
    assert passes(residuals(a, *solve(a, devices, to_host=True)))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_the_band_is_that_of_one_device(dtype, devices, rng):
    """Reflectors and band of the first blocks agree to rounding, because each step is the same."""
    n = 700
    a = random_hermitian(n, rng, dtype)
    with cupy.cuda.Device(devices[0]):
        matrices = [load_matrix(cupy.asarray(a), lower=True, check_finite=True)[0] for _ in range(2)]
        band_reduction(matrices[0], n, bandwidth=B, block=NB)
        reduction.band_reduction(matrices[1], n, bandwidth=B, block=NB, team=Team(devices, devices[0]))
        one, several = (np.tril(cupy.asnumpy(as_array(matrix, n, n)))[:, : 2 * NB] for matrix in matrices)
    assert abs(one - several).max() < 1e-9 * abs(one).max()


@pytest.mark.parametrize(("dtype", "bandwidth"), [("float64", 32), ("float64", 64), ("complex128", 32)])
def test_sweeps_by_turns_have_the_bits_of_one_device(dtype, bandwidth, devices, rng):
    """With all blocks that there are, and with few, which wait for those of other devices."""
    n = 40 * bandwidth + 7
    a = random_hermitian(n, rng, dtype)
    with cupy.cuda.Device(devices[0]):
        matrix, _ = load_matrix(cupy.asarray(a), lower=True, check_finite=True)
        panels = band_reduction(matrix, n, bandwidth=bandwidth, block=2 * bandwidth)
        alone, team = chase_band(extract_band(panels), n, bandwidth, None), Team(devices, devices[0])
        for grid in (None, 1, 2, 3, 70, None, 1000):
            found = chasing.chase_band(extract_band(panels), n, bandwidth, None, team, grid=grid)
            assert bool((found[0] == alone[0]).all()) and bool((found[1][: n - 1] == alone[1][: n - 1]).all())


@pytest.mark.parametrize("subset", [(0, 0), (3, 40), (100, 399), (0, 399), (399, 399)])
def test_parts_of_the_spectrum(subset, devices, rng):
    a = random_hermitian(400, rng)
    w, v = solve(a, devices, subset=Subset(True, *subset), to_host=subset[0] % 2 == 0)
    assert passes(residuals(a, w, v, np.linalg.eigvalsh(a)[subset[0] : subset[1] + 1]))


def test_intervals(pair, by_stages, rng):
    a = random_hermitian(200, rng)
    reference = np.linalg.eigvalsh(a)
    ends = (reference[9] + reference[10]) / 2, (reference[150] + reference[151]) / 2
    w, v = evd.eigh(a, subset_by_value=ends, devices=pair)
    assert passes(residuals(a, w, v, reference[10:151]))
    w, v = evd.eigh(a, subset_by_value=(1e6, 1e7), devices=pair)
    assert w.shape == (0,) and v.shape == (200, 0)


def test_pieces_of_columns_that_a_device_makes_by_itself(devices, rng, monkeypatch):
    monkeypatch.setattr(divide, "CHUNK", 17)
    a = random_hermitian(333, rng)
    assert passes(residuals(a, *solve(a, devices)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_lie_where_the_operand_does(dtype, pair, by_stages, rng):
    n = 300
    a = random_hermitian(n, rng, dtype)
    w, v = evd.eigh(a, devices=pair)
    assert isinstance(w, np.ndarray) and isinstance(v, np.ndarray) and v.dtype == dtype
    assert passes(residuals(a, w, v))
    for place in pair:
        for current in pair:
            with cupy.cuda.Device(place):
                there = cupy.asarray(a)
            with cupy.cuda.Device(current):
                w, v = evd.eigh(there, devices=pair)
                values = evd.eigvalsh(there, devices=2)
                assert cupy.cuda.runtime.getDevice() == current
            assert {x.device.id for x in (w, v, values)} == {place}
            with cupy.cuda.Device(place):
                assert passes(residuals(a, cupy.asnumpy(w), cupy.asnumpy(v)))
                assert passes(residuals(a, cupy.asnumpy(values), None))
                np.testing.assert_array_equal(cupy.asnumpy(there), a)


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_generalized(kind, pair, by_stages, rng):
    n = 260
    a, b = random_hermitian(n, rng), random_hermitian(n, rng)
    b = b @ b + n * np.eye(n)
    with cupy.cuda.Device(1):
        w, v = (cupy.asnumpy(x) for x in evd.eigh(cupy.asarray(a), cupy.asarray(b), type=kind, devices=pair))
    left = {1: a @ v - b @ v * w, 2: a @ (b @ v) - v * w, 3: b @ (a @ v) - v * w}[kind]
    assert np.linalg.norm(left) < 1e-10 * np.linalg.norm(a) * np.linalg.norm(b) * np.linalg.norm(v)


def test_the_call_is_ordered_by_the_stream_of_home(pair, by_stages, rng):
    n = 1500
    a = random_hermitian(n, rng)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        there = cupy.zeros((n, n))
        filled = cupy.asarray(a)
        for _ in range(50):
            filled = filled @ cupy.eye(n)
        there[...] = filled
        w, v = evd.eigh(there, devices=pair)
        there[...] = 0
        error = float(cupy.abs(filled @ v - v * w).max())  # on the stream, which no other waits for
    assert error < 1e-10 * n


def test_only_one_triangle_and_the_operand_stays(pair, by_stages, rng):
    n = 256
    a = random_hermitian(n, rng)
    for lower in (True, False):
        half = np.where(np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T, a, np.nan)
        there = cupy.asarray(half)
        assert passes(residuals(a, *map(cupy.asnumpy, evd.eigh(there, lower=lower, devices=pair))))
        np.testing.assert_array_equal(cupy.asnumpy(there), half)


def test_bad_input_leaves_the_next_call_alone(pair, by_stages, rng):
    a = random_hermitian(150, rng)
    spoiled = a.copy()
    spoiled[100, 3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        evd.eigh(spoiled, devices=pair)
    with pytest.raises(ValueError, match="twice"):
        evd.eigh(a, devices=[0, 0])
    count = cupy.cuda.runtime.getDeviceCount()
    with pytest.raises(ValueError, match=f"{count} are visible"):
        evd.eigh(a, devices=[0, count])
    with cupy.cuda.Device(1):
        there = cupy.asarray(a)
    with pytest.raises(ValueError, match="a is on device 1, and devices are"):
        evd.eigh(there, devices=[0])
    assert passes(residuals(a, *evd.eigh(a, devices=pair)))


def test_small_matrices_and_batches(pair, rng):
    for shape in [(0, 0), (1, 1), (20, 20), (300, 300), (5, 40, 40), (1, 90, 90), (3, 700, 700)]:
        a = rng.standard_normal(shape)
        a = a + a.swapaxes(-1, -2)
        w, v = evd.eigh(a, devices=pair)
        np.testing.assert_allclose(w, np.linalg.eigvalsh(a), atol=1e-10)
        np.testing.assert_allclose(a @ v, v * w[..., None, :], atol=1e-10)


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize(("vectors", "block", "to_host"), [(0, NB, 0), (1, NB, 0), (1, 512, 0), (1, NB, 1)])
def test_the_memory_that_is_asked_for_suffices(vectors, block, to_host, dtype, devices, rng, monkeypatch):
    """No device takes more than was asked for before the call began, by what CuPy's pools hold after it."""
    asked = {}

    def note(needed, what):
        asked[cupy.cuda.Device().id] = needed

    n = 4200
    a = random_hermitian(n, rng, dtype)
    options = {"vectors": bool(vectors), "block": block, "to_host": bool(to_host)}
    solve(a, devices, **options)  # what a first call keeps
    for index in devices:
        with cupy.cuda.Device(index):
            cupy.get_default_memory_pool().free_all_blocks()
    held = {index: pool_bytes(index) for index in devices}
    monkeypatch.setattr(workspace.memory, "require_free", note)
    result = solve(a, devices, **options)
    assert set(asked) == set(devices) and result[0].shape == (n,)
    for index in devices:
        slack = 2**26 + (a.nbytes if index == devices[0] else 0)  # and home's copy of the operand
        assert pool_bytes(index) - held[index] <= asked[index] * 1.02 + slack


def pool_bytes(index):
    with cupy.cuda.Device(index):
        return cupy.get_default_memory_pool().total_bytes()


def test_too_little_memory_is_told_before_anything_begins(pair, by_stages, rng, monkeypatch):
    a = random_hermitian(200, rng)
    monkeypatch.setattr(workspace.memory, "free_bytes", lambda: 1000)
    with pytest.raises(MemoryError, match=r"order 200 .*bytes"):
        evd.eigh(a, devices=pair)


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_the_case_beside_the_vendors_solver(pair, dtype, vectors, tmp_path):
    from spectile_study.bench.case import Context, Method
    from spectile_study.cases.evd.cuda.several import devices as build

    row = {"n": 700, "vectors": vectors, "precision": dtype, "gpus": len(pair)}
    problem = build(row, Context("cuda", tmp_path, 5, 1))
    assert [method.name for method in problem.methods] == ["devices_1", "devices_2", "cusolver_mg"]
    for method in problem.methods:
        assert isinstance(method, Method), method
        for _ in range(2):
            if method.prepare is not None:
                method.prepare()
            errors = method.check(method.run())
            assert {name for name, error in errors.items() if not error <= method.limits[name]} == set()
