"""Table 1 of the EVD paper: the rank-2k update by k and n, ours and the vendor's, beside the printed rates."""

import pandas

from spectile_study.bench.claims import listed
from spectile_study.bench.rows import Ours, Rows, Values, at
from spectile_study.bench.stats import rates
from spectile_study.figures.palette import name
from spectile_study.figures.tables import Table

SIZES = (1024, 4096, 8192, 16384, 32768, 49152, 65536)
PAPERS_SIZES = (4096, 8192, 16384, 32768)
DEPTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def table(frame: pandas.DataFrame) -> Table:
    rows = at(frame, p_study="syr2k", status="ok")
    rows = rows[rows["p_k"].notna()]
    vendor = "cublas" if (rows["method"] == "cublas").any() else "blas"
    printed = listed()["printed"]
    lines = []
    for k in DEPTHS:
        line: dict[str, object] = {"k": k}
        for n in SIZES:
            for method in ("spectile", vendor):
                found = at(rows, p_n=n, p_k=k, method=method)
                if n != 1024 or vendor == "blas":
                    line[f"{name(method)}, n = {n:,}"] = rates(found).iloc[0] if len(found) else None
            if f"evd_t1_{n}_{k}" in printed:
                line[f"paper, n = {n:,}"] = printed[f"evd_t1_{n}_{k}"]
        lines.append(line)
    notes = [
        "TFLOP/s, 2 n² k operations; warm, timed with events on a GPU. The paper's rates of cuBLAS (H100, 12.3) carry "
        "a constant of about 5 ms a call, so its small k look slower than they are.",
        "n = 49,152 and 65,536: the paper reports that cuBLAS falls to 4 TFLOP/s there; these rows are the check.",
    ]
    title = "Table 1: symmetric rank-2k update, TFLOP/s"
    formats = {column: "{:#.3g}" for line in lines for column in line if not column.startswith(("k", "paper"))}
    return Table(title, pandas.DataFrame(lines), notes, formats).cite(rows, "time_s")


def claims(rows: Rows) -> dict[str, Ours]:
    vendor = rows.at(p_study="syr2k", method="cublas")
    found = {f"evd_t1_{n}_{k}": _as_on_the_papers(vendor.at(p_n=n, p_k=k)).only() for n in PAPERS_SIZES for k in DEPTHS}
    for n in PAPERS_SIZES[1:]:
        deeper = vendor.at(p_n=n, p_k=lambda k: k <= 1024).rate()
        found[f"evd_syr2k_grows_{n}"] = deeper.growth("p_k").at_least(1)
    large = vendor.at(p_n=32768, p_k=lambda k: k > 0)  # the square one has none
    shallow = large.at(p_k=lambda k: k < 1024)
    narrow = vendor.at(p_n=lambda n: n <= 32768, p_k=lambda k: (k >= 128) & (k <= 256))
    return found | {
        "evd_syr2k_collapse": _as_on_the_papers(vendor.at(p_n=49152, p_k=4096)).only(),
        "evd_syr2k_peak": _as_on_the_papers(vendor.at(p_k=lambda k: k >= 16)).max().at_most(36),
        "evd_syr2k_narrow": narrow.share_of("fp64").max().at_most(30),
        "evd_syr2k_needs_depth": (shallow.rate().max() / large.rate().max()).at_most(0.9),
    }


def _as_on_the_papers(rows: Rows) -> Values:
    """Return the TFLOP/s of a device of 67 that reaches the same share of its peak, as the paper's H100 has."""
    return rows.share_of("fp64").map(lambda share: 67 * share / 100)
