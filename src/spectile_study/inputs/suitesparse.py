"""Matrices of the SuiteSparse collection: found, downloaded, checked and kept.

`fetch` brings a matrix into the folder of resources, `load` reads it from there, and `matrix` is what a run sheet's
column ``matrix`` means: a generated family (`spectile_study.inputs.families`) or a fetched matrix.

A matrix is known by its *canonical content*: shape, and the CSR form with sorted columns, summed duplicates and float64
values, symmetric halves expanded and patterns given the value 1.  Stored zeros are left out: the collection counts them
apart from the nonzeros (its counts are those of tSparse's Table 1), and copies of the same matrix differ in them.
``config/matrices.tsv`` pins the digest of this content, which every mirror shares, not that of an archive.

Under the folder of resources::

    suitesparse/<group>/<name>.npz      canonical content and its digest (NumPy, no pickle)
    suitesparse/<group>/<name>.tar.gz   the archive (in another folder, if one is given as cache)
    suitesparse/index/<mirror>.csv      the collection's index, as each mirror serves it

Files appear under these names only when whole; unfinished ones end in ``.part`` and are continued or overwritten.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import gzip
import hashlib
import importlib
import importlib.util
import io
import os
import re
import shutil
import sys
import tarfile
import time
import types
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from spectile_study.inputs import families
from spectile_study.inputs.download import CHUNK, NotThere, checked_base, download, locked, say, whole

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SUITESPARSE_URL = "https://sparse.tamu.edu"
"""The collection itself; a mirror has the same layout (``files/ssstats.csv``, ``MM/<group>/<name>.tar.gz``)."""

_COLUMNS = ("name", "group", "n", "columns", "nnz", "digest", "source", "field", "papers", "notes")
_SOURCES = ("mirror", "rebuilt", "absent")
_SAFE = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*")
_INDEX_AGE_S = 90 * 24 * 3600.0  # ssgetpy's own


class MissingMatrix(ValueError):
    """A matrix that is not here (or not at the mirror): a case that needs it is skipped with this sentence."""


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
        if tuple(reader.fieldnames or ()) != _COLUMNS:
            raise ValueError(f"{path} has the columns {reader.fieldnames}; they must be {' '.join(_COLUMNS)}")
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
                raise ValueError(f"{where}: a row must have {len(_COLUMNS)} cells")
            if not (_SAFE.fullmatch(row["name"]) and _SAFE.fullmatch(row["group"])):
                raise ValueError(f"{where}: {row['group']}/{row['name']} is no name of a matrix")
            if not re.fullmatch(r"([0-9a-f]{64})?", row["digest"]):
                raise ValueError(f"{where}: the digest must be 64 hexadecimal digits, or empty")
            if row["source"] not in _SOURCES or (row["source"] == "absent") != (row["digest"] == ""):
                raise ValueError(f"{where}: source must be mirror or rebuilt with a digest, or absent without one")
            pinned = Pinned(
                row["group"], row["name"], rows, columns, nnz,
                *(row[cell] for cell in ("digest", "source", "field", "papers", "notes")),
            )  # fmt: skip
            if pinned.key in pins:
                raise ValueError(f"{where}: {pinned.key} is listed twice")
            pins[pinned.key] = pinned
    return pins


def canonical(matrix: Any) -> csr_array:
    """Bring a sparse matrix into its canonical form.

    Parameters
    ----------
    matrix : sparse array or matrix, shape (m, n), real

    Returns
    -------
    csr_array of float64
        Columns sorted, duplicates summed, stored zeros left out.

    Raises
    ------
    ValueError
        A matrix without rows or columns, or with NaN or Inf.
    TypeError
        Complex values.
    """
    from scipy.sparse import csr_array

    if np.iscomplexobj(matrix.data):
        raise TypeError("a complex matrix has no canonical content here; take its real or imaginary part")
    if min(matrix.shape) < 1:
        raise ValueError(f"a matrix of {matrix.shape[0]} x {matrix.shape[1]} is empty; it needs a row and a column")
    result = csr_array(matrix, dtype=np.float64, copy=True)
    result.sum_duplicates()
    result.eliminate_zeros()
    if not np.isfinite(result.data).all():
        raise ValueError("a matrix with NaN or Inf has no canonical content; clean its values first")
    return result


def digest(matrix: Any) -> str:
    """Digest of the canonical content of a sparse matrix.

    Parameters
    ----------
    matrix : sparse array or matrix, shape (m, n), real

    Returns
    -------
    str
        sha256, in hexadecimal, of m and n, the row pointers, the column indices (all int64) and the values (float64) of
        the canonical form, little-endian.

    Raises
    ------
    ValueError, TypeError
        As `canonical`.
    """
    return _digest(canonical(matrix))


def _digest(matrix: csr_array) -> str:
    hasher = hashlib.sha256()
    for part, kind in ((matrix.shape, "<i8"), (matrix.indptr, "<i8"), (matrix.indices, "<i8"), (matrix.data, "<f8")):
        hasher.update(np.ascontiguousarray(part, dtype=kind).data)
    return hasher.hexdigest()


def matrix(name: str, resources: str | os.PathLike[str], table: Table = None) -> csr_array:
    """Return the matrix that a run sheet names.

    Parameters
    ----------
    name : str
        A family's name (``cage11``, ``rmat_14``: see `inputs.families`), which is generated, or the name of a
        fetched matrix, ``group/name`` or ``name`` where only one group has it.  Where both exist the family is meant;
        ``vanHeukelum/cage11`` is the collection's file.
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
    if families.is_family(name):
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
    pins = _pins(table)
    home = _home(resources)
    key = _resolve(name, pins)
    if key is None:
        found = sorted(home.glob(f"*/{name}.npz")) if _SAFE.fullmatch(name) else []
        if len(found) > 1:
            choices = ", ".join(f"{path.parent.name}/{path.stem}" for path in found)
            raise ValueError(f"the name {name!r} is that of several fetched matrices; say which: {choices}")
        if found:
            key = f"{found[0].parent.name}/{name}"
    if key is None or not _kept(home, key).is_file():
        pinned = pins.get(key or "")
        raise MissingMatrix(
            f"matrix {key or name} has not been fetched into {home}"
            + (
                " (config/matrices.tsv lists it as absent from the mirror)"
                if pinned and pinned.source == "absent"
                else ""
            )
            + f"; get it with: python -m spectile_study fetch --matrix {key or name} --base-url {SUITESPARSE_URL} "
            f"--resources {Path(resources)}"
        )
    result = _read_kept(_kept(home, key))
    _verify(result, key, pins.get(key), None, str(_kept(home, key)))
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
    pins = _pins(table)
    home = _home(resources)
    key = _resolve(name, pins)
    entry = None
    if key is None:
        entry = _identify(name, base, home)
        key = entry.key
    kept = _kept(home, key)
    archive = (Path(cache) if cache is not None else home) / f"{key}.tar.gz"
    pinned = pins.get(key)
    with locked(kept), locked(archive):
        if kept.is_file():
            try:
                _verify(_read_kept(kept), key, pinned, None, str(kept))
                return kept
            except ValueError as error:
                say(f"{error}; fetching it again")
        entry = entry or _identify(key, base, home)
        while True:
            there, resumed = archive.is_file(), False
            if not there:
                resumed = _download(entry.url, archive, key, _most_bytes(entry))
            try:
                result = _read_archive(archive, entry)
                _verify(result, key, pinned, entry, entry.url)
                break
            except ValueError as error:
                # An archive of an earlier run, or one continued from it, gets one more chance from its start.
                archive.unlink()
                if not (there or resumed):
                    raise
                say(f"{error}; downloading it again")
        _write_kept(kept, result)
    return kept


