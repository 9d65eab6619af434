"""Rows that a block fills, as on a GPU: the kernel compiled for the host, its lanes as threads that wait as they do."""

import ctypes
import itertools
from importlib.resources import files

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse.cuda import shared

from ...on_host import host_library

THREADS = 64
SHIMS = """
#include <algorithm>
#include <cmath>
#include <pthread.h>
#include <thread>
#include <vector>
#define __device__
#define __global__ static
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __shared__ static
using std::min; using std::max;
constexpr unsigned ALL_LANES = ~0u;
using u64 = unsigned long long; using u32 = unsigned int;
struct int2 { int x, y; };
struct Place { unsigned x; };
static Place blockDim, gridDim;
static thread_local Place blockIdx, threadIdx;
static pthread_barrier_t block_barrier, warp_barriers[32];
static u64 slots[32][32];
static u64 shared_memory[1 << 16];
static void __syncthreads() { pthread_barrier_wait(&block_barrier); }
static void __syncwarp(u32 = ALL_LANES) { pthread_barrier_wait(&warp_barriers[threadIdx.x / 32]); }
template <class T> T of_lane(T value, int lane) {
    static_assert(sizeof(T) <= 8);
    u64* warp = slots[threadIdx.x / 32];
    __builtin_memcpy(&warp[threadIdx.x % 32], &value, sizeof(T));
    __syncwarp();
    T other;
    __builtin_memcpy(&other, &warp[lane], sizeof(T));
    __syncwarp();
    return other;
}
template <class T> T __shfl_sync(u32, T value, int lane, int width = 32) {
    return of_lane(value, int(threadIdx.x % 32) / width * width + lane % width);
}
template <class T> T __shfl_up_sync(u32, T value, int by, int width = 32) {
    const int lane = threadIdx.x % 32;
    return of_lane(value, lane % width >= by ? lane - by : lane);
}
template <class T> T __shfl_xor_sync(u32, T value, int by) { return of_lane(value, int(threadIdx.x % 32) ^ by); }
static u32 __ballot_sync(u32, bool mine) {
    u32 bits = 0;
    const int lane = threadIdx.x % 32;
    for (int by = 0; by < 32; ++by) bits |= u32(of_lane(int(mine), (lane + by) % 32)) << (lane + by) % 32;
    return bits;
}
static int __reduce_add_sync(u32, int value) {
    int sum = 0;
    const int lane = threadIdx.x % 32;
    for (int by = 0; by < 32; ++by) sum += of_lane(value, (lane + by) % 32);
    return sum;
}
static int __reduce_max_sync(u32, int value) {
    int most = value;
    const int lane = threadIdx.x % 32;
    for (int by = 1; by < 32; ++by) most = max(most, of_lane(value, (lane + by) % 32));
    return most;
}
static u32 __match_any_sync(u32, int value) {
    u32 same = 0;
    const int lane = threadIdx.x % 32;
    for (int by = 0; by < 32; ++by) same |= u32(of_lane(value, (lane + by) % 32) == value) << (lane + by) % 32;
    return same;
}
static bool __any_sync(u32 mask, bool mine) { return __ballot_sync(mask, mine); }
static int __popc(u32 x) { return __builtin_popcount(x); }
static int __ffs(u32 x) { return __builtin_ffs(x); }
static int __clz(u32 x) { return x ? __builtin_clz(x) : 32; }
template <class T> T atomicAdd(T* at, T more) { return __sync_fetch_and_add(at, more); }
static u32 atomicOr(u32* at, u32 bits) { return __sync_fetch_and_or(at, bits); }
static u32 atomicMin(u32* at, u32 value) {
    u32 seen = *(volatile u32*)at;
    while (value < seen) {
        const u32 now = __sync_val_compare_and_swap(at, seen, value);
        if (now == seen) break;
        seen = now;
    }
    return seen;
}
static bool __syncthreads_or(bool mine) {
    static int wanted;
    __syncthreads();
    if (threadIdx.x == 0) wanted = 0;
    __syncthreads();
    if (mine) __sync_fetch_and_or(&wanted, 1);
    __syncthreads();
    const bool any = wanted;
    __syncthreads();
    return any;
}
static int atomicCAS(int* at, int old, int value) { return __sync_val_compare_and_swap(at, old, value); }
static double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
static float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static double __dmul_rn(double a, double b) { return a * b; }
static float __fmul_rn(float a, float b) { return a * b; }
static void __threadfence() {}
static int words_of(int span) { return int((u32(span) + 31) >> 5); }
"""
RUN = """
extern "C" void run(int count, int log, int capacity, int* list, int* ptr_a, int* idx_a, double* val_a, int* ptr_b,
                    int* idx_b, double* val_b, int* low, int* span, int* ptr_c, int* idx_c, double* val_c, int parts,
                    int* states, int listed) {
    gridDim.x = 1, blockDim.x = BLOCK_THREADS;
    pthread_barrier_init(&block_barrier, nullptr, BLOCK_THREADS);
    for (int warp = 0; warp < BLOCK_THREADS / 32; ++warp) pthread_barrier_init(&warp_barriers[warp], nullptr, 32);
    std::vector<std::thread> all;
    for (unsigned t = 0; t < BLOCK_THREADS; ++t)
        all.emplace_back([=] {
            blockIdx.x = 0, threadIdx.x = t;
            fill(count, log, capacity, list, ptr_a, idx_a, val_a, ptr_b, idx_b, val_b, low, span, ptr_c,
                 idx_c, val_c, parts, states, listed);
        });
    for (auto& one : all) one.join();
}
"""


