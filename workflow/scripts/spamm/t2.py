"""Table 2 of cuSpAMM: speed-up over the vendor's dense product, and the bounds that the work sets."""

import itertools

import pandas

from spectile.nearsparse.types import PRECISIONS
from spectile_study.bench.claims import printed
from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.bench.stats import speedups
from spectile_study.cases.spamm.thresholds import RATIOS, TABLE_1
from spectile_study.figures.spamm import as_called, bounded_speedup
from spectile_study.figures.tables import Cell, Table, first_value, percent

NEEDS = ("t1",)  # elements whose cases are drawn here, too: what the thresholds leave out of C

PRINTED = ("fp32", "fp16")


def table(frame: pandas.DataFrame) -> Table:
    rows = at(frame, p_study="product")
    rows = rows[rows["p_gpus"] <= 1]
    thresholds = at(frame, p_study="thresholds", status="ok")
    result = Table("Table 2: speed-up over the vendor's dense product")
    lines, rest = [], []
    for ratio in RATIOS:
        parts = [speedups(rows, f"spectile_{ratio:02}", vendor) for vendor in ("cublas", "blas")]
        head = {"valid ratio": Cell(ratio / 100, percent)}
        papers, ours = (
            {each: head | {"precision": each, "whose": whose} for each in PRINTED} for whose in ("paper, V100", "ours")
        )
        for precision in PRECISIONS:
            line: dict[str, object] = head | {"precision": precision}
            for n in TABLE_1:
                here = pandas.concat([at(part, p_n=n, p_precision=precision) for part in parts])
                case = at(rows, p_n=n, p_precision=precision)
                called = as_called(case, f"spectile_{ratio:02}")
                half = speedups(case, f"spectile_{ratio:02}", "cublas_half_sums")
                for cited in (here, called, half):
                    result.cite(cited, "speedup")
                result.cite(here, "v_valid_ratio")
                if precision in PRINTED:
                    paper = printed(f"spamm_t2_{n}_{ratio:02}_{precision}")
                    papers[precision][f"N = {n:,}"] = Cell(paper, "{:.1f}")
                    value = first_value(called if len(called) else here, "speedup")
                    ours[precision][f"N = {n:,}"] = None if value is None else Cell(value, "{:.2f}")
                    called = called.iloc[:0]
                device = here.iloc[0] if len(here) else None
                line[f"N = {n:,}"] = bounded_speedup(device, frame, ratio, called, half)
            if any(line[f"N = {n:,}"] for n in TABLE_1):
                rest.append(line)
        lines += [each[precision] for precision in PRINTED for each in (papers, ours)]
        lines.append(head | {"precision": "float64", "whose": "error ‖C − AB‖ / ‖AB‖"} | _errors(thresholds, ratio))
        column = f"v_error_rel_{ratio:02}"
        result.cite(thresholds[thresholds[column].notna()], column)
    devices = sorted(set(rows["device"]))
    result.data = pandas.DataFrame(lines)
    heads = ["valid ratio", "precision", *(f"N = {n:,}" for n in TABLE_1)]
    result.rest = ("The device alone, and every precision", pandas.DataFrame(rest, columns=heads))
    result.notes = [
        "Ours: a call of spamm over a call of the dense product, both on CuPy arrays, one call after another (wall "
        "clock); on a CPU, and where a run has no calls, norm maps and product over the vendor's.",
        "The error is what the printed threshold leaves out of C: nearly all of it at 5 %. It is the same for every "
        "device and precision, and the paper does not print it.",
        "fp16: the vendor's product sums in float32, as ours does; below, the last number is the device's time over "
        "cublasHgemm, which sums in float16 as the paper's baseline did.",
        'Bounds "of 3.3 (2.7)": 1/valid ratio, in brackets the one by time '
        "(GPU: both norm maps at the rate of a copy, 5 µs, what 64 x 64 tiles execute at the vendor's rate; CPU: norm "
        "maps as timed, valid products at BLAS's rate).",
        "tf32x3 stands beside SGEMM, whose 2N³ flops run on float32 units; ours spends three TF32 products on each "
        "valid one, on tensor cores. The units differ, so there is no bound.",
        "Printed cells above 1/valid ratio (N = 1,024 and 2,048) cannot come from equal flop rates; a cuBLAS baseline "
        "with C in pinned host memory would explain them. Here A, B and C share one memory.",
        f"Measured on {', '.join(devices)}." if devices else "This run holds no record of a product.",
    ]
    return result


def _errors(thresholds: pandas.DataFrame, ratio: int) -> dict[str, object]:
    """Return what the printed thresholds leave out of C, by order."""
    found = {n: first_value(at(thresholds, p_n=n), f"v_error_rel_{ratio:02}") for n in TABLE_1}
    return {f"N = {n:,}": None if pandas.isna(error) else Cell(error, "{:.2f}") for n, error in found.items()}


def claims(rows: Rows) -> dict[str, Ours]:
    found, vendors = {}, {"fp32": "cublas", "fp16": "cublas_half_sums"}
    one_gpu = rows.at(p_study="product", p_gpus=1)
    for precision, vendor in vendors.items():
        here = one_gpu.at(p_precision=precision)
        for n, ratio in itertools.product(TABLE_1, RATIOS):
            faster = here.at(p_n=n).speedup(f"spectile_{ratio:02}", vendor).only()
            if precision == "fp32":  # of cublasHgemm no call is timed
                faster = faster.beside(here.at(p_n=n).speedup(f"called_{ratio:02}", "called_dense").only())
            found[f"spamm_t2_{n}_{ratio:02}_{precision}"] = faster
        sparser = here.speedup("spectile_??", "cublas").fall("v_valid_ratio", "case")
        found[f"spamm_sparser_is_faster_{precision}"] = sparser.at_least(1)
    half = one_gpu.at(p_precision="fp16")
    return found | {
        "spamm_max_fp16": half.speedup("spectile_05", "cublas_half_sums").max(),
        "spamm_faster_fp16": half.speedup("spectile_30", "cublas_half_sums").min().at_least(1),
    }
