"""The cheapest of the kernels that may run, by what each is predicted to take."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


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

    def __repr__(self) -> str:
        return f"Candidate({_told(self)})"


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


def not_taken(kernel: str, candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return all candidates but the one of this name, none of which applies, and why tells what each would take.

    Examples
    --------
    >>> not_taken("a", [Candidate("a", 1e-3, "one"), Candidate("b", 2e-3, "two")])
    [Candidate(b (not taken: a 0.001 s (one), b 0.002 s (two)))]
    """
    listed = list(candidates)
    why = "not taken: " + ", ".join(_told(one) for one in listed)
    return [Candidate(one.kernel, None, why) for one in listed if one.kernel != kernel]


def _told(one: Candidate) -> str:
    if one.seconds is None:
        return f"{one.kernel} ({one.why})"
    seconds = "without a prediction" if math.isnan(one.seconds) else f"{one.seconds:.3g} s"
    return f"{one.kernel} {seconds} ({one.why})"


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Candidate]:
    """Return which kernel a call would take, from which candidates, and what each is predicted to take.

    Nothing is computed: ``explain(spamm, a, b, tau=1e-3)`` asks about the call ``spamm(a, b, tau=1e-3)``.

    Parameters
    ----------
    function : callable
        `spectile.spamm`, `spgemm`, `eigh`, `eigvalsh`, `kpm_dos` or `density_matrix`.
    *args, **kwargs
        Those of the call.

    Returns
    -------
    list of Candidate
        The cheapest first, those that do not apply last; each has a name, seconds (None where it does not apply, NaN
        where it is taken without a prediction) and why.

    Raises
    ------
    TypeError
        If the function is another, and as the call.
    ValueError
        As the call.

    Examples
    --------
    >>> import numpy as np, spectile
    >>> [one.kernel for one in spectile.explain(spectile.spamm, np.eye(64), np.eye(64), tau=1e-3, backend="cpu")]
    ['cpu']
    """
    module = sys.modules.get(getattr(function, "__module__", ""))
    known = getattr(module, "EXPLAINED", {})
    name = getattr(function, "__name__", None)
    if name not in known:
        raise TypeError(
            f"{function!r} has no candidates to tell: pass spectile.spamm, spgemm, eigh, eigvalsh, kpm_dos or "
            "density_matrix"
        )
    listed: list[Candidate] = known[name](*args, **kwargs)
    return sorted(
        listed, key=lambda one: math.inf if one.seconds is None else 0.0 if one.seconds != one.seconds else one.seconds
    )
