"""What KPM launches fits every device of the table, and the choice of a kernel has no cliffs."""

import itertools
import logging

import numpy as np
import pytest

from spectile.core.devices import TABLE
from spectile.kpm import explain
from spectile.kpm.cuda.boxed import when as boxed
from spectile.kpm.cuda.boxed.groups import cut
from spectile.kpm.cuda.boxed.launch import halved
from spectile.kpm.cuda.choose import MOST_PADDED, Part, choose, ways
from spectile.kpm.cuda.common import BULK
from spectile.kpm.cuda.csr import when as csr
from spectile.kpm.cuda.csr.launch import csr_unit
from spectile.kpm.cuda.engine import fitting
from spectile.kpm.cuda.flat import when as flat
from spectile.kpm.cuda.problem import Problem, enqueued, row_launch
from spectile.kpm.cuda.sliced import when as sliced
from spectile.kpm.cuda.sliced.launch import sliced_unit
from spectile.kpm.cuda.staged import when as staged
from spectile.kpm.cuda.staged.launch import staged_unit
from spectile.kpm.cuda.stencil import when as stencil
from spectile.kpm.cuda.stencil.launch import sweep_unit
from spectile.kpm.operators.lattices import graphene

WIDTHS = (1, 2, 3, 4, 5, 7, 8, 10, 16, 17, 31, 32, 33, 64, 100, 1000)
DTYPES = ("float32", "float64", "complex64", "complex128")
DEVICES = pytest.mark.parametrize("device", TABLE.values(), ids=lambda device: device.name)
SORTS_OF_DEVICES = pytest.mark.parametrize("device", [TABLE[name] for name in ("H100", "A100", "RTX 4090")])
# Rows of one length; of lengths from one to twice the mean; five and eight together; as a lattice, whose rows of V come
# again: what an inspector finds of it.
STRUCTURES = ("equal", "unequal", "grouped", "lattice")
ROWS = 10**6


def problem(entries, num_vectors, dtype, structure="equal", rows=ROWS):
    """Return a matrix with so many entries a row on average."""
    longest = 2 * entries if structure == "unequal" else entries
    slots = {"unequal": 2 * entries * rows}.get(structure, sliced.even_slots(rows, longest))
    groups = rows // 5 if structure == "grouped" and entries >= 5 else rows
    return Problem(rows, entries * rows, longest, slots, groups, dtype, num_vectors)


def seconds(problem, device, structure):
    """Return what the chosen way is predicted to take; only lattices have few enough rows of V at a time."""
    refused = {("staged", width): None for width in range(1, 2 * problem.vectors + 32)}
    found = {} if structure in ("lattice", "grouped") else refused
    return min(way.candidate.seconds for way in ways(problem, device, found) if way.parts)


@SORTS_OF_DEVICES
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_is_not_slower_than_a_wider_one(dtype, structure, device):
    for entries in (1, 3, 7, 13, 33, 100):
        taken = [seconds(problem(entries, r, dtype, structure), device, structure) for r in range(1, 65)]
        least = np.minimum.accumulate(taken[::-1])[::-1]
        assert (np.array(taken) <= 1.1 * least).all(), entries


@SORTS_OF_DEVICES
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_entry_more_costs_little_more(dtype, structure, device):
    for num_vectors in (1, 2, 3, 8, 10, 32, 33):
        taken = np.array([seconds(problem(k, num_vectors, dtype, structure), device, structure) for k in range(1, 101)])
        steps = taken[1:] / taken[:-1]
        # From one entry to two the matrix itself doubles.
        assert steps[1:].max() <= 1.3 and steps[0] <= 1.6 and steps.min() >= 1 / 1.3, num_vectors


@DEVICES
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_way_takes_all_vectors_and_fits(dtype, device):
    for entries, num_vectors, structure, rows in itertools.product((0, 3, 7, 63, 500), WIDTHS, STRUCTURES, (33, 10**6)):
        matrix = problem(entries, num_vectors, dtype, structure, rows)
        for candidate, parts in ways(matrix, device, {}):
            assert candidate.seconds is None or candidate.seconds > 0
            assert candidate.why and (candidate.seconds is not None) == bool(parts)
            assert not parts or sum(part.vectors for part in parts) == num_vectors
            for part in parts:
                check_launch(part, matrix._replace(vectors=part.width), device)


