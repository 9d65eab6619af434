"""A caller's arrays of any library: what is taken as it is, and what would lose something and is refused."""

from __future__ import annotations

import ctypes
import sys
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.sparse import coo_array, csr_matrix, eye_array

import spectile
from spectile import density, evd, kpm, nearsparse, tsparse
from spectile.core import arrays
from spectile.core.arrays import host_array, on_device
from spectile.core.host import refuse_malformed, refuse_masked
from spectile.tiles import TileMatrix, hilbert_order, partition

VALUES = np.arange(12.0).reshape(3, 4)


class Bare:
    """An exporter of the first kind: ``__dlpack__`` alone, without keywords."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()


class Keywords(Bare):
    """The same with the keywords of the later versions, which let it export what is read-only."""

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)


class WithStream(Bare):
    def __dlpack__(self, stream: int | None = None) -> Any:
        assert stream is None
        return self.array.__dlpack__()


class Exporter(Keywords):
    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Asked(Bare):
    """What answers NumPy alone, as arrays of pandas do."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.array, dtype=dtype)


class Lazy:
    """A tensor of PyTorch that has its conjugate, its sign and its gradient still to be taken."""

    def __init__(self, array: np.ndarray, conjugate: bool = False, negative: bool = False, grad: bool = False) -> None:
        self.array, self.conjugate, self.negative, self.requires_grad = array, conjugate, negative, grad

    def resolve_conj(self) -> Lazy:
        return Lazy(self.array.conj() if self.conjugate else self.array, False, self.negative)

    def resolve_neg(self) -> Lazy:
        return Lazy(-self.array if self.negative else self.array, self.conjugate, False)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **keywords: Any) -> Any:
        if self.conjugate or self.negative:
            raise BufferError("Can't export tensors with the conjugate bit set.\nAnd a second line")
        return self.array.__dlpack__(**keywords)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if self.conjugate or self.negative:
            raise RuntimeError("Can't call numpy() on Tensor that has conjugate bit set.")
        return np.asarray(self.array, dtype=dtype)


@pytest.mark.parametrize("kind", [np.asarray, Bare, Keywords, WithStream, Exporter, Asked, lambda x: x[::-1][::-1]])
def test_host_arrays_of_any_library_share_their_memory(kind: Any) -> None:
    given = kind(VALUES)
    found = host_array("a", given)
    assert type(found) is np.ndarray and np.shares_memory(found, VALUES)
    np.testing.assert_array_equal(found, VALUES)
    assert not on_device(given)


def test_what_numpy_can_read_is_read() -> None:
    for given in (VALUES.tolist(), np.ma.array(VALUES), memoryview(VALUES)):
        found = host_array("a", given)
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, VALUES)
    assert host_array("a", 2.5).shape == ()


@pytest.mark.parametrize("kind", [np.asarray, Keywords, Exporter, Asked])
def test_read_only_memory_is_read(kind: Any) -> None:
    fixed = VALUES.copy()
    fixed.setflags(write=False)
    np.testing.assert_array_equal(host_array("a", kind(fixed)), VALUES)


def test_array_of_the_array_api() -> None:
    library = pytest.importorskip("array_api_strict")
    np.testing.assert_array_equal(host_array("a", library.asarray(VALUES)), VALUES)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("conjugate", [False, True])
def test_what_a_tensor_puts_off_is_done_and_a_gradient_is_not_lost(conjugate: bool, negative: bool, grad: bool) -> None:
    values = VALUES * (1 + 2j)
    tensor = Lazy(values, conjugate, negative, grad)
    if grad:
        with pytest.raises(TypeError, match=r"^x requires a gradient, .*: pass x\.detach\(\)$"):
            host_array("x", tensor)
        return
    wanted = (-1 if negative else 1) * (values.conj() if conjugate else values)
    np.testing.assert_array_equal(host_array("x", tensor), wanted)


class Refusing(Exporter):
    def __dlpack__(self, **keywords: Any) -> Any:
        raise BufferError("this layout has no strides.\nHere is how it is stored")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.ma.array(VALUES, mask=VALUES > 9), r"^b has masked entries, .* as b\.filled\(0\) does$"),
        ([np.ma.array([1.0, 2.0], mask=[False, True]), [3.0, 4.0]], "^b has masked entries"),
        (csr_matrix(VALUES), r"^b is a sparse matrix, .*: pass b\.toarray\(\)$"),
        (coo_array(VALUES), "^b is a sparse matrix"),
        (SimpleNamespace(__cuda_array_interface__={}, __array__=None), "^b is on a GPU, and an array on the host"),
        (SimpleNamespace(__dlpack_device__=lambda: (2, 0), __dlpack__=None), "^b is on a GPU"),
        (Refusing(VALUES), r"^b, of \S+Refusing, cannot be read \(this layout has no strides\): convert it$"),
    ],
)
def test_what_would_be_lost_is_refused_in_one_sentence(given: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said) as error:
        host_array("b", given)
    assert "\n" not in str(error.value)


