"""Cases measured on a GPU through Snakemake: checked, in one process, and with everything that made their numbers."""

import importlib.util

import pytest

from spectile.core import device
from spectile_study.bench import provenance, record

from .conftest import snakemake

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.workflow,
    pytest.mark.skipif(not device.available(), reason="no CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("snakemake") is None, reason="Snakemake is not installed here"),
]
CASES = ("kpm/step_16x16x10_r4", "evd/evd_1024_values_gpu", "kpm/step_16x16x10_r1")
SETTINGS = ("--cores", "2", "--config", "machine=box", "device=cuda", "rounds=6", "budget_s=0.5")


def test_measured_through_snakemake_and_gathered(workflow_copy):
    row = {"kpm": "quick", "evd": "paper"}
    for paper, run in row.items():
        wanted = [f"results/box/records/{case}.json" for case in CASES if case.startswith(paper)]
        snakemake(workflow_copy, *SETTINGS, f"run={run}", "--", *wanted)
        snakemake(workflow_copy, *SETTINGS, f"run={run}", "source=present", "--", f"results/box/{paper}.parquet")
    stored = {case: record.read(workflow_copy / f"results/box/records/{case}.json") for case in CASES}
    for case, each in stored.items():
        assert (each["status"], each["backend"]) == ("ok", "cuda"), each["reason"]
        timed = [method for method in each["methods"] if method.get("samples_s")]
        assert timed, case
        for method in timed:
            assert method["status"] == "ok" and len(method["samples_s"]) >= 3
            assert all(method["errors"][name] <= limit for name, limit in method["limits"].items())
        # What made the numbers is said, and is what is here now.
        assert provenance.software_of(each) == provenance.software("cuda")
        assert set(provenance.software("cuda")) == set(provenance.GPU_SOFTWARE)
    assert {stored[case]["provenance"]["cases_before"] for case in CASES if case.startswith("kpm")} == {0, 1}
    frame = record.read_frame(workflow_copy / "results/box/kpm.parquet")
    columns = [f"run_{name}" for name in (*record.RUN_FACTS, *record.RUN_GPU_FACTS)]
    assert frame[columns].notna().all().all()
    again = snakemake(
        workflow_copy, *SETTINGS, "run=quick", "remeasure=stale", "--", f"results/box/records/{CASES[0]}.json"
    )
    assert "Measuring" not in again.stdout + again.stderr and "other software" not in again.stderr
