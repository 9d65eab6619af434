"""What a claim is about: a quantity of frame rows, and one number from many rows.

``config/README.md`` explains the words of the columns ``column`` and ``aggregate`` of ``config/claims.tsv`` to those
who write claims; :func:`of_rows` and :func:`aggregate` are what they mean.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from spectile_study.bench.stats import geometric_mean, rates, speedups
from spectile_study.papers import PAPERS

if TYPE_CHECKING:
    import pandas


class ClaimError(ValueError):
    """A row of the claims table that cannot be evaluated; the message names what is wrong and what to do."""


#: Specified peaks of devices in operations a second, of which ``share:<unit>`` is a share.
PEAKS = {
    # FP64 tensor cores; the EVD paper means 67 TFLOP/s of the H100 (SXM), which the H200's chip shares.
    "fp64": {"NVIDIA H200": 67e12, "NVIDIA H100 80GB HBM3": 67e12, "NVIDIA A100-SXM4-80GB": 19.5e12},
    # FP64 without tensor cores.
    "fp64_vector": {"NVIDIA H200": 33.5e12, "NVIDIA H100 80GB HBM3": 33.5e12, "NVIDIA A100-SXM4-80GB": 9.7e12},
}
#: Quantities that are made of times, where it matters which time a record holds.
_TIMED = ("time_s", "rate", "speedup", "gain", "share", "phase")


def of_rows(rows: pandas.DataFrame, column: str) -> pandas.DataFrame:
    """Return the finished rows that have the quantity `column`, with it as ``value``.

    Parameters
    ----------
    rows : DataFrame
        Rows of a frame.
    column : str
        A column of the frame; ``<column>/<column>``; ``rate`` (TFLOP/s); ``share:<unit>`` (the rate in per cent of
        the peak of its devices, :data:`PEAKS`); ``rate:<unit>:<peak>`` (the rate of a device with `peak` TFLOP/s that
        reaches the same share); ``speedup:<method>:<baseline>``; ``gain:<method>:<baseline>`` (per cent by which the
        method is faster); ``over:<column>:<method>:<baseline>`` (the method's value over the baseline's of the same
        case); ``phase:<name>`` (per cent of the time in that phase).  Methods may hold ``*``; of several baselines,
        ``<baseline>|<baseline>``, a speed-up is over the fastest of each case, and ``over`` has a row for each.
    """
    kind, _, names = column.partition(":")
    rows = rows.copy()  # a frame that was read has a block a column, to which pandas adds a column with a warning
    if kind in ("speedup", "gain"):
        method, _, baseline = names.partition(":")
        return _faster(rows, method, baseline, kind == "gain")
    done = rows[rows["status"] == "ok"]
    if kind == "over":
        return _over(done, *names.split(":"))
    if kind == "phase":
        return _phase(done, names)
    if kind in ("rate", "share"):
        done = done[done["time_s"].notna() & done["flops"].notna()]
        unit, _, paper = names.partition(":")
        devices = done["p_gpus"].clip(lower=1).fillna(1) if "p_gpus" in done else 1
        scale = float(paper or 100) / (done["device"].map(PEAKS[unit]) * devices / 1e12) if unit else 1.0
        return done.assign(value=rates(done) * scale).dropna(subset="value")
    over, _, under = column.partition("/")
    if over not in done or (under and under not in done):
        return done.iloc[:0].assign(value=None)
    value = done[over] if not under else done[over] / done[under]
    return done.assign(value=value).dropna(subset="value")


def _faster(rows: pandas.DataFrame, pattern: str, baseline: str, gain: bool) -> pandas.DataFrame:
    import pandas

    methods = [method for method in rows["method"].unique() if fnmatch.fnmatchcase(method, pattern)]
    found = [speedups(rows, method, other) for method in methods for other in baseline.split("|")]
    found = [each for each in found if len(each)]
    if not found:
        return rows.iloc[:0].assign(value=None)
    both = pandas.concat(found).sort_values("speedup", kind="stable").drop_duplicates(["case", "method"]).sort_index()
    return both.assign(value=100 * (both["speedup"] - 1) if gain else both["speedup"])


def _over(done: pandas.DataFrame, column: str, method: str, baselines: str) -> pandas.DataFrame:
    import pandas

    if column not in done:
        return done.iloc[:0].assign(value=None)
    above, found = done[done["method"] == method], []
    for baseline in baselines.split("|"):
        below = done[done["method"] == baseline].drop_duplicates("case").set_index("case")[column]
        found.append(above.assign(value=above[column] / above["case"].map(below)))
    return pandas.concat(found).dropna(subset="value")


def _phase(done: pandas.DataFrame, name: str) -> pandas.DataFrame:
    if "v_phases" not in done:
        return done.iloc[:0].assign(value=None)
    has = [isinstance(names, list | np.ndarray) and name in list(names) for names in done["v_phases"]]
    done = done[np.array(has, dtype=bool)]
    shares = [
        100 * float(times[list(names).index(name)]) / float(np.sum(times))
        for names, times in zip(done["v_phases"], done["v_phases_s"], strict=True)
    ]
    return done.assign(value=shares)


def time_of(rows: pandas.DataFrame, column: str) -> str:
    """Return which time `column` is made of: ``as called``, ``device``, or nothing where it is not made of times."""
    if not column.startswith(_TIMED) or not len(rows):
        return ""
    studies = rows["p_study"] if "p_study" in rows else [""] * len(rows)
    called = {is_as_called(*key) for key in zip(rows["paper"], studies, rows["method"], strict=True)}
    return " and ".join("as called" if each else "device" for each in sorted(called, reverse=True))


def is_as_called(paper: str, study: str, method: str) -> bool:
    """Whether the time of a paper's method is that of a call, the host's work included (``docs/records.md``)."""
    return any(fnmatch.fnmatchcase(f"{study}/{method}", pattern) for pattern in PAPERS[paper].as_called)


def aggregate(rows: pandas.DataFrame, how: str) -> float:
    """Return one number from the column ``value`` of `rows`.

    Parameters
    ----------
    rows : DataFrame
        At least one row.
    how : str
        ``only`` (there is one row), ``median``, ``mean``, ``min``, ``max``, ``geomean``;
        ``precision:<condition>`` and ``recall:<condition>``, of the prediction that rows which meet the condition have
        a value above 1 (NaN where no prediction could miss); ``of:<count>``, how many of so many have a value above 1;
        ``times:<condition>:<condition>``, the median of the rows that meet the first over that of those that meet the
        second; or a shape along a column, :data:`SHAPES`, as ``<shape>:<column>`` or ``<shape>:<column>:<column>``,
        where the last one tells curves apart and the worst curve counts.

    Raises
    ------
    ClaimError
        If `how` is not known, or there are several rows and `how` says there is one.
    """
    values = rows["value"].astype(float).to_numpy()
    kind, _, names = how.partition(":")
    if how == "only":
        if len(values) != 1:
            raise ClaimError(f"finds {len(values)} rows: narrow its filter or give an aggregate")
        return float(values[0])
    if how in _AGGREGATES:
        return float(_AGGREGATES[how](values))
    if kind in ("precision", "recall"):
        return _score(rows, kind, names)
    if kind == "times":
        return _quotient(rows, *names.split(":"))
    if kind == "of":
        return float(names) * float((values > 1).mean())
    if kind not in SHAPES:
        known = ", ".join((*_AGGREGATES, "precision:", "recall:", "of:", "times:", *(f"{shape}:" for shape in SHAPES)))
        raise ClaimError(f"has the aggregate {how!r}: choose one of only, {known}")
    across, _, by = names.partition(":")
    curves = list(_curves(rows, across, by))
    if not curves:  # as where a run has one size, or one GPU, of several
        return float("nan")
    shape, worst = SHAPES[kind]
    return float(worst(shape(*curve) for curve in curves))


_AGGREGATES: dict[str, Callable[..., float]] = {
    "median": np.median,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "geomean": geometric_mean,
}


def _curves(rows: pandas.DataFrame, across: str, by: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield abscissas and values of each curve with two points at least; several rows at one abscissa are averaged."""
    for _, part in rows.groupby(by) if by else [("", rows)]:
        curve = part.assign(value=part["value"].astype(float)).groupby(across)["value"].mean()
        if len(curve) > 1:
            yield curve.index.to_numpy(dtype=float), curve.to_numpy()


