"""Factors of block reflectors, made by the kernel with its threads as fibers of the host."""

import ctypes

import numpy as np
import pytest

from spectile.evd.cuda.back.panels import form_shape
from spectile.evd.cuda.units import BACK_PANELS
from spectile.evd.types import SCALARS

from ...on_host import fibers_library

RUN = """
extern "C" int run(int blocks, long long shared_bytes, const scalar_t* gram, const scalar_t* taus, int reflectors,
                   int columns, scalar_t* out) {
    return launch({blocks, 1, 1}, 256, shared_bytes, 1, [=] { form_factors(gram, taus, reflectors, columns, out); });
}
"""


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_groups_of_reflectors_are_block_reflectors(dtype, tmp_path):
    scalar, unit, rng = SCALARS[dtype], BACK_PANELS[dtype, 1], np.random.default_rng(4)
    library = fibers_library(tmp_path / "factors", unit, RUN)
    for columns, reflectors in ((1, 1), (8, 5), (32, 32), (64, 61), (128, 40)):
        rows = 140
        y = np.tril(
            rng.standard_normal((rows, columns)) + (1j * rng.standard_normal(rows)[:, None] if scalar.is_complex else 0)
        )
        y[np.arange(columns), np.arange(columns)] = 1
        y[:, reflectors:] = 0
        y = y.astype(dtype)
        taus = (2 / np.linalg.norm(y[:, :reflectors], axis=0) ** 2).astype(dtype)
        gram, out = np.asfortranarray(y.conj().T @ y), np.full((columns, columns), np.nan, dtype, order="F")
        shape = form_shape(columns, scalar)
        assert library.run(
            *(shape.grid[0], ctypes.c_longlong(shape.shared_bytes), gram.ctypes, taus.ctypes, reflectors, columns),
            out.ctypes,
        )
        for first in range(0, columns, 32):
            own = slice(first, first + 32)
            product = np.eye(rows, dtype=dtype)
            for j in range(first, min(first + 32, reflectors)):
                product = product @ (np.eye(rows) - taus[j] * np.outer(y[:, j], y[:, j].conj()))
            whole = np.eye(rows) - y[:, own] @ out[own, own] @ y[:, own].conj().T
            assert np.linalg.norm(whole - product) <= 100 * rows * np.finfo(dtype).eps
            out[own, own] = 0
        assert not out.any()
