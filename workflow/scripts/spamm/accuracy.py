"""SpAMM within an error that somebody asks for: time beside the error that came out, on matrices that people have."""

import pandas

from spectile_study.bench.rows import at
from spectile_study.bench.stats import speedups
from spectile_study.figures.tables import Cell, Table

NEEDS = ("t4", "fig6")  # elements whose cases are drawn here, too


def table(frame: pandas.DataFrame) -> Table:
    rows = frame[frame["p_study"].isin(["accuracy", "water"]) & (frame["p_gpus"] <= 1)]
    asked = rows[rows["method"].str.startswith("called_rtol_")]
    result = Table("C = A² within an error that somebody asks for")
    lines = []
    for (case, method), ours in asked[asked["status"] == "ok"].groupby(["case", "method"], sort=False):
        here = at(rows, case=case)
        first = ours.iloc[0]
        found = [speedups(here, method, dense) for dense in ("called_dense", "blas")]
        over = next((each for each in found if len(each)), None)
        of = f", {first['p_molecules']:.0f} waters" if pandas.notna(first["p_molecules"]) else ""
        lines.append({
            "matrix": f"{first['v_matrix']}{of}",
            "n": int(first["v_rows"]),
            "precision": first["p_precision"],
            "rtol_factors": Cell(float(method.removeprefix("called_rtol_")), "{:.0e}"),
            "error ‖C − AA‖ / ‖AA‖": Cell(first["error_fro_rel"], "{:.1e}"),
            "valid": Cell(first["v_valid_ratio"], "{:.2%}"),
            "time, ms": Cell(1e3 * first["time_s"], "{:.3g}"),
            "speed-up over the dense product": None if over is None else Cell(over["speedup"].iloc[0], "{:.2f}"),
        })  # fmt: skip
        for column in ("v_valid_ratio", "error_fro_rel", "time_s"):
            result.cite(ours, column)
        if over is not None:
            result.cite(over, "speedup")
    result.data = pandas.DataFrame(lines)
    devices = sorted(set(asked["device"]))
    result.notes = [
        "rtol_factors bounds ‖C − AA‖ over ‖A‖²; the error is against the float64 product of the same entries. "
        "Norm maps and the search of the threshold are in the time.",
        f"Measured on {', '.join(devices)}." if devices else "This run holds no record of a product within an error.",
        *sorted(set(asked.loc[asked["status"] == "skipped", "reason"])),
    ]
    return result
