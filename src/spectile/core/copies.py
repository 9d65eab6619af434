"""What :mod:`copy` and :mod:`pickle` make of results that hold more than numbers."""

from __future__ import annotations

from typing import Any, NoReturn


class Uncopied:
    """What is bound to where it was made: :mod:`copy` and :mod:`pickle` raise TypeError, which says what to do."""

    _instead: str

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} is neither copied nor pickled: {self._instead}")
