"""The product over several GPUs: speed-up over one GPU by where the data lie."""

import pandas

from spectile_study.bench.rows import at
from spectile_study.bench.stats import speedups
from spectile_study.cases.spamm.ceilings import MACHINES, host_bound
from spectile_study.cases.spamm.thresholds import skip_reasons
from spectile_study.figures.tables import Cell, Table

PLACES = {
    "spectile_30": "rows of A and all of B on every GPU",
    "spectile_30_device": "all on the first GPU",
    "spectile_30_host": "all in pinned host memory",
}


def cell(row: pandas.Series, in_host: bool) -> Cell:
    """Return a speed-up, and the share of the time that the matrices take over the host's links at their rate."""
    known = MACHINES.get(row["device"])
    if not in_host or known is None:
        return Cell(row["speedup"], "{:.2f}")
    bound = host_bound(int(row["p_n"]), row["p_precision"], int(row["p_gpus"]), known)
    share = {"share": bound / row["time_s"]}
    return Cell(row["speedup"], "{:.2f}", share, "{share:.0%} of its time on the host's links")


def table(frame: pandas.DataFrame) -> Table:
    rows = at(frame, p_study="product")
    rows = rows[rows["p_gpus"] > 1]
    result = Table("Several GPUs: speed-up over one at 30 % valid products")
    lines = []
    order = rows.sort_values(["p_n", "p_precision", "p_gpus"])
    for case in dict.fromkeys(order["case"]):
        here = at(rows, case=case)
        first = here.iloc[0]
        line: dict[str, object] = {"N": int(first["p_n"]), "precision": first["p_precision"]}
        line["GPUs"] = int(first["p_gpus"])
        for method, label in PLACES.items():
            fast = speedups(here, method, "one_gpu_30")
            line[label] = cell(fast.iloc[0], method.endswith("host")) if len(fast) else None
            result.cite(fast, "speedup")
        if any(line[label] is not None for label in PLACES.values()):
            lines.append(line)
    result.data = pandas.DataFrame(lines)
    measured = [
        "One GPU's product was timed in the same rounds; every result equals it to the bit.",
        *(
            f"The host's links carry {of.host_bytes / 1e9:.0f} GB/s to one GPU, "
            f"{of.host_bytes_together / 1e9:.0f} to eight."
            for device, of in MACHINES.items()
            if device in set(rows["device"])
        ),
    ]
    result.notes = [*(measured if lines else ["This run holds no record of several GPUs."]), *skip_reasons(rows)]
    return result
