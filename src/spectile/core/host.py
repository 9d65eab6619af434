"""What several systems share on the host: results in the caller's kind, and sparse matrices as formats promise."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np


def in_kind_of(a: Any) -> Callable[[Any], Any]:
    """Return what gives a NumPy result back in the library of a host array that supports DLPack, or else as it is."""
    if isinstance(a, np.ndarray) or not hasattr(a, "__dlpack__"):
        return lambda result: result
    return dlpack_importer(a) or (lambda result: result)


def dlpack_importer(array: Any) -> Callable[[Any], Any] | None:
    """Return ``from_dlpack`` of the library that `array` comes from, or None where it has none."""
    for kind in type(array).__mro__:  # a class of the caller's may inherit from its library's
        root = kind.__module__.partition(".")[0]
        library = importlib.import_module("jax.numpy") if root == "jaxlib" else sys.modules.get(root)
        if hasattr(library, "from_dlpack"):
            return library.from_dlpack  # type: ignore[union-attr]
    return None


def refuse_masked(name: str, array: Any, error: type[TypeError] = TypeError) -> None:
    """Raise TypeError where entries of an array, of those in a list or of a sparse matrix are masked: NumPy forgets."""
    # What a tensor of PyTorch calls its data is refused while it is mapped or traced.
    own = (array, getattr(array, "data", None)) if hasattr(array, "tocsr") else (array,)
    for part in array if isinstance(array, list | tuple) else own:
        if isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part):
            raise error(f"{name} has masked entries, whose mask would be lost: fill them, as {name}.filled(0) does")


def refuse_malformed(name: str, matrix: Any) -> None:
    """Raise ValueError where a host matrix is not what its format promises: SciPy converts it without a look."""
    refuse_masked(name, matrix)
    if len(matrix.shape) != 2:
        raise ValueError(f"{name} has shape {matrix.shape}: pass a matrix, of two dimensions")
    form = getattr(matrix, "format", None)
    try:
        if form == "coo":
            inside = all(
                index.min(initial=0) >= 0 and index.max(initial=-1) < length and len(index) == len(matrix.data)
                for index, length in zip((matrix.row, matrix.col), matrix.shape, strict=True)
            )
            if not inside:
                raise ValueError("an index lies outside the matrix")
        elif form in ("csr", "csc", "bsr"):
            matrix.check_format(full_check=True)
    except ValueError as error:
        raise ValueError(f"{name} is no valid {form} matrix ({error}): check its indices") from None


def canonical_csr(matrix: Any, dtype: Any) -> Any:
    """Return a valid host matrix as a CSR array of a type, columns ascending; its arrays may be those of the matrix.

    Entries at one place are summed in a type that holds both types, and True and True is True, in every format: SciPy
    sums those of some formats in the type of the matrix, where integers wrap, and others after the conversion.
    """
    import scipy.sparse

    own, wide = np.dtype(matrix.dtype), np.result_type(matrix.dtype, dtype)
    first = own if own.kind == "b" else wide
    csr = scipy.sparse.csr_array(matrix.astype(first, copy=False) if own != first else matrix)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    return csr.astype(dtype, copy=False)
