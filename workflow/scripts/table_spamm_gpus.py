"""The product over several GPUs: speed-up over one GPU by where the data lie."""

import pandas

from spectile.nearsparse.bounds import HOST_BYTES_S, host_bound
from spectile_study.bench.claims import select
from spectile_study.bench.stats import speedups
from spectile_study.cases.spamm.build import skip_reasons
from spectile_study.figures.style import Table

PLACES = {
    "spectile_30": "rows of A and all of B on every GPU",
    "spectile_30_device": "all on the first GPU",
    "spectile_30_host": "all in pinned host memory",
}


def of_host(row: pandas.Series) -> str:
    """Return the share of the time that the matrices take over the host's links at their measured rate."""
    share = host_bound(int(row["p_n"]), row["p_precision"], int(row["p_gpus"])) / row["time_s"]
    return f"\n{share:.0%} of its time on the host's links"


def table(frame: pandas.DataFrame) -> Table:
    rows = select(frame, "p_study=product")
    rows = rows[rows["p_gpus"] > 1] if len(rows) else rows
    result = Table("Several GPUs: speed-up over one at 30 % valid products", pandas.DataFrame())
    lines = []
    order = rows.sort_values(["p_n", "p_precision", "p_gpus"], ascending=True) if len(rows) else rows
    for case in dict.fromkeys(order["case"]):
        here = select(rows, f"case={case}")
        first = here.iloc[0]
        line: dict[str, object] = {"N": f"{first['p_n']:,.0f}", "precision": first["p_precision"]}
        line["GPUs"] = f"{first['p_gpus']:.0f}"
        for method, label in PLACES.items():
            fast = speedups(here, method, "one_gpu_30")
            line[label] = None
            if len(fast):
                row = fast.iloc[0]
                line[label] = f"{row['speedup']:.2f}{of_host(row) if method.endswith('host') else ''}"
                result.cite(fast, "speedup")
        if any(line[label] is not None for label in PLACES.values()):
            lines.append(line)
    result.data = pandas.DataFrame(lines)
    measured = [
        "One GPU's product was timed in the same rounds; every result equals it to the bit.",
        f"The host's links carry {HOST_BYTES_S[0] / 1e9:.0f} GB/s to one GPU, {HOST_BYTES_S[1] / 1e9:.0f} to eight.",
    ]
    result.notes = [*(measured if lines else ["This run holds no record of several GPUs."]), *skip_reasons(rows)]
    return result
