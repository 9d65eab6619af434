"""The table of matrices that are pinned, ``config/matrices.tsv``, and names of matrices."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

COLUMNS = ("name", "group", "n", "columns", "nnz", "digest", "source", "field", "papers", "notes")
SOURCES = ("mirror", "rebuilt", "absent")
SAFE = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class Pinned:
    """One row of ``config/matrices.tsv``.

    Attributes
    ----------
    group, name : str
        As in the collection.
    rows, columns, nnz : int
        Shape, and nonzeros of the canonical content.
    digest : str
        sha256 of the canonical content (`digest`); empty while no copy has been seen, then rows, columns and nnz check.
    source : {"mirror", "rebuilt", "absent"}
        Where the digest was taken: a mirror's file, a mirror's file rebuilt from the published model, nowhere yet.
    field : {"real", "integer", "pattern", ""}
        Values in the file.
    papers, notes : str
        Papers that use it, and what there is to know.
    """

    group: str
    name: str
    rows: int
    columns: int
    nnz: int
    digest: str
    source: str
    field: str
    papers: str
    notes: str

    @property
    def key(self) -> str:
        """``group/name``."""
        return f"{self.group}/{self.name}"


Table = Mapping[str, Pinned] | str | os.PathLike[str] | None


def read_table(path: str | os.PathLike[str]) -> dict[str, Pinned]:
    """Read ``config/matrices.tsv``.

    Parameters
    ----------
    path : path-like
        The table; its place is the caller's to know.

    Returns
    -------
    dict
        `Pinned` by ``group/name``.

    Raises
    ------
    ValueError
        Another header, a number or digest that is none, an unknown source, or a matrix listed twice.
    """
    pins: dict[str, Pinned] = {}
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ValueError(f"{path} has the columns {reader.fieldnames}; they must be {' '.join(COLUMNS)}")
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            try:
                rows, nnz = int(row["n"]), int(row["nnz"])
                columns = int(row["columns"]) if row["columns"] else rows
            except (TypeError, ValueError):
                raise ValueError(
                    f"{where}: n, columns and nnz must be whole numbers (columns empty if square)"
                ) from None
            if any(value is None for value in row.values()) or None in row:
                raise ValueError(f"{where}: a row must have {len(COLUMNS)} cells")
            if not (SAFE.fullmatch(row["name"]) and SAFE.fullmatch(row["group"])):
                raise ValueError(f"{where}: {row['group']}/{row['name']} is no name of a matrix")
            if not re.fullmatch(r"([0-9a-f]{64})?", row["digest"]):
                raise ValueError(f"{where}: the digest must be 64 hexadecimal digits, or empty")
            if row["source"] not in SOURCES or (row["source"] == "absent") != (row["digest"] == ""):
                raise ValueError(f"{where}: source must be mirror or rebuilt with a digest, or absent without one")
            pinned = Pinned(
                row["group"], row["name"], rows, columns, nnz,
                *(row[cell] for cell in ("digest", "source", "field", "papers", "notes")),
            )  # fmt: skip
            if pinned.key in pins:
                raise ValueError(f"{where}: {pinned.key} is listed twice")
            pins[pinned.key] = pinned
    return pins


def as_pins(table: Table) -> Mapping[str, Pinned]:
    """Return the pinned matrices by ``group/name``; none without a table."""
    if table is None:
        return {}
    return table if isinstance(table, Mapping) else read_table(table)


def resolve(name: str, pins: Mapping[str, Pinned]) -> str | None:
    """Return ``group/name``, if `name` is that already or the table knows one group that has it."""
    if name.count("/") == 1 and all(SAFE.fullmatch(part) for part in name.split("/")):
        return name
    if not SAFE.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a matrix; give group/name or name as the collection spells them")
    keys = [key for key in pins if key.split("/")[1] == name]
    return keys[0] if len(keys) == 1 else None
