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
        pair[0].moments[:] = 0
        assert pair[1].moments.any()


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
