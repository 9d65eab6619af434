"""The study's headlines: speed-ups over the vendor in the same run, which README's table and docs/history.md tell."""

from __future__ import annotations

from typing import NamedTuple

import pandas

from spectile_study.bench.stats import geometric_mean, speedups
from spectile_study.cases.spamm.thresholds import RTOLS

#: Molecules of the water cluster whose matrices SpAMM's first numbers are of.
WATERS = 569
#: cuSOLVER's solvers; the second, which came with CUDA 13.4, is measured where it is at hand.
CUSOLVER = {"cusolver_one_stage": "cuSOLVER, one stage", "cusolver_two_stage": "cuSOLVER of CUDA 13.4, two stages"}
_PLURALS = {"matrix": "matrices", "order": "orders", "Hamiltonian": "Hamiltonians"}


class Headline(NamedTuple):
    """One of them.

    Attributes
    ----------
    what, over : str
        What is faster, and than what.
    of : str
        What each case is: a matrix, an order.
    calls : DataFrame
        Rows with speed-ups, a case each, of public functions.
    device : DataFrame, optional
        The same of launches that were prepared before; None where these are not the vendor's equals.
    """

    what: str
    over: str
    of: str
    calls: pandas.DataFrame
    device: pandas.DataFrame | None

    @property
    def most(self) -> int:
        """Cases of calls or of the device, whichever are more."""
        return max(len(self.calls), 0 if self.device is None else len(self.device))

    def cases(self, number: int) -> str:
        """Return a number of cases in words."""
        return f"{number} {self.of if number == 1 else _PLURALS[self.of]}"

    def extent(self, found: pandas.DataFrame | None) -> str:
        """Return the range and the mean of speed-ups in words, and of how few cases they are; nothing for None."""
        if found is None:
            return ""
        if found.empty:
            return "not recorded"
        ratios = found["speedup"].astype(float)
        if self.most == 1:
            return f"{ratios.iloc[0]:.2f}"
        fewer = f" ({self.cases(len(found))})" if len(found) < self.most else ""
        return f"{ratios.min():.2f} to {ratios.max():.2f}, mean {geometric_mean(list(ratios)):.2f}{fewer}"


def squares(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Return tSparse's rows without the second set's."""
    return frame[frame["p_product"].isna()] if "p_product" in frame else frame


def headlines(paper: str, frame: pandas.DataFrame) -> list[Headline]:
    """Return the headlines of one paper from its frame of one machine."""
    return {"spamm": _spamm, "tsparse": _tsparse, "evd": _evd, "kpm": _kpm}[paper](frame)


def _spamm(frame: pandas.DataFrame) -> list[Headline]:
    found = []
    for rtol in sorted(set().union(*RTOLS.values())):
        precision = "fp64" if rtol < 1e-3 else "fp32"
        within = frame[(frame["p_molecules"] == WATERS) & frame["p_precision"].eq(precision)]
        what = f"SpAMM, {precision.replace('fp', 'float')}, within {rtol:.0e} of ‖A‖², matrices of {WATERS} waters"
        calls = speedups(within, f"called_rtol_{rtol:.0e}", "called_dense")
        found.append(Headline(what, "cuBLAS, dense", "matrix", calls, None))
    return found


def _tsparse(frame: pandas.DataFrame) -> list[Headline]:
    frame, found = squares(frame), []
    for dtype in ("float64", "float32"):
        calls, device = (speedups(frame, f"{ours}_{dtype}", f"cusparse_{dtype}") for ours in ("spectile", "rows"))
        found.append(Headline(f"tSparse, {dtype}", "cuSPARSE", "matrix", calls, device))
    return found


def _evd(frame: pandas.DataFrame) -> list[Headline]:
    found = []
    for task, name in (("values", "eigenvalues"), ("vectors", "eigenvalues and eigenvectors")):
        rows = frame[frame["case"].str.fullmatch(rf"evd_\d+_{task}(_gpu)?")]
        for vendor, over in CUSOLVER.items():
            calls, device = (speedups(rows, ours, vendor) for ours in ("spectile", "spectile_device"))
            found.append(Headline(f"EVD, {name}, float64", over, "order", calls, device))
    return found


def _kpm(frame: pandas.DataFrame) -> list[Headline]:
    lattice, found = frame[frame["case"] == "step_200x100x40_r32"], []
    chain = "the chain of cuSPARSE and cuBLAS calls"
    for name, ours, device, vendor, over in (
        ("a stored matrix", "as_called_stored", "aug_spmmv", "spmm", "cuSPARSE's SpMM and one fused update"),
        ("the lattice without a matrix", "as_called_free", "blocked", "naive", chain),
    ):
        step, calls = speedups(lattice, device, vendor), speedups(lattice, ours, vendor)
        if len(calls):  # a call has more steps than a sample of the chain, whose work is the same in each
            flops = lattice.drop_duplicates("method").set_index("method")["flops"].astype(float)
            calls["speedup"] *= flops[ours] / flops[vendor]
        found.append(Headline(f"KPM, a step of 32 vectors, {name}", over, "Hamiltonian", calls, step))
    return found
