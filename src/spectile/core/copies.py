"""What :mod:`copy` and :mod:`pickle` make of results that hold more than numbers."""

from __future__ import annotations

from typing import Any, NoReturn

from spectile.core.options import kind_of


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
