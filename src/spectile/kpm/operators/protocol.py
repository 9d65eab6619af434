"""What a Hamiltonian must offer: one protocol for stored matrices, stencils and operators that users write."""

from __future__ import annotations

import abc
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from spectile.kpm.types import Array, Engine

NO_ENTRIES = "velocities are made from the entries of H, and this operator has none: give them as operators"


@runtime_checkable
class Operator(Protocol):
    """A Hermitian operator.

    Attributes
    ----------
    shape : (int, int)
        (N, N).
    dtype : dtype
        float32, float64, complex64 or complex128.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (N, N)."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the entries."""

    def matmat(self, block: Any, out: Any) -> None:
        """Write H times `block`, shape (N, R), to `out`; both are NumPy arrays, or CuPy arrays on a GPU."""

    def bounds(self) -> tuple[float, float] | None:
        """Return energies between which the spectrum lies for certain, or None where none are known."""

    def memory_bytes(self, num_vectors: int) -> int:
        """Return the bytes that a call of :meth:`matmat` needs beyond `block` and `out`."""


class PartitionedOperator(abc.ABC):
    """A Hermitian operator whose rows are spread over devices or processes, with the engine that works on it."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]

    @abc.abstractmethod
    def engine(self, dtype: np.dtype[Any]) -> Engine:
        """Return the engine for vectors of this type."""

    @abc.abstractmethod
    def bounds(self) -> tuple[float, float]:
        """Return energies between which the spectrum lies for certain."""

    def derived(self, entries: Callable[[Any, int], Any]) -> Any:
        """Return the matrix of other entries in the places of this one's.

        ``entries(rows, first)`` returns them for CSR rows of this matrix, the first of which has this number.

        Raises
        ------
        TypeError
            If it has no entries.
        """
        raise TypeError(NO_ENTRIES)


def namespace(array: Any) -> ModuleType:
    """Return the module of an array: numpy, or cupy where it lies on a GPU."""
    if isinstance(array, np.ndarray):
        return np
    import cupy

    module: ModuleType = cupy
    return module


def lies_on_gpu(H: Any) -> bool:
    """Return whether an object is one of CuPy's: a matrix or operator in the memory of a GPU."""
    return type(H).__module__.partition(".")[0] in ("cupy", "cupyx")


def on_host(array: Any) -> Array:
    """Return an array of NumPy's or CuPy's as NumPy's."""
    return array if isinstance(array, np.ndarray) else np.asarray(array.get())
