"""Measurements of several machines side by side: what holds on which, and how fast each is in the same cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas

from spectile_study.bench.claims import VERDICTS, read_claims
from spectile_study.bench.stats import geometric_mean
from spectile_study.figures.elements import SCRIPTS
from spectile_study.figures.judged import evaluate
from spectile_study.figures.tables import Cell, Table, like
from spectile_study.papers import PAPERS

#: Frames of each machine, by its name; the first is the one whose run this is.
Machines = Mapping[str, Sequence[pandas.DataFrame]]
#: What stands in the place of a column for other machines where there is none.
ALONE = "results/recorded holds no measurements of these papers on another machine"
APART = "results/recorded holds no other machine that timed a case of this one"


def by_machine(own: str, frames: Iterable[pandas.DataFrame]) -> dict[str, list[pandas.DataFrame]]:
    """Return frames by the machine that they name, `own` first, which may have none."""
    machines: dict[str, list[pandas.DataFrame]] = {own: []}
    for frame in frames:
        if len(frame):
            machines.setdefault(frame["machine"].iloc[0], []).append(frame)
    return machines


def claims_table(claims: pandas.DataFrame, machines: Machines, scripts: Path = SCRIPTS) -> Table:
    """Return each claim that has a verdict on one of the machines at least, those on the first before the others.

    Parameters
    ----------
    claims : DataFrame
        What the papers print and conclude, as :func:`~spectile_study.bench.claims.read_claims` returns it.
    machines : mapping
        Frames by machine.
    scripts : Path
        Folder of the elements' scripts.
    """
    found = {name: evaluate(claims, frames, scripts) for name, frames in machines.items()}
    verdicts = pandas.DataFrame({name: rows["verdict"] for name, rows in found.items()})
    judged = verdicts.isin(VERDICTS)
    own = judged.iloc[:, 0]  # first what the machine of the run measured, which may be little
    shown = [*judged.index[own], *judged.index[judged.any(axis="columns") & ~own]]
    lines = []
    for place in shown:
        claim = claims.loc[place]
        line = {
            "where": f"{PAPERS[claim['paper']].name}, {claim['element']}",
            "kind": claim["kind"],
            "claim": claim["statement"],
            "paper": like(claim["printed"], claim["printed"]) or "-",
        }
        lines.append(line | {_column(name, machines): _cell(rows.loc[place], claim) for name, rows in found.items()})
    *first, last = machines
    title = f"What the papers print and conclude, on {', '.join(first)}{' and ' if first else ''}{last}"
    notes = [*([ALONE] if len(machines) == 1 else []), *_unsaid(machines)]
    heads = ["where", "kind", "claim", "paper", *(_column(name, machines) for name in machines)]
    return Table(title, pandas.DataFrame(lines, columns=heads), notes)


def _cell(row: pandas.Series, claim: pandas.Series) -> Cell | None:
    """Return what a machine says of a claim: its number, and below it the verdict; None where it has none."""
    if row["verdict"] not in VERDICTS:
        return None
    number = like(row["measured"], claim["printed"])
    below = {"verdict": row["verdict"], "records": row["records"]}
    if isinstance(number, str):
        return Cell(number, below=below, words="{verdict}")
    return Cell(number.value, number.pattern, below, "{verdict}")


def times_table(machines: Machines) -> Table:
    """Return how many times as fast as the first machine each other one is, by method, where both timed a case.

    Machines that share no case with the first are left out.  The runs were apart, so no interval is given; the range
    over the cases stands below the geometric mean.
    """
    timed = {name: _medians(frames) for name, frames in machines.items()}
    own, *others = timed
    others = [name for name in others if len(timed[own].index.intersection(timed[name].index))]
    lines = []
    for paper, known in PAPERS.items():
        shared = {name: pandas.concat([timed[own], timed[name]], axis=1, join="inner") for name in others}
        shared = {name: both[both.index.get_level_values("paper") == paper] for name, both in shared.items()}
        methods = dict.fromkeys(
            method for both in shared.values() for method in sorted(both.index.get_level_values("method"))
        )
        for method in methods:
            line = {"system": known.name, "method": method}
            for name, both in shared.items():
                of_method = both[both.index.get_level_values("method") == method]
                line[_column(name, machines)] = _ratio(of_method.iloc[:, 0] / of_method.iloc[:, 1])
            lines.append(line)
    heads = ["system", "method", *(_column(name, machines) for name in others)]
    notes = [] if others else [ALONE if len(machines) == 1 else APART]
    notes += [
        "Medians of both machines' samples of the same case; how they were taken, and with what, stands in the frames.",
        *_unsaid({name: machines[name] for name in (own, *others)}),
    ]
    return Table(f"How many times as fast as {_column(own, machines)}", pandas.DataFrame(lines, columns=heads), notes)


def _unsaid(machines: Machines) -> list[str]:
    """Return a sentence for each machine with rows from before records said when and with what they were measured."""
    said = []
    for name, frames in machines.items():
        rows = sum(len(frame) for frame in frames)
        silent = sum(int(frame["run_measured_at"].isna().sum()) for frame in frames)
        if silent:
            said.append(f"{name}: {silent} of {rows} rows do not say when and with what software they were measured.")
    return said


def _medians(frames: Iterable[pandas.DataFrame]) -> pandas.Series:
    """Return the median times of what passed, by paper, case and method."""
    rows = [frame.loc[frame["status"] == "ok", ["paper", "case", "method", "time_s"]] for frame in frames]
    table = pandas.concat(rows) if rows else pandas.DataFrame(columns=["paper", "case", "method", "time_s"])
    return table.dropna(subset="time_s").set_index(["paper", "case", "method"])["time_s"].astype(float)


def _ratio(faster: pandas.Series) -> Cell | None:
    if not len(faster):
        return None
    below = {"cases": len(faster), "least": float(faster.min()), "most": float(faster.max())}
    words = "one case" if len(faster) == 1 else "{cases} cases, {least:.3g} to {most:.3g}"
    return Cell(geometric_mean(faster.to_list()), "{:.3g}", below, words)


def _column(name: str, machines: Machines) -> str:
    """Return what a machine's column is called: its name, and the devices that its rows name."""
    devices = sorted({device for frame in machines[name] for device in frame["device"].dropna()})
    return f"{name} ({', '.join(devices)})" if devices else name


def write(own: str, frames: Iterable[pandas.DataFrame], table: Path, out: Path) -> None:
    """Write both tables, ``claims.html`` and ``times.html``, into the folder `out`.

    Parameters
    ----------
    own : str
        Machine of this run.
    frames : iterable of DataFrame
        Frames of this machine and of others; a frame names its machine.
    table : Path
        What the papers print and conclude, config/claims.tsv.
    out : Path
        The folder.
    """
    frames = list(frames)
    machines = by_machine(own, frames)
    papers = {frame["paper"].iloc[0] for frame in frames if len(frame)}
    claims = read_claims(table)
    claims = claims[claims["paper"].isin(papers)].reset_index(drop=True)
    claims_table(claims, machines, table.parent.parent / SCRIPTS).save(out / "claims.html")
    times_table(machines).save(out / "times.html")
