"""What is between the products of a gradient, made by the kernel with its threads as fibers of the host."""

import ctypes
import functools
import itertools
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from spectile.autodiff import spectra
from spectile.evd.cuda import gradient
from spectile.evd.cuda.gradient import SUMS, tiles_shape
from spectile.evd.cuda.small import report
from spectile.evd.cuda.units import GRADIENT
from spectile.evd.types import SCALARS

from ...on_host import Stream, cupy_of, fibers_library

RUN = """
extern "C" int run(int x, int y, int z, long long shared_bytes, const scalar_t* s, const real_t* w, const real_t* w_bar,
                   int n, double resolution, double unit, double told, double turned, double most, scalar_t* out,
                   double* parts, int* arrivals, int* word, unsigned long long* arrived) {
    return launch({x, y, z}, 256, shared_bytes, 3, [=] {
        divide_by_gaps(s, w, w_bar, n, resolution, unit, told, turned, most, out, parts, arrivals, word, arrived);
    });
}
extern "C" int basis(int x, int y, int z, long long shared_bytes, const scalar_t* v, long long along_i,
                     long long along_j, const real_t* w, int n, double resolution, int* cluster, int* coinciding,
                     scalar_t* out) {
    return launch({x, 1, 1}, 256, 0, 3, [=] { find_clusters(w, n, resolution, cluster, coinciding); }) &&
            launch({x, y, z}, 256, shared_bytes, 3, [=] { arrange(v, n * n, along_i, along_j, n, out); }) &&
           launch({n * x, 1, 1}, 256, 64, 3, [=] { mix_clusters(out, n, cluster, coinciding); });
}
extern "C" int triangle(int z, scalar_t* a, int n, int lower) {
    return launch({n * z, 1, 1}, 256, 64, 3, [=] { take_triangle(a, n, lower); });
}
"""
KINDS = ("distinct", "cluster", "cluster_turned", "cluster_told", "phase")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return functools.cache(lambda dtype: fibers_library(tmp_path_factory.mktemp(dtype) / "gaps", GRADIENT[dtype], RUN))


def _random(rng, dtype, *shape):
    return (rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype[0] == "c" else 0)).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "n", "count"),
    [*((dtype, *size) for dtype in SCALARS for size in ((45, 2), (20, 1))), ("float64", 310, 1)],
)
def test_the_kernel_judges_and_divides_as_the_arrays_do(dtype, n, count, libraries):
    scalar, rng, library = SCALARS[dtype], np.random.default_rng(n), libraries(dtype)
    shape = tiles_shape(n, count, scalar, 2, SUMS)
    arrivals, arrived, word = np.zeros(count, np.int32), np.zeros(1, np.uint64), np.zeros(1, np.int32)
    # A cluster within a tile, across its border, and across tiles.
    clusters = [slice(4, 7), *[slice(n - 15, n - 10)] * (n > 40), *[slice(20, 301)] * (n > 300)]
    given = (
        itertools.product(KINDS, (True, False), clusters) if n < 300 else [(kind, True, clusters[-1]) for kind in KINDS]
    )
    for kind, with_values, part in given:
        w = (rng.uniform(0.5, 1.5, (count, n)).cumsum(-1) - n / 3).astype(scalar.real)
        s = _random(rng, dtype, count, n, n)
        w_bar = rng.standard_normal((count, n)).astype(scalar.real) if with_values else None
        if scalar.is_complex and kind != "phase":
            s[:, np.arange(n), np.arange(n)] = s[:, np.arange(n), np.arange(n)].real
        if kind.startswith("cluster"):
            w[:, part] = w[:, part.start : part.start + 1]
            s[:, part, part] = 0
            if w_bar is not None:
                w_bar[:, part] = w_bar[:, part.start : part.start + 1]
        if kind == "cluster_turned":
            s[-1, part.start, part.stop - 1] = 0.3
        if kind == "cluster_told" and w_bar is not None:
            w_bar[-1, part.stop - 1] += 0.3
        out, parts = np.full(s.shape, np.nan, dtype), np.full((count, shape.grid[1] * (shape.grid[1] + 1)), np.nan)
        assert library.run(
            *(*shape.grid, ctypes.c_longlong(shape.shared_bytes)),
            *(None if x is None else x.ctypes for x in (s, w, w_bar)),
            *(n, *map(ctypes.c_double, spectra.limits(n, scalar.real)), out.ctypes, parts.ctypes),
            *((arrived if count == 1 else arrivals).ctypes, word.ctypes, arrived.ctypes),
        )
        assert not arrivals.any() and not arrived.any()
        told = spectra.faults(np, w, w_bar, s, None).any()
        faulty = kind == "cluster_turned" or (kind == "cluster_told" and with_values)
        assert word[0] - 1 == told == (faulty or (kind == "phase" and scalar.is_complex))
        inner = spectra.quotients(np, w) * (s - spectra.adjoint(s))
        if w_bar is not None:
            inner = inner + 2 * spectra.diagonal(np, w_bar)
        np.testing.assert_allclose(out, inner, rtol=1e-5 if scalar.real == "float32" else 1e-13)


