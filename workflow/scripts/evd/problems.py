"""Generalized, partial, batched, banded and tridiagonal problems as called, ours beside their rivals in one run."""

from statistics import median

import pandas

from spectile_study.bench.rows import at
from spectile_study.bench.stats import speedups
from spectile_study.figures.evd import PART, PROBLEMS, WHOLE_PROBLEMS, ordered_problems, timed, words_of_problem
from spectile_study.figures.palette import name
from spectile_study.figures.tables import Cell, Table


def table(frame: pandas.DataFrame) -> Table:
    result = Table("Other problems, as called: seconds of ours, and how many times as fast as the rival")
    rows = at(frame, p_study="problems")
    lines = []
    for case in ordered_problems(rows):
        here = at(rows, case=case)
        first = here.iloc[0]
        line: dict[str, object] = {"problem": first["p_problem"], "what": words_of_problem(first)}
        ours = timed(here, "spectile")
        line["spectile: s"] = float(ours["time_s"].iloc[0]) if len(ours) else None
        result.cite(ours, "time_s")
        for place, (method, words) in enumerate(PROBLEMS[first["p_problem"]].items(), start=1):
            faster = speedups(here, "spectile", method)
            line[f"over rival {place}"] = (
                Cell(float(faster["speedup"].iloc[0]), "{:.2f}", {"rival": words}, "{rival}") if len(faster) else "-"
            )
            result.cite(faster, "speedup").cite(timed(here, method), "time_s")
        shares = []
        for method, words in WHOLE_PROBLEMS.items():
            found = speedups(here, "spectile", method)
            if len(found):
                shares.append(f"{1 / float(found['speedup'].iloc[0]):.2f} of {words}")
                result.cite(found, "speedup")
        together = [timed(here, method) for method in PART]
        if len(ours) and all(map(len, together)):
            parts, whole = ours["samples_s"].iloc[0], [each["samples_s"].iloc[0] for each in together]
            share = median(one / sum(others) for one, *others in zip(parts, *whole, strict=False))
            shares.append(f"{share:.2f} of all values and the way back of these vectors")
            result.cite(together[1], "time_s")
        line["time of ours"] = "; ".join(shares) or "-"
        lines.append(line)
    result.data = pandas.DataFrame(lines)
    if not lines:
        result.notes.append("This run holds no record of these problems.")
        return result
    result.notes.append(
        "Public functions on the wall clock, with their checks, copies and work space; the rivals of one row ran "
        f"between ours in the same process. {name('spectile')} runs on {rows['device'].iloc[0]}; a rival that says so "
        "runs on its host's cores."
    )
    result.notes += sorted(set(at(rows, status="failed")["reason"].dropna()))
    return result
