"""The cheapest candidate, and whole numbers of pieces."""

import logging

import pytest

from spectile.core.choice import Candidate, cheapest
from spectile.core.tiling import ceil_div

SOME = [Candidate("slow", 2e-3, "bytes"), Candidate("wide", None, "rows too long"), Candidate("fast", 1e-3, "bytes")]


def test_the_cheapest_that_applies_is_chosen_and_told(caplog):
    with caplog.at_level(logging.DEBUG, "spectile.kpm"):
        assert cheapest("kpm", iter(SOME)).kernel == "fast"
    (record,) = caplog.records
    assert record.name == "spectile.kpm" and all(one.kernel in record.getMessage() for one in SOME)


def test_the_first_of_equals_is_chosen_and_nothing_is_told_without_a_listener(caplog):
    with caplog.at_level(logging.INFO, "spectile"):
        assert cheapest("kpm", [Candidate("a", 0.0, ""), Candidate("b", 0.0, "")]).kernel == "a"
    assert not caplog.records


def test_no_candidate_is_an_error_that_says_why():
    with pytest.raises(ValueError, match="rows too long"):
        cheapest("kpm", SOME[1:2])


@pytest.mark.parametrize("size", [1, 3, 32])
def test_pieces_hold_all_items_and_none_is_empty(size):
    for count in range(200):
        pieces = ceil_div(count, size)
        assert (pieces - 1) * size < count <= pieces * size or count == pieces == 0
