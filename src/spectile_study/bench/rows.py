"""What a claim is made of: rows of a frame, a quantity of them, and one number, in this order.

``rows.at(p_study="step").speedup("aug_spmmv", "naive").median()`` is such a chain.  :class:`Rows` narrows and takes a
quantity, :class:`Values` makes one number of it, and :class:`Ours` is that number with the rows that it is made of, so
that what is said of it (cases, records, which time, why there is none) comes from the very same rows.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from spectile_study.bench.names import ClaimError, Names
from spectile_study.bench.stats import PASSED, geometric_mean, paired_ratio
from spectile_study.papers import PAPERS

if TYPE_CHECKING:
    import pandas

__all__ = ["PEAKS", "ClaimError", "Ours", "Rows", "Values", "at", "is_as_called"]

#: Specified peaks of devices in operations a second.
PEAKS = {
    # FP64 tensor cores; the EVD paper means 67 TFLOP/s of the H100 (SXM), which the H200's chip shares.
    "fp64": {"NVIDIA H200": 67e12, "NVIDIA H100 80GB HBM3": 67e12, "NVIDIA A100-SXM4-80GB": 19.5e12},
    # FP64 without tensor cores.
    "fp64_vector": {"NVIDIA H200": 33.5e12, "NVIDIA H100 80GB HBM3": 33.5e12, "NVIDIA A100-SXM4-80GB": 9.7e12},
}
#: So near to its bound a conclusion is level with it: times repeat no better.
_LEVEL = 0.02
#: What a condition may be: a value, one of several, or a function of a numeric column.
Wanted = str | float | bool | Sequence[Any] | Callable[[np.ndarray], np.ndarray]


def at(frame: pandas.DataFrame, **wanted: Wanted) -> pandas.DataFrame:
    """Return the rows of `frame` that meet every condition, ``column=value``, as :meth:`Rows.at` does."""
    met = np.ones(len(frame), dtype=bool)
    for column, value in wanted.items():
        met &= meets(frame[column], value)
    return frame[met]


def meets(column: pandas.Series, value: Wanted) -> np.ndarray:
    """Return which rows of a column are `value`, one of several, or pass a function; numbers compare to nine digits."""
    if isinstance(value, list | tuple):
        return np.logical_or.reduce([meets(column, each) for each in value])
    if isinstance(value, str | bool):
        return np.asarray(column.astype(str) == str(value), dtype=bool)
    numbers = _numbers(column)
    return np.asarray(value(numbers) if callable(value) else np.isclose(numbers, value, rtol=1e-9, atol=0), dtype=bool)


def _numbers(column: pandas.Series) -> np.ndarray:
    import pandas

    return pandas.to_numeric(column, errors="coerce").to_numpy(dtype=float, na_value=np.nan)


class Rows:
    """Rows of one paper on one machine, those that were skipped included.

    Parameters
    ----------
    frame : DataFrame
    names : Names, optional
        What occurs in the known frames of the paper; what does not is refused.  Default: its columns alone.

    Raises
    ------
    ClaimError
        If the rows are of several papers or machines: no number may be made of both.
    """

    def __init__(self, frame: pandas.DataFrame, names: Names | None = None) -> None:
        for column in ("paper", "machine"):
            found = frame[column].unique()
            if len(found) > 1:
                raise ClaimError(f"rows of several {column}s ({', '.join(map(str, found))}): judge each on its own")
        self.frame = frame
        self.names = names or Names(frame["paper"].iloc[0] if len(frame) else None)
        self.places = np.arange(len(frame))
        #: Rows of the cases that were asked for, whatever their method.
        self.of_cases = self.places
        self.gpus = 1.0
        #: The device that was asked for.
        self.device = ""
        self._columns: dict[str, np.ndarray] = {}

    def at(self, **wanted: Wanted) -> Rows:
        """Return the rows that meet every condition, ``column=value``; numbers compare to nine digits.

        Raises
        ------
        ClaimError
            If no known frame has the column, or holds the value: it would find no row, and look like a number that is
            not recorded yet.
        """
        found = self._narrowed(self.places)
        for column, value in wanted.items():
            self.names.check(column, value)
            met = meets(self.frame[column], value)
            found.places = found.places[met[found.places]]
            if column == "case" or column.startswith("p_"):
                found.of_cases = found.of_cases[met[found.of_cases]]
            if column == "p_gpus" and isinstance(value, int):
                found.gpus = value
        return found

    def on(self, device: str) -> Rows:
        """Return the rows measured on a device whose name holds this: of it alone the paper's number can be tested."""
        names = self.texts("device")[self.places]
        found = self._narrowed(self.places[[device in name for name in names]])
        found.device = device
        return found

    def _narrowed(self, places: np.ndarray) -> Rows:
        found = object.__new__(Rows)
        found.__dict__ |= self.__dict__ | {"places": places}
        return found

    def numbers(self, column: str) -> np.ndarray:
        """Return a column of all rows of the frame as numbers, NaN where it holds none."""
        key = f"numbers {column}"
        if key not in self._columns:
            self._columns[key] = _numbers(self.frame[column])
        return self._columns[key]

    def texts(self, column: str) -> np.ndarray:
        """Return a column of all rows of the frame as texts."""
        if column not in self._columns:
            self._columns[column] = self.frame[column].astype(str).to_numpy(dtype=object)
        return self._columns[column]

    @property
    def finished(self) -> np.ndarray:
        """Places of the rows that passed in the latest record of their case, or stay from an earlier one."""
        return self.places[self.texts("status")[self.places] == "ok"]

    @property
    def passed(self) -> np.ndarray:
        """Places of the finished rows, and of those that stand beside one of them in the same earlier record."""
        return self.places[np.isin(self.texts("status")[self.places], PASSED)]

    def column(self, name: str, per: str | None = None) -> Values:
        """Return a column, or its quotient by another."""
        self.names.check_columns(name, per)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = self.numbers(name) / (self.numbers(per) if per else 1.0)
        return replace(self._of(self.finished, values, name == "time_s"), name="" if per else name)

    def rate(self) -> Values:
        """Return the TFLOP/s."""
        rates = self._of(self.finished, self.numbers("flops") / self.numbers("time_s") / 1e12, timed=True)
        return replace(rates, name="rate")

    def share_of(self, unit: str) -> Values:
        """Return the rate in per cent of the peak of its devices, :data:`PEAKS`."""
        devices = np.maximum(np.nan_to_num(self.numbers("p_gpus"), nan=1.0), 1) if "p_gpus" in self.frame else 1.0
        peak = self.frame["device"].map(PEAKS[unit]).to_numpy(dtype=float) * devices
        return self._of(self.finished, 100 * self.numbers("flops") / self.numbers("time_s") / peak, timed=True)

    def phase(self, name: str) -> Values:
        """Return the per cent of the time in a phase."""
        self.names.check_phase(name)
        shares = np.full(len(self.frame), np.nan)
        for place in self.finished if "v_phases" in self.frame else ():
            phases, times = (self.frame[column].iloc[place] for column in ("v_phases", "v_phases_s"))
            if isinstance(phases, list | np.ndarray) and name in list(phases):
                shares[place] = 100 * float(times[list(phases).index(name)]) / float(np.sum(times))
        return self._of(self.finished, shares, timed=True)

    def speedup(self, method: str, *baselines: str) -> Values:
        """Return how many times as fast methods are, from rounds of both, as over the fastest baseline of each case.

        `method` may hold ``*`` and ``?``.
        """
        self.names.check_methods(method, *baselines)
        samples, methods, statuses = self.frame["samples_s"].to_numpy(), self.texts("method"), self.texts("status")
        cases, records = self.texts("case"), self.texts("record")
        timed = self.passed[~np.isnan(self.numbers("time_s")[self.passed])]
        of_baselines: dict[tuple[str, str], list[int]] = {}
        best: dict[tuple[str, str], tuple[float, int, int]] = {}
        for place in timed[np.isin(methods[timed], baselines)]:
            of_baselines.setdefault((cases[place], records[place]), []).append(place)
        for place in timed:
            if not fnmatch.fnmatchcase(methods[place], method):
                continue
            for base in of_baselines.get((cases[place], records[place]), ()):
                if "ok" in (statuses[place], statuses[base]):
                    key = cases[place], methods[place]
                    pair = (paired_ratio(samples[base], samples[place]).median, base, place)
                    best[key] = min(best.get(key, pair), pair)
        ratios, fastest = np.full(len(self.frame), np.nan), {place: base for _, base, place in best.values()}
        for ratio, _, place in best.values():
            ratios[place] = ratio
        found = self._of(np.array(sorted(fastest), dtype=int), ratios, True, (method, *baselines))
        return replace(
            found, name="speedup", level=1.0, under=np.array([fastest[place] for place in found.places], dtype=int)
        )

    def gain(self, method: str, baseline: str) -> Values:
        """Return by how many per cent a method is faster than another."""
        faster = self.speedup(method, baseline)
        return replace(faster, numbers=100 * (faster.numbers - 1), level=0.0, name="")

    def over(self, column: str, method: str, *baselines: str) -> Values:
        """Return the method's value of a column over the baseline's of the same case, for each baseline."""
        self.names.check_columns(column)
        self.names.check_methods(method, *baselines)
        cases, records, statuses = self.texts("case"), self.texts("record"), self.texts("status")
        methods, numbers = self.texts("method"), self.numbers(column)
        own = self.passed[methods[self.passed] == method]
        below = {(cases[place], records[place], methods[place]): place for place in self.passed[::-1]}
        pairs = [
            (place, base)
            for baseline in baselines
            for place in own
            for base in [below.get((cases[place], records[place], baseline))]
            if base is not None and "ok" in (statuses[place], statuses[base])
        ]
        places, under = (np.array(each, dtype=int) for each in (zip(*pairs, strict=True) if pairs else ((), ())))
        values = numbers[places] / numbers[under]
        kept = ~np.isnan(values)
        return Values(self, places[kept], values[kept], methods=(method, *baselines))

    def _of(self, places: np.ndarray, values: np.ndarray, timed: bool = False, methods: tuple[str, ...] = ()) -> Values:
        kept = places[~np.isnan(values[places])]
        return Values(self, kept, values[kept], timed, methods)

    def why_missing(self, methods: Sequence[str]) -> Iterator[str]:
        """Yield what these rows say of why one has no number: those of `methods` if there are, and of skipped cases."""
        if len(self.frame) and not any(self.device in name for name in self.texts("device")):
            yield f"it needs the device {self.device}, and this run is of {self.frame['device'].iloc[0]}"
            return
        known = self.texts("method")
        named = self.places[np.isin(known[self.places], methods)]
        skipped = self.of_cases[known[self.of_cases] == "-"]
        reasons = self.frame["reason"].to_numpy(dtype=object)
        for place in (*(named if len(named) else self.places), *skipped):
            if isinstance(reasons[place], str) and reasons[place]:
                yield reasons[place]
        if self.gpus > 1 and len(self.frame) and not len(self.of_cases):
            yield f"it needs {self.gpus:.0f} GPUs, and this run holds no such case on so many"
        if len(self.frame):
            yield f"no finished case of this run on {self.frame['device'].iloc[0]} holds it"
        else:
            yield "this run holds no record of the paper"


