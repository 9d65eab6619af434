"""The solver on several GPUs of a host beside one, and the vendor's on as many: seconds, and ratios."""

import pandas

from spectile_study.bench.rows import at
from spectile_study.bench.stats import speedups
from spectile_study.figures.evd import lacking, timed
from spectile_study.figures.tables import Table, first_value


def table(frame: pandas.DataFrame) -> Table:
    result = Table("The solver on several GPUs: seconds as called, the matrix on the first")
    rows = at(frame, p_study="devices").sort_values(["p_n", "p_precision", "p_vectors"], ascending=[True, False, True])
    lines = []
    for case in dict.fromkeys(rows["case"]):
        here = at(rows, case=case)
        first, one = here.iloc[0], timed(here, "devices_1")
        line: dict[str, object] = {
            "n": int(first["p_n"]),
            "what": "with vectors" if first["p_vectors"] else "eigenvalues",
            "type": first["p_precision"],
            "1 GPU: s": first_value(one, "time_s"),
        }
        result.cite(one, "time_s")
        for method in sorted({*here["method"].dropna()} - {"devices_1", "cusolver_mg"}):
            several, faster, count = timed(here, method), speedups(here, method, "devices_1"), method.split("_")[1]
            vendor, ahead = timed(here, "cusolver_mg"), speedups(here, method, "cusolver_mg")
            line[f"{count} GPUs: s"] = first_value(several, "time_s")
            line[f"1 over {count} GPUs"] = first_value(faster, "speedup")
            line[f"cuSOLVERMg on {count}: s"] = first_value(vendor, "time_s")
            line[f"cuSOLVERMg over {count} GPUs"] = first_value(ahead, "speedup")
            for shown in (several, vendor):
                result.cite(shown, "time_s")
            result.cite(faster, "speedup").cite(ahead, "speedup")
        lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.formats = {head: "{:.2f}" for head in result.data if "over" in head}
    result.notes += lacking(rows, lines, "several GPUs")
    return result
