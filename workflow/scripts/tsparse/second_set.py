"""Products that users make and the paper lacks: ours as called beside the vendor's, and with a known pattern."""

import pandas

from spectile_study.bench.rows import at
from spectile_study.bench.stats import geometric_mean, speedups
from spectile_study.figures.tables import Table
from spectile_study.figures.tsparse import vendor

MS = 1e3


def table(frame: pandas.DataFrame) -> Table:
    result = Table("Products of a second set, as called: milliseconds and speed-ups")
    frame = at(frame, p_part="second")
    precisions = ("float64", "float32")
    on_gpu = bool(frame["method"].astype(str).str.endswith("_as_called").any())
    lines = []
    for name in frame["p_product"].dropna().drop_duplicates():
        rows = at(frame, p_product=name)
        first = rows.iloc[[0]]
        line: dict[str, object] = {"product": name, "products": int(first["v_products"].iloc[0])}
        result.cite(first, "v_products")
        for precision in precisions:
            for head, method, column, unit in _columns(frame, precision, on_gpu):
                cell = method(rows)
                line[f"{precision}: {head}"] = unit * float(cell[column].iloc[0]) if len(cell) else None
                result.cite(cell, column)
        lines.append(line)
    result.data = pandas.DataFrame(lines)
    speed = [head for head in result.data if "speed-up" in head]
    result.formats = {head: "{:.2f}" for head in speed} | {"products": "{:,}"}
    for head in speed:
        values = result.data[head].dropna()
        if len(values):
            result.notes.append(
                f"{head}: geometric mean {geometric_mean(list(values)):.2f} of {len(values)}, least {values.min():.2f}."
            )
    result.notes += [
        f"{row.p_product}, {row.method}: {row.reason}" for row in frame[frame["status"] == "failed"].itertuples()
    ]
    return result


def _columns(frame: pandas.DataFrame, precision: str, on_gpu: bool):
    """Yield heading, rows, column and factor of each cell of a precision."""

    def time_of(method):
        return lambda rows: at(rows, method=method, status="ok")

    def ratio(ours, theirs):
        return lambda rows: speedups(rows, ours, theirs)

    ours = f"spectile_{precision}"
    if not on_gpu:
        yield "ms", time_of(ours), "time_s", MS
        yield "speed-up over SciPy", ratio(ours, vendor(frame, precision)), "speedup", 1
        return
    numeric, reuse, cupyx = f"numeric_{precision}", f"cusparse_reuse_{precision}", f"cupyx_{precision}"
    yield "as called, ms", time_of(f"{ours}_as_called"), "time_s", MS
    yield "by CUDA events, ms", time_of(ours), "time_s", MS
    yield "CuPy as called, ms", time_of(f"{cupyx}_as_called"), "time_s", MS
    yield "speed-up, one call", ratio(f"{ours}_as_called", f"{cupyx}_as_called"), "speedup", 1
    yield "speed-up, many calls", ratio(f"{ours}_throughput", f"{cupyx}_throughput"), "speedup", 1
    yield "known pattern as called, ms", time_of(f"{numeric}_as_called"), "time_s", MS
    yield (
        "known pattern, speed-up over spectile's whole call",
        ratio(f"{numeric}_as_called", f"{ours}_as_called"),
        "speedup",
        1,
    )
    yield "known pattern, speed-up over cuSPARSE's", ratio(f"{numeric}_as_called", f"{reuse}_as_called"), "speedup", 1
