"""The collection's index, as ssgetpy reads and searches it.

ssgetpy keeps its index below the home of its process and fetches one from the collection's server when it has none.  It
runs in a process of its own, whose home is a folder of our resources, on the index that a mirror serves: so it needs no
network beside the mirror, and the user's home stays as it is.  ``python -m spectile_study.inputs.suitesparse.index`` is
that process.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import hashlib
import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spectile_study.inputs.download import NotThere, download, locked, say

SUITESPARSE_URL = "https://sparse.tamu.edu"
"""The collection itself; a mirror has the same layout (``files/ssstats.csv``, ``MM/<group>/<name>.tar.gz``)."""
_INDEX_AGE_S = 90 * 24 * 3600.0  # ssgetpy's own


class MissingMatrix(ValueError):
    """A matrix that is not at hand (or not at the mirror): a case that needs it is skipped with this sentence.

    Attributes
    ----------
    entry : Entry or None
        What an index kept here says of it.
    """

    def __init__(self, message: str, entry: Entry | None = None) -> None:
        super().__init__(message)
        self.entry = entry


@dataclass(frozen=True)
class Entry:
    """What the collection's index says of a matrix."""

    key: str
    rows: int
    columns: int
    nnz: int
    url: str

    @property
    def name(self) -> str:
        """The name without its group."""
        return self.key.split("/")[1]


def download_present(url: str, target: Path, what: str, most_bytes: int) -> bool:
    """Download as `download` does; what is not there is a missing matrix."""
    try:
        return download(url, target, what, most_bytes)
    except NotThere as error:
        raise MissingMatrix(f"{error}; choose another base URL, such as {SUITESPARSE_URL}") from None


def identify(name: str, base: str, home: Path) -> Entry:
    """Find a matrix by its exact name in the index of a mirror.

    Parameters
    ----------
    name : str
        ``group/name``, or ``name`` where only one group has it.
    base : str
        The collection or a mirror.
    home : Path
        Folder of the fetched matrices, in which the index is kept.

    Raises
    ------
    MissingMatrix
        The index does not have it; near names are suggested.
    ValueError
        Several groups have it, or the index is damaged.
    """
    stem = hashlib.sha256(base.encode()).hexdigest()[:16]
    csv_file = home / "index" / f"{stem}.csv"
    failure, asked = csv_file.with_suffix(".failed"), time.time()
    with locked(csv_file):
        is_local = base.startswith("file:")
        if is_local or not csv_file.is_file() or time.time() - csv_file.stat().st_mtime > _INDEX_AGE_S:
            if failure.is_file() and failure.stat().st_mtime > asked:
                raise ValueError(failure.read_text())  # it failed while this process waited for the lock
            try:
                download_present(f"{base}/files/ssstats.csv", csv_file, "the collection's index", 1 << 26)
            except ValueError as error:
                if not csv_file.is_file():
                    failure.write_text(str(error))
                    raise
                say(f"{error}; using the index of {time.strftime('%F', time.gmtime(csv_file.stat().st_mtime))}")
        answer = _ask_ssgetpy(csv_file, home / "index" / stem, name)
        if answer is None:
            csv_file.unlink()
            raise ValueError(f"the index {base}/files/ssstats.csv is damaged or truncated; choose another mirror")
    matches = answer["matches"]
    if len(matches) > 1:
        choices = ", ".join(match["key"] for match in matches)
        raise ValueError(f"the name {name!r} is that of several matrices of the collection; say which: {choices}")
    if not matches:
        near = _near(name.rpartition("/")[2], answer["keys"])
        raise MissingMatrix(f"matrix {name!r} is not in the index {base}/files/ssstats.csv{near}")
    (match,) = matches
    return Entry(match["key"], match["rows"], match["columns"], match["nnz"], base + match["path"])


def kept_entry(key: str, home: Path) -> Entry | None:
    """Return what an index that was fetched earlier says of the matrix ``group/name``; neither network nor ssgetpy.

    Parameters
    ----------
    key : str
        ``group/name``.
    home : Path
        Folder of the fetched matrices, in which indices are kept.
    """
    group, name = key.split("/")
    for path in sorted((home / "index").glob("*.csv")):
        for line in csv.reader(path.read_text(encoding="utf-8", errors="replace").splitlines()):
            if line[:2] == [group, name]:
                with contextlib.suppress(ValueError):  # a damaged line says nothing
                    rows, columns, nnz = map(int, line[2:5])
                    return Entry(key, rows, columns, nnz, "")
    return None


def _ask_ssgetpy(csv_file: Path, folder: Path, name: str) -> dict[str, Any] | None:
    """Return what ssgetpy finds for `name`, or None where the index is damaged; its own files go below `folder`."""
    if importlib.util.find_spec("ssgetpy") is None:
        raise ValueError("ssgetpy, which knows the matrices of the collection, is not installed: pip install ssgetpy")
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(csv_file), name],
        env=os.environ | {"HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"ssgetpy could not read {csv_file}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout)


def main(arguments: Sequence[str]) -> None:
    """Print what ssgetpy finds for a name in an index: its matches and all keys, or null where the index is damaged."""
    csv_file, name = arguments
    _prevent_download(Path(os.environ["HOME"]) / ".ssgetpy/index.db")
    import ssgetpy
    from ssgetpy import config, csvindex, dbinstance

    lines = Path(csv_file).read_text(encoding="utf-8", errors="replace").splitlines()
    try:
        rows, announced = list(csvindex.gen_rows(lines[2:])), int(lines[0])
    except (IndexError, ValueError):
        rows, announced = [], -1
    if len(rows) != announced:
        print("null")
        return
    dbinstance.instance.refresh(rows)
    group, _, bare = name.rpartition("/")
    matches = [  # ssgetpy matches a part of the name and stops at ten: ask for all, keep what is equal
        entry for entry in ssgetpy.search(name=bare, limit=-1) if entry.name == bare and group in ("", entry.group)
    ]
    matches = [
        {
            "key": f"{entry.group}/{entry.name}",
            "rows": entry.rows,
            "columns": entry.cols,
            "nnz": entry.nnz,
            "path": entry.url("MM").removeprefix(config.SS_ROOT_URL),
        }
        for entry in matches
    ]
    print(json.dumps({"matches": matches, "keys": [f"{row[1]}/{row[2]}" for row in rows]}))


def _prevent_download(database: Path) -> None:
    """Make ssgetpy's index look recent: at import it would fetch an empty or old one from the collection's server."""
    database.parent.mkdir(parents=True, exist_ok=True)
    database.unlink(missing_ok=True)
    columns = "id, matrixgroup, name, rows, cols, nnz, dtype, is2d3d, isspd, psym, nsym, kind"
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(f"CREATE TABLE MATRICES ({columns})")
        connection.execute("INSERT INTO MATRICES (id) VALUES (0)")
        connection.execute("CREATE TABLE update_table (update_date TIMESTAMP)")
        connection.execute("INSERT INTO update_table VALUES (datetime('now'))")


def _near(bare: str, names: Sequence[str]) -> str:
    keys = {key: key.partition("/")[2].lower() for key in names}
    close = set(difflib.get_close_matches(bare.lower(), set(keys.values()), n=4, cutoff=0.6))
    near = sorted((key for key, lower in keys.items() if lower in close), key=lambda key: keys[key] != bare.lower())
    return f"; near names: {', '.join(near[:6])}" if near else "; see https://sparse.tamu.edu for the names"


if __name__ == "__main__":
    main(sys.argv[1:])
