"""Table 2 of the EVD paper: band reduction by b and nb, and chasing, beside the printed times."""

import pandas

from spectile.bench.claims import select
from spectile.figures.style import Table, claims

BLOCKS = (128, 256, 512, 1024, 2048, 4096)
#: The paper's order, and the block measured there, too.
PAPER_ORDER, PAPER_BLOCK = 65536, 1024


def table(frame: pandas.DataFrame) -> Table:
    rows = select(frame, "p_study=reduction,status=ok,method=spectile")
    chasing = select(frame, "p_study=reduction,status=ok,method=spectile_chasing")
    paper = select(rows, f"p_n={PAPER_ORDER}")
    # The order with the most blocks; of several, the largest.
    n = int(rows.groupby("p_n").size().iloc[::-1].idxmax()) if len(rows) else 0
    rows, chasing = (select(part, f"p_n={n}") for part in (rows, chasing))
    printed = claims()["printed"]
    lines, cited = [], [chasing, paper]
    for b in (16, 32, 64):
        line: dict[str, object] = {"b": b}
        for block, name in ((b, "nb = b (SBR)"), *((block, f"nb = {block:,}") for block in BLOCKS)):
            found = select(rows, f"p_bandwidth={b},p_block={block}")
            line[name] = found["time_s"].iloc[0] if len(found) else None
            if block in BLOCKS:
                line[f"paper, {block:,}"] = printed[f"evd_t2_{b}_{block}"]
        found = select(chasing, f"p_bandwidth={b}")
        line["chasing"] = found["time_s"].median() if len(found) else None
        line["paper, chasing"] = printed[f"evd_t2_{b}_chasing"]
        found = select(paper, f"p_bandwidth={b},p_block={PAPER_BLOCK}")
        line[f"nb = {PAPER_BLOCK:,}, n = {PAPER_ORDER:,}"] = found["time_s"].iloc[0] if len(found) else None
        large = select(frame, f"p_study=chasing,p_n={PAPER_ORDER},p_bandwidth={b},method=spectile,status=ok")
        line[f"chasing, n = {PAPER_ORDER:,}"] = large["time_s"].iloc[0] if len(large) else None
        cited.append(large)
        lines.append(line)
    notes = [
        f"Seconds; ours at n = {n:,} where not said, the paper's at n = {PAPER_ORDER:,} on an H100."
        if n
        else "No record of this run.",
        "The order is the largest that the time allowed with every b and nb; a call takes about 10 s at the paper's.",
    ]
    title = "Table 2: detached band reduction by bandwidth b and block nb, and bulge chasing"
    result = Table(title, pandas.DataFrame(lines), notes).cite(rows, "time_s")
    for part in cited:
        result.cite(part, "time_s")
    return result
