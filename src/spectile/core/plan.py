"""Launches that repeat with other addresses and numbers: set by name, in the packed structs that the kernels read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.core.tensor_map import replace_address


class Bound:
    """What changes from run to run of launches whose other parameters stay, by name.

    Each name is a word of 8 bytes, an address or a float64, and lies in any number of fields of any number of structs.
    An argument of a launch that is a single address is a struct of one field.

    Parameters
    ----------
    names : sequence of str
        What changes, in the order in which :meth:`set` takes values.

    Examples
    --------
    >>> import numpy as np
    >>> first = np.zeros((), [("a", "u8"), ("rows", "i8"), ("tau", "f8")])
    >>> second = np.zeros((), [("task", [("matrix", "u8")], (2,))])
    >>> bound = Bound(["a", "b", "tau"])
    >>> bound.add(first, {"a": "a", "tau": "tau"})
    >>> bound.add(second, {"task.0.matrix": "a", "task.1.matrix": "b"})
    >>> bound.set((4096, 8192, 0.5))
    >>> first.item(), second["task"]["matrix"].tolist()
    ((4096, 0, 0.5), [4096, 8192])
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(names)}
        self._slots: list[tuple[Any, int, int]] = []
        self._maps: list[_Map] = []

    def add(self, struct: Any, fields: Mapping[str, str], inside: str = "") -> None:
        """Let fields of a struct have what their names have at each run.

        Parameters
        ----------
        struct : numpy record
            Of whole words of 8 bytes; its launches read it where it lies.
        fields : mapping of str to str
            Names by the paths of their fields, through structs and arrays: ``"task.0.matrix"``.  What the struct has no
            field for is left out, so that structs of several kernels may share a mapping.
        inside : str, optional
            Path to where those of `fields` begin.
        """
        flat = struct.reshape(1).view(np.uint64)
        integers, floats = memoryview(flat), memoryview(flat.view(np.float64))
        start, kind = place(struct.dtype, inside)
        for path, name in fields.items():
            if path.partition(".")[0] not in (kind.fields or ()):
                continue
            offset, field = place(kind, path)
            if (start + offset) % 8 or field.itemsize != 8:
                raise ValueError(f"the field {path} is no word of 8 bytes: only words are set by name")
            words = floats if field.kind == "f" else integers
            self._slots.append((words, (start + offset) // 8, self._numbers[name]))

    def add_map(self, encoded: int, name: str, pointer: int) -> None:
        """Let the tensor map at a host address, now of memory at `pointer`, begin at what a name has at each run."""
        self._maps.append(_Map(encoded, self._numbers[name], pointer))

    def set(self, values: Sequence[Any]) -> None:
        """Set what changes, all values in the order of the names."""
        for words, where, number in self._slots:
            words[where] = values[number]
        for map_ in self._maps:
            pointer = values[map_.number]
            if pointer != map_.pointer:
                replace_address(map_.encoded, pointer)
                map_.pointer = pointer


@dataclass(slots=True)
class _Map:
    """A tensor map inside a struct."""

    encoded: int
    number: int
    pointer: int


def place(dtype: np.dtype[Any], path: str) -> tuple[int, np.dtype[Any]]:
    """Return the offset and the dtype of a field, given the path to it through structs and arrays."""
    offset = 0
    for part in path.split(".") if path else ():
        if dtype.subdtype is not None:
            dtype = dtype.subdtype[0]
            offset += int(part) * dtype.itemsize
        else:
            assert dtype.fields is not None
            dtype, start = dtype.fields[part][:2]
            offset += start
    return offset, dtype
