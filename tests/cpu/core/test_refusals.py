"""What is no operand, and no option, is refused in one sentence that names the argument, by every public function."""

import importlib
import re

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

import spectile
from spectile import density, kpm, nearsparse, tsparse
from spectile.core import device
from spectile.evd import BlockCyclicMatrix
from spectile.kpm.distributed.mpi import DistributedMatrix
from spectile.kpm.distributed.multi_gpu import MultiGpuMatrix
from spectile.tiles import hilbert_order, partition

DENSE = np.eye(4) + 1.0
SPARSE = sp.csr_array(DENSE)
TILES = spectile.TileMatrix.from_dense(DENSE, 2, hermitian=True)
CHAIN = kpm.LatticeModel([[1.0]], [[0.0]], {(1,): [[-1.0]], (-1,): [[-1.0]]})
HELD = kpm.kpm_dos(SPARSE, num_moments=8, num_vectors=1, rng=1, backend="cpu")
PATTERN = tsparse.symbolic(SPARSE, SPARSE, backend="cpu")

#: Functions with the operands of a right call by name; `operator` marks those that take any linear operator.
CALLS = {
    "eigh": (spectile.eigh, {"a": DENSE, "b": DENSE}),
    "eigvalsh": (spectile.eigvalsh, {"a": DENSE}),
    "tridiagonalize": (spectile.tridiagonalize, {"a": DENSE}),
    "eigh_tridiagonal": (spectile.eigh_tridiagonal, {"d": np.ones(4), "e": np.ones(3)}),
    "eig_banded": (spectile.eig_banded, {"a_band": DENSE[:2]}),
    "expm": (spectile.expm, {"a": DENSE}),
    "matrix_function_frechet": (
        lambda a, e: spectile.matrix_function_frechet("exp", a, e),
        {"a": DENSE, "e": DENSE},
    ),
    "spamm": (lambda a, b: spectile.spamm(a, b, rtol_factors=0.1), {"a": DENSE, "b": DENSE}),
    "spamm_threshold": (lambda a, b: spectile.spamm_threshold(a, b, tau=0.1), {"a": DENSE, "b": DENSE}),
    "norm_map": (nearsparse.norm_map, {"a": DENSE}),
    "spgemm": (spectile.spgemm, {"A": SPARSE, "B": SPARSE}),
    "symbolic": (tsparse.symbolic, {"A": SPARSE, "B": SPARSE}),
    "galerkin": (tsparse.galerkin, {"R": SPARSE, "A": SPARSE, "P": SPARSE}),
    "spmm": (tsparse.spmm, {"A": SPARSE, "X": DENSE}),
    "multiply": (PATTERN.multiply, {"A": SPARSE, "B": SPARSE}),
    "kpm_dos": (lambda H: spectile.kpm_dos(H, num_moments=8, num_vectors=1), {"H": SPARSE}),
    "evolve": (lambda H, vectors: spectile.evolve(H, vectors, 1.0), {"H": SPARSE, "vectors": np.ones(4)}),
    "from_dense": (lambda a: spectile.TileMatrix.from_dense(a, 2), {"a": DENSE}),
    "from_sparse": (lambda a: spectile.TileMatrix.from_sparse(a, 2), {"a": SPARSE}),
    "density_matrix": (
        lambda f, s: spectile.density_matrix(f, s, electrons=1),
        {"f": np.diag([-1.0, 1.0, 1.0, 1.0]), "s": np.eye(4)},
    ),
    "inverse_sqrt": (density.inverse_sqrt, {"s": DENSE}),
    "inverse_factor": (density.inverse_factor, {"s": DENSE}),
    "polar of tiles": (density.polar, {"a": DENSE}),
    "sign": (density.sign, {"x": TILES}),
    "hilbert_order": (hilbert_order, {"positions": DENSE[:, :2]}),
    "partition": (partition, {"sizes": np.ones(4, int)}),
}
NO_OPERANDS = {
    "None": None,
    "a word": "word",
    "an object": object(),
    "a set": {1.0, 2.0},
    "an operator": aslinearoperator(DENSE),
    "a number": -3,
}
OPTIONAL = {("eigh", "b", "None"), ("density_matrix", "s", "None")}
OPERATORS = {"kpm_dos", "evolve"}


