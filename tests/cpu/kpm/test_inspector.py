"""The inspector of the staged GPU kernel: its plans, carried out in NumPy as the kernel does, give the product."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from spectile.kpm.cuda.staged import inspector
from spectile.kpm.distributed.partition import local_planes
from spectile.kpm.operators.lattices import anderson, graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator

from ...on_host import host_library
from ...plans import plan


def carried_out(matrix, made, workers, tile, depth, slots):
    """Return W = H V by the plan; fail where a slot is written while tiles in flight still read it."""
    rows, columns = matrix.shape
    v = np.zeros((4 * made.pages, 2), complex)
    v[:columns] = np.random.default_rng(1).normal(size=(columns, 2))
    w = np.full_like(v, np.nan)
    for worker in range(workers):
        memory, last_read = np.full((4 * slots, 2), np.nan, complex), np.full(slots, -depth)
        for n, t in enumerate(range(made.first[worker], made.first[worker + 1])):
            (load, code, value, last), to = made.tiles[t], made.tiles[t + 1]
            pages, targets = made.loads[load : to[0]].T
            assert (last_read[targets] <= n - depth).all()
            assert last == (made.pages - 1 in pages)
            memory.reshape(slots, 4, 2)[targets] = v.reshape(-1, 4, 2)[pages]
            codes = made.codes[8 * code : 8 * to[1]]
            for head in codes[: 8 * tile].reshape(tile, 8):
                page, _ = head.view(np.int32)[[0, 3]]
                if page < 0:
                    continue
                own, length = int(head[2]), int(head[3])
                np.testing.assert_array_equal(memory[own : own + 4], v[4 * page : 4 * page + 4])
                assert np.isnan(w[4 * page : 4 * page + 4]).all()
                words = codes[4 * head[4] :].astype(np.int64)
                for r in range(4):
                    places = np.array([k // 4 * 16 + 4 * r + k % 4 for k in range(length)], dtype=int)
                    code_of = words[places]
                    values = made.values[4 * (value + int(head[5])) + 4 * np.arange(length) + r]
                    last_read[code_of // 4] = n
                    w[4 * page + r] = values @ memory[code_of]
    return w[:rows], matrix @ v[:columns]


@pytest.mark.parametrize(
    ("matrix", "lattice"),
    [
        (TopologicalInsulator(4, 6, 8).matrix(), (48, 8)),
        (graphene(9, 7).tocsr(), (126 // 4 + 1, 0)),
        (anderson(5, disorder=2, rng=1).tocsr(), (32, 0)),
    ],
)
@pytest.mark.parametrize(("tile", "depth", "slots", "workers", "turns"), [(2, 8, 80, 3, 1), (4, 4, 200, 2, 2)])
def test_plan_carried_out_is_the_product(matrix, lattice, tile, depth, slots, workers, turns):
    made = plan(
        matrix.indptr, matrix.indices, matrix.data, wave_pages=lattice[0], line_pages=lattice[1],
        workers=workers, turns=turns, slots=slots, tile=tile, depth=depth, groups=2,
    )  # fmt: skip
    found, wanted = carried_out(matrix, made, workers, tile, depth, slots)
    np.testing.assert_allclose(found, wanted, atol=1e-13)
    assert made.reuse >= 1


def test_plans_of_some_rows_are_together_the_product():
    plane, planes = 48, 5
    matrix, _ = local_planes(TopologicalInsulator(9, 6, 8), np.dtype(complex), 7, planes, np)
    parts = []
    for runs in (((0, plane), ((planes - 1) * plane, planes * plane)), ((plane, (planes - 1) * plane),)):
        made = plan(
            matrix.indptr, matrix.indices, matrix.data, wave_pages=plane, line_pages=8, workers=3, turns=2,
            slots=90, tile=2, depth=6, groups=2, runs=runs, num_columns=matrix.shape[1],
        )  # fmt: skip
        found, wanted = carried_out(matrix, made, 3, 2, 6, 90)
        computed = np.isfinite(found[:, 0]).reshape(-1, 4).any(axis=1)
        np.testing.assert_array_equal(np.flatnonzero(computed), np.concatenate([np.arange(*run) for run in runs]))
        parts.append(found)
    np.testing.assert_allclose(np.where(np.isnan(parts[0]), parts[1], parts[0]), wanted, atol=1e-13)


def test_too_few_slots_are_no_plan():
    matrix = TopologicalInsulator(4, 6, 8).matrix()
    arguments = dict(wave_pages=48, line_pages=8, workers=1, turns=1, tile=2, depth=8, groups=2)
    assert plan(matrix.indptr, matrix.indices, matrix.data, slots=20, **arguments) is None


def test_waves_and_lines_are_read_off_a_lattice():
    matrix = TopologicalInsulator(12, 10, 8).matrix()
    assert inspector.lattice_of(matrix.indptr, matrix.indices) == (80, 8)


def test_a_matrix_without_entries_has_no_lattice():
    assert inspector.lattice_of(np.zeros(9, np.int32), np.zeros(0, np.int32)) == (0, 0)


@pytest.mark.parametrize("entries", [3, 40])
def test_rows_at_random_are_told_from_those_of_a_lattice(entries):
    rng = np.random.default_rng(entries)
    rows = 20_000
    lattice = np.sort((np.arange(rows)[:, None] + np.arange(entries) ** 2) % rows, axis=1)
    grouped = np.repeat(lattice[::4] // 8 * 8, 4, axis=0)  # rows of a cell have the same columns
    pointer = np.arange(rows + 1, dtype=np.int32) * entries
    for columns, alike in ((lattice, True), (grouped, True), (rng.integers(0, rows, (rows, entries)), False)):
        found = inspector.likeness_of(pointer, np.sort(columns, axis=1).ravel().astype(np.int32))
        assert 0 <= found <= 1 and (found > 0.9) == alike and (found < 0.4) != alike
    assert inspector.likeness_of(np.zeros(9, np.int32), np.zeros(0, np.int32)) == 1
    assert inspector.likeness_of(np.arange(4, dtype=np.int32), np.zeros(3, np.int32)) == 1


@pytest.mark.parametrize("rows", [1, 3, 18, 1000, 1003])
def test_pages_that_adjacent_ones_name(rows):
    rng = np.random.default_rng(rows)
    lengths = rng.integers(0, 9, rows)
    pointer = np.append(0, np.cumsum(lengths)).astype(np.int32)
    columns = rng.integers(0, rows, pointer[-1]).astype(np.int32)
    pages = -(-rows // inspector.PAGE)
    found = inspector.reach_of(pointer, columns)
    assert len(found) == min(pages, 64) + 1
    for count, wanted in enumerate(found):
        named = []
        for first in np.linspace(0, pages - len(found) + 1, 4).astype(int):
            begin, end = pointer[[4 * first, min(4 * (first + count), rows)]]
            named.append(len({*(columns[begin:end] // 4), *range(first, first + count)}))
        assert wanted == np.median(named)


@pytest.mark.parametrize(
    ("pages", "wave", "line", "workers", "turns"), [(960, 80, 8, 7, 1), (961, 80, 8, 5, 3), (7, 7, 0, 9, 1)]
)
def test_workers_share_the_pages(pages, wave, line, workers, turns):
    found, sizes = inspector.worker_pages(pages, wave, line, workers, turns)
    np.testing.assert_array_equal(np.sort(found), np.arange(pages))
    assert len(sizes) == workers and sizes.sum() == pages
    if pages > 100:
        assert sizes.max() <= 1.05 * sizes.min()


def test_each_worker_has_its_part_of_one_run_after_the_other():
    runs, workers = ((0, 48), (192, 241)), 5
    found, sizes = inspector.pages_of_runs(runs, 48, 8, workers, 1)
    np.testing.assert_array_equal(np.sort(found), np.concatenate([np.arange(*run) for run in runs]))
    parts = [inspector.worker_pages(stop - start, 48, 8, workers, 1) for start, stop in runs]
    for worker, mine in enumerate(np.split(found, np.cumsum(sizes)[:-1])):
        wanted = [
            start + np.split(pages, np.cumsum(each)[:-1])[worker]
            for (start, _), (pages, each) in zip(runs, parts, strict=True)
        ]
        np.testing.assert_array_equal(mine, np.concatenate(wanted))


def test_a_turn_is_a_region_of_whole_lines():
    lines, line, workers, turns = 12, 8, 4, 3
    found, sizes = inspector.worker_pages(2 * lines * line, lines * line, line, workers, turns)
    for pages in np.split(found, np.cumsum(sizes)[:-1]):
        regions = pages % (lines * line) // line // (lines // turns)
        np.testing.assert_array_equal(np.unique(regions), np.arange(turns))
        assert (np.diff(regions) >= 0).all()


def test_strips_wind_so_that_a_part_across_two_is_compact():
    # Two turns of 66 workers, as for 64 vectors on an H200: with straight strips, one of them found no slots.
    matrix = TopologicalInsulator(6, 100, 40).matrix()
    arguments = dict(wave_pages=4000, line_pages=40, workers=66, turns=2, slots=103, tile=4, depth=5, groups=3)
    made = plan(matrix.indptr, matrix.indices, matrix.data, **arguments)
    assert made is not None and made.reuse < 2.1


SET = """
#define __device__
static int atomicCAS(int *place, int compare, int value) {
    const int old = *place;
    if (old == compare) *place = value;
    return old;
}
%s
extern "C" unsigned first_place(int page, unsigned mask) { return place_of(page, mask); }
extern "C" void insert_all(int *set, unsigned mask, const int *pages, int count, int *fresh, unsigned *places) {
    for (int n = 0; n < count; ++n) fresh[n] = insert(set, mask, pages[n], places[n]);
}
"""


def test_pages_that_collide_in_the_set_stay_apart(tmp_path):
    source = (Path(inspector.__file__).parent / "inspector.cu").read_text()
    library = host_library(
        tmp_path / "set", SET % source[source.index("// A set of pages") : source.index("// Entries of the longest")]
    )
    mask = 63
    slots = np.array([library.first_place(page, mask) for page in range(5000)])
    colliding = np.flatnonzero(slots == slots[17])[:20]
    near = np.flatnonzero(slots == (slots[17] + 3) & mask)[:10]
    assert len(colliding) == 20 and len(near) == 10
    pages = np.concatenate([colliding, near, colliding[::-1], [0], near]).astype(np.int32)
    held, fresh = np.full(mask + 1, -1, np.int32), np.full(pages.size, -1, np.int32)
    places = np.zeros(pages.size, np.uint32)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (held, pages, fresh, places)]
    library.insert_all(pointers[0], mask, pointers[1], pages.size, *pointers[2:])
    np.testing.assert_array_equal(held[places], pages)
    np.testing.assert_array_equal(fresh, [page not in pages[:n] for n, page in enumerate(pages)])
    assert len(np.unique(pages)) == (held >= 0).sum()
