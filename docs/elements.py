"""Write docs/elements.md, what is drawn of the papers' tables and figures: ``python docs/elements.py``."""

from pathlib import Path

import pandas
from matplotlib import pyplot

from spectile_study.bench import claims, record
from spectile_study.figures import coverage, elements
from spectile_study.papers import PAPERS

ROOT = Path(__file__).resolve().parents[1]
HEAD = """# What is drawn of the papers' tables and figures

One line for each: what the paper shows, and which of its series, sizes and baselines our drawing of the H200's records
holds. What is *not there*, or there *in part*, says why. The list of what the papers show is
[config/elements.tsv](../config/elements.tsv); what is there is read from the marks of each drawing
(`python docs/elements.py` writes this page, and a test holds it against them).
[Claims](../README.md#claims) says what the papers concluded and whether ours agrees; the last section here counts those
without a verdict.
"""
#: What would give the claims without a verdict one, by cause.
SETTLED_BY = {
    "input absent": "matrices of SuiteSparse that the mirror at hand lacks (`spectile-study fetch` asks for them)",
    "rival not installed": "a run of bcsstk33 and cyl6, which meet Table 3's criterion, with the rivals",
    "needs a GPU": "a machine with one",
    "needs more GPUs": "a machine of two, four or eight GPUs",
    "not recorded yet": "a run of the case, or a case that measures it",
    "not said by the paper": "nothing: the paper does not say which matrices its four are",
    "a method fails": "a device with more memory",
    "too few cases": "more of the papers' matrices, which SuiteSparse has (`spectile-study fetch`)",
    "score says nothing": "matrices on which the rival is faster",
}


def page() -> str:
    """Return the page."""
    table = coverage.read(ROOT / "config/elements.tsv")
    claims.listed(ROOT / "config/claims.tsv")
    parts = [HEAD]
    for paper, known in PAPERS.items():
        frame = record.read_frame(ROOT / f"results/recorded/h200/{paper}.parquet")
        parts.append(f"\n## {known.name}\n\n| element | series | sizes | baselines |\n| --- | --- | --- | --- |\n")
        for element in elements.elements(paper, ROOT / elements.SCRIPTS):
            if element.is_papers:
                parts.append(_line(table, element, frame))
    return "".join([*parts, _without()])


def _without() -> str:
    """Return the section that counts the claims without a verdict by paper and cause."""
    frames = [record.read_frame(ROOT / f"results/recorded/h200/{paper}.parquet") for paper in PAPERS]
    found = claims.evaluate(claims.read_claims(ROOT / "config/claims.tsv"), frames)
    by_paper = {paper: claims.causes(found[found["paper"] == paper]) for paper in PAPERS}
    judged = found["kind"].isin(claims.JUDGED)
    head = f"{(found['cause'] != '').sum()} of the {judged.sum()} claims that should have a verdict have none:"
    names = " | ".join(known.name for known in PAPERS.values())
    lines = [f"| cause | {names} | what would settle them |", f"| --- |{' --- |' * len(PAPERS)} --- |"]
    for cause in claims.causes(found):
        counts = " | ".join(str(by_paper[paper].get(cause, "")) for paper in PAPERS)
        lines.append(f"| {cause} | {counts} | {SETTLED_BY[cause]} |")
    return f"\n## Claims without a verdict\n\n{head}\n\n" + "\n".join(lines) + "\n"


def _line(table: pandas.DataFrame, element: elements.Element, frame: pandas.DataFrame) -> str:
    drawn = element.draw(frame)
    pyplot.close("all")
    own = table[(table["paper"] == element.paper) & (table["element"] == element.name) & (table["part"] == "shows")]
    shows = own["what"].iloc[0] if len(own) else element.subject
    return coverage.line(shows, element.label, coverage.items(table, element, frame, drawn)) + "\n"


if __name__ == "__main__":
    (ROOT / "docs/elements.md").write_text(page())
