# The report and the configuration that it was made with.


rule store_config:
    """Store the configuration of this run beside its results."""
    output:
        PLAN.result("config.yaml"),
    log:
        f"logs/{PLAN.machine}/config.log",
    localrule: True
    conda:
        "../../envs/plot.yaml"
    params:
        config=PLAN.stored_config(),
    message:
        "Storing the configuration beside the results"
    shell:
        "printf '%s' {params.config:q} > {output:q} 2> {log:q}"


if PLAN.kept_rules():

    rule show_rules:
        """Show the rules of the run that measured the recorded results."""
        input:
            PLAN.kept_rules(),
        output:
            report(
                PLAN.result("rules.svg"),
                caption="../report/rules.rst",
                category="0 Claims",
                labels={
                    "element": "Rules of the measured run",
                    "machine": PLAN.machine,
                },
            ),
        log:
            f"logs/{PLAN.machine}/rules.log",
        localrule: True
        conda:
            "../../envs/plot.yaml"
        message:
            "Taking the graph of the rules that measured"
        shell:
            "cp {input:q} {output:q} 2> {log:q}"


# Another workflow that uses this one as a module writes its own report; its hooks are its own, too.
if IS_MAIN:

    rule request_report:
        """Ask for the report of this run, which Snakemake writes when everything else has ended."""
        input:
            PLAN.drawings(),
            PLAN.everyday_in_report(),
            PLAN.result("claims.html"),
            PLAN.result("machines/claims.html"),
            PLAN.result("config.yaml"),
            [PLAN.result("rules.svg")] if PLAN.kept_rules() else [],
        output:
            PLAN.result("report.zip"),
        log:
            f"logs/{PLAN.machine}/report.log",
        localrule: True
        conda:
            "../../envs/plot.yaml"
        message:
            "Asking for the report"
        shell:
            "printf %s 'not written yet' > {output:q} 2> {log:q}"
