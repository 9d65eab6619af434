"""Statistics of timings, in the one place where medians, intervals, ratios and verdicts are made.

Records hold raw samples; everything here is derived from them.  Medians carry distribution-free 95 % intervals from
order statistics (Hoefler & Belli, SC 2015, rule 7); ratios of methods that were interleaved in one process are taken
round by round, so that slow drifts of clock and temperature cancel.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas

#: A difference below this relative size is called "same": it is of the order of run-to-run drift.
SAME_WITHIN = 0.02
#: Statuses of a frame's rows that passed their check: those of the latest record of a case, and those of an earlier
#: one, which stand beside a method that is not installed any more.
PASSED = ("ok", "beside")


class Interval(NamedTuple):
    """A median and its interval, in the unit of the samples."""

    median: float
    lo: float
    hi: float


class Ratio(NamedTuple):
    """Speed of one method relative to another: ``baseline time / method time``."""

    median: float
    lo: float
    hi: float
    verdict: str


def median_interval(samples: Sequence[float] | np.ndarray, confidence: float = 0.95) -> Interval:
    """Return the median of `samples` with its distribution-free interval.

    Parameters
    ----------
    samples : sequence of float, shape (n,)
        Independent samples; fewer than six give their range, which is what they support.
    confidence : float
        Coverage of the interval.

    Raises
    ------
    ValueError
        If `samples` is empty or holds a non-finite value.
    """
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    if ordered.size == 0 or not np.isfinite(ordered).all():
        raise ValueError("an interval needs at least one sample, all finite: give the raw samples of a finished method")
    n = ordered.size
    if n < 6:
        return Interval(float(np.median(ordered)), float(ordered[0]), float(ordered[-1]))
    lower, upper = _median_ranks(n, confidence)
    return Interval(float(np.median(ordered)), float(ordered[lower]), float(ordered[upper]))


@functools.cache
def _median_ranks(n: int, confidence: float) -> tuple[int, int]:
    """Return which two of `n` ordered samples enclose the median with `confidence`."""
    from scipy.special import bdtr  # scipy.stats takes a second to import, in each job

    # How many of n samples lie below the median is binomial; the interval has as many ranks to both sides.
    lower = max(int(np.searchsorted(bdtr(np.arange(n), n, 0.5), (1 - confidence) / 2)) - 1, 0)
    return lower, n - 1 - lower


def verdict(lo: float, hi: float, same_within: float = SAME_WITHIN) -> str:
    """Return ``faster``, ``slower``, ``same`` or ``unclear`` for a speed ratio whose interval is [`lo`, `hi`]."""
    if 1 - same_within <= lo and hi <= 1 + same_within:
        return "same"
    if lo > 1:
        return "faster"
    if hi < 1:
        return "slower"
    return "unclear"


def paired_ratio(baseline: Sequence[float], method: Sequence[float]) -> Ratio:
    """Return the speed-up of `method` over `baseline` from samples of the same interleaved rounds.

    Samples of unequal number (a slow method stopped earlier) are paired as far as they go.
    """
    rounds = min(len(baseline), len(method))
    ratios = np.asarray(baseline[:rounds], dtype=np.float64) / np.asarray(method[:rounds], dtype=np.float64)
    middle = median_interval(ratios)
    return Ratio(*middle, verdict(middle.lo, middle.hi))


def unpaired_ratio(baseline: Sequence[float], method: Sequence[float]) -> Ratio:
    """Return the speed-up of `method` over `baseline` from separate runs; the interval is the conservative one."""
    a, b = median_interval(baseline), median_interval(method)
    lo, hi = a.lo / b.hi, a.hi / b.lo
    return Ratio(a.median / b.median, lo, hi, verdict(lo, hi))


def speedups(frame: pandas.DataFrame, method: str, baseline: str) -> pandas.DataFrame:
    """Return the rows of `method` with the columns ``speedup, speedup_lo, speedup_hi, verdict`` against `baseline`.

    Only cases where both finished in the same record are kept; `frame` has one row for each method of a record.  One of
    the two may stand beside the other, of an earlier record than the case's latest one.
    """
    statuses, timed = frame["status"].to_numpy(), frame["time_s"].notna().to_numpy()
    methods, samples = frame["method"].to_numpy(), frame["samples_s"].to_numpy()
    keys = list(zip(frame["paper"], frame["case"], frame["record"], strict=True))
    base = {keys[p]: p for p in np.flatnonzero(timed & np.isin(statuses, PASSED) & (methods == baseline))}
    ours = [
        place
        for place in np.flatnonzero(timed & np.isin(statuses, PASSED) & (methods == method))
        if keys[place] in base and "ok" in (statuses[place], statuses[base[keys[place]]])
    ]
    rows = frame.iloc[np.array(ours, dtype=int)].copy()  # frames are wide: rows are taken once
    ratios = [paired_ratio(samples[base[keys[place]]], samples[place]) for place in ours]
    for index, name in enumerate(("speedup", "speedup_lo", "speedup_hi", "verdict")):
        rows[name] = [ratio[index] for ratio in ratios]
    return rows


def rates(frame: pandas.DataFrame) -> pandas.Series:
    """Return the TFLOP/s of each row: its floating-point operations over its time."""
    return frame["flops"] / frame["time_s"] / 1e12


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive `values`; NaN when there are none."""
    array = np.asarray(values, dtype=np.float64)
    return float(np.exp(np.log(array).mean())) if array.size else float("nan")
