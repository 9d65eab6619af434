"""Table III of KPM: resources for the largest system, by version."""

import pandas
from kpm_rates import NAMES, drawn_by

from spectile.bench.claims import select
from spectile.figures.style import Table, printed

NX, PLANE, VECTORS, MOMENTS = 6400, 6400 * 40 * 4, 32, 2000
FLOPS = NX * PLANE * 138 * VECTORS * MOMENTS / 2
COUNTS = (1, 2, 4, 8)
#: Slabs of the projection: the fewest devices whose memory holds the vectors have about so many planes each.
PLANES = 50
#: Planes of a block vector that a slab sends to each side, for one step.
SENT = {"aug_spmmv_star": 1, "aug_spmmv": 1, "blocked": 1.5}


def table(frame: pandas.DataFrame) -> Table:
    rows = drawn_by(frame, "t3")
    lines, notes = [], []
    result = Table("Table III: resources for the largest system, R = 32, M = 2000", pandas.DataFrame())
    for version in ("aug_spmv", "aug_spmmv_star", "aug_spmmv", "blocked"):
        key = version.replace("_star", "star")
        line = {"version": NAMES[version]} | {
            column: printed(f"kpm_t3_{key}_{part}") if version != "blocked" else None
            for column, part in (
                ("Tflop/s (paper)", "rate"),
                ("nodes (paper)", "nodes"),
                ("node hours (paper)", "hours"),
            )
        }
        here = select(rows, f"method={version}")
        per_device = None
        for count in COUNTS:
            best = _largest(here, count)
            result.cite(best, "gflops")
            rate = float(best["gflops"].iloc[0]) if len(best) else None
            line[f"Gflop/s, {count} GPU{'s' if count > 1 else ''}"] = rate
            per_device = rate / count if rate else per_device
        line["device hours (projected)"] = FLOPS / (per_device * 1e9) / 3600 if per_device else None
        if per_device and version in SENT:
            seconds = 138 * VECTORS / (per_device * 1e9)  # a row, all vectors
            rate = 2 * SENT[version] * 16 * VECTORS / (PLANES * seconds) / 1e9
            notes.append(
                f"{NAMES[version]} on slabs of {PLANES} planes hides its halos behind links of {rate:.0f} GB/s."
            )
        ranks = here[here["clock"] == "external"] if len(here) else here
        best = ranks.sort_values("gflops").iloc[[-1]] if len(ranks) else ranks
        result.cite(best, "gflops")
        line["Gflop/s, ranks of one CPU"] = float(best["gflops"].iloc[0]) if len(best) else None
        lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.notes = [
        "Measured: 400 x 400 x 40 shared by slabs (aug_spmv(), throughput mode: 400 x 100 x 40, vectors shared). "
        "Projected: 2.9e16 flop (138 a row, 6.55e9 rows) over the rate of a device of the most that were measured "
        "together.",
        "The model: a sweep takes as long as the slower of interior and link, and the boundary; so the projection "
        "holds where the link between devices is fast enough.",
        *notes,
        "One GPU has no reduction to leave out, so its aug_spmmv()* is an empty slot.",
        "The printed node hours lie 5.5 % above flop over rate throughout.",
    ]
    return result


def _largest(rows: pandas.DataFrame, count: int) -> pandas.DataFrame:
    """Return the row of the largest sample on so many GPUs, the fastest of equal ones."""
    here = rows[rows["clock"].isin(["events", "wall"]) & ~rows["p_study"].isin(["ranks"])] if len(rows) else rows
    if not len(here):
        return here
    gpus = pandas.to_numeric(here["p_gpus"]).fillna(0).clip(lower=1)
    here = here[(gpus == count) & (here["processor"] == here["device"])]
    return here.sort_values(["v_rows", "gflops"]).iloc[[-1]] if len(here) else here
