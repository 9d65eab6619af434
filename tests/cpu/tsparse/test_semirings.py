"""Semirings, masks, sums and selections, against dense arithmetic, GraphBLAS and known graphs."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import error_bound, spgemm
from spectile.tsparse.cpu import masked
from spectile.tsparse.cpu import wanted as cpu_wanted
from spectile.tsparse.semirings import SEMIRINGS

from .test_limits import least

#: A type of values for each semiring: kernels are compiled for each.
TYPES = {"plus_times": "f8", "min_plus": "f8", "max_plus": "f4", "max_min": "i8"}
TYPES |= {"or_and": "?", "any_pair": "f8", "plus_pair": "i4"}
ADD = {"plus": np.add, "min": np.minimum, "max": np.maximum, "or": np.logical_or, "any": np.logical_or}
MULTIPLY = {"times": np.multiply, "plus": np.add, "min": np.minimum, "and": np.logical_and}
MULTIPLY["pair"] = lambda a, b: np.ones(np.broadcast(a, b).shape, int)


def multiply(A, B, **options):
    return spgemm(A, B, backend="cpu", **options)


def of_type(A, dtype, rng):
    """Return the pattern with values that few sums round."""
    values = rng.integers(-20, 20, A.nnz) / (4 if np.dtype(dtype).kind == "f" else 1)
    return sp.csr_array((values.astype(dtype), A.indices, A.indptr), shape=A.shape)


def rmat(scale, edges, seed):
    """Return a square pattern whose rows and columns have lengths of a power law."""
    rng = np.random.default_rng(seed)
    place = np.zeros((2, edges), int)
    for _ in range(scale):
        quarter = rng.choice(4, edges, p=[0.57, 0.19, 0.19, 0.05])
        place = 2 * place + np.array([quarter // 2, quarter % 2])
    A = sp.csr_array((np.ones(edges), tuple(place)), shape=(2**scale, 2**scale))
    A.sum_duplicates()
    return A


def hub(m, n, seed):
    """Return a pattern with one full row and one full column."""
    rng = np.random.default_rng(seed)
    dense = rng.random((m, n)) < 0.03
    dense[m // 3] = dense[:, n // 2] = True
    return sp.csr_array(dense.astype(float))


INPUTS = {
    "random": lambda: tuple(sp.random_array(shape, density=0.1, rng=1, format="csr") for shape in ((40, 60), (60, 50))),
    "rmat": lambda: (rmat(6, 400, 3), rmat(6, 300, 4)),
    "hub": lambda: (hub(50, 70, 5), hub(70, 30, 6)),
}


def reference(A, B, semiring):
    """Return C as a dense array, and where an entry is."""
    one = SEMIRINGS[semiring]
    m, n = A.shape[0], B.shape[1]
    dense, found = np.zeros((m, n), {"or": bool, "any": bool}.get(one.add, float)), np.zeros((m, n), bool)
    for i in range(m):
        for p in range(A.indptr[i], A.indptr[i + 1]):
            k = A.indices[p]
            part = slice(B.indptr[k], B.indptr[k + 1])
            j = B.indices[part]
            product = MULTIPLY[one.multiply](A.data[p], B.data[part])
            dense[i, j] = np.where(found[i, j], ADD[one.add](dense[i, j], product), product)
            found[i, j] = True
    return dense, found


def assert_same(C, dense, found):
    rows = np.repeat(np.arange(C.shape[0]), np.diff(C.indptr))
    kept = np.zeros(C.shape, bool)
    kept[rows, C.indices] = True
    np.testing.assert_array_equal(kept, found)
    np.testing.assert_array_equal(C.data, dense[rows, C.indices])
    assert C.has_canonical_format
    C.check_format()


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("semiring", SEMIRINGS)
def test_products_over_semirings(semiring, kind, monkeypatch):
    rng = np.random.default_rng(7)
    A, B = (of_type(x, TYPES[semiring], rng) for x in INPUTS[kind]())
    dense, found = reference(A, B, semiring)
    C = multiply(A, B, semiring=semiring)
    value = {"or_and": "?", "any_pair": "?", "plus_pair": "i8"}.get(semiring, TYPES[semiring])
    assert C.dtype == value
    assert_same(C, dense, found)
    mask = sp.random_array(C.shape, density=0.2, rng=8, format="csr")
    mask.data[::5] = 0  # what is stored and 0 is not wanted
    inside = mask.toarray() != 0
    for cost in (0, 10**9):  # by columns of B where that is less, and never
        monkeypatch.setattr(masked, "TURN_COST", cost)
        assert_same(multiply(A, B, semiring=semiring, mask=mask), dense, found & inside)
    monkeypatch.setattr(cpu_wanted, "_BLOCK_PRODUCTS", 50)
    assert_same(multiply(A, B, semiring=semiring, mask=mask, complement=True), dense, found & ~inside)
    assert_same(multiply(A, B, semiring=semiring, mask=mask, memory_limit=10**6), dense, found & inside)
    assert_same(multiply(A, B, semiring=semiring, memory_limit=10**6), dense, found)


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("semiring", SEMIRINGS)
def test_graphblas_gives_the_same(semiring, kind):
    graphblas = pytest.importorskip("graphblas")
    rng = np.random.default_rng(9)
    A, B = (of_type(x, TYPES[semiring], rng) for x in INPUTS[kind]())
    theirs = {"or_and": "lor_land"}.get(semiring, semiring)
    left, right = (graphblas.io.from_scipy_sparse(x) for x in (A, B))
    mask = sp.random_array((A.shape[0], B.shape[1]), density=0.2, rng=10, format="csr")
    for options in ({}, {"mask": mask}, {"mask": mask, "complement": True}):
        product = left.mxm(right, getattr(graphblas.semiring, theirs))
        if options:
            judged = graphblas.io.from_scipy_sparse(mask)
            known = product.new(mask=~judged.V if "complement" in options else judged.V)
        else:
            known = product.new()
        rows, columns, values = known.to_coo()
        C = multiply(A, B, semiring=semiring, **options).tocoo()
        np.testing.assert_array_equal(C.row, rows)
        np.testing.assert_array_equal(C.col, columns)
        np.testing.assert_array_equal(C.data, values.astype(C.dtype))


def test_a_mask_costs_what_it_holds():
    """Rows of ten thousand entries, and a mask of one of them: nothing of the size of the product is made."""
    import tracemalloc

    A = sp.csr_array(np.ones((2000, 1)))
    B = sp.csr_array(np.ones((1, 10_000)))
    mask = sp.csr_array(([1.0], ([1234], [4321])), shape=(2000, 10_000))
    multiply(A, B, mask=mask)
    tracemalloc.start()
    C = multiply(A, B, mask=mask)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert C.nnz == 1 and peak < 2**20


@pytest.mark.parametrize("semiring", SEMIRINGS)
@pytest.mark.parametrize("turn_cost", [-(10**6), 10**6])
def test_rows_of_a_mask_by_rows_and_by_columns_of_B(semiring, turn_cost, monkeypatch):
    """Rows whose entries meet fewer in the columns of B are made so where B is turned at no cost; B's rows are long."""
    monkeypatch.setattr(masked, "TURN_COST", turn_cost)
    rng = np.random.default_rng(3)
    A = sp.random_array((90, 90), density=0.2, rng=rng, format="csr")
    B = sp.random_array((90, 3 * int(masked.PIECE)), density=0.6, rng=rng, format="csr")
    mask = sp.random_array((60, B.shape[1]), density=0.02, rng=rng, format="csr")
    mask = sp.csr_array(sp.vstack([mask, sp.csr_array(np.ones((30, B.shape[1])))]))
    factors = [(x.indptr, x.indices, x.data) for x in (A, B)]
    by_rows, least = masked.costs(*factors, (mask.indptr, mask.indices), B.shape[1])
    assert 0 < (least < by_rows).sum() < 90
    whole, C = multiply(A, B, semiring=semiring), multiply(A, B, semiring=semiring, mask=mask)
    inside = mask.toarray()[np.repeat(np.arange(90), np.diff(whole.indptr)), whole.indices] != 0
    np.testing.assert_array_equal(C.indices, whole.indices[inside])
    np.testing.assert_array_equal(C.data, whole.data[inside])


