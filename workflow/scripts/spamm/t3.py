"""Table 3 of cuSpAMM: SpAMM beside truncation, errors summed in float64 and as the paper did."""

import pandas

from spectile_study.bench.claims import printed
from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.bench.stats import speedups
from spectile_study.figures.tables import Cell, Table, first_value

#: The paper's thresholds by order.
TAUS = {1024: (1.45, 1.66, 1.82), 8192: (1.205, 1.5, 1.6)}
COLUMNS = ["v_error_fro", "v_error_fro_float32", "v_error_rel"]


def table(frame: pandas.DataFrame) -> Table:
    rows = at(frame, p_study="truncation", status="ok")
    result = Table("Table 3: SpAMM and truncation at the same level of error")
    failed = at(frame, p_study="truncation", method="cusparse", status="failed")
    lines = []
    for n in (1024, 8192):
        for place in (1, 2, 3):
            here = at(rows, case=f"truncation_{n}_{place}")
            ours, theirs = at(here, method="spectile"), at(here, method="truncation")
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
                of_case = at(rows, case=case)
                fast, called = (speedups(of_case, ours, "cusparse") for ours in ("spectile", "called"))
                result.cite(fast, "speedup").cite(called, "speedup")
                speed = (
                    "fails" if case in set(failed["case"]) else first_value(called if len(called) else fast, "speedup")
                )
                below = {"device": first_value(fast, "speedup")} if len(called) and len(fast) else {}
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
        *algorithms(at(rows, method="cusparse")),
        *(f"{row['case']}: {row['reason']}." for _, row in failed.iterrows()),
        *sorted(set(at(frame, p_study="truncation", method="cusparse", status="skipped")["reason"])),
    ]
    return result


def algorithms(rows: pandas.DataFrame) -> list[str]:
    """Return which algorithm of cuSPARSE each order took."""
    if not len(rows) or "v_algorithm" not in rows:
        return []
    words = {"alg1": "the fastest, keeps all products in memory", "alg2": "needs less", "alg3": "in chunks, the least"}
    taken = rows.groupby("v_algorithm")["p_n"].unique()
    orders = {name: " and ".join(f"{n:,.0f}" for n in sorted(taken[name])) for name in taken.index}
    return [f"cuSPARSE: {name} ({words[name]}) at N = {taken_at}." for name, taken_at in orders.items()]


def claims(rows: Rows) -> dict[str, Ours]:
    rows, found = rows.at(p_study="truncation"), {}
    for n, taus in TAUS.items():
        for place, tau in enumerate(taus, start=1):
            here, claim = rows.at(p_n=n, p_tau=tau), f"spamm_t3_{n}_{place}"
            one = here.at(p_gpus=0)
            for name, method in (("truncation", "truncation"), ("spamm", "spectile")):
                found[f"{claim}_error_{name}"] = one.at(method=method).column("v_error_fro_float32").only()
            found[f"{claim}_nz"] = one.at(method="truncation").column("v_nz_ratio").only()
            found[f"{claim}_valid"] = one.at(method="spectile").column("v_valid_ratio").only()
            for gpus in (1, 2, 4, 8):
                on_so_many = here.at(p_gpus=0 if gpus == 1 else gpus)
                device, called = (on_so_many.speedup(ours, "cusparse").only() for ours in ("spectile", "called"))
                found[f"{claim}_gpus{gpus}"] = called.beside(device)
    one, eight = (rows.at(p_gpus=gpus) for gpus in (0, 8))
    return found | {
        "spamm_max_cusparse": one.speedup("called", "cusparse").max(),
        "spamm_max_cusparse_gpus8": eight.speedup("called", "cusparse").max(),
        "spamm_denser_gains_more": one.speedup("called", "cusparse").growth("v_valid_ratio", "p_n").at_least(1),
        "spamm_same_errors": one.over("v_error_fro", "spectile", "truncation").max().at_most(1.01),
    }
