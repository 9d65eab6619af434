"""The cheapest of the kernels that may run, by what each is predicted to take."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple


class Candidate(NamedTuple):
    """A kernel that may be chosen.

    Attributes
    ----------
    kernel : str
        Its name.
    seconds : float or None
        What it is predicted to take; None where it does not apply.
    why : str
        What the prediction is made of, or why it does not apply, in a few words.
    """

    kernel: str
    seconds: float | None
    why: str


def cheapest(system: str, candidates: Iterable[Candidate]) -> Candidate:
    """Return the candidate of least seconds, and tell the logger ``spectile.SYSTEM`` at DEBUG.

    Raises ValueError if none applies.

    Examples
    --------
    >>> cheapest("kpm", [Candidate("a", 2e-3, ""), Candidate("b", 1e-3, ""), Candidate("c", None, "too wide")]).kernel
    'b'
    """
    listed = list(candidates)
    possible = [one for one in listed if one.seconds is not None]
    if not possible:
        raise ValueError("no kernel applies: " + "; ".join(f"{one.kernel} ({one.why})" for one in listed))
    chosen = min(possible, key=lambda one: one.seconds or 0.0)
    logger = logging.getLogger(f"spectile.{system}")
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s of %s", chosen.kernel, ", ".join(_told(one) for one in listed))
    return chosen


def _told(one: Candidate) -> str:
    return f"{one.kernel} ({one.why})" if one.seconds is None else f"{one.kernel} {one.seconds:.3g} s ({one.why})"
