"""Table 2 of the EVD paper: band reduction by b and nb, and chasing, beside the printed times."""

import pandas

from spectile.bench.claims import select
from spectile.figures.style import Table, claims

BLOCKS = (128, 256, 512, 1024, 2048, 4096)


def table(frame: pandas.DataFrame) -> Table:
    rows = select(frame, "p_study=reduction,status=ok,method=spectile")
    chasing = select(frame, "p_study=reduction,status=ok,method=spectile_chasing")
    n = int(rows["p_n"].max()) if len(rows) else 0
    rows, chasing = (select(part, f"p_n={n}") for part in (rows, chasing))
    printed = claims()["printed"]
    lines, cited = [], [chasing]
    for b in (16, 32, 64):
        line: dict[str, object] = {"b": b}
        for block, name in (
            (b, f"nb = b (SBR), n = {n:,}"),
            *((block, f"nb = {block:,}, n = {n:,}") for block in BLOCKS),
        ):
            found = select(rows, f"p_bandwidth={b},p_block={block}")
            line[name] = found["time_s"].iloc[0] if len(found) else None
            if block in BLOCKS:
                line[f"paper, {block:,}, n = 65,536"] = printed[f"evd_t2_{b}_{block}"]
        found = select(chasing, f"p_bandwidth={b}")
        line[f"chasing, n = {n:,}"] = found["time_s"].median() if len(found) else None
        line["paper, chasing, n = 65,536"] = printed[f"evd_t2_{b}_chasing"]
        large = select(frame, f"p_study=chasing,p_n=65536,p_bandwidth={b},method=spectile,status=ok")
        line["chasing, n = 65,536"] = large["time_s"].iloc[0] if len(large) else None
        cited.append(large)
        lines.append(line)
    notes = [
        f"Seconds; ours at n = {n:,}, the paper's at n = 65,536 on an H100." if n else "No record of this run.",
        "The order is the largest that the time allowed with every b and nb; a call takes about 10 s at 65,536.",
    ]
    title = "Table 2: detached band reduction by bandwidth b and block nb, and bulge chasing"
    result = Table(title, pandas.DataFrame(lines), notes).cite(rows, "time_s")
    for part in cited:
        result.cite(part, "time_s")
    return result