def fetch_main(matrix: str, base_url: str, resources: str | os.PathLike[str], table: Table = None) -> Path:
    """Fetch a matrix and say on standard error what came: the command ``python -m spectile_study fetch``.

    Parameters
    ----------
    matrix, base_url, resources, table
        As `fetch`.

    Returns
    -------
    Path
        The file with the canonical content.

    Raises
    ------
    MissingMatrix, ValueError
        As `fetch`.
    """
    path = fetch(matrix, base_url, resources, table=table)
    content = _read_kept(path)
    rows, columns = content.shape
    say(f"{path.parent.name}/{path.stem}: {rows} x {columns}, {content.nnz} nonzeros, digest {_digest(content)}")
    return path


# --- names and the index ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """What the collection's index says of a matrix."""

    key: str
    rows: int
    columns: int
    nnz: int
    url: str

    @property
    def name(self) -> str:
        return self.key.split("/")[1]


def _pins(table: Table) -> Mapping[str, Pinned]:
    if table is None:
        return {}
    return table if isinstance(table, Mapping) else read_table(table)


def _resolve(name: str, pins: Mapping[str, Pinned]) -> str | None:
    """``group/name``, if `name` is that already or the table knows one group that has it."""
    if name.count("/") == 1 and all(_SAFE.fullmatch(part) for part in name.split("/")):
        return name
    if not _SAFE.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a matrix; give group/name or name as the collection spells them")
    keys = [key for key in pins if key.split("/")[1] == name]
    return keys[0] if len(keys) == 1 else None


