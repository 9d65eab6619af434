# Measuring: one job is one case with all its methods, ours and the vendor's, interleaved in one process.


from snakemake.exceptions import WorkflowError


def gpus_of(wildcards):
    """Return the GPUs of a measuring job, held against Snakemake's own limit."""
    limit = workflow.global_resources.get("gpu")
    try:
        return PLAN.gpus(wildcards, limit.value if limit is not None else None)
    except SheetError as error:
        raise WorkflowError(str(error)) from None


def has_device():
    """End the run before its first job if it wants a CUDA device and its jobs run here, where there is none."""
    if workflow.local_exec and config["source"] == "measured":
        worded(check_device, config["device"])


onstart:
    has_device()


# What decides about measuring again are the parameters `sources` and `row`, not the age of files.
rule measure_case:
    """Check and time all methods of one case against each other; write its record."""
    input:
        PLAN.inputs,
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
        " {params.options} --threads {threads} --input {input:q} --out {output:q} --end-with $PPID > {log:q} 2>&1"
