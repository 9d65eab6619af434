"""One line a matrix: products, tile density, and the time of one product in each precision, in both columns."""

import pandas
from tsparse_panels import COLORS, not_at_hand, short, vendor

from spectile.bench.claims import select
from spectile.figures.style import Table

PRECISIONS = tuple(COLORS)


def fastest(rows: pandas.DataFrame, names: list[str]) -> pandas.DataFrame:
    """Return the row of the fastest of some methods, or no row."""
    return rows[rows["method"].isin(names)].sort_values("time_s").iloc[:1]


def table(frame: pandas.DataFrame) -> Table:
    result = Table("A line a matrix: A A, milliseconds", pandas.DataFrame())
    ok = frame[frame["status"] == "ok"] if len(frame) else frame
    if "v_products" in ok:
        ok = ok[ok["v_products"].notna()].sort_values("v_products", ascending=False)
    base = {name: vendor(ok, name) if len(ok) else "cusparse" for name in ("float32", "float64")}
    lines = []
    for name in ok["p_matrix"].drop_duplicates() if len(ok) else []:
        rows = select(ok, f"p_matrix={name}")
        first = rows.iloc[[0]]
        line: dict[str, object] = {"matrix": short(name)}
        for column, head in {"v_products": "products", "v_nnz_c": "entries of C"}.items():
            line[head] = f"{first[column].iloc[0]:,.0f}"
            result.cite(first, column)
        line["entries a tile"] = round(float(first["v_tile_density_mean"].iloc[0]), 1)
        wanted = {f"CSR to CSR, {p}": [f"spectile_{p}"] for p in PRECISIONS}
        wanted["kernel format, 11 or 24 bits"] = [f"{kind}_{p}" for kind in ("rows", "tiles") for p in PRECISIONS[:3]]
        wanted["kernel format, float64"] = ["rows_float64", "tiles_float64"]
        wanted |= {method.replace("_", " "): [method] for method in base.values()}
        for head, methods in wanted.items():
            best = fastest(rows, methods)
            line[head] = 1e3 * float(best["time_s"].iloc[0]) if len(best) else None
            result.cite(best, "time_s")
            if head.startswith("kernel"):
                line[f"{head}: by"] = best["method"].iloc[0].replace("_", ", ") if len(best) else None
        lines.append(line)
    result.data = pandas.DataFrame(lines)
    reasons = frame.loc[frame["status"] != "ok", ["p_matrix", "method", "reason"]] if len(frame) else frame
    failed = [f"{short(r.p_matrix)}, {r.method}: {r.reason}" for r in reasons.itertuples() if "fail" in str(r.reason)]
    result.notes = [
        "CSR to CSR: check of the input, analysis and allocations included, columns sorted. Kernel format: the faster "
        "of checked CSR by rows and of bitmap tiles, conversions apart as in the paper.",
        *not_at_hand(frame),
        *failed,
    ]
    return result
