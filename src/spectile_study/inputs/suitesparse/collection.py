"""Bring matrices of the collection into the folder of resources, and read them from there.

`fetch` brings a matrix into the folder of resources, `load` reads it from there, and `matrix` is what a run sheet's
column ``matrix`` means: a generated family (`spectile_study.inputs.families`) or a fetched matrix.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from spectile_study.inputs import families, own
from spectile_study.inputs.download import checked_base, clear_partials, locked, say
from spectile_study.inputs.suitesparse.archive import most_bytes, read_archive
from spectile_study.inputs.suitesparse.content import (
    canonical,
    digest_of,
    home_of,
    kept_path,
    read_kept,
    verify,
    write_kept,
)
from spectile_study.inputs.suitesparse.index import (
    SUITESPARSE_URL,
    MissingMatrix,
    download_present,
    identify,
    kept_entry,
)
from spectile_study.inputs.suitesparse.table import SAFE, Table, as_pins, resolve

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def matrix(name: str, resources: str | os.PathLike[str], table: Table = None) -> csr_array:
    """Return the matrix that a run sheet names.

    Parameters
    ----------
    name : str
        A family's name (``cage11``, ``rmat_14``: see `inputs.families`), which is read where a rule made it and else
        generated, or the name of a fetched matrix, ``group/name`` or ``name`` where only one group has it.  Where both
        exist the family is meant; ``vanHeukelum/cage11`` is the collection's file.  ``own/name`` is the user's own
        (`inputs.own`), which a rule has taken.
    resources : path-like
        Folder with the fetched matrices.
    table : path-like or mapping, optional
        ``config/matrices.tsv`` (or `read_table` of it), which checks the content and knows groups.

    Returns
    -------
    csr_array of float64, in canonical form

    Raises
    ------
    MissingMatrix
        It is no family and has not been fetched.
    ValueError
        The kept copy is damaged, or is not what the table pins; or a family's numbers are out of range.
    """
    if own.is_own(name):
        taken = Path(resources) / f"{name}.npz"
        if not taken.is_file():
            raise MissingMatrix(f"matrix {name} has not been taken in: run the workflow, whose rule does it")
        return read_kept(taken)
    if families.is_family(name):
        made = Path(resources) / "families" / f"{name}.npz"
        with contextlib.suppress(ValueError):  # a damaged one is generated instead
            if made.is_file():
                return read_kept(made)
        return canonical(families.generate(name))
    return load(name, resources, table)


def load(name: str, resources: str | os.PathLike[str], table: Table = None) -> csr_array:
    """Read a fetched matrix and check its content.

    Parameters
    ----------
    name : str
        ``group/name``, or ``name`` where only one group has it.
    resources : path-like
        Folder with the fetched matrices.
    table : path-like or mapping, optional
        ``config/matrices.tsv`` (or `read_table` of it).

    Returns
    -------
    csr_array of float64, in canonical form

    Raises
    ------
    MissingMatrix
        It has not been fetched.
    ValueError
        The kept copy is damaged, or is not what the table pins.
    """
    pins = as_pins(table)
    home = home_of(resources)
    key = resolve(name, pins)
    if key is None:
        copies = sorted(home.glob(f"*/{name}.npz")) if SAFE.fullmatch(name) else []
        if len(copies) > 1:
            choices = ", ".join(f"{path.parent.name}/{path.stem}" for path in copies)
            raise ValueError(f"the name {name!r} is that of several fetched matrices; say which: {choices}")
        if copies:
            key = f"{copies[0].parent.name}/{name}"
    if key is None or not kept_path(home, key).is_file():
        pinned = pins.get(key or "")
        raise MissingMatrix(
            f"matrix {key or name} has not been fetched"
            + (
                " (config/matrices.tsv lists it as absent from the mirror)"
                if pinned and pinned.source == "absent"
                else ""
            )
            # Records keep this sentence, so it names no folder of the machine.
            + f"; get it with: python -m spectile_study fetch --matrix {key or name} --base-url {SUITESPARSE_URL}, "
            "and --resources FOLDER unless the folder is resources",
            kept_entry(key, home) if key else None,
        )
    result = read_kept(kept_path(home, key))
    verify(result, key, pins.get(key), None, str(kept_path(home, key)))
    return result


def fetch(
    name: str,
    base_url: str,
    resources: str | os.PathLike[str],
    cache: str | os.PathLike[str] | None = None,
    *,
    table: Table = None,
) -> Path:
    """Bring a matrix of the collection into the folder of resources.

    A copy that is there already is checked and taken as it is, without a look at the network; one that is damaged is
    made again, from the archive if that is whole, else from the mirror.  An interrupted download is continued.

    Parameters
    ----------
    name : str
        ``group/name``, or ``name`` where only one group of the collection has it; exactly, not a part of it.
    base_url : str
        The collection or a mirror in its layout: https://, file:///folder, or http:// on this machine's loopback.
    resources : path-like
        Folder with the fetched matrices.
    cache : path-like, optional
        Folder of the archives, which may be shared; by default they lie beside the matrices.
    table : path-like or mapping, optional
        ``config/matrices.tsv`` (or `read_table` of it), which pins what must come.  Without it (or for a matrix not
        listed) rows, columns and nonzeros are checked against the collection's index.

    Returns
    -------
    Path
        The file with the canonical content, for `load`.

    Raises
    ------
    MissingMatrix
        The matrix is not in the index (near names are suggested) or not at the mirror.
    ValueError
        Another kind of address; an archive that is truncated, holds another thing than one matrix, or is larger than
        the index allows; a content that is not the one pinned; a connection that keeps breaking.
    """
    base = checked_base(base_url)
    pins = as_pins(table)
    home = home_of(resources)
    key = resolve(name, pins)
    entry = None
    if key is None:
        entry = identify(name, base, home)
        key = entry.key
    kept = kept_path(home, key)
    archive = (Path(cache) if cache is not None else home) / f"{key}.tar.gz"
    pinned = pins.get(key)
    with locked(kept), locked(archive):
        clear_partials(kept)
        if kept.is_file():
            try:
                verify(read_kept(kept), key, pinned, None, str(kept))
                return kept
            except ValueError as error:
                say(f"{error}; fetching it again")
        entry = entry or identify(key, base, home)
        while True:
            there, resumed = archive.is_file(), False
            if not there:
                resumed = download_present(entry.url, archive, key, most_bytes(entry))
            try:
                result = read_archive(archive, entry)
                verify(result, key, pinned, entry, entry.url)
                break
            except ValueError as error:
                # An archive of an earlier run, or one continued from it, gets one more chance from its start.
                archive.unlink()
                if not (there or resumed):
                    raise
                say(f"{error}; downloading it again")
        write_kept(kept, result)
    return kept


def fetch_main(matrix: str, base_url: str, resources: str | os.PathLike[str], table: Table = None) -> tuple[Path, str]:
    """Fetch a matrix and say on standard error what came: the command ``python -m spectile_study fetch``.

    Parameters
    ----------
    matrix, base_url, resources, table
        As `fetch`.

    Returns
    -------
    Path
        The file with the canonical content.
    str
        The sha256 of that content, as ``config/matrices.tsv`` pins it.

    Raises
    ------
    MissingMatrix, ValueError
        As `fetch`.
    """
    path = fetch(matrix, base_url, resources, table=table)
    content = read_kept(path)
    rows, columns = content.shape
    say(f"{path.parent.name}/{path.stem}: {rows} x {columns}, {content.nnz} nonzeros, digest {digest_of(content)}")
    return path, digest_of(content)
