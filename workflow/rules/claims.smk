# The papers' printed numbers beside ours.


rule check_claims:
    """Hold the papers' printed numbers against ours: the table that the report opens on."""
    input:
        frames=PLAN.frames(),
        claims=str(STUDY / "config/claims.tsv"),
    output:
        page=report(
            PLAN.result("claims.html"),
            caption="../report/claims.rst",
            category="0 Claims",
            labels={"element": "All claims", "machine": PLAN.machine},
        ),
        fragment=PLAN.result("claims.fragment.html"),
        table=PLAN.result("claims.tsv"),
    log:
        f"logs/{PLAN.machine}/claims.log",
    localrule: True
    conda:
        "../../envs/plot.yaml"
    params:
        sources=PLAN.claims_digest(),
    message:
        "Holding the papers' claims against the records"
    shell:
        "python -m spectile_study claims --claims {input.claims:q} --out {output.page:q}"
        " --frames {input.frames:q} 2> {log:q}"
