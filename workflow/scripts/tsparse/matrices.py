"""One line for each matrix: products, tile density, and the time of one product in each precision, in both columns."""

import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.bench.stats import speedups
from spectile_study.figures.tables import Table, first_value
from spectile_study.figures.tsparse import columns_of_methods, fails, fastest, milliseconds, not_at_hand, short, vendor


def table(frame: pandas.DataFrame) -> Table:
    result = Table("One line for each matrix: A A, milliseconds")
    ok = frame[frame["status"] == "ok"]
    ok = ok[ok["v_products"].notna() & ok["p_matrix"].notna()].sort_values("v_products", ascending=False)
    base = {name: vendor(ok, name) for name in ("float32", "float64")}
    lines = []
    threads = any(method.endswith("_one_thread") for method in ok["method"])  # on a CPU
    for name in ok["p_matrix"].drop_duplicates():
        rows = at(ok, p_matrix=name)
        first = rows.iloc[[0]]
        line: dict[str, object] = {"matrix": short(name)}
        for column, head in {"v_products": "products", "v_nnz_c": "entries of C"}.items():
            line[head] = int(first[column].iloc[0])
            result.cite(first, column)
        line["entries a tile"] = float(first["v_tile_density_mean"].iloc[0])
        for head, methods in columns_of_methods(list(base.values()), threads).items():
            best = fastest(rows, methods)
            line[head] = (
                milliseconds(best, head == "kernels alone, 11 or 24 bits") if len(best) else fails(frame, name, methods)
            )
            result.cite(best, "time_s")
        for precision in base if threads else ():
            for head, ours in (("one thread", f"spectile_{precision}_one_thread"), ("all", f"spectile_{precision}")):
                best = speedups(rows, ours, base[precision])
                line[f"speed-up, {head}, {precision}"] = first_value(best, "speedup")
                result.cite(best, "speedup")
        lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.formats = {head: "{:.2f}" for head in result.data if head.startswith("speed-up")} | {
        "entries a tile": "{:.1f}"
    }
    reasons = frame.loc[frame["status"] == "failed", ["p_matrix", "method", "reason"]].dropna(subset="p_matrix")
    failed = [f"{short(r.p_matrix)}, {r.method}: {r.reason}" for r in reasons.itertuples() if "fail" in str(r.reason)]
    columns = (
        "All threads of the machine where not said; speed-ups are over SciPy's product and its sort."
        if threads
        else "Kernels alone: by rows, of checked factors. Paper's method: conversions to and from tiles apart."
    )
    result.notes = [
        f"CSR to CSR: check of the input, analysis and allocations included, columns sorted. {columns}",
        *not_at_hand(frame),
        *failed,
    ]
    return result


def claims(rows: Rows) -> dict[str, Ours]:
    mirror = rows.at(p_part="mirror", v_nnz=lambda nnz: nnz > 10_000)
    dense = mirror.at(v_tile_density_mean=lambda mean: mean > 5)
    faster, of_dense = (part.speedup("tasks_float16", "cusparse_float32") for part in (mirror, dense))
    return {
        "tsparse_denser_is_faster": faster.rank("v_tile_density_mean").at_least(0.3),
        "tsparse_dense_tiles": of_dense.geomean().at_least(1),
    }
