"""Table 2 of tSparse: how well each criterion tells where the paper's method, or ours, is faster."""

import numpy as np
import pandas

from spectile_study.bench.claims import printed
from spectile_study.bench.rows import Ours, Rows
from spectile_study.figures.criteria import CRITERIA, collection, fitted, scores
from spectile_study.figures.palette import name as called
from spectile_study.figures.tables import Cell, Table
from spectile_study.figures.tsparse import APPROACHES, OTHERS, compared, failed_rivals, vendor

TARGETS = {"tSparse": "tasks_float16", "by rows": "spectile_float16"}
#: Methods over the fastest of which each line of the table is scored.
RIVALS = {name: (method,) for name, method in APPROACHES.items() if name != "nontcu"}
RIVALS["all"] = ("cusparse_float32", *OTHERS)
COLUMNS = {"filled": "NNZ(C̄)/NNZ(C̄_tiles)", "v_row_mean": "row"}


def table(frame: pandas.DataFrame) -> Table:
    result = Table("Table 2: criteria that tell where a method is faster")
    tests = list(CRITERIA)
    for target, ours in TARGETS.items():
        if len(rows := collection(frame, ours)) and not (rows["speedup"] > 1).all():
            for column, name in COLUMNS.items():
                cut = fitted(rows, column)
                text = f"re-fitted, {target}: {name} >= {cut:.3g}"
                tests.append(("", text, lambda r, cut=cut, column=column: r[column] >= cut))
    lines, notes = [], []
    for paper, text, test in tests:
        rival = paper or "cusparse"
        line: dict[str, object] = {"against": against(frame, rival), "condition": text}
        for target, ours in TARGETS.items():
            rows = collection(frame, ours, rival)
            result.cite(rows, "speedup")
            predicted = test(rows).to_numpy(dtype=bool)
            faster = rows["speedup"].to_numpy(dtype=float) > 1
            line |= scored(target, predicted, faster) if len(rows) else {}
        lines.append(line | {f"paper's {n}": printed(f"tsparse_t2_{paper}_{n}") if paper else None for n in SCORES})
    columns = [f"{target}: {name}" for target in TARGETS for name in ("predictions", *SCORES)]
    heads = ["against", "condition", *columns, *(f"paper's {name}" for name in SCORES)]
    result.data = pandas.DataFrame(lines).reindex(columns=heads)
    result.formats = {f"{target}: {name}": "{:.2f}" for target in TARGETS for name in SCORES}
    for target, ours in TARGETS.items():
        if len(rows := collection(frame, ours)):
            count = int((rows["speedup"] > 1).sum())
            vacuous = ": whatever a condition predicts is right, so its precision says nothing" * (count == len(rows))
            notes.append(f"{target}: {count} of {len(rows)} matrices are faster than {base(frame)}{vacuous}.")
    built = [name for name in OTHERS if len(collection(frame, "tasks_float16", name))]
    result.notes = [
        "As the paper scores them: the prediction is that the method is faster than the library of the row, mixed "
        "precision; tSparse with conversions apart, by rows from CSR to CSR. The paper's collections have 233 to 260.",
        "The matrices: square, real, in the range of float16, over 10,000 entries, over one a tile, neither failed.",
        f"All: on each matrix, than the fastest that ran there of {', '.join([base(frame), *map(called, built)])}.",
        *([f"Left out where it fails: {failed}."] if (failed := failed_rivals(frame)) else []),
        *notes,
    ]
    return result


SCORES = ("precision", "recall")


def base(frame: pandas.DataFrame) -> str:
    return called(vendor(frame, "float16"))


def against(frame: pandas.DataFrame, rival: str) -> str:
    return {"cusparse": base(frame), "all": "all"}.get(rival, called(rival))


def scored(target: str, predicted: np.ndarray, faster: np.ndarray) -> dict[str, object]:
    """Return the cells of one condition; a score that no prediction could miss is called vacuous."""
    shown = f"{predicted.sum()}/{len(predicted)}"
    numbers = dict(zip(SCORES, scores(predicted, faster), strict=True))
    of = {"of": len(predicted)}
    cells: dict[str, object] = {f"{target}: predictions": Cell(int(predicted.sum()), lambda _: shown, of)}
    for name, number in numbers.items():
        empty = faster.all() if name == "precision" else predicted.all()
        words = "vacuous" if empty and number is not None else ""
        cells[f"{target}: {name}"] = Cell(number, "{:.2f}", {}, words) if words else number
    return cells


def claims(rows: Rows) -> dict[str, Ours]:
    rows, found = compared(rows), {}
    for rival, baselines in RIVALS.items():
        faster = rows.speedup("tasks_float16", *baselines)
        filled, row, entries = faster["v_products"] / faster["v_tile_products"], faster["v_row_mean"], faster["v_nnz"]
        predicted = {
            "cusparse": entries > 200_000,
            "cusp": filled > 0.999,
            "rmerge2": (row > 42) & (entries > 100_000),
            "nsparse": (row > 42) & (entries > 100_000),
            "ac_spgemm": filled > 9,
        }.get(rival, (row > 42) & (entries > 300_000))
        found[f"tsparse_t2_{rival}_precision"] = faster.precision(predicted)
        found[f"tsparse_t2_{rival}_recall"] = faster.recall(predicted)
    return found
