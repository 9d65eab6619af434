"""Table 2 of tSparse: how well each criterion tells where ours is faster, and ours re-fitted."""

import numpy as np
import pandas
from tsparse_panels import fitted, long_rows, scores, vendor

from spectile.bench.stats import speedups
from spectile.figures import style
from spectile.figures.style import Table, printed


def collection(frame: pandas.DataFrame, ours: str = "spectile_float16") -> pandas.DataFrame:
    """Return one row a matrix that meets the paper's conditions, with the speed-up of `ours`.

    Real, square, in the range of float16, more than 10,000 entries, more than one a tile, and no method of it failed.
    """
    if not len(frame) or "v_nnz" not in frame:
        return frame.iloc[:0]
    failed = frame.loc[frame["status"] == "failed", "case"]
    rows = speedups(frame[~frame["case"].isin(failed)], ours, vendor(frame, "float16"))
    kept = (rows["v_nnz"] > 10_000) & rows["v_square"] & rows["v_half_range"] & (rows["v_tile_density_mean"] > 1)
    return rows[kept.astype(bool)].assign(filled=lambda r: r["v_products"] / r["v_tile_products"])


CRITERIA = (
    ("cusparse", "NNZ(A) > 200,000", lambda r: r["v_nnz"] > 200_000),
    ("cusp", "NNZ(C̄)/NNZ(C̄_tiles) >= 1", lambda r: r["filled"] >= 1),
    ("rmerge2", *long_rows(42, 100_000)),
    ("nsparse", *long_rows(42, 100_000)),
    ("ac_spgemm", "NNZ(C̄)/NNZ(C̄_tiles) > 9", lambda r: r["filled"] > 9),
    ("speck", *long_rows(42, 300_000)),
    ("all", *long_rows(42, 300_000)),
    ("", *long_rows(21, 100_000)),
    ("", *long_rows(21, 300_000)),
)
TARGETS = {"by rows": "spectile_float16", "tiles": "tiles_float16"}


def table(frame: pandas.DataFrame) -> Table:
    result = Table("Table 2: criteria that tell where ours is faster", pandas.DataFrame())
    found = {target: collection(frame, ours) for target, ours in TARGETS.items()}
    tests = list(CRITERIA)
    for target, rows in found.items():
        if len(rows):
            result.cite(rows, "speedup")
            for column, name in {"filled": "NNZ(C̄)/NNZ(C̄_tiles)", "v_row_mean": "row"}.items():
                cut = fitted(rows, column)
                text = f"re-fitted, {target}: {name} >= {cut:.3g}"
                tests.append(("", text, lambda r, cut=cut, column=column: r[column] >= cut))
    lines, names = [], ("precision", "recall")
    for paper, text, test in tests:
        line: dict[str, object] = {"against, in the paper": paper.replace("_", " "), "condition": text}
        for target, rows in found.items():
            predicted = test(rows).to_numpy(dtype=bool) if len(rows) else np.zeros(0, bool)
            numbers = scores(predicted, rows["speedup"].to_numpy(dtype=float) > 1) if len(rows) else (None, None)
            line[f"{target}: predictions"] = f"{predicted.sum()}/{len(rows)}"
            line |= {f"{target}: {name}": number for name, number in zip(names, numbers, strict=True)}
        lines.append(line | {f"paper's {n}": printed(f"tsparse_t2_{paper}_{n}") if paper else None for n in names})
    result.data = pandas.DataFrame(lines)
    baseline = style.name(vendor(frame, "float16"))
    result.notes = [
        f"Faster: than {baseline}, mixed precision; by rows from CSR to CSR, tiles in the kernels' format as in the "
        "paper, whose numbers are against the library of each row, on a collection of 233 to 260 matrices.",
        "The matrices: square, real, in the range of float16, over 10,000 entries, over one a tile, no method failed.",
        *(f"{t}: {int((r['speedup'] > 1).sum())} of {len(r)} are faster." for t, r in found.items() if len(r)),
    ]
    return result
