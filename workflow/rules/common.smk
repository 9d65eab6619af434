# Configuration, run sheets and the functions that rules name.  No rule stands here.
import functools
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

from snakemake.exceptions import WorkflowError

from spectile_study.bench import provenance, sheets

ALL_PAPERS = provenance.PAPERS
TITLES = {
    "spamm": "1 SpAMM: near-sparse products (cuSpAMM)",
    "tsparse": "2 tSparse: sparse products on tensor cores",
    "evd": "3 EVD: two-stage symmetric eigensolver",
    "kpm": "4 KPM: spectral densities",
}


def check_config():
    """Check the configuration against its schema; a wrong key or value ends the run with one sentence."""
    schema = sheets.load_schema(Path("workflow/schemas/config.schema.yaml"))
    try:
        sheets.validate(config, schema, "the configuration")
    except sheets.SheetError as error:
        raise WorkflowError(str(error)) from None
    recorded = Path("results/recorded")
    if (
        config["source"] == "recorded"
        and not (recorded / str(config["machine"])).is_dir()
    ):
        names = sorted(path.name for path in recorded.glob("*") if path.is_dir())
        raise WorkflowError(
            f"results/recorded holds no machine {config['machine']!r}: "
            f"choose one with --config source=recorded machine=NAME, of {', '.join(names)}"
        )


check_config()
MACHINE = config["machine"]
PAPERS = [paper for paper in ALL_PAPERS if paper in config["papers"]]
RECORDED = config["source"] == "recorded"


def end_without_timers():
    """Cancel the timers that this process leaves when it ends: it would wait for them.

    Snakemake's limit of jobs a second is one, and costs each job on a cluster a second after its last word.
    """
    threading.main_thread().join()
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()


if workflow.remote_exec:
    threading.Thread(target=end_without_timers, daemon=True).start()


def result(path):
    """Return `path` below this machine's results."""
    return f"results/{MACHINE}/{path}"


@functools.cache
def cases(paper):
    """Return the rows of the paper's run sheet that this run measures, by case."""
    try:
        return sheets.read_sheet(
            Path(f"config/{paper}.tsv"),
            Path(f"workflow/schemas/{paper}.schema.yaml"),
            config["run"],
        )
    except sheets.SheetError as error:
        raise WorkflowError(str(error)) from None


def all_records(paper):
    """Return the records of the paper's cases, measured or not."""
    return [result(f"records/{paper}/{case}.json") for case in cases(paper)]


def records(wildcards):
    """Return the records that make the paper's frame: all, or with source=present those that are there."""
    wanted = all_records(wildcards.paper)
    if config["source"] == "present":
        return [path for path in wanted if Path(path).exists()]
    return wanted


def measured_records(wildcards):
    """Return the records of all cases of this run; none where only drawing is asked for."""
    if config["source"] != "measured":
        return []
    return [path for paper in PAPERS for path in all_records(paper)]


def smoke_records(wildcards):
    """Return the first record of each paper."""
    return [all_records(paper)[0] for paper in PAPERS if cases(paper)]


def frame(paper):
    """Return the paper's frame as a list: measured here, recorded, or nothing where no record was kept."""
    if config["source"] == "present":
        there = any(Path(path).exists() for path in all_records(paper))
        return [result(f"{paper}.parquet")] if there else []
    if not RECORDED:
        return [result(f"{paper}.parquet")]
    path = Path(f"results/recorded/{MACHINE}/{paper}.parquet")
    return [str(path)] if path.exists() else []


def frames():
    """Return the frames of all papers of this run."""
    return [path for paper in PAPERS for path in frame(paper)]


def row_of(wildcards):
    """Return the sheet's row of a case."""
    return cases(wildcards.paper)[wildcards.case]


def sources_digest(wildcards):
    """Return the digest of the sources that can change the paper's numbers."""
    return provenance.source_digest(wildcards.paper)


def row_digest(wildcards):
    """Return the digest of a case's row and of the settings of the measurement."""
    settings = {
        key: config[key] for key in ("rounds", "warmup", "budget_s", "seed", "device")
    }
    return sheets.row_digest(row_of(wildcards) | settings)


def case_threads(wildcards):
    """Return the threads of a measuring job: as configured, or all that Snakemake was given; one at least a rank."""
    threads = config["threads"] or workflow.cores or 8
    return max(threads, row_of(wildcards).get("ranks") or 1)


def case_gpus(wildcards):
    """Return the number of GPUs that a case needs; a limit below it ends the run, since Snakemake would clip to it."""
    if config["device"] == "cpu":
        return 0
    needed = row_of(wildcards).get("gpus") or (1 if config["device"] == "cuda" else 0)
    limit = workflow.global_resources.get("gpu")
    if limit is not None and limit.value is not None and limit.value < needed:
        raise WorkflowError(
            f"the case {wildcards.case} needs {needed} GPUs and --resources gpu={limit.value} would clip it: "
            "leave that limit out, or measure other papers"
        )
    return needed


