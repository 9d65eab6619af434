"""The paper's method on the GPU: its format, its list, its product with and without tensor cores."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import error_bound, spgemm
from spectile.tsparse.types import PRECISIONS, lookup
from spectile_study.cases.tsparse.tiles import half, reference

pytestmark = pytest.mark.gpu


@pytest.fixture
def rng():
    seed = int(np.random.SeedSequence().entropy % 2**32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def random(m, n, density, rng):
    A = sp.random_array((m, n), density=density, rng=rng, format="csr")
    # Values that float32 holds, as factors in float16 are given.
    A.data = (rng.uniform(0.1, 2, A.nnz) * rng.choice([-1.0, 1.0], A.nnz)).astype(np.float32).astype(np.float64)
    return A


def on_gpu(A, precision="float64"):
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    arrays = (A.data.astype(lookup(precision).dtype), A.indices.astype(np.int32), A.indptr.astype(np.int32))
    return csr_matrix(tuple(cupy.asarray(x) for x in arrays), shape=A.shape)


def pairs(rng):
    """Yield pairs of factors: nearly empty tiles, full ones, one long row of tiles, empty rows, odd sizes."""
    yield "sparse", random(4001, 4003, 0.0008, rng), random(4003, 3999, 0.0008, rng)
    band = sp.diags_array([rng.uniform(0.1, 2, 2500) for _ in range(61)], offsets=range(-30, 31), shape=(2500, 2500))
    band = sp.csr_array(band.astype(np.float32)).astype(np.float64)
    yield "band", band, band
    hub = sp.vstack([random(3, 3000, 0.9, rng), random(2997, 3000, 0.002, rng)], format="csr")
    yield "hub", hub, hub
    yield "columns of a hub", sp.csr_array(hub.T), hub
    only = sp.vstack([sp.csr_array((16, 4000)), random(3, 4000, 0.6, rng), sp.csr_array((31, 4000))], format="csr")
    yield "one row of tiles has all tasks", only, random(4000, 3000, 0.01, rng)
    yield "diagonal", sp.csr_array(sp.diags_array(rng.integers(1, 9, 5000) / 8)), random(5000, 5000, 0.001, rng)
    yield "tall", random(1500, 7, 0.3, rng), random(7, 1500, 0.3, rng)
    yield "flat", random(7, 4000, 0.3, rng), random(4000, 9, 0.3, rng)
    yield "empty", sp.csr_array((50, 60)), random(60, 70, 0.1, rng)
    yield "nothing meets", sp.csr_array(np.eye(8)[:, [1] * 8]), sp.csr_array((8, 20))
    yield "one", sp.csr_array([[2.0]]), sp.csr_array([[3.0]])


def multiply(left, right, precision, drop_cancelled=True):
    from spectile_study.cases.tsparse.tiles import product

    return product.spgemm(left, right, precision=precision, drop_cancelled=drop_cancelled)


def check(C, A, B, precision, drop_cancelled=True):
    """No zero stored if those are dropped, and every entry of the structural product within its bound."""
    C = C.get()
    exact = spgemm(A, B, backend="cpu")
    for row in (0, C.shape[0] // 2, C.shape[0] - 1) if C.shape[0] else ():
        assert (np.diff(C.indices[C.indptr[row] : C.indptr[row + 1]]) > 0).all()
    if drop_cancelled:
        assert (C.data != 0).all()
    else:
        np.testing.assert_array_equal(C.indptr, exact.indptr)
        np.testing.assert_array_equal(C.indices, exact.indices)
    own = half.error_bound(A, B) if precision == "float16" else error_bound(A, B, precision=precision)
    bound = own + error_bound(A, B)
    off = abs(sp.csr_array(C.astype(np.float64)) - exact).toarray()
    outside = off > bound.toarray()
    assert not outside.any(), (int(outside.sum()), float(off.max()))


@pytest.fixture(params=["by rows", "by keys"])
def sort(request, monkeypatch):
    """Sort rows in shared memory where they fit, or all keys; most rows as long ones, or few tiles of C at a time."""
    from spectile_study.cases.tsparse.tiles import product

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
        left, right = on_gpu(A, precision), on_gpu(B, precision)
        for drop_cancelled in (True, False):
            C = multiply(left, right, precision, drop_cancelled)
            check(C, A, B, precision, drop_cancelled)
            again = multiply(left, right, precision, drop_cancelled)
            assert C.data.tobytes() == again.data.tobytes(), "the same call must give the same bits"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_cancelled_entries_and_empty_tiles_are_left_out(precision, rng):
    A = random(600, 600, 0.01, rng)
    A.data = np.sign(A.data)
    left = sp.csr_array(sp.hstack([A, A]))  # A A - A A: all cancels, but for what the last rows add
    right = sp.csr_array(sp.vstack([A, -A + random(600, 600, 0.0002, rng)]))
    right.data = np.sign(right.data)
    C = multiply(on_gpu(left, precision), on_gpu(right, precision), precision).get()
    expected = spgemm(left, right, backend="cpu")
    assert (expected.data == 0).any()
    expected.eliminate_zeros()
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(C, name), getattr(expected, name))


def converted(A, precision):
    from spectile_study.cases.tsparse.tiles import product

    G = on_gpu(A, precision.name)
    return product.tiled(G, G, precision).a


@pytest.mark.parametrize("sort", ["by rows", "by keys", "long rows", "few tiles at a time"], indirect=True)
def test_format_and_list_are_those_of_the_reference(rng, sort):
    from spectile_study.cases.tsparse.tiles import product

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
    from spectile_study.cases.tsparse.tiles import units
    from spectile_study.cases.tsparse.tiles.product import product

    A = random(1200, 1200, 0.01, rng)
    A.data = np.sign(A.data)
    precision = lookup("float16")
    tiles = converted(A, precision)
    with_cores, without = product(tiles, tiles, precision), product(tiles, tiles, precision, units.PLAIN)
    for name in ("indptr", "columns", "bitmaps", "index", "elements"):
        np.testing.assert_array_equal(getattr(with_cores, name).get(), getattr(without, name).get())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_parts_give_the_same_product(precision, rng, sort, monkeypatch):
    """In one piece and in many, beyond the indices of 32 bits and within them, scaled in float16."""
    from spectile.tsparse.cuda import parts
    from spectile_study.cases.tsparse.tiles import product

    A = random(2000, 2000, 0.004, rng)
    A.data[::7] *= 2.0**-20
    G = on_gpu(A, precision)
    whole = multiply(G, G, precision, drop_cancelled=False)
    check(whole, A, A, precision, drop_cancelled=False)
    monkeypatch.setattr(product, "FEW_TASKS", 5000)
    monkeypatch.setattr(product.memory, "free_bytes", lambda: 0)
    for most in (parts.MOST_ENTRIES, whole.nnz - 1):
        monkeypatch.setattr(parts, "MOST_ENTRIES", most)
        monkeypatch.setattr(product, "index_type", lambda count, most=most: np.int32 if count <= most else np.int64)
        C = multiply(G, G, precision, drop_cancelled=False)
        assert C.indices.dtype == C.indptr.dtype == (np.int32 if most > whole.nnz else np.int64)
        for name in ("indptr", "indices", "data"):
            assert bool((getattr(C, name) == getattr(whole, name)).all())


def test_what_tiles_cannot_hold_is_refused():
    wide = sp.csr_array(np.array([[1.0, 2.0**-60]]))
    with pytest.raises(ValueError, match="row of A 0 holds entries further apart"):
        multiply(on_gpu(wide, "float16"), on_gpu(sp.csr_array(wide.T), "float16"), "float16")
    with pytest.raises(ValueError, match="A holds nan at row 0, column 1"):
        multiply(on_gpu(sp.csr_array(np.array([[1.0, np.nan]]))), on_gpu(sp.csr_array(wide.T)), "float64")


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