def _download(url: str, target: Path, what: str, most_bytes: int) -> bool:
    """As `download`; what is not there is a missing matrix."""
    try:
        return download(url, target, what, most_bytes)
    except NotThere as error:
        raise MissingMatrix(f"{error}; choose another base URL, such as {SUITESPARSE_URL}") from None


def _identify(name: str, base: str, home: Path) -> _Entry:
    """Find a matrix by its exact name in the index of a mirror."""
    csv_file = home / "index" / f"{hashlib.sha256(base.encode()).hexdigest()[:16]}.csv"
    with locked(csv_file):
        local = base.startswith("file:")
        if local or not csv_file.is_file() or time.time() - csv_file.stat().st_mtime > _INDEX_AGE_S:
            try:
                _download(f"{base}/files/ssstats.csv", csv_file, "the collection's index", 1 << 26)
            except ValueError as error:
                if not csv_file.is_file():
                    raise
                say(f"{error}; using the index of {time.strftime('%F', time.gmtime(csv_file.stat().st_mtime))}")
        lines = csv_file.read_text(encoding="utf-8", errors="replace").splitlines()
        with _ssgetpy(base, home) as parts:
            database = parts["db"].MatrixDB(db=":memory:")
            try:
                rows = list(parts["csvindex"].gen_rows(lines[2:]))
                announced = int(lines[0])
            except (IndexError, ValueError):
                rows, announced = [], -1
            if len(rows) != announced:
                csv_file.unlink()
                raise ValueError(f"the index {base}/files/ssstats.csv is damaged or truncated; choose another mirror")
            database.refresh(rows)
            group, _, bare = name.rpartition("/")
            found = [  # ssgetpy matches a part of the name and stops at ten: ask for all, keep what is equal
                entry for entry in database.search(name=bare, limit=-1)
                if entry.name == bare and group in ("", entry.group)
            ]  # fmt: skip
            if len(found) > 1:
                choices = ", ".join(f"{entry.group}/{entry.name}" for entry in found)
                raise ValueError(
                    f"the name {name!r} is that of several matrices of the collection; say which: {choices}"
                )
            if not found:
                raise MissingMatrix(f"matrix {name!r} is not in the index {base}/files/ssstats.csv{_near(bare, rows)}")
            entry = found[0]
            return _Entry(f"{entry.group}/{entry.name}", entry.rows, entry.cols, entry.nnz, entry.url("MM"))


def _near(bare: str, rows: list[Any]) -> str:
    keys = {f"{row[1]}/{row[2]}": row[2].lower() for row in rows}
    close = set(difflib.get_close_matches(bare.lower(), set(keys.values()), n=4, cutoff=0.6))
    names = sorted((key for key, lower in keys.items() if lower in close), key=lambda key: keys[key] != bare.lower())
    return f"; near names: {', '.join(names[:6])}" if names else "; see https://sparse.tamu.edu for the names"


