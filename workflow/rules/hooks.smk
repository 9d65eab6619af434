# What happens before the first job and after the last: the device, the report, and what is missing.
import subprocess
import tempfile

REQUESTED = b"not written yet"


def report_path():
    """Return where the report of this run lies."""
    return Path(PLAN.result("report.zip"))


def is_requested():
    """Return whether this run asked for a report that is not written yet."""
    return report_path().exists() and report_path().read_bytes()[:64] == REQUESTED


def write_report():
    """Write the report of the finished run, from the configuration that the run stored beside its results."""
    if not is_requested():
        return
    stored = PLAN.result("config.yaml")
    snakefile = os.path.relpath(workflow.main_snakefile)
    # The folder in a zip has the zip's name, so that the unfinished one lies elsewhere under the same.
    with tempfile.TemporaryDirectory(dir=report_path().parent) as folder:
        partial = Path(folder) / report_path().name
        subprocess.run(
            [
                INTERPRETER,
                "-m",
                "snakemake",
                "--snakefile",
                snakefile,
                "--report",
                str(partial),
                "--nolock",
            ]
            + ["--report-stylesheet", str(STUDY / "workflow/report/style.css")]
            + ["--quiet", "all", "--configfile", stored],
            check=True,
        )
        partial.replace(report_path())
    what = "recorded measurements" if PLAN.is_recorded else f"run {config['run']}"
    print(
        f"{report_path()} is written: unpack it and open report/report.html ({PLAN.machine}, {what})."
    )


def list_missing():
    """Say which figures and tables are not there, where their logs are, and how the others are drawn."""
    if is_requested():
        report_path().unlink()
    missing = [path for path in PLAN.drawings() if not Path(path).exists()]
    print(
        f"{len(missing)} of {len(PLAN.drawings())} figures and tables are missing; logs are in logs/{PLAN.machine}:"
    )
    for path in missing:
        print(f"  {path}")
    print(
        "To draw what was measured, run this again with --config source=present; to measure the rest, without it."
    )


onstart:
    # The run ends before its first job if it wants a CUDA device, and its jobs run on this machine, which has none.
    if workflow.local_exec and config["source"] == "measured":
        worded(check_device, config["device"])


onsuccess:
    write_report()


onerror:
    list_missing()