class Tensor(ctypes.Structure):
    """The begin of a DLTensor."""

    _fields_ = (("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class Versioned(ctypes.Structure):
    """The begin of a DLManagedTensorVersioned."""

    _fields_ = (
        *(("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p)),
        *(("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)),
    )


class Elsewhere:
    """A bare exporter of memory on some device, in the first form of the protocol or in that with a version."""

    def __init__(self, kind: int, number: int, versioned: bool = False) -> None:
        tensor = Tensor(None, kind, number)
        self.exported = Versioned(1, 0, None, None, 0, tensor) if versioned else tensor
        self.name = b"dltensor_versioned" if versioned else b"dltensor"

    def __dlpack__(self, **keywords: Any) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(self.exported), self.name, None)


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize(("kind", "there"), [(1, False), (2, True), (3, False), (13, True)])
def test_a_bare_exporter_is_asked_where_its_tensor_lies(kind: int, there: bool, versioned: bool) -> None:
    tensor = Elsewhere(kind, 5, versioned)
    assert on_device(tensor) is there
    assert arrays._Exporter(tensor).__dlpack_device__() == (kind, 5)
    if there:
        with pytest.raises(TypeError, match=r"^a is on a GPU"):
            host_array("a", tensor)


@pytest.fixture
def fake_cupy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a CuPy whose arrays are NumPy's in a wrapper, on device 0 of two."""

    class ndarray:
        def __init__(self, array: Any) -> None:
            self.array = array

    def from_dlpack(exporter: Any) -> ndarray:
        exporter.__dlpack__(stream=1)
        return ndarray(exporter.__dlpack_device__())

    cupy = SimpleNamespace(ndarray=ndarray, from_dlpack=from_dlpack, asnumpy=lambda result, order: result.array)
    cupy.asarray = lambda array: ndarray(np.array(array))
    cupy.cuda = SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: 0))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return cupy


def test_arrays_go_to_the_device_and_come_back_in_their_kind(
    fake_cupy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = types.ModuleType("tensors")
    library.from_dlpack = Exporter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensors", library)
    own = type("Own", (Exporter,), {"__module__": "tensors"})
    inherited = type("Inherited", (own,), {"__module__": __name__})
    for kind, back in ((np.asarray, np.ndarray), (Bare, np.ndarray), (own, Exporter), (inherited, Exporter)):
        found, in_kind = arrays.to_device(kind(VALUES))
        assert type(found) is fake_cupy.ndarray
        np.testing.assert_array_equal(found.array, VALUES)
        assert type(in_kind(found)) is back
    conjugate, _ = arrays.to_device(Lazy(1j * VALUES, conjugate=True), "x")
    np.testing.assert_array_equal(conjugate.array, -1j * VALUES)
    with pytest.raises(TypeError, match=r"^x has masked entries"):
        arrays.to_device(np.ma.array(VALUES, mask=VALUES > 9), "x")
    with pytest.raises(TypeError, match=r"^x is a sparse matrix"):
        arrays.to_device(csr_matrix(VALUES), "x")
    bare = type("Bare", (Elsewhere,), {"__module__": "tensors"})(2, 1)
    found, in_kind = arrays.to_device(bare)
    assert found.array == (2, 1) and in_kind is library.from_dlpack


def test_an_array_of_another_device_is_refused_with_both_numbers(fake_cupy: SimpleNamespace) -> None:
    def array(device: int, size: int = 1) -> SimpleNamespace:
        return SimpleNamespace(size=size, data=SimpleNamespace(device_id=device))

    arrays.require_here("a", array(0))
    arrays.require_here("a", array(1, size=0))
    arrays.require_here("a", array(-2))  # memory that belongs to no device
    with pytest.raises(ValueError, match=r"^a is on device 1, and the current device is 0: .*cupy\.cuda\.Device\(1\)"):
        arrays.require_here("a", array(1))


@pytest.mark.parametrize("part", ["row", "col"])
@pytest.mark.parametrize("index", [-1, 3, 2])
def test_an_index_beside_a_coordinate_matrix_is_named(part: str, index: int) -> None:
    matrix = coo_array((np.ones(2), ([0, 2], [2, 0])), shape=(3, 3))
    refuse_malformed("A", matrix)
    getattr(matrix, part)[0] = index
    if index == 2:
        refuse_malformed("A", matrix)
        matrix.data = np.ones(3)
    with pytest.raises(ValueError, match=r"^A is no valid coo matrix \(an index lies outside"):
        refuse_malformed("A", matrix)


N = 8
MATRIX = np.random.default_rng(2).normal(size=(N, N)) + N * np.eye(N)
MATRIX = (MATRIX + MATRIX.T) / 2
PATTERN = csr_matrix(MATRIX)
POINTS, ORDER, NUMBERS = np.arange(2.0 * N).reshape(N, 2), np.arange(N)[::-1].copy(), np.linspace(-1, 1, N)
ROWS, FILLED = np.array([2, 2, 4]), {"electrons": 4, "error": 1e-2}
ON_CPU, BOUNDED = {"backend": "cpu"}, {"backend": "cpu", "bounds": (-99.0, 99.0), "progress": False}


#: Arrays that callers give, by name: a call that takes one, and one that it takes.
DENSITY = kpm.kpm_dos(PATTERN, N // 2, 1, rng=1, **BOUNDED)  # at N energies


class Scaled:
    """An operator by its product alone, whose result is of the kind of its factors."""

    shape, dtype = (N, N), np.dtype(np.float64)

    def __init__(self, factors):
        self.factors = factors

    def __matmul__(self, block):
        return self.factors[:, None] * block


TAKEN = {
    "spamm a": (lambda x: spectile.spamm(x, MATRIX, tau=0.0, **ON_CPU), MATRIX),
    "spamm c": (lambda x: spectile.spamm(MATRIX, MATRIX, tau=0.0, beta=1.0, c=x, **ON_CPU), MATRIX),
    "norm_map a": (nearsparse.norm_map, MATRIX),
    "tune_tau a": (lambda x: nearsparse.tune_tau(x, MATRIX, 0.5), MATRIX),
    "eigh a": (lambda x: spectile.eigh(x, **ON_CPU), MATRIX),
    "eigh b": (lambda x: spectile.eigh(MATRIX, x, **ON_CPU), MATRIX),
    "eigh x0": (lambda x: spectile.eigh(MATRIX, x0=x, **ON_CPU), np.linalg.eigh(MATRIX)[1]),
    "eigh_tridiagonal d": (lambda x: evd.eigh_tridiagonal(x, NUMBERS[1:], **ON_CPU), NUMBERS),
    "eigh_tridiagonal e": (lambda x: evd.eigh_tridiagonal(NUMBERS, x, **ON_CPU), NUMBERS[1:]),
    "eig_banded a_band": (lambda x: evd.eig_banded(x, **ON_CPU), MATRIX[:2]),
    "logm a": (lambda x: spectile.logm(x, **ON_CPU), MATRIX),
    "frechet e": (lambda x: spectile.matrix_function_frechet(np.exp, MATRIX, x, df=np.exp, **ON_CPU), MATRIX),
    "spgemm A": (lambda x: spectile.spgemm(x, PATTERN, **ON_CPU), PATTERN),
    "spgemm mask": (lambda x: spectile.spgemm(PATTERN, PATTERN, mask=x, **ON_CPU), PATTERN),
    "spgemm C": (lambda x: spectile.spgemm(PATTERN, PATTERN, beta=1, C=x, **ON_CPU), PATTERN),
    "numeric data_a": (lambda x: tsparse.symbolic(PATTERN, PATTERN, **ON_CPU).numeric(x, PATTERN.data), PATTERN.data),
    "spmm X": (lambda x: tsparse.spmm(PATTERN, x), MATRIX),
    "galerkin A": (lambda x: tsparse.galerkin(PATTERN, x, PATTERN), PATTERN),
    "error_bound A": (lambda x: tsparse.error_bound(x, PATTERN), PATTERN),
    "kpm_dos H": (lambda x: spectile.kpm_dos(x, 4, 1, **BOUNDED), MATRIX),
    "kpm_dos H in CSR": (lambda x: spectile.kpm_dos(x, 4, 1, **BOUNDED), PATTERN),
    "kpm_dos operator": (lambda x: spectile.kpm_dos(PATTERN, 4, 1, operator=x, **BOUNDED), PATTERN),
    "kpm_dos vectors": (lambda x: spectile.kpm_dos(PATTERN, 4, vectors=x, **BOUNDED), MATRIX),
    "density energy": (spectile.SpectralDensity(PATTERN, 4, 1, rng=1, **BOUNDED), NUMBERS),
    "ldos rows": (lambda x: spectile.ldos(PATTERN, x, 4, **BOUNDED), ORDER),
    "spectral_function wavevectors": (
        lambda x: spectile.spectral_function(PATTERN, x, POINTS, num_moments=4, **BOUNDED), POINTS),
    "spectral_function positions": (
        lambda x: spectile.spectral_function(PATTERN, POINTS, x, num_moments=4, **BOUNDED), POINTS),
    "spectral_function orbitals": (
        lambda x: spectile.spectral_function(PATTERN, POINTS, POINTS, x, num_moments=4, **BOUNDED), ORDER),
    "spectral_function weights": (
        lambda x: spectile.spectral_function(PATTERN, POINTS, POINTS, None, x, num_moments=4, **BOUNDED), NUMBERS),
    "chebyshev vectors": (lambda x: kpm.chebyshev(PATTERN, x, 4, **BOUNDED), NUMBERS),
    "chebyshev bra": (lambda x: kpm.chebyshev(PATTERN, NUMBERS, 4, bra=x, **BOUNDED), NUMBERS),
    "evolve psi": (lambda x: kpm.evolve(PATTERN, x, 1.0, **BOUNDED), NUMBERS),
    "evolve times": (lambda x: kpm.evolve(PATTERN, NUMBERS, x, **BOUNDED), NUMBERS),
    "greens_function i": (lambda x: kpm.greens_function(PATTERN, x, 0, 0.1, 9.0, **BOUNDED), ORDER),
    "greens_function energies": (lambda x: kpm.greens_function(PATTERN, 0, 0, x, 9.0, **BOUNDED), NUMBERS),
    "correlator A": (lambda x: kpm.correlator(PATTERN, x, PATTERN, num_moments=4, num_vectors=1, **BOUNDED), PATTERN),
    "conductivity positions": (
        lambda x: kpm.conductivity(PATTERN, "x", "x", x, area=1.0, num_moments=4, num_vectors=1, **BOUNDED), POINTS),
    "velocity positions": (lambda x: kpm.velocity(PATTERN, "x", x), POINTS),
    "density_matrix f": (lambda x: spectile.density_matrix(x, **FILLED), MATRIX),
    "density_matrix s": (lambda x: spectile.density_matrix(MATRIX, s=x, **FILLED), csr_matrix(np.eye(N))),
    "density_matrix permutation": (lambda x: spectile.density_matrix(MATRIX, permutation=x, **FILLED), ORDER),
    "density_matrix block": (lambda x: spectile.density_matrix(MATRIX, block=x, **FILLED), ROWS),
    "inverse_factor s": (density.inverse_factor, PATTERN),
    "polar a": (density.polar, MATRIX),
    "from_dense a": (TileMatrix.from_dense, MATRIX),
    "from_dense rows": (lambda x: TileMatrix.from_dense(MATRIX, x), ROWS),
    "from_sparse a": (TileMatrix.from_sparse, PATTERN),
    "from_tiles tiles": (lambda x: TileMatrix.from_tiles(lambda i, j: x, [(0, 0)], [N]), MATRIX),
    "identity rows": (TileMatrix.identity, ROWS),
    "permuted permutation": (TileMatrix.from_dense(MATRIX).permuted, ORDER),
    "hilbert_order positions": (hilbert_order, POINTS),
    "partition sizes": (partition, ROWS),
    "partition positions": (lambda x: partition([1] * N, positions=x), POINTS),
    "apply's f": (lambda x: kpm.apply(lambda e: x[np.ones(len(e), int)], PATTERN, NUMBERS, num_moments=4), NUMBERS),
    "integrate's f": (lambda x: DENSITY.integrate(lambda energies: x), NUMBERS),
    "a kernel": (lambda x: kpm.kpm_dos(PATTERN, N, 1, kernel=lambda count: x[:count], **BOUNDED), NUMBERS),
    "an operator's product": (
        lambda x: kpm.kpm_dos(PATTERN, 4, 1, operator=lambda block: x[:, None] * block, **BOUNDED), NUMBERS),
    "H's product": (lambda x: kpm.evolve(Scaled(x), NUMBERS, 1.0, **BOUNDED), NUMBERS),
    "matrix_function's f": (lambda x: spectile.matrix_function(lambda w: x, MATRIX), NUMBERS),
    "average's function": (lambda x: kpm.average(lambda rng: x, 2), NUMBERS),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_no_mask_is_lost(name):
    """Whatever takes an array takes it without a mask, and says so of one with masked entries."""
    call, plain = TAKEN[name]
    call(plain)
    masked = plain.copy()
    if isinstance(masked, csr_matrix):
        masked.data = np.ma.masked_array(masked.data, np.arange(masked.nnz) == 1)
    else:
        masked = np.ma.masked_array(masked, np.arange(masked.size).reshape(masked.shape) == 1)
    with pytest.raises(TypeError, match=r"mask") as caught:
        call(masked)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
def test_sparse_matrices_of_every_format_are_looked_at_for_masks(form: str) -> None:
    refuse_masked("A", eye_array(4).asformat(form))


@pytest.mark.parametrize("call", [spectile.eigvalsh, TileMatrix.from_dense, lambda x: kpm.chebyshev(PATTERN, x, 4)])
def test_rows_of_several_lengths_are_told_in_a_sentence(call):
    with pytest.raises(TypeError, match=r"is no array: give numbers, in rows of one length$"):
        call([[1.0, 2.0], [3.0]])