@contextlib.contextmanager
def _ssgetpy(base: str, home: Path) -> Iterator[dict[str, Any]]:
    """Parts of ssgetpy, set to a mirror.

    Importing the package itself would write into the user's home and refresh its index from the collection's server.
    Its parts do neither: they are imported under a bare package, with a home below the resources.
    """
    spec = importlib.util.find_spec("ssgetpy")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("ssgetpy, which knows the matrices of the collection, is not installed: pip install ssgetpy")
    package = types.ModuleType("ssgetpy")
    package.__path__ = list(spec.submodule_search_locations)
    before = {key: sys.modules.pop(key) for key in list(sys.modules) if key.split(".")[0] == "ssgetpy"}
    user_home = os.environ.get("HOME")
    try:
        sys.modules["ssgetpy"] = package
        os.environ["HOME"] = str(home / "index")
        config: Any = importlib.import_module("ssgetpy.config")
        config.SS_ROOT_URL = base
        config.SS_INDEX_URL = f"{base}/files/ssstats.csv"
        yield {part: importlib.import_module(f"ssgetpy.{part}") for part in ("db", "csvindex")}
    finally:
        if user_home is None:
            del os.environ["HOME"]
        else:
            os.environ["HOME"] = user_home
        for key in [key for key in sys.modules if key.split(".")[0] == "ssgetpy"]:
            del sys.modules[key]
        sys.modules.update(before)


# --- archives ---------------------------------------------------------------------------------------------------------


def _most_text_bytes(entry: _Entry) -> int:
    # An entry is a line of at most about 60 bytes; stored zeros are not in the index's count.
    return (1 << 20) + 256 * (entry.nnz + entry.rows + entry.columns)


def _most_bytes(entry: _Entry) -> int:
    # Beside the matrix an archive may hold right-hand sides and coordinates.
    return 16 * _most_text_bytes(entry)


class _Bounded(io.RawIOBase):
    """A reader that refuses to hand out more than a number of bytes."""

    def __init__(self, inner: IO[bytes], most: int) -> None:
        self.inner, self.left = inner, most

    def read(self, size: int = -1, /) -> bytes:
        data = self.inner.read(min(size, CHUNK) if size >= 0 else CHUNK)
        self.left -= len(data)
        if self.left < 0:
            raise _Oversized
        return data


class _Oversized(Exception):
    pass


def _read_archive(archive: Path, entry: _Entry) -> csr_array:
    """Read ``<name>/<name>.mtx`` out of an archive; nothing else of it is written anywhere."""
    wanted = PurePosixPath(entry.name, f"{entry.name}.mtx")
    text = archive.with_name(f"{entry.name}.mtx.part")
    most_text, most_all = _most_text_bytes(entry), _most_bytes(entry)
    found = False
    try:
        with gzip.open(archive, "rb") as unpacked:
            stream = _Bounded(unpacked, most_all)  # type: ignore[arg-type]
            with tarfile.open(fileobj=stream, mode="r|") as members:
                for member in members:
                    path = PurePosixPath(member.name)
                    if path.is_absolute() or ".." in path.parts or member.issym() or member.islnk():
                        raise ValueError(
                            f"archive {entry.url} holds {member.name!r}, which leads out of its folder; "
                            "do not trust this mirror, choose another base URL"
                        )
                    if not (member.isfile() or member.isdir()):
                        raise ValueError(f"archive {entry.url} holds {member.name!r}, which is no file; not unpacked")
                    if path != wanted:
                        continue
                    if found or not member.isfile():
                        raise ValueError(f"archive {entry.url} does not hold exactly one file {wanted}; not unpacked")
                    if member.size > most_text:
                        raise _Oversized
                    found = True
                    content = members.extractfile(member)
                    assert content is not None
                    with open(text, "wb") as file:
                        shutil.copyfileobj(content, file, CHUNK)
            while stream.read(CHUNK):  # to the end, where gzip checks its sum
                pass
        if not found:
            raise ValueError(f"archive {entry.url} does not hold {wanted}; it is another matrix or is truncated")
        return _read_matrix_market(text, entry)
    except _Oversized:
        raise ValueError(
            f"archive {entry.url} unpacks to more than {entry.key} can need by its index entry; not unpacked"
        ) from None
    except (EOFError, tarfile.TarError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"archive {entry.url} is truncated or damaged ({error}); choose another base URL") from error
    finally:
        text.unlink(missing_ok=True)


