"""The cheapest candidate, and whole numbers of pieces."""

import logging

import numpy as np
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


def test_calls_are_explained_by_the_function_and_its_arguments():
    import scipy.sparse as sp

    import spectile
    from spectile.kpm.operators.lattices import graphene

    x, s = np.eye(64), sp.eye_array(64, format="csr")
    for call in (
        (spectile.spamm, (x, x), {"tau": 1e-3}),
        (spectile.spgemm, (s, s), {}),
        (spectile.kpm_dos, (graphene(4, 4), 64), {"num_vectors": 3}),
        (spectile.eigh, (x,), {"subset_by_index": (0, 3)}),
        (spectile.eigvalsh, (x, x), {}),
    ):
        function, arguments, keywords = call
        listed = spectile.explain(function, *arguments, **keywords, backend="cpu")
        assert listed and all(isinstance(one, Candidate) for one in listed)
    with pytest.raises(TypeError, match="has no candidates to tell"):
        spectile.explain(spectile.tridiagonalize, x)
    with pytest.raises(ValueError, match="give exactly one of tau"):
        spectile.explain(spectile.spamm, x, x)


def test_what_does_not_apply_comes_last(monkeypatch):
    import spectile

    listed = [Candidate("a", None, "too wide"), Candidate("b", 2.0, ""), Candidate("c", 1.0, "")]
    listed.append(Candidate("d", float("nan"), "the only one that is asked"))
    monkeypatch.setattr("spectile.kpm.api.EXPLAINED", {"kpm_dos": lambda: listed})
    told = spectile.explain(spectile.kpm_dos)
    assert [one.kernel for one in told] == ["d", "c", "b", "a"]
    assert "d without a prediction" in repr(told) and "nan" not in repr(told) and "c 1 s" in repr(told)
