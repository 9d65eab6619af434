"""Figure 13 of tSparse: peak memory of one product beside its inputs."""

import pandas

from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.tsparse import OTHERS, PARTS, SIXTEEN, matrices, short, why_missing

METHODS = (
    "tasks_float16", "tasks_csr_float16", "spectile_float16", "spectile_float64", "cusparse_float32",
    "cusparse_float64", *OTHERS,
)  # fmt: skip


def draw(frame: pandas.DataFrame) -> Drawing:
    drawing = Drawing("Figure 13: peak memory of one product, its result included", 1, 1, (10, 4.4))
    ax = drawing.ax
    names = [*SIXTEEN, *matrices(frame, "mirror")[:8], *matrices(frame, "family")]
    ok = frame[(frame["status"] == "ok") & frame["memory_bytes"].notna()]
    if not len(ok):
        drawing.empty(ax, "peak memory is measured on a CUDA device; this run holds none")
        return drawing
    # The paper's rivals are in records from the libraries on that count what they allocate.
    shown = ok[ok["p_matrix"].isin(names)].assign(memory_mb=ok["memory_bytes"].astype(float) / 1e6)
    drawn = {method: rows for method in METHODS if len(rows := shown[shown["method"] == method])}
    step = min(0.14, 0.84 / max(len(drawn), 1))
    for number, (method, rows) in enumerate(drawn.items()):
        places = [names.index(name) + step * (number - (len(drawn) - 1) / 2) for name in rows["p_matrix"]]
        drawing.marks(ax, rows, "memory_mb", "memory_mb", method=method, kind="scatter", positions=places)
    for place, name in enumerate(names):
        if not len(at(ok, p_matrix=name)):
            drawing.slot(ax, place, why_missing(frame, name))
    ax.set_yscale("log")
    ax.set_ylim(top=5 * ax.get_ylim()[1])  # room for the legend
    ax.set_xlim(-0.6, len(names) - 0.4)
    ax.set_ylabel("peak memory, MB")
    ax.set_xticks(range(len(names)), [short(name) for name in names], rotation=45, ha="right", fontsize=7)
    ax.legend(ncols=max(6, -(-len(drawn) // 2)), fontsize=7)
    return drawing


def claims(rows: Rows) -> dict[str, Ours]:
    less = rows.at(p_part=PARTS).over("memory_bytes", "tasks_float16", "nsparse", "speck", "rmerge2")
    more = rows.at(p_part=PARTS).over("memory_bytes", "cusp", "tasks_float16")
    return {"tsparse_memory_hash": less.geomean().at_least(1), "tsparse_memory_esc": more.geomean().at_least(1)}
