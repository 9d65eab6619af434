"""Table 2 of the EVD paper: band reduction by b and nb, and chasing, beside the printed times."""

from statistics import median_low

import pandas

from spectile_study.bench.claims import printed
from spectile_study.bench.rows import Ours, Rows, at
from spectile_study.figures.tables import Cell, Table, first_value

NEEDS = ("fig4",)  # elements whose cases are drawn here, too: MAGMA's
PAPER_ORDER = 65536
BLOCKS = (128, 256, 512, 1024, 2048, 4096)
#: The column of reductions whose block is the band.
CONVENTIONAL = "nb = b (SBR)"


def table(frame: pandas.DataFrame) -> Table:
    rows = at(frame, p_study="reduction", status="ok", method="spectile")
    parts = [at(frame, p_study="reduction", status="ok", method="spectile_chasing")]
    parts.append(at(frame, p_study="chasing", p_n=PAPER_ORDER, method="spectile", status="ok"))
    chasing = pandas.concat(parts)
    result = Table("Table 2: detached band reduction by bandwidth b and block nb, and bulge chasing, n = 65,536")
    lines, rest = [], []
    for b in (16, 32, 64):
        paper = {f"nb = {block:,}": Cell(printed(f"evd_t2_{b}_{block}"), "{:g}") for block in BLOCKS}
        paper |= {"chasing": Cell(printed(f"evd_t2_{b}_chasing"), "{:g}")}
        lines.append({"b": b, "seconds": "paper, H100"} | paper)
        lines.append({"b": b, "seconds": "ours"} | _ours(rows, chasing, PAPER_ORDER, b, result))
        for n in sorted(set(rows["p_n"].astype(int))):
            found = _ours(rows, chasing, n, b, result) if n != PAPER_ORDER else {}
            alike = at(rows, p_n=n, p_bandwidth=b, p_block=b)
            result.cite(alike, "time_s")
            times = {CONVENTIONAL: median_low(alike["time_s"]) if len(alike) else None} | found
            if any(value is not None for value in times.values()):
                rest.append({"b": b, "seconds": f"ours, n = {n:,}"} | times)
        hybrid = at(frame, p_study="reduction", status="ok", p_bandwidth=b, p_block=b)
        for n in sorted(at(hybrid, method="magma")["p_n"].unique()):
            times = {}
            for column, method in ((CONVENTIONAL, "magma"), ("chasing", "magma_chasing")):
                here = at(hybrid, p_n=n, method=method)
                times[column] = first_value(here, "time_s")
                result.cite(here, "time_s")
            rest.append({"b": b, "seconds": f"MAGMA, n = {n:,.0f}"} | times)
    result.data = pandas.DataFrame(lines)
    if rest:
        heads = ["b", "seconds", CONVENTIONAL, *(f"nb = {block:,}" for block in BLOCKS), "chasing"]
        others = pandas.DataFrame(rest, columns=heads).astype(object)
        result.rest = ("Other orders, and conventional reduction with nb = b", others.where(others.notna(), "-"))
    devices = ", ".join(sorted(set(rows["device"])))
    result.notes = [f"Measured on {devices}." if devices else "This run holds no record of the band reduction."]
    return result


def _ours(rows: pandas.DataFrame, chasing: pandas.DataFrame, n: int, b: int, result: Table) -> dict[str, float | None]:
    """Return our seconds of an order and a bandwidth, by column of the paper's table."""
    found = {f"nb = {block:,}": at(rows, p_n=n, p_bandwidth=b, p_block=block) for block in BLOCKS}
    found["chasing"] = at(chasing, p_n=n, p_bandwidth=b)
    for here in found.values():
        result.cite(here, "time_s")
    # Where two cases hold it (with MAGMA and without), the lower one: a number that was measured.
    return {name: median_low(here["time_s"]) if len(here) else None for name, here in found.items()}


def claims(rows: Rows) -> dict[str, Ours]:
    ours = rows.at(method="spectile", p_n=PAPER_ORDER)
    chasing = ours.at(p_study="chasing")
    large = ours.at(p_study="reduction", p_block=lambda block: block > 100)
    found = {
        "evd_t2_detached": large.column("time_s").fall("p_bandwidth", "p_block").at_least(1),
        "evd_t2_chasing_best": chasing.column("time_s").lowest("p_bandwidth").near(32),
    }
    for b, best in ((16, 1024), (32, 2048), (64, 2048)):
        here = large.at(p_bandwidth=b)
        found |= {f"evd_t2_{b}_{block}": here.at(p_block=block).column("time_s").only() for block in BLOCKS}
        found[f"evd_t2_{b}_chasing"] = chasing.at(p_bandwidth=b).column("time_s").only()
        found[f"evd_t2_{b}_best"] = here.column("time_s").lowest("p_block", "p_n").near(best, factor=2)
    return found
