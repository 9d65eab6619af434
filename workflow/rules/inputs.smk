# Inputs that are downloaded.  Generated ones (decay, families, lattices, molecules) are made by the cases themselves.


rule fetch_matrix:
    """Download one SuiteSparse matrix: checked, resumable, never half-written; the receipt says what came."""
    output:
        "resources/receipts/{matrix}.json",
    log:
        "logs/fetch/{matrix}.log",
    retries: 2
    # Compute nodes often have no network: on a cluster, fetching runs where Snakemake does.
    localrule: True
    conda:
        "../../envs/cpu.yaml"
    params:
        base_url=config["suitesparse_url"],
        study=STUDY,
    message:
        "Fetching {wildcards.matrix} from the SuiteSparse collection"
    shell:
        "python -m spectile_study fetch --study {params.study:q} --matrix {wildcards.matrix:q}"
        " --base-url {params.base_url:q} --resources resources --receipt {output:q} 2> {log:q}"
