"""Small generalized problems, solved by the kernel with its threads as fibers of the host."""

import ctypes
import functools

import numpy as np
import pytest
import scipy.linalg

from spectile.evd.cuda.choose import PAIR_ORDER
from spectile.evd.cuda.small.rotations import pair_shape
from spectile.evd.cuda.units import PAIRS
from spectile.evd.types import SCALARS

from ...on_host import fibers_library

RUN = """
extern "C" int run(int count, int threads, long long shared_bytes, const scalar_t* a, const scalar_t* b,
                   long long step, long long along_i, long long along_j, int n, int conjugate, int kind, int vectors,
                   real_t* w, scalar_t* v, int* status) {
    const auto body = [=] {
        rotate_pairs(a, step, along_i, along_j, b, step, along_i, along_j, n, conjugate, kind, vectors, w, v, status);
    };
    return launch({count, 1, 1}, threads, shared_bytes, 3, body);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return functools.cache(lambda dtype: fibers_library(tmp_path_factory.mktemp(dtype) / "pairs", PAIRS[dtype], RUN))


def solved(library, a, b, *, lower=True, kind=1, vectors=True):
    """Return w, v and the status of each problem of a batch, of which one triangle is given."""
    scalar, (count, n, _) = SCALARS[a.dtype.name], a.shape
    given = [np.where(np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T, x, np.nan) for x in (a, b)]
    w, v, status = np.zeros((count, n), scalar.real), np.zeros_like(a), np.full(count, 77, np.int32)
    shape, along = pair_shape(n, count, scalar), (n, 1) if lower else (1, n)
    done = library(a.dtype.name).run(
        *(count, shape.threads, ctypes.c_longlong(shape.shared_bytes), given[0].ctypes, given[1].ctypes),
        *(ctypes.c_longlong(n * n), *map(ctypes.c_longlong, along), n, int(not lower), kind, int(vectors)),
        *(w.ctypes, v.ctypes, status.ctypes),
    )
    assert done
    return w, v, status


def pair(n, dtype, count=2, size=1.0):
    rng = np.random.default_rng(n)

    def normal():
        x = rng.standard_normal((count, n, n))
        return x + 1j * rng.standard_normal((count, n, n)) if dtype.startswith("complex") else x

    a, b = normal(), normal()
    a, b = a + a.conj().swapaxes(1, 2), b @ b.conj().swapaxes(1, 2) / n + np.eye(n)
    return (size * a).astype(dtype), (b / size).astype(dtype)


@pytest.mark.parametrize(("kind", "lower", "size"), [(1, True, 1e-9), (2, False, 1.0), (3, True, 1e5)])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_pairs_are_those_of_lapack(dtype, kind, lower, size, library):
    for n in (1, 2, 13):
        a, b = pair(n, dtype, size=size)
        w, v, status = solved(library, a, b, kind=kind, lower=lower)
        only, _, _ = solved(library, a, b, kind=kind, lower=lower, vectors=False)
        assert (status == 0).all()
        for a1, b1, w1, v1, only1 in zip(a.astype("c16"), b.astype("c16"), w, v.astype("c16"), only, strict=True):
            expected, eps = scipy.linalg.eigvalsh(a1, b1, type=kind), 40 * n * np.finfo(dtype).eps
            assert np.abs(w1 - expected).max() <= eps * np.abs(expected).max()
            assert np.abs(w1 - only1).max() <= eps * np.abs(expected).max()
            gram = np.linalg.inv(b1) if kind == 3 else b1
            assert np.linalg.norm(v1.conj().T @ gram @ v1 - np.eye(n)) <= eps
            left, right = {1: (a1 @ v1, b1 @ v1), 2: (a1 @ b1 @ v1, v1), 3: (b1 @ a1 @ v1, v1)}[kind]
            assert np.linalg.norm(left - right * w1) <= eps * np.abs(expected).max() * np.linalg.norm(right)


def test_the_largest_order(library):
    n = PAIR_ORDER["complex128"]
    a, b = pair(n, "complex128", count=1)
    w, _, status = solved(library, a, b, vectors=False)
    assert status[0] == 0 and np.abs(w[0] - scipy.linalg.eigvalsh(a[0], b[0])).max() <= 1e-12


def test_what_cannot_be_solved_is_told(library):
    a, b = pair(6, "float32", count=4)
    b[1, 3, 3] = -1
    a[2, 4, 1] = np.inf
    a[3], b[3] = 1e30 * a[3], 1e-30 * b[3]
    w, v, status = solved(library, a, b)
    assert status.tolist() == [0, 4, -1, -2]
    assert np.isfinite(w[0]).all() and np.isnan(w[1:3]).all() and np.isnan(v[1:3]).all() and np.isinf(w[3]).any()
