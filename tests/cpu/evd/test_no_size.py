"""Order 0, bands without rows, batches without matrices and parts of them: as SciPy answers, where it does."""

import itertools

import numpy as np
import pytest
import scipy.linalg

from spectile import evd

DTYPES = ("float64", "float32", "complex128", "complex64", "int32")
PARTS = (
    {},
    {"select": "i", "select_range": (0, 0)},
    {"select": "v", "select_range": (-1, 1)},
    {"select": "v", "select_range": (5, 6)},
)


def outcome(call, *operands, **keywords):
    """Return the shapes and dtypes of the results, or the error's type."""
    try:
        results = call(*operands, **keywords)
    except (ValueError, TypeError) as error:
        return type(error)
    return [(x.shape, x.dtype) for x in (results if isinstance(results, tuple) else (results,))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 0), (1, 0), (3, 0), (0, 1), (0, 3), (1, 1), (0, 2, 3), (0, 0, 0), (), (3,)])
def test_bands(shape, dtype):
    band = np.zeros(shape, dtype)
    for lower, part in itertools.product([True, False], PARTS):
        for name in ("eig_banded", "eigvals_banded"):
            ours, theirs = (getattr(library, name) for library in (evd, scipy.linalg))
            assert outcome(ours, band, lower, backend="cpu", **part) == outcome(theirs, band, lower, **part)


@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0), (2, 0, 0)])
def test_batches_of_bands_of_no_size(shape):
    w, v = evd.eig_banded(np.zeros(shape, "complex64"), backend="cpu")
    assert (w.shape, w.dtype, v.shape, v.dtype) == ((2, 0), np.float32, (2, 0, 0), np.complex64)
    assert evd.eigvals_banded(np.zeros(shape), backend="cpu").shape == (2, 0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("d", "e"),
    [
        ((0,), (0,)),
        ((0,), (1,)),
        ((1,), (0,)),
        ((2, 0), (2, 0)),
        ((0, 3), (0, 2)),
        ((), ()),
        ((3,), ()),
        ((0, 1), (0,)),
    ],
)
def test_tridiagonals(d, e, dtype):
    d, e = np.zeros(d, dtype), np.zeros(e, dtype)
    for part in PARTS:
        for name in ("eigh_tridiagonal", "eigvalsh_tridiagonal"):
            ours = outcome(getattr(evd, name), d, e, backend="cpu", **part)
            theirs = outcome(getattr(scipy.linalg, name), d, e, **part)
            if isinstance(theirs, list):  # SciPy's empty parts of order 1 are float64 in any case
                theirs[0] = (theirs[0][0], np.dtype(dtype))
            assert ours == theirs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"subset_by_index": (0, 0)},
        {"subset_by_index": (1, 4)},
        {"subset_by_value": (0, 5)},
        {"subset_by_value": (-np.inf, 5)},
        {"driver": "evr"},
        {"driver": "evx", "subset_by_value": (-np.inf, 0)},
    ],
)
def test_order_zero(keywords, dtype):
    a = np.zeros((0, 0), dtype)
    for name in ("eigh", "eigvalsh"):
        ours, theirs = (getattr(library, name) for library in (evd, scipy.linalg))
        assert outcome(ours, a, backend="cpu", **keywords) == outcome(theirs, a, **keywords)
    if "driver" not in keywords:
        for kind in (1, 2, 3):
            pair = outcome(scipy.linalg.eigh, a, a, type=kind, **keywords)
            assert outcome(evd.eigh, a, a, type=kind, backend="cpu", **keywords) == pair
    if "subset_by_value" not in keywords:
        w, v = evd.eigh(np.zeros((2, 0, 0), dtype), backend="cpu", **keywords)
        assert (w.shape, v.shape) == ((2, 0), (2, 0, 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_without_matrices(dtype):
    """As NumPy's and CuPy's, where SciPy's refuses them."""
    a, real = np.zeros((0, 3, 3), dtype), np.float32 if dtype in ("float32", "complex64") else np.float64
    for operands in ((a,), (a, a), (a, np.eye(3, dtype=dtype))):
        w, v = evd.eigh(*operands, backend="cpu")
        assert (w.shape, w.dtype, v.shape) == ((0, 3), real, (0, 3, 3))
        assert evd.eigvalsh(*operands, subset_by_index=(1, 2), backend="cpu").shape == (0, 2)


def test_tridiagonalization_of_order_zero():
    d, e, q = evd.tridiagonalize(np.zeros((0, 0), "complex64"), calc_q=True, backend="cpu")
    assert (d.shape, e.shape, q.shape, d.dtype, q.dtype) == ((0,), (0,), (0, 0), np.float32, np.complex64)
