"""The names of precisions, the same in every function: NumPy's names of dtypes, and short forms of them."""

from __future__ import annotations

# Canonical name -> the short form that is also accepted.
_SHORT = {"float16": "fp16", "float16c16": "fp16c16", "float32": "fp32", "float64": "fp64"}
_LONG = {short: word for word, short in _SHORT.items()}


def canonical(word: str) -> str:
    """Return the canonical form of a name, ``"float32"`` for ``"fp32"``; unknown names are returned unchanged."""
    return _LONG.get(word, word)


def short(word: str) -> str:
    """Return the short form of a name, ``"fp32"`` for ``"float32"``; names without one are returned unchanged."""
    return _SHORT.get(word, word)
