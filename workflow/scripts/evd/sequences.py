"""Steps of a self-consistent field from the vectors of the step before, beside full solutions, by size of the step."""

import pandas

from spectile_study.bench.rows import at
from spectile_study.bench.stats import speedups
from spectile_study.figures.evd import lacking, timed
from spectile_study.figures.palette import name
from spectile_study.figures.tables import Table, first_value

FULL = ("spectile", "cupy", "numpy")


def table(frame: pandas.DataFrame) -> Table:
    result = Table("Steps of a sequence, eigh(a, x0=): seconds as called")
    rows = at(frame, p_study="sequences").sort_values("p_n")
    lines = []
    for case in dict.fromkeys(rows["case"]):
        here = at(rows, case=case)
        for method in [each for each in here["method"].dropna() if each.startswith("refined_")]:
            found, full = timed(here, method), timed(here, "spectile")
            line: dict[str, object] = {"n": int(here["p_n"].iloc[0]), "change of the potential": None}
            if len(found):
                line["change of the potential"] = f"{found['v_change'].iloc[0]:.0e}"
                line["refined"] = "yes" if str(found["v_refined"].iloc[0]) == "True" else "no, solved anew"
            line["step: s"], line["full: s"] = (first_value(each, "time_s") for each in (found, full))
            for other in FULL:
                faster = speedups(here, method, other)
                line[f"over {name(other)}, full"] = first_value(faster, "speedup")
                result.cite(faster, "speedup")
            for head, of in {"step": found, "full": full}.items():
                line[f"residual, {head}"] = first_value(of, "error_residual")
                result.cite(of, "time_s").cite(of, "error_residual")
            lines.append(line)
    result.data = pandas.DataFrame(lines).dropna(axis="columns", how="all")
    result.formats = {head: "{:.2f}" for head in result.data if head.startswith("over")}
    result.formats |= {head: "{:.3f}" for head in result.data if head.startswith("residual")}
    result.notes.append("Residuals are ‖A V − V Λ‖ / (n ε ‖A‖), Frobenius norms.")
    result.notes += lacking(rows, lines, "sequences")
    return result
