"""The row pointer of C, and what is told to the host after it, by the kernel compiled for the host."""

import numpy as np
import pytest

from spectile.tsparse.cuda import bins, choose, units
from spectile.tsparse.cuda.counters import Head
from spectile.tsparse.cuda.shared import CONSTANTS, HEAD, HEAD_WORDS

from ...cuda_on_host import compiled, launch

CALL = 12345


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("place"), units.PLACE["float64"])


def placed(library, entries, hubs, counters=()):
    """Return the row pointer, the head, and what was told, of rows with so many entries in narrow windows."""
    rows = len(entries)
    words, states = np.zeros(HEAD_WORDS, np.int32), np.zeros(-(-rows // CONSTANTS["SCAN_ROWS"]), np.uint64)
    for place, value in dict(counters).items():
        words[place] = value
    told, indptr = np.full(HEAD_WORDS + 1, -7, np.int32), np.full(rows + 1, -1, np.int32)
    lists, slots = np.full(choose.LISTS * rows, -1, np.int32), np.full(rows, -1, np.int32)
    sizes, span = (np.int32(rows), np.int32(2**16)), np.full(rows, 2**20, np.int32)
    arrays = entries, span, slots, indptr, lists, words, states
    launch(library, "place", choose.scan(rows), *sizes, *arrays, np.uint64(hubs), told, np.uint64(CALL))
    return indptr, words, told


@pytest.mark.parametrize("rows", [1, CONSTANTS["SCAN_ROWS"], CONSTANTS["SCAN_ROWS"] + 1, 3 * CONSTANTS["SCAN_ROWS"]])
def test_the_counters_are_told_when_all_blocks_have_ended(library, rows):
    entries = np.random.default_rng(rows).integers(0, 200, rows).astype(np.int32)
    indptr, words, told = placed(library, entries, CONSTANTS["HUBS_OPEN"])
    assert np.array_equal(indptr, [0, *np.cumsum(entries)])
    assert told[-1] == CALL and np.array_equal(told[:-1], words)
    head = Head(told[:-1].tobytes())
    tables = {one.name: head.bins()[bins.NUMERIC_PLACES[one.name]] for one in bins.TABLES}
    assert head.wide("ENTRIES") == entries.sum() and sum(tables.values()) == np.count_nonzero(entries)


HUB = HEAD["SYMBOLIC"] + bins.SYMBOLIC_PLACES["HUB"]


@pytest.mark.parametrize("place", [HEAD["FLAGS"], HEAD["DESCENTS"] + 1, HUB])
def test_what_ends_a_count_is_told_too(library, place):
    """A fault of a factor, and hub rows of which it is not known how they are counted."""
    entries = np.ones(CONSTANTS["SCAN_ROWS"] + 1, np.int32)
    indptr, words, told = placed(library, entries, CONSTANTS["HUBS_OPEN"], {place: 4})
    assert told[-1] == CALL and np.array_equal(told[:-1], words) and told[place] == 4
    assert (indptr == -1).all() and not words[HEAD["ENTRIES"]]
    if place == HUB:
        indptr, _, told = placed(library, entries, CONSTANTS["HUBS_IN_BLOCKS"], {place: 4})
        assert told[-1] == CALL and indptr[-1] == len(entries)
