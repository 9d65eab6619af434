# Drawing: each table and figure is one job, made from its own cases alone.


from spectile_study.papers import PAPERS


def labels(wildcards):
    """Return what the report's overview says of a table or figure."""
    element = worded(PLAN.element, wildcards)
    return {"element": element.label, "shows": element.subject}


def category(wildcards):
    """Return the report's category of a paper."""
    return PAPERS[wildcards.paper].category


def drawn_from(wildcards):
    """Return what a table or figure is drawn from."""
    return worded(PLAN.drawn_from, wildcards)


for kind, folder, ending in (("figure", "figures", "svg"), ("table", "tables", "html")):

    rule:
        """Draw one table or figure of a paper from its own cases."""
        name:
            f"draw_{kind}"
        input:
            drawn_from=drawn_from,
            claims=str(STUDY / "config/claims.tsv"),
        output:
            report(
                PLAN.result(f"{folder}/{{paper}}_{{element}}.{ending}"),
                caption="../report/element.rst",
                category=category,
                subcategory=folder.title(),
                labels=labels,
            ),
        log:
            f"logs/{PLAN.machine}/draw/{{paper}}_{{element}}.log",
        localrule: True
        conda:
            "../../envs/plot.yaml"
        params:
            caption=PLAN.caption,
            # Editing a script, the palette, statistics or a bound draws again what depends on it.
            sources=PLAN.drawing_digest,
            study=STUDY,
            results=PLAN.results_folder,
        message:
            f"Drawing the {kind} {{wildcards.paper}} {{wildcards.element}}"
        shell:
            "python -m spectile_study draw --study {params.study:q} --paper {wildcards.paper}"
            " --element {wildcards.element} --results {params.results:q} --from {input.drawn_from:q} 2> {log:q}"
