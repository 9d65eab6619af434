# Everyday draws: random problems of the four systems, measured beside the strongest alternatives: snakemake everyday.
# One job measures them all, one after the other.  A run that was killed leaves what it has measured, and the next one of
# the same seed goes on with that.


rule everyday:
    """Everyday draws of this machine, measured or recorded: a figure a system, the worst draws, and predictions."""
    input:
        PLAN.everyday_drawings(),
    localrule: True
    message:
        "The everyday draws are measured and drawn"


if not PLAN.is_recorded:

    rule measure_everyday:
        """Measure random problems until there are enough of each system or its minutes are over."""
        output:
            PLAN.result("everyday.parquet"),
        log:
            f"logs/{PLAN.machine}/everyday.log",
        conda:
            "../../envs/gpu.yaml" if PLAN.wants_gpu() else "../../envs/cpu.yaml"
        threads: lambda wildcards: workflow.cores
        resources:
            bench=1,
            gpu=1 if config["device"] == "cuda" else 0,
            runtime=PLAN.everyday_minutes(),
        params:
            study=STUDY,
            machine=PLAN.machine,
            device=config["device"],
            changes=PLAN.everyday_changes(),
            partial=lambda wildcards, output: str(
                Path(output[0]).with_name(".everyday.parquet")
            ),
        message:
            "Measuring everyday draws"
        shell:
            "python -m spectile_study everyday --study {params.study:q} --machine {params.machine:q}"
            " --device {params.device:q} --set {params.changes:q} --out {params.partial:q} > {log:q} 2>&1"
            " && mv {params.partial:q} {output:q}"


rule draw_everyday:
    """Draw the distributions, the worst draws and the predictions from the frame of everyday draws."""
    input:
        lambda wildcards: worded(PLAN.everyday_source),
    output:
        *[
            report(
                PLAN.result(path),
                caption="../report/everyday.rst",
                category="5 Everyday draws",
                labels={"element": Path(path).stem, "machine": PLAN.machine},
            )
            for path in PLAN.EVERYDAY
        ],
    log:
        f"logs/{PLAN.machine}/draw_everyday.log",
    localrule: True
    conda:
        "../../envs/plot.yaml"
    params:
        sources=PLAN.everyday_digest(),
        results=PLAN.results_folder,
    message:
        "Drawing the everyday draws"
    shell:
        "python -m spectile_study draw-everyday --from {input:q} --results {params.results:q} 2> {log:q}"
