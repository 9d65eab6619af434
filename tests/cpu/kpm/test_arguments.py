"""What callers give: arrays of any strides, byte order and alignment, and errors that name what is wrong."""

import re

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from spectile.kpm import (
    LatticeModel,
    conductivity,
    correlator,
    count,
    evolve,
    greens_function,
    kpm_dos,
    ldos,
    reference,
    spectral_function,
    velocity,
)
from spectile.kpm.cpu.operator import CpuOperator
from spectile.kpm.operators.lattices import anderson, graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator


def strided(array):
    """Return the same numbers, every second element of a longer array; the others would be seen."""
    longer = np.full((*array.shape[:-1], 2 * array.shape[-1]), 77, array.dtype)
    longer[..., ::2] = array
    return longer[..., ::2]


def backwards(array):
    """Return the same numbers with negative strides."""
    return np.ascontiguousarray(array[::-1])[::-1]


def swapped(array):
    """Return the same numbers in the other byte order."""
    return array.astype(array.dtype.newbyteorder("S"))


def unaligned(array):
    """Return the same numbers at an odd address."""
    raw = np.empty(array.nbytes + 1, np.uint8)
    other = raw[1:].view(array.dtype).reshape(array.shape)
    other[...] = array
    return other


def read_only(array):
    """Return the same numbers, which nobody may write."""
    other = array.copy()
    other.flags.writeable = False
    return other


MAKES = [strided, backwards, swapped, unaligned, read_only]
NAMES = {
    "csr": ["data", "indices", "indptr"], "csc": ["data", "indices", "indptr"], "bsr": ["data", "indices", "indptr"],
    "coo": ["data", "row", "col"], "dia": ["data"],
}  # fmt: skip


@pytest.mark.parametrize("make", MAKES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("form", [*NAMES, "dense"])
@pytest.mark.parametrize("repeats", [True, False], ids=["patterns", "entries"])
def test_arrays_of_any_layout_are_read_as_numpy_reads_them(make, form, repeats):
    # Rows that repeat and rows that do not have kernels of their own.
    matrix = graphene(5, 4) if repeats else anderson(3, disorder=2, rng=1).tocsr()
    if not repeats:
        values = np.random.default_rng(2).normal(size=matrix.nnz)
        matrix.data += values
        matrix = ((matrix + matrix.T) / 2).tocsr()
    given = matrix.toarray() if form == "dense" else matrix.asformat(form)
    wanted = kpm_dos(given, 24, 3, rng=1, backend="cpu")
    local = ldos(given, [1], 24, backend="cpu")
    if form == "dense":
        arrays = [given := make(given)]
    else:
        for name in NAMES[form]:
            setattr(given, name, make(getattr(given, name)))
        arrays = [getattr(given, name) for name in NAMES[form]]
    before = [array.copy() for array in arrays]
    density = kpm_dos(given, 24, 3, rng=1, backend="cpu")
    np.testing.assert_array_equal(density.moments, wanted.moments)
    assert density.bounds == wanted.bounds
    np.testing.assert_array_equal(ldos(given, [1], 24, backend="cpu").moments, local.moments)
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old)


def test_the_real_part_of_a_complex_matrix_is_itself():
    matrix = sp.random_array((90, 90), density=0.2, rng=3, format="csr")
    matrix = (matrix + matrix.T).tocsr()
    part = matrix.astype(complex).real
    assert part.data.strides == (16,)
    exact = np.linalg.eigvalsh(matrix.toarray())
    density, curves = kpm_dos(part, 32, 4, rng=1, backend="cpu"), ldos(part, [0, 5], 32, backend="cpu")
    assert exact[0] - 1e-9 <= density.bounds[0] + 1 and density.bounds[1] - 1 <= exact[-1] + 1e-9
    np.testing.assert_array_equal(density.moments, kpm_dos(matrix, 32, 4, rng=1, backend="cpu").moments)
    np.testing.assert_array_equal(curves.moments, ldos(matrix, [0, 5], 32, backend="cpu").moments)
    assert np.abs(curves.moments).max() <= 1 + 1e-12
    k, r = [[0.3]], np.arange(90.0)
    np.testing.assert_array_equal(
        spectral_function(part, k, r, num_moments=32, backend="cpu").moments,
        spectral_function(matrix, k, r, num_moments=32, backend="cpu").moments,
    )


