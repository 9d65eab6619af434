"""What repeated launches set by name lies where their structs have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spectile.core import plan
from spectile.core.plan import Bound

TASK = np.dtype([("matrix", "u8"), ("rows", "i4"), ("norms", "u8")], align=True)
STRUCT = np.dtype([("map", "V128"), ("tasks", TASK, (2,)), ("tau", "f8"), ("size", "i8"), ("out", "u8")], align=True)


def test_values_lie_where_the_structs_have_their_fields() -> None:
    struct, nested = np.zeros((), STRUCT), np.zeros((), np.dtype([("head", "u8", (3,)), ("fields", STRUCT)]))
    bound = Bound(["a", "b", "value", "out"])
    fields = {
        "tasks.0.matrix": "a",
        "tasks.1.matrix": "b",
        "tasks.1.norms": "out",
        "tau": "value",
        "out": "out",
        "none": "a",
    }
    bound.add(struct, fields)
    bound.add(nested, fields, inside="fields")
    for values in ((1, 2, 0.5, 2**63 + 1), (7, 8, 1e300, 2**64 - 1)):
        bound.set(values)
        for one in (struct, nested["fields"]):
            assert [int(x) for x in one["tasks"]["matrix"]] == list(values[:2])
            assert [int(x) for x in one["tasks"]["norms"]] == [0, values[3]]
            assert float(one["tau"]) == values[2] and int(one["out"]) == values[3]
            # What is not named stays.
            assert int(one["size"]) == 0 and not one["tasks"]["rows"].any() and not np.any(nested["head"])


def test_only_words_are_set_by_name() -> None:
    bound = Bound(["a"])
    with pytest.raises(ValueError, match=r"tasks\.0\.rows is no word"):
        bound.add(np.zeros((), STRUCT), {"tasks.0.rows": "a"})
    with pytest.raises(KeyError):
        bound.add(np.zeros((), STRUCT), {"out": "b"})


def test_tensor_maps_move_where_their_memory_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[Any] = []
    monkeypatch.setattr(plan, "replace_address", lambda *arguments: moved.append(arguments))
    bound = Bound(["a", "b"])
    bound.add_map(64, "b", 16)
    for b in (16, 32, 32, 16):
        bound.set((0, b))
    assert moved == [(64, 32), (64, 16)]
