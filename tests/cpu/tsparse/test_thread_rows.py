"""Rows that a thread fills, and that a block counts by a table or fills in parts, by kernels compiled for the host."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.core.devices import TABLE
from spectile.core.launch import Shape
from spectile.tsparse.cuda import bins, choose, units
from spectile.tsparse.cuda.counters import Head
from spectile.tsparse.cuda.shared import CONSTANTS, HEAD, HEAD_WORDS

from ...cuda_on_host import compiled, launch

PARTS = next(one for one in bins.BLOCKS if not one.whole).kernels[0].name
UNITS = {
    "analyse": units.ANALYSIS,
    **{value: units.NUMERIC["few"][value][bins.FEW.kernels[0].name] for value in ("float64", "bool")},
    "known": units.REUSE["block"]["float64"][PARTS],
    "unknown": units.NUMERIC["block"]["float64"][PARTS],
    "counted": units.SYMBOLIC_BLOCK,
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return {name: compiled(tmp_path_factory.mktemp(name), unit) for name, unit in UNITS.items()}


def banded(rng, rows, entries, reach):
    row = np.repeat(np.arange(rows), rng.poisson(entries, rows))
    column = row + rng.integers(-reach, reach + 1, len(row))
    kept = (column >= 0) & (column < rows)
    return sp.csr_array((np.ones(kept.sum()), (row[kept], column[kept])), shape=(rows, rows))


def hubs(rng, rows, entries):
    """Rows of more entries than a thread walks, one of them with so few products that it might."""
    matrix = sp.random_array((rows, rows), density=entries / rows, rng=rng, format="lil")
    matrix[7, rng.integers(0, rows, 60)] = 1.0
    matrix[40, rng.integers(0, rows, rows // 2)] = 1.0
    matrix[90, 300:350], matrix[300:350], matrix[310, 20:30] = 1.0, 0.0, 1.0
    return sp.csr_array(matrix)


CASES = {
    "a thread a row, narrow": lambda rng: banded(rng, 700, 2.3, 3),
    "lanes a row, many products": lambda rng: banded(rng, 300, 8, 7),
    "a warp a row": lambda rng: banded(rng, 90, 20, 9),
    "few products far apart": lambda rng: sp.random_array((600, 600), density=3 / 600, rng=rng, format="csr"),
    "hubs": lambda rng: hubs(rng, 600, 2),
}


def expected(A):
    """Return columns and sums of each row of A A, the sums in the order of k, and the products of each."""
    rows, products = [], np.zeros(A.shape[0], int)
    for i in range(A.shape[0]):
        sums = {}
        for p in range(A.indptr[i], A.indptr[i + 1]):
            for q in range(A.indptr[A.indices[p]], A.indptr[A.indices[p] + 1]):
                sums[A.indices[q]] = sums.get(A.indices[q], 0) + np.longdouble(A.data[p]) * A.data[q]
                products[i] += 1
        rows.append(sorted(sums.items()))
    return rows, products


@pytest.mark.parametrize("columns", [0, 2**30])  # of the matrix, and so many that windows are looked for
@pytest.mark.parametrize("value", ["float64", "bool"])
@pytest.mark.parametrize("case", CASES)
def test_rows_are_counted_and_filled(libraries, case, value, columns):
    rng = np.random.default_rng(3)
    A = CASES[case](rng)
    A.sum_duplicates()
    A.sort_indices()
    A.data = rng.standard_normal(A.nnz) if value == "float64" else rng.random(A.nnz) < 0.4
    rows = A.shape[0]
    pattern = [np.ascontiguousarray(x, np.int32) for x in (A.indptr, A.indices)]
    low, span, entries = (np.full(rows, 7, np.int32) for _ in range(3))
    slot = np.where(np.arange(rows) % 2, -4, -5).astype(np.int32)  # of an earlier product
    lists, words = np.full(choose.LISTS * rows, -1, np.int32), np.zeros(HEAD_WORDS, np.int32)
    log, shape = choose.analysis(rows, A.nnz / rows)
    sizes = np.int32(rows), np.int32(columns or A.shape[1]), np.int32(log), np.int32(128 if value == "bool" else 0)
    launch(libraries["analyse"], "analyse", shape, *sizes, *pattern, *pattern, low, span, entries, slot, lists, words)
    wanted, products = expected(A)
    counts = np.array([len(row) for row in wanted])
    lengths = np.diff(A.indptr)
    few = (products > 0) & (products <= CONSTANTS["FEW_MOST"]) & (lengths <= CONSTANTS["THREAD_LENGTH"])
    counted = entries > 0
    assert (counted == few).all() and (entries[few] == counts[few]).all()
    head = Head(words.tobytes())
    symbolic = words[HEAD["SYMBOLIC"] :][: len(bins.SYMBOLIC)]
    assert symbolic[bins.SYMBOLIC_PLACES["FEW"]] == few.sum() and symbolic.sum() == (products > 0).sum()

    ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    indices, data = np.full(ptr[-1], -1, np.int32), np.full(ptr[-1], np.nan).astype(value)
    for one in choose.numeric(head, rows, rows, 3.0, max(data.itemsize, 4), TABLE["H200"]):
        factors = *pattern, A.data, *pattern, A.data
        launch(libraries[value], one.name, one.shape, sizes[0], *factors, low, span, slot, ptr, indices, data)
    for i in range(rows):
        found = slice(ptr[i], ptr[i + 1])
        if counted[i]:
            assert indices[found].tolist() == [j for j, _ in wanted[i]]
            sums = np.array([x for _, x in wanted[i]], float)
            assert np.allclose(data[found], sums.astype(value), rtol=0, atol=1e-13)
        else:
            assert (indices[found] == -1).all(), "left to another kernel"


def wide(entries=40):
    """Return factors of rows that are wide, the first with so many columns, and their product."""
    rng = np.random.default_rng(5)
    A = sp.random_array((3, entries), density=0.5, rng=rng, format="csr")
    B = sp.random_array((entries, 10**5), density=12e-4 / entries, rng=rng, format="csr")
    B = sp.csr_array(sp.hstack([B, sp.random_array((entries, 900), density=0.4 / entries, rng=rng)]))
    for one in (A, B):
        one.sum_duplicates()
        one.sort_indices()
    C = sp.csr_array(A @ B)
    C.sort_indices()
    return A, B, C


def arrays(A):
    return A.indptr.astype(np.int32), A.indices.astype(np.int32)


@pytest.mark.parametrize("columns", ["known", "unknown"])
@pytest.mark.parametrize(
    ("entries", "parts", "listed"), [(40, 1, 0), (40, 5, 0), (40, 5, 16), (40, 5, 3), (5000, 3, 2600), (5000, 3, 900)]
)
def test_blocks_fill_rows_part_by_part(libraries, columns, entries, parts, listed):
    """One block all parts, or one block each; entries of A that meet a part are listed where there is room for them."""
    A, B, C = wide(entries)
    lanes, rows = bins.BLOCKS[-1].lanes[0], np.array([2, 0], np.int32)
    indptr, known = arrays(C)
    low = known[indptr[:-1]]
    span = known[indptr[1:] - 1] - low + 1
    words = -(-int(span.max()) // 32)
    capacity = 1400 if parts == 1 else -(-words // parts)
    assert parts > 1 or (span > 32 * capacity).all()
    indices = known.copy() if columns == "known" else np.full(C.nnz, -1, np.int32)
    data = np.full(C.nnz, np.nan)
    options = np.int32(2), np.int32(2), np.int32(capacity)
    launch(
        libraries[columns], PARTS, Shape((2 * parts,), lanes, 8 * capacity + 4 * listed), *options, rows,
        *arrays(A), A.data, *arrays(B), B.data, low, span, indptr, indices, data,
        np.int32(parts), np.zeros(1 + 2 * parts, np.int32), np.int32(listed),
    )  # fmt: skip
    other = slice(indptr[1], indptr[2])
    assert np.isnan(data[other]).all()
    data[other], indices[other] = C.data[other], known[other]
    assert np.array_equal(indices, known) and np.allclose(data, C.data, rtol=0, atol=1e-12)


def test_a_block_counts_a_wide_row_by_a_table(libraries):
    A, B, C = wide()
    words = np.zeros(HEAD_WORDS, np.int32)
    place = bins.SYMBOLIC_PLACES["BLOCK_TABLE"]
    words[HEAD["SYMBOLIC"] + place] = 2
    lists = np.full(choose.LISTS * 3, -1, np.int32)
    begin = choose.list_start(place, 3, 2)
    lists[begin : begin + 2] = 2, 0
    entries = (abs(A).sign() @ np.diff(B.indptr)).astype(np.int32)
    products = entries.copy()
    sizes = np.int32(place), np.int32(3), np.int32(A.nnz)
    shape = Shape((2,), 256)
    launch(libraries["counted"], "symbolic_block_table", shape, *sizes, lists, *arrays(A), *arrays(B), entries, words)
    counts = np.diff(C.indptr)
    assert entries[[0, 2]].tolist() == counts[[0, 2]].tolist() and entries[1] == products[1] > counts[1]


@pytest.mark.parametrize("shares", [1, 2, 7, 30])
@pytest.mark.parametrize("name", ["BLOCK", "HUB"])
def test_blocks_count_rows_by_bitmaps_that_they_share(libraries, name, shares):
    """Rows of none, few and many entries of A, of which some blocks may have none, and long rows of B."""
    rng = np.random.default_rng(8)
    wanted, rows, columns = [4, 1, 3], 6, 150_000
    lengths = np.array([9, 1300, 5, 2, 700, 0])
    A = sp.csr_array(
        (np.ones(lengths.sum()), np.concatenate([np.sort(rng.permutation(2000)[:n]) for n in lengths]),
         np.append(0, lengths.cumsum())), shape=(rows, 2000),
    )  # fmt: skip
    B = sp.random_array((2000, columns), density=2e-5, rng=rng, format="lil")
    B[A.indices[20], rng.integers(0, columns, 600)] = 1.0
    B = sp.csr_array(B)
    C = sp.csr_array(A @ B)
    C.sort_indices()
    filled = np.diff(C.indptr) > 0
    low, span = np.zeros((2, rows), np.int32)
    low[filled] = C.indices[C.indptr[:-1][filled]]
    span[filled] = C.indices[C.indptr[1:][filled] - 1] - low[filled] + 1
    words, place = np.zeros(HEAD_WORDS, np.int32), bins.SYMBOLIC_PLACES[name]
    words[HEAD["SYMBOLIC"] + place] = len(wanted)
    words[HEAD["MAX_SPAN"]] = span.max()
    lists = np.full(choose.LISTS * rows, -1, np.int32)
    begin = choose.list_start(place, rows, len(wanted))
    lists[begin : begin + len(wanted)] = wanted
    at_once = len(wanted) if shares > 1 else 2
    held = choose.bitmap_words(span.max()) // 2 * 2 + 2
    scratch = np.zeros(at_once * (held + 2), np.uint32)
    if shares == 1:
        scratch[:] = 0xA5A5A5A5
    entries = np.full(rows, -1, np.int32)
    sizes, shape = (np.int32(place), np.int32(rows), np.int32(A.nnz)), Shape((at_once * shares,), 256)
    launch(
        libraries["counted"], "symbolic_block_global", shape, *sizes, lists, *arrays(A), *arrays(B), low, span, entries,
        words, scratch, np.int32(held), np.int32(shares),
    )  # fmt: skip
    assert entries[wanted].tolist() == np.diff(C.indptr)[wanted].tolist()
    assert (np.delete(entries, wanted) == -1).all()
