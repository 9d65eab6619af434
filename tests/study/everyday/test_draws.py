"""The generator: fair from the first draws on, within its ranges, of the structures that it names."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from spectile_study.everyday import evd, kpm, spamm, sparse, tsparse
from spectile_study.everyday.measure import SYSTEMS
from spectile_study.everyday.problem import RATES, Place
from spectile_study.everyday.strata import PARTS, Strata

HERE = Place("cpu", 2**30, RATES["cpu"])


@pytest.mark.parametrize("count", [1, 7, 10, 23, 64])
def test_any_number_of_first_draws_holds_each_value_as_often(count):
    drawn = [Strata(5, "evd", index) for index in range(count)]
    kinds = Counter(strata.one_of("kind", "abcdef") for strata in drawn)
    assert max(kinds.values()) - min(kinds[value] for value in "abcdef") <= 1
    parts = Counter(int(PARTS * strata.share("size")) for strata in drawn)
    assert max(parts.values()) - min(parts[part] for part in range(PARTS)) <= 1


def test_sequences_of_names_systems_and_seeds_are_independent():
    def shares(seed, system, name):
        return [Strata(seed, system, index).share(name) for index in range(200)]

    own = shares(1, "kpm", "rows")
    assert own == shares(1, "kpm", "rows")
    for other in (shares(2, "kpm", "rows"), shares(1, "evd", "rows"), shares(1, "kpm", "entries")):
        assert abs(np.corrcoef(own, other)[0, 1]) < 0.25


@pytest.mark.parametrize("system", SYSTEMS)
def test_draws_follow_from_seed_and_number_and_have_words_of_their_own(system):
    module = SYSTEMS[system]
    draws = [module.draw(Strata(3, system, index)) for index in range(120)]
    assert draws == [module.draw(Strata(3, system, index)) for index in range(120)]
    assert draws != [module.draw(Strata(4, system, index)) for index in range(120)]
    assert len({module.told(params) for params in draws}) == 120
    for params in draws:
        cost = module.cost(params)
        assert cost.memory_bytes > 0 and cost.seconds(HERE) > 0


#: Of each system the sizes that are log-uniform, and their ranges.
RANGES = {
    "spamm": {"m": (64, 16384), "k": (64, 16384), "n": (64, 16384)},
    "tsparse": {"rows": (10**3, 10**7), "entries": (1, 300)},
    "evd": {"n": (8, 16384)},
    "kpm": {"rows": (10**4, 10**7), "entries": (2, 100), "vectors": (1, 64), "moments": (64, 2048)},
}


@pytest.mark.parametrize("system", RANGES)
def test_sizes_fill_their_ranges_evenly_in_the_logarithm(system):
    draws = [SYSTEMS[system].draw(Strata(9, system, index)) for index in range(400)]
    for name, (low, high) in RANGES[system].items():
        values = np.array([params[name] for params in draws if "count" not in params], float)
        assert low <= values.min() <= low * 2 and high / 2 <= values.max() <= high
        middle = np.sqrt(low * high)
        assert 0.4 < (values < middle).mean() < 0.6, name


def test_wanted_errors_are_those_that_the_types_allow():
    draws = [spamm.draw(Strata(9, "spamm", index)) for index in range(400)]
    least = {dtype: min(params["rtol"] for params in draws if params["dtype"] == dtype) for dtype in spamm.DTYPES}
    assert least["float64"] < 1e-9 and 1e-6 < least["float32"] < 1e-4
    assert all(spamm.FINEST <= params["rtol"] <= spamm.COARSEST for params in draws)


def structure(kind, shape=(3000, 3000), entries=6.0, seed=1, dtype="float64", **more):
    rng = np.random.default_rng(seed)
    rows, columns = sparse.structured(kind, shape, entries, more, rng, np)
    return sparse.csr(rows, columns, shape, dtype, rng, HERE)


STRUCTURES = {
    "uniform": {},
    "power law": {"exponent": 1.4},
    "banded": {"reach": 2.0},
    "blocks": {"block": 5},
    "stencil": {"dimensions": 2},
    "hubs": {"hubs": 2, "hub_share": 0.1},
}


@pytest.mark.parametrize("shape", [(3000, 3000), (3000, 700), (500, 3000), (7, 3)])
@pytest.mark.parametrize("kind", tsparse.KINDS)
def test_every_structure_of_every_shape_is_a_canonical_matrix(kind, shape):
    for dtype in tsparse.DTYPES:
        made = structure(kind, shape, dtype=dtype, **STRUCTURES[kind])
        again = sp.csr_matrix((made.data, made.indices, made.indptr), shape=shape)
        assert made.dtype == dtype and made.shape == shape and again.has_canonical_format
        assert made.indices.min() >= 0 and made.indices.max() < shape[1]
        assert made.nnz and made.data.all()


def test_no_value_is_zero():
    """What is 0 would be missing in the product of the rival that the check believes."""
    zeros = SimpleNamespace(standard_normal=lambda size, dtype: np.zeros(size, dtype))
    for dtype in (np.float32, np.float64):
        made = sparse.csr(np.array([0, 1, 1]), np.array([1, 0, 1]), (2, 2), dtype, zeros, HERE)
        assert made.dtype == dtype and (made.data != 0).all()


def test_structures_are_what_they_are_called():
    lengths = {kind: np.diff(structure(kind, **more).indptr) for kind, more in STRUCTURES.items()}
    assert lengths["uniform"].max() < 10
    assert 5 < lengths["uniform"].mean() <= 6.1
    assert np.sort(lengths["hubs"])[-2:].min() > 0.09 * 3000 and np.sort(lengths["hubs"])[-3] < 10
    # A tail that a power law has, and no other: a row of many times the mean, in rows and in columns.
    law = structure("power law", **STRUCTURES["power law"])
    assert lengths["power law"].max() > 15 * lengths["power law"].mean()
    assert np.bincount(law.indices, minlength=3000).max() > 10 * lengths["power law"].mean()
    band = structure("banded", **STRUCTURES["banded"]).tocoo()
    assert abs(band.row - band.col).max() <= 2.0 * 6.0
    filled = structure("blocks", **STRUCTURES["blocks"]).toarray().reshape(600, 5, 600, 5) != 0
    assert np.array_equal(filled.any(axis=(1, 3)), filled.all(axis=(1, 3)))
    grid = structure("stencil", (900, 900), 5.0, dimensions=2)
    assert np.array_equal(np.unique(grid.indices[grid.indptr[450] : grid.indptr[451]] - 450), [-30, -1, 0, 1, 30])


@pytest.mark.parametrize("product", tsparse.PRODUCTS)
def test_factors_of_every_product_fit(product):
    params = {"rows": 900, "entries": 3.0, "kind": "uniform", "product": product, "dtype": "float32", "slim": 3.0}
    drawn = tsparse.build(params, np.random.default_rng(1), HERE)
    first, second = drawn.arguments[0]
    assert first.shape[1] == second.shape[0]
    assert (product == "tall") == (first.shape[0] > 2 * first.shape[1])
    assert (product in ("wide", "Galerkin")) == (2 * first.shape[0] < first.shape[1])


@pytest.mark.parametrize("dtype", kpm.DTYPES)
@pytest.mark.parametrize("kind", kpm.KINDS)
def test_hamiltonians_are_hermitian_and_as_full_as_they_say(kind, dtype):
    params = {"rows": 900, "entries": 12, "kind": kind, "dtype": dtype, "dimensions": 2, "orbitals": 3, "exponent": 1.6}
    if kind != "Wannier":
        del params["orbitals"]
    h = kpm._matrix(params, np.random.default_rng(2), HERE)
    again = sp.csr_matrix((h.data, h.indices, h.indptr), shape=h.shape)
    assert h.dtype == dtype and again.has_canonical_format and abs(h - h.conj().T).max() == 0
    lengths = np.diff(h.indptr)
    assert 0.8 * 900 <= len(lengths) <= 1.2 * 900 and 5 < lengths.mean() < 24
    assert (lengths.max() > 4 * lengths.mean()) == (kind == "unequal")


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_density_matrices_are_projectors_of_half_the_sites(dimensions):
    params = {"kind": "density matrix", "dimensions": dimensions, "decay": 1.0, "dtype": "float64"}
    side = {1: 216, 2: 14, 3: 6}[dimensions]
    made = spamm._entries(params, side**dimensions, np.random.default_rng(1), np)(side**dimensions, side**dimensions)
    assert np.abs(made @ made - made).max() < 1e-13
    assert round(np.trace(made)) == side**dimensions // 2


@pytest.mark.parametrize("kind", spamm.KINDS)
def test_matrices_of_every_decay_are_ordered_by_their_sites(kind):
    params = {"kind": kind, "dimensions": 2, "decay": 1.5, "dtype": "float32", "block": 16, "filled": 0.1}
    made = spamm._entries(params, 400, np.random.default_rng(1), np)(400, 200)
    assert made.shape == (400, 200) and np.isfinite(made).all() and made.any()
    near = np.abs(np.arange(400)[:, None] - 2 * np.arange(200)) < 20
    if kind != "blocks":
        assert (made[near] ** 2).mean() > 5 * (made[~near] ** 2).mean()


@pytest.mark.parametrize("kind", evd.KINDS)
@pytest.mark.parametrize("dtype", evd.DTYPES)
def test_matrices_of_the_eigensolver_are_hermitian_and_of_the_scale_that_parts_take(kind, dtype):
    made = evd._hermitian(60, (3,), dtype, kind, np.random.default_rng(1), np)
    assert made.shape == (3, 60, 60) and made.dtype == dtype
    assert np.array_equal(made, made.conj().swapaxes(-1, -2))
    values = np.linalg.eigvalsh(made)
    assert np.abs(values).max() < 1.2 * evd.RADIUS
    if kind == "random":
        window = evd._subset({"part": "by value", "n": 60, "wanted": 10})["subset_by_value"]
        count = ((values > window[0]) & (values <= window[1])).sum(axis=1)
        assert (count >= 5).all() and (count <= 15).all()
