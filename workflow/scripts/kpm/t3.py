"""Table III of KPM: resources for the largest system, by version."""

import pandas

from spectile_study.bench.claims import printed
from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.figures.kpm import ROW_FLOPS, drawn_by, largest, link_rate
from spectile_study.figures.palette import name
from spectile_study.figures.tables import Table, first_value

ROWS, VECTORS, MOMENTS = 6.5536e9, 32, 2000  # 6400 x 6400 x 40, four orbitals
FLOPS = ROWS * ROW_FLOPS * VECTORS * MOMENTS / 2
PAPER = {"Tflop/s (paper)": "rate", "nodes (paper)": "nodes", "node hours (paper)": "hours"}
#: Planes of a slab on the fewest devices whose memory holds the vectors, and planes sent to each side for a step.
PLANES, SENT = 50, {"aug_spmmv_star": 1, "aug_spmmv": 1, "blocked": 1.5}
NOTES = (
    "Measured: 400 x 400 x 40 shared by slabs (aug_spmv(), throughput mode: 400 x 100 x 40, vectors shared). "
    "Projected: 2.9e16 flop (138 a row, 6.55e9 rows) over the rate of a device of the most measured together.",
    "The model: a sweep takes as long as the slower of interior and link, and the boundary; so the projection holds "
    "where the link between devices is fast enough.",
    "One GPU has no reduction to leave out, so its aug_spmmv()* is an empty slot.",
    "The printed node hours lie 5.5 % above flop over rate throughout.",
)


def table(frame: pandas.DataFrame) -> Table:
    rows = drawn_by(frame, "t3")
    lines, needs = [], []
    result = Table("Table III: resources for the largest system, R = 32, M = 2000")
    for version in ("aug_spmv", "aug_spmmv_star", "aug_spmmv", "blocked"):
        key = version.replace("_star", "star")
        line = {"version": name(version)}
        for column, part in PAPER.items():
            line[column] = printed(f"kpm_t3_{key}_{part}") if version != "blocked" else None
        here, per_device, most = at(rows, method=version), None, None
        for count in (1, 2, 4, 8):
            best = largest(here, count)
            result.cite(best, "gflops")
            rate = first_value(best, "gflops")
            line[f"Gflop/s, {count} GPU{'s' if count > 1 else ''}"] = rate
            per_device, most = (rate / count, count) if rate else (per_device, most)
        line["device hours (projected)"] = FLOPS / (per_device * 1e9) / 3600 if per_device else None
        line["from the rate of"] = f"{most} GPU{'s' if most > 1 else ''}" if most else None
        if per_device and version in SENT:
            need = link_rate(per_device, SENT[version] / PLANES)
            needs.append(f"{name(version)}: slabs of {PLANES} planes hide halos behind {need:.0f} GB/s links.")
        ranks = here[here["clock"] == "external"]
        best = ranks.sort_values("gflops").iloc[-1:]
        result.cite(best, "gflops")
        line["Gflop/s, ranks of one CPU"] = first_value(best, "gflops")
        lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.notes = [*NOTES[:2], *needs, *NOTES[2:]]
    return result


def claims(rows: Rows) -> dict[str, Ours]:
    devices = rows.at(p_study="devices", p_nx=400, p_ny=400)
    blocks = rows.at(case="devices_400x400x40_4", method="aug_spmmv").rate().median()
    apart = rows.at(case="throughput_400x100x40_4", method="aug_spmv").rate().median()
    return {
        "kpm_reduction_gain": devices.at(p_gpus=4).gain("aug_spmmv", "aug_spmmv_star").only(),
        "kpm_star_slower": devices.speedup("aug_spmmv", "aug_spmmv_star").min().at_least(1),
        "kpm_throughput_mode": (blocks / apart).at_least(2),
    }
