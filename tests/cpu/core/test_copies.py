"""Copies, deep copies and pickles of every public result: the same numbers, nothing shared that changes, or refused."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
import re
import subprocess
import sys

import numpy as np
import pytest

import spectile
from spectile import kpm, tsparse
from spectile.core.copies import Uncopied, Unpickled

from .test_shown import RESULTS, A, H, N, S

SITES = np.random.default_rng(2).standard_normal((N, 3))
MADE = RESULTS | {
    "the density of each vector": lambda: spectile.kpm_dos(H, 16, vectors=SITES, mean=False, backend="cpu"),
    "one's own vectors": lambda: spectile.kpm_dos(H, 16, vectors=SITES, backend="cpu"),
    "evd.explain": lambda: spectile.explain(spectile.eigh, A, backend="cpu")[0],
    "LorentzKernel": lambda: kpm.LorentzKernel(3.0),
    "TopologicalInsulator": lambda: kpm.TopologicalInsulator(3, 3, 2),
    "LatticeModel": lambda: kpm.LatticeModel([[1.0]], [[0.0]], {(1,): [[-1.0]], (-1,): [[-1.0]]}),
    "Sample": lambda: MADE["LatticeModel"]().sample([4]),
    "Step": lambda: spectile.density_matrix(np.diag(np.arange(N) - 9.5), electrons=10, method="sp2").history[0],
}
WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda result: pickle.loads(pickle.dumps(result)),
}
DONE = {"copy": "copied", "deepcopy": "copied", "pickle": "pickled"}
#: What goes on with H.
GOING_ON = {"kpm_dos", "an operator's density", "the density of each vector", "one's own vectors"}
REFUSED = {"chebyshev"}


def used(name, result):
    """Return numbers that a result gives when it is used."""
    if name == "symbolic":
        return [(result.multiply(S, S) != S @ S).nnz]
    if name == "galerkin":
        return [result.numeric(2 * S).data]
    if name == "spamm":
        return [result.error_bound, result.norms.norms]
    if name == "LatticeModel":
        return [result.bloch([0.1])]
    calls = (result, getattr(result, "error", None)) if name not in ("correlator", "LorentzKernel") else ()
    return [np.asarray(one(0.3)) for one in calls if callable(one)]


def arrays_of(result):
    return {name: np.copy(value) for name, value in vars(result).items() if isinstance(value, np.ndarray)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", sorted(set(MADE) - REFUSED))
def test_a_copy_has_the_same_numbers(name, way):
    for before in (True, False):  # whether it was used, which may keep more
        result = MADE[name]()
        values = used(name, result) if before else None
        again = WAYS[way](result)
        assert type(again) is type(result)
        assert repr(again) == repr(result) or name == "LatticeModel"  # which tells its address
        for one, other in zip(used(name, again), values or used(name, result), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("way", ["copy", "deepcopy"])
@pytest.mark.parametrize("name", sorted(GOING_ON))
def test_copies_go_on_by_themselves(name, way):
    """Each as if there were no other, whichever goes on first, and as if it had been asked for more at once."""
    for first in (0, 1):
        result = MADE[name]()
        pair = result, WAYS[way](result)
        expected = MADE[name]()
        steps = [lambda one: one.add_moments(7)] * 2
        steps += [lambda one: one.add_vectors(2)] if name in ("kpm_dos", "an operator's density") else []
        kept = arrays_of(result)
        for step in steps:
            step(pair[first])
            step(expected)
            for key, value in arrays_of(expected).items():
                np.testing.assert_allclose(getattr(pair[first], key), value, rtol=1e-10, atol=1e-13, err_msg=key)
            for key, value in kept.items():
                np.testing.assert_array_equal(getattr(pair[1 - first], key), value, err_msg=key)
            assert pair[1 - first].num_moments == 16
        for step in steps:
            step(pair[1 - first])
        np.testing.assert_allclose(pair[0].moments, pair[1].moments, rtol=1e-10, atol=1e-13)
        assert not np.shares_memory(pair[0].moments, pair[1].moments)


@pytest.mark.parametrize("name", sorted(GOING_ON))
def test_what_comes_from_a_pickle_does_not_go_on(name, tmp_path):
    again = WAYS["pickle"](MADE[name]())
    for one in (again, copy.copy(again), WAYS["pickle"](again)):
        calls = [lambda one=one: one.add_moments(3)]
        calls += [lambda one=one: one.add_vectors(3)] if "operator" in name or name == "kpm_dos" else []
        calls += [lambda one=one: one.save(tmp_path / "state.npz")] if name == "kpm_dos" else []
        for call in calls:
            with pytest.raises(ValueError, match="pickle"):
                call()
        assert one.num_moments == 16


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_bound_to_its_place_is_refused(name, way):
    result = MADE[name]()
    with pytest.raises(TypeError, match=DONE[way]):
        WAYS[way](result)
    assert next(result).shape == (N,)


#: Arrays that are a caller's own: nothing is made of them later, or what is made tells that they have changed.
FREE = {
    "SpammResult.c", "NormMap.matrix", "GalerkinProduct.C", "EighResult", "Tridiagonalization", "InteriorPairs",
    "Sample", "TopologicalInsulator.potential",
    "TileMatrix.layout",  # of the package itself
}  # fmt: skip


def public_arrays(result, seen=()):
    """Yield the public arrays of a result, and of the results that it holds, by their names."""
    kind = type(result).__name__
    for name in dir(result):
        if name.startswith("_") or {kind, f"{kind}.{name}"} & FREE:
            continue
        value = getattr(result, name, None)
        for one in [*value.values()] if isinstance(value, dict) else [value]:
            if isinstance(one, np.ndarray):
                if isinstance(value, dict) or np.shares_memory(one, getattr(result, name)):  # not made when it is read
                    yield f"{kind}.{name}", one
            elif type(one).__module__.startswith("spectile.") and not callable(one) and type(one) not in seen:
                yield from public_arrays(one, (*seen, type(result)))


@pytest.mark.parametrize("name", sorted(MADE))
def test_what_later_results_are_made_of_is_read_only(name):
    """A change of it would make them wrong without a word."""
    result = MADE[name]()
    ways = [] if name in REFUSED else WAYS.values()
    for one in (result, *(way(result) for way in ways)):
        for told, array in public_arrays(one):
            assert not array.flags.writeable, told


def test_patterns_are_copies_or_read_only():
    pattern, other = MADE["symbolic"](), S.copy()
    values = pattern.numeric(S.data, S.data)
    for array in (pattern.indptr, pattern.indices):
        with pytest.raises(ValueError, match="read-only"):
            array[-1] = 0
    product = tsparse.galerkin(S, other, S)
    wanted = product.numeric(S).toarray()
    made = pattern.multiply(S, S)
    for C in (made, product.C):
        C.data[:], C.indices[:], C.indptr[:] = 0, 0, 0
    other.indices[:] = 0
    np.testing.assert_array_equal(pattern.numeric(S.data, S.data), values)
    np.testing.assert_array_equal(product.numeric(S).toarray(), wanted)


def test_a_model_is_what_was_checked():
    hop = np.array([[-1.0]])
    model = kpm.LatticeModel([[1.0]], [[0.0]], {(1,): hop, (-1,): hop})
    hop[:] = 7.0
    assert abs(model.bloch([0.0]).item() + 2.0) < 1e-15


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_kept_pair_of_patterns_does_not_follow_a_tensor(dtype):
    torch = pytest.importorskip("torch")
    module = importlib.import_module("spectile.torch")
    index = [torch.as_tensor(one.astype(dtype)) for one in (S.indptr, S.indices)]
    make = lambda: torch.sparse_csr_tensor(*index, torch.as_tensor(S.data), size=S.shape)  # noqa: E731
    product = module.symbolic(make(), make())
    index[1][:] = 0
    data = torch.as_tensor(S.data).requires_grad_()
    values = product.numeric(data, data)
    values.sum().backward()
    np.testing.assert_allclose(values.detach().numpy(), (S @ S).sorted_indices().data, rtol=1e-12)
    ones = np.ones(N)
    rows = np.repeat(np.arange(N), np.diff(S.indptr))
    np.testing.assert_allclose(data.grad.numpy(), (S @ ones)[S.indices] + (S.T @ ones)[rows], rtol=1e-12)


def subclasses(of):
    return {of} | {each for one in of.__subclasses__() for each in subclasses(one)}


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_done_is_what_is_refused(way):
    """Of a matrix of several ranks a copy can be made, and no message says that it cannot."""
    importlib.import_module("spectile.tsparse.cuda.symbolic")
    importlib.import_module("spectile.nearsparse.cuda.plan")
    for one in subclasses(Unpickled) - {Unpickled, Uncopied}:
        if way == "pickle" or issubclass(one, Uncopied):
            with pytest.raises(TypeError, match=f"not {DONE[way]}: {re.escape(one._instead)}") as caught:
                WAYS[way](object.__new__(one))
            assert not any(word in str(caught.value).partition(":")[0] for word in set(DONE.values()) - {DONE[way]})
        else:
            assert hasattr(one, "__copy__") and hasattr(one, "__deepcopy__")


def test_a_copy_of_a_matrix_of_several_ranks_is_its_own():
    MPI = pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
    matrix = spectile.evd.BlockCyclicMatrix(MPI.COMM_SELF, (5, 5), block=2)
    matrix.local[:] = A[:5, :5]
    for way in ("copy", "deepcopy"):
        again = WAYS[way](matrix)
        assert not (again.rows.flags.writeable or again.columns.flags.writeable)
        np.testing.assert_array_equal(again.gather(), A[:5, :5])
        again.local[:] = 0
        np.testing.assert_array_equal(matrix.gather(), A[:5, :5])


def test_every_public_class_is_tried_or_told_to_refuse():
    """A new class of results is one of those above, or has a reason."""
    names = ["spectile", *(f"spectile.{one.name}" for one in pkgutil.iter_modules(spectile.__path__) if one.ispkg)]
    modules = [importlib.import_module(name) for name in names if name not in ("spectile.jax", "spectile.torch")]
    public = {
        value
        for module in modules
        for name in getattr(module, "__all__", ())
        if inspect.isclass(value := getattr(module, name)) and not issubclass(value, Exception)
    }
    tried = {type(make()) for make in MADE.values()}
    tried |= {type(one) for make in MADE.values() for one in vars_of(make())}
    protocols = {kpm.Operator, tsparse.SymbolicProduct}  # what others have
    assert {one for one in public - tried - protocols if not issubclass(one, Unpickled)} == set()


def vars_of(result):
    """Return what a result is made of."""
    slots = [getattr(result, name, None) for name in getattr(type(result), "__slots__", ())]
    return [*getattr(result, "__dict__", {}).values(), *slots, *(result if isinstance(result, tuple) else ())]


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_products_of_other_libraries_go_to_another_process(library, tmp_path):
    """What knows a product in one process, a number or a hash, is not what knows it in another."""
    pytest.importorskip(library)
    module = importlib.import_module(f"spectile.{library}")
    if library == "torch":
        import torch

        tensor = torch.sparse_csr_tensor(*map(torch.as_tensor, (S.indptr, S.indices, S.data)), size=S.shape)
        product, data = module.symbolic(tensor, tensor), torch.as_tensor(S.data)
    else:
        from jax.experimental.sparse import BCSR

        tensor = BCSR((S.data, S.indices, S.indptr), shape=S.shape)
        product, data = module.symbolic(tensor, tensor), S.data
    values = np.asarray(product.numeric(data, data))
    for way in WAYS.values():
        np.testing.assert_array_equal(np.asarray(way(product).numeric(data, data)), values)
    (tmp_path / "product").write_bytes(pickle.dumps((product, S.data, library)))
    program = """
import pickle, sys
import numpy as np, scipy.sparse as sp
product, data, library = pickle.load(open(sys.argv[1], "rb"))
if library == "torch":
    import torch
    data = torch.as_tensor(data)
np.save(sys.argv[2], np.asarray(product.numeric(data, data)))
"""
    subprocess.run([sys.executable, "-c", program, tmp_path / "product", tmp_path / "values.npy"], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "values.npy"), values)
