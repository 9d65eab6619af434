"""The trailing update from INT8 products (Ozaki's second scheme) against FP64 tensor cores: time and error."""

import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.bench.stats import speedups
from spectile_study.figures.tables import Table, first_value


def table(frame: pandas.DataFrame) -> Table:
    rows = at(frame, p_study="int8", status="ok")
    rows = rows[rows["time_s"].notna()].sort_values(["p_block", "p_k"], na_position="first")
    result = Table("Trailing update from INT8 products against FP64")
    lines = []
    for case in dict.fromkeys(rows["case"]):
        here = at(rows, case=case)
        first = here.iloc[0]
        update = pandas.isna(first["p_block"])
        what = f"update, k = {first['p_k']:,.0f}" if update else f"band reduction, nb = {first['p_block']:,.0f}"
        for method in here["method"]:
            found = at(here, method=method)
            products = "FP64" if method == "spectile" else f"INT8, {method.partition('_')[2]} moduli"
            faster = speedups(here, method, "spectile")
            line: dict[str, object] = {"n": int(first["p_n"]), "what": what, "products": products}
            line["seconds"] = float(found["time_s"].iloc[0])
            line["speed, FP64 = 1"] = first_value(faster, "speedup")
            line["relative error of the update"] = float(found["error_fro_rel"].iloc[0]) if update else ""
            line["|λ − λ ref| / (n ε ‖A‖)"] = "" if update else float(found["error_values"].iloc[0])
            result.cite(found, "time_s").cite(found, "error_fro_rel" if update else "error_values")
            lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.formats = {name: "{:.1e}" for name in ("relative error of the update", "|λ − λ ref| / (n ε ‖A‖)")}
    result.formats["speed, FP64 = 1"] = "{:.2f}"
    result.notes += sorted(set(at(frame, p_study="int8", status="skipped")["reason"].dropna()))
    if not lines:
        result.notes.append("This run holds no record of the INT8 products: they are measured on a CUDA device.")
    return result


def claims(rows: Rows) -> dict[str, Ours]:
    products = rows.at(p_study="int8", method=("int8_15", "int8_12")).on("RTX 4090")
    return {"evd_int8_passes": products.share_of("fp64").max().at_least(100)}
