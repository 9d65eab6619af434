# What happens before the first job and after the last: the device, the report, and what is missing.
import subprocess
import tempfile

from spectile_study.bench.aside import bring_back, set_aside
from spectile_study.figures import rules
from spectile_study.figures.marks import write_text

REQUESTED = b"not written yet"


def report_path():
    """Return where the report of this run lies."""
    return Path(PLAN.result("report.zip"))


def is_requested():
    """Return whether this run asked for a report that is not written yet."""
    try:
        with report_path().open("rb") as file:
            return file.read(len(REQUESTED)) == REQUESTED
    except FileNotFoundError:
        return False


def write_rules():
    """Write the graph of this run's rules beside its results: spectile-study keep takes it along with the records."""
    write_text(Path(PLAN.result("rules.svg")), rules.svg(SNAKEMAKE.rules()))


def write_report():
    """Write the report of the finished run, from the configuration that the run stored beside its results."""
    if not is_requested():
        return
    if not PLAN.is_recorded:
        write_rules()
    command = [INTERPRETER, "-m", "snakemake", "--nolock", "--quiet", "all"]
    command += ["--snakefile", os.path.relpath(SNAKEMAKE.main_snakefile())]
    command += ["--configfile", PLAN.result("config.yaml")]
    command += ["--report-stylesheet", str(STUDY / "workflow/report/style.css")]
    try:
        # The folder in a zip has the zip's name, so that the unfinished one lies elsewhere under the same.
        with tempfile.TemporaryDirectory(
            prefix=".report-", dir=report_path().parent
        ) as folder:
            partial = Path(folder) / report_path().name
            done = subprocess.run([*command, "--report", str(partial)])
            if done.returncode == 0:
                partial.replace(report_path())
    finally:
        forget_request()
    if done.returncode != 0:
        print(
            "spectile: everything is there but the report, which was not written for the reason above: "
            "run this again once that is mended.",
            file=sys.stderr,
        )
        sys.exit(1)
    what = "recorded measurements" if PLAN.is_recorded else f"run {config['run']}"
    print(
        f"{report_path()} is written: unpack it and open report/report.html ({PLAN.machine}, {what})."
    )


def forget_request():
    """Take back the request for a report that was not written: Snakemake would take it for the report itself."""
    if is_requested():
        report_path().unlink()


RECORDS, ASIDE = Path(PLAN.result("records")), Path(PLAN.result(".records"))


def bring_records_back():
    """Bring back the finished records that Snakemake removed for jobs that failed, and say so."""
    back = bring_back(RECORDS, ASIDE)
    if back:
        print(
            f"spectile: {len(back)} finished records that were to be measured again stand as they were: "
            f"{', '.join(back[:3])}{', ...' if len(back) > 3 else ''}.",
            file=sys.stderr,
        )


def list_missing():
    """Say which figures and tables are not there, where their logs are, and how the others are drawn."""
    forget_request()
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
    if SNAKEMAKE.has_jobs_here() and config["source"] == "measured":
        worded(check_device, config["device"])
    if not SNAKEMAKE.is_in_a_job():
        set_aside(RECORDS, ASIDE)


onsuccess:
    bring_records_back()
    write_report()


onerror:
    bring_records_back()
    list_missing()


# A Snakemake that was killed left records aside, or the request for its report; one at work holds the lock.
if not SNAKEMAKE.is_in_a_job() and not snakemake_parts.is_at_work():
    bring_records_back()
    forget_request()
