"""The paper's thresholds and valid ratios, and the methods that they name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

BLOCK = 32

# Table 1: nominal valid ratios in per cent, and the thresholds printed for a_ij = 0.1 / (|i - j|^0.1 + 1).
RATIOS = (30, 25, 20, 15, 10, 5)
TABLE_1: dict[int, tuple[float, ...]] = {
    1024: (1.434815, 1.456555, 1.489164, 1.521774, 1.586993, 1.695691),
    2048: (1.310666, 1.330525, 1.360312, 1.40003, 1.449676, 1.548969),
    4096: (1.195803, 1.222981, 1.250158, 1.277335, 1.322631, 1.413222),
    8192: (1.093354, 1.113983, 1.138739, 1.171746, 1.204753, 1.28727),
    16384: (0.997847, 1.012852, 1.03536, 1.06537, 1.110386, 1.170407),
    32768: (0.905539, 0.919156, 0.939582, 0.966816, 1.007668, 1.062136),
}
# Table 4: thresholds for the matrices of electronic structure.
ERGO_TAUS = (1e-10, 1e-8, 1e-6, 1e-4, 1e-2)
# Errors that somebody asks for, ‖C − AB‖ / ‖AB‖ at most, by precision: what rounding alone may come to lies below them.
RTOLS: dict[str, tuple[float, ...]] = {"fp64": (1e-8, 1e-6, 1e-4), "fp32": (1e-3,)}
# Table 5: valid ratios in per cent of the five thresholds of each layer; the digits' are spread alike.
NETWORK_RATIOS: dict[str, tuple[float, ...]] = {
    "conv21": (97.47, 96.84, 85.00, 82.90, 63.41),
    "conv31": (97.92, 94.21, 87.44, 74.36, 43.38),
    "digits": (97.0, 90.0, 75.0, 60.0, 45.0),
}


def thresholds(row: Mapping[str, Any]) -> dict[str, float]:
    """Return method name -> tau of a ``product`` or ``water`` row, in the paper's order."""
    if row["study"] == "product":
        return {f"spectile_{ratio:02}": tau for ratio, tau in zip(RATIOS, TABLE_1[row["n"]], strict=True)}
    return {f"spectile_{tau:.0e}": tau for tau in ERGO_TAUS}


def tolerances(precision: str) -> dict[str, float]:
    """Return method name -> `rtol_factors` of a call of a ``water`` or ``accuracy`` row in this precision."""
    return {f"called_rtol_{rtol:.0e}": rtol for rtol in RTOLS.get(precision, ())}


def network_ratios(layer: str) -> dict[str, float]:
    """Return method name -> wanted valid ratio of a network's layer."""
    return {f"spectile_{ratio:g}".replace(".", "p"): ratio / 100 for ratio in NETWORK_RATIOS[layer]}


def skip_reasons(rows: Any) -> list[str]:
    """Return why methods of these frame rows were skipped, one sentence for all cases that lacked GPUs."""
    reasons = sorted(set(rows.loc[rows["status"] == "skipped", "reason"].dropna())) if len(rows) else []
    wanted = {reason: int(match[1]) for reason in reasons if (match := re.search(r" needs (\d+) GPUs and ", reason))}
    others = [reason for reason in reasons if reason not in wanted]
    if not wanted:
        return others
    counts = " or ".join(map(str, sorted(set(wanted.values()))))
    return [*others, f"{len(wanted)} cases were skipped for want of {counts} GPUs on one host."]