@pytest.mark.parametrize("name", ["karate_club_graph", "davis_southern_women_graph", "les_miserables_graph"])
def test_triangles_of_known_graphs(name):
    networkx = pytest.importorskip("networkx")
    graph = getattr(networkx, name)()
    L = sp.tril(networkx.to_scipy_sparse_array(graph, weight=None), -1, format="csr")
    count = multiply(L, L, semiring="plus_pair", mask=L).sum()
    assert count == sum(networkx.triangles(graph).values()) // 3


def test_shortest_paths_by_repeated_squares():
    from scipy.sparse.csgraph import shortest_path

    G = sp.random_array((60, 60), density=0.06, rng=11)
    apart = G.row != G.col
    data, row, column = (
        np.append(x[apart], y) for x, y in ((G.data, [0.0] * 60), (G.row, range(60)), (G.col, range(60)))
    )
    G, D = (sp.csr_array((data[:n], (row[:n], column[:n])), shape=(60, 60)) for n in (apart.sum(), len(data)))
    for _ in range(6):
        D = multiply(D, D, semiring="min_plus")
    lengths = shortest_path(G)
    dense = np.full((60, 60), np.inf)
    dense[D.tocoo().row, D.tocoo().col] = D.data
    np.testing.assert_allclose(dense, lengths, rtol=1e-14)


