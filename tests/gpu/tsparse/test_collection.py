"""Sparse products at full size: every matrix at hand squared against SciPy, and more than 2^31 entries.  Minutes.

Matrices are looked for in the folder SPECTILE_RESOURCES (default: resources); one that is not there is skipped.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from spectile.tsparse import spgemm, symbolic
from spectile_study.bench import sheets
from spectile_study.inputs import suitesparse

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
RESOURCES = Path(os.environ.get("SPECTILE_RESOURCES", ROOT / "resources"))
SHEET = sheets.read_sheet(ROOT / "config/tsparse.tsv", ROOT / "workflow/schemas/tsparse.schema.yaml")
#: Rounding of one input, and of one operation of the sum.
UNITS = {"float64": (0.0, 2.0**-53), "float32": (2.0**-24, 2.0**-24)}
UNITS |= {name: (2.0**-11, 2.0**-23) for name in ("tf32", "float16")}
#: Squares of more products are compared through their action on a vector.
LARGEST = 110_000_000


MATRICES = sorted({row["matrix"] for row in SHEET.values() if row["run"] == "paper" and row.get("matrix")})


def reference(matrix):
    """Return A, A A and |A| |A| by SciPy, or for large products their action on a vector and the vector."""
    A = suitesparse.matrix(matrix, RESOURCES, ROOT / "config/matrices.tsv")
    A.sort_indices()
    if np.diff(A.indptr).astype(np.int64)[A.indices].sum() > LARGEST:
        x = np.random.default_rng(1).standard_normal(A.shape[1])
        return A, A @ (A @ x), abs(A) @ (abs(A) @ abs(x)), x
    found, size = A @ A, abs(A) @ abs(A)
    size.sort_indices()
    # SciPy leaves out what cancels: its values take their places among all.
    places = [
        np.repeat(np.arange(len(A.indptr) - 1), np.diff(C.indptr)) * A.shape[1] + C.indices for C in (found, size)
    ]
    exact = size.copy()
    exact.data[:] = 0
    exact.data[np.searchsorted(places[1], places[0])] = found.data
    return A, exact, size.data, None


@pytest.fixture(scope="module")
def references():
    """SciPy's products, made by threads ahead of the tests."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {matrix: pool.submit(reference, matrix) for matrix in MATRICES}


@pytest.mark.parametrize("matrix", MATRICES)
def test_square(matrix, references):
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    try:
        A, exact, size, x = references.pop(matrix).result()
    except suitesparse.MissingMatrix as missing:
        pytest.skip(str(missing))
    arrays = (A.data, A.indices.astype(np.int32), A.indptr.astype(np.int32))
    on_gpu = csr_matrix(tuple(cupy.asarray(v) for v in arrays), shape=A.shape)
    size = cupy.asarray(size)
    exact = csr_matrix(exact) if x is None else cupy.asarray(exact)
    longest = int(np.diff(A.indptr).max())
    for precision, (rounded, unit) in UNITS.items():
        C = spgemm(on_gpu, on_gpu, precision=precision)
        # The reference is rounded like float64; float32 products below its normal range have an absolute error.
        bound = 2 * rounded + rounded**2 + (longest + 2) * (unit + 2.0**-53) * (1 + 2 * rounded)
        floor = 0 if precision == "float64" else longest * 2.0**-149
        if x is None:
            assert (C.indptr == exact.indptr).all()
            assert (C.indices == exact.indices).all()
            error = cupy.abs(C.data - exact.data)
        else:
            assert symbolic(on_gpu, on_gpu).nnz == C.nnz
            error = cupy.abs(C.astype(np.float64) @ cupy.asarray(x) - exact)
            bound += 2 * A.shape[1] * 2.0**-53
        assert (error <= bound * size + floor).all(), (precision, float((error / (bound * size + floor)).max()))
        del C, error


def test_more_than_2_31_entries():
    """A column times a row: every entry is known, and so is their number."""
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    m = n = 46_400
    column, row = cupy.arange(m, dtype=np.float32) % 7 + 1, cupy.arange(n, dtype=np.float32) % 11 + 1
    ones = cupy.arange(m + 1, dtype=np.int32)
    A = csr_matrix((column, cupy.zeros(m, np.int32), ones), shape=(m, 1))
    B = csr_matrix((row, cupy.arange(n, dtype=np.int32), cupy.asarray([0, n], np.int32)), shape=(1, n))
    with pytest.raises(MemoryError, match="2152960000 entries"):
        symbolic(A, B)
    C = spgemm(A, B, precision="float32")
    assert C.nnz == m * n > 2**31
    assert C.indptr.dtype == C.indices.dtype == np.int64
    assert (C.indptr == n * cupy.arange(m + 1, dtype=np.int64)).all()
    for i in range(0, m, 4640):
        part = slice(i * n, (i + 4640) * n)
        assert (C.indices[part].reshape(-1, n) == cupy.arange(n)).all()
        assert (C.data[part].reshape(-1, n) == column[i : i + 4640, None] * row).all()