class HostBlas:
    """Products of matrices in columns, by their addresses."""

    def __init__(self, name, stream=None):
        self.dtype = np.dtype(name)

    def at(self, address, n, count):
        memory = (ctypes.c_char * (self.dtype.itemsize * n * n * count)).from_address(int(address))
        return np.frombuffer(memory, self.dtype).reshape(count, n, n).mT

    def batched(self, m, n, k, alpha, a, lda, each_a, b, ldb, each_b, beta, c, ldc, each_c, count, ops="NN"):
        left, right = (
            x if op == "N" else x.conj().mT
            for x, op in zip((self.at(a, n, count), self.at(b, n, count)), ops, strict=True)
        )
        self.at(c, n, count)[...] = alpha * left @ right

    def gemm(self, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, ops="NN"):
        self.batched(m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1, ops)

    def gram(self, n, k, a, lda, b, ldb, c, ldc, *, lower=True):
        product = self.at(a, n, 1).conj().mT @ self.at(b, n, 1)
        place = (np.tril if lower else np.triu)(np.ones((n, n), bool))
        self.at(c, n, 1)[:, place] = product[:, place]


@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_a_gradient_from_cotangents_to_its_triangle(dtype, lower, count, libraries, monkeypatch):
    scalar, n, rng, library = SCALARS[dtype], 35, np.random.default_rng(count), libraries(dtype)

    def divide(shape, *given):
        numbers = [ctypes.c_double(float(x)) for x in given[3:9]]
        places = [ctypes.c_void_p(int(x[0])) for x in (*given[:3], given[9])]
        counters = [x.ctypes for x in (given[10], given[11])]
        assert library.run(
            *(*shape.grid, ctypes.c_longlong(shape.shared_bytes), *places[:3], int(given[3]), *numbers[1:]),
            *(places[3], *counters, ctypes.c_void_p(int(given[12])), given[13].ctypes),
        )

    def take_triangle(shape, out, n, upper):
        found = HostBlas(dtype).at(out[0], n, count).mT
        found[...] = spectra.of_triangle(np, found, bool(upper)) / 2

    kernels = {"divide_by_gaps": divide, "take_triangle": take_triangle}

    def kernel(unit, name):
        return SimpleNamespace(bind=lambda *given: lambda stream: kernels[name](*given))

    monkeypatch.setitem(sys.modules, "cupy", cupy_of(Stream()))
    for name, fake in {"kernel": kernel, "Blas": HostBlas}.items():
        monkeypatch.setattr(gradient, name, fake)
    report.free_words.cache_clear()
    a = _random(rng, dtype, count, n, n)
    w, v = map(np.ascontiguousarray, np.linalg.eigh(a + spectra.adjoint(a)))
    w_bar = rng.standard_normal(w.shape).astype(w.dtype)
    v_bar = 2 * v * rng.standard_normal(v.shape).astype(w.dtype)  # of a cost without phases
    solved = gradient.Solved(dtype, n, count, w.ctypes.data, v.ctypes.data)
    for with_values, with_vectors in ((True, True), (True, False), (False, True)):
        s = spectra.adjoint(v) @ v_bar
        inner = spectra.quotients(np, w) * (s - spectra.adjoint(s)) / 2 * with_vectors
        inner = inner + spectra.diagonal(np, w_bar) * with_values
        wanted = spectra.of_triangle(np, v @ inner @ spectra.adjoint(v), lower)
        out, left = np.full(v.shape, np.nan, dtype), np.ascontiguousarray(v * 2 * w_bar[:, None])
        assert solved.pull_back(
            *(w_bar.ctypes.data * with_values, v_bar.ctypes.data * with_vectors, left.ctypes.data, out.ctypes.data),
            *(spectra.limits(n, scalar.real),),
            lower=lower,
            stream=0,
        )
        assert np.linalg.norm(out - wanted) < 1e3 * np.finfo(dtype).eps * np.linalg.norm(wanted)


