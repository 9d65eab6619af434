"""Table 2 of the EVD paper: band reduction by b and nb, and chasing, beside the printed times."""

from statistics import median_low

import pandas

from spectile_study.bench.claims import printed
from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.figures.tables import Cell, Table, first_value

NEEDS = ("fig4",)  # elements whose cases are drawn here, too: MAGMA's
PAPER_ORDER = 65536
BLOCKS = (128, 256, 512, 1024, 2048, 4096)


def table(frame: pandas.DataFrame) -> Table:
    rows = at(frame, p_study="reduction", status="ok", method="spectile")
    parts = [at(frame, p_study="reduction", status="ok", method="spectile_chasing")]
    parts.append(at(frame, p_study="chasing", p_n=PAPER_ORDER, method="spectile", status="ok"))
    chasing = pandas.concat(parts)
    # The order with the most pairs of b and nb, larger ones, and the paper's own.
    n = int(rows.groupby("p_n").size().idxmax()) if len(rows) else PAPER_ORDER
    orders = sorted({n, PAPER_ORDER, *(int(order) for order in rows["p_n"] if order > n)})
    result = Table(
        "Table 2: detached band reduction by bandwidth b and block nb, and bulge chasing", pandas.DataFrame()
    )
    lines = []
    for b in (16, 32, 64):
        heads = {"nb = b (SBR)": b} | {f"nb = {block:,}": block for block in BLOCKS}
        for order in orders:
            line: dict[str, object] = {"b": b, "seconds": f"ours, n = {order:,}"}
            found = {name: at(rows, p_n=order, p_bandwidth=b, p_block=block) for name, block in heads.items()}
            found["chasing"] = at(chasing, p_n=order, p_bandwidth=b)
            for name, here in found.items():
                # Where two cases hold it (with MAGMA and without), the lower one: a number that was measured.
                line[name] = median_low(here["time_s"]) if len(here) else None if order == n else "-"
                result.cite(here, "time_s")
            lines.append(line)
        hybrid = at(frame, p_study="reduction", status="ok", p_bandwidth=b, p_block=b)
        for order in sorted(at(hybrid, method="magma")["p_n"].unique()):
            here = at(hybrid, p_n=order)
            line = {"b": b, "seconds": f"MAGMA, n = {order:,.0f}"} | dict.fromkeys(heads, "-")
            for column, method in (("nb = b (SBR)", "magma"), ("chasing", "magma_chasing")):
                found_here = at(here, method=method)
                line[column] = first_value(found_here, "time_s")
                result.cite(found_here, "time_s")
            lines.append(line)
        paper = {f"nb = {block:,}": Cell(printed(f"evd_t2_{b}_{block}"), "{:g}") for block in BLOCKS}
        paper |= {"chasing": Cell(printed(f"evd_t2_{b}_chasing"), "{:g}")}
        lines.append({"b": b, "seconds": f"paper, n = {PAPER_ORDER:,}", "nb = b (SBR)": "not printed"} | paper)
    result.data = pandas.DataFrame(lines)
    about = "is the largest order that the time allowed with every b and nb; beyond it a call takes seconds."
    none = "This run holds no record of the band reduction."
    result.notes = ["The paper's on an H100.", f"n = {n:,} {about}" if len(rows) else none]
    return result


def claims(rows: Rows) -> dict[str, Ours]:
    ours = rows.at(method="spectile")
    chasing = ours.at(p_study="chasing", p_n=PAPER_ORDER)
    detached = ours.at(p_study="reduction", p_block=lambda block: block > 100)
    large = detached.at(p_n=PAPER_ORDER)
    found = {
        "evd_t2_detached": detached.at(p_n=16384).column("time_s").fall("p_bandwidth", "p_block").at_least(1),
        "evd_t2_chasing_best": chasing.column("time_s").lowest("p_bandwidth").near(32),
    }
    for b, best in ((16, 1024), (32, 2048), (64, 2048)):
        here = large.at(p_bandwidth=b)
        found |= {f"evd_t2_{b}_{block}": here.at(p_block=block).column("time_s").only() for block in BLOCKS}
        found[f"evd_t2_{b}_chasing"] = chasing.at(p_bandwidth=b).column("time_s").only()
        found[f"evd_t2_{b}_best"] = here.column("time_s").lowest("p_block", "p_n").near(best, factor=2)
    return found
