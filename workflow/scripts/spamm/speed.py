"""What one GPU reaches of its bound: measured speed-up over cuBLAS, and its share of the bound."""

import pandas

from spectile.nearsparse.types import PRECISIONS
from spectile_study.bench.rows import at
from spectile_study.bench.stats import rates, speedups
from spectile_study.cases.spamm.ceilings import Machine, bytes_bound, executed_64x64, speedup_bound
from spectile_study.cases.spamm.thresholds import TABLE_1
from spectile_study.figures.spamm import as_called, machine_of
from spectile_study.figures.tables import Cell, Table, first_value, percent


def cell(
    row: pandas.Series, called: pandas.DataFrame, vendor_s: float, ratio: int, tf32: float, on: Machine | None
) -> Cell:
    """Return the speed-up of a call, where it was measured, and the device's with its share of the bound below."""
    of_device = _of_device(row, vendor_s, ratio, tf32, on)
    if not len(called):
        return of_device
    below = {"device": of_device.value, **of_device.below}
    words = "device {device:.2f}" + (f", {of_device.words}" if of_device.words else "")
    return Cell(called["speedup"].iloc[0], "{:.2f}", below, words)


def _of_device(row: pandas.Series, vendor_s: float, ratio: int, tf32: float, on: Machine | None) -> Cell:
    n = int(row["p_n"])
    if row["p_precision"] == "tf32x3":
        rate = row["flops"] / row["time_s"] * row["v_executed_ratio"] / row["v_valid_ratio"] / 1e12
        below = {"share": 3 * rate / tf32, "peak": tf32 / 3}
        return Cell(row["speedup"], "{:.2f}", below, "{share:.0%} of {peak:.0f} TFLOP/s")
    if on is None:
        return Cell(row["speedup"], "{:.2f}")
    bound = speedup_bound(vendor_s, n, row["p_precision"], executed_64x64(n, ratio), on)
    below, words = {"share": row["speedup"] / bound, "bound": bound}, "{share:.0%} of {bound:.2f}"
    by_bytes = bytes_bound(vendor_s, n, row["p_precision"], on)
    if by_bytes < bound:
        below |= {"share by bytes": row["speedup"] / by_bytes, "bound by bytes": by_bytes}
        words += "; {share by bytes:.0%} of {bound by bytes:.2f} by bytes"
    return Cell(row["speedup"], "{:.2f}", below, words)


def table(frame: pandas.DataFrame) -> Table:
    rows = at(frame, p_study="product", p_gpus=1, status="ok")
    result = Table("Speed-up over cuBLAS on one GPU, and which share of its bound that is")
    tf32, lines = rates(at(rows, method="cublas_tf32")).max(), []
    machines = {device: machine_of(frame, device) for device in rows["device"].unique()}
    for precision in PRECISIONS:
        for ratio in (30, 5):
            line: dict[str, object] = {"precision": precision, "valid ratio": Cell(ratio / 100, percent)}
            for n in TABLE_1:
                here = at(rows, p_n=n, p_precision=precision)
                ours = speedups(here, f"spectile_{ratio:02}", "cublas")
                vendor_s = first_value(at(here, method="cublas"), "time_s")
                on = machines[ours["device"].iloc[0]] if len(ours) else None
                called = as_called(here, f"spectile_{ratio:02}")
                line[f"N = {n:,}"] = cell(ours.iloc[0], called, vendor_s, ratio, tf32, on) if len(ours) else None
                result.cite(ours, "speedup").cite(called, "speedup")
            lines.append(line)
    result.data = pandas.DataFrame(lines)
    known = {device: on for device, on in machines.items() if on}
    copies = " and ".join(f"{on.copy_bytes / 1e12:.2f} TB/s ({device})" for device, on in known.items())
    caches = " and ".join(f"{on.l2_bytes / 1e6:.0f} MB" for on in known.values())
    result.notes = [
        "First the speed-up of a call of spamm over a call of the dense product, one call after another, wall clock; "
        "below it the device's own time over cuBLAS's, and the share of its bound.",
        f"Bound: t_cuBLAS / (both norm maps at a copy's {copies or 'rate'} + 5 µs + what 64 x 64 tiles execute at "
        "cuBLAS's rate). It leaves out C, which a product of few tiles writes whole.",
        '"By bytes": reading A and B twice, for norms and for products, and writing C at that rate, where this allows '
        f"less than the bound and the matrices do not fit the L2 cache ({caches or 'not known'}).",
        "tf32x3: the speed-up is over SGEMM, whose 2N³ flops run on float32 units. The share is of tensor cores: three "
        "TF32 products of each executed tile, over cuBLAS's best TF32 rate in this run.",
        "N = 1,024 and 2,048: replay of a graph on both sides; larger: events after the L2 cache was overwritten.",
    ]
    return result