def compiled(stem, **defines):
    folder = files("spectile.tsparse.cuda")
    rows = (folder / "rows/rows.cuh").read_text().replace('#include "shared.cuh"', "")
    block = (folder / "rows/block.cu").read_text().replace('extern "C" ', "")
    block = block.replace('#include "rows/rows.cuh"', "").replace('#include "search.cuh"', "")
    block = block.replace("extern __shared__ u64 shared[];", "u64* shared = shared_memory;")
    constants = "".join(f"constexpr int {name} = {value};\n" for name, value in shared.CONSTANTS.items())
    given = {"NAME": "fill", "VALUE": "double", "BLOCK_THREADS": THREADS, **defines}
    text = "".join(f"#define {name} {value}\n" for name, value in given.items())
    value = "".join((folder / name).read_text() for name in ("scan.cuh", "value.cuh", "search.cuh"))
    heads = "enum { PRODUCTS };\n"
    source = "\n".join((text, SHIMS, constants, heads, value, rows, block, RUN))
    flags = "-ffp-contract=off", "-Wno-unused-function", "-std=c++17", "-pthread"
    return host_library(stem, source, *flags).run


@pytest.fixture(scope="module", params=[(1, 0, 32), (0, 0, 5), (1, 1, 2)], ids=["whole", "in parts", "sparse"])
def fill(request, tmp_path_factory):
    whole, sparse, capacity = request.param
    stem = tmp_path_factory.mktemp("block") / "block"
    return [
        compiled(stem.with_name(f"known{known}"), WHOLE=whole, SPARSE=sparse, REUSE=known) for known in (0, 1)
    ], capacity


@pytest.mark.parametrize(
    ("entries", "longest", "log", "same"), [(3, 0, 2, 0), (12, 150, 4, 0), (70, 0, 5, 0), (2, 0, 2, 1), (0, 3, 2, 0)]
)
def test_a_row_has_the_columns_of_its_products_and_sums_in_the_order_of_k(fill, entries, longest, log, same):
    """Rows of B side by side, alone and in pieces, one much longer than others, and a column that all have."""
    rng = np.random.default_rng(entries)
    A = sp.random_array((2, 120), density=0.3, rng=rng, format="csr")
    B = sp.random_array((120, 900), density=entries / 900, rng=rng, format="lil")
    B[::9] = 0
    if same:
        B[:, 31 * 17] = 1.0
    if longest:
        B[A.indices[4], :longest] = 1.0
    B = sp.csr_array(B)
    for one in (A, B):
        one.sort_indices()
        one.data = rng.standard_normal(one.nnz)
    C = sp.csr_array(abs(A) @ abs(B))
    C.sort_indices()
    expected = np.zeros(C.nnz)
    for row in range(2):
        sums = np.zeros(900)
        for p in range(A.indptr[row], A.indptr[row + 1]):
            part = slice(B.indptr[A.indices[p]], B.indptr[A.indices[p] + 1])
            for j, b in zip(B.indices[part], B.data[part], strict=True):
                sums[j] = fma(A.data[p], b, sums[j])
        expected[C.indptr[row] : C.indptr[row + 1]] = sums[C.indices[C.indptr[row] : C.indptr[row + 1]]]
    firsts = C.indices[C.indptr[:-1]]
    spans = C.indices[C.indptr[1:] - 1] - firsts + 1
    indices, data = np.full(C.nnz, -1, np.int32), np.full(C.nnz, np.nan)
    arrays = (
        np.array([1, 0]), A.indptr, A.indices, A.data, B.indptr, B.indices, B.data, firsts, spans, C.indptr,
    )  # fmt: skip
    arrays = [one if one.dtype == np.float64 else one.astype(np.int32) for one in arrays]
    runs, capacity = fill
    # Where a row has parts: one block after another's part, as one block that has all of them, with lists of the
    # entries of A that meet a part, which have room or not.
    many = -(-int(spans.max()) // 32 // capacity) + 1
    ways = [(1, 0), (many, 0), (many, 120), (many, 2)] if capacity == 5 else [(1, 0)]
    for run, (parts, listed) in itertools.product(runs, ways):
        data[:], states = np.nan, np.zeros(1 + 2 * parts, np.int32)
        given = [ctypes.c_void_p(one.ctypes.data) for one in (*arrays, indices, data)]
        run(2, log, capacity, *given, parts, ctypes.c_void_p(states.ctypes.data), listed)
        np.testing.assert_array_equal(indices, C.indices)
        np.testing.assert_array_equal(data, expected)


def fma(a, b, c):
    """Return a b + c, rounded once."""
    from fractions import Fraction

    return float(Fraction(a) * Fraction(b) + Fraction(c))
