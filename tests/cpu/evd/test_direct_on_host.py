"""Direct tridiagonalization with the threads of its blocks as fibers of the host, in drawn orders."""

import ctypes
import dataclasses
import functools
import math

import numpy as np
import pytest
import scipy.linalg

from spectile.core.devices import TABLE
from spectile.evd.cuda.choose import (
    DIRECT_SIZES,
    direct_blocks,
    direct_layout,
    direct_order,
    direct_size,
)
from spectile.evd.cuda.reduction.direct import direct_shape
from spectile.evd.cuda.units import DIRECT
from spectile.evd.types import SCALARS
from spectile_study.inputs.spectra import FAMILIES, random_hermitian

from ...on_host import fibers_library

RUN = """
extern "C" int run(int blocks, long long shared_bytes, unsigned seed, scalar_t* a, long long lda, int n, int far,
                   int keep, double* d, double* e, scalar_t* taus, uint4* messages) {
    const auto body = [=] { tridiagonalize(a, lda, n, far, keep, d, e, taus, messages); };
    return launch({blocks, 1, 1}, DIRECT_THREADS, shared_bytes, seed, body);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    @functools.cache
    def load(scalar):
        # All but the instructions that the host has not: flagged numbers, and loads past a cache.
        left_out = ("// A double that carries", "// Number `index`"), ("// Loads that see", "#define PARTS")
        unit = DIRECT[(scalar.name, *DIRECT_SIZES[0])]
        return fibers_library(tmp_path_factory.mktemp(scalar.name) / "direct", unit, RUN, *left_out)

    return load


def tridiagonalized(library, a, multiprocessors, *, far=0, keep=True, seed=0):
    """Return d, e and Q of a matrix, as a device of so many multiprocessors makes them.

    Its shared memory leaves `far` columns of each block.
    """
    scalar, n = SCALARS[a.dtype.name], len(a)
    on = dataclasses.replace(TABLE["H200"], multiprocessors=multiprocessors)
    less = direct_layout(n, scalar, on)[1] - far * n * scalar.itemsize
    on = dataclasses.replace(on, shared_bytes=less)
    assert direct_layout(n, scalar, on) == (far, less)
    space = np.array(a, order="F")
    d, e, taus = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan, a.dtype)
    messages = np.zeros(4 * n * scalar.parts * 2, np.float64)
    done = library(scalar).run(
        *(direct_blocks(n, on), ctypes.c_longlong(less), seed, space.ctypes, ctypes.c_longlong(n), n, far, int(keep)),
        *(d.ctypes, e.ctypes, taus.ctypes, messages.ctypes),
    )
    assert done
    q = np.eye(n, dtype=np.promote_types(a.dtype, np.float64))
    for k in reversed(range(n - 1) if keep else []):
        v = np.concatenate([[1], space[k + 2 :, k]])
        q[k + 1 :] -= taus[k] * np.outer(v, v.conj() @ q[k + 1 :])
    return d, e[: n - 1], q


SMALL = [(1, 4, 0), (2, 4, 1), (3, 1, 0), (21, 3, 1), (33, 132, 2), (30, 2, 9)]


@pytest.mark.parametrize(
    ("dtype", "n", "multiprocessors", "far"),
    [*((dtype, *case) for dtype in SCALARS for case in SMALL), ("float64", 131, 2, 40), ("float32", 131, 1, 0)],
)
def test_a_matrix_is_tridiagonal_in_an_orthonormal_basis(dtype, n, multiprocessors, far, library):
    a = random_hermitian(n, np.random.default_rng(n), dtype)
    d, e, q = tridiagonalized(library, a, multiprocessors, far=far, seed=n)
    eps, norm = np.finfo(dtype).eps, np.linalg.norm(a)
    t = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
    assert np.linalg.norm(q.conj().T @ q - np.eye(n)) <= 4 * n * eps
    assert np.linalg.norm(q @ t @ q.conj().T - a) <= 4 * n * eps * norm


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_families(dtype, library):
    for family in FAMILIES:
        check_family(family, dtype, library)


def check_family(family, dtype, library):
    a = FAMILIES[family](16, np.random.default_rng(5), dtype)
    a = np.ldexp(a, -np.frexp(np.abs(a).max())[1]) if a.dtype.kind != "c" else a / np.abs(a).max(initial=1e-30)
    d, e, _ = tridiagonalized(library, a, 2, keep=False)
    found = scipy.linalg.eigvalsh_tridiagonal(d, e)
    expected = np.linalg.eigvalsh(a.astype(np.promote_types(dtype, np.float64)))
    assert np.abs(found - expected).max() <= 16 * np.finfo(dtype).eps * np.linalg.norm(a), family


@pytest.mark.parametrize("seed", range(3))
def test_the_same_bits_in_every_order_of_the_threads(seed, library):
    a = random_hermitian(20, np.random.default_rng(7), "float64")
    for one, other in zip(
        tridiagonalized(library, a, 6, seed=99), tridiagonalized(library, a, 6, seed=seed), strict=True
    ):
        assert (one == other).all()


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dtype", SCALARS)
def test_every_order_that_is_taken_fits(name, dtype):
    device, scalar = TABLE[name], SCALARS[dtype]
    most = direct_order(scalar, device)
    assert 0 < most <= math.prod(DIRECT_SIZES[-1])
    for n in range(1, most + 1, 7):
        shape = direct_shape(n, scalar, device)
        assert shape.refusal(device) is None and n <= math.prod(direct_size(n))
