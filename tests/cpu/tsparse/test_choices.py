"""Choices of the GPU's product without a GPU: bins as the device makes them, and launches that every device can run."""

import ctypes
import dataclasses
import re
from importlib import resources
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from spectile.core.devices import TABLE
from spectile.tsparse import types
from spectile.tsparse.cuda import bins, choose, shared, units
from spectile.tsparse.cuda.shared import CONSTANTS

from ...heads import head_of
from ...on_host import host_library

LONGEST = 2**31 - 2**20  # rows, columns, entries: what the kernels take
RNG = np.random.default_rng(2026)


@pytest.fixture(scope="module")
def device_code(tmp_path_factory):
    """The kernels' own functions that choose a row's bin, compiled for the host."""
    return chosen_by(shared.HEADER, tmp_path_factory.mktemp("bins") / "bins")


def chosen_by(header, stem):
    """Return a library of the functions that choose a bin, with a header of other bins perhaps."""
    source = units.ANALYSIS.source() + units.PLACE["float64"].source()
    header = header.replace("namespace {", "").rpartition("}")[0].replace("__forceinline__", "inline")
    slots = re.findall(r"constexpr int (?:NO_BITMAP|MANY_PRODUCTS|[A-Z_]+_ROW) = -?\d+;", source)
    functions = [whole_function(name, source) for name in FUNCTIONS]
    text = "\n".join([header, *dict.fromkeys(slots), *functions])
    text = text.replace("__device__", "static").replace("__forceinline__", "inline")
    return host_library(stem, HARNESS.replace("FUNCTIONS", text))


def whole_function(name, source):
    """Return the text of a device function, of one line or until a brace at the beginning of a line."""
    start = re.search(rf"^__device__[^;(]*\b{name}\(", source, re.M).start()
    line = source[start : source.index("\n", start)]
    return line if line.endswith("}") else source[start : source.index("\n}\n", start) + 2]


FUNCTIONS = ("words_of", "row_steps", "symbolic_bin", "numeric_bin")
HARNESS = """
#include <algorithm>
using std::min; using std::max; using u32 = unsigned int; using u64 = unsigned long long;
namespace f {
using VALUE = float;
FUNCTIONS
}
namespace d {
using VALUE = double;
FUNCTIONS
}
namespace c {
struct VALUE { double x, y; };
FUNCTIONS
}
extern "C" int symbolic(unsigned long long products, int span, int length, int least) {
    return d::symbolic_bin(products, span, length, least);
}
extern "C" int numeric(int size, int entries, int span, int slot, int sorted, int shared, int* need) {
    return size == 4 ? f::numeric_bin(entries, span, slot, sorted, shared, need)
         : size == 8 ? d::numeric_bin(entries, span, slot, sorted, shared, need)
                     : c::numeric_bin(entries, span, slot, sorted, shared, need);
}
"""


def random_rows(count):
    """Yield products, span and entries of rows of every size that C may have."""
    edges = [
        1,
        2,
        16,
        17,
        24,
        32,
        33,
        48,
        64,
        65,
        128,
        129,
        192,
        256,
        768,
        1024,
        2048,
        2049,
        8192,
        8193,
        2**14,
        2**20,
        2**22,
        2**22 + 1,
    ]
    edges += [2**25 - 1, 2**25]
    edges += [2**30, LONGEST - 1, LONGEST]
    for i in range(count):
        span = int(RNG.choice(edges)) if i % 2 else int(2 ** RNG.uniform(0, 31)) % LONGEST + 1
        products = int(RNG.choice(edges)) if i % 3 else int(2 ** RNG.uniform(0, 40)) + 1
        entries = min(products, span) if i % 4 else int(RNG.integers(1, min(products, span) + 1))
        yield products, span, entries