def refused(name, function, *arguments, **keywords):
    """Return the message of a refusal, which is one of ours, in one line, and names the argument."""
    with pytest.raises((TypeError, ValueError)) as caught:
        function(*arguments, **keywords)
    said = str(caught.value)
    assert "/spectile/" in str(caught.traceback[-1].path), said
    assert "\n" not in said
    assert re.search(rf"(?<!\w){name}(?!\w)", said), said
    assert not re.search(r"\bis a [aeio]|NoneType", said), said
    return said


@pytest.mark.parametrize("given", NO_OPERANDS)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_operand_is_refused_by_its_name(call, given):
    function, operands = CALLS[call]
    function(**operands)
    for name in operands:
        if (call, name, given) in OPTIONAL or (given == "an operator" and call in OPERATORS and name == "H"):
            continue
        said = refused(name, function, **operands | {name: NO_OPERANDS[given]})
        assert "UPLO" not in said or name == "b", said  # only there a caller of numpy.linalg.eigh names the triangle


def flawed():
    """Return matrices that are no operands of some functions, by what is wrong."""
    hole, outside = DENSE.copy(), SPARSE.copy()
    hole[0, 1] = hole[1, 0] = np.nan
    outside.indices[1] = 9
    dense = {
        "NaN": hole, "large integers": np.eye(4, dtype=np.int64) << 60, "long": DENSE.astype(np.longdouble),
        "skew": np.triu(DENSE), "wide": np.ones((4, 5)),
    }  # fmt: skip
    others = {
        "objects": DENSE.astype(object), "a vector": np.ones(3), "a stack": np.ones((2, 3, 4)), "outside": outside,
        "masked": np.ma.masked_equal(DENSE, 1.0),
    }  # fmt: skip
    return dense | {f"sparse, {flaw}": sp.csr_array(matrix) for flaw, matrix in dense.items()} | others


FLAWED = flawed()


@pytest.mark.parametrize("flaw", FLAWED)
@pytest.mark.parametrize("call", CALLS)
def test_a_flaw_of_an_operand_is_told_by_its_name_alone(call, flaw):
    """Where it is refused: not by what a function calls its own argument that the operand is handed to."""
    function, operands = CALLS[call]
    for name in operands:
        given = operands | {name: FLAWED[flaw]}
        try:
            function(**given)
        except (TypeError, ValueError):
            said = refused(name, function, **given)
            inner = "|".join({"a", "A", "H", "rows", "columns"} - set(operands))
            assert not re.search(rf"(^|: )({inner}) (is|has|holds|adds)\b", said), said


@pytest.mark.parametrize(
    ("name", "function", "wrong"),
    [
        ("block", lambda block: density.polar(np.ones((4, 3)), block=block), 0),
        ("block", lambda block: density.polar(np.ones((4, 3)), block=block), [2, 2]),
        ("block", lambda block: density.inverse_sqrt(DENSE, block=block), [3, 3]),
        ("f", HELD.integrate, "word"),
        ("f", HELD.integrate, 3),
        ("f", lambda f: kpm.apply(f, SPARSE, np.ones(4)), 3),
        ("f", lambda f: kpm.apply(f, SPARSE, np.ones(4)), None),
        ("A", lambda A: kpm.correlator(SPARSE, A, SPARSE, num_moments=8), 3),
        ("observe", lambda observe: kpm.average(observe, 2), None),
        ("hoppings", lambda hoppings: kpm.LatticeModel([[1.0]], [[0.0]], hoppings), 3),
        ("model", kpm.from_pythtb, 3),
        ("model", kpm.from_pybinding, None),
        ("start", lambda start: spectile.density_matrix(np.diag([-1.0, 1.0]), electrons=1, start=start), 3),
        ("devices", lambda devices: MultiGpuMatrix(SPARSE, devices), 2),
        ("out", lambda out: spectile.spamm(DENSE, DENSE, tau=1.0, out=out), 3),
        ("data_a", lambda data_a: PATTERN.numeric(data_a, SPARSE.data), None),
        ("other", lambda other: TILES.multiply(other), None),
        ("other", TILES.dot, 3),
        ("periodic", lambda periodic: CHAIN.sample([4], periodic=periodic), "word"),
        ("periodic", lambda periodic: CHAIN.sample([4], periodic=periodic), [True, False]),
        ("check_finite", lambda check_finite: PATTERN.multiply(SPARSE, SPARSE, check_finite=check_finite), "word"),
        ("checkpoint_s", lambda checkpoint_s: kpm.kpm_dos(SPARSE, 8, 1, checkpoint_s=checkpoint_s), "word"),
        ("d", lambda d: spectile.eigh_tridiagonal(d, [1.0]), 2.0),
        ("e", lambda e: spectile.eigh_tridiagonal([1.0, 2.0], e), 2.0),
        ("a_band", spectile.eig_banded, [1.0, 2.0]),
        ("s", lambda s: spectile.density_matrix(np.diag([-1.0, 1.0]), s, electrons=1, block=[1, 1]), np.ones((2, 3))),
    ],
)
def test_what_is_no_option_is_refused_by_its_name(name, function, wrong):
    said = refused(name, function, wrong)
    assert "columns as well" not in said


