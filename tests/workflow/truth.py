"""Recompute what was drawn: each mark and each cited table cell, from the raw samples of its record."""

import math

import numpy as np
import pandas

from spectile_study.bench import stats

#: Columns that drawings derive, by name: ``recompute(row, frame) -> value``.
DERIVED = {}


def derived(name):
    def register(function):
        DERIVED[name] = function
        return function

    return register


@derived("gflops")
def gflops(row, frame):
    return row["flops"] / np.median(row["samples_s"]) / 1e9


@derived("gbytes_s")
def gbytes_s(row, frame):
    return row["bytes"] / np.median(row["samples_s"]) / 1e9


@derived("gbytes_per_vector")
def gbytes_per_vector(row, frame):
    """KPM's model volume: a timed call is four steps."""
    return row["bytes"] / 4 / row["p_num_vectors"] / 1e9


def _counted_volume(memory):
    """KPM's counted volume of a memory: a counted call is four steps."""
    return lambda row, frame: row[f"v_{memory}_bytes"] / 4 / row["p_num_vectors"] / 1e9


def _counted_rate(memory):
    """KPM's counted bytes over the time of the step of the same size."""

    def rate(row, frame):
        same = (frame["p_study"] == "step") & (frame["method"] == row["method"]) & (frame["status"] == "ok")
        for column in ("p_nx", "p_ny", "p_nz", "p_num_vectors", "p_precision"):
            same &= frame[column] == row[column]
        return [row[f"v_{memory}_bytes"] / np.median(samples) / 1e9 for samples in frame[same]["samples_s"]]

    return rate


for _memory in ("dram", "l2", "l1"):
    derived(f"{_memory}_per_vector")(_counted_volume(_memory))
    derived(f"{_memory}_gbytes_s")(_counted_rate(_memory))


@derived("rate")
def rate(row, frame):
    return row["flops"] / np.median(row["samples_s"]) / 1e12


@derived("intensity")
def intensity(row, frame):
    """EVD's roofline: the rank-2k update reads A, B and a triangle of C and writes the triangle."""
    n, k = row["p_n"], row["p_n"] if pandas.isna(row["p_k"]) else row["p_k"]
    moved = row["bytes"] if not pandas.isna(row["bytes"]) else 8.0 * (2 * n * k + n**2)
    return row["flops"] / moved


@derived("share")
def share(row, frame):
    """tSparse's phases: one mark a phase."""
    phases = np.asarray(row["v_phases_s"], dtype=float)
    return list(100 * phases / phases.sum())


@derived("memory_mb")
def memory_mb(row, frame):
    return row["memory_bytes"] / 1e6


def check_marks(path, frame):
    """Assert that every mark of a drawing is in `frame` and has the value that its samples give; return the number."""
    notes = pandas.read_csv(path, sep="\t", keep_default_na=False, dtype=str)
    noted = frame[frame["record"].isin(notes["record"])]
    known = {(row["record"], row["case"], row["method"]): row for _, row in noted.iterrows()}
    of_record = by_record(noted)
    for _, note in notes.iterrows():
        key = (note["record"], note["case"], note["method"])
        assert key in known, f"{path.name}: a mark of {key} is in no record"
        row = known[key]
        for axis in ("x", "y"):
            column, drawn = note.get(f"{axis}_column"), note.get(axis)
            if column in {None, "place"} or drawn == "":  # a place is where a category stands, not a value
                continue
            assert column in row.index or column in DERIVED or _is_speedup(column), (
                f"{path.name}: who derives {column}?"
            )
            expected = recompute(column, row, of_record[row["record"]] if _is_speedup(column) else frame)
            assert same(drawn, expected), (
                f"{path.name}: {column} of {key} is drawn as {drawn} and recorded as {expected}"
            )
        if note["y_column"].startswith("time_s"):
            assert row["status"] == "ok", f"{path.name}: {key} did not pass its check and is drawn as a speed"
    return len(notes)


def by_record(frame):
    """Return what speed-ups are made of, by record: frames are wide, and are not cut for every mark."""
    return dict(iter(frame[["record", "method", "status", "samples_s"]].groupby("record")))


def _is_speedup(column):
    return column in {"speedup", "speedup_lo", "speedup_hi"}


def recompute(column, row, frame):
    if column in {"time_s", "time_s_lo", "time_s_hi"}:
        return dict(zip(("time_s", "time_s_lo", "time_s_hi"), stats.median_interval(row["samples_s"]), strict=True))[
            column
        ]
    if column in DERIVED:
        return DERIVED[column](row, frame)
    if _is_speedup(column):
        return candidates(column, row, frame)
    return row[column]


def candidates(column, row, frame):
    """A speed-up is over one of the other methods of its record, paired by rounds."""
    others = frame[(frame["record"] == row["record"]) & frame["status"].isin(["ok", "beside"])]
    others = others[others["method"] != row["method"]]
    field = {"speedup": "median", "speedup_lo": "lo", "speedup_hi": "hi"}[column]
    timed = [samples for samples in others["samples_s"] if len(samples)]
    return [getattr(stats.paired_ratio(samples, row["samples_s"]), field) for samples in timed]


def same(drawn, expected):
    if isinstance(expected, list | np.ndarray):
        return any(same(drawn, value) for value in expected)
    try:
        return math.isclose(float(drawn), float(expected), rel_tol=1e-9)
    except (TypeError, ValueError):
        return str(drawn) == str(expected)
