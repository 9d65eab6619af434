"""Table 1 of cuSpAMM: thresholds for wanted valid ratios, searched and printed."""

import pandas

from spectile_study.bench.claims import printed
from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.cases.spamm.thresholds import RATIOS, TABLE_1
from spectile_study.figures.tables import Cell, Table, percent

TITLE = "Table 1: thresholds of the decay matrix a_ij = 0.1 / (|i - j|^0.1 + 1), tiles of 32"


def table(frame: pandas.DataFrame) -> Table:
    rows = at(frame, p_study="thresholds", status="ok")
    found = {int(row["p_n"]): row for _, row in rows.iterrows()}
    lines = []
    for ratio in RATIOS:
        for label in ("threshold, printed", "threshold, searched", "valid at the printed one, %"):
            line: dict[str, object] = {"valid ratio": Cell(ratio / 100, percent), "quantity": label}
            for n in TABLE_1:
                if label.endswith("printed"):
                    line[f"N = {n:,}"] = Cell(printed(f"spamm_t1_{n}_{ratio:02}"), "{:.6f}")
                elif n not in found:
                    line[f"N = {n:,}"] = None
                elif label.endswith("searched"):
                    line[f"N = {n:,}"] = Cell(found[n][f"v_tau_{ratio:02}"], "{:.6f}")
                else:
                    line[f"N = {n:,}"] = Cell(100 * found[n][f"v_valid_ratio_{ratio:02}"], "{:.2f}")
            lines.append(line)
    notes = [
        "Searched as in Section 3.5.2: bisection from the mean norm product, at most 20 steps, to an absolute 1 %."
    ]
    result = Table(TITLE, pandas.DataFrame(lines), notes)
    for ratio in RATIOS:
        result.cite(rows, f"v_tau_{ratio:02}").cite(rows, f"v_valid_ratio_{ratio:02}")
    return result


def claims(rows: Rows) -> dict[str, Ours]:
    searched = rows.at(p_study="thresholds", method="spectile")
    found = {}
    for n in TABLE_1:
        here = searched.at(p_n=n)
        for ratio in RATIOS:
            found[f"spamm_t1_{n}_{ratio:02}"] = here.column(f"v_tau_{ratio:02}").only()
            found[f"spamm_t1_{n}_{ratio:02}_ratio"] = here.column(f"v_valid_ratio_{ratio:02}").only()
    return found
