"""Table II of KPM: the paper's processors, and this machine by measurement."""

import pandas

from spectile_study.bench.claims import printed, select
from spectile_study.figures.kpm import drawn_by
from spectile_study.figures.tables import Table

PAPER = {
    "IVB (paper)": "ivb", "SNB (paper)": "snb", "K20m (paper)": "k20m", "K20X (paper)": "k20x",
}  # fmt: skip
COLUMNS = {
    "clock (MHz)": "clock", "SIMD (bytes)": "simd", "cores / SM": "cores", "b (GB/s)": "b", "LLC (MiB)": "llc",
    "P_peak (Gflop/s)": "peak",
}  # fmt: skip
OURS = {"clock (MHz)": "v_clock_mhz", "SIMD (bytes)": "v_simd_bytes", "cores / SM": "v_cores", "LLC (MiB)": "v_llc_mib"}


def table(frame: pandas.DataFrame) -> Table:
    rows = drawn_by(frame, "t2")
    lines = [
        {"processor": name} | {column: printed(f"kpm_t2_{key}_{part}") for column, part in COLUMNS.items()}
        for name, key in PAPER.items()
    ]
    result = Table("Table II: processors")
    for device in sorted(rows["processor"].unique()):
        here = rows[rows["processor"] == device]
        triad, peak = select(here, "method=triad"), select(here, "method=fma_peak")
        line = {"processor": device}
        line |= {column: here[name].iloc[0] for column, name in OURS.items()}
        line["b (GB/s)"] = round(float(triad["gbytes_s"].iloc[0]), 1) if len(triad) else None
        line["P_peak (Gflop/s)"] = round(float(peak["gflops"].iloc[0])) if len(peak) else None
        result.cite(triad, "gbytes_s").cite(peak, "gflops")
        lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.formats = dict.fromkeys(COLUMNS, "{:,.6g}")
    result.notes = [
        "b of the measured rows: STREAM triad, bytes of the source over time; P_peak: independent double-precision "
        "multiply-adds without tensor cores. The paper's rows are printed numbers."
    ]
    return result