def _read_matrix_market(path: Path, entry: _Entry) -> csr_array:
    """Read a MatrixMarket file whose size line has been held against the index and against the file's length."""
    from scipy.io import mmread

    def damaged(why: str) -> ValueError:
        return ValueError(f"the MatrixMarket file of {entry.key} {why}; choose another base URL")

    with open(path, "rb") as file:
        banner = file.readline(1024).decode("ascii", "replace").lower().split()
        if banner[:2] != ["%%matrixmarket", "matrix"] or len(banner) != 5:
            raise damaged("has no MatrixMarket banner")
        line = b"%"
        while line.startswith(b"%") or (line and not line.strip()):
            line = file.readline(1 << 16)
    if banner[3] == "complex":
        raise TypeError(f"{entry.key} is complex; the systems here take real matrices")
    try:
        sizes = [int(word) for word in line.split()]
    except ValueError:
        sizes = []
    if len(sizes) != (3 if banner[2] == "coordinate" else 2):
        raise damaged("has no size line")
    rows, columns = sizes[:2]
    if min(rows, columns) < 1:
        raise damaged(f"is empty ({rows} x {columns}): a matrix needs a row and a column")
    if (rows, columns) != (entry.rows, entry.columns):
        raise damaged(f"is {rows} x {columns}, but the index says {entry.rows} x {entry.columns}")
    entries = sizes[2] if len(sizes) == 3 else rows * columns
    length = path.stat().st_size
    if length > 100_000_000:
        say(f"{entry.key}: reading {length / 1e6:.0f} MB of text")
    if not 0 <= entries <= length:
        raise damaged(f"announces {entries} entries, more than its {length} bytes can hold")
    try:
        return canonical(mmread(path))
    except (ValueError, OverflowError) as error:
        raise damaged(f"is damaged ({error})") from error


# --- kept copies ------------------------------------------------------------------------------------------------------


def _home(resources: str | os.PathLike[str]) -> Path:
    return Path(resources) / "suitesparse"


def _kept(home: Path, key: str) -> Path:
    return home / f"{key}.npz"


def _write_kept(path: Path, matrix: csr_array) -> None:
    with whole(path) as file:
        np.savez(
            file,
            shape=np.array(matrix.shape, dtype=np.int64),
            indptr=matrix.indptr,
            indices=matrix.indices,
            data=matrix.data,
            digest=np.array(_digest(matrix)),
        )


def _read_kept(path: Path) -> csr_array:
    """Read a kept copy; its digest must be the one that was written with it."""
    from scipy.sparse import csr_array

    try:
        with np.load(path, allow_pickle=False) as parts:
            arrays = {name: parts[name] for name in ("shape", "indptr", "indices", "data", "digest")}
        shape = tuple(int(size) for size in arrays["shape"])
        matrix = csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
        matrix.check_format(full_check=True)
        matrix.has_canonical_format = True
        intact = matrix.data.dtype == np.float64 and _digest(matrix) == str(arrays["digest"])
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"the kept matrix {path} is damaged ({type(error).__name__}); delete it and fetch it again"
        ) from None
    if not intact:
        raise ValueError(f"the kept matrix {path} is damaged (digest); delete it and fetch it again")
    return matrix


def _verify(matrix: csr_array, key: str, pinned: Pinned | None, entry: _Entry | None, origin: str) -> None:
    """Hold a matrix against the table or, where it is not listed, against the index."""
    expected = pinned or entry
    if expected is None:
        return
    source = "config/matrices.tsv" if pinned else "the collection's index"
    counts = (*matrix.shape, matrix.nnz)
    if counts != (expected.rows, expected.columns, expected.nnz):
        raise ValueError(
            f"{key} from {origin} is {counts[0]} x {counts[1]} with {counts[2]} nonzeros, but {source} says "
            f"{expected.rows} x {expected.columns} with {expected.nnz}; choose another base URL"
        )
    if pinned is None or not pinned.digest or _digest(matrix) == pinned.digest:
        return
    if pinned.source == "rebuilt" and families.is_family(pinned.name):
        # The pinned copy was computed; the collection's own may differ from it in the last bits.
        model = canonical(families.generate(pinned.name))
        same = np.array_equal(model.indptr, matrix.indptr) and np.array_equal(model.indices, matrix.indices)
        if same and np.allclose(model.data, matrix.data, rtol=0, atol=1e-14):
            return
    raise ValueError(
        f"{key} from {origin} has the digest {_digest(matrix)}, but config/matrices.tsv pins {pinned.digest}"
        + (f" ({pinned.notes})" if pinned.notes else "")
        + "; choose another base URL, or correct the table if this content is the right one"
    )
