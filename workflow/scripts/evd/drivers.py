"""The solver on the host's cores, as called, beside each of SciPy's drivers, by order."""

import pandas

from spectile_study.bench.rows import at
from spectile_study.bench.stats import paired_ratio
from spectile_study.figures.tables import Table, first_value

DRIVERS = ("scipy_evd", "scipy_evr", "scipy_ev", "scipy_evx")


def table(frame: pandas.DataFrame) -> Table:
    result = Table("The solver on the host's cores beside SciPy's drivers: seconds as called")
    rows = at(frame, p_study="drivers")
    rows = rows.sort_values(["p_vectors", "p_n"]) if len(rows) else rows
    lines = []
    for case in dict.fromkeys(rows["case"]):
        here = at(rows, case=case, status="ok")
        here = here[here["time_s"].notna()]
        first = at(rows, case=case).iloc[0]
        line: dict[str, object] = {
            "n": int(first["p_n"]),
            "what": "with vectors" if first["p_vectors"] else "eigenvalues",
        }
        for method in ("spectile", *DRIVERS):
            found = at(here, method=method)
            line["spectile" if method == "spectile" else method.replace("scipy_", "SciPy, ")] = first_value(
                found, "time_s"
            )
            result.cite(found, "time_s")
        rivals = here[here["method"].isin(DRIVERS)]
        ours = at(here, method="spectile")
        if len(rivals) and len(ours):
            best = rivals.loc[rivals["time_s"].idxmin()]
            ratio = paired_ratio(ours["samples_s"].iloc[0], best["samples_s"])
            line["time of ours, best driver = 1"] = ratio.median
            line["best driver"] = best["method"].removeprefix("scipy_")
        lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.formats = {"time of ours, best driver = 1": "{:.2f}"}
    if not lines:
        result.notes.append("This run holds no record of the drivers.")
        return result
    result.notes += sorted(set(at(rows, status="skipped")["reason"].dropna()))
    result.notes += sorted(set(at(rows, status="failed")["reason"].dropna()))
    return result
