"""Table II of KPM: the paper's processors, and this machine by measurement."""

import pandas

from spectile_study.bench.claims import printed
from spectile_study.bench.rows import at
from spectile_study.figures.kpm import bandwidths, drawn_by, fastest_bandwidth
from spectile_study.figures.tables import Table

PAPER = {
    "IVB (paper)": "ivb", "SNB (paper)": "snb", "K20m (paper)": "k20m", "K20X (paper)": "k20x",
}  # fmt: skip
COLUMNS = {
    "clock (MHz)": "clock", "SIMD (bytes)": "simd", "cores / SM": "cores", "b (GB/s)": "b", "LLC (MiB)": "llc",
    "P_peak (Gflop/s)": "peak",
}  # fmt: skip
OURS = {"clock (MHz)": "v_clock_mhz", "SIMD (bytes)": "v_simd_bytes", "cores / SM": "v_cores", "LLC (MiB)": "v_llc_mib"}
SPECIFIED = {"b (GB/s)": "v_specified_gbytes_s", "P_peak (Gflop/s)": "v_specified_gflops"}


def table(frame: pandas.DataFrame) -> Table:
    rows = drawn_by(frame, "t2")
    lines = [
        {"processor": name} | {column: printed(f"kpm_t2_{key}_{part}") for column, part in COLUMNS.items()}
        for name, key in PAPER.items()
    ]
    result = Table("Table II: processors")
    for device in sorted(rows["processor"].unique()):
        here = rows[rows["processor"] == device]
        first = here.iloc[0]
        properties = {column: first[name] for column, name in OURS.items()}
        specified = {column: first.get(name) for column, name in SPECIFIED.items()}
        if any(pandas.notna(value) for value in specified.values()):
            lines.append({"processor": f"{device}, specified"} | properties | specified)
        bandwidth, peak = fastest_bandwidth(here), at(here, method="fma_peak")
        line = {"processor": f"{device}, measured"} | properties
        line["b (GB/s)"] = round(float(bandwidth["gbytes_s"].iloc[0]), 1) if len(bandwidth) else None
        line["P_peak (Gflop/s)"] = round(float(peak["gflops"].iloc[0])) if len(peak) else None
        result.cite(bandwidths(here), "gbytes_s").cite(peak, "gflops")
        lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.formats = dict.fromkeys(COLUMNS, "{:,.6g}")
    result.notes = [
        "Measured b: the best of a STREAM triad, a copy, and an update in place (a triad's bytes leave out lines that "
        "a CPU fetches only to overwrite them); Figures 7, 8 and 10 draw the same number. P_peak: independent "
        "double-precision multiply-adds without tensor cores. Specified: by the vendor's data sheet; of a CPU, clock x "
        "SIMD x 2 pipes x multiply-add on the cores of this run; the bandwidth of its memory is not to be read. The "
        "paper's rows are printed numbers.",
    ]
    return result
