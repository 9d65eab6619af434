"""What callers give on a GPU: strides, other devices, other streams, bands far from zero, every unit, and memory."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm import SpectralDensity, kpm_dos, ldos
from spectile.kpm.moments import make_engine
from spectile.kpm.operators.lattices import anderson, graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator

pytestmark = pytest.mark.gpu

SAMPLE = TopologicalInsulator(4, 5, 3, potential=np.random.default_rng(1).integers(-8, 8, (4, 5, 3)) / 16)
ARRAYS = {"csr": ("data", "indices", "indptr"), "csc": ("data", "indices", "indptr"), "coo": ("data", "row", "col")}
NUM_MOMENTS = 40


def on_gpu(matrix, form="csr"):
    from cupyx.scipy import sparse

    return sparse.csr_matrix(sp.csr_matrix(matrix)).asformat(form)


def strided(array):
    """Return the same numbers, every second element of a longer array; the others would be seen."""
    import cupy

    longer = cupy.full(2 * array.size, 77, array.dtype)
    longer[::2] = array
    return longer[::2]


def backwards(array):
    """Return the same numbers with negative strides."""
    return array[::-1].copy()[::-1]


@pytest.mark.parametrize("make", [strided, backwards], ids=lambda make: make.__name__)
@pytest.mark.parametrize("form", ARRAYS)
@pytest.mark.parametrize("num_vectors", [1, 3, 16, 32])
def test_arrays_of_any_strides_are_read_as_cupy_reads_them(make, form, num_vectors):
    matrix = anderson(5, disorder=2, rng=1)
    given = on_gpu(matrix, form)
    wanted = kpm_dos(given, NUM_MOMENTS, num_vectors, rng=1)
    for name in ARRAYS[form]:
        setattr(given, name, make(getattr(given, name)))
    held = [getattr(given, name) for name in ARRAYS[form]]
    before = [array.get() for array in held]
    density = kpm_dos(given, NUM_MOMENTS, num_vectors, rng=1)
    np.testing.assert_array_equal(density.moments, wanted.moments)
    assert density.bounds == wanted.bounds
    for array, old in zip(held, before, strict=True):
        np.testing.assert_array_equal(array.get(), old)


def test_the_real_part_of_a_complex_matrix_is_itself():
    matrix = anderson(5, disorder=2, rng=1)
    part = on_gpu(matrix.astype(complex)).real
    np.testing.assert_array_equal(
        kpm_dos(part, NUM_MOMENTS, 3, rng=1).moments, kpm_dos(on_gpu(matrix), NUM_MOMENTS, 3, rng=1).moments
    )
    np.testing.assert_array_equal(
        ldos(part, [3, -1], NUM_MOMENTS).moments, ldos(on_gpu(matrix), [3, 124], NUM_MOMENTS).moments
    )


def test_a_dense_matrix_may_be_a_view():
    import cupy

    full = cupy.asarray(graphene(5, 4).toarray())
    wide = cupy.full((40, 80), 77.0)
    wide[:, ::2] = full
    for given in (wide[:, ::2], cupy.asfortranarray(full), full[::-1, ::-1].copy()[::-1, ::-1]):
        np.testing.assert_array_equal(
            kpm_dos(given, NUM_MOMENTS, 3, rng=1).moments, kpm_dos(full, NUM_MOMENTS, 3, rng=1).moments
        )


# ---- other devices and streams


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dense"])
@pytest.mark.parametrize("shape", ["whole", "strided"])
def test_a_matrix_on_another_device_is_right(form, shape):
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("this machine has one device")
    matrix = graphene(60, 60) if form != "dense" else graphene(20, 20)
    with cupy.cuda.Device(1):
        given = on_gpu(matrix, "csr" if form == "dense" else form)
        given = given.toarray() if form == "dense" else given
        if form != "dense" and shape == "strided":
            for name in ARRAYS[form]:
                setattr(given, name, strided(getattr(given, name)))
    with cupy.cuda.Device(0):
        density = kpm_dos(given, NUM_MOMENTS, 4, rng=1)
        assert cupy.cuda.runtime.getDevice() == 0
        here = kpm_dos(matrix, NUM_MOMENTS, 4, rng=1, backend="cuda")
        host = kpm_dos(given, NUM_MOMENTS, 4, rng=1, backend="cpu")
    np.testing.assert_array_equal(density.moments, here.moments)
    np.testing.assert_allclose(host.moments, kpm_dos(matrix, NUM_MOMENTS, 4, rng=1, backend="cpu").moments)


def test_a_matrix_that_another_device_still_writes_is_waited_for():
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("this machine has one device")
    matrix = graphene(200, 200)
    wanted = kpm_dos(matrix, NUM_MOMENTS, 4, rng=1, backend="cuda")
    with cupy.cuda.Device(1), cupy.cuda.Stream(non_blocking=True):
        given = on_gpu(matrix)
        exact = given.data.copy()
        given.data.fill(0)
        busy = cupy.ones((6000, 6000))
        for _ in range(20):  # long before what follows in this stream
            busy = busy @ busy * 1e-4
        given.data[...] = exact
    with cupy.cuda.Device(0):
        np.testing.assert_array_equal(kpm_dos(given, NUM_MOMENTS, 4, rng=1).moments, wanted.moments)


def test_a_recursion_may_go_on_on_another_stream():
    import cupy

    whole = SpectralDensity(graphene(60, 60), 200, 32, rng=1, backend="cuda", bounds=(-3.1, 3.1))
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    with streams[0]:
        density = SpectralDensity(graphene(60, 60), 20, 32, rng=1, backend="cuda", bounds=(-3.1, 3.1))
    for stream in itertools.islice(itertools.cycle(streams), 1, 10):
        with stream:
            density.add_moments(20)
    np.testing.assert_array_equal(density.moments, whole.moments)


# ---- energies

FAR_AWAY = {
    "float64": (lambda: graphene(6, 5), 1e7),
    "complex128": (lambda: SAMPLE.matrix(), -1e7),
    "float32": (lambda: graphene(6, 5), 1e3),
    "complex64": (lambda: SAMPLE.matrix(), 1e3),
}


def of_rounded_ends(density, dtype=np.float64):
    """What a moment of order m may be off by, over m + 1 and the number of rows: ends far from zero are rounded."""
    return float(np.finfo(dtype).eps) * abs(density.centre) / density.scale


def agree(density, band):
    """Hold the moments against those of the band around zero whose ends were taken from the rounded ones."""
    reach = 1 + np.arange(len(band.moments))
    assert (np.abs(density.moments - band.moments) <= band.moments[0] * reach * of_rounded_ends(density)).all()


@pytest.mark.parametrize("dtype", FAR_AWAY)
@pytest.mark.parametrize("num_vectors", [1, 3, 16, 32])
def test_a_band_far_from_zero_has_the_moments_of_the_band(dtype, num_vectors):
    make, offset = FAR_AWAY[dtype]
    band = sp.csr_matrix(make().astype(dtype))
    moved = sp.csr_matrix(band + offset * sp.eye_array(band.shape[0], dtype=dtype))
    for given in (moved, on_gpu(moved)):
        density = kpm_dos(given, 400, num_vectors, rng=4, backend="cuda")
        low, high = density.bounds
        wide = np.result_type(dtype, np.float64)
        exact = kpm_dos(band.astype(wide), 400, num_vectors, rng=4, backend="cpu", bounds=(low - offset, high - offset))
        energies = np.linalg.eigvalsh(band.toarray().astype(wide))
        assert density.scale < 0.56 * np.ptp(energies)
        error = np.abs(density.moments - exact.moments) / len(energies) / (1 + np.arange(400))
        assert error.max() < of_rounded_ends(density, dtype)
        assert round(density.integrate()) == len(energies)


def test_a_sample_far_from_zero_has_the_moments_of_the_band():
    density = kpm_dos(TopologicalInsulator(4, 5, 3, SAMPLE.potential + 1e7), 300, 3, rng=4, backend="cuda")
    low, high = density.bounds
    band = kpm_dos(SAMPLE, 300, 3, rng=4, backend="cpu", bounds=(low - 1e7, high - 1e7))
    assert density.scale < 10
    agree(density, band)


@pytest.mark.parametrize("kind", ["stored", "stencil"])
def test_partitions_far_from_zero_have_the_moments_of_the_band(kind):
    from spectile.kpm.distributed.multi_gpu import MultiGpuMatrix

    moved = TopologicalInsulator(9, 4, 3, np.full((9, 4, 3), 1e7))
    matrix = MultiGpuMatrix(moved, [0, 0, 0], stored=kind == "stored")
    density = kpm_dos(matrix, 100, 3, rng=4)
    low, high = density.bounds
    band = kpm_dos(TopologicalInsulator(9, 4, 3), 100, 3, rng=4, backend="cpu", bounds=(low - 1e7, high - 1e7))
    assert density.scale < 10
    agree(density, band)
    rows = MultiGpuMatrix(sp.csr_matrix(graphene(9, 8) + 1e7 * sp.eye_array(144)), [0, 0])
    density = kpm_dos(rows, 100, 3, rng=4)
    low, high = density.bounds
    band = kpm_dos(graphene(9, 8), 100, 3, rng=4, backend="cpu", bounds=(low - 1e7, high - 1e7))
    agree(density, band)


@pytest.mark.parametrize("unit", [1e-310, 1e-200, 1e200, 1e300])
@pytest.mark.parametrize("num_vectors", [1, 16])
def test_every_unit_is_right_or_one_sentence(unit, num_vectors):
    matrix = graphene(6, 5)
    try:
        density = kpm_dos(matrix * unit, NUM_MOMENTS, num_vectors, rng=1, backend="cuda")
    except ValueError as error:
        assert unit == 1e-310 and "unit of energy" in str(error)
        return
    low, high = density.bounds
    ours = kpm_dos(matrix, NUM_MOMENTS, num_vectors, rng=1, backend="cpu", bounds=(low / unit, high / unit))
    np.testing.assert_allclose(density.moments, ours.moments, atol=1e-9)
    assert 0.9 < density.scale / unit / 3 < 1.2


# ---- memory


class HighWater:
    """Bytes of CuPy's that are in use, and the most that were."""

    def __init__(self):
        import cupy

        owner = self

        class Hook(cupy.cuda.memory_hook.MemoryHook):
            name = "high water"

            def malloc_postprocess(self, device_id, size, mem_size, mem_ptr, pmem_id):
                owner.now += mem_size
                owner.most = max(owner.most, owner.now)

            def free_postprocess(self, device_id, mem_size, mem_ptr, pmem_id):
                owner.now -= mem_size

        self.now = self.most = 0
        self.hook = Hook()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("kind", ["stored", "stencil", "operator"])
def test_a_vector_takes_what_is_counted_for_it(kind, dtype):
    import gc

    from cupyx.scipy.sparse.linalg import aslinearoperator

    if kind == "stencil" and not dtype.startswith("complex"):
        pytest.skip("the stencil is complex")
    if kind == "stencil":
        from spectile.kpm.cuda.engine import StencilEngine

        engine = StencilEngine(TopologicalInsulator(40, 40, 20), np.dtype(dtype))
        each = engine._state_bytes
    elif kind == "stored":
        engine = make_engine(graphene(300, 300).astype(dtype), "cuda")
        each = engine._state_bytes
    else:
        engine = make_engine(aslinearoperator(on_gpu(graphene(300, 300).astype(dtype))))
        each = 3 * engine.num_rows * engine.dtype.itemsize + engine.operator.memory_bytes(1)

    def peak(num_vectors):
        engine.random(1, 0, num_vectors, 0.3, 0.0).advance(4)  # what is made once, and kept
        gc.collect()
        water = HighWater()
        with water.hook:
            engine.random(1, 0, num_vectors, 0.3, 0.0).advance(4)
        return water.most

    used = (peak(64) - peak(32)) / 32
    assert 0.9 * each < used < 1.1 * each, (used, each)
