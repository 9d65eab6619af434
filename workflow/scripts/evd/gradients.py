"""Backward passes of the eigendecomposition in times of the products they need, and whole passes beside PyTorch's."""

import pandas

from spectile_study.bench.rows import at
from spectile_study.bench.stats import speedups
from spectile_study.figures.evd import lacking, timed
from spectile_study.figures.tables import Table, first_value


def table(frame: pandas.DataFrame) -> Table:
    result = Table("Gradients of eigh on PyTorch's tensors, float64")
    rows = at(frame, p_study="gradients").sort_values("p_n")
    lines = []
    for case in dict.fromkeys(rows["case"]):
        here = at(rows, case=case)
        line: dict[str, object] = {"n": int(here["p_n"].iloc[0])}
        for head, method in {"three products": "products", "backward": "spectile_backward"}.items():
            found = timed(here, method)
            line[f"{head}: ms"] = 1e3 * float(found["time_s"].iloc[0]) if len(found) else None
            result.cite(found, "time_s")
        for head, method in {"": "spectile_backward", "PyTorch's ": "torch_backward"}.items():
            found = speedups(here, "products", method)
            line[f"{head}backward, products = 1"] = first_value(found, "speedup")
            result.cite(found, "speedup")
        for head, method in {"": "spectile_total", "PyTorch's ": "torch_total"}.items():
            found = timed(here, method)
            line[f"{head}forward and backward: s"] = first_value(found, "time_s")
            result.cite(found, "time_s")
        found = speedups(here, "spectile_total", "torch_total")
        line["over PyTorch"] = first_value(found, "speedup")
        result.cite(found, "speedup")
        lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.formats = {head: "{:.2f}" for head in result.data if "= 1" in head or "over" in head}
    result.notes += lacking(rows, lines, "gradients")
    return result
