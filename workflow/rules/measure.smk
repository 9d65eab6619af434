# Measuring: one job is one case with all its methods, ours and the vendor's, interleaved in one process.  That process serves
# all jobs of this Snakemake ($PPID) on its machine, one after another: CUDA starts once, and two cases never run side by side.


# What decides about measuring again are the parameters `sources` and `row`, not the age of files.
rule measure_case:
    """Check and time all methods of one case against each other; write its record."""
    input:
        inputs_of,
    output:
        PLAN.result("records/{paper}/{case}.json"),
    log:
        f"logs/{PLAN.machine}/{{paper}}/{{case}}.log",
    conda:
        "../../envs/gpu.yaml" if PLAN.wants_gpu() else "../../envs/cpu.yaml"
    threads: lambda wildcards: PLAN.threads(wildcards, workflow.cores)
    resources:
        bench=1,
        gpu=gpus_of,
        runtime=PLAN.minutes,
        mem_mb=PLAN.memory_mb,
    params:
        sources=PLAN.sources_digest,
        row=PLAN.row_digest,
        study=STUDY,
        options=f"--machine {PLAN.machine} --device {config['device']} --seed {config['seed']}"
        f" --rounds {config['rounds']} --warmup {config['warmup']} --budget-s {config['budget_s']}",
    message:
        "Measuring {wildcards.paper}/{wildcards.case}"
    shell:
        "python -m spectile_study measure --study {params.study:q} --paper {wildcards.paper} --case {wildcards.case}"
        " {params.options} --planned {params.sources:q} --threads {threads} --input {input:q} --out {output:q} --share-with $PPID --log {log:q}"
