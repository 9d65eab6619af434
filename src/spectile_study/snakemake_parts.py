"""What the rules ask of Snakemake beyond its public interface, in one place; known for Snakemake 9.9 to 9.27.

Public are ``config``, ``workflow.current_basedir`` and ``workflow.cores``, wildcards, and what
``snakemake.utils`` holds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

#: The versions of which the parts below are known.
KNOWN = "snakemake>=9.9,<9.28"


class Parts:
    """Parts of a running Snakemake.

    Parameters
    ----------
    workflow : snakemake.workflow.Workflow
        As Snakefiles know it.

    Raises
    ------
    WorkflowError
        Of every method: this Snakemake has not the part; one sentence says which version to install.
    """

    def __init__(self, workflow: Any) -> None:
        self._workflow = workflow

    def main_snakefile(self) -> str:
        """Return the file that Snakemake was started with."""
        return str(self._part("main_snakefile"))

    def is_in_a_job(self) -> bool:
        """Return whether this Snakemake was started by another one for a job."""
        return bool(self._part("remote_exec"))

    def has_jobs_here(self) -> bool:
        """Return whether jobs run on this machine."""
        return bool(self._part("local_exec"))

    def is_forced(self) -> bool:
        """Return whether jobs were asked for whatever is there: by --forcerun, --force or --forceall."""
        return any([self._part(f"dag_settings.{name}") for name in ("forcerun", "forceall", "forcetargets")])

    def has_made(self, path: str) -> bool:
        """Return whether Snakemake knows how a file was made."""
        from snakemake.io import IOFile

        return bool(self._part("persistence.metadata")(IOFile(path)))

    def make_again(self, path: str) -> None:
        """Let a file be made again if this run needs it, as --forcerun does."""
        self._part("dag.forcefiles").add(path)

    def rules(self) -> list[tuple[str, str]]:
        """Return which rule's files which rule's jobs of this run take: pairs of names, in order."""
        dependencies = self._part("dag.dependencies")
        return sorted(
            {(other.rule.name, job.rule.name) for job in self._part("dag.jobs") for other in dependencies[job]}
        )

    def limit(self, resource: str) -> int | None:
        """Return the limit of a resource, None where there is none."""
        found = self._part("global_resources").get(resource)
        return found.value if found is not None else None

    def _part(self, path: str) -> Any:
        found = self._workflow
        for name in path.split("."):
            try:
                found = getattr(found, name)
            except AttributeError:
                raise _unknown(f"workflow.{path}") from None
        return found


def targets(words: Sequence[str]) -> list[str]:
    """Return the targets in the words of Snakemake's command line, which it reads itself only after the Snakefile."""
    try:
        from snakemake.cli import get_argument_parser
    except ImportError:
        raise _unknown("snakemake.cli.get_argument_parser") from None
    return list(get_argument_parser().parse_known_args(words)[0].targets)


def is_at_work(folder: Path = Path()) -> bool:
    """Return whether a Snakemake works in a folder: it holds the lock."""
    return any((folder / ".snakemake/locks").glob("*"))


def writes_report() -> bool:
    """Return whether this Snakemake was started to write a report."""
    return "--report" in sys.argv


def _unknown(part: str) -> Exception:
    from snakemake_interface_common.exceptions import WorkflowError

    return WorkflowError(
        f"Snakemake {metadata.version('snakemake')} has no {part}, which spectile's rules need: pip install '{KNOWN}'"
    )
