"""Every number of every table is one that a record holds, that its raw samples give, or that the paper prints.

What a table derives from several numbers is listed in ``DERIVED``, with how; bounds have tests of their own
(``test_bounds.py``, ``test_evd_drawings.py``).
"""

import math
import re
from functools import cache

import numpy as np
import pytest

from spectile_study.bench import provenance, stats
from spectile_study.figures import criteria
from spectile_study.figures.tsparse import vendor

from .recorded import CLAIMS, drawing, frame, of

TABLES = [each for paper in provenance.PAPERS for each in of(paper).values() if not each.is_figure]
#: Units: milli, micro, giga, tera, per cent, MiB; KPM times four steps at once.
SCALES = (1, 1e-3, 1e3, 1e-6, 1e6, 1e9, 1e12, 1e-2, 1e2, 2**20, 2**-20, 4, 4e-3)
#: Columns that hold a bound, a model or a share of one, by table.
DERIVED = {
    "evd_stages": "floor, s|n = .*",  # its sums: test_tables.py
    "kpm_matrices": ".*: share",
    "kpm_t1": "MB a call|Mflop a call|GB/s",
    "kpm_t2": r"b \(GB/s\)|P_peak \(Gflop/s\)",  # rounded; the bandwidth: test_tables.py
    "kpm_t3": r"device hours \(projected\)",
    "spamm_gpus": "all in pinned host memory: share",
    "spamm_speed": "N = .*: (share|bound|peak|share by bytes|bound by bytes)",
    "spamm_t2": "N = .*: (bound|bound by time)",
    "tsparse_capabilities": "share of the link",  # paired rounds
    "tsparse_t1": "mean|std",  # rounded as the paper rounds them
    "tsparse_t2": ".*: (precision|recall)",  # below
    "tsparse_t3": "(by rows: )?Gmean",  # below
}


@cache
def known(paper):
    """Return, sorted, what the records of a paper hold and what their samples give, and what the paper prints."""
    rows = frame(paper)
    found = []
    for name in rows:
        if name.startswith(("v_", "p_", "error_")) or name in ("flops", "bytes", "memory_bytes"):
            for value in rows[name].dropna():
                found += (
                    [value] if isinstance(value, int | float) else list(value) if isinstance(value, np.ndarray) else []
                )
    for _, case in rows[rows["status"].isin(stats.PASSED)].groupby(["case", "record"]):
        timed = [(row["flops"], row["bytes"], np.asarray(row["samples_s"], float)) for _, row in case.iterrows()]
        timed = [each for each in timed if len(each[2])]
        medians = np.array([np.median(samples) for _, _, samples in timed])
        found += list(medians) + list(np.divide.outer(medians, medians).ravel())
        found += [
            work / time for (*works, _), time in zip(timed, medians, strict=True) for work in works if work == work
        ]
        for _, _, one in timed:
            for _, _, other in timed:
                both = min(len(one), len(other))
                found.append(np.median(one[:both] / other[:both]))
    found += list(CLAIMS.loc[CLAIMS["paper"] == paper, "printed"].dropna())
    numbers = np.array([abs(float(value)) for value in found if isinstance(value, int | float | np.number)])
    return np.unique(numbers[np.isfinite(numbers)])


def is_known(value, paper):
    numbers = known(paper)
    for scale in SCALES:
        place = np.searchsorted(numbers, abs(value) * scale)
        near = numbers[max(place - 1, 0) : place + 1]
        if any(math.isclose(each, abs(value) * scale, rel_tol=1e-9) for each in near):
            return True
    return False


@pytest.mark.parametrize("element", TABLES, ids=lambda element: f"{element.paper}_{element.name}")
def test_every_number_of_a_table_is_a_records_or_the_papers(element):
    stem = f"{element.paper}_{element.name}"
    values = drawing(element).values()
    derived = re.compile(DERIVED.get(stem, "(?!)"))
    unknown, needed = {}, set()
    for name in values:
        for value in values[name]:
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float | np.number)
                or value != value
                or value == 0
            ):
                continue
            if not is_known(value, element.paper):
                (needed.add(name) if derived.fullmatch(str(name)) else unknown.setdefault(name, value))
    assert not unknown, f"{stem}: no record and no paper holds {unknown}"
    assert bool(needed) == (stem in DERIVED), f"{stem}: DERIVED names columns that hold what records hold"


def ratios(rows, ours, baseline):
    """Return how many times as fast one method is in each case, from the rounds of both."""
    samples = rows[rows["status"] == "ok"].set_index(["case", "method"])["samples_s"]
    found = {}
    for case in rows["case"].unique():
        if (case, ours) in samples.index and (case, baseline) in samples.index:
            one, other = samples[case, ours], samples[case, baseline]
            both = min(len(one), len(other))
            found[case] = float(np.median(np.asarray(other[:both]) / np.asarray(one[:both])))
    return found


def test_geometric_means_are_of_the_matrices_that_meet_the_criterion():
    rows = frame("tsparse")
    values = drawing(of("tsparse")["t3"]).values()
    facts = rows.drop_duplicates("case").set_index("case")
    for prefix, ours in (("", "tasks_float16"), ("by rows: ", "spectile_float16")):
        chosen = set(criteria.collection(rows, ours)["case"])
        for least, shown in values[values["approach"].str.startswith("cuSPARSE")].set_index("entries a row").iterrows():
            meets = chosen & set(facts.index[(facts["v_row_mean"] > float(least.strip("> "))) & (facts["v_nnz"] > 3e5)])
            numbers = [ratio for case, ratio in ratios(rows, ours, vendor(rows, "float16")).items() if case in meets]
            assert shown[f"{prefix}matrices"] == len(numbers) > 0
            assert shown[f"{prefix}Gmean"] == pytest.approx(math.exp(sum(map(math.log, numbers)) / len(numbers)))
            assert (shown[f"{prefix}Minimum"], shown[f"{prefix}Maximum"]) == pytest.approx((min(numbers), max(numbers)))


def test_scores_count_the_matrices_that_are_faster():
    rows = frame("tsparse")
    values = drawing(of("tsparse")["t2"]).values()
    values = values[values["against"].str.startswith("cuSPARSE")]
    assert len(values) > 1
    for target, ours in (("tSparse", "tasks_float16"), ("by rows", "spectile_float16")):
        chosen = set(criteria.collection(rows, ours)["case"])
        every = [ratio for case, ratio in ratios(rows, ours, vendor(rows, "float16")).items() if case in chosen]
        faster = sum(ratio > 1 for ratio in every)
        for _, shown in values.iterrows():
            assert shown[f"{target}: predictions: of"] == len(every)
            right = shown[f"{target}: precision"] * shown[f"{target}: predictions"]
            assert right == pytest.approx(shown[f"{target}: recall"] * faster)  # what was rightly predicted
            assert right == pytest.approx(round(right)) and right > 0


def test_a_wrong_number_is_noticed():
    rows = frame("kpm")
    first = rows[rows["time_s"].notna()].iloc[0]
    median = float(np.median(first["samples_s"]))
    assert is_known(1e3 * median, "kpm") and not is_known(1.0001e3 * median, "kpm")
    assert stats.median_interval(first["samples_s"]).median == median
