"""The words for precisions, the same in every function: NumPy's names of dtypes, and short ones beside them."""

from __future__ import annotations

# Canonical word -> the short one that is also accepted.  Words without a short form are their own.
_SHORT = {"float16": "fp16", "float16c16": "fp16c16", "float32": "fp32", "float64": "fp64"}
_LONG = {short: word for word, short in _SHORT.items()}


def canonical(word: str) -> str:
    """Return the canonical word of either spelling, ``"float32"`` for ``"fp32"``; unknown words come back unchanged."""
    return _LONG.get(word, word)


def short(word: str) -> str:
    """Return the short word of either spelling, ``"fp32"`` for ``"float32"``; words without one come back unchanged."""
    return _SHORT.get(word, word)
