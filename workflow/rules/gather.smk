# Gathering takes seconds, less than a place in a queue: on a cluster it runs where Snakemake does.


rule gather_records:
    """Make one frame of a paper's records, a row for each method of a case, and one zip of the records themselves."""
    input:
        PLAN.records,
    output:
        frame=PLAN.result("{paper}.parquet"),
        records=PLAN.result("{paper}.zip"),
    log:
        f"logs/{PLAN.machine}/gather_{{paper}}.log",
    localrule: True
    conda:
        "../../envs/cpu.yaml"
    message:
        "Gathering the records of {wildcards.paper}"
    shell:
        "python -m spectile_study gather --records {input:q} --out {output.frame:q}"
        " --zip {output.records:q} > {log:q} 2>&1"