def factors(dtype=float):
    rng = np.random.default_rng(12)
    A, B = sp.random_array((30, 40), density=0.2, rng=rng), sp.random_array((40, 35), density=0.2, rng=rng)
    A, B = sp.csr_array(A), sp.csr_array(B)
    if np.dtype(dtype).kind == "c":
        A, B = (1 + 1j) * A, (2 - 1j) * B
    return A.astype(dtype), B.astype(dtype)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_sums_with_another_matrix(dtype):
    A, B = factors(dtype)
    C = sp.random_array((30, 35), density=0.3, rng=13, format="csr")
    D = multiply(A, B, alpha=-2, beta=0.5, C=C)
    np.testing.assert_allclose(D.toarray(), -2 * (A @ B).toarray() + 0.5 * C.toarray(), atol=1e-14)
    assert D.dtype == dtype and D.nnz == ((A @ B).toarray() != 0).__or__(C.toarray() != 0).sum()
    mask = sp.random_array((30, 35), density=0.3, rng=14, format="csr")
    for complement in (False, True):
        part = multiply(A, B, alpha=-2, beta=0.5, C=C, mask=mask, complement=complement)
        inside = (mask.toarray() != 0) != complement
        np.testing.assert_array_equal(part.toarray(), D.toarray() * inside)
        assert not part.toarray()[~inside].any()


@pytest.mark.parametrize("dtype", ["f4", "F"])
def test_a_factor_beyond_the_range_of_the_product_is_refused(dtype):
    A, B = factors(dtype)
    for options in (
        {"alpha": 1e300},
        {"alpha": -(10**60)},
        {"beta": 1e39, "C": A @ B},
        {"alpha": 1e-50},
        {"beta": -1e-42, "C": A @ B},
    ):
        with np.errstate(all="raise"), pytest.raises(ValueError, match="beyond the range of"):
            multiply(A, B, **options)
    wide = multiply(A, B, alpha=1e300, precision="float64")
    np.testing.assert_allclose(wide.toarray() / 1e300, (A @ B).toarray(), rtol=1e-4, atol=1e-5)


def test_pruned_entries_are_within_the_bound(monkeypatch):
    A, B = factors()
    A.data -= 0.5
    whole = multiply(A, B)
    monkeypatch.setattr(cpu_wanted, "_BLOCK_PRODUCTS", 100)
    C = multiply(A, B, prune=0.2)
    assert 0 < C.nnz < whole.nnz and abs(C.data).min() >= 0.2
    bound = error_bound(A, B, prune=0.2)
    error = abs(C.toarray() - A.toarray().astype("g") @ B.toarray().astype("g"))
    assert (error <= bound.toarray()).all() and bound.data.max() < 0.2 + 1e-12
    np.testing.assert_array_equal(multiply(A, B, prune=0).data, whole.data)


