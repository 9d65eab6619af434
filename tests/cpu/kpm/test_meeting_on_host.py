"""Kernels whose blocks meet, with the threads of their blocks as fibers of the host, in drawn orders."""

import ctypes
import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.core.devices import TABLE
from spectile.kpm import bounds
from spectile.kpm.cuda.common import (
    FULL,
    NO_DOTS,
    PLAIN,
    SERIES,
    TURNED,
    WALK,
    inspect_unit,
    lanczos_unit,
    vectors_unit,
)
from spectile.kpm.cuda.csr.launch import csr_unit
from spectile.kpm.cuda.csr.when import shape
from spectile.kpm.cuda.flat import when as flat
from spectile.kpm.cuda.flat.launch import flat_unit
from spectile.kpm.cuda.inspection import seen_in
from spectile.kpm.cuda.problem import Problem, row_launch
from spectile.kpm.operators.engine import lengthened
from spectile.kpm.reference import random_phases

from ...on_host import FIBERS, host_library
from ...structured import check_bounds, families

DEVICE = """
#define __grid_constant__
#define blockDim (index_t{THREADS, 1, 1})
inline long long min(long long a, long long b) { return a < b ? a : b; }
template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> void __stcs(T* p, T value) { *p = value; }
struct uint2 { unsigned x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline double2 make_double2(double x, double y) { return {x, y}; }
inline bool __any_sync(unsigned, bool value) {
    bool any = false;
    for (int lane = 0; lane < 32; ++lane) any |= exchanged(int(value), lane) != 0;
    return any;
}
inline unsigned __ballot_sync(unsigned, bool value) {
    unsigned ballot = 0;
    for (int lane = 0; lane < 32; ++lane) ballot |= unsigned(exchanged(int(value), lane) != 0) << lane;
    return ballot;
}
template <class T> T atomicMax(T* most, T value) { return std::exchange(*most, std::max(*most, value)); }
template <class T> T atomicOr(T* bits, T value) { return std::exchange(*bits, *bits | value); }
inline unsigned long long max(unsigned long long a, unsigned long long b) { return std::max(a, b); }
inline long long __double_as_longlong(double x) {
    long long bits;
    std::memcpy(&bits, &x, 8);
    return bits;
}
inline double __longlong_as_double(long long bits) {
    double x;
    std::memcpy(&x, &bits, 8);
    return x;
}
inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
template <class T> T __shfl_up_sync(unsigned, T value, int lanes) {
    const int lane = fiber->thread.x & 31;
    return exchanged(value, lane < lanes ? lane : lane - lanes);
}
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
    unsigned sum = 0;
    for (int lane = 0; lane < 32; ++lane) sum += exchanged(value, lane);
    return sum;
}
inline int __reduce_max_sync(unsigned, int value) {
    int most = value;
    for (int lane = 0; lane < 32; ++lane) most = max(most, exchanged(value, lane));
    return most;
}
"""


def on_host(folder, unit, call):
    """Return a unit as a library whose `call`, text, launches it."""
    source = re.sub(r"__shared__ (double|long long) (\w+)\[[^\]]*\];", r"DYNAMIC_SHARED(\1, \2);", unit.source())
    source = re.sub(r'#line 1 "ptx.cuh".*?(?=#line)', "", source, flags=re.DOTALL)  # DEVICE stands for it
    defines = "".join(f"#define {name} {value}\n" for name, value in unit.defines.items())
    fibers = FIBERS.read_text().replace("unsigned flag; };", "long long flag; };")  # sixteen bytes without a gap
    text = "\n".join((defines, fibers, DEVICE, source.replace("__restrict__", ""), call))
    folder.mkdir(exist_ok=True)
    return host_library(folder / unit.sources[0].partition(".")[0].replace("/", "_"), text, "-w", "-std=c++17")


