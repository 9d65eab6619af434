"""What the library's cost models say of the draws of a frame on devices that are not at hand: predicted, not measured.

SpAMM's models know the dense product, too; those of the sparse product and of the recurrence know ours alone, and the
eigensolver has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spectile.core.choice import Candidate
from spectile.core.devices import TABLE, Device
from spectile_study.figures.tables import Cell, Table

if TYPE_CHECKING:
    import pandas

#: Devices of the table, by their names there.
DEVICES = ("A100", "L40S", "RTX 4090", "RTX 5090", "B200")
COLUMNS = (
    "system", "device", "draws", "kernels", "predicted s", "vendor over ours, predicted", "vendor faster, predicted",
)  # fmt: skip
WORDS = "{low:.2g} to {high:.2g}"


class Predicted(NamedTuple):
    """A draw on a device: the kernel that is taken, its seconds, and the vendor's, None where no model knows it."""

    kernel: str
    seconds: float
    vendor_s: float | None


def _spamm(row: Any, device: Device) -> Predicted:
    from spectile.nearsparse.cuda.candidates import candidates
    from spectile.nearsparse.cuda.choose import Problem
    from spectile.nearsparse.types import Request
    from spectile_study.everyday.spamm import PRECISIONS

    problem = Problem(int(row["p_m"]), int(row["p_k"]), int(row["p_n"]), precision=PRECISIONS[row["p_dtype"]])
    request = Request(problem.precision, rtol_factors=float(row["p_rtol"]))
    listed = candidates(problem, device, request, True, float(row["w_share"]))
    dense = next(one.seconds for one in listed if one.kernel == "dense")
    best = _cheapest([one for one in listed if one.kernel != "dense"])
    return Predicted(best.kernel, best.seconds or 0.0, dense)


def _tsparse(row: Any, device: Device) -> Predicted:
    from spectile.tsparse import candidates
    from spectile.tsparse.types import lookup

    work = candidates.Work(int(row["w_rows"]), int(row["w_factors"]), int(row["w_products"]), float(row["w_nnz"]))
    precision = lookup("float64" if row["p_dtype"] == "float64" else "float32")
    one = candidates.on_gpu(work, precision, device)
    return Predicted(one.kernel, one.seconds or 0.0, None)


def _kpm(row: Any, device: Device) -> Predicted:
    from spectile.kpm.cuda.choose import ways
    from spectile.kpm.cuda.problem import Problem

    orbitals = int(row["p_orbitals"]) if row["p_kind"] == "Wannier" else 1
    groups = int(row["w_rows"]) // orbitals * -(-orbitals // 8)
    rows, entries, longest, slots = (int(row[f"w_{name}"]) for name in ("rows", "nnz", "longest", "slots"))
    problem = Problem(rows, entries, longest, slots, groups, row["p_dtype"], int(row["p_vectors"]))
    best = _cheapest([way.candidate for way in ways(problem, device, {})])
    return Predicted(best.kernel, (best.seconds or 0.0) * row["p_moments"] / 2, None)


def _cheapest(listed: list[Candidate]) -> Candidate:
    return min((one for one in listed if one.seconds is not None), key=lambda one: one.seconds or 0.0)


MODELS: Mapping[str, Callable[[Any, Device], Predicted]] = {"spamm": _spamm, "tsparse": _tsparse, "kpm": _kpm}


def predicted(frame: pandas.DataFrame, system: str, device: Device) -> list[Predicted]:
    """Return the predictions for the measured draws of a system.

    Parameters
    ----------
    frame : DataFrame
        Of any machine: what decides is in its columns ``p_<name>`` and ``w_<name>``.
    system : str
    device : Device
        Need not be there, and may have too little memory for some of them.
    """
    rows = frame[(frame["system"] == system) & (frame["status"] == "ok")]
    return [MODELS[system](row, device) for _, row in rows.iterrows()]


def table(frame: pandas.DataFrame) -> Table:
    """Return which kernels each device takes, how long they take, and how often the vendor is better."""
    lines = []
    for system in MODELS:
        for name in DEVICES:
            found = predicted(frame, system, TABLE[name])
            if not found:
                continue
            seconds = np.quantile([one.seconds for one in found], (0.05, 0.5, 0.95))
            ratios = [one.vendor_s / one.seconds for one in found if one.vendor_s is not None]
            kernels = Counter(one.kernel for one in found)
            values = (
                system,
                TABLE[name].name,
                len(found),
                ", ".join(f"{kernel} {count}" for kernel, count in kernels.most_common(4)),
                Cell(
                    float(seconds[1]), "{:.3g}", dict(zip(("low", "high"), seconds[::2].tolist(), strict=True)), WORDS
                ),
                float(np.median(ratios)) if ratios else "no model",
                sum(ratio < 1 for ratio in ratios) if ratios else "no model",
            )
            lines.append(dict(zip(COLUMNS, values, strict=True)))
    import pandas

    notes = [
        "Nothing here was measured: the library's cost models and the vendors' specifications predict it.",
        "Seconds are those of a product, or of KPM's recurrence alone: the median, and 5 to 95 % of the draws.",
        "The eigensolver has no such model.",
    ]
    return Table("Predicted on devices that are not at hand", pandas.DataFrame(lines, columns=list(COLUMNS)), notes)
