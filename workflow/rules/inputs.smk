# Inputs: downloaded, generated, computed or trained.  Each rule leaves a receipt with the sha256 of what it made, or why it
# is absent; a case is measured again when a receipt changes.
from spectile_study import make_inputs


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


rule describe_input:
    """Describe what devices make where it is used, by its parameters and the checksum of a sample; generate families."""
    output:
        "resources/inputs/{kind}/{name}.json",
    log:
        "logs/inputs/{kind}_{name}.log",
    wildcard_constraints:
        kind="|".join((*make_inputs.DESCRIBED, "family")),
    localrule: True
    conda:
        "../../envs/cpu.yaml"
    params:
        seed=config["seed"],
        available=lambda wildcards: make_inputs.available(wildcards.kind),
    message:
        "Describing the input {wildcards.name} of the kind {wildcards.kind}"
    shell:
        "python -m spectile_study make-input --kind {wildcards.kind:q} --name {wildcards.name:q} --seed {params.seed:q}"
        " --resources resources --receipt {output:q} 2> {log:q}"


rule take_own:
    """Take a matrix of the user's own: a file, or what the function of a Python file makes."""
    input:
        "own/{file}",
    output:
        "resources/inputs/own/{file}.json",
    log:
        "logs/inputs/own_{file}.log",
    conda:
        "../../envs/cpu.yaml"
    params:
        seed=config["seed"],
        available=make_inputs.available("own"),
    message:
        "Taking the matrix {wildcards.file}"
    shell:
        "python -m spectile_study make-input --kind own --name {wildcards.file:q} --seed {params.seed:q}"
        " --resources resources --receipt {output:q} 2> {log:q}"


rule compute_water:
    """Compute an operator of a water cluster with PySCF, minutes to hours on a CPU."""
    output:
        "resources/inputs/water/{name}.json",
    log:
        "logs/inputs/water_{name}.log",
    conda:
        "../../envs/cpu.yaml"
    threads: 8
    resources:
        runtime=240,
        mem_mb=32768,
    params:
        seed=config["seed"],
        available=make_inputs.available("water"),
    message:
        "Computing the operator {wildcards.name} of water with PySCF"
    shell:
        "python -m spectile_study make-input --kind water --name {wildcards.name:q} --seed {params.seed:q}"
        " --resources resources --receipt {output:q} 2> {log:q}"


rule solve_hartree_fock:
    """Find the Fock matrix of a water cluster: packed, or by GPU4PySCF on a device, or by PySCF for a small one."""
    output:
        "resources/inputs/scf/{name}.json",
    log:
        "logs/inputs/scf_{name}.log",
    conda:
        "../../envs/gpu.yaml" if PLAN.wants_gpu() else "../../envs/cpu.yaml"
    threads: 8
    resources:
        runtime=60,
        mem_mb=32768,
        gpu=1 if PLAN.wants_gpu() else 0,
    params:
        seed=config["seed"],
        available=make_inputs.available("scf"),
    message:
        "Finding the Hartree-Fock matrices of {wildcards.name} water molecules"
    shell:
        "python -m spectile_study make-input --kind scf --name {wildcards.name:q} --seed {params.seed:q}"
        " --resources resources --receipt {output:q} 2> {log:q}"


rule run_ergo:
    """Compute an operator of a water cluster with ergo, which makes all four of its run at once."""
    output:
        "resources/inputs/ergo/{name}.json",
    log:
        "logs/inputs/ergo_{name}.log",
    conda:
        "../../envs/ergo.yaml"
    threads: 8
    resources:
        runtime=240,
        mem_mb=32768,
    params:
        seed=config["seed"],
        available=make_inputs.available("ergo"),
    message:
        "Computing the operator {wildcards.name} of water with ergo"
    shell:
        "python -m spectile_study make-input --kind ergo --name {wildcards.name:q} --seed {params.seed:q}"
        " --resources resources --receipt {output:q} 2> {log:q}"


rule train_network:
    """Train the network whose convolution is thresholded: of the digits in seconds, VGG13 on a GPU."""
    output:
        "resources/inputs/network/{name}.json",
    log:
        "logs/inputs/network_{name}.log",
    conda:
        "../../envs/gpu.yaml"
    resources:
        runtime=120,
        mem_mb=16384,
    params:
        seed=config["seed"],
        available=make_inputs.available("network"),
    message:
        "Training the network {wildcards.name}"
    shell:
        "python -m spectile_study make-input --kind network --name {wildcards.name:q} --seed {params.seed:q}"
        " --resources resources --receipt {output:q} 2> {log:q}"
