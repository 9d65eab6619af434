"""What SpAMM's figures of speed share: looks by number of GPUs, and the series of a panel."""

import pandas

from spectile_study.bench.claims import select
from spectile_study.bench.stats import speedups
from spectile_study.cases.spamm.build import RATIOS

LOOKS = {1: ("#0072B2", "o"), 2: ("#009E73", "^"), 4: ("#E69F00", "s"), 8: ("#CC79A7", "D")}


def series(frame, conditions, vendor):
    """Return the rows of all six nominal ratios that meet `conditions`, with speed-ups."""
    rows = select(frame, conditions)
    parts = [speedups(rows, f"spectile_{ratio:02}", vendor) for ratio in RATIOS] if len(rows) else [rows]
    return pandas.concat(parts)


def lines_of(rows, group, n):
    """Return the series of a panel: rows with speed-ups, label, colour and marker."""
    if group == "cpu":
        parts = [(select(rows, f"p_precision={p}"), p, *look) for p, look in (("fp32", LOOKS[1]), ("fp64", LOOKS[4]))]
        return [(series(part, f"p_n={n}", "blas"), *look) for part, *look in parts]
    gpus = rows["p_gpus"].clip(lower=1)
    return [
        (
            series(rows[gpus == count], f"p_n={n},p_precision={group}", "cublas"),
            f"{count} GPU{'s' * (count > 1)}",
            *look,
        )
        for count, look in LOOKS.items()
    ]