#: Options that would be ignored beside what else is given, by their names, each of which a refusal tells.
IGNORED = {
    "spamm, c without beta": (("c", "beta"), lambda: spectile.spamm(DENSE, DENSE, tau=0.1, c=DENSE)),
    "spamm, beta without c": (("c", "beta"), lambda: spectile.spamm(DENSE, DENSE, tau=0.1, beta=1)),
    "spamm, beta with rtol": (("rtol", "beta"), lambda: spectile.spamm(DENSE, DENSE, rtol=0.1, beta=1, c=DENSE)),
    "spgemm, C without beta": (("C", "beta"), lambda: spectile.spgemm(SPARSE, SPARSE, C=SPARSE)),
    "spgemm, no mask": (("complement", "mask"), lambda: spectile.spgemm(SPARSE, SPARSE, complement=True)),
    "spgemm, alpha": (("alpha",), lambda: spectile.spgemm(SPARSE, SPARSE, alpha=2, semiring="min_plus")),
    "eigh, a part by x0": (("x0",), lambda: spectile.eigh(DENSE, x0=DENSE, subset_by_index=(0, 1))),
    "eigh, a type that is none": (("type",), lambda: spectile.eigh(DENSE, type=4)),
    "eigh, GPUs on a CPU": (("devices", "backend"), lambda: spectile.eigh(DENSE, devices=2, backend="cpu")),
    "density_matrix, beta": (("method", "beta"), lambda: of_gap(np.diag([-1.0, 1.0]), method="trs4", beta=9.0)),
    "density_matrix, block": (("block",), lambda: of_gap(TILES, block=1)),
    "density_matrix, permutation": (("permutation",), lambda: of_gap(TILES, permutation=[3, 2, 1, 0])),
    "frechet, df of a word": (("df",), lambda: spectile.matrix_function_frechet("exp", DENSE, DENSE, df=np.exp)),
    "multiply, two errors": (("atol", "rtol"), lambda: TILES.multiply(TILES, atol=1.0, rtol=1.0)),
    "conductivity, periods": (("positions",), lambda: spectile.conductivity(SPARSE, "x", "x", periods=[[4.0]])),
}


def of_gap(f, **options):
    return spectile.density_matrix(f, electrons=1, **options)


@pytest.mark.parametrize("call", IGNORED)
def test_an_option_that_would_be_ignored_is_refused(call):
    names, function = IGNORED[call]
    for name in names:
        refused(name, function)


