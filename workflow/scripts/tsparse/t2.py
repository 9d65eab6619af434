"""Table 2 of tSparse: how well each criterion tells where ours is faster, and ours re-fitted."""

import pandas

from spectile_study.bench.claims import printed
from spectile_study.figures.criteria import CRITERIA, collection, fitted, scores
from spectile_study.figures.palette import name as called
from spectile_study.figures.tables import Cell, Table
from spectile_study.figures.tsparse import vendor

TARGETS = {"by rows": "spectile_float16", "tiles": "tiles_float16"}


def table(frame: pandas.DataFrame) -> Table:
    result = Table("Table 2: criteria that tell where ours is faster")
    found = {target: collection(frame, ours) for target, ours in TARGETS.items()}
    tests = list(CRITERIA)
    for target, rows in found.items():
        result.cite(rows, "speedup")
        if len(rows):
            for column, name in {"filled": "NNZ(C̄)/NNZ(C̄_tiles)", "v_row_mean": "row"}.items():
                cut = fitted(rows, column)
                text = f"re-fitted, {target}: {name} >= {cut:.3g}"
                tests.append(("", text, lambda r, cut=cut, column=column: r[column] >= cut))
    lines, names = [], ("precision", "recall")
    for paper, text, test in tests:
        line: dict[str, object] = {"against, in the paper": called(paper), "condition": text}
        for target, rows in found.items():
            predicted = test(rows).to_numpy(dtype=bool)
            numbers = scores(predicted, rows["speedup"].to_numpy(dtype=float) > 1)
            shown = f"{predicted.sum()}/{len(rows)}"
            line[f"{target}: predictions"] = Cell(int(predicted.sum()), lambda _, shown=shown: shown, {"of": len(rows)})
            line |= {f"{target}: {name}": number for name, number in zip(names, numbers, strict=True)}
        lines.append(line | {f"paper's {n}": printed(f"tsparse_t2_{paper}_{n}") if paper else None for n in names})
    result.data = pandas.DataFrame(lines)
    result.formats = {f"{target}: {name}": "{:.2f}" for target in TARGETS for name in names}
    baseline = called(vendor(frame, "float16"))
    result.notes = [
        f"Faster: than {baseline}, mixed precision; by rows from CSR to CSR, tiles in the kernels' format as in the "
        "paper, whose numbers are against the library of each row, on a collection of 233 to 260 matrices.",
        "The matrices: square, real, in the range of float16, over 10,000 entries, over one a tile, no method failed.",
        *(f"{t}: {int((r['speedup'] > 1).sum())} of {len(r)} are faster." for t, r in found.items() if len(r)),
    ]
    return result
