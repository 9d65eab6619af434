"""Table III of KPM: resources for the largest system, by version."""

import pandas
from kpm_rates import NAMES, drawn_by

from spectile.bench.claims import select
from spectile.figures.style import Table, printed

ROWS, VECTORS, MOMENTS = 6.5536e9, 32, 2000  # 6400 x 6400 x 40, four orbitals
FLOPS = ROWS * 138 * VECTORS * MOMENTS / 2


def table(frame: pandas.DataFrame) -> Table:
    rows = drawn_by(frame, "t3")
    lines = []
    result = Table("Table III: resources for the largest system, R = 32, M = 2000", pandas.DataFrame())
    for version in ("aug_spmv", "aug_spmmv_star", "aug_spmmv"):
        key = version.replace("_star", "star")
        line = {
            "version": NAMES[version], "Tflop/s (paper)": printed(f"kpm_t3_{key}_rate"),
            "nodes (paper)": printed(f"kpm_t3_{key}_nodes"), "node hours (paper)": printed(f"kpm_t3_{key}_hours"),
        }  # fmt: skip
        for kind, clocks in (("one GPU", ["events"]), ("ranks of one CPU", ["external"])):
            here = select(rows, f"method={version}")
            here = here[here["clock"].isin(clocks)] if len(here) else here
            best = here.sort_values("gflops").iloc[[-1]] if len(here) else here
            if len(best):
                result.cite(best, "gflops")
            rate = float(best["gflops"].iloc[0]) if len(best) else None
            line[f"Gflop/s, {kind}"] = rate
            line[f"device hours, {kind} (projected)"] = FLOPS / (rate * 1e9) / 3600 if rate else None
        lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.notes = [
        "Projected: 2.9e16 flop (138 a row, 6.55e9 rows) over the rate measured on one device; no communication "
        "between devices is in it. One GPU has no reduction to leave out, so its aug_spmmv()* is an empty slot.",
        "The printed node hours lie 5.5 % above flop over rate throughout.",
    ]
    return result