def test_a_sample_is_periodic_along_all_vectors_or_along_those_named():
    closed, still = (CHAIN.sample([4], periodic=each).H.toarray() for each in (np.True_, [True]))
    assert np.array_equal(closed, still) and closed[0, 3] == -1
    assert CHAIN.sample([4], periodic=0).H.toarray()[0, 3] == 0


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("given", NO_OPERANDS)
def test_modules_of_derivatives_refuse_by_name_too(library, given):
    numbers = pytest.importorskip("torch" if library == "torch" else "jax.numpy")
    module = importlib.import_module(f"spectile.{library}")
    right = numbers.eye(4) + 1.0
    functions = {
        "eigh": lambda a, b: module.eigh(a, b),
        "expm": lambda a, b: module.expm(a),
        "spamm": lambda a, b: module.spamm(a, b, rtol_factors=0.1),
    }
    for call, function in functions.items():
        for name, wrong in (("a", NO_OPERANDS[given]), ("b", NO_OPERANDS[given]), ("a", SPARSE), ("b", SPARSE)):
            if name == "b" and (call == "expm" or (call == "eigh" and wrong is None)):
                continue
            if library == "jax" and isinstance(wrong, int):
                continue  # an array without dimensions, whose shape is refused
            refused(name, function, **{"a": right, "b": right} | {name: wrong})


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_a_triangle_is_no_word_where_gradients_are_asked_for(library):
    numbers = pytest.importorskip("torch" if library == "torch" else "jax.numpy")
    module = importlib.import_module(f"spectile.{library}")
    a = numbers.eye(2)
    if library == "torch":
        a.requires_grad_()
    for function in (module.eigh, module.eigvalsh, module.expm):
        refused("lower", function, a, lower="upper")


def test_sparse_arrays_of_jax_are_refused_where_dense_ones_are_needed():
    jax = pytest.importorskip("jax")
    module = importlib.import_module("spectile.jax")
    a = jax.experimental.sparse.BCSR.fromdense(jax.numpy.eye(4))
    for function in (module.eigh, module.expm, lambda a: module.spamm(a, a, tau=0.1)):
        assert "todense" in refused("a", function, a)


@pytest.mark.parametrize("comm", [None, 4, "COMM_WORLD"])
@pytest.mark.parametrize(
    "call",
    [
        lambda comm: DistributedMatrix(SPARSE, comm),
        lambda comm: DistributedMatrix.from_rows(SPARSE, comm),
        lambda comm: BlockCyclicMatrix(comm, (4, 4)),
        lambda comm: BlockCyclicMatrix.from_function(comm, (4, 4), np.add),
        lambda comm: BlockCyclicMatrix.scatter(comm, DENSE),
    ],
)
def test_no_communicator_is_refused(call, comm):
    with pytest.raises(TypeError, match=r"^comm is no communicator: pass one of mpi4py"):
        call(comm)


def without_gpu():
    if (reason := device.refusal()) is None:
        pytest.skip("there is a GPU here")
    return reason


def test_what_lies_on_gpus_says_why_there_are_none():
    reason = without_gpu()
    for call in (TILES.to_device, lambda: TILES.to_devices(2), lambda: MultiGpuMatrix(SPARSE)):
        with pytest.raises(RuntimeError, match=re.escape(reason)) as caught:
            call()
        assert "backend" not in str(caught.value)  # which none of them has


@pytest.mark.parametrize("devices", [1, 2, [0]])
@pytest.mark.parametrize(
    ("function", "backends"),
    [
        (lambda **on: spectile.spamm(DENSE, DENSE, tau=0.1, **on), ("auto", "cpu", "cuda")),
        (lambda **on: spectile.spgemm(SPARSE, SPARSE, **on), ("auto", "cpu", "cuda")),
        (lambda **on: spectile.eigh(DENSE, **on), ("auto", "cpu", "cuda")),
        (lambda **on: spectile.eigvalsh(DENSE, **on), ("auto", "cpu", "cuda")),
        (lambda **on: of_gap(np.diag([-1.0, 1.0, 1.0, 1.0]), **on), (None,)),
    ],
)
def test_without_a_gpu_devices_are_what_is_to_be_left_out(function, backends, devices):
    """Not another backend, which is refused in turn, or is no argument at all."""
    without_gpu()
    for backend in backends:
        options = {} if backend is None else {"backend": backend}
        with pytest.raises((RuntimeError, ValueError), match="devices") as caught:
            function(devices=devices, **options)
        assert re.search(r"leave (out|them out)", str(caught.value)) and 'use backend="' not in str(caught.value)
        function(**options if backend != "cuda" else {})
