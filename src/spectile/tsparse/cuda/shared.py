"""What the kernels and the host share, declared here once: `HEADER` is compiled before the sources of every unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from spectile.tsparse.cuda import bins
from spectile.tsparse.types import BY_ENTRY

CONSTANTS = {
    "ANALYSIS_THREADS": 512,  # threads of a block of the analysis
    "SCAN_ROWS": 2048,  # rows that a block of the prefix scan takes
    "BLOCK_PRODUCTS": 16384,  # products from which a block gathers the row, however narrow it is
    # Steps of a block from which a row is a hub row (`choose.row_steps`), each an entry of A or so many products.
    "HUB_STEPS": 16384,
    "STEP_PRODUCTS": 32,
    "SHORT_B": 24,  # mean length of rows of B up to which a thread of a block takes a product of any of them
    "SHORT_STEP": 8,  # entries of A that meet such rows, and products of these, in the time of one step
    # What the scan knows of hub rows: nothing, that their products are sorted, or that they are rows for blocks.
    "HUBS_OPEN": 0,
    "HUBS_SORTED": 1,
    "HUBS_IN_BLOCKS": 2,
    "MOST_KEPT": 2**31 - 2**10,  # words of kept bitmaps that a slot can name, and add 256 to
    "EMPTY": -(2**20),  # exponent of a row or column without a nonzero
    # Mean lengths of the rows of B from which more lanes take a row.
    "MIDDLE_MEAN": 10,
    "LONG_MEAN": 24,
    "GROUP_THREADS": bins.GROUP_THREADS,
    "MASK_PIECE": 64,  # entries of a row of a mask that a warp takes, at most
    # Products that it meets, about, as long as all warps have so many pieces; those of a piece at least and at most.
    "MASK_SHARES": 4,
    "MASK_LEAST": 1024,
    "MASK_PRODUCTS": 16384,
    # Of a block, of which a multiprocessor has so many, by their registers; and where they count.
    "MASK_WARPS": 4,
    "MASK_BLOCKS": 9,
    "COUNTING_WARPS": 8,
    "COUNTING_BLOCKS": 6,
    "MASK_TURNS": 16,  # in which a warp takes pieces, about
    "MASK_BLOCK": 1024,  # entries, and at most products, of a block that counts
    "MASK_BLOCK_PRODUCTS": 2**18,
    "MASK_LONG": 24,  # mean entries of rows of B from which all lanes of a warp take one after the other
    "MASK_SEARCH": 16,  # products that the search for an entry in a row of B costs
    "FEW_MOST": bins.FEW.holds["products"],
    "PITCH": bins.PITCH,
    "THREAD_LENGTH": 128,  # entries of A that a thread walks for a row
    "BLOCK_TABLE": next(one.words for one in bins.SYMBOLIC if one.family == "block_table"),
    # Columns of a window that a word holds beside the number of a product.
    "SORTED_MOST": bins.SORTS[-1].holds["products"],
    "SORTED_SPAN": 2**32 // max(one.holds["products"] for one in bins.SORTS),
}
#: Products or columns of a row up to which a group of lanes counts it.
GROUPED = max(one.holds["entries"] for one in bins.SYMBOLIC if one.family == "table")

_WIDE = 2  # words of a counter of 64 bits
#: Words of the head: counters that a call clears before and the host reads between the phases.
_WORDS = {
    "SYMBOLIC": len(bins.SYMBOLIC),  # rows in each bin of the symbolic phase
    "NUMERIC": len(bins.NUMERIC),  # rows in each bin of the numeric phase
    "FLAGS": 3,  # bad input of A, of B and of the mask
    "MAX_SPAN": 1,  # widest window among the rows of the symbolic block bin
    "MAX_BYTES": len(bins.BLOCKS),  # most shared memory of a row of each block bin
    "TICKET": 1,  # of the prefix scan
    "ENDED": 1,  # blocks of it
    "PRODUCTS": _WIDE,
    "ENTRIES": _WIDE,  # stored entries of C
    "DESCENTS": 3,  # places of these where a column is not above the one before, less those at a row's start
    "KEPT": _WIDE,  # words of the bitmaps that the rows of the window bins keep
    "HUB_PRODUCTS": _WIDE,  # products of the hub rows
    "HUB_ENTRIES": 1,  # entries of A in them
    "MOST_STEPS": 1,  # of a hub row
    "LONG_PIECES": 1,  # of long rows that meet a dense matrix
    "LONG_SUMS": 1,  # of these pieces that are parts of a sum
    "MASK_PIECES": 2,  # of the rows of a mask, for warps and for blocks
    "MASK_TAKEN": 2,  # of these
}


def _places() -> tuple[dict[str, int], int]:
    """Return the first word of each counter, and the words of the head, which the states of the scan follow."""
    places, at = {}, 0
    for name, words in _WORDS.items():
        places[name] = at = at + (at % 2 if words == _WIDE else 0)  # two are read as a word of 64 bits
        at += words
    return places, at + at % 2


HEAD, HEAD_WORDS = _places()
#: What the check of a factor finds, a bit each.
FLAGS = {
    "BAD_INDEX": 1,
    "NOT_FINITE": 4,
    "HALF_RANGE": 8,
    "FLOAT_RANGE": 16,
    "LOST": 32,
    "BAD_POINTER": 64,
    "OTHER_PATTERN": 128,
}
UNSORTED = 2  # the host's own flag: the number of descents is not 0
ROUNDING = {"KEEP": 0, "TF32": 1, "HALF": 2}
#: The range of entries for float16, what the largest of a scaled row is below, and below what scaled ones are lost.
_HALF = {"HALF_LEAST": BY_ENTRY.least, "HALF_MOST": BY_ENTRY.most, "HALF_LOST": BY_ENTRY.lost}


def header(symbolic: Sequence[bins.Bin] = bins.SYMBOLIC, numeric: Sequence[bins.Bin] = bins.NUMERIC) -> str:
    """Return the text that tells the kernels what this module and `bins` declare.

    Of each family whose bins hold a row by its numbers there is a function, for example ``numeric_table_bin(entries)``,
    that returns the first bin which holds a row, or NO_BIN.
    """
    return "\n".join(
        (
            "namespace {",
            *(f"constexpr int {name} = {value};" for name, value in CONSTANTS.items()),
            *(f"constexpr double {name} = {value.hex()};" for name, value in _HALF.items()),
            f"constexpr int HALF_TOP = {BY_ENTRY.top}, HEAD_WORDS = {HEAD_WORDS};",
            *(_enum(name, values) for name, values in (("Head", HEAD), ("Flag", FLAGS), ("Rounding", ROUNDING))),
            "constexpr int NO_BIN = -1;",
            *_bins("SYMBOLIC", symbolic),
            *_bins("NUMERIC", numeric),
            *(f"constexpr int SYMBOLIC_{one.name}_WORDS = {one.words};" for one in symbolic if one.family == "window"),
            *(f"constexpr int {family.upper()}_WARP_WORDS = {_warp_words(symbolic, family)};" for family in _WARPS),
            *(_each(family, symbolic) for family in ("table", "sort")),
            *(f"constexpr int {one.name}_BYTES = {one.most_bytes};" for one in bins.BLOCKS if one.most_bytes),
            "}",
        )
    )


_WARPS = ("window", "table", "sort")  # families whose rows go to groups of lanes


def _enum(name: str, values: dict[str, int]) -> str:
    return f"enum {name} {{ {', '.join(f'{key} = {value}' for key, value in values.items())} }};"


def _bins(phase: str, listed: Sequence[bins.Bin]) -> Iterator[str]:
    """Yield the names of the bins of a phase, and what finds the bin of a row."""
    yield _enum(f"{phase.title()}Bin", {f"{phase}_{one.name}": place for place, one in enumerate(listed)})
    yield f"constexpr int {phase}_BINS = {len(listed)};"
    for family in dict.fromkeys(one.family for one in listed):
        members = [one for one in listed if one.family == family]
        first = next(place for place, one in enumerate(listed) if one is members[0])
        yield f"constexpr int {phase}_FIRST_{family.upper()} = {first}, {phase}_{family.upper()}S = {len(members)};"
        if measures := tuple(members[0].holds):
            yield _first_that_holds(phase, family, members, measures)


def _first_that_holds(phase: str, family: str, members: Iterable[bins.Bin], measures: tuple[str, ...]) -> str:
    lines = [
        f"__device__ __forceinline__ int {phase.lower()}_{family}_bin({', '.join(f'int {one}' for one in measures)}) {{"
    ]
    for one in members:
        held = " && ".join(f"{measure} <= {one.holds[measure]}" for measure in measures)
        lines.append(f"    if ({held}) return {phase}_{one.name};")
    return "\n".join((*lines, "    return NO_BIN;", "}"))


def _warp_words(symbolic: Sequence[bins.Bin], family: str) -> int:
    """Return the words of shared memory of a warp, whose groups of lanes count a row of the family each."""
    members = (one for one in symbolic if one.family == family)
    return max(32 // one.lanes[0] * bins.padded(one.words, one.lanes[0]) for one in members)


def _each(family: str, symbolic: Sequence[bins.Bin]) -> str:
    """Return a macro that calls another with bin, lanes and the logarithm of the words of each bin, long rows first."""
    members = [one for one in reversed(symbolic) if one.family == family]
    calls = (f"DO(SYMBOLIC_{one.name}, {one.lanes[0]}, {one.words.bit_length() - 1})" for one in members)
    return f"#define EACH_SYMBOLIC_{family.upper()}(DO) {' '.join(calls)}"


HEADER = header()
