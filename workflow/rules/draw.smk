# Drawing: one process draws all figures and tables of a paper, then the claims page is made.
for paper in PAPERS:

    rule:
        name:
            f"draw_{paper}"
        input:
            frame=frame(paper),
            claims="config/claims.tsv",
            scripts=drawing_scripts(paper),
        output:
            *drawn(paper),
        log:
            f"logs/{MACHINE}/draw_{paper}.log",
        localrule: True
        conda:
            "../../envs/plot.yaml"
        params:
            paper=paper,
        message:
            f"Drawing the figures and tables of {paper}"
        script:
            "../scripts/draw_paper.py"


# The papers' printed numbers beside ours: the report opens on this page.
rule check_claims:
    input:
        frames=frames(),
        claims="config/claims.tsv",
        style="src/spectile_study/figures/style.py",
    output:
        page=report(
            result("claims.html"),
            caption="../report/claims.rst",
            category="0 Claims",
            labels={"element": "All claims", "machine": MACHINE},
        ),
        fragment=result("claims.fragment.html"),
        table=result("claims.tsv"),
    log:
        f"logs/{MACHINE}/claims.log",
    localrule: True
    conda:
        "../../envs/plot.yaml"
    message:
        "Holding the papers' claims against the records"
    script:
        "../scripts/check_claims.py"


# The configuration of this run, stored beside its results.
rule note_config:
    output:
        result("config.yaml"),
    log:
        f"logs/{MACHINE}/config.log",
    conda:
        "../../envs/plot.yaml"
    params:
        config=config,
    message:
        "Storing the configuration beside the results"
    script:
        "../scripts/note_config.py"
