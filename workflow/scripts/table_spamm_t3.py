"""Table 3 of cuSpAMM: SpAMM beside truncation, errors summed in float64 and as the paper did."""

import pandas

from spectile_study.bench.claims import select
from spectile_study.bench.stats import speedups
from spectile_study.figures.style import Table, printed

COLUMNS = ["v_error_fro", "v_error_fro_float32", "v_error_rel"]


def table(frame: pandas.DataFrame) -> Table:
    rows = select(frame, "p_study=truncation,status=ok")
    result = Table("Table 3: SpAMM and truncation at the same level of error", pandas.DataFrame())
    failed = select(frame, "p_study=truncation,method=cusparse,status=failed")
    lines = []
    for n in (1024, 8192):
        for place in (1, 2, 3):
            here = select(rows, f"case=truncation_{n}_{place}")
            ours, theirs = select(here, "method=spectile"), select(here, "method=truncation")
            fast = speedups(here, "spectile", "cusparse") if len(here) else here
            claim = f"spamm_t3_{n}_{place}"
            line = {"N": f"{n:,}"}
            for label, rows_of, column, name, pattern in (
                ("nz ratio", theirs, "v_nz_ratio", "nz", "{:.2%}"),
                ("valid ratio", ours, "v_valid_ratio", "valid", "{:.2%}"),
                ("truncation: summed in float32", theirs, "v_error_fro_float32", "error_truncation", "{:,.1f}"),
                ("SpAMM: summed in float32", ours, "v_error_fro_float32", "error_spamm", "{:,.1f}"),
            ):
                value = pattern.format(rows_of[column].iloc[0]) if len(rows_of) else "-"
                line[label] = f"{value}\npaper {pattern.replace('.1f', '.0f').format(printed(f'{claim}_{name}'))}"
            for label, rows_of in (("truncation", theirs), ("SpAMM", ours)):
                if len(rows_of):
                    error, rel = rows_of["v_error_fro"].iloc[0], rows_of["v_error_rel"].iloc[0]
                    line[f"{label}: true ‖E‖"] = f"{error:,.1f}\n{rel:.2f} ‖C‖"
                    for column in COLUMNS:
                        result.cite(rows_of, column)
                else:
                    line[f"{label}: true ‖E‖"] = None
            speed = "fails" if f"truncation_{n}_{place}" in set(failed["case"]) else "-"
            if len(fast):
                speed = f"{fast['speedup'].iloc[0]:,.1f}"
                result.cite(fast, "speedup")
            line["speed-up over cuSPARSE, 1 GPU"] = f"{speed}\npaper {printed(f'{claim}_gpus1'):g}"
            lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.notes = [
        "The paper's errors are squares summed one after another in one float32: such a sum stops growing at 2^31, "
        "whose root is 46,340.95. Summed that way, all twelve printed errors come out; the true ones stand beside.",
        "The true errors are 0.63 to 1.0 of ‖C‖ (1,422.3 and 69,214.0): hardly anything of C is kept there.",
        *(f"{row['case']}: {row['reason']}." for _, row in failed.iterrows()),
        *sorted(set(select(frame, "p_study=truncation,method=cusparse,status=skipped")["reason"])),
    ]
    return result
