"""Archives of the collection: the one file that is wanted is read out of them, and nothing that is not plausible."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from spectile_study.inputs.download import CHUNK, say
from spectile_study.inputs.suitesparse.content import canonical
from spectile_study.inputs.suitesparse.index import Entry

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def _most_text_bytes(entry: Entry) -> int:
    # An entry is a line of at most about 60 bytes; stored zeros are not in the index's count.
    return (1 << 20) + 256 * (entry.nnz + entry.rows + entry.columns)


def most_bytes(entry: Entry) -> int:
    """Return the most bytes that an archive of the matrix can plausibly have."""
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


def read_archive(archive: Path, entry: Entry) -> csr_array:
    """Read ``<name>/<name>.mtx`` out of an archive; nothing else of it is written anywhere."""
    wanted = PurePosixPath(entry.name, f"{entry.name}.mtx")
    text = archive.with_name(f"{entry.name}.mtx.part")
    most_text, most_all = _most_text_bytes(entry), most_bytes(entry)
    seen = False
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
                    if seen or not member.isfile():
                        raise ValueError(f"archive {entry.url} does not hold exactly one file {wanted}; not unpacked")
                    if member.size > most_text:
                        raise _Oversized
                    seen = True
                    content = members.extractfile(member)
                    assert content is not None
                    with open(text, "wb") as file:
                        shutil.copyfileobj(content, file, CHUNK)
            while stream.read(CHUNK):  # to the end, where gzip checks its sum
                pass
        if not seen:
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


def _read_matrix_market(path: Path, entry: Entry) -> csr_array:
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
