# spectile: fetch inputs, measure ours and the vendors' methods, draw the four papers' tables and figures.
# This page is the table of contents; config/README.md explains every key, CONTRIBUTING.md how to add to it.
from snakemake.utils import min_version

min_version("9.9")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"


report: "workflow/report/workflow.rst"


wildcard_constraints:
    paper="|".join(ALL_PAPERS),
    case="[a-z0-9_]+",
    matrix="([A-Za-z0-9_.+-]+/)?[A-Za-z0-9_.+-]+",


localrules:
    all,
    figures,
    smoke,
    note_config,


# Everything, with the claims page that the report opens on; a record that was removed is missed here alone.
rule all:
    input:
        measured_records,
        drawn_files(),
        result("claims.html"),
        result("config.yaml"),
    message:
        "Everything of this run is there"


# Figures and tables alone, from the records that are there or from source=recorded.
rule figures:
    input:
        drawn_files(),
    message:
        "All figures and tables are drawn"


# The shortest way through every stage: the first case of each paper's quick run.
rule smoke:
    input:
        smoke_records,
    message:
        "The first case of each paper is measured"


include: "workflow/rules/inputs.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/draw.smk"


onsuccess:
    write_report()


onerror:
    list_missing()
