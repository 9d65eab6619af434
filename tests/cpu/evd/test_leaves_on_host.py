"""Leaves of divide and conquer, solved by the kernel with its threads as fibers of the host."""

import ctypes

import numpy as np

from spectile.evd.cuda.choose import LEAF
from spectile.evd.cuda.tridiagonal.divide import leaf_shape
from spectile.evd.cuda.units import LEAVES

from ...on_host import fibers_library

RUN = """
extern "C" int run(int threads, long long shared_bytes, const double* d, const double* e, int leaf, double* w,
                   double* q, long long ldq) {
    return launch({2, 1, 1}, threads, shared_bytes, 2, [=] { leaves(d, e, leaf, w, q, ldq); });
}
"""


def test_leaves_are_solved(tmp_path):
    library, rng = fibers_library(tmp_path / "leaves", LEAVES, RUN), np.random.default_rng(8)
    for leaf in (1, 2, 7, 25, LEAF):
        shape = leaf_shape(1, leaf)
        for scale in (1.0, 0.0):
            d, e = rng.standard_normal(2 * leaf), scale * rng.standard_normal(2 * leaf)
            w, q = np.full(2 * leaf, np.nan), np.full((2 * leaf, 2 * leaf), np.nan, order="F")
            places = (d.ctypes, e.ctypes, leaf, w.ctypes, q.ctypes, ctypes.c_longlong(2 * leaf))
            assert library.run(shape.threads, ctypes.c_longlong(shape.shared_bytes), *places)
            for own in (slice(0, leaf), slice(leaf, 2 * leaf)):
                beside = e[own][: leaf - 1]
                t = np.diag(d[own]) + np.diag(beside, 1) + np.diag(beside, -1)
                assert np.abs(w[own] - np.linalg.eigvalsh(t)).max() <= 1e-14 * leaf
                assert np.abs(t @ q[own, own] - q[own, own] * w[own]).max() <= 1e-14 * leaf
                assert np.abs(q[own, own].T @ q[own, own] - np.eye(leaf)).max() <= 1e-14 * leaf
