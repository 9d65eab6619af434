"""What :mod:`copy` and :mod:`pickle` make of results that hold more than numbers."""

from __future__ import annotations

from typing import Any, NoReturn

from spectile.core.options import kind_of
from spectile.core.pointers import read_only


class Fixed:
    """What later results are made of: its public arrays of NumPy are read-only, in copies and from pickles as well."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            if isinstance(value, dict):
                value = {key: read_only(one) for key, one in value.items()}
            value = read_only(value)
        object.__setattr__(self, name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            Fixed.__setattr__(self, name, value)


class Unpickled:
    """What is bound to where it was made: :mod:`pickle` raises TypeError, which says what to do."""

    _instead: str

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise self._refusal("pickled")

    def _refusal(self, done: str) -> TypeError:
        return TypeError(f"{kind_of(self)} is not {done}: {self._instead}")


class Uncopied(Unpickled):
    """What there is one of: :mod:`copy` raises TypeError as well."""

    def __copy__(self) -> NoReturn:
        raise self._refusal("copied")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise self._refusal("copied")