def test_kernels_refuse_arrays_that_they_would_misread():
    held = graphene(4, 4)
    held.data = strided(held.data)
    operator = CpuOperator.from_csr(held)
    block = operator.random_block(1, 0, 2)
    with pytest.raises(Exception, match="C-contiguous"):
        operator.update(block, block.copy(), 1.0, 0.0, 0.0, 1, operator.blocks())


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("name", ["data", "second", "third"])
def test_arrays_of_the_wrong_length_are_refused(form, name):
    given = graphene(4, 4).asformat(form)
    name = {"second": "row" if form == "coo" else "indices", "third": "col" if form == "coo" else "indptr"}.get(
        name, name
    )
    setattr(given, name, getattr(given, name)[:-3])
    with pytest.raises(ValueError, match=f"H is no valid {form} matrix"):
        kpm_dos(given, 16, 2, backend="cpu")


@pytest.mark.parametrize("make", MAKES, ids=lambda make: make.__name__)
def test_numbers_beside_the_matrix_may_have_any_layout(make):
    H = TopologicalInsulator(4, 4, 3)
    site = np.arange(192) // 4
    positions = np.stack([site // 12, site // 3 % 4], axis=1).astype(float)
    orbitals, weights, k = np.arange(192) % 4, 1.0 + np.arange(192) % 3, np.array([[0.1, 0.2], [0.3, 0.4]])

    def moments(*arrays):
        return spectral_function(H, *arrays, num_moments=12, backend="cpu").moments

    plain = moments(k, positions, orbitals, weights)
    np.testing.assert_array_equal(moments(*map(make, (k, positions, orbitals, weights))), plain)
    rows = np.array([3, 7, 11])
    np.testing.assert_array_equal(
        ldos(H, make(rows), 12, backend="cpu").moments, ldos(H, rows, 12, backend="cpu").moments
    )
    potential = np.random.default_rng(1).random((4, 4, 3))
    mine, same = (TopologicalInsulator(4, 4, 3, each) for each in (make(potential), potential))
    np.testing.assert_array_equal(
        kpm_dos(mine, 12, 2, rng=1, backend="cpu").moments, kpm_dos(same, 12, 2, rng=1, backend="cpu").moments
    )


def test_a_complex_potential_is_refused():
    with pytest.raises(TypeError, match="potential must be real numbers, not complex128"):
        TopologicalInsulator(3, 3, 1, np.ones((3, 3, 1)) + 1j)


def test_rows_are_named_as_numpy_names_them():
    H = anderson(3, disorder=2, rng=1)
    every = ldos(H, range(27), 16, backend="cpu").moments
    mask = np.arange(27) % 5 == 2
    for rows in ([3, -1, 3], np.array([-27, 26]), mask, mask.tolist(), slice(2, None, 7), slice(None), range(3), 4):
        chosen = np.arange(27)[rows if isinstance(rows, slice) else np.asarray(rows)].ravel()
        np.testing.assert_allclose(ldos(H, rows, 16, backend="cpu").moments, every[:, chosen], atol=1e-13)
    for rows in ([27], [-28], mask[:-1], [], [0.5], slice(5, 5), np.zeros(27, bool), ["a"]):
        with pytest.raises(ValueError, match=r"rows must be whole numbers from -27 to 26, a slice, or a mask of 27"):
            ldos(H, rows, 16, backend="cpu")


def test_a_function_may_be_the_kernel():
    H = graphene(5, 4)
    named = kpm_dos(H, 40, 3, rng=1, backend="cpu", kernel="lorentz")
    called = kpm_dos(H, 40, 3, rng=1, backend="cpu", kernel=reference.lorentz_kernel)
    np.testing.assert_array_equal(called.densities, named.densities)
    sharp = kpm_dos(H, 40, 3, rng=1, backend="cpu", kernel=np.ones)
    np.testing.assert_array_equal(sharp.moments, named.moments)
    assert not np.allclose(sharp.densities, named.densities)
    curves = ldos(H, [0], 40, backend="cpu", kernel=lambda m: reference.lorentz_kernel(m, 3.0))
    np.testing.assert_allclose(curves.integrate(), 1, rtol=1e-12)
    for wrong in (lambda m: np.ones(m + 1), lambda m: np.full(m, np.nan), lambda m: 1j * np.ones(m), lambda m: None):
        with pytest.raises(ValueError, match=r"it must give \d+ finite real numbers"):
            kpm_dos(H, 40, 3, backend="cpu", kernel=wrong)


def test_an_operator_that_writes_into_its_input_is_named():
    matrix = graphene(4, 4)

    class Careless:
        shape, dtype = matrix.shape, matrix.dtype

        def __matmul__(self, x):
            image = matrix @ x
            x *= 0.5
            return image

    for call in (lambda: kpm_dos(Careless(), 16, 2), lambda: ldos(Careless(), [0], 16)):
        with pytest.raises(ValueError, match="H @ x writes into"):
            call()


def test_an_operator_may_return_its_input_or_one_array_of_its_own():
    class Identity:
        shape, dtype = (6, 6), np.dtype(np.float64)

        def __matmul__(self, x):
            return x

    assert kpm_dos(Identity(), 16, 2, rng=1).integrate(lambda energy: energy) == pytest.approx(6, rel=1e-9)
    matrix, kept = graphene(4, 4), {}

    class Kept:
        shape, dtype = matrix.shape, matrix.dtype

        def __matmul__(self, x):
            image = kept.setdefault(x.shape, np.empty_like(x))
            image[...] = matrix @ x
            return image

    limits = {"bounds": (-3.1, 3.1)}
    np.testing.assert_allclose(
        kpm_dos(Kept(), 16, 2, rng=1, **limits).moments,
        kpm_dos(matrix, 16, 2, rng=1, backend="cpu", **limits).moments, atol=1e-12,
    )  # fmt: skip


def test_rows_that_an_operator_leaves_out_are_seen():
    class Forgetful:
        shape, dtype = (6, 6), np.dtype(np.float64)

        def matmat(self, block, out):
            out[:-1] = block[:-1]

        def bounds(self):
            return None

        def memory_bytes(self, num_vectors):
            return 0

    with pytest.raises(ValueError, match="H times a vector is not finite"):
        kpm_dos(Forgetful(), 16, 2)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", [(2, 2), (1, 4)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_entries_that_are_not_finite_are_named(value, where, dtype):
    matrix = graphene(4, 4).toarray().astype(dtype)
    matrix[where] = matrix[where[::-1]] = value
    H, places = sp.csr_array(matrix), np.arange(32.0)
    for call in (
        lambda: kpm_dos(H, 16, 2, backend="cpu"),
        lambda: velocity(H, "x", places),
        lambda: conductivity(H, "x", "x", places, area=1.0, num_moments=4, backend="cpu"),
    ):
        with pytest.raises(ValueError, match="H holds NaN or infinity"):
            call()
    with pytest.raises(ValueError, match="H times a vector is not finite: an entry is NaN or infinity"):
        kpm_dos(aslinearoperator(matrix), 16, 2)
    with pytest.raises(ValueError, match="H times a vector is not finite"):
        ldos(LinearOperator(matrix.shape, matvec=lambda x: np.full_like(x, np.nan), dtype=dtype), [0], 16)


@pytest.mark.parametrize("exponent", [-1000, -600, 600, 1000])
def test_weights_of_a_plane_wave_are_of_any_size(exponent):
    H, sites, orbitals = graphene(4, 4), np.arange(32.0), np.arange(32) % 2
    weights = 1.0 + np.arange(32) % 3
    for sized in (np.ldexp(weights, exponent), np.ldexp(weights, exponent * orbitals)):
        found, exact = (
            spectral_function(H, [[0.3]], sites, orbitals, each, num_moments=8, backend="cpu").moments
            for each in (sized, weights)
        )
        np.testing.assert_array_equal(found, exact)


def test_phases_and_orbitals_without_a_meaning_are_named():
    H, sites = graphene(4, 4), np.arange(32.0)
    with pytest.raises(ValueError, match="their products"):
        spectral_function(H, [[1e200]], sites * 1e200, num_moments=8, backend="cpu")
    with pytest.raises(TypeError, match="orbitals cannot be put in order"):
        spectral_function(H, [[0.3]], sites, np.array(["a", None] * 16, dtype=object), num_moments=8, backend="cpu")


def test_complex_weights_are_named():
    with pytest.raises(TypeError, match=re.escape("weights must be real numbers, not complex128")):
        spectral_function(graphene(4, 4), [[0.1]], np.arange(32.0), weights=np.ones(32) * 1j, num_moments=8)


def real_numbers():
    """Return calls by the argument that is one or several real numbers."""
    H, sites = graphene(4, 4), np.arange(32.0)
    few = {"num_moments": 8, "num_vectors": 1, "rng": 1, "backend": "cpu"}
    sigma = conductivity(H, positions=sites, area=1.0, **few)
    return {
        "times": lambda given: evolve(H, sites, given, backend="cpu"),
        "energies": lambda given: greens_function(H, 0, 0, given, 0.5, backend="cpu"),
        "energy": kpm_dos(H, 8, 1, rng=1, backend="cpu"),
        "first": lambda given: correlator(H, None, None, **few)(given, 0.0),
        "mu": sigma,
        "omega": lambda given: sigma.optical(given),
        "periods": lambda given: velocity(H, "x", sites, periods=[[given]]),
        "eta": lambda given: greens_function(H, 0, 0, 0.5, given, backend="cpu"),
        "temperature": lambda given: sigma(0.0, given),
        "bounds": lambda given: evolve(H, sites, 1.0, bounds=(-4.0, given), backend="cpu"),
        "interval": lambda given: count(H, (-1.0, given), rng=1, backend="cpu"),
        "lattice": lambda given: LatticeModel(np.atleast_2d(given), [[0.0]], {}),
    }


REAL = ("times", "energies", "energy", "first", "mu", "omega", "periods", "lattice")
ONE = ("eta", "temperature", "bounds", "interval")


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("wrong", [1 + 2j, np.array([1 + 2j]), None], ids=["number", "array", "nothing"])
def test_what_is_no_real_number_is_named(name, wrong):
    with pytest.raises(TypeError, match=f"{name} must be real numbers"):
        real_numbers()[name](wrong)


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize(
    "wrong", [1 + 2j, np.complex128(1 + 2j), np.ones(2), None], ids=["own", "complex", "two", "nothing"]
)
def test_what_is_not_one_real_number_is_named(name, wrong):
    with pytest.raises((TypeError, ValueError), match=name):
        real_numbers()[name](wrong)


def test_no_energy_gives_no_entry_and_too_long_a_time_is_named():
    H = graphene(4, 4)
    assert greens_function(H, [0, 1], [2], [], 0.5, backend="cpu").shape == (0, 2, 1)
    with pytest.raises(MemoryError, match="so long a time"):
        evolve(H, np.ones(32), 1e14, backend="cpu")
    for time in (1e16, 1e300, 1e308):
        with pytest.raises(ValueError, match=r"a time of .* hides"):
            evolve(H, np.ones(32), time, backend="cpu")


@pytest.mark.parametrize("temperature", [0.0, 0.1])
def test_a_conductivity_is_nan_at_a_level_that_is(temperature):
    sigma = conductivity(graphene(4, 4), positions=np.arange(32.0), area=1.0, num_moments=8, num_vectors=2, rng=1)
    for found in (sigma([0.0, np.nan], temperature), sigma.error([0.0, np.nan], temperature)):
        assert np.isnan(found).tolist() == [False, True]
    assert np.isnan(sigma(np.nan, temperature)) and np.ndim(sigma(0.0, temperature)) == 0