def _smallest_step(_: np.ndarray, values: np.ndarray) -> float:
    return float(np.min(values[1:] / values[:-1]))


def _smallest_fall(_: np.ndarray, values: np.ndarray) -> float:
    return float(np.min(values[:-1] / values[1:]))


def _last_step(_: np.ndarray, values: np.ndarray) -> float:
    return float(values[-1] / values[-2])


def _whole_step(_: np.ndarray, values: np.ndarray) -> float:
    return float(values[-1] / values[0])


def _crossing(across: np.ndarray, values: np.ndarray) -> float:
    below = np.flatnonzero(values <= 1)
    first = below[-1] + 1 if len(below) else 0
    return float(across[first]) if first < len(across) else np.inf


def _rank(across: np.ndarray, values: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(across, values).statistic)


#: Shapes of a curve: the number that describes one, and which of several curves counts.
SHAPES: dict[str, tuple[Callable[[np.ndarray, np.ndarray], float], Callable[..., float]]] = {
    "grows": (_smallest_step, min),  # least quotient of a value and the one before it
    "falls": (_smallest_fall, min),  # least quotient of a value and the one after it
    "saturates": (_last_step, max),  # last value over the one before it
    "rise": (_whole_step, min),  # last value over the first
    "follows": (_rank, min),  # Spearman's rank correlation
    "spread": (lambda _, values: float(np.max(values) / np.min(values)), max),  # largest value over the smallest
    "crosses": (_crossing, max),  # abscissa from which on the value exceeds 1
    "highest": (lambda across, values: float(across[np.argmax(values)]), max),  # abscissa of the largest value
    "lowest": (lambda across, values: float(across[np.argmin(values)]), max),  # abscissa of the smallest value
}


