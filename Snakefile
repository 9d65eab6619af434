# spectile: make inputs, measure ours and the vendors' methods, draw the four papers' tables and figures.
# This page is the table of contents; config/README.md explains every key, CONTRIBUTING.md how to add to it.
from pathlib import Path

from snakemake.utils import min_version

min_version("9.9")


# The working directory's own configuration, or the one beside this file: results may lie elsewhere (--directory).
OWN_CONFIG = Path("config/config.yaml")


configfile:
    str(
        OWN_CONFIG
        if OWN_CONFIG.exists()
        else Path(str(workflow.current_basedir)) / OWN_CONFIG
    )


include: "workflow/rules/common.smk"


# Another workflow that uses this one as a module opens its report on words of its own.
if IS_MAIN:

    report: "workflow/report/workflow.rst"


rule all:
    """Everything of a run: its records, tables, figures, claims and report."""
    input:
        PLAN.all_records(),
        PLAN.drawings(),
        PLAN.result("claims.html"),
        PLAN.result("machines/claims.html"),
        PLAN.result("config.yaml"),
        PLAN.everyday_in_report(),
        PLAN.result("report.zip") if IS_MAIN else [],
    localrule: True
    message:
        "Everything of this run is there"


rule figures:
    """Tables and figures alone, from the records that are there or from source=recorded."""
    input:
        PLAN.drawings(),
    localrule: True
    message:
        "All figures and tables are drawn"


rule records:
    """Records alone, measured and not drawn: a machine that measures needs nothing that draws."""
    input:
        PLAN.all_records(),
    localrule: True
    message:
        "All records of this run are there"


rule smoke:
    """The shortest way through every stage: the first case of each paper."""
    input:
        PLAN.first_records(),
    localrule: True
    message:
        "The first case of each paper is measured"


include: "workflow/rules/inputs.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/gather.smk"
include: "workflow/rules/redraw.smk" if PLAN.is_recorded else "workflow/rules/draw.smk"
include: "workflow/rules/everyday.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/hooks.smk"