@pytest.mark.parametrize("dtype", ["i4", "i8"])
@pytest.mark.parametrize("semiring", ["max_min", "min_plus", "max_plus"])
def test_integers_at_the_edge_of_their_type_are_exact_or_refused(semiring, dtype):
    most = np.iinfo(dtype).max
    for a, b in ((most, most), (most, 0), (most - 1, 1), (-most, -most), (-most, 0), (most, 1), (most - 3, 2)):
        exact = min(a, b) if semiring == "max_min" else a + b
        A, B = (sp.csr_array(([x], ([0], [0])), shape=(1, 1), dtype=dtype) for x in (a, b))
        if abs(exact) <= most:
            C = multiply(A, B, semiring=semiring)
            assert C.dtype == dtype and C.data.tolist() == [exact]
        else:
            with pytest.raises(ValueError, match=r"beyond|integers"):
                multiply(A, B, semiring=semiring)


@pytest.mark.parametrize("semiring", ["or_and", "any_pair", "plus_times"])
def test_entries_that_are_true_are_alike_in_a_selection(semiring):
    A = sp.csr_array(np.ones((2, 3), bool))
    B = sp.csr_array(np.array([[1, 1, 0], [0, 1, 0], [0, 1, 1]], bool))  # C has sums of 1, 3 and 1 products
    for options, kept in (({"top_n": 1}, [0]), ({"top_n": 2}, [0, 1]), ({"prune": 1}, [0, 1, 2]), ({"prune": 2}, [])):
        C = multiply(A, B, semiring=semiring, **options)
        assert C.dtype == bool and C.indices.tolist() == 2 * kept, options


@pytest.mark.parametrize("dtype", ["f4", "f8", "F"])
def test_the_limit_of_pruning_is_no_rounded_one(dtype):
    sizes = np.array([0.1, 0.7, 3e38 if dtype != "f8" else 1e308, 0, 1e-40]).astype(dtype)
    A, B = sp.csr_array(sizes[:, None]), sp.csr_array(np.ones((1, 1), dtype))
    for limit in (0.1, 0.7, 1e300, 1e39, 1e-41, 1e-320, *map(float, abs(sizes)), np.float32(0.7), 1):
        with np.errstate(all="raise", under="ignore"):
            kept = multiply(A, B, prune=limit)
        wanted = [i for i, size in enumerate(abs(sizes)) if A.toarray()[i, 0] and float(size) >= float(limit)]
        assert kept.indptr.tolist() == np.searchsorted(wanted, np.arange(6)).tolist(), limit


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("count", [1, 4, 1000])
def test_the_largest_of_each_row(dtype, count, monkeypatch):
    A, B = factors(dtype)
    if dtype == "f8":
        A.data, B.data = np.round(4 * A.data), np.round(2 * B.data)  # many are equal
    whole = multiply(A, B)
    monkeypatch.setattr(cpu_wanted, "_BLOCK_PRODUCTS", 100)
    C = multiply(A, B, top_n=count)
    for i in range(30):
        columns, values = (x[whole.indptr[i] : whole.indptr[i + 1]] for x in (whole.indices, whole.data))
        size = abs(values) if dtype == "c16" else values
        order = np.lexsort((columns, -size))[:count]
        order.sort()
        part = slice(C.indptr[i], C.indptr[i + 1])
        np.testing.assert_array_equal(C.indices[part], columns[order])
        np.testing.assert_array_equal(C.data[part], values[order])


def test_a_selection_never_holds_the_product(monkeypatch):
    import tracemalloc

    A = sp.random_array((2000, 300), density=0.2, rng=15, format="csr")
    monkeypatch.setattr(cpu_wanted, "_BLOCK_PRODUCTS", 2**16)
    whole = multiply(A, A.T.tocsr())
    multiply(A, A.T.tocsr(), top_n=3)
    B = A.T.tocsr()
    tracemalloc.start()
    C = multiply(A, B, top_n=3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert C.nnz == 6000 and peak < (whole.data.nbytes + whole.indices.nbytes) / 4


def test_columns_beyond_32_bits():
    n = 2**40
    B = sp.coo_array((np.arange(1.0, 7.0), ([0, 0, 1, 1, 2, 2], [5, n - 1, 7, n - 2, 5, n - 1])), shape=(3, n)).tocsr()
    A = sp.csr_array([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]])
    mask = sp.coo_array((np.ones(3), ([0, 1, 1], [n - 1, 5, 9])), shape=(2, n)).tocsr()
    C = multiply(A, B, mask=mask)
    assert C.shape == (2, n) and C.indices.tolist() == [n - 1, 5] and C.data.tolist() == [2.0, 5.0]
    C = multiply(A, B, semiring="max_plus", mask=mask, complement=True)
    assert C.indices.tolist() == [5, 7, n - 2, 7, n - 2, n - 1] and C.data.tolist() == [2.0, 5.0, 6.0, 4.0, 5.0, 7.0]
    C = multiply(A, B, C=mask, beta=10, top_n=1)
    assert C.indices.tolist() == [n - 1, 5] and C.data.tolist() == [12.0, 15.0]


