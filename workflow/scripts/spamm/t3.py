"""Table 3 of cuSpAMM: SpAMM beside truncation, errors summed in float64 and as the paper did."""

import pandas

from spectile_study.bench.claims import printed, select
from spectile_study.bench.stats import speedups
from spectile_study.figures.tables import Cell, Table, first_value

COLUMNS = ["v_error_fro", "v_error_fro_float32", "v_error_rel"]


def table(frame: pandas.DataFrame) -> Table:
    rows = select(frame, "p_study=truncation,status=ok")
    result = Table("Table 3: SpAMM and truncation at the same level of error")
    failed = select(frame, "p_study=truncation,method=cusparse,status=failed")
    lines = []
    for n in (1024, 8192):
        for place in (1, 2, 3):
            here = select(rows, f"case=truncation_{n}_{place}")
            ours, theirs = select(here, "method=spectile"), select(here, "method=truncation")
            claim = f"spamm_t3_{n}_{place}"
            line = {"N": n}
            for label, rows_of, column, name, pattern, theirs_pattern in (
                ("nz ratio", theirs, "v_nz_ratio", "nz", "{:.2%}", ".2%"),
                ("valid ratio", ours, "v_valid_ratio", "valid", "{:.2%}", ".2%"),
                ("truncation: summed in float32", theirs, "v_error_fro_float32", "error_truncation", "{:,.1f}", ",.0f"),
                ("SpAMM: summed in float32", ours, "v_error_fro_float32", "error_spamm", "{:,.1f}", ",.0f"),
            ):
                paper = {"paper": printed(f"{claim}_{name}")}
                line[label] = Cell(first_value(rows_of, column), pattern, paper, f"paper {{paper:{theirs_pattern}}}")
            for label, rows_of in (("truncation", theirs), ("SpAMM", ours)):
                error, share = first_value(rows_of, "v_error_fro"), {"of C": first_value(rows_of, "v_error_rel")}
                line[f"{label}: true ‖E‖"] = Cell(error, "{:,.1f}", share, "{of C:.2f} ‖C‖") if len(rows_of) else None
                for column in COLUMNS:
                    result.cite(rows_of, column)
            for gpus in (1, 2, 4, 8):
                case = f"truncation_{n}_{place}{f'_gpus{gpus}' if gpus > 1 else ''}"
                of_case = select(rows, f"case={case}")
                fast, called = (speedups(of_case, ours, "cusparse") for ours in ("spectile", "called"))
                result.cite(fast, "speedup").cite(called, "speedup")
                speed = (
                    "fails" if case in set(failed["case"]) else first_value(called if len(called) else fast, "speedup")
                )
                below = {"device": first_value(fast, "speedup")} if len(called) else {}
                words = "device {device:,.1f}; paper {paper:,.1f}" if below else "paper {paper:,.1f}"
                below |= {"paper": printed(f"{claim}_gpus{gpus}")}
                head = f"speed-up over cuSPARSE, {gpus} GPU{'s' if gpus > 1 else ''}"
                line[head] = Cell(speed, "{:,.1f}", below, words)
            lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.notes = [
        "The paper's errors are squares summed one after another in one float32: such a sum stops growing at 2^31, "
        "whose root is 46,340.95. Summed that way, all twelve printed errors come out; the true ones stand beside.",
        "Speed-up of a call of spamm over a call of cuSPARSE; below it the time of the device alone over the same.",
        "The true errors are 0.63 to 1.0 of ‖C‖ (1,422.3 and 69,214.0): hardly anything of C is kept there.",
        *algorithms(select(rows, "method=cusparse")),
        *(f"{row['case']}: {row['reason']}." for _, row in failed.iterrows()),
        *sorted(set(select(frame, "p_study=truncation,method=cusparse,status=skipped")["reason"])),
    ]
    return result


def algorithms(rows: pandas.DataFrame) -> list[str]:
    """Return which algorithm of cuSPARSE each order took."""
    if not len(rows) or "v_algorithm" not in rows:
        return []
    words = {"alg1": "the fastest, keeps all products in memory", "alg2": "needs less", "alg3": "in chunks, the least"}
    taken = rows.groupby("v_algorithm")["p_n"].unique()
    orders = {name: " and ".join(f"{n:,.0f}" for n in sorted(taken[name])) for name in taken.index}
    return [f"cuSPARSE: {name} ({words[name]}) at N = {at}." for name, at in orders.items()]
