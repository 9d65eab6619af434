"""The canonical content of a matrix: brought into form, digested, kept in a file, and held against what is pinned."""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from spectile.core.atomic_file import atomic_write
from spectile_study.inputs import families
from spectile_study.inputs.suitesparse.table import Pinned

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class Counts(Protocol):
    """What an index says of a matrix."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def columns(self) -> int:
        """Number of columns."""

    @property
    def nnz(self) -> int:
        """Number of nonzeros."""


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
    return digest_of(canonical(matrix))


def digest_of(matrix: csr_array) -> str:
    """Return the digest of a matrix in canonical form."""
    hasher = hashlib.sha256()
    for part, kind in ((matrix.shape, "<i8"), (matrix.indptr, "<i8"), (matrix.indices, "<i8"), (matrix.data, "<f8")):
        hasher.update(np.ascontiguousarray(part, dtype=kind).data)
    return hasher.hexdigest()


def home_of(resources: str | os.PathLike[str]) -> Path:
    """Return the folder of the fetched matrices."""
    return Path(resources) / "suitesparse"


def kept_path(home: Path, key: str) -> Path:
    """Return the file with the canonical content of the matrix ``group/name``."""
    return home / f"{key}.npz"


def write_kept(path: Path, matrix: csr_array) -> None:
    """Keep a matrix in canonical form, with its digest."""
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez(
            file,
            shape=np.array(matrix.shape, dtype=np.int64),
            indptr=matrix.indptr,
            indices=matrix.indices,
            data=matrix.data,
            digest=np.array(digest_of(matrix)),
        )


def read_kept(path: Path) -> csr_array:
    """Read a kept copy; its digest must be the one that was written with it."""
    from scipy.sparse import csr_array

    try:
        with np.load(path, allow_pickle=False) as parts:
            arrays = {name: parts[name] for name in ("shape", "indptr", "indices", "data", "digest")}
        shape = tuple(int(size) for size in arrays["shape"])
        matrix = csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
        matrix.check_format(full_check=True)
        matrix.has_canonical_format = True
        intact = matrix.data.dtype == np.float64 and digest_of(matrix) == str(arrays["digest"])
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"the kept matrix {path} is damaged ({type(error).__name__}); delete it and fetch it again"
        ) from None
    if not intact:
        raise ValueError(f"the kept matrix {path} is damaged (digest); delete it and fetch it again")
    return matrix


def verify(matrix: csr_array, key: str, pinned: Pinned | None, entry: Counts | None, origin: str) -> None:
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
    if pinned is None or not pinned.digest or digest_of(matrix) == pinned.digest:
        return
    if pinned.source == "rebuilt" and families.is_family(pinned.name):
        # The pinned copy was computed; the collection's own may differ from it in the last bits.
        model = canonical(families.generate(pinned.name))
        same = np.array_equal(model.indptr, matrix.indptr) and np.array_equal(model.indices, matrix.indices)
        if same and np.allclose(model.data, matrix.data, rtol=0, atol=1e-14):
            return
    raise ValueError(
        f"{key} from {origin} has the digest {digest_of(matrix)}, but config/matrices.tsv pins {pinned.digest}"
        + (f" ({pinned.notes})" if pinned.notes else "")
        + "; choose another base URL, or correct the table if this content is the right one"
    )
