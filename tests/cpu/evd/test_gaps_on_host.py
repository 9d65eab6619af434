"""What is between the products of a gradient, made by the kernel with its threads as fibers of the host."""

import ctypes

import numpy as np
import pytest

from spectile.autodiff import spectra
from spectile.evd.cuda.gradient import tiles_shape
from spectile.evd.cuda.units import GRADIENT
from spectile.evd.types import SCALARS

from ...on_host import fibers_library

RUN = """
extern "C" int run(int x, int y, int z, long long shared_bytes, const scalar_t* s, const real_t* w, const real_t* w_bar,
                   int n, double resolution, double unit, double most, double told, double turned, int* cluster,
                   real_t* sizes, int* coinciding, scalar_t* out, double* parts, int* words) {
    return launch({x, 1, 1}, 256, 4096, 3, [=] {
               find_clusters(w, w_bar, n, resolution, unit, cluster, sizes, coinciding, words);
           }) && launch({x, y, z}, 256, shared_bytes, 3, [=] {
               divide_by_gaps(s, w, cluster, w_bar, sizes, n, told, turned, most, out, parts, words);
           });
}
extern "C" int basis(int x, int y, int z, long long shared_bytes, const scalar_t* v, long long along_i,
                     long long along_j, const real_t* w, int n, double resolution, int* cluster,
                     real_t* sizes, int* coinciding, scalar_t* out, int* words) {
    return launch({x, 1, 1}, 256, 4096, 3, [=] {
               find_clusters(w, nullptr, n, resolution, 0, cluster, sizes, coinciding, words);
           }) && launch({x, y, z}, 256, shared_bytes, 3, [=] { arrange(v, n * n, along_i, along_j, n, out); }) &&
           launch({n * x, 1, 1}, 256, 64, 3, [=] { mix_clusters(out, n, cluster, coinciding); });
}
extern "C" int triangle(int z, scalar_t* a, int n, int lower) {
    return launch({n * z, 1, 1}, 256, 64, 3, [=] { take_triangle(a, n, lower); });
}
"""
KINDS = ("distinct", "cluster", "cluster_turned", "cluster_told", "phase")


def _library(dtype, path):
    return fibers_library(path / "gaps", GRADIENT[dtype], RUN)


def _random(rng, dtype, *shape):
    return (rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype[0] == "c" else 0)).astype(dtype)


@pytest.mark.parametrize("dtype", SCALARS)
def test_the_kernel_judges_and_divides_as_the_arrays_do(dtype, tmp_path):
    scalar, rng = SCALARS[dtype], np.random.default_rng(6)
    library, count, n = _library(dtype, tmp_path), 2, 45
    for kind in KINDS:
        for with_values in (True, False):
            w = np.sort(rng.standard_normal((count, n)), -1).astype(scalar.real)
            s = _random(rng, dtype, count, n, n)
            w_bar = rng.standard_normal((count, n)).astype(scalar.real) if with_values else None
            if scalar.is_complex and kind != "phase":
                s[:, np.arange(n), np.arange(n)] = s[:, np.arange(n), np.arange(n)].real
            if kind.startswith("cluster"):
                w[:, 4:7] = w[:, 4:5]
                s[:, 4:7, 4:7] = 0
                if w_bar is not None:
                    w_bar[:, 4:7] = w_bar[:, 4:5]
            if kind == "cluster_turned":
                s[1, 4, 6] = 0.3
            if kind == "cluster_told" and w_bar is not None:
                w_bar[1, 5] += 0.3
            out, shape = np.full(s.shape, np.nan, dtype), tiles_shape(n, count, scalar, 2)
            cluster, sizes = np.zeros((count, n), np.int32), np.zeros((count, 2), scalar.real)
            coinciding, words = np.full(count, 7, np.int32), np.full((count, 2), 7, np.int32)
            parts = np.full((count, shape.grid[1] * (shape.grid[1] + 1)), np.nan)
            assert library.run(
                *(*shape.grid, ctypes.c_longlong(shape.shared_bytes)),
                *(None if x is None else x.ctypes for x in (s, w, w_bar)),
                *(n, *map(ctypes.c_double, spectra.limits(w)), cluster.ctypes, sizes.ctypes),
                *(coinciding.ctypes, out.ctypes, parts.ctypes, words.ctypes),
            )
            number = spectra.numbered(np, w)
            assert (np.take_along_axis(number, cluster, 1) == number).all()
            assert (np.diff(cluster, axis=1) == np.diff(number, axis=1) * (np.arange(1, n) - cluster[:, :-1])).all()
            assert (coinciding == kind.startswith("cluster")).all()
            told = spectra.faults(np, w, w_bar, s, None).any()
            assert (
                words.any()
                == told
                == (
                    kind == "cluster_turned"
                    or (kind == "cluster_told" and with_values)
                    or (kind == "phase" and scalar.is_complex)
                )
            )
            inner = spectra.quotients(np, w) * (s - spectra.adjoint(s))
            if w_bar is not None:
                inner = inner + 2 * spectra.diagonal(np, w_bar)
            np.testing.assert_allclose(out, inner, rtol=1e-5 if scalar.real == "float32" else 1e-13)


@pytest.mark.parametrize("dtype", SCALARS)
def test_a_basis_of_each_cluster_is_mixed_and_nothing_else_changes(dtype, tmp_path):
    scalar, rng, count = SCALARS[dtype], np.random.default_rng(7), 2
    library, epsilon = _library(dtype, tmp_path), np.finfo(scalar.real).eps
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
            room = [np.zeros((count, n), np.int32), np.zeros((count, 2), scalar.real), np.full(count, 7, np.int32)]
            assert library.basis(
                *(*shape.grid, ctypes.c_longlong(shape.shared_bytes), memory.ctypes, *map(ctypes.c_longlong, along)),
                *(w.ctypes, n, ctypes.c_double(n * epsilon), *(x.ctypes for x in room), out.ctypes),
                np.zeros((count, 2), np.int32).ctypes,
            )
            turn = given.conj().mT @ out
            number = spectra.numbered(np, w, n * epsilon)
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
def test_a_triangle_with_half_of_the_diagonal(lower, tmp_path):
    rng, library = np.random.default_rng(8), _library("complex128", tmp_path)
    a = _random(rng, "complex128", 2, 37, 37)
    found = a.copy()
    assert library.triangle(2, found.ctypes, 37, int(lower))
    assert (found == spectra.of_triangle(np, a, lower) / 2).all()
