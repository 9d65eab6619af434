"""Work of the KPM stages: the paper's Table I, Eqs. 4 and 5, for any element type."""

from __future__ import annotations

from typing import Any

import numpy as np

INDEX_BYTES = 4  # S_i


def element_flops(dtype: Any) -> tuple[int, int]:
    """Return (F_a, F_m): flop of an addition and of a multiplication."""
    return (2, 6) if np.dtype(dtype).kind == "c" else (1, 1)


def functions(rows: int, nnz: int, dtype: Any = np.complex128) -> dict[str, tuple[float, float]]:
    """Return (least bytes, flop) of one call of each function of Figure 3 (Table I).

    Parameters
    ----------
    rows, nnz : int
        N and N_nz.
    dtype : dtype
        Type of matrix and vectors.
    """
    s_d = np.dtype(dtype).itemsize
    f_a, f_m = element_flops(dtype)
    half = -(-f_a // 2) + -(-f_m // 2)
    return {
        "spmv": (nnz * (s_d + INDEX_BYTES) + 2 * rows * s_d, nnz * (f_a + f_m)),
        "axpy": (3 * rows * s_d, rows * (f_a + f_m)),
        "scal": (2 * rows * s_d, rows * f_m),
        "nrm2": (rows * s_d, rows * half),
        "dot": (2 * rows * s_d, rows * (f_a + f_m)),
    }


def step_flops(rows: int, nnz: int, num_vectors: int, dtype: Any = np.complex128) -> float:
    """Return the flop of one step of R vectors: the sum of Table I, 138 a row for 13 complex entries."""
    f_a, f_m = element_flops(dtype)
    return float(num_vectors * (nnz * (f_a + f_m) + rows * (-(-7 * f_a // 2) + -(-9 * f_m // 2))))


def step_bytes(stage: str, rows: int, nnz: int, num_vectors: int, dtype: Any = np.complex128) -> float:
    """Return the least bytes of one step of R vectors (Eq. 4, and the two stages beyond the paper).

    Parameters
    ----------
    stage : str
        naive, spmm (a product that adds, and an update), aug_spmv, aug_spmmv, spmmv (the product alone), rows (rows
        by number, and the diagonal), stencil (no stored matrix), or blocked (two steps a sweep, no stored matrix).
    rows, nnz, num_vectors : int
        N, N_nz and R.
    dtype : dtype
        Type of matrix and vectors.
    """
    s_d = np.dtype(dtype).itemsize
    matrix = nnz * (s_d + INDEX_BYTES)
    block = num_vectors * rows * s_d
    return float(
        {
            "naive": num_vectors * matrix + 13 * block,
            "spmm": matrix + 6 * block,
            "aug_spmv": num_vectors * matrix + 3 * block,
            "aug_spmmv": matrix + 3 * block,
            "spmmv": matrix + 2 * block,
            "rows": rows * (2 + np.empty(0, dtype).real.itemsize) + 3 * block,
            "stencil": 3 * block,
            "blocked": 2 * block,
        }[stage]
    )


def code_balance(num_vectors: float, entries: float = 13, dtype: Any = np.complex128) -> float:
    """Return B_min(R) in bytes per flop (Eq. 5): 2.23 for R = 1, 0.35 for many vectors."""
    s_d = np.dtype(dtype).itemsize
    f_a, f_m = element_flops(dtype)
    flops = entries * (f_a + f_m) + -(-7 * f_a // 2) + -(-9 * f_m // 2)
    return (entries / num_vectors * (s_d + INDEX_BYTES) + 3 * s_d) / flops


def working_set(rows: int, nnz: int, num_vectors: int, dtype: Any = np.complex128) -> float:
    """Return the bytes that a step of ``aug_spmmv()`` touches: the matrix, V and W."""
    s_d = np.dtype(dtype).itemsize
    return float(nnz * (s_d + INDEX_BYTES) + 2 * num_vectors * rows * s_d)


def omega(ny: int, nz: int, num_vectors: int, cache_bytes: float, entries: float = 13) -> float:
    """Return Ω (Eq. 8), bytes over least bytes, of the sample plane by plane, for one cache that forgets the oldest.

    A plane of V is read for the plane behind it, for itself, and for the plane ahead of it.  Between two of these uses
    a plane of the matrix, of V and of W pass through the cache; where they do not fit, V comes from memory again each
    time.  The same holds for lines within a plane.

    Parameters
    ----------
    ny, nz : int
        Sites of a plane.
    num_vectors : int
        R.
    cache_bytes : float
        Size of the last level cache.
    entries : float
        Entries of a row.
    """
    s_d = np.dtype(np.complex128).itemsize
    row = entries * (s_d + INDEX_BYTES) + 2 * num_vectors * s_d
    again = sum(2 for span in (4 * ny * nz, 4 * nz) if 2 * span * row > cache_bytes)
    least = entries * (s_d + INDEX_BYTES) + 3 * num_vectors * s_d
    return float((least + again * num_vectors * s_d) / least)