def check_launch(part, matrix, device):
    """Assert that a device runs what a part launches."""
    assert part.vectors <= part.width <= part.vectors + MOST_PADDED
    item = np.dtype(matrix.dtype).itemsize
    if part.kernel in ("csr", "sliced"):
        kernel = {"csr": csr, "sliced": sliced}[part.kernel]
        shape = csr.shape(matrix) if kernel is csr else sliced.shape(matrix, device)
        lanes = shape.lanes
        assert lanes.vector * item <= 16 and matrix.vectors % lanes.vector == 0
        assert 1 <= shape.unroll <= 16 and shape.threads % 128 == 0
        assert lanes.lanes * getattr(shape, "split", 1) in (1, 2, 4, 8, 16, 32)
        assert shape.threads // 32 * 2 * lanes.columns * 8 <= 48 * 1024  # the sums of the warps are static
        launched = row_launch(shape, matrix.rows, matrix.vectors, device)
        assert launched.grid[1] * lanes.columns >= matrix.vectors
    elif part.kernel == "flat":
        shape = flat.shape(matrix)
        assert shape.lanes.vector == matrix.vectors and matrix.vectors * item <= 16
        assert shape.split in (1, 2, 4, 8, 16, 32) and (shape.chunk + 2) * matrix.vectors * item <= 48 * 1024
        launched = flat.launch(shape, flat.tiles(matrix), device)
    elif part.kernel == "staged":
        assert matrix.vectors * item % 16 == 0
        shape = staged.staged_shapes(matrix.vectors, matrix.dtype, matrix.longest)[0]
        pages = -(-matrix.rows // 4)
        room = staged.staged_room(shape, matrix.vectors, pages, max(1, matrix.longest), pages // 100, item, device)
        if room.slots <= 0:
            return
        launched = staged.staged_launch(shape, room, matrix.vectors)
    else:
        assert part.kernel == "boxed", f"check_launch does not say how {part.kernel} is launched"
        shape = boxed.boxed_shape(matrix.vectors, matrix.dtype)
        room = boxed.boxed_room(shape, matrix.dtype, matrix.longest, device)
        assert matrix.vectors % shape.columns == 0 and shape.depth % shape.sets == 0
        assert room.length >= matrix.longest and room.slots > 0 and room.slots * shape.box * room.pieces <= 2**16
        launched = boxed.boxed_launch(shape, room, 10**6, matrix.vectors, device)
        assert launched.shared_bytes >= room.shared_bytes
    assert launched.refusal(device) is None


def test_widths_are_padded_or_split_where_that_is_cheaper():
    h100 = TABLE["H100"]
    for dtype, num_vectors in itertools.product(DTYPES, WIDTHS):
        parts = choose(problem(7, num_vectors, dtype), h100, {})
        assert sum(part.vectors for part in parts) == num_vectors
        assert all(part.width >= part.vectors for part in parts)
    # A thread reads 16 bytes at once; one vector is never padded; one more than a warp's vectors goes alone.
    assert choose(problem(7, 3, "float32"), h100, {}) == (Part("sliced", 3, 4),)
    assert choose(problem(7, 1, "float32"), h100, {}) == (Part("sliced", 1, 1),)
    assert len(choose(problem(60, 33, "complex128", "unequal"), TABLE["A100"], {})) == 2


def test_what_an_inspector_finds_is_heeded(caplog):
    h100, matrix = TABLE["H100"], problem(13, 32, "complex128", "lattice")
    with caplog.at_level(logging.DEBUG, "spectile.kpm"):
        assert choose(matrix, h100, {}) == (Part("staged", 32, 32),)
    assert "staged" in caplog.text and "csr" in caplog.text
    assert choose(matrix, h100, {("staged", 32): 1e-6})[0].kernel == "staged"
    for beyond in (1.0, None):
        found = {("staged", width): beyond for width in range(1, 33)}
        assert all(part.kernel != "staged" for part in choose(matrix, h100, found))
    assert all(part.kernel != "staged" for part in choose(matrix, TABLE["A100"], {}))


def test_copies_from_the_cache_count_less_than_those_from_memory():
    device = TABLE["H200"]
    weighed = [staged.weighed(1.85, apart, 256, device) for apart in (0, 4000, 40_000, 400_000)]
    assert 1 < weighed[0] <= weighed[1] < 1.35 < weighed[2] == weighed[3] == 1.85
    assert staged.weighed(1.0, 4000, 256, device) == 1
    # A cube whose planes are walked through together, and a sample whose parts are apart.
    cube = problem(7, 32, "float64", "lattice", 1_953_125)
    shape = staged.staged_shapes(32, "float64", 7)[0]
    found = [staged.step_seconds(cube, device, shape, *copies) for copies in ((1.85, weighed[1]), (1.85, 1.85), (3, 3))]
    beyond = [seconds - staged.step_seconds(cube, device, shape) for seconds in found]
    assert 0 < beyond[0] <= beyond[1] < beyond[2]
    assert choose(cube, device, {("staged", 32): beyond[0]}) == (Part("staged", 32, 32),)
    assert choose(cube, device, {("staged", 32): beyond[2]})[0].kernel == "sliced"


def test_kernels_are_taken_for_what_they_are_made_for():
    h100 = TABLE["H100"]
    assert choose(problem(7, 8, "float64"), h100, {})[0].kernel == "sliced"
    assert choose(problem(7, 8, "float64", "unequal"), h100, {})[0].kernel == "csr"
    grouped = problem(63, 32, "complex128", "grouped")
    assert choose(grouped, h100, {})[0].kernel == "boxed"
    for device in (TABLE["A100"], TABLE["RTX 4090"]):
        assert choose(grouped, device, {})[0].kernel in ("csr", "sliced")
    # Small matrices do not pay an inspector: many steps are one launch; two parts of one kernel are not better than it.
    assert choose(problem(13, 32, "complex128", "lattice", 6000), h100, {}) == (Part("csr", 32, 32),)
    assert choose(problem(13, 64, "complex128", "lattice"), h100, {}) == (Part("staged", 64, 64),)
    # Hubs: slices as long as the longest row would not fit into memory.
    hub = Problem(ROWS, 7 * ROWS, 5000, 40 * ROWS, ROWS, "float64", 8)
    assert choose(hub, h100, {})[0].kernel == "csr"


def test_explain_says_what_works_where_there_is_no_choice():
    H = graphene(5, 5)
    (only,) = explain(H, backend="cpu")
    assert only.kernel == "cpu" and np.isnan(only.seconds)
    with pytest.raises(ValueError, match="num_vectors = 0 is invalid"):
        explain(H, num_vectors=0, backend="cpu")


def test_memory_counts_what_is_padded():
    def parts(vectors):
        return (Part("staged", vectors, -(-vectors // 8) * 8),)

    assert [fitting(columns, parts) for columns in (0, 1, 7, 8, 15, 16, 17, 63)] == [1, 1, 1, 8, 8, 16, 16, 56]
    for columns in (64, 100, 1000):
        assert columns - 63 < fitting(columns, parts) <= columns


def test_tiles_that_need_too_many_boxes_are_halved():
    edges = np.array([0, 8, 16, 19, 20], np.int32)
    np.testing.assert_array_equal(halved(edges, np.array([27, 28, 29, 5]), 27), [0, 8, 12, 16, 17, 19, 20])
    np.testing.assert_array_equal(halved(edges, np.array([27, 27, 27, 5]), 27), edges)
    assert halved(edges, np.array([27, 28, 29, 28]), 27) is None


def test_runs_of_rows_are_cut_into_groups_of_eight_at_most():
    edges = cut(np.array([0, 7, 14, 15, 40, 48]))
    np.testing.assert_array_equal(np.diff(edges), [7, 7, 1, 6, 6, 6, 7, 8])
    assert edges.dtype == np.int32
    short = np.array([0, 7, 8, 16, 19])
    np.testing.assert_array_equal(cut(short), short)
    assert cut(short).dtype == np.int32


@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_of_boxes_are_counted_where_vectors_are(dtype):
    """Boxed groups keep no more than what an engine's capacity leaves for a format, and tiles are nearly full."""
    device, item = TABLE["H200"], np.dtype(dtype).itemsize
    for rows, count, longest, groups in ((7, 63, 63, 285714), (3, 30, 63, 10**6), (8, 63, 64, 10), (1, 9, 128, 10**6)):
        shape = boxed.boxed_shape(16, dtype)
        room, entries = boxed.boxed_room(shape, dtype, longest, device), groups * rows * count
        most = boxed.most_tiles(shape, room, groups, entries * item)
        kept = most * (shape.tile * (2 * (room.length + boxed.MOST_GROUPED) + 16) + 4 * room.slots + 8)
        assert kept <= max(item * entries, 2**20)
        assert most <= -(-groups // shape.tile) * 4 / 3 + 1
        assert (most >= -(-groups // shape.tile)) == (rows > 1)


@DEVICES
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_sweeps_fit_or_do_not_apply(device, dtype):
    item = np.dtype(dtype).itemsize
    for steps, ny, nz in itertools.product((1, 2), (3, 4, 100, 1600), (1, 2, 31, 40, 100, 250, 1000, 2000)):
        tile = stencil.sweep_tile(ny, nz, steps, item, device)
        if tile is None:
            assert nz >= 100 and (steps == 2 or stencil.applies(ny, nz, item, device))
            continue
        assert stencil.applies(ny, nz, item, device) == ""
        launched, groups = stencil.sweep_launch(tile, ny, nz, 32 * 400, item, device)
        assert launched.refusal(device) is None
        assert launched.grid[0] == groups * -(-ny // tile.lines)


def test_units_say_what_they_are_written_for():
    assert all(int(arch[3:].rstrip("a")) >= 90 for arch in BULK)
    shape = staged.staged_shapes(32, "complex128", 13)[0]
    unit = staged_unit("complex128", 32, slots=9, code_bytes=64, value_bytes=64, shape=shape)
    assert unit.archs == BULK and unit.defines["THREADS"] == str(shape.threads)
    matrix = problem(7, 3, "float32")
    for portable in (
        csr_unit("float32", 3, csr.shape(matrix)),
        sliced_unit("float32", 3, sliced.shape(matrix, TABLE["H100"])),
        sweep_unit("complex64", 7, stencil.SweepTile(2, 1, 1)),
    ):
        assert "sm_80" in portable.archs and "sm_120" in portable.archs


def test_rows_are_cut_where_waiting_for_them_costs_more():
    device = TABLE["H200"]
    for entries, width, dtype in ((7, 8, "float64"), (20, 1, "complex64"), (5, 40, "complex128")):
        for rows in (10**5, 10**6):
            matrix = problem(entries, width, dtype, rows=rows)
            longest = [2 * entries, *(entries * 2**n for n in range(2, 14))]
            of_rows = [matrix._replace(longest=length) for length in longest]
            taken = np.array([csr.cost(each, device) for each in of_rows])
            assert (np.diff(taken) >= 0).all() and (taken <= 1.25 * taken[0] + 2 * enqueued(device)).all()
            cut = [csr.cut_at(each, device) for each in of_rows]
            assert cut[0] == 0 and 0 < cut[-1] < longest[-1]
    # Half a thousand rows of three hundred entries take less than a step of a millisecond.
    assert not csr.cut_at(problem(5, 34, "float64", rows=1_600_000)._replace(longest=300), device)


@pytest.mark.parametrize("structure", ["equal", "grouped"])
def test_a_kernel_with_an_inspector_is_taken_for_as_many_steps_as_repay_it(structure):
    """Seconds of a whole call: with its steps, none costs more than another would."""
    device, taken = TABLE["H200"], {}
    for steps in (10, 100, 1000, 10**5):
        here = problem(40, 32, "float64", structure, rows=50_000)._replace(steps=steps)
        taken[steps] = {part.kernel for part in choose(here, device, {})}
    inspected = {"staged", "boxed"}
    assert not taken[10] & inspected and taken[10**5] & inspected
    shares = [len(taken[steps] & inspected) > 0 for steps in sorted(taken)]
    assert shares == sorted(shares)
