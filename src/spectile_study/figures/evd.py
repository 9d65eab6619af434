"""How fast each stage of the eigensolver could be on this machine: its work at the best rate measured for its kind."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas

from spectile_study.bench.rows import at
from spectile_study.bench.stats import rates
from spectile_study.figures.palette import name


class Generation(NamedTuple):
    """FP64 peak (of tensor cores where it has them) and memory bandwidth that NVIDIA specifies for a GPU."""

    name: str
    tflops: float
    tb_s: float


#: The four of the paper's Figure 3, by NVIDIA's data sheets: P100 and A100 40 GB for PCIe, V100 and H100 SXM.
GENERATIONS = (
    Generation("P100", 4.7, 0.732),
    Generation("V100", 7.8, 0.9),
    Generation("A100", 19.5, 1.555),
    Generation("H100", 67.0, 3.35),
)
#: Tasks of the chasing that must follow one another, a column: a sweep starts three tasks behind the one before it.
TASKS = 3

#: What each kind is held against, and what that method is called there.
PROBLEMS = {
    "generalized": {"cusolver": "cuSOLVER's sygvd", "scipy": "SciPy's gvd, host"},
    "partial": {"cusolver": "cuSOLVER's syevdx", "scipy": "SciPy's evr, host"},
    "batched": {"cupy": "CuPy's eigh", "numpy": "NumPy's eigh, host"},
    "banded": {"scipy": "SciPy's eig_banded, host"},
    "tridiagonal": {"scipy": "SciPy's eigh_tridiagonal, host"},
}
#: Our own whole problems, whose cost a kind is held against.
WHOLE_PROBLEMS = {
    "spectile_standard": "our standard problem",
    "spectile_values": "all values",
    "spectile_all": "all vectors",
}
#: Methods whose times together are what a part of a spectrum may cost 1.25 times.
PART = ("spectile_values", "spectile_back")


def of_papers_orders(n: np.ndarray) -> np.ndarray:
    """Return which orders are like the 50,000 of the paper's largest ratios and shares: both grow with the order."""
    return n >= 32_768


def why_not(frame: pandas.DataFrame, method: str, study: str) -> str:
    """Return why a method has no mark: the reason in the records, or that this run has none."""
    rows = at(frame, p_study=study, method=method)
    reasons = rows.loc[rows["status"] != "ok", "reason"].dropna()
    return str(reasons.iloc[0]) if len(reasons) else f"no record of {name(method)} in this run"


def floors(frame: pandas.DataFrame, stages: pandas.DataFrame, n: float) -> dict[str, tuple[float, str]]:
    """Return seconds and the ceiling they come from, by stage at order n; nothing without ceilings of the machine."""
    rows, chasing = at(stages, p_n=n), at(stages, method="chasing")
    ceilings = at(frame, p_study="roofline", status="ok")
    ceilings = ceilings[ceilings["time_s"].notna()]
    width = rows["v_bandwidth"].iloc[0]
    copies = at(ceilings, method="copy")
    products = ceilings[ceilings["flops"].notna()]
    square = products[products["p_bandwidth"].isna()]
    skinny = products[products["p_bandwidth"] == width]
    if not (len(copies) and len(square) and len(skinny)):
        return {}
    peak, thin = float(rates(square).max()) * 1e12, float(rates(skinny).max()) * 1e12
    stream = float((copies["bytes"] / copies["time_s"]).max())
    floors: dict[str, tuple[float, str]] = {}
    for _, row in rows.iterrows():
        if row["method"] == "load":
            floors["load"] = (row["bytes"] / stream, "a copy")
        elif row["method"] == "band_reduction":
            text = f"half at A W's rate (b = {width:,.0f}), half at the square product's"
            floors["band_reduction"] = (row["flops"] / 2 / thin + row["flops"] / 2 / peak, text)
        elif row["method"] == "chasing":
            task = float((chasing["time_s"] / (TASKS * chasing["p_n"])).min())
            floors["chasing"] = (TASKS * n * task, f"dependent tasks of {1e6 * task:.2g} µs")
        elif row["method"] != "eigenvalues":
            floors[row["method"]] = (row["flops"] / peak, "the square product")
    return floors


def timed(rows: pandas.DataFrame, method: str) -> pandas.DataFrame:
    """Return the rows of a method that passed its check and was timed."""
    found = at(rows, method=method, status="ok")
    return found[found["time_s"].notna()]


def ordered_problems(rows: pandas.DataFrame) -> list[str]:
    """Return the cases by kind and size."""
    if not len(rows):
        return []
    rank = rows["p_problem"].map(list(PROBLEMS).index)
    return list(dict.fromkeys(rows.assign(rank=rank).sort_values(["rank", "p_n", "p_vectors"], kind="stable")["case"]))


def words_of_problem(row: pandas.Series) -> str:
    """Return what a row of the study ``problems`` solves, in a few words."""
    n, what = f"n = {int(row['p_n']):,}", "vectors" if row["p_vectors"] else "values"
    if row["p_problem"] == "partial":
        return f"{n}, {int(row['p_k']):,} lowest pairs"
    if row["p_problem"] == "batched":
        return f"{int(row['p_batch']):,} matrices of {n}, {row['p_precision']}"
    if row["p_problem"] == "banded":
        return f"{n}, {int(row['p_bandwidth'])} subdiagonals, {what}"
    return f"{n}, {what}"


def lacking(rows: pandas.DataFrame, lines: Sequence[object], what: str) -> list[str]:
    """Return why methods of these rows have no result, by name; where a table has no line, that it has no record."""
    reasons = at(rows, status=["failed", "skipped"]).dropna(subset="reason").groupby("reason")["method"]
    named = [f"{', '.join(sorted(set(map(name, methods))))}: {reason}" for reason, methods in reasons]
    return [*named, *([] if lines else [f"This run holds no record of {what}."])]