def case_minutes(wildcards, attempt):
    """Return the minutes to ask a scheduler for: three times the sheet's estimate, five at least, more when retried."""
    return max(5, int(3 * (row_of(wildcards).get("minutes") or 1))) * attempt


def case_memory_mb(wildcards, attempt):
    """Return the memory to ask a scheduler for, more on a second attempt."""
    return int(1024 * (row_of(wildcards).get("memory_gb") or 4)) * attempt


def case_inputs(wildcards):
    """Return the receipts of the matrices that a case needs to have been fetched; families are generated instead."""
    from spectile_study.inputs.families import is_family

    name = row_of(wildcards).get("matrix")
    return (
        [] if name is None or is_family(name) else [f"resources/receipts/{name}.json"]
    )


def stems(paper):
    """Return the stems of the paper's figures and tables, one script each."""
    folder = Path("workflow/scripts")
    found = [
        path.stem
        for kind in ("plot", "table")
        for path in folder.glob(f"{kind}_{paper}_*.py")
    ]
    return sorted(
        found, key=lambda stem: (stem.partition("_")[0] == "plot", natural(stem))
    )


def natural(text):
    """Return a key that sorts fig10 after fig9."""
    digits = "".join(
        character if character.isdigit() else " " for character in text
    ).split()
    return [int(number) for number in digits], text


def drawn_path(stem):
    """Return the file that a drawing script makes."""
    kind, _, name = stem.partition("_")
    return result(f"figures/{name}.svg" if kind == "plot" else f"tables/{name}.html")


def drawn_files():
    """Return all figures and tables of this run."""
    return [drawn_path(stem) for paper in PAPERS for stem in stems(paper)]


def element(stem):
    """Return how the paper calls what a stem draws: fig5 -> Figure 5, t1 -> Table 1; what it does not have, by name."""
    name = stem.rsplit("_", 1)[1]
    numbered = re.fullmatch(r"(fig|t)(\d+)", name)
    if numbered is None:
        return f"{name} (not in the paper)"
    return f"{'Figure' if numbered[1] == 'fig' else 'Table'} {numbered[2]}"


def subject(stem):
    """Return what a stem draws in some words: the first line of its script, shortened at its first comma where long."""
    first = Path(f"workflow/scripts/{stem}.py").read_text().partition("\n")[0]
    words = re.sub(r"^(Figure|Table) \w+ of [^:]*: ", "", first.strip('."'))
    words = words if len(words) < 65 else re.split("[,:;(]", words)[0]
    start, space, rest = words.partition(" ")
    return (start.lower() if start.istitle() else start) + space + rest


def drawn(paper):
    """Return the paper's figures and tables as outputs that the report shows."""
    return [in_report(paper, stem) for stem in stems(paper)]


def in_report(paper, stem):
    """Return the file that a drawing script makes, marked for the report with its caption and labels."""
    caption = f"../report/{stem.partition('_')[2]}.rst"
    subcategory = "Figures" if stem.startswith("plot") else "Tables"
    labels = {"element": element(stem), "shows": subject(stem)}
    return report(
        drawn_path(stem),
        caption=caption,
        category=TITLES[paper],
        subcategory=subcategory,
        labels=labels,
    )


def drawing_scripts(paper):
    """Return the sources whose change draws the paper's figures again: its scripts, what they share, the style."""
    folder = Path("workflow/scripts")
    own = [str(folder / f"{stem}.py") for stem in stems(paper)]
    shared = sorted(str(path) for path in folder.glob(f"{paper}_*.py"))
    return [*own, *shared, "src/spectile_study/figures/style.py"]


def write_report():
    """Write report.zip of the finished run, from the configuration that the run stored beside its results."""
    wanted = [*drawn_files(), result("claims.html"), result("config.yaml")]
    if not all(Path(path).exists() for path in wanted):
        return
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--report",
        "report.zip",
        "--nolock",
        "--quiet",
        "all",
    ]
    subprocess.run([*command, "--configfile", result("config.yaml")], check=True)
    what = "recorded measurements" if RECORDED else f"run {config['run']}"
    print(
        f"report.zip is written: unpack it and open report/report.html ({MACHINE}, {what})."
    )


def list_missing():
    """Say which figures and tables are not there, where their logs are, and how the others are drawn."""
    missing = [path for path in drawn_files() if not Path(path).exists()]
    print(
        f"{len(missing)} of {len(drawn_files())} figures and tables are missing; logs are in logs/{MACHINE}:"
    )
    for path in missing:
        print(f"  {path}")
    print(
        "To draw what was measured, run this again with --config source=present; to measure the rest, without it."
    )
