"""Random matrices whose every entry is a hash of its place and a seed: any part, on any device, gives the same bits.

An entry is uniform in [-1, 1): 53 bits of SplitMix64 [1]_ of its index, a whole number over 2^52 less 1, which float64
holds exactly.  A matrix of 34 GB is so described by its order and a seed, made on a device in milliseconds, and checked
by a few rows made on the host.

References
----------
.. [1] G. L. Steele Jr., D. Lea and C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = np.ndarray[Any, np.dtype[Any]]

_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
#: Rows of a matrix whose sha256 stands for the whole.
SAMPLE_ROWS = 32

#: The same in CUDA C++, for CuPy's elementwise kernels.
PREAMBLE = """
__device__ double counted(unsigned long long index, unsigned long long seed) {
    unsigned long long z = seed + index * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-52 - 1.0;
}
"""


def uniform(index: npt.ArrayLike, seed: int) -> Array:
    """Return the entries at `index`, uniform in [-1, 1).

    Parameters
    ----------
    index : array of uint64
    seed : int

    Returns
    -------
    array of float64, shape of `index`
    """
    z = np.uint64(start(seed)) + np.asarray(index, np.uint64) * np.uint64(_STEP)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


def start(seed: int) -> int:
    """Return the 64 bits that an index is added to: seeds that differ by one are far from each other."""
    return (seed + 1) * _SECOND % 2**64


def dense(rows: npt.ArrayLike, columns: npt.ArrayLike, seed: int) -> Array:
    """Return entries of a matrix without symmetry at `rows` and `columns`, which broadcast; both below 2^31."""
    return uniform(_index(np.asarray(rows, np.uint64), np.asarray(columns, np.uint64)), seed)


def hermitian(rows: npt.ArrayLike, columns: npt.ArrayLike, seed: int, dtype: npt.DTypeLike = np.float64) -> Array:
    """Return entries of a symmetric or Hermitian matrix at `rows` and `columns`, which broadcast.

    Parameters
    ----------
    rows, columns : array of int
        Below 2^31.
    seed : int
    dtype : {float32, float64, complex64, complex128}
        Entries are made in double precision and rounded once.
    """
    i, j = np.broadcast_arrays(np.asarray(rows, np.uint64), np.asarray(columns, np.uint64))
    index = _index(np.maximum(i, j), np.minimum(i, j))
    real = uniform(index, seed)
    if np.dtype(dtype).kind != "c":
        return real.astype(dtype)
    # The imaginary parts have the indices of the other triangle, which a Hermitian matrix leaves free.
    imaginary = uniform(_index(np.minimum(i, j), np.maximum(i, j)), seed)
    signs = np.sign(i.astype(np.int64) - j.astype(np.int64))
    return (real + 1j * (signs * imaginary)).astype(dtype)


def matrix(n: int, seed: int, dtype: npt.DTypeLike = np.float64) -> Array:
    """Return the Hermitian matrix of order n, column-major."""
    i = np.arange(n)
    return np.asfortranarray(hermitian(i[:, None], i, seed, dtype))


def band(n: int, b: int, seed: int) -> Array:
    """Return the lower band of the matrix of order n as ``band[j, i - j]``, shape (n, 2 b), zeros behind it."""
    j, offset = np.arange(n)[:, None], np.arange(b + 1)
    made = np.zeros((n, 2 * b))
    made[:, : b + 1] = np.where(j + offset < n, hermitian(j + offset, j, seed), 0)
    return made


def _index(i: Array, j: Array) -> Array:
    return (i << np.uint64(32)) | j
