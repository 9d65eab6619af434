"""Write docs/history.md, each headline in every recorded frame of its machine: ``python docs/history.py``.

Frames are read from git, so the clone must be whole; a number of a commit is that of the frame as it was recorded
there, by today's arithmetic.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pandas

from spectile_study.bench import record
from spectile_study.bench.stats import geometric_mean, speedups
from spectile_study.papers import PAPERS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/history.md"
MACHINES = ("h200", "h100")
HEAD = """# History: each headline across the recorded commits

Speed-ups over the vendor's in the same run, geometric mean and range over the cases that the frame of a commit holds; a
line for each recording that moved one. SpAMM's and KPM's are of the device's own time, tSparse's and EVD's of calls.
What moved a line (kernels, the vendor's library, cases, the machine) stands in that commit's message and in
[the changelog](../CHANGELOG.md). Frames are taken whole, those rows included that say neither date nor driver
([records](records.md)). Written by `python docs/history.py`, which reads the frames from git.
"""


class Headline(NamedTuple):
    """A number that is followed: what it is, and the speed-ups of a frame that it is the mean of."""

    paper: str
    what: str
    of: Callable[[pandas.DataFrame], pandas.DataFrame]


def _products(frame: pandas.DataFrame, precision: str) -> pandas.DataFrame:
    return frame[(frame["p_study"] == "product") & (frame["p_precision"] == precision) & ~(frame["p_gpus"] > 1)]


def _solved(frame: pandas.DataFrame, task: str) -> pandas.DataFrame:
    """Return the speed-ups over cuSOLVER's one-stage solver, which every frame holds, of each order."""
    rows = frame[frame["case"].str.fullmatch(rf"evd_\d+_{task}(_gpu)?")]
    return speedups(rows, "spectile", "cusolver_one_stage")


def _steps(frame: pandas.DataFrame) -> pandas.DataFrame:
    return frame[(frame["p_study"] == "step") & (frame["p_precision"] == "complex128")]


HEADLINES = (
    *(
        Headline(
            "spamm",
            f"Table 2 at 5 % valid over cuBLAS, {precision}; nine tenths of ‖C‖ are left out",
            lambda frame, precision=precision: speedups(_products(frame, precision), "spectile_05", "cublas"),
        )
        for precision in ("fp32", "fp16")
    ),
    *(
        Headline(
            "tsparse",
            f"product over cuSPARSE, {dtype}",
            lambda frame, dtype=dtype: speedups(
                frame[frame["p_product"].isna()], f"spectile_{dtype}", f"cusparse_{dtype}"
            ),
        )
        for dtype in ("float64", "float32")
    ),
    *(
        Headline("evd", f"eigen{task} over cuSOLVER's one-stage solver", lambda frame, task=task: _solved(frame, task))
        for task in ("values", "vectors")
    ),
    *(
        Headline(
            "kpm",
            f"{words} over library calls",
            lambda frame, method=method: speedups(_steps(frame), method, "naive"),
        )
        for words, method in (("blocks of vectors", "aug_spmmv"), ("two steps in a sweep", "blocked"))
    ),
)


def told(headline: Headline, frame: pandas.DataFrame) -> str:
    """Return a headline of a frame in words; nothing where the frame does not hold it."""
    found = headline.of(frame)["speedup"].astype(float)
    if found.empty:
        return ""
    extent = f" ({found.min():.2f} to {found.max():.2f})" if len(found) > 1 else ""
    return f"{geometric_mean(found):.2f}{extent} | {len(found)}"


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
            for headline in HEADLINES:
                stages = [(*each[:2], told(headline, each[2])) for each in frames if headline.paper == paper]
                lines = [f"| {date} | {commit} | {words} |" for commit, date, words in moved(stages)]
                if lines:
                    parts.append(f"## {PAPERS[paper].name} on {machine}: {headline.what}\n")
                    parts.append(
                        "\n".join(["| recorded | commit | speed-up | cases |", "| --- | --- | --- | --- |", *lines, ""])
                    )
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
