"""Parts of Snakemake that are not its public interface are asked for in one place, and missed in one sentence."""

from types import SimpleNamespace

import pytest
from snakemake_interface_common.exceptions import WorkflowError

from spectile_study import snakemake_parts
from spectile_study.snakemake_parts import Parts

CALLS = {
    "main_snakefile": Parts.main_snakefile,
    "remote_exec": Parts.is_in_a_job,
    "local_exec": Parts.has_jobs_here,
    "dag_settings.forcerun": Parts.is_forced,
    "persistence.metadata": lambda parts: parts.has_made("a"),
    "dag.dependencies": Parts.rules,
    "dag.forcefiles": lambda parts: parts.make_again("a"),
    "global_resources": lambda parts: parts.limit("gpu"),
}


@pytest.mark.parametrize("part", CALLS)
@pytest.mark.parametrize("half", [{}, {"dag": None, "persistence": None, "dag_settings": None}])
def test_a_part_that_is_not_there_is_named_with_a_version_that_has_it(part, half):
    with pytest.raises(WorkflowError, match=rf"has no workflow\.{part}, .*: pip install 'snakemake>=9"):
        CALLS[part](Parts(SimpleNamespace(**half)))


class Job:
    def __init__(self, name):
        self.rule = SimpleNamespace(name=name)


def test_what_is_there_is_told():
    forced, made, jobs = set(), {"old"}, [Job("c"), Job("a"), Job("b")]
    workflow = SimpleNamespace(
        main_snakefile="Snakefile",
        remote_exec=False,
        local_exec=True,
        dag_settings=SimpleNamespace(forcerun=frozenset(), forceall=False, forcetargets=True),
        persistence=SimpleNamespace(metadata=lambda path: {"rule": "all"} if path in made else {}),
        dag=SimpleNamespace(
            forcefiles=forced, jobs=jobs, dependencies={jobs[0]: jobs[1:], jobs[1]: jobs[2:], jobs[2]: []}
        ),
        global_resources={"gpu": SimpleNamespace(value=2)},
    )
    parts = Parts(workflow)
    assert (parts.main_snakefile(), parts.is_in_a_job(), parts.has_jobs_here()) == ("Snakefile", False, True)
    assert parts.is_forced() and parts.has_made("old") and not parts.has_made("new")
    parts.make_again("new")
    assert parts.rules() == [("a", "c"), ("b", "a"), ("b", "c")]
    assert forced == {"new"} and parts.limit("gpu") == 2 and parts.limit("bench") is None
    workflow.dag_settings.forcetargets = False
    assert not parts.is_forced()
    words = ["--cores", "2", "results/this/kpm.parquet", "all", "--config", "machine=this"]
    assert snakemake_parts.targets(words) == ["results/this/kpm.parquet", "all"]


def test_a_lock_says_that_one_is_at_work(tmp_path):
    assert not snakemake_parts.is_at_work(tmp_path)
    (tmp_path / ".snakemake/locks").mkdir(parents=True)
    assert not snakemake_parts.is_at_work(tmp_path)
    (tmp_path / ".snakemake/locks/0.input.lock").touch()
    assert snakemake_parts.is_at_work(tmp_path)
