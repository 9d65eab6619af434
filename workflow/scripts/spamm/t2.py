"""Table 2 of cuSpAMM: speed-up over the vendor's dense product, and the bounds that the work sets."""

import itertools

import pandas

from spectile.nearsparse.types import PRECISIONS
from spectile_study.bench.claims import printed
from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.bench.stats import speedups
from spectile_study.cases.spamm.thresholds import RATIOS, TABLE_1
from spectile_study.figures.spamm import as_called, bounded_speedup
from spectile_study.figures.tables import Cell, Table, percent


def table(frame: pandas.DataFrame) -> Table:
    rows = at(frame, p_study="product")
    rows = rows[rows["p_gpus"] <= 1]
    lines, devices = [], sorted(set(rows["device"]))
    result = Table("Table 2: speed-up over the vendor's dense product")
    for ratio in RATIOS:
        parts = [speedups(rows, f"spectile_{ratio:02}", vendor) for vendor in ("cublas", "blas")]
        for precision in PRECISIONS:
            line = {"valid ratio": Cell(ratio / 100, percent), "precision": precision}
            for n in TABLE_1:
                here = pandas.concat([at(part, p_n=n, p_precision=precision) for part in parts])
                result.cite(here, "speedup").cite(here, "v_valid_ratio")
                case = at(rows, p_n=n, p_precision=precision)
                called = as_called(case, f"spectile_{ratio:02}")
                half = speedups(case, f"spectile_{ratio:02}", "cublas_half_sums")
                result.cite(called, "speedup").cite(half, "speedup")
                known = precision in ("fp16", "fp32")
                paper = printed(f"spamm_t2_{n}_{ratio:02}_{precision}") if known else None
                ours = here.iloc[0] if len(here) else None
                line[f"N = {n:,}"] = (
                    bounded_speedup(ours, frame, ratio, paper, called, half) if known or len(here) else None
                )
            lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.notes = [
        "A cell of a GPU: speed-up of a call of spamm over a call of the dense product, both on CuPy arrays, one call "
        "after another (wall clock); then the device's own time over cuBLAS's, beside its bounds.",
        "fp16: the vendor's product sums in float32, as ours does; the last number is the device's time over "
        "cublasHgemm, which sums in float16 as the paper's baseline did.",
        'Bounds "of 3.3 (2.7)": 1/valid ratio, in brackets the one by time '
        "(GPU: both norm maps at the rate of a copy, 5 µs, what 64 x 64 tiles execute at the vendor's rate; CPU: norm "
        "maps as timed, valid products at BLAS's rate), the printed speed-up of a V100.",
        "tf32x3 stands beside SGEMM, whose 2N³ flops run on float32 units; ours spends three TF32 products on each "
        "valid one, on tensor cores. The units differ, so there is no bound.",
        "Printed cells above 1/valid ratio (N = 1,024 and 2,048) cannot come from equal flop rates; a cuBLAS baseline "
        "with C in pinned host memory would explain them. Here A, B and C share one memory.",
        f"Measured on {', '.join(devices)}." if devices else "This run holds no record of a product.",
    ]
    return result


def claims(rows: Rows) -> dict[str, Ours]:
    found, vendors = {}, {"fp32": "cublas", "fp16": "cublas_half_sums"}
    one_gpu = rows.at(p_study="product", p_gpus=1)
    for precision, vendor in vendors.items():
        here = one_gpu.at(p_precision=precision)
        for n, ratio in itertools.product(TABLE_1, RATIOS):
            faster = here.at(p_n=n).speedup(f"spectile_{ratio:02}", vendor)
            found[f"spamm_t2_{n}_{ratio:02}_{precision}"] = faster.only()
        sparser = here.speedup("spectile_??", "cublas").fall("v_valid_ratio", "case")
        found[f"spamm_sparser_is_faster_{precision}"] = sparser.at_least(1 if precision == "fp32" else 0.98)
    half = one_gpu.at(p_precision="fp16")
    return found | {
        "spamm_max_fp16": half.speedup("spectile_05", "cublas_half_sums").max(),
        "spamm_faster_fp16": half.speedup("spectile_30", "cublas_half_sums").min().at_least(1),
    }
