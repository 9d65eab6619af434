# The papers' printed numbers beside ours, and ours beside those of other machines.


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


rule compare_machines:
    """Set this machine's claims and times beside those of the machines in results/recorded."""
    input:
        frames=PLAN.frames(),
        others=PLAN.others(),
        claims=str(STUDY / "config/claims.tsv"),
    output:
        claims=report(
            PLAN.result("machines/claims.html"),
            caption="../report/machines.rst",
            category="0 Claims",
            labels={"element": "Claims by machine", "machine": PLAN.machine},
        ),
        times=report(
            PLAN.result("machines/times.html"),
            caption="../report/machines.rst",
            category="0 Claims",
            labels={"element": "Times by machine", "machine": PLAN.machine},
        ),
    log:
        f"logs/{PLAN.machine}/machines.log",
    localrule: True
    conda:
        "../../envs/plot.yaml"
    params:
        sources=PLAN.claims_digest(),
        machine=PLAN.machine,
        out=lambda wildcards, output: str(Path(output.claims).parent),
    message:
        "Setting this machine beside the recorded ones"
    shell:
        "python -m spectile_study machines --machine {params.machine:q} --claims {input.claims:q}"
        " --out {params.out:q} --frames {input.frames:q} {input.others:q} 2> {log:q}"