def hermitian(n, dtype, entries, seed, hubs=0):
    rng = np.random.default_rng(seed)
    h = sp.random(n, n, min(1, entries / n), random_state=rng, data_rvs=rng.standard_normal).toarray()
    h[n // 2 : n // 2 + hubs] = 0.1 * rng.standard_normal(n)  # rows of all columns, beside each other
    if np.dtype(dtype).kind == "c":
        h = h + 1j * np.where(h, rng.standard_normal((n, n)), 0)
    return sp.csr_matrix((h + h.conj().T).astype(dtype))


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("launches", ["one", "two a step"])
def test_lanczos_steps_are_those_of_products(launches, dtype, tmp_path):
    steps_of = LANCZOS[launches](dtype, tmp_path)
    for n, lanes, blocks, steps in ((1, 1, 1, 1), (70, 4, 3, 9), (131, 32, 2, 7), (200, 1, 2, 12)):
        h = hermitian(n, dtype, 6, n, hubs=3 if lanes < 32 else 0)
        start = lengthened(random_phases(1, n, 1, real=dtype == "float64", dtype=dtype)[:, 0], 1, np)
        alphas, betas = bounds.tridiagonalize(lambda v, h=h: h @ v, start, steps)
        tolerance = (1e-9 if dtype == "float64" else 1e-3) * (abs(alphas).max() + 1)
        for found, expected in zip(steps_of(h, steps, lanes, blocks), (alphas, betas), strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("launches", ["one", "two a step"])
def test_lanczos_steps_bound_structured_spectra(launches, dtype, tmp_path):
    steps_of = LANCZOS[launches](dtype, tmp_path)
    for n in (3, 4, 5, 6, 8, 16, 64) if launches == "one" else (4, 5, 16):
        for name, matrix in families(n).items():
            if np.can_cast(matrix.dtype, dtype, "same_kind"):
                h = sp.csr_matrix(matrix.astype(dtype))
                engine = SimpleNamespace(
                    num_rows=len(matrix), tridiagonalize=lambda steps, h=h: steps_of(h, steps, 1, 1)
                )
                found = bounds.lanczos(engine)
                check_bounds(found, np.linalg.eigvalsh(matrix), eps=np.finfo(dtype).eps, what=f"{name}, {n}: {found}")


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_lanczos_steps_by_products_stay_within_the_range(dtype, tmp_path):
    """Of matrices whose squares leave it: the products are of H times a power of two."""
    steps_of = steps_by_products(dtype, tmp_path)
    h = hermitian(150, dtype, 6, 5).astype(np.promote_types(dtype, "f8"))
    expected = steps_of(h.astype(dtype), 8, 1, 3)
    most = 2.0**60 if dtype == "float32" else 2.0**700
    for factor in (most, 1 / most):
        found = steps_of((h * factor).astype(dtype), 8, 1, 3)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other * factor)


def lanczos_on_host(folder, dtype, call):
    """Return the unit of Lanczos steps, in blocks of 64 threads, as a library whose `call`, text, launches it."""
    unit = lanczos_unit(dtype)
    return on_host(folder, dataclasses.replace(unit, defines=unit.defines | {"THREADS": "64"}), call)


def steps_by_products(dtype, folder):
    """Return what makes Lanczos steps of a CSR matrix by SciPy's products and the kernel for the rest, as fibers."""
    library = lanczos_on_host(
        folder,
        dtype,
        """extern "C" int begin(int blocks, unsigned order, number* x, number* y, long long rows) {
            return launch({blocks, 1, 1}, THREADS, 0, order, [=] { first_vector(x, y, rows, 1); });
        }
        extern "C" int next(int blocks, unsigned order, const number* w, const number* x, number* y, long long rows,
                            const double* partial, int parts, double* alphas, double* betas, int step, int last) {
            const auto body = [=] { next_vector(w, x, y, rows, partial, parts, alphas, betas, {step, last}); };
            return launch({blocks, 1, 1}, THREADS, 256, order, body);
        }""",
    )

    def steps_of(h, steps, parts, blocks):
        n = ctypes.c_longlong(h.shape[0])
        x, y = np.full((2, h.shape[0]), np.nan, dtype)
        alphas, betas = np.full((2, steps + 1), np.nan)
        unit = 2.0 ** -np.frexp(float(abs(h).sum(axis=1).max()))[1]
        assert library.begin(blocks, 1, x.ctypes, y.ctypes, n)
        for step in range(steps + 1):
            w = ((h * h.dtype.type(unit)) @ x).astype(dtype)
            partial = np.zeros((parts, 2))
            wide = [each.astype(np.promote_types(dtype, "f8")) for each in (x, w)]
            for part in range(parts):
                own, image = (each[part::parts] for each in wide)
                partial[part] = np.vdot(own, own).real, np.vdot(image, own).real
            assert library.next(
                blocks, step, w.ctypes, x.ctypes, y.ctypes, n, partial.ctypes, parts, alphas.ctypes, betas.ctypes,
                step, steps,
            )  # fmt: skip
            x, y = y, x
        return alphas[:steps] / unit, betas[1:] / unit

    return steps_of


def steps_of_one_launch(dtype, folder):
    """Return what makes Lanczos steps of a CSR matrix by the kernel, as fibers."""
    library = lanczos_on_host(
        folder,
        dtype,
        """extern "C" int run(int blocks, unsigned seed, const int* pointer, const int* indices, const number* data,
                              number* x, number* y, long long rows, int lanes, int steps, double* alphas,
                              double* betas, double* sums, unsigned long long* met) {
            const auto body = [=] {
                lanczos(pointer, indices, data, x, y, rows, lanes, 1, steps, alphas, betas, sums, met);
            };
            return launch({blocks, 1, 1}, THREADS, 256, seed, body);
        }""",
    )

    def steps_of(h, steps, lanes, blocks):
        n = h.shape[0]
        x, y, numbers, sums = (
            np.empty(n, dtype),
            np.empty(n, dtype),
            np.full(2 * steps + 1, np.nan),
            np.empty(2 * blocks),
        )
        arrays = [h.indptr, h.indices, h.data, x, y]
        assert library.run(
            blocks, n, *(each.ctypes for each in arrays), ctypes.c_longlong(n), lanes, steps,
            numbers[:steps].ctypes, numbers[steps:].ctypes, sums.ctypes, np.zeros(1, np.uint64).ctypes,
        )  # fmt: skip
        return numbers[:steps], numbers[steps + 1 :]

    return steps_of


LANCZOS = {"one": steps_of_one_launch, "two a step": steps_by_products}


@pytest.mark.parametrize(("dtype", "width", "entries"), [("float64", 1, 40), ("float32", 3, 5), ("complex64", 4, 5)])
def test_steps_of_one_launch_are_those_of_several(dtype, width, entries, tmp_path):
    n, steps = 90, 6
    h = hermitian(n, dtype, entries, width)
    a, b = 0.9 / np.linalg.norm(h.toarray(), 2), 0.1
    problem = Problem(n, h.nnz, int(np.diff(h.indptr).max()), h.nnz, n, dtype, width)
    device = dataclasses.replace(TABLE["H200"], multiprocessors=3)
    shaped = shape(problem)._replace(threads=64)
    start = random_phases(5, n, width, real=np.dtype(dtype).kind == "f", dtype=dtype)
    library = on_host(
        tmp_path,
        csr_unit(dtype, width, shaped, mode=WALK),
        """extern "C" int run(int blocks, unsigned seed, const int* pointer, const int* indices, const number* data,
                              number* v, number* w, double* partial, unsigned long long* met, int steps, int first,
                              long long rows, int width, double a, double b) {
            const Walk given{partial, met, steps, first};
            const auto body = [=] {
                walk(pointer, pointer + 1, indices, data, v, w, given, 0, rows, width, 2 * a, -2 * a * b, 1);
            };
            return launch({blocks, 1, 1}, THREADS, 8 * WARPS * 2 * SPAN, seed, body);
        }""",
    )
    v, w = start.copy(), np.zeros_like(start)
    terms = [start.astype(complex), a * (h @ start - b * start)]
    for _ in range(steps - 1):
        terms.append(2 * a * (h @ terms[-1] - b * terms[-1]) - terms[-2])
    blocks, arrived, done = row_launch(shaped, n, width, device).grid[0], np.zeros(1, np.uint64), 0
    for some in (1, 3, steps - 4):
        partial = np.full((some, blocks, 2, width), np.nan)
        pair = (w, v) if done % 2 else (v, w)
        arrays = (h.indptr, h.indices, h.data, *pair, partial, arrived)
        assert library.run(
            blocks, some, *(each.ctypes for each in arrays), some, int(done == 0), ctypes.c_longlong(n), width,
            ctypes.c_double(a), ctypes.c_double(b),
        )  # fmt: skip
        tolerance = 1e-12 if dtype == "float64" else 1e-5
        for k in range(some):
            old, new = terms[done + k], terms[done + k + 1]
            wanted = (abs(old) ** 2).sum(axis=0), (old.conj() * new).sum(axis=0).real
            np.testing.assert_allclose(partial[k].sum(axis=0), wanted, atol=tolerance * n)
        done += some
        np.testing.assert_allclose((v, w)[done % 2], terms[done], atol=tolerance)


@pytest.mark.parametrize(("dtype", "width", "entries"), [("float64", 4, 5), ("float32", 3, 40), ("complex128", 5, 3)])
def test_vectors_of_a_turned_product_lie_in_one_piece_each(dtype, width, entries, tmp_path):
    n, apart = 75, 83
    h = hermitian(n, dtype, entries, width)
    shaped = shape(Problem(n, h.nnz, n, h.nnz, n, dtype, width))._replace(threads=64)
    library = on_host(
        tmp_path,
        csr_unit(dtype, width, shaped, mode=TURNED),
        """extern "C" int run(int blocks, unsigned seed, const int* pointer, const int* indices, const number* data,
                              const number* v, number* w, long long rows, int width, long long apart) {
            const auto body = [=] {
                csr(pointer, pointer + 1, indices, data, v, w, nullptr, 0, rows, width, apart, 2, 3, 4);
            };
            return launch({blocks, 1, 1}, THREADS, 8 * WARPS * 2 * SPAN, seed, body);
        }""",
    )
    v = np.random.default_rng(entries).standard_normal((n, width, 2)) @ [1, 1j if h.dtype.kind == "c" else 0]
    v, kept = np.ascontiguousarray(v if h.dtype.kind == "c" else v.real, dtype), np.full((width, apart), np.nan, dtype)
    arrays = [each.ctypes for each in (h.indptr, h.indices, h.data, v, kept)]
    assert library.run(2, 1, *arrays, ctypes.c_longlong(n), width, ctypes.c_longlong(apart))
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(kept[:, :n], (h @ v).T, rtol=tolerance, atol=tolerance * abs(h).sum(axis=1).max())
    assert np.isnan(kept[:, n:]).all()


@pytest.mark.parametrize("hermitian_one", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_a_look_by_threads_and_by_warps_finds_what_a_full_matrix_shows(dtype, hermitian_one, tmp_path):
    """Rows of a few entries, and ones that are much longer, of any place in a chunk."""
    unit = inspect_unit(dtype)
    library = on_host(
        tmp_path,
        dataclasses.replace(unit, defines=unit.defines | {"THREADS": "64"}),
        """extern "C" int run(int blocks, unsigned seed, const int* pointer, const int* indices, const number* data,
                              long long rows, int all, unsigned long long* seen) {
            const auto body = [=] { inspect(pointer, indices, data, rows, all, seen); };
            return launch({blocks, 1, 1}, THREADS, 0, seed, body);
        }""",
    )
    for seed, (n, hubs) in enumerate(((1, 0), (31, 1), (70, 2), (200, 5), (333, 0))):
        h = hermitian(n, dtype, 5, seed, hubs)
        if not hermitian_one and n > 1:
            h.data[len(h.data) // 3] += 0.5
        words = np.zeros(9, np.uint64)
        arrays = [each.ctypes for each in (h.indptr, h.indices, h.data)]
        assert library.run(2, seed, *arrays, ctypes.c_longlong(n), 1, words.ctypes)
        seen, full = seen_in(words), h.toarray().astype(complex)
        lengths = np.diff(h.indptr)
        slots = 32 * np.maximum(1, np.append(lengths, np.zeros(-n % 32, int)).reshape(-1, 32).max(axis=1)).sum()
        assert seen.canonical and seen.finite and (seen.longest, seen.slots) == (lengths.max(), slots)
        assert seen.largest == pytest.approx(abs(full).max(), rel=1e-6)
        assert seen.difference == pytest.approx(abs(full - full.conj().T).max(), rel=1e-6)
        assert seen.bounds == pytest.approx(bounds.gershgorin(h), rel=1e-5, abs=1e-6)


@pytest.fixture(scope="module")
def tiles_of(tmp_path_factory):
    """What does as ``tile_rows`` of flat/launch.py, by the same kernel."""
    unit = vectors_unit("float32")
    library = on_host(
        tmp_path_factory.mktemp("tiles"),
        dataclasses.replace(unit, defines=unit.defines | {"THREADS": "64"}),
        """extern "C" int run(int blocks, const int* pointer, long long first, long long last, long long tiles,
                              int* edges) {
            const auto body = [=] { tile_rows(pointer, first, last, tiles, edges); };
            return launch({blocks, 1, 1}, THREADS, 0, 3, body);
        }""",
    )

    def made(indptr, first, last, count):
        edges = np.full(count + 1, -1, np.int32)
        rows = (ctypes.c_longlong(each) for each in (first, last, count))
        assert library.run(-(-(count + 1) // 64), indptr.ctypes, *rows, edges.ctypes)
        return edges

    return made


def cut(indptr, most, folder):
    """Return what ``cut_rows`` of csr/launch.py does, by the same kernels."""
    unit = vectors_unit("float32")
    unit = dataclasses.replace(unit, defines=unit.defines | {"THREADS": "64"})
    library = on_host(
        folder / "vectors",
        unit,
        """extern "C" int run(int blocks, const int* pointer, long long rows, int most, const long long* start,
                              long long* counts, int* row, int* first, int* begin, int* until) {
            const auto body = [=] {
                if (counts) cut_counts(pointer, rows, most, counts);
                else cut_rows(pointer, rows, most, start, row, first, begin, until);
            };
            return launch({blocks, 1, 1}, THREADS, 0, 3, body);
        }""",
    )
    rows = len(indptr) - 1
    counts = np.zeros(-(-rows // 32), np.int64)
    asked = -(-rows // 64), indptr.ctypes, ctypes.c_longlong(rows), most
    assert library.run(*asked, None, counts.ctypes, None, None, None, None)
    starts = np.concatenate([[0], np.cumsum(counts)])
    long_rows, pieces = divmod(int(starts[-1]), 2**32)
    found = [np.full(size, -1, np.int32) for size in (long_rows, long_rows, pieces, pieces)]
    assert library.run(*asked, starts.ctypes, None, *(each.ctypes for each in found))
    return found


@pytest.mark.parametrize(("dtype", "width", "mean"), [("float32", 2, 30), ("complex128", 3, 4)])
def test_long_rows_are_cut_into_pieces(dtype, width, mean, tmp_path):
    """Rows of all lengths beside one that is whole: the sums of their pieces, by an earlier launch, make the step."""
    n, most = 150, 11
    rng = np.random.default_rng(width)
    lengths = rng.integers(0, 2 * most, n)
    lengths[[0, 7, 8, n - 1]] = n, n - 1, most + 1, n
    matrix = sp.random(n, n, 1.0, random_state=rng).toarray() * (
        rng.permuted(np.tile(np.arange(n), (n, 1)), axis=1) < lengths[:, None]
    )
    if np.dtype(dtype).kind == "c":
        matrix = matrix * np.exp(1j * np.arange(n))
    h = sp.csr_matrix(matrix.astype(dtype))
    shaped = shape(Problem(n, mean * n, n, mean * n, n, dtype, width))._replace(threads=64)
    start = """extern "C" int run(int blocks, unsigned seed, const int* pointer, const int* until, const int* indices,
                                  const number* data, const number* sums, const int* row, const int* first, int hubs,
                                  int most, const number* v, number* w, double* partial, long long rows, int width) {
        const auto body = [=] { %s };
        return launch({blocks, 1, 1}, THREADS, 8 * WARPS * 2 * SPAN, seed, body);
    }"""
    given = "v, w, partial, 0, rows, width, 2.0, -0.5, 1.0"
    pieces = on_host(
        tmp_path / "pieces",
        csr_unit(dtype, width, shaped, mode=PLAIN),
        start % f"csr(pointer, until, indices, data, {given});",
    )
    step = on_host(
        tmp_path / "step",
        csr_unit(dtype, width, shaped, mode=FULL, hubs=True),
        start % f"csr(pointer, until, indices, data, sums, row, first, hubs, most, {given});",
    )
    v, w = (rng.standard_normal((2, n, width)) + (1j if h.dtype.kind == "c" else 0)).astype(dtype)
    row, first, begin, until = cut(h.indptr, most, tmp_path)
    np.testing.assert_array_equal(row, np.flatnonzero(np.diff(h.indptr) > most))
    assert (until - begin).max() == most and (until - begin).min() > 0
    np.testing.assert_array_equal(np.add.reduceat(until - begin, first), np.diff(h.indptr)[row])
    sums, partial = np.full((len(begin), width), np.nan, dtype), np.full((2, 2, width), np.nan)
    wanted = 2 * (h @ v) - 0.5 * v - w

    def run(library, pointer, until, rows, image):
        arrays = [pointer, until, h.indices, h.data, sums, row, first]
        assert library.run(
            2, 5, *(each.ctypes for each in arrays), len(row), most, v.ctypes, image.ctypes, partial.ctypes,
            ctypes.c_longlong(rows), width,
        )  # fmt: skip

    run(pieces, begin, until, len(begin), sums)
    run(step, h.indptr, h.indptr[1:], n, w)
    tolerance = 1e-12 if dtype == "complex128" else 1e-5
    np.testing.assert_allclose(w, wanted, rtol=tolerance, atol=tolerance * abs(wanted).max())
    dots = (abs(v) ** 2).sum(axis=0), (v.conj() * wanted).sum(axis=0).real
    np.testing.assert_allclose(
        partial.sum(axis=0), dots, rtol=100 * tolerance, atol=100 * tolerance * abs(wanted).max()
    )


@pytest.mark.parametrize("mode", [PLAIN, NO_DOTS, FULL, SERIES])
@pytest.mark.parametrize(("dtype", "width", "mean"), [("float32", 4, 3), ("complex64", 1, 9), ("complex128", 1, 40)])
def test_entries_side_by_side_make_the_step(dtype, width, mean, mode, tiles_of, tmp_path):
    """Rows of all lengths, none, and longer than some chunks; the first and the last ones; all rows, or some."""
    n, rng = 400, np.random.default_rng(mean)
    lengths = rng.poisson(mean * rng.random(n) ** 2)
    lengths[[0, 3, 180, n - 1]] = n, 0, n, n
    lengths[20:150] = 0
    dense = rng.standard_normal((n, n)) * (rng.permuted(np.tile(np.arange(n), (n, 1)), axis=1) < lengths[:, None])
    h = sp.csr_matrix((dense * np.exp(1j * np.arange(n)) if np.dtype(dtype).kind == "c" else dense).astype(dtype))
    problem = Problem(n, h.nnz, n, h.nnz, n, dtype, width)
    assert not flat.applies(problem, TABLE["H200"])
    shaped = flat.shape(problem)._replace(threads=64, unroll=2)  # chunks of 128 entries
    series = "Series series = {1, {total}, {{{0.5, 0}, {-2, 0}, {3, 0}}}};" if mode == SERIES else ""
    library = on_host(
        tmp_path,
        flat_unit(dtype, width, shaped, mode=mode),
        """extern "C" int run(int blocks, unsigned seed, const int* tile, const int* pointer, const int* indices,
                              const number* data, const number* v, number* w, double* partial, real* total, int tiles) {
            SUMMED
            const auto body = [=] { flat(tile, pointer, indices, data, v, w, partial, tiles, 2.0, -0.5, 1.0 AND); };
            return launch({blocks, 1, 1}, THREADS, ROOM > SUMS ? ROOM : SUMS, seed, body);
        }""".replace("SUMMED", series).replace("AND", ", series" if series else ""),
    )
    tolerance = 1e-5 if np.finfo(dtype).eps > 1e-10 else 1e-12
    before, v = ((rng.standard_normal((2, n, width)) + (1j if h.dtype.kind == "c" else 0)).astype(dtype) for _ in "vw")
    v, before = v[0], before[0]
    for first, last, blocks in ((0, n, 3), (0, n, 1), (17, n - 1, 2), (25, 140, 2), (180, 181, 1)):
        entries = int(h.indptr[last] - h.indptr[first])
        count = -(-(entries + last - first) // shaped.tile)
        table = tiles_of(h.indptr, first, last, count)
        ends = np.append(0, np.cumsum(np.diff(h.indptr)[first:last] + 1))  # entries and rows before each row
        np.testing.assert_array_equal(table, first + np.searchsorted(ends, np.arange(count + 1) * ends[-1] // count))
        w, partial, total = before.copy(), np.full((blocks, 2, width), np.nan), np.ones((n, width), dtype)
        arrays = [each.ctypes for each in (table, h.indptr, h.indices, h.data, v, w, partial, total)]
        assert library.run(blocks, first, *arrays, count)
        some, image = slice(first, last), (h @ v)[first:last]
        wanted = image if mode == PLAIN else 2 * image - 0.5 * v[some] - before[some]
        largest = abs(h).sum(axis=1).max() * abs(v).max()
        np.testing.assert_allclose(w[some], wanted, atol=tolerance * largest)
        np.testing.assert_array_equal(np.delete(w, np.r_[some], axis=0), np.delete(before, np.r_[some], axis=0))
        if mode >= FULL:
            dots = (abs(v[some]) ** 2).sum(axis=0), (v[some].conj() * wanted).sum(axis=0).real
            np.testing.assert_allclose(partial.sum(axis=0), dots, atol=tolerance * n * largest)
        if mode == SERIES:
            summed = 1 + 0.5 * before[some] - 2 * v[some] + 3 * wanted
            np.testing.assert_allclose(total[some], summed, atol=10 * tolerance * largest)
