"""Write docs/history.md, each headline in every recorded frame of its machine: ``python docs/history.py``.

Frames are read from git, so the clone must be whole; a number of a commit is that of the frame as it was recorded
there, by today's arithmetic.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas

from spectile_study.bench import record
from spectile_study.figures.headlines import Headline, headlines
from spectile_study.papers import PAPERS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/history.md"
MACHINES = ("h200", "h100")
HEAD = """# History: each headline across the recorded commits

The lines of README's table: speed-ups over the vendor's in the same run, range and geometric mean over the cases that
the frame of a commit holds; a line for each recording that moved one. What moved a line (kernels, the vendor's library,
cases, the machine) stands in that commit's message and in [the changelog](../CHANGELOG.md). Frames are taken whole,
those rows included that say neither date nor driver ([records](records.md)). Written by `python docs/history.py`, which
reads the frames from git.
"""
COLUMNS = (
    "| recorded | commit | a call | the device alone | of |",
    "| --- | --- | --- | --- | --- |",
)


def told(line: Headline) -> str:
    """Return a headline in words; nothing where its frame does not hold it."""
    if not line.most:
        return ""
    alone = "" if line.device is None else line.extent(line.device)
    return f"{line.extent(line.calls)} | {alone} | {line.cases(line.most)}"


def versions(root: Path, path: str) -> Iterator[tuple[str, str, pandas.DataFrame]]:
    """Yield the commit, its date and the frame of every version of a recorded frame, the oldest first.

    The last one is the file itself, which may not be committed yet.
    """
    git = ["git", "-C", str(root)]
    log = [*git, "log", "--reverse", "--diff-filter=AM", "--abbrev=7", "--format=%h %cs", "--", path]
    for line in subprocess.run(log, capture_output=True, text=True, check=True).stdout.splitlines():
        commit, date = line.split()
        content = subprocess.run([*git, "show", f"{commit}:{path}"], capture_output=True, check=True).stdout
        yield commit, date, record.read_frame(io.BytesIO(content), whole=True)
    yield "the next", "-", record.read_frame(root / path, whole=True)


def moved(stages: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Yield those of commits, dates and words whose words are others than the last ones."""
    last = ""
    for stage in stages:
        if stage[2] not in ("", last):
            yield stage
            last = stage[2]


def page(root: Path = ROOT) -> str:
    """Return the page, from the frames that git has."""
    parts = [HEAD]
    for paper in PAPERS:
        for machine in MACHINES:
            path = f"results/recorded/{machine}/{paper}.parquet"
            frames = list(versions(root, path)) if (root / path).exists() else []
            lines: dict[str, list[tuple[str, str, str]]] = {}
            for commit, date, frame in frames:
                for each in headlines(paper, frame):
                    lines.setdefault(f"{each.what}, over {each.over}", []).append((commit, date, told(each)))
            for what, stages in lines.items():
                told_of = [f"| {date} | {commit} | {words} |" for commit, date, words in moved(stages)]
                if told_of:
                    parts.append(f"## On {machine}: {what}\n")
                    parts.append("\n".join([*COLUMNS, *told_of, ""]))
    return "\n".join(parts)


def main() -> int:
    """Write the page."""
    shallow = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"], capture_output=True)
    if shallow.stdout.strip() == b"true":
        sys.exit("this clone holds the last commits alone: git fetch --unshallow, then write the page again")
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
