"""The paper's method on the GPU: its format, its list, its product with and without tensor cores."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import error_bound, reference, spgemm
from spectile.tsparse.types import IN_TILES, PRECISIONS, lookup

pytestmark = pytest.mark.gpu


@pytest.fixture
def rng():
    seed = int(np.random.SeedSequence().entropy % 2**32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def random(m, n, density, rng):
    A = sp.random_array((m, n), density=density, rng=rng, format="csr")
    A.data = rng.uniform(0.1, 2, A.nnz) * rng.choice([-1.0, 1.0], A.nnz)
    return A


def on_gpu(A, dtype=np.float64):
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    arrays = (A.data.astype(dtype), A.indices.astype(np.int32), A.indptr.astype(np.int32))
    return csr_matrix(tuple(cupy.asarray(x) for x in arrays), shape=A.shape)


def pairs(rng):
    """Yield pairs of factors: nearly empty tiles, full ones, one long row of tiles, empty rows, odd sizes."""
    yield "sparse", random(4001, 4003, 0.0008, rng), random(4003, 3999, 0.0008, rng)
    band = sp.diags_array([rng.uniform(0.1, 2, 2500) for _ in range(61)], offsets=range(-30, 31), shape=(2500, 2500))
    yield "band", sp.csr_array(band), sp.csr_array(band)
    hub = sp.vstack([random(3, 3000, 0.9, rng), random(2997, 3000, 0.002, rng)], format="csr")
    yield "hub", hub, hub
    yield "columns of a hub", sp.csr_array(hub.T), hub
    only = sp.vstack([sp.csr_array((16, 4000)), random(3, 4000, 0.6, rng), sp.csr_array((31, 4000))], format="csr")
    yield "one row of tiles has all tasks", only, random(4000, 3000, 0.01, rng)
    yield "diagonal", sp.csr_array(sp.diags_array(rng.uniform(1, 2, 5000))), random(5000, 5000, 0.001, rng)
    yield "tall", random(1500, 7, 0.3, rng), random(7, 1500, 0.3, rng)
    yield "flat", random(7, 4000, 0.3, rng), random(4000, 9, 0.3, rng)
    yield "empty", sp.csr_array((50, 60)), random(60, 70, 0.1, rng)
    yield "nothing meets", sp.csr_array(np.eye(8)[:, [1] * 8]), sp.csr_array((8, 20))
    yield "one", sp.csr_array([[2.0]]), sp.csr_array([[3.0]])


def check(C, A, B, precision):
    """No zero stored, and every entry of the structural product within its bound."""
    C = C.get()
    assert (C.data != 0).all()
    exact = spgemm(A, B, backend="cpu")
    for row in (0, C.shape[0] // 2, C.shape[0] - 1) if C.shape[0] else ():
        assert (np.diff(C.indices[C.indptr[row] : C.indptr[row + 1]]) > 0).all()
    bound = error_bound(A, B, precision=precision, method="tasks") + error_bound(A, B)
    off = abs(sp.csr_array(C.astype(np.float64)) - exact).toarray()
    outside = off > bound.toarray()
    assert not outside.any(), (int(outside.sum()), float(off.max()))


@pytest.fixture(params=["by rows", "by keys"])
def sort(request, monkeypatch):
    """Sort rows in shared memory where they fit, or all keys; most rows as long ones, or few tiles of C at a time."""
    from spectile.tsparse.cuda.tiles import product

    if request.param == "by keys":
        monkeypatch.setattr(product, "sorting", lambda *sizes: None)
    elif request.param == "long rows":
        monkeypatch.setattr(product, "_LONG_ROWS", {32: 3, 256: 40})
    elif request.param == "few tiles at a time":
        monkeypatch.setattr(product, "_SHARED_A_THREAD", 0)
        monkeypatch.setattr(product, "_LEAST_ROOM", 7)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_products(precision, rng, sort):
    for name, A, B in pairs(rng):
        print(name)
        left, right = on_gpu(A), on_gpu(B)
        C = spgemm(left, right, precision=precision, method="tasks")
        check(C, A, B, precision)
        again = spgemm(left, right, precision=precision, method="tasks")
        assert C.data.tobytes() == again.data.tobytes(), "the same call must give the same bits"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_cancelled_entries_and_empty_tiles_are_left_out(precision, rng):
    A = random(600, 600, 0.01, rng)
    A.data = np.sign(A.data)
    left = sp.csr_array(sp.hstack([A, A]))  # A A - A A: all cancels, but for what the last rows add
    right = sp.csr_array(sp.vstack([A, -A + random(600, 600, 0.0002, rng)]))
    right.data = np.sign(right.data)
    C = spgemm(on_gpu(left), on_gpu(right), precision=precision, method="tasks").get()
    expected = spgemm(left, right, backend="cpu")
    assert (expected.data == 0).any()
    expected.eliminate_zeros()
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(C, name), getattr(expected, name))


def converted(A, precision):
    from spectile.tsparse.cuda.factors import checked, with_checked_factors
    from spectile.tsparse.cuda.tiles.convert import convert

    G = on_gpu(A)
    factor, _ = with_checked_factors(G, G, precision, checked, IN_TILES)
    return convert(factor, precision)


@pytest.mark.parametrize("sort", ["by rows", "by keys", "long rows", "few tiles at a time"], indirect=True)
def test_format_and_list_are_those_of_the_reference(rng, sort):
    from spectile.tsparse.cuda.tiles import product

    for name, A, B in pairs(rng):
        print(name)
        left, right = (reference.to_bitmap(x) for x in (A, B))
        tiles = [converted(x, lookup("float64")) for x in (A, B)]
        for ours, theirs in zip(tiles, (left, right), strict=True):
            for attribute, expected in {"rows": "tile_rows", "columns": "tile_columns"}.items():
                np.testing.assert_array_equal(getattr(ours, attribute).get(), getattr(theirs, expected))
            for attribute in ("bitmaps", "index", "elements"):
                np.testing.assert_array_equal(getattr(ours, attribute).get(), getattr(theirs, attribute))
        a, b = reference.sort_tasks(left, right, *reference.filter_tasks(left, right, *reference.expand(left, right)))
        first = reference.segments(left, right, a, b)
        for listed in product.list_tasks(*tiles):  # one list
            product.sort_tasks(listed)
            segments = product.segment(listed)
            np.testing.assert_array_equal(segments.tasks.get(), np.stack([a, b], axis=1))
            if len(a):
                np.testing.assert_array_equal(segments.heads.get()[:, 0], first)
                np.testing.assert_array_equal(segments.heads.get()[:-1, 1], right.tile_columns[b[first[:-1]]])


def test_without_tensor_cores_counts_and_multiplies_the_same(rng):
    from spectile.tsparse.cuda import units
    from spectile.tsparse.cuda.tiles.product import product

    A = random(1200, 1200, 0.01, rng)
    A.data = np.sign(A.data)
    precision = lookup("float16")
    tiles = converted(A, precision)
    with_cores, without = product(tiles, tiles, precision), product(tiles, tiles, precision, units.TASK_PLAIN)
    for name in ("indptr", "columns", "bitmaps", "index", "elements"):
        np.testing.assert_array_equal(getattr(with_cores, name).get(), getattr(without, name).get())


def test_parts_give_the_same_product(rng, sort, monkeypatch):
    from spectile.tsparse.cuda.tiles import product

    A = random(2000, 2000, 0.004, rng)
    whole = spgemm(on_gpu(A), on_gpu(A), precision="float32", method="tasks").get()
    monkeypatch.setattr(product, "FEW_TASKS", 5000)
    monkeypatch.setattr(product.memory, "free_bytes", lambda: 0)
    parted = spgemm(on_gpu(A), on_gpu(A), precision="float32", method="tasks").get()
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(parted, name), getattr(whole, name))


def test_study_checks_every_method_of_a_case(tmp_path):
    from spectile_study.bench.case import Context, Method
    from spectile_study.cases.tsparse.build import build

    row = {"case": "q", "matrix": "cage7", "part": "family", "empty_pool": True}
    ran = [one for one in build(row, Context("cuda", tmp_path, 1, 2)).methods if isinstance(one, Method)]
    names = {method.name for method in ran}
    assert {"tasks_float16", "tasks_nontcu", "tasks_csr_float16", "spectile_float32", "cusparse_float32"} <= names
    for method in ran:
        result = method.run()
        if method.clock == "external":
            result, _ = result
        errors = method.check(result)
        assert all(errors[name] <= limit for name, limit in method.limits.items()), (method.name, errors)
        values = method.values(result)
        assert "phases_s" not in values or all(seconds >= 0 for seconds in values["phases_s"])


@pytest.mark.parametrize("precision", ["float64", "tf32", "float32", "float16"])
def test_auto_goes_by_tiles_where_they_are_full(precision, rng):
    import cupy

    from spectile.tsparse.cuda.tiles import choose

    n = 2**20 // 80
    full = sp.diags_array([rng.uniform(0.1, 2, n) for _ in range(85)], offsets=range(-42, 43), shape=(n, n))
    scattered = random(n, n, 85 / n, rng)
    for A, by_tiles in ((sp.csr_array(full), precision in choose.LEAST_FILLED), (scattered, False)):
        G = on_gpu(A)
        C = spgemm(G, G, precision=precision)
        same = spgemm(G, G, precision=precision, method="tiles" if by_tiles else "rows")
        for name in ("indptr", "indices", "data"):
            assert bool((getattr(C, name) == getattr(same, name)).all())
        other = spgemm(G, G, precision="float64", method="rows")
        size = spgemm(abs(G), abs(G), precision="float64", method="rows")
        unit = {"float64": 2.0**-45, "float32": 2.0**-16}.get(precision, 2.0**-9)
        assert bool((cupy.abs(C.data - other.data) <= unit * size.data).all())