def test_a_limit_is_kept_or_named():
    A = sp.random_array((2000, 2000), density=0.005, rng=16, format="csr")
    whole = multiply(A, A, top_n=4)
    enough = least(lambda limit: multiply(A, A, top_n=4, memory_limit=limit))
    C = multiply(A, A, top_n=4, memory_limit=enough)
    np.testing.assert_array_equal(C.data, whole.data)


INTEGER = sp.csr_array(np.array([[2**62, 1], [0, 3]]))


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"semiring": "times_plus"}, ValueError, "semiring = 'times_plus' is unknown: choose 'plus_times'"),
        (
            {"mask": sp.csr_array((3, 2))},
            ValueError,
            r"mask has shape \(3, 2\), and the product of A and B has \(2, 2\)",
        ),
        ({"mask": np.eye(2)}, TypeError, "^mask is .* not a sparse matrix"),
        ({"complement": True}, ValueError, "there is no mask"),
        ({"C": sp.eye_array(2)}, ValueError, "C is given without beta"),
        ({"beta": 2}, ValueError, "beta is given without C"),
        ({"beta": 2, "C": sp.csr_array((1, 2))}, ValueError, r"C has shape \(1, 2\)"),
        ({"alpha": 1j}, TypeError, "alpha is complex and the product is real"),
        ({"alpha": np.nan}, ValueError, "alpha is nan"),
        ({"alpha": 2, "semiring": "min_plus"}, ValueError, "are of plus_times"),
        ({"prune": -1}, ValueError, "prune is -1"),
        ({"top_n": 0}, ValueError, "top_n is 0"),
        ({"top_n": 1.5}, ValueError, "top_n is 1.5"),
        ({"semiring": "min_plus", "precision": "tf32"}, ValueError, "is of plus_times; min_plus has float64"),
        ({"semiring": "any_pair", "precision": "float64"}, ValueError, "has no precision"),
    ],
)
def test_wrong_options_get_one_sentence(options, error, said):
    A = sp.csr_array(np.array([[1.0, 2.0], [0.0, 3.0]]))
    with pytest.raises(error, match=said) as raised:
        multiply(A, A, **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("dtype", [bool, complex])
@pytest.mark.parametrize("semiring", ["min_plus", "max_plus", "max_min"])
def test_types_without_the_identity(semiring, dtype):
    A = sp.eye_array(3, format="csr").astype(dtype)
    with pytest.raises(TypeError, match=r"no identity of (min|max): the semiring"):
        multiply(A, A, semiring=semiring)


def test_sums_of_integers_beyond_their_type():
    with pytest.raises(ValueError, match="sums of integers may exceed"):
        multiply(INTEGER, 2 * INTEGER, semiring="min_plus")
    with pytest.raises(ValueError, match="sums of integers may exceed"):
        multiply(INTEGER, INTEGER, mask=INTEGER)
    only = sp.csr_array(np.array([[0, 0], [0, 1]]))
    assert multiply(INTEGER, INTEGER, mask=only).data.tolist() == [9]


def test_what_is_not_finite():
    A = sp.csr_array(np.array([[np.nan, 1.0], [2.0, np.inf]]))
    with pytest.raises(ValueError, match="A holds nan"):
        multiply(A, A.copy(), semiring="min_plus")
    C = multiply(A, A, semiring="min_plus", check_finite=False).toarray()
    np.testing.assert_array_equal(C, [[np.nan, np.nan], [np.nan, 3.0]])
    assert multiply(A, A, semiring="plus_pair").toarray().tolist() == [[2, 2], [2, 2]]
