"""Matrices of a user's own: a file, or a Python function that makes one, in the folder ``own`` of a run.

A run sheet names them ``own/NAME``: MatrixMarket (``.mtx``), MATLAB (``.mat``, its one sparse matrix, alone or as the
SuiteSparse collection writes it), SciPy (``.npz`` of `scipy.sparse.save_npz`), or Python (``.py``): a function
``matrix()`` that returns a SciPy sparse matrix.
"""

from __future__ import annotations

import re
import runpy
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PREFIX = "own/"
ENDINGS = (".mtx", ".mat", ".npz", ".py")
_NAME = re.compile(r"own/[A-Za-z0-9_+-][A-Za-z0-9._+-]*")


def is_own(name: str) -> bool:
    """Whether a run sheet's matrix is one of the user's own."""
    return name.startswith(PREFIX)


def refusal(name: str) -> str | None:
    """Return why ``own/NAME`` cannot be read, None if it can be tried."""
    if _NAME.fullmatch(name) is None or Path(name).suffix not in ENDINGS:
        return (
            f"is no file that can be read: use letters, digits, '.', '_', '+' and '-', and one of {', '.join(ENDINGS)}"
        )
    return None if Path(name).is_file() else "is not there: put the file into the folder own"


def read(path: Path) -> Any:
    """Read a matrix of the user's own.

    Returns
    -------
    scipy.sparse matrix or array

    Raises
    ------
    FileNotFoundError
        If it is not there.
    ValueError
        If the file holds no sparse matrix, or several; the message names the file.
    """
    import scipy.io
    import scipy.sparse

    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: put the file into the folder own")
    try:
        if path.suffix == ".mtx":
            found = [scipy.io.mmread(path)]
        elif path.suffix == ".npz":
            found = [scipy.sparse.load_npz(path)]
        elif path.suffix == ".mat":
            found = list(_sparse_in(scipy.io.loadmat(path)))
        else:
            found = [runpy.run_path(str(path))["matrix"]()]
    except (ValueError, KeyError, TypeError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as a matrix ({type(error).__name__}: {error}): {_WANTED}") from error
    if len(found) != 1 or not (scipy.sparse.issparse(found[0]) or getattr(found[0], "ndim", 0) == 2):
        raise ValueError(f"{path} holds {len(found) if len(found) != 1 else 'no'} sparse matrices: {_WANTED}")
    return found[0]


_WANTED = "give a file with one real sparse matrix, or a Python file whose function matrix() returns one"


def _sparse_in(values: Any) -> Iterator[Any]:
    """Yield the sparse matrices in what MATLAB stored, structures included."""
    import scipy.sparse

    if scipy.sparse.issparse(values):
        yield values
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _sparse_in(value)
    elif getattr(getattr(values, "dtype", None), "names", None):
        for name in values.dtype.names:
            for value in values[name].flat:
                yield from _sparse_in(value)