@pytest.mark.parametrize("dtype", SCALARS)
def test_a_basis_of_each_cluster_is_mixed_and_nothing_else_changes(dtype, libraries):
    scalar, rng, count = SCALARS[dtype], np.random.default_rng(7), 2
    library, epsilon = libraries(dtype), np.finfo(scalar.real).eps
    for n, cluster_ends in ((20, (3, 17)), (17, (0, 17)), (33, ()), (1, ())):
        w = np.tile(np.linspace(1, 2, n), (count, 1))
        if cluster_ends:
            w[0, slice(*cluster_ends)] = w[0, cluster_ends[0]]
        w = np.sort(w.astype(scalar.real))
        v = np.linalg.qr(_random(rng, dtype, count, n, n))[0]
        for order in ("C", "F") if n == 33 else ("F",):
            given = np.stack([np.asarray(one, order=order) for one in v])
            memory = v if order == "C" else v.mT.copy()
            along = (n, 1) if order == "C" else (1, n)
            out, shape = np.full(v.shape, np.nan, dtype), tiles_shape(n, count, scalar, 1)
            cluster, coinciding = np.zeros((count, n), np.int32), np.full(count, 7, np.int32)
            assert library.basis(
                *(*shape.grid, ctypes.c_longlong(shape.shared_bytes), memory.ctypes, *map(ctypes.c_longlong, along)),
                *(w.ctypes, n, ctypes.c_double(n * epsilon), cluster.ctypes, coinciding.ctypes, out.ctypes),
            )
            turn = given.conj().mT @ out
            number = spectra.numbered(np, w, n * epsilon)
            assert (np.take_along_axis(number, cluster, 1) == number).all() and (np.diff(cluster) >= 0).all()
            assert ((cluster != np.arange(n)).any(-1) == coinciding).all()
            equal = number[..., :, None] == number[..., None, :]
            assert abs(turn[~equal]).max(initial=0) < 50 * epsilon
            assert abs(turn.conj().mT @ turn - np.eye(n)).max() < 50 * epsilon
            if cluster_ends:  # no vector of a cluster is left as it was, nor nearly
                own = abs(turn[0, slice(*cluster_ends), slice(*cluster_ends)])
                assert own.max() < 0.99 and (own > 1e-6).all()
            if scalar.is_complex:
                assert abs(turn[1].diagonal().imag).max() > 1e-3 or n == 1
            else:
                assert (turn[1].diagonal() > 0.9).all()


@pytest.mark.parametrize("lower", [True, False])
def test_a_triangle_with_half_of_the_diagonal(lower, libraries):
    rng, library = np.random.default_rng(8), libraries("complex128")
    a = _random(rng, "complex128", 2, 37, 37)
    found = a.copy()
    assert library.triangle(2, found.ctypes, 37, int(lower))
    assert (found == spectra.of_triangle(np, a, lower) / 2).all()