@dataclass(frozen=True)
class Values:
    """A quantity of finished rows.

    Attributes
    ----------
    rows : Rows
        What was asked for.
    places : ndarray, shape (n,)
        Rows of the frame that have the quantity.
    numbers : ndarray, shape (n,)
    timed : bool
        Whether it is made of times.
    methods : tuple of str
        Those that it names.
    level : float, optional
        Above it one wins, and below it one loses.
    under : ndarray, optional, shape (n,)
        Rows of the baselines.
    name : str
        How drawings call the quantity; empty where they have no name for it.
    """

    rows: Rows
    places: np.ndarray
    numbers: np.ndarray
    timed: bool = False
    methods: tuple[str, ...] = ()
    level: float | None = None
    under: np.ndarray | None = None
    name: str = ""

    def __getitem__(self, column: str) -> np.ndarray:
        """Return another column of the same rows."""
        self.rows.names.check_columns(column)
        return self.rows.numbers(column)[self.places]

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> Values:
        """Return a function of the quantity, as of another unit."""
        return replace(self, numbers=function(self.numbers), name="")

    def _made(self, number: float, why: str = "", what: str = "") -> Ours:
        return Ours(float(number) if len(self.numbers) else float("nan"), (self,), why, what)

    def _called(self, what: str) -> str:
        return f"{what} {_plain(self.name)}".strip()

    def only(self) -> Ours:
        """Return the one number that there is.

        Raises
        ------
        ClaimError
            If there are several.
        """
        if len(self.numbers) > 1:
            raise ClaimError(f"finds {len(self.numbers)} rows: narrow them or say what becomes of them")
        return self._made(self.numbers[0] if len(self.numbers) else np.nan)

    def median(self) -> Ours:
        """Return the median."""
        return self._made(_of(np.median, self.numbers), what=self._called("median"))

    def mean(self) -> Ours:
        """Return the mean."""
        return self._made(_of(np.mean, self.numbers), what=self._called("mean"))

    def min(self) -> Ours:
        """Return the smallest."""
        return self._made(_of(np.min, self.numbers), what=self._called("smallest"))

    def max(self) -> Ours:
        """Return the largest."""
        return self._made(_of(np.max, self.numbers), what=self._called("largest"))

    def geomean(self) -> Ours:
        """Return the geometric mean."""
        return self._made(_of(geometric_mean, self.numbers), what=self._called("geometric mean"))

    def wins(self, of: int) -> Ours:
        """Return how many of so many are above 1."""
        return self._made(of * _of(np.mean, self.numbers > 1))

    def precision(self, predicted: np.ndarray) -> Ours:
        """Return the share of the predicted rows that are above 1; it is made of these."""
        return self._score(
            predicted, self.numbers > 1, "faster everywhere, or the criterion holds nowhere: its precision"
        )

    def recall(self, predicted: np.ndarray) -> Ours:
        """Return the share of the rows above 1 that were predicted; it is made of these."""
        return self._score(self.numbers > 1, predicted, "faster nowhere, or the criterion holds everywhere: its recall")

    def _score(self, of: np.ndarray, among: np.ndarray, why: str) -> Ours:
        if among.all() or not of.any():  # nothing could be missed
            return self._made(np.nan, f"this run is {why} says nothing" if len(of) else "")
        under = None if self.under is None else self.under[of]
        return replace(self, places=self.places[of], numbers=self.numbers[of], under=under)._made(among[of].mean())

    def curves(self, along: str, by: str | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield abscissas and values of each curve of two points at least; rows at one abscissa are averaged."""
        self.rows.names.check_columns(along, by)
        across = self.rows.numbers(along)[self.places]
        apart = self.rows.texts(by)[self.places] if by else np.zeros(len(across))
        for curve in dict.fromkeys(apart):
            ours = (apart == curve) & ~np.isnan(across)
            points = np.unique(across[ours])
            if len(points) > 1:
                yield points, np.array([self.numbers[ours & (across == point)].mean() for point in points])

    def _shape(
        self, what: str, along: str, by: str | None, shape: Callable[..., float], worst: Callable[..., float]
    ) -> Ours:
        found = [shape(*curve) for curve in self.curves(along, by)]
        if not found:  # as where a run has one size, or one GPU, of several
            return self._made(np.nan, "this run lacks rows on one side of it" if len(self.numbers) > 1 else "")
        return self._made(worst(found), what=f"{what} by {_plain(along)} of the {_plain(self.name) or 'quantity'}")

    def growth(self, along: str, by: str | None = None) -> Ours:
        """Return the least quotient of a value and the one before it, of the worst curve."""
        return self._shape("smallest value over the one before it", along, by, lambda _, y: np.min(y[1:] / y[:-1]), min)

    def fall(self, along: str, by: str | None = None) -> Ours:
        """Return the least quotient of a value and the one after it, of the worst curve."""
        return self._shape("smallest value over the one after it", along, by, lambda _, y: np.min(y[:-1] / y[1:]), min)

    def last_step(self, along: str, by: str | None = None) -> Ours:
        """Return the last value over the one before it, of the curve where it is largest."""
        return self._shape("last value over the one before it", along, by, lambda _, y: y[-1] / y[-2], max)

    def spread(self, along: str, by: str | None = None) -> Ours:
        """Return the largest value over the smallest, of the curve where it is largest."""
        return self._shape("largest value over the smallest", along, by, lambda _, y: np.max(y) / np.min(y), max)

    def lowest(self, along: str, by: str | None = None) -> Ours:
        """Return where the smallest value lies, of the curve where it is farthest."""
        return self._shape("place of the smallest value", along, by, lambda x, y: x[np.argmin(y)], max)

    def rank(self, along: str) -> Ours:
        """Return Spearman's rank correlation with a column."""
        import pandas

        def of_ranks(x: np.ndarray, y: np.ndarray) -> float:
            return pandas.Series(x).rank().corr(pandas.Series(y).rank())

        return self._shape("rank correlation", along, None, of_ranks, min)


def _plain(column: str) -> str:
    """Return the name of a column in words."""
    return re.sub("^[pv]_|_s$", "", column).replace("_", " ")


def _of(reduce: Callable[..., Any], numbers: np.ndarray) -> float:
    return float(reduce(numbers)) if len(numbers) else float("nan")


@dataclass(frozen=True)
class Ours:
    """A number of ours, and what it is made of.

    Attributes
    ----------
    number : float
        NaN where there is none.
    parts : tuple of Values
    why : str
        Why there is none although there are rows.
    what : str
        What the number is, in words, where it is not one of the rows' own.
    holds : bool, optional
        Whether a conclusion holds: set by :meth:`at_least`, :meth:`at_most` and :meth:`near`.
    criterion : str
        What decides that, in words.
    other : Ours, optional
        The same by other times: by those of calls, where this is by the device's own, or the other way round.
    """

    number: float
    parts: tuple[Values, ...]
    why: str = ""
    what: str = ""
    holds: bool | None = None
    criterion: str = ""
    other: Ours | None = None

    def at_least(self, bound: float) -> Ours:
        """Conclude that the number is no smaller than `bound`."""
        return self._concluded(self.number >= bound, f"holds from {bound:g} on", bound)

    def at_most(self, bound: float) -> Ours:
        """Conclude that the number is no larger than `bound`."""
        return self._concluded(self.number <= bound, f"holds up to {bound:g}", bound)

    def near(self, place: float, factor: float = 1.0) -> Ours:
        """Conclude that the number is `place` within a factor to both sides."""
        low, high = place / factor, place * factor
        words = f"holds from {low:g} to {high:g}" if factor > 1 else f"holds at {place:g}"
        return self._concluded(low <= self.number <= high, words)

    def _concluded(self, holds: bool, words: str, bound: float = 0.0) -> Ours:
        is_level = bool(bound) and abs(self.number / bound - 1) < _LEVEL
        return replace(self, holds=bool(holds), criterion=words + "; ours is level with that" * is_level)

    def beside(self, other: Ours) -> Ours:
        """Return this number, or `other` if there is none; where there are both, the other is told with its verdict."""
        return replace(self, other=other) if self.is_known and other.is_known else self if self.is_known else other

    def __truediv__(self, other: Ours) -> Ours:
        """Return the quotient of two numbers, made of the rows of both."""
        return Ours(self.number / other.number, (*self.parts, *other.parts), self.why or other.why)

    @property
    def is_known(self) -> bool:
        """Whether there is a number."""
        return self.number == self.number

    @property
    def level(self) -> float | None:
        """Above it one wins and below it one loses; None where nothing is won."""
        return self.parts[0].level

    @cached_property
    def used(self) -> pandas.DataFrame:
        """The rows that the number is made of."""
        places = np.concatenate([part.places for part in self.parts])
        return self.parts[0].rows.frame.iloc[list(dict.fromkeys(places))]

    @property
    def time(self) -> str:
        """Which time it is made of: ``as called``, ``device``, both, or nothing where it is of no time.

        Where the baseline's time is of another kind, it is named, too: ``device over as called``.
        """
        frame, timed = self.parts[0].rows.frame, [part for part in self.parts if part.timed]
        own = _times(frame, [place for part in timed for place in part.places])
        under = _times(frame, [place for part in timed if part.under is not None for place in part.under])
        return f"{own} over {under}" if under and under != own else own

    @property
    def single(self) -> str:
        """The methods whose time is one sample, which has no spread, those of baselines included."""
        timed = [part for part in self.parts if part.timed]
        frame = self.parts[0].rows.frame
        places = {place for part in timed for of in (part.places, part.under) if of is not None for place in of}
        samples, methods = frame["samples_s"].to_numpy(), frame["method"].to_numpy()
        return ", ".join(sorted({methods[place] for place in places if np.size(samples[place]) == 1}))

    def reasons(self) -> list[str]:
        """Return what the rows say of why there is no number."""
        lacking = [part for part in self.parts if not len(part.places)] or self.parts
        return [self.why] if self.why else [each for part in lacking for each in part.rows.why_missing(part.methods)]


def _times(frame: pandas.DataFrame, places: Sequence[int]) -> str:
    """Return which times these rows of a frame hold."""
    rows = frame.iloc[list(places)]
    studies = rows["p_study"] if "p_study" in rows else [""] * len(rows)
    called = {is_as_called(*key) for key in zip(rows["paper"], studies, rows["method"], strict=True)}
    return " and ".join("as called" if each else "device" for each in sorted(called, reverse=True))


def is_as_called(paper: str, study: str, method: str) -> bool:
    """Whether the time of a paper's method is that of a call, the host's work included (``docs/records.md``)."""
    return any(fnmatch.fnmatchcase(f"{study}/{method}", pattern) for pattern in PAPERS[paper].as_called)
