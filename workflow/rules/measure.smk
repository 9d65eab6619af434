# Measuring: one job is one case with all its methods, ours and the vendor's, interleaved in one process.


# What decides about measuring again are the parameters `sources` and `row`, not the age of files.
rule measure_case:
    input:
        case_inputs,
    output:
        result("records/{paper}/{case}.json"),
    log:
        f"logs/{MACHINE}/{{paper}}/{{case}}.log",
    conda:
        "../../envs/cpu.yaml"
    threads: case_threads
    resources:
        bench=1,
        gpu=case_gpus,
        runtime=case_minutes,
        mem_mb=case_memory_mb,
    params:
        sources=sources_digest,
        row=row_digest,
        options=f"--machine {MACHINE} --device {config['device']} --seed {config['seed']}"
        f" --rounds {config['rounds']} --warmup {config['warmup']} --budget-s {config['budget_s']}",
    message:
        "Measuring {wildcards.paper}/{wildcards.case}"
    shell:
        "python -m spectile_study measure --paper {wildcards.paper} --case {wildcards.case} {params.options}"
        " --threads {threads} --out {output:q} --end-with $PPID > {log:q} 2>&1"


# On a cluster measuring alone is submitted: gathering and drawing take seconds, less than a place in a queue.


# One frame a paper: one row a method and case, medians and intervals derived from the raw samples.
rule gather_records:
    input:
        records,
    output:
        result("{paper}.parquet"),
    log:
        f"logs/{MACHINE}/gather_{{paper}}.log",
    localrule: True
    conda:
        "../../envs/cpu.yaml"
    message:
        "Gathering the records of {wildcards.paper}"
    shell:
        "python -m spectile_study gather --records {input:q} --out {output:q} > {log:q} 2>&1"