@pytest.mark.parametrize("device", TABLE.values(), ids=list(TABLE))
@pytest.mark.parametrize("itemsize", [4, 8, 16])
def test_every_row_has_a_bin_that_holds_it(device_code, device, itemsize):
    limit = choose.shared_limit(device, itemsize)
    assert device_code.symbolic(ctypes.c_ulonglong(0), 0, 0, 0) == -1
    largest = bins.SORTS[-1].holds["products"]
    for number, (products, span, entries) in enumerate(random_rows(4000)):
        length = min(products, 1 if number % 3 else 10 ** (number % 7))
        least = largest if number % 5 == 0 else 0
        symbolic = bins.SYMBOLIC[device_code.symbolic(ctypes.c_ulonglong(products), span, length, least)]
        most = min(products, span)
        if symbolic.family == "sort":
            (lanes,) = symbolic.lanes
            assert products <= 4 * lanes and span << (4 * lanes).bit_length() - 1 < 2**32
            smallest = products > 2 * lanes or length > CONSTANTS["THREAD_LENGTH"]
            assert 4 * lanes == largest if least else smallest, "the smallest group that holds the row, or one for all"
        elif symbolic.family == "few":
            assert products <= CONSTANTS["FEW_MOST"] and span * CONSTANTS["FEW_MOST"] < 2**32
        elif symbolic.family == "window":
            assert span <= 32 * symbolic.words and products < CONSTANTS["BLOCK_PRODUCTS"]
        elif symbolic.family == "block_table":
            assert products < symbolic.words and choose.blocks_possible(span, products)
        elif symbolic.family in ("block", "hub"):
            assert choose.blocks_possible(span, min(products, 2**62))
            steps = choose.row_steps(products, length)
            assert (symbolic.family == "hub") == (steps >= CONSTANTS["HUB_STEPS"])
        else:
            assert most < symbolic.words, "a table that is full is searched for ever"
        need = ctypes.c_int()
        slot = {"window": 0, "sort": -5 - SORTS.index(symbolic.name) if symbolic.family == "sort" else 0, "hub": -3}
        slot = slot.get(symbolic.family, -2 if products >= CONSTANTS["BLOCK_PRODUCTS"] else -1)
        given = itemsize, entries, span, slot
        if symbolic.family == "few":
            assert device_code.numeric(*given[:3], -4, True, limit, ctypes.byref(need)) == -1
            continue
        if symbolic.family == "hub":
            assert device_code.numeric(*given, True, limit, ctypes.byref(need)) == -1 and not need.value
        chosen = bins.NUMERIC[device_code.numeric(*given, symbolic.family != "hub", limit, ctypes.byref(need))]
        words = -(-span // 32)
        if chosen.family == "sort":
            assert symbolic.name == chosen.name and products <= chosen.holds["products"]
        elif chosen.family == "window":
            assert (
                symbolic.family == "window" and span <= chosen.holds["columns"] and entries <= chosen.holds["entries"]
            )
        elif chosen.family == "table":
            assert entries <= chosen.slots // 2
        else:
            held = -(-words // 32) + entries if chosen.sparse else words
            fits = 8 * held + itemsize * entries <= limit
            assert (chosen.whole == fits and 8 <= need.value <= limit and need.value % 8 == 0) or chosen.whole
            assert need.value >= 8 * held + itemsize * entries or not chosen.whole
            assert need.value <= chosen.most_bytes or not chosen.most_bytes
            assert words > 4 * entries or not chosen.sparse


SORTS = [one.name for one in bins.SYMBOLIC if one.family == "sort"]


def test_a_bin_that_is_declared_is_known_to_the_kernels(tmp_path):
    """Rows of 513 to 1,024 entries with a wide window go to a larger table, once there is one; all others as before."""
    place = bins.NUMERIC_PLACES["TABLE_1024"] + 1
    more = (*bins.NUMERIC[:place], bins.Bin("TABLE_2048", "table", {"entries": 1024}, (32,)), *bins.NUMERIC[place:])
    before, after = (
        chosen_by(shared.header(numeric=numeric), tmp_path / str(len(numeric))) for numeric in (bins.NUMERIC, more)
    )
    for entries in (1, 512, 513, 1024, 1025):
        for slot in (-1, -2, -6, 0):
            was, now = (
                listed[library.numeric(8, entries, 2**20, slot, 0, 2**16, ctypes.byref(ctypes.c_int()))].name
                for library, listed in ((before, bins.NUMERIC), (after, more))
            )
            assert now == ("TABLE_2048" if slot == -1 and 512 < entries <= 1024 else was)


def test_foreseen_kernels_are_those_that_fill_rows_without_columns_met_twice(device_code):
    """Rows whose products all meet columns of their own; wide windows may need a block with more room."""
    for products, span, _ in random_rows(2000):
        entries = min(products, span)
        symbolic = device_code.symbolic(ctypes.c_ulonglong(products), span, 1, 0)
        one = bins.SYMBOLIC[symbolic]
        if one.family in ("block", "hub", "few"):
            continue
        slot = 0 if one.family == "window" else -5 - SORTS.index(one.name) if one.family == "sort" else -1
        filled = bins.NUMERIC[device_code.numeric(4, entries, span, slot, 0, 2**17, ctypes.byref(ctypes.c_int()))].name
        assert filled in one.filled_by or (filled.startswith("BLOCK_") and one.family != "sort")


def test_columns_are_sorted_with_their_slots_where_a_word_holds_both():
    """A word of the sort holds a column's place in the window and a slot of the largest table."""
    log = max(one.slots for one in bins.TABLES).bit_length() - 1
    head = head_of(**{f"NUMERIC+{bins.NUMERIC_PLACES[one.name]}": 1 for one in bins.TABLES})
    for columns in (1, 2**20, 2 ** (32 - log) - 1, 2 ** (32 - log), 2**30, LONGEST):
        families = {one.family for one in choose.numeric(head, 1, columns, 3.0, 8, TABLE["H200"])}
        assert families == ({"hash"} if columns << log < 2**32 else {"wide_hash"})


def launches(rows, columns, nnz_a, products, entries, itemsize, device):
    """Yield the shape of every launch of a product of such sizes, whatever the bins of its rows."""
    mean_a, mean_b = nnz_a / max(rows, 1), products / max(nnz_a, 1)
    limit, words = choose.shared_limit(device), choose.bitmap_words(columns)
    yield choose.loop(max(rows, nnz_a))
    yield choose.lanes_each(rows, 3)
    yield choose.analysis(rows, mean_a)[1]
    yield choose.symbolic_groups(rows, nnz_a, device)[1]
    yield choose.symbolic_block_table(rows, device)
    head = head_of(**{f"SYMBOLIC+{bins.SYMBOLIC_PLACES['BLOCK']}": rows, "MAX_SPAN": columns})
    shape = choose.symbolic_block(rows, columns, device)
    assert (shape is None) == (4 * words > limit)
    if shape is None:
        used, shares, shape = choose.symbolic_block_global(head, 2**28, device)
        assert used == words and shape.grid[0] // shares * used * 4 <= max(2**28, 4 * words)
        assert shares == 1 or shape.grid[0] == shares * rows <= 2 * device.multiprocessors
    yield shape
    yield choose.scan(rows)
    room = choose.shared_limit(device, itemsize)
    need = {
        place: min(one.most_bytes or room, room) if one.whole else min(8 * words, room)
        for place, one in enumerate(bins.BLOCKS)
    }
    filled = {f"NUMERIC+{i}": rows for i in range(len(bins.NUMERIC))}
    filled[f"SYMBOLIC+{bins.SYMBOLIC_PLACES['FEW']}"] = rows
    head = head_of(**filled, **{f"MAX_BYTES+{i}": value for i, value in need.items()})
    chosen = list(choose.numeric(head, rows, columns, mean_b, itemsize, device))
    assert sorted(one.bin for one in chosen if one.bin is not None) == list(range(len(bins.NUMERIC))), (
        "one launch per bin"
    )
    for one in chosen:
        yield one.shape


def test_blocks_share_long_rows_where_these_are_few_or_one_is_a_hub_row():
    """A row that no block holds has a block for each part of its window; of many rows a block has all parts.

    A block that had all parts of a hub row among them would be waited for that many times as long.  Few rows have more
    parts than a block's room asks for, so that half of the device's blocks have one.
    """
    (place,) = (place for place, one in enumerate(bins.BLOCKS) if not one.whole)
    number, device = bins.NUMERIC_PLACES[bins.BLOCKS[place].name], TABLE["H200"]
    for rows, columns, parts, least in (
        (1, 10**6, 132, 32), (1, 31_000, 30, 1), (1, 1000, 1, 1), (40, 31_000, 3, 1), (100, 10**6, 32, 32),
        (10**5, 10**6, 1, 32),
    ):  # fmt: skip
        head = head_of(**{f"NUMERIC+{number}": rows, f"MAX_BYTES+{place}": 8 * 1000})
        sizes = head, 10**6, columns, 3.0, 8, device
        (one,) = choose.numeric(*sizes)
        assert (one.parts, one.shape.grid) == (parts, (rows * parts,))
        assert one.shape.shared_bytes // 8 * one.parts >= choose.bitmap_words(columns) or one.parts == 1
        (one,) = choose.numeric(*sizes, 1)
        assert (one.parts, one.shape.grid, one.shape.shared_bytes) == (1, (rows,), 8 * 1000)
        (one,) = choose.numeric(*sizes, choose.MOST_HUB_PARTS)
        assert one.parts == max(parts, least) and one.shape.grid == (rows * one.parts,)


#: Static shared memory of the kernels that also ask for dynamic: `choose.shared_limit` leaves room for it.
STATIC = {4: 16 * 1024, 8: 16 * 1024, 16: 20 * 1024}


@pytest.mark.parametrize("device", TABLE.values(), ids=list(TABLE))
def test_every_launch_fits_every_device(device):
    sizes = [1, 2, 31, 33, 127, 1000, 2**16 + 1, 10**6, 10**7, 10**8, 10**9, LONGEST]
    for rows in sizes:
        for columns in sizes:
            for mean in (0, 1, 5, 12, 40, 1000):
                nnz = min(rows * mean, LONGEST)
                products = nnz * min(mean, columns)
                for itemsize in (4, 8, 16):
                    for shape in launches(rows, columns, nnz, products, products, itemsize, device):
                        assert shape.refusal(device) is None, (shape, rows, columns, mean)
                        block = dataclasses.replace(shape, shared_bytes=shape.shared_bytes + STATIC[itemsize])
                        assert shape.shared_bytes <= 48 * 1024 or block.refusal(device) is None


def test_the_lists_of_two_bins_share_the_room_of_all_rows():
    rows = 1000
    for number in range(0, len(bins.NUMERIC), 2):
        for first, second in ((0, 0), (1000, 0), (0, 1000), (400, 600), (3, 5)):
            begin, other = choose.list_start(number, rows, first), choose.list_start(number + 1, rows, second)
            assert begin == number // 2 * rows and begin + first <= other
            assert other + second == (number // 2 + 1) * rows
    assert max(len(bins.NUMERIC), len(bins.SYMBOLIC)) <= choose.LISTS * 2


def test_products_are_listed_without_overflow():
    """Each group of lanes adds the same number to an entry of A until it is beyond the last, in 32 bits."""
    from spectile.tsparse.cuda.rows import lists

    for nnz_a in (1, 2**20, 2**26 + 1, LONGEST):
        shape = lists.making(nnz_a)
        step = shape.grid[0] * shape.threads // lists._READERS
        assert shape.refusal(TABLE["H200"]) is None
        assert LONGEST + step <= 2**31


def test_no_row_for_bitmaps_in_global_memory_needs_no_launch():
    """The identity of 2,000,000 columns: its bitmap would not fit in shared memory, and no row asks for one."""
    device = TABLE["H200"]
    assert choose.symbolic_block(2_000_000, 2_000_000, device) is None
    assert choose.symbolic_block_global(head_of(), 2**28, device) == (0, 1, None)


def test_the_kernel_for_blocks_is_launched_where_a_product_of_these_sizes_had_rows_for_it(monkeypatch):
    """At first, not after a product without such rows, and always once rows were left out, which count again."""
    from spectile.tsparse.cuda.rows import count

    launched = []
    monkeypatch.setattr(count, "side_by_side", lambda first, beside: [launch(0) for launch in (*first, *beside)])
    launches = object.__new__(count._Launches)
    families = ("window", "table", "block", "sort")
    launches._wanted = frozenset(families)
    launches._once_left_out, launches._seen = frozenset(), None
    made = {name: lambda stream=None, name=name: launched.append(name) for name in ("analyse", *families, "scan")}
    launches._analyse, launches._scan = made["analyse"], made["scan"]
    launches.hubs = CONSTANTS["HUBS_OPEN"]
    launches._kernels = launches._bound = {name: made[name] for name in families}
    counters = SimpleNamespace(stream=0)

    def product(**rows):
        launched.clear()
        assert not launches(counters, 0)
        assert (launched[0], launched[-1]) == ("analyse", "scan")
        again = launches.left_out(head_of(**{f"SYMBOLIC+{bin_[1:]}": count for bin_, count in rows.items()}))
        return sorted(launched[1:-1], key=families.index), again

    windows, tables, block, sorts = (
        f"b{bins.SYMBOLIC_PLACES[name]}" for name in ("WINDOW_8192", "TABLE_1024", "BLOCK", "SORT_128")
    )
    assert product(**{windows: 3, block: 2}) == (list(families), False)
    assert product(**{windows: 3}) == (["window", "block"], False)
    assert product(**{windows: 3}) == (["window"], False)
    assert product(**{windows: 3, sorts: 1}) == (["window"], True)
    assert product(**{windows: 3, sorts: 1}) == (["window", "sort"], False)
    assert product(**{tables: 1}) == (["window", "sort"], True)
    assert product() == (["table", "sort"], False)
    # What was left out once is launched from then on.
    assert product(**{windows: 1}) == (["table", "sort"], True)
    for _ in range(2):
        assert product() == (["window", "table", "sort"], False)


def test_kernels_hold_their_static_shared_memory():
    """What the sources declare beside the dynamic shared memory is what `choose` leaves free."""
    text = resources.files("spectile.tsparse.cuda").joinpath("rows/block.cu").read_text()
    threads = max(one.lanes[0] for one in bins.BLOCKS)
    assert "s_first[THREADS], s_last[THREADS]" in text and "VALUE s_factor[THREADS]" in text
    assert "u32 s_claims[CLAIMS]" in text and "CLAIMS = 2 * THREADS" in text
    for itemsize, most in STATIC.items():
        assert threads * (4 + 4 + itemsize + 4 + 8) + 4 * threads // 32 + 64 <= most


class Recorded:
    """Stands for a kernel, and holds its arguments against the parameters of the compiled code."""

    seen: ClassVar[set[str]] = set()
    parameters: ClassVar[dict[tuple[int, str], list[int]]] = {}

    def __init__(self, unit, name):
        self.unit, self.name = unit, name

    @classmethod
    def sizes(cls, unit, name):
        if (id(unit), name) not in cls.parameters:
            unoptimised = dataclasses.replace(unit, options=(*unit.options, "-G"))  # in a third of the time
            for entry in re.split(r"\.entry ", unoptimised.ptx("sm_90a").decode())[1:]:
                types = re.findall(r"\.param \.[usbf](\d+)", entry[: entry.index(")")])
                cls.parameters[id(unit), entry[: entry.index("(")].strip()] = [int(bits) // 8 for bits in types]
        return cls.parameters[id(unit), name]

    def bind(self, shape, *arguments):
        assert shape.refusal(TABLE["H200"]) is None
        passed = [argument.nbytes for argument in arguments]
        assert passed == self.sizes(self.unit, self.name), self.name
        self.seen.add(self.name)
        return lambda: None


@pytest.mark.parametrize("value", ["float32", "float64", "complex64", "complex128", "bool"])
def test_bound_launches_have_the_parameters_of_their_kernels(value, monkeypatch):
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed")
    from spectile.tsparse.cuda import factors, masked, plans
    from spectile.tsparse.cuda.rows import count, fill, lists

    for module in (plans, count, fill, lists, masked):
        monkeypatch.setattr(module, "kernel", Recorded)
    for module in (count, masked, fill):
        monkeypatch.setattr(module, "describe", lambda: TABLE["H200"])
    monkeypatch.setattr(Recorded, "seen", set())
    monkeypatch.setattr(fill.units, "prepare_numeric", lambda *_: None)
    one, other = "??" if value == "bool" else "fd"
    factors._bound_check(factors.units.CHECK[value, one], [(10, 20, 30)], 0, 1, True)
    factors._bound_check(factors.units.CHECK[value, other], [(10, 20, 30), (20, 0, 0)], 0, 0, False)
    factors._bound_compare(10, 20, 1)
    for counted, unit in ((one == 4, unit) for (kind, one), unit in units.MASKED.items() if kind == value):
        for stored in map(np.dtype, "?fdFD"):
            masked._Launches(unit, 1000, 30_000, 7000, counted, stored)
    A = types.Factor((1000, 500), None, np.empty(7000, np.int32), None)
    B = types.Factor((500, 900), None, np.empty(2000, np.int32), None)
    symbolic = count._Launches(value, 1000, A, types.Factor((500, 900), None, B.indices, None))
    for family in symbolic._kernels:
        symbolic.bind(family)
    filled = {f"NUMERIC+{i}": 5 for i in range(len(bins.NUMERIC))}
    filled[f"SYMBOLIC+{bins.SYMBOLIC_PLACES['FEW']}"] = 5
    for reuse in (False,) if value == "bool" else (False, True):
        for products in (5000, 100_000, 150_000, 10**6):
            for columns in (900, 2**25):
                wide = types.Factor((500, columns), None, B.indices, None)
                head = head_of(**filled, PRODUCTS=products, **{f"MAX_BYTES+{i}": 1000 for i in range(len(bins.BLOCKS))})
                phase = count.Phase(0, 1000, None, head, kept_words=100, scratch_bytes=2**28)
                fill.Launches(A, wide, phase, np.dtype(value), reuse)
    product = object.__new__(lists.ProductLists)
    product._entries, address = 77, np.zeros(1, np.uint64)  # as an address is packed
    known = {"numeric_list": (np.int32(77), *[address] * 2), "numeric_packed": (*[np.int32(77)] * 2, *[address] * 3)}
    for product._name, product._arguments in known.items():
        product._bind("float32" if value == "bool" else value)
    names = {
        *known,
        "prepare",
        "compare",
        "analyse",
        "place",
        "symbolic_groups",
        "symbolic_block_shared",
        "symbolic_block_table",
    }
    names |= {kernel.name for one in (*bins.NUMERIC, bins.FEW) for kernel in one.kernels}
    if value != "bool":
        names |= {"count_met", "list_pieces", "fill", "number", "compact"}
    assert Recorded.seen == names


@pytest.mark.parametrize("device", TABLE.values(), ids=list(TABLE))
@pytest.mark.parametrize("items", [1, 2**20, LONGEST])
def test_launches_of_lists_and_orders_fit_every_device(items, device):
    """With as many rows or entries as 32-bit loops walk."""
    from spectile.tsparse.cuda.rows import lists

    shapes = [lists.making(items), choose.loop(items)]
    shapes += [choose.lanes_each(items, log) for log in (0, 3, 5)]
    for columns, itemsize in ((1, 4), (2**40, 16)):
        pieces, summed, count, shape = choose.long_rows(items, columns, itemsize, device)
        shapes.append(shape)
        longest = [choose.LONG_ROW + 1, choose.PIECE, choose.PIECE + 1, 3 * choose.PIECE - 1, items]
        for length in (one for one in longest if choose.LONG_ROW < one <= items):
            rows, each = items // length, -(-length // choose.PIECE)
            assert rows * each <= pieces and (each == 1 or rows * each <= summed)
        assert 1 <= count <= columns and (count == 32 or summed * count * itemsize <= choose._SUM_BYTES)
    shapes += [choose.hub_long(items, device)]
    for shape in shapes:
        assert shape.refusal(device) is None
    step = choose.loop(items).grid[0] * choose.loop(items).threads
    assert items + step <= 2**31, "the last step of a loop stays within 32 bits"
