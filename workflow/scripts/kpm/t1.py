"""Table I of KPM: least bytes and flop of the naive version's functions, and what the library's reach."""

import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.figures.kpm import drawn_by
from spectile_study.figures.tables import Table, first_value

CALLS = {"spmv": "R M/2", "axpy": "R M", "scal": "R M/2", "nrm2": "R M/2", "dot": "R M/2"}
A_STEP = {name: 2 if calls == "R M" else 1 for name, calls in CALLS.items()}
TOTAL = {
    "function": "KPM", "calls": "1", "least bytes a call": "R M/2 [N_nz (S_d + S_i) + 13 N S_d]",
    "flop a call": "R M/2 [N_nz (F_a + F_m) + N (⌈7 F_a/2⌉ + ⌈9 F_m/2⌉)]",
}  # fmt: skip
BYTES = {"spmv": "N_nz (S_d + S_i) + 2 N S_d", "axpy": "3 N S_d", "scal": "2 N S_d", "nrm2": "N S_d", "dot": "2 N S_d"}
FLOPS = {
    "spmv": "N_nz (F_a + F_m)", "axpy": "N (F_a + F_m)", "scal": "N F_m", "nrm2": "N (⌈F_a/2⌉ + ⌈F_m/2⌉)",
    "dot": "N (F_a + F_m)",
}  # fmt: skip


def table(frame: pandas.DataFrame) -> Table:
    rows = drawn_by(frame, "t1")
    lines, steps, result = [], [], Table("Table I: least bytes and flop of each function of the naive version")
    for name, calls in CALLS.items():
        cells = {"function": f"{name}()", "calls": calls, "least bytes a call": BYTES[name], "flop a call": FLOPS[name]}
        here = at(rows, method=name)
        here = here.sort_values("v_rows").iloc[-1:]
        for key, column, scale in (
            ("MB a call", "bytes", 1e-6),
            ("Mflop a call", "flops", 1e-6),
            ("GB/s", "gbytes_s", 1),
        ):
            cells[key] = first_value(here.assign(scaled=here[column] * scale), "scaled")
        result.cite(here, "gbytes_s")
        lines.append(cells)
        steps.append(here[["bytes", "flops", "time_s"]].astype(float) * A_STEP[name])
    # One step of one vector, R M/2 = 1: as many calls of each as the naive version makes.
    step = pandas.concat(steps).sum() if all(len(each) for each in steps) else None
    lines.append(
        TOTAL
        | {
            "MB a call": step["bytes"] / 1e6 if step is not None else None,
            "Mflop a call": step["flops"] / 1e6 if step is not None else None,
            "GB/s": step["bytes"] / step["time_s"] / 1e9 if step is not None else None,
        }
    )
    result.data = pandas.DataFrame(lines)
    shown = rows.sort_values("v_rows").iloc[-1] if len(rows) else None
    result.notes = [
        f"The last three columns: {int(shown['p_nx'])} x {int(shown['p_ny'])} x {int(shown['p_nz'])} sample, complex "
        f"double, on {shown['device']}; least bytes over time. KPM: R M/2 = 1, one step of one vector, the times of "
        "its calls added up."
        if shown is not None
        else "This run holds no record of the functions."
    ]
    return result


def claims(rows: Rows) -> dict[str, Ours]:
    found = {}
    for name in ("axpy", "scal", "nrm2", "dot"):
        for work in ("bytes", "flops"):
            here = rows.at(case="functions_200x100x40", method=name)
            found[f"kpm_t1_{name}_{work}"] = here.column(work, per="v_rows").only()
    return found
