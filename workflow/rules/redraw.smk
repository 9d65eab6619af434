# Drawing recorded results: one job is all tables and figures of a paper, which share its frame; starting a process for each
# would take longer than drawing.
from spectile_study.papers import PAPERS


def in_report(element):
    """Return the output of an element, marked for the report with its caption and labels."""
    return report(
        PLAN.result(element.output),
        caption=f"../report/{element.paper}/{element.name}.rst",
        category=PAPERS[element.paper].category,
        subcategory="Figures" if element.is_figure else "Tables",
        labels={"element": element.label, "shows": element.subject},
    )


for paper in PLAN.papers:

    rule:
        """Draw all tables and figures of a paper from its recorded frame."""
        name:
            f"redraw_{paper}"
        input:
            frame=PLAN.frame(paper),
            claims=str(STUDY / "config/claims.tsv"),
        output:
            *[in_report(element) for element in PLAN.elements(paper)],
        log:
            f"logs/{PLAN.machine}/redraw_{paper}.log",
        localrule: True
        conda:
            "../../envs/plot.yaml"
        params:
            paper=paper,
            sources=PLAN.redrawing_digest(paper),
            study=STUDY,
            results=PLAN.result(""),
        message:
            f"Drawing the recorded tables and figures of {paper}"
        shell:
            "python -m spectile_study draw --study {params.study:q} --paper {params.paper:q}"
            " --results {params.results:q} --from {input.frame:q} 2> {log:q}"
