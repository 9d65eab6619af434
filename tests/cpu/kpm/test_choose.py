"""What KPM launches fits every device of the table, from one vector to many, on any matrix and sample."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from spectile.core.devices import TABLE
from spectile.kpm.cuda import choose, engine, packed
from spectile.kpm.cuda.boxed import halved
from spectile.kpm.cuda.grouped import cut
from spectile.kpm.cuda.units import BULK, staged_unit, stored_unit, sweep_unit

WIDTHS = (1, 2, 3, 4, 5, 8, 16, 17, 31, 32, 33, 64, 100, 1000)
DTYPES = ("float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("device", TABLE.values(), ids=lambda device: device.name)
def test_rows_fit(device):
    for num_vectors in WIDTHS:
        shape = choose.row_shape(num_vectors)
        launched = choose.row_launch(shape, num_vectors, device)
        assert launched.refusal(device) is None
        assert shape.threads * shape.blocks <= device.threads
        for longest, dtype in itertools.product((1, 3, 4, 7, 60), DTYPES):
            sell = choose.sell_shape(longest, dtype)
            assert sell.threads * sell.blocks <= device.threads
        # The sums of the warps are static.
        assert shape.threads // 32 * 2 * shape.lanes * shape.columns * 8 <= 48 * 1024


@pytest.mark.parametrize("device", TABLE.values(), ids=lambda device: device.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gathered_rows_fit(device, dtype):
    item = np.dtype(dtype).itemsize
    for num_vectors, longest in itertools.product(WIDTHS, (0, 3, 5, 7, 8)):
        shape = choose.gather_shape(num_vectors, dtype, longest)
        assert shape.threads * shape.blocks <= device.threads
        for num_rows in (1, 31, 10**4, 2 * 10**6, 10**9):
            launched, rows = choose.gather_launch(shape, num_rows, num_vectors, device)
            assert launched.refusal(device) is None
            if num_vectors == 1:
                assert (launched.grid[0] - 1) * rows < num_rows <= launched.grid[0] * rows
            else:
                assert rows == launched.grid[0] * (shape.threads // shape.lanes)
        assert launched.grid[1] * shape.columns >= num_vectors and num_vectors % shape.vector == 0
        assert shape.vector * item <= 16
        # Static: the sums of the warps, and the products of one vector's entries.
        static = shape.threads // 32 * 2 * shape.columns * 8
        static += shape.threads * shape.unroll * item if num_vectors == 1 else 0
        assert static <= 48 * 1024


@pytest.mark.parametrize("device", TABLE.values(), ids=lambda device: device.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_waves_are_planes_whose_parts_the_l1_cache_holds(device, dtype):
    item = np.dtype(dtype).itemsize
    taken = set()
    planes = (1, 500, 1000, 1415, 1442, 5000, 15876, 40000, 10**7)
    for num_vectors, longest, plane in itertools.product((8, 32, 64), (3, 7, 8), planes):
        shape = choose.gather_shape(num_vectors, dtype, longest)
        for each in (shape, choose.strip_shape(shape, num_vectors, plane, item, device)):
            assert each.threads * each.blocks <= device.threads and each.columns == shape.columns
            launched, plain = choose.gather_launch(each, 2 * 10**6, num_vectors, device)
            same, wave = choose.gather_launch(each, 2 * 10**6, num_vectors, device, plane, item)
            assert same == launched and launched.refusal(device) is None and wave in (plain, plane)
            if wave == plain:
                assert each == shape, "strips are taken for waves of a plane alone"
                continue
            part, once = plane // launched.grid[0], each.threads // each.lanes
            assert 13 * part >= once and 3 * part * num_vectors * item * each.blocks <= device.shared_bytes
            assert num_vectors * item >= 128 and -(-plane // launched.grid[0]) * launched.grid[0] <= 1.125 * plane
            taken.add(each != shape)
    assert taken == {False, True} or device.shared_bytes < 200_000


@pytest.mark.parametrize("device", TABLE.values(), ids=lambda device: device.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_slots_fit(device, dtype):
    for num_vectors, longest in itertools.product(WIDTHS, range(1, 9)):
        for num_rows in (1, 31, 10**4, 2 * 10**6, 10**8):
            shape = choose.slot_shape(num_vectors, dtype, longest, num_rows, device)
            assert shape.threads % 32 == 0 and shape.threads * shape.blocks <= device.threads
            held = 2 * num_rows * num_vectors * np.dtype(dtype).itemsize
            assert shape.keep == (held <= device.l2_bytes // 2)
            launched = choose.slot_launch(shape, num_rows, num_vectors, device)
            assert launched.refusal(device) is None
            assert launched.grid[1] * shape.columns >= num_vectors and num_vectors % shape.vector == 0
            assert shape.vector * np.dtype(dtype).itemsize <= 16
        # The sums of the warps are static.
        assert shape.threads // 32 * 2 * shape.columns * 8 <= 48 * 1024


def test_slots_are_taken_for_short_rows_of_one_length():
    assert choose.slotted(1, np.float32, 7, 1000, 7000) and choose.slotted(1, "float32", 8, 1000, 6400)
    assert not choose.slotted(1, np.float32, 8, 1000, 6399)  # more than a quarter of the slots are empty
    assert not choose.slotted(1, np.float32, 9, 1000, 9000) and not choose.slotted(1, np.float32, 0, 1000, 0)
    assert not choose.slotted(1, np.float32, 8, 2**28, 2**31)  # slots are numbered by 32 bits


@pytest.mark.parametrize(
    ("dtype", "of_seven", "of_three"), [("float32", 31, 31), ("complex64", 15, 16), ("complex128", 8, 16)]
)
def test_slots_are_taken_up_to_a_width_that_the_rows_decide(dtype, of_seven, of_three):
    for longest, most in ((7, of_seven), (3, of_three)):
        taken = [r for r in range(1, 100) if choose.slotted(r, dtype, longest, 1000, 1000 * longest)]
        assert taken == list(range(1, most + 1))


def test_a_line_of_a_square_lattice_is_a_wave_whose_parts_are_strips():
    h200 = TABLE["H200"]
    for dtype, num_vectors in (
        ("complex128", 32),
        ("complex64", 32),
        ("float32", 32),
        ("float64", 32),
        ("float32", 64),
    ):
        base, item = choose.gather_shape(num_vectors, dtype, 8), np.dtype(dtype).itemsize
        strips = choose.strip_shape(base, num_vectors, 1415, item, h200)
        assert (strips.threads, strips.blocks) == (256, 2)
        assert choose.gather_launch(strips, 1414**2, num_vectors, h200, 1415, item)[1] == 1415
        # Four rows and a bit would be five for some blocks; a plane of a cube is more than a line.
        assert choose.strip_shape(base, num_vectors, 1100, item, h200) == base
        assert choose.strip_shape(base, num_vectors, 15876, item, h200) == base


@pytest.mark.parametrize("device", TABLE.values(), ids=lambda device: device.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_groups_fit_or_are_not_chosen(device, dtype):
    parts = 2 if np.dtype(dtype).kind == "c" else 1
    for num_vectors in WIDTHS:
        if not choose.groups(num_vectors, dtype, 63, device):
            assert not device.fast_fp64 or (num_vectors * parts) % 16
            continue
        assert not choose.groups(num_vectors, dtype, 3, device)
        shape = choose.grouped_shape(num_vectors, dtype)
        launched = choose.grouped_launch(shape, 10**6, num_vectors, device)
        assert launched.refusal(device) is None and shape.threads * shape.blocks <= device.threads
        assert launched.grid[1] * shape.columns == num_vectors and shape.columns * parts in (8, 16, 32, 64)
        assert shape.threads // 32 * 2 * shape.columns * 8 <= 48 * 1024


@pytest.mark.parametrize("device", TABLE.values(), ids=lambda device: device.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_boxes_of_groups_fit_or_are_not_chosen(device, dtype):
    real, chosen = np.dtype(dtype).kind == "f", set()
    lengths = (0, 8, 9, 24, 63, 64, 200, 30000)
    for num_vectors, longest in itertools.product((1, 7, 8, 16, 20, 24, 32, 40, 64, 96), lengths):
        if not choose.boxes(num_vectors, dtype, longest, device):
            continue
        chosen.add((num_vectors, longest))
        assert choose.groups(num_vectors, dtype, longest, device)
        shape = choose.boxed_shape(num_vectors, dtype)
        assert num_vectors % shape.columns == 0 and shape.depth % shape.sets == 0 and shape.threads <= 1024
        room = choose.boxed_room(shape, dtype, longest, device)
        assert room.length >= longest and room.length % (8 * shape.unroll) == 0 and room.slots > 0
        for tiles in (1, 100, 10**6):
            launched = choose.boxed_launch(shape, room, tiles, num_vectors, device)
            assert launched.grid[1] * shape.columns == num_vectors and 1 <= launched.grid[0] <= tiles
            assert launched.refusal(device) is None and launched.shared_bytes >= room.shared_bytes
        # Barriers are static; a code has 16 bits.
        assert launched.shared_bytes + 12 * shape.depth <= device.shared_bytes
        assert room.slots * shape.box * room.pieces <= 2**16
        # The inspector's are static, too, a tile for each warp.
        assert choose.BOXES_THREADS // 32 * (4 * room.slots + 16 * shape.tile) <= 48 * 1024
        # A tile of cells of seven orbitals, and the cells around it: three lines.
        if longest == 63:
            assert room.slots >= 3 * -(-7 * (shape.tile + 2) // shape.box)
    widths = {width for width, longest in chosen if longest == 63}
    if device.compute_capability < (9, 0) or not device.fast_fp64:
        assert not chosen
    elif device.shared_bytes >= 232448:
        assert widths == ({16, 32, 64, 96} if real else {8, 16, 24, 32, 40, 64, 96})
        assert {longest for _, longest in chosen} >= {9, 24, 63, 64} and 30000 not in {longest for _, longest in chosen}


@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_of_boxes_are_counted_where_vectors_are(dtype):
    """Boxed groups keep no more than what an engine's capacity leaves for a format, and tiles are nearly full."""
    device, item = TABLE["H200"], np.dtype(dtype).itemsize
    for rows, count, longest, groups in ((7, 63, 63, 285714), (3, 30, 63, 10**6), (8, 63, 64, 10), (1, 9, 128, 10**6)):
        shape = choose.boxed_shape(16, dtype)
        room, entries = choose.boxed_room(shape, dtype, longest, device), groups * rows * count
        most = choose.most_tiles(shape, room, groups, entries * item)
        kept = most * (shape.tile * (2 * (room.length + choose.MOST_GROUPED) + 16) + 4 * room.slots + 8)
        assert kept <= max(item * entries, 2**20)
        assert most <= -(-groups // shape.tile) * 4 / 3 + 1
        assert (most >= -(-groups // shape.tile)) == (rows > 1)


class Fake:
    """An operator that is made of anything."""

    def __init__(self, *about, **more):
        self.tiled = []


class FakeBoxed(Fake):
    """One that does not fit for the widths of `refused`."""

    refused = frozenset({32})

    def tiles(self, num_vectors):
        if num_vectors in self.refused:
            raise MemoryError
        self.tiled.append(num_vectors)


class FakeGrouped(Fake):
    pass


@pytest.mark.parametrize("device", ["A100", "RTX 4090", "H100", "H200", "B200", "B300"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_engine_falls_back_to_groups_without_boxes(device, dtype, monkeypatch):
    made = object.__new__(engine.StoredEngine)
    made.dtype, made.num_rows = np.dtype(dtype), 7 * 10**5
    made._formats, made._unstaged, made._unboxed = {}, set(), set()
    made.seen, made.matrix = SimpleNamespace(longest=63), SimpleNamespace(nnz=63 * 7 * 10**5)
    made.__dict__["_groups"] = np.zeros(10**5 + 1)
    monkeypatch.setattr(engine, "describe", lambda: TABLE[device])
    monkeypatch.setattr(engine, "BoxedOperator", FakeBoxed)
    monkeypatch.setattr(engine, "GroupedOperator", FakeGrouped)
    monkeypatch.setattr(engine, "StoredOperator", Fake)
    # The first that does not fit leaves nothing behind, and is not asked again.
    for _ in range(2):
        chosen = [type(made._format(num_vectors)) for num_vectors in (32, 16, 64, 8)]
        if not TABLE[device].fast_fp64:
            assert FakeBoxed not in chosen and FakeGrouped not in chosen
        elif TABLE[device].compute_capability < (9, 0):
            assert chosen == [FakeGrouped] * 4
        else:
            last = FakeGrouped if np.dtype(dtype).kind == "f" else FakeBoxed
            assert chosen == [FakeGrouped, FakeBoxed, FakeBoxed, last]
            assert made._unboxed == {32} and 32 not in made._formats["boxed"].tiled
            monkeypatch.setattr(FakeBoxed, "refused", frozenset())


def test_tiles_that_need_too_many_boxes_are_halved():
    edges = np.array([0, 8, 16, 19, 20], np.int32)
    np.testing.assert_array_equal(halved(edges, np.array([27, 28, 29, 5]), 27), [0, 8, 12, 16, 17, 19, 20])
    np.testing.assert_array_equal(halved(edges, np.array([27, 27, 27, 5]), 27), edges)
    with pytest.raises(MemoryError, match="more boxes"):
        halved(edges, np.array([27, 28, 29, 28]), 27)


def test_a_width_that_a_spectrum_has_at_least():
    rng = np.random.default_rng(3)
    for size, spread in itertools.product((1, 2, 3, 48), (0.0, 0.1, 1.0)):
        alphas, betas = spread * rng.normal(size=size), 1 + spread * rng.random(size)
        ritz = np.linalg.eigvalsh(np.diag(alphas) + np.diag(betas[:-1], -1))
        found = packed.least_width(betas)
        assert 0 <= found <= (ritz[-1] - ritz[0]) * (1 + 1e-12)
        if spread == 0:  # half a sine is the eigenvector
            np.testing.assert_allclose(found, ritz[-1] - ritz[0], atol=1e-12)


@pytest.mark.parametrize("device", TABLE.values(), ids=lambda device: device.name)
def test_packed_rows_fit(device):
    assert device.threads >= choose.PACKED_THREADS * choose.PACKED_BLOCKS
    for groups in (1, 7, 8, 9, 10**6):
        launched = choose.packed_launch(groups, device)
        assert launched.refusal(device) is None
        assert launched.grid[0] <= max(1, -(-groups // 8))
    assert choose.packs(63) and not choose.packs(13)


def test_runs_of_rows_are_cut_into_groups_of_eight_at_most():
    edges = cut(np.array([0, 7, 14, 15, 40, 48]))
    np.testing.assert_array_equal(np.diff(edges), [7, 7, 1, 6, 6, 6, 7, 8])
    assert edges.dtype == np.int32
    short = np.array([0, 7, 8, 16, 19])
    np.testing.assert_array_equal(cut(short), short)
    assert cut(short).dtype == np.int32


@pytest.mark.parametrize("device", TABLE.values(), ids=lambda device: device.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_staged_blocks_fit_or_are_not_chosen(device, dtype):
    item = np.dtype(dtype).itemsize
    for num_vectors in WIDTHS:
        if not choose.stages(num_vectors, dtype, 13, device):
            assert device.compute_capability < (9, 0) or num_vectors * item < 128 or num_vectors * item % 16
            continue
        shape = choose.staged_shape(num_vectors, dtype)
        for longest in (10, 13, 32, 60, 500):
            for pages in (1, 10, 10**6):
                room = choose.staged_room(shape, num_vectors, pages, longest, pages // 100, item, 0, device)
                if room.slots > 0:
                    launched = choose.staged_launch(shape, room, num_vectors, 0)
                    assert launched.refusal(device) is None, (num_vectors, longest, pages)


def test_cubes_are_staged_where_that_was_measured():
    for dtype, num_vectors, longest in itertools.product(DTYPES, WIDTHS, (6, 7, 8)):
        expected = dtype == "complex128" and num_vectors in (32, 64) and longest == 7
        assert choose.stages(num_vectors, dtype, longest, TABLE["H200"]) == expected
        assert not choose.stages(num_vectors, dtype, longest, TABLE["A100"])
    assert choose.staged_shape(32, "complex128", 7)[2:] == (4, 4, 8, 4)
    assert choose.staged_shape(32, "complex128", 13) == choose.staged_shape(32, "complex128")
    assert choose.staging_pays(7, 1.92) and not choose.staging_pays(7, 3.1) and choose.staging_pays(13, 3.1)
    # A cube of 2e6 sites: three planes of a part, and what lies around it, fit.
    shape = choose.staged_shape(32, "complex128", 7)
    room = choose.staged_room(shape, 32, 125**3 // 4, 7, 125**2 // 4, 16, 0, TABLE["H200"])
    assert room.slots > 100 and room.turns == 1
    assert choose.staged_launch(shape, room, 32, 0).refusal(TABLE["H200"]) is None


@pytest.mark.parametrize("device", TABLE.values(), ids=lambda device: device.name)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("steps", [1, 2])
def test_sweeps_fit_or_are_refused(device, dtype, steps):
    item = np.dtype(dtype).itemsize
    for ny in (3, 4, 100, 1600):
        for nz in (1, 2, 31, 40, 100, 250, 1000, 2000):
            try:
                tile = choose.sweep_tile(ny, nz, steps, item, device)
            except MemoryError as error:
                assert f"nz={nz}" in str(error) and nz >= 100
                continue
            launched, groups = choose.sweep_launch(tile, ny, nz, 32 * 400, item, device)
            assert launched.refusal(device) is None
            assert launched.grid[0] == groups * -(-ny // tile.lines)


def test_units_say_what_they_are_written_for():
    assert all(int(arch[3:].rstrip("a")) >= 90 for arch in BULK)
    shape = choose.staged_shape(32, "complex128")
    unit = staged_unit("complex128", 32, slots=9, code_bytes=64, value_bytes=64)
    assert unit.archs == BULK and unit.defines["THREADS"] == str(shape.threads)
    for portable in (stored_unit("float32", 3), sweep_unit("complex64", 7, choose.SweepTile(2, 1, 1))):
        assert "sm_80" in portable.archs and "sm_120" in portable.archs
