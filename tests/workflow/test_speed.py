"""What Snakemake costs: thousands of jobs are planned in seconds, and a job costs little beside its measuring."""

import itertools
import re

import pytest

from .faulty import workflow as faulty

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    return faulty.faulty_workflow(folder, *({"case": f"case_{n}", "n": n + 1} for n in range(2000)))


def test_two_thousand_jobs_are_planned_in_under_ten_seconds(large):
    printed = []
    assert faulty.quiet_seconds(lambda: printed.append(faulty.run(large, "-n", "--quiet", "rules")[1])) < 10
    assert re.search(r"measure_case +2000", printed[0])


def seconds_inside(folder, case):
    """Return the seconds that a measuring job spent on its case, as its log says."""
    return float(re.search(r"ok \((\d+\.\d) s\)", (folder / f"logs/this/kpm/{case}.log").read_text())[1])


def test_a_local_job_costs_less_than_seven_tenths_of_a_second(large):
    def written():
        return sorted(large.glob("results/this/records/kpm/*.json"), key=lambda path: path.stat().st_mtime_ns)

    with faulty.started(large, "--cores", "2", "--set-threads", "measure_case=1"):
        faulty.wait_for("ten records", lambda: len(written()) > 10, seconds=1200)
        busy = faulty.busyness()
    paths = written()[:10]
    costs = [
        (later.stat().st_mtime_ns - earlier.stat().st_mtime_ns) / 1e9 - seconds_inside(large, later.stem)
        for earlier, later in itertools.pairwise(paths)
    ]
    print("seconds a job beside its case:", costs, "busy:", busy)
    # The least: what else the machine does lengthens some jobs, what a job waits for lengthens all.
    assert min(costs) < 0.7 * busy, (costs, busy)
