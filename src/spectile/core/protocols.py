"""What the public functions take, for type checkers: arrays of any library, and sparse matrices."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt


class DeviceArray(Protocol):
    """An array in the memory of a CUDA device: CuPy's, Numba's or PyTorch's."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Address, shape, strides and type."""


class ExportedArray(Protocol):
    """An array of a library that exports DLPack."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """Return the capsule."""


class SparseMatrix(Protocol):
    """A sparse matrix or array of SciPy or cupyx, of any format."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""

    @property
    def dtype(self) -> Any:
        """Type of the entries."""

    def tocsr(self) -> Any:
        """Return the matrix as CSR."""


#: A dense operand.
ArrayLike = npt.ArrayLike | DeviceArray | ExportedArray
