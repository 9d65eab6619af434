"""The vendor's solver for the GPUs of one host: ``cusolverMgSyevd``, on columns that are spread in blocks."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import cupy
import numpy as np

from spectile.core.pointers import address
from spectile_study.bench.vendor import cuda_library

#: Columns of a block: block j lies on device j modulo their number.
BLOCK = 256
_TYPES = {"float32": 0, "float64": 1, "complex64": 4, "complex128": 5}
_LOWER, _COLUMN_MAJOR, _PEERS_ALREADY = 0, 0, 704


@functools.cache
def library() -> ctypes.CDLL:
    """Return cuSOLVERMg.

    Raises
    ------
    RuntimeError
        If it is not installed.
    """
    return cuda_library("libcusolverMg")


def _do(name: str, *arguments: Any) -> None:
    status = getattr(library(), name)(*arguments)
    if status != 0:
        raise RuntimeError(f"{name} fails with status {status}")


def _between(devices: range) -> None:
    """Let each device read the memory of the others."""
    for here in devices:
        with cupy.cuda.Device(here):
            for there in set(devices) - {here}:
                try:
                    cupy.cuda.runtime.deviceEnablePeerAccess(there)
                except cupy.cuda.runtime.CUDARuntimeError as error:
                    if error.status != _PEERS_ALREADY:
                        raise


class Syevd:
    """Eigenvalues of a spread matrix, and eigenvectors in its place.

    Parameters
    ----------
    n : int
        Order.
    dtype : str
        Type of the matrix.
    count : int
        Devices, from 0 on.
    vectors : bool
        Whether eigenvectors are wanted.
    """

    def __init__(self, n: int, dtype: str, count: int, vectors: bool) -> None:
        self.n, self.dtype, self.devices = n, np.dtype(dtype), range(count)
        _between(self.devices)
        ids = (ctypes.c_int32 * count)(*self.devices)
        self._handle, grid, self._layout = (ctypes.c_void_p() for _ in range(3))
        kind, real = _TYPES[self.dtype.name], _TYPES[self.dtype.type(0).real.dtype.name]
        _do("cusolverMgCreate", ctypes.byref(self._handle))
        _do("cusolverMgDeviceSelect", self._handle, count, ids)
        _do("cusolverMgCreateDeviceGrid", ctypes.byref(grid), 1, count, ids, _COLUMN_MAJOR)
        size, width = ctypes.c_int64(n), ctypes.c_int64(BLOCK)
        _do("cusolverMgCreateMatrixDesc", ctypes.byref(self._layout), size, size, size, width, kind, grid)
        blocks = -(-n // BLOCK)
        self._columns = [self._empty(d, (n, BLOCK * len(range(d, blocks, count)))) for d in self.devices]
        self._values = np.empty(n, self.dtype.type(0).real.dtype)
        places = (ctypes.c_void_p * count)(*(address(columns) for columns in self._columns))
        values = ctypes.c_void_p(address(self._values))
        self._words = (self._handle, int(vectors), _LOWER, n, places, 1, 1, self._layout, values, real, kind)
        length = ctypes.c_int64()
        _do("cusolverMgSyevd_bufferSize", *self._words, ctypes.byref(length))
        self._work = [self._empty(d, (length.value,)) for d in self.devices]
        self._length = length
        self._spaces = (ctypes.c_void_p * count)(*(address(work) for work in self._work))

    def _empty(self, device: int, shape: tuple[int, ...]) -> Any:
        with cupy.cuda.Device(device):
            return cupy.empty(shape, self.dtype, order="F")

    def _blocks(self) -> list[tuple[slice, Any]]:
        """Return which columns of the matrix a block has, and where it lies."""
        count = len(self.devices)
        return [
            (slice(first, min(first + BLOCK, self.n)), self._columns[j % count][:, (j // count) * BLOCK :])
            for j, first in enumerate(range(0, self.n, BLOCK))
        ]

    def spread(self, a: Any) -> None:
        """Copy a column-major matrix of the current device to its places."""
        for columns, place in self._blocks():
            block = a[:, columns]
            cupy.cuda.runtime.memcpyPeer(address(place), place.device.id, address(block), a.device.id, block.nbytes)
        self.wait()

    def vectors(self) -> Any:
        """Return the eigenvectors, collected on the current device."""
        v = cupy.empty((self.n, self.n), self.dtype, order="F")
        for columns, place in self._blocks():
            block = v[:, columns]
            cupy.cuda.runtime.memcpyPeer(address(block), v.device.id, address(place), place.device.id, block.nbytes)
        return v

    def wait(self) -> None:
        """Wait for all devices."""
        for device in self.devices:
            with cupy.cuda.Device(device):
                cupy.cuda.Device().synchronize()

    def __call__(self) -> Any:
        """Solve, wait and return the eigenvalues on the current device; what was spread is lost."""
        info = ctypes.c_int()
        _do("cusolverMgSyevd", *self._words, self._spaces, self._length, ctypes.byref(info))
        self.wait()
        if info.value != 0:
            raise RuntimeError(f"cusolverMgSyevd did not converge: info = {info.value}")
        return cupy.asarray(self._values)
