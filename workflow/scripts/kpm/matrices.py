"""Matrices of users: the recurrence and the public calls on stored Hamiltonians of other models, of every type."""

import pandas

from spectile_study.bench.rows import at
from spectile_study.cases.kpm.matrices import WIDTHS
from spectile_study.cases.kpm.shared import STEPS
from spectile_study.figures.kpm import drawn_by
from spectile_study.figures.tables import Cell, Table


def table(frame: pandas.DataFrame) -> Table:
    rows = drawn_by(frame, "matrices")
    result, lines = Table("Matrices of users: one step by the device, and whole calls"), []
    for case in rows["case"].drop_duplicates():
        here = at(rows, case=case)
        first = here.iloc[0]
        moments = int(first["p_num_moments"])
        copy = at(here, method="copy")["gbytes_s"]
        line: dict[str, object] = {
            "matrix": first["p_matrix"],
            "entries a row": float(first["v_nnz_per_row"]),
            "type": first["p_precision"],
        }
        for width in WIDTHS:
            for head, method, parts in (
                (f"step, R = {width}", "step", STEPS),
                (f"kpm_dos, R = {width}", "as_called", 1),
                (f"in a loop, R = {width}", "as_called_loop", 1),
                (f"ldos, R = {width}", "as_called_ldos", 1),
            ):
                found = at(here, method=f"{method}_r{width}")
                line[head] = _cell(found, parts, copy)
                result.cite(found, "time_s")
            ours, theirs = (at(here, method=f"{name}_r{width}") for name in ("step", "product"))
            result.cite(theirs, "time_s")
            faster = float(theirs["time_s"].iloc[0] / ours["time_s"].iloc[0]) if len(ours) and len(theirs) else None
            line[f"over the library's product, R = {width}"] = faster
        lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.formats = {head: "{:.1f}" for head in result.data if head.startswith(("entries", "over"))}
    result.notes = [
        "Milliseconds, and below them the share of the copy rate that the least bytes take: matrix and row pointers "
        f"once, block vectors three times. {moments if len(rows) else ''} moments; kpm_dos and ldos are calls with "
        "bounds, check and start vectors, one at a time or in a loop; a step is the device's own time. The last of "
        "each width: the same steps by the product of CuPy (SciPy) and array arithmetic.",
    ]
    return result


def _cell(found: pandas.DataFrame, parts: int, copy: pandas.Series) -> Cell | None:
    if not len(found):
        return None
    share = 100 * float(found["gbytes_s"].iloc[0] / copy.iloc[0]) if len(copy) else None
    below = {"share": share} if share is not None else {}
    return Cell(1e3 * float(found["time_s"].iloc[0]) / parts, "{:.3g}", below, "{share:.0f} %" if below else "")