def _quotient(rows: pandas.DataFrame, over: str, under: str) -> float:
    numerator, divisor = (rows.loc[meets(rows, condition), "value"].astype(float) for condition in (over, under))
    return float(numerator.median() / divisor.median())


def _score(rows: pandas.DataFrame, kind: str, condition: str) -> float:
    predicted, faster = meets(rows, condition), rows["value"].to_numpy(dtype=float) > 1
    of, rest = (predicted, faster) if kind == "precision" else (faster, predicted)
    if rest.all():
        return float("nan")  # no prediction could miss
    return float((predicted & faster).sum() / of.sum()) if of.any() else float("nan")


def meets(frame: pandas.DataFrame, condition: str) -> np.ndarray:
    """Return which rows meet ``column=value``, ``column>value`` or ``column<value``; numbers compare to nine digits.

    The column may be a quotient, ``column/column``, and the value one of several words, ``word|word``; conditions are
    joined by ``&``.  No row meets a condition on a column that the frame lacks.

    Raises
    ------
    ClaimError
        If the condition has none of the three signs.
    """
    import pandas

    first, joined, rest = condition.partition("&")
    if joined:
        return meets(frame, first) & meets(frame, rest)
    sign = next((each for each in condition if each in "=<>"), None)
    if sign is None:
        raise ClaimError(f"the condition {condition!r} lacks '=': write column=value")
    name, _, wanted = condition.partition(sign)
    over, _, under = name.partition("/")
    if over not in frame or (under and under not in frame):
        return np.zeros(len(frame), dtype=bool)
    try:
        number = float(wanted)
    except ValueError:
        return frame[name].astype(str).isin(wanted.split("|")).to_numpy()
    numeric = pandas.to_numeric(frame[over], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    if under:
        numeric = numeric / pandas.to_numeric(frame[under], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    if sign == "=":
        return np.isclose(numeric, number, rtol=1e-9, atol=0)
    return numeric > number if sign == ">" else numeric < number
