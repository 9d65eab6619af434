"""Hub rows as on a GPU: their kernels compiled for the host, NumPy in CuPy's place, and the choice of their way."""

import ctypes
import sys
from dataclasses import replace
from importlib.resources import files
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.core.choice import cheapest
from spectile.core.devices import TABLE
from spectile.tsparse.cuda import bins, choose
from spectile.tsparse.cuda.shared import HEAD
from spectile.tsparse.types import Factor

from ...heads import head_of
from ...on_host import host_library

RUN, THREADS = 4, 36  # products that one thread sums, and threads of a block that sums more: four of them read
SHIMS = """
#include <cmath>
#include <atomic>
#include <pthread.h>
#include <thread>
#include <vector>
#define __device__
#define __global__ static
#define __launch_bounds__(threads)
#define __forceinline__ inline
#define __shared__ static
using u32 = unsigned int;
using u64 = unsigned long long;
struct Place { unsigned x; };
static Place blockDim, gridDim;
static thread_local Place blockIdx, threadIdx;
static pthread_barrier_t barrier;
static std::atomic<int> counted;
static int __syncthreads_count(bool mine) {
    counted += mine;
    pthread_barrier_wait(&barrier);
    const int all = counted;
    pthread_barrier_wait(&barrier);
    counted = 0;
    pthread_barrier_wait(&barrier);
    return all;
}
static inline int atomicAdd(int* at, int more) { const int before = *at; *at += more; return before; }
static inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
template <class T> T __shfl_sync(u32, T value, int, int) { return value; }
struct any {
    void* p;
    explicit any(void* q) : p(q) {}
    template <class T> operator T*() const { return (T*)p; }
};
"""
#: The parameters of the kernels: one thread runs after the other, the last first, but those of a block that wait.
KERNELS = {
    "hub_starts": "i****",
    "hub_lengths": "ii******",
    "hub_products": "iiii********",
    "hub_heads": "i**",
    "hub_entries": "i*****",
    "hub_values": "ii" + 15 * "*",
    "hub_long": "ii" + 14 * "*",
}


def calls():
    for name, kinds in KERNELS.items():
        listed = ", ".join(f"{'int' if kind == 'i' else 'void*'} x{i}" for i, kind in enumerate(kinds))
        passed = ", ".join(f"any(x{i})" if kind == "*" else f"x{i}" for i, kind in enumerate(kinds))
        after_each_other = f"for (threadIdx.x = threads; threadIdx.x-- > 0;) {name}({passed});"
        together = f"""{{
            std::vector<std::thread> all;
            for (unsigned t = 0; t < threads; ++t)
                all.emplace_back([=, block = blockIdx.x] {{ blockIdx.x = block, threadIdx.x = t; {name}({passed}); }});
            for (auto& one : all) one.join();
        }}"""
        yield f"""
extern "C" void run_{name}(unsigned blocks, unsigned threads, {listed}) {{
    gridDim.x = blocks, blockDim.x = threads;
    pthread_barrier_init(&barrier, nullptr, threads);
    for (blockIdx.x = blocks; blockIdx.x-- > 0;) {together if name == "hub_long" else after_each_other}
    pthread_barrier_destroy(&barrier);
}}"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = files("spectile.tsparse.cuda")
    kernels = (folder / "rows/hub.cu").read_text().replace('#include "shared.cuh"', "")
    text = (
        SHIMS,
        (folder / "value.cuh").read_text(),
        f"using VALUE = Complex<double>; constexpr int HUB_RUN = {RUN}, HUB_THREADS = {THREADS};",
        kernels.replace('extern "C" {', "namespace {"),
        *calls(),
    )
    stem = tmp_path_factory.mktemp("hubs") / "hubs"
    flags = "-ffp-contract=off", "-Wno-unused-function", "-std=c++17", "-pthread", f"-I{folder}"
    return host_library(stem, "\n".join(text), *flags)


@pytest.fixture
def hub_rows(library, monkeypatch):
    """Return `HubRows` of the host, whose blocks come in descending order and whose arrays begin as garbage."""
    pytest.importorskip("cupy", reason="CuPy is not installed: install the extra cuda12 or cuda13")
    from spectile.tsparse.cuda.rows import hubs

    def kernel(unit, name):
        def launch(shape, *arguments):
            passed = [
                ctypes.c_void_p(x.ctypes.data if isinstance(x, np.ndarray) else int(x)) if kind == "*" else int(x)
                for kind, x in zip(KERNELS[name], arguments, strict=True)
            ]
            getattr(library, f"run_{name}")(shape.grid[0], shape.threads, *passed)

        return launch

    def empty(size, dtype):
        return np.frombuffer(bytearray(b"\xa5" * (int(size) * np.dtype(dtype).itemsize)), dtype)

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(empty=empty, zeros=np.zeros, cumsum=np.cumsum))
    monkeypatch.setattr(hubs, "kernel", kernel)
    monkeypatch.setattr(hubs, "describe", lambda: TABLE["H200"])
    monkeypatch.setattr(choose, "HUB_RUN", RUN)
    monkeypatch.setattr(choose, "HUB_THREADS", THREADS)
    return hubs.HubRows


def factor(A):
    return Factor(A.shape, A.indptr.astype(np.int32), A.indices.astype(np.int32), A.data)


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("columns", [1, 40, 2000])
def test_hub_rows_have_the_columns_and_sums_of_the_product(hub_rows, columns, first):
    """Long sums and short ones, empty rows of B, and rows that are counted from another row on."""
    rng = np.random.default_rng(columns + first)
    A = sp.random_array((12, 90), density=0.4, rng=rng, format="csr")
    B = sp.random_array((90, columns), density=min(1, 12 / columns), rng=rng, format="lil")
    B[::7] = 0
    if columns > 1:
        B[::3, 1] = 1.5  # the products of one column are more than a block reads at a time
    B = sp.csr_array(B)
    for one in (A, B):
        one.sort_indices()
        one.data = rng.integers(1, 99, one.nnz) + 1j * rng.integers(-9, 9, one.nnz)
    exact = sp.csr_array(A[first:] @ B)
    exact.sort_indices()
    listed = np.array([5, 0, 7], np.int32)
    lengths = np.diff(A.indptr)[first:]
    products = np.array([np.diff(B.indptr)[A.indices[A.indptr[r] : A.indptr[r + 1]]].sum() for r in range(first, 12)])
    counts = np.full(12 - first, 77, np.int32)
    sizes = len(listed), int(lengths[listed].sum()), int(products[listed].sum())
    hubs = hub_rows(factor(A), factor(B), first, sizes, listed.ctypes.data, counts.ctypes.data)
    for row in range(12 - first):
        assert counts[row] == (exact.indptr[row + 1] - exact.indptr[row] if row in listed else 77)
    indptr = exact.indptr.astype(np.int32)
    for _ in range(2):
        indices, data = np.full(exact.nnz, -1, np.int32), np.full(exact.nnz, np.nan + 0j)
        hubs.fill(factor(A), factor(B), first, (indptr, indices, data))
        for row in range(12 - first):
            part = slice(indptr[row], indptr[row + 1])
            np.testing.assert_array_equal(indices[part], exact.indices[part] if row in listed else -1)
            np.testing.assert_array_equal(data[part], exact.data[part] if row in listed else np.nan + 0j)


def ways(rows, entries, products, all_products, columns=10**6, room=2**34, launch=3e-6):
    place = bins.SYMBOLIC_PLACES["HUB"]
    words = {f"SYMBOLIC+{place}": rows, "HUB_ENTRIES": rows * entries}
    for name, value in (("HUB_PRODUCTS", rows * products), ("PRODUCTS", all_products)):
        words |= {name: np.uint32(value % 2**32).view(np.int32), f"{name}+1": value // 2**32}
    words["MOST_STEPS"] = choose.row_steps(products, entries)
    head = head_of(**words)
    assert head.hubs == rows and head[HEAD["HUB_ENTRIES"]] == rows * entries
    device = replace(TABLE["H200"], launch_seconds=launch)
    return choose.hub_ways(head, columns, 8, device, room and (lambda: room))


def test_products_are_sorted_where_a_block_would_be_waited_for():
    by_blocks, by_sort = (one.kernel for one in ways(1, 1000, 1000, 2000))
    assert cheapest("tsparse", ways(1, 200_000, 800_000, 10**7)).kernel == by_sort
    # Many such rows keep all multiprocessors busy; few steps take less than a sort; and others take longer anyway.
    assert cheapest("tsparse", ways(1000, 2000, 10**6, 2 * 10**9)).kernel == by_blocks
    assert cheapest("tsparse", ways(2, 1500, 20_000, 10**6)).kernel == by_blocks
    assert cheapest("tsparse", ways(2, 20_000, 200_000, 2 * 10**9)).kernel == by_blocks
    # A host that takes long for its launches is slower at the sort, which has more of them.
    by_launch = [cheapest("tsparse", ways(1, 80_000, 200_000, 10**6, launch=each)).kernel for each in (3e-6, 12e-6)]
    assert by_launch == [by_sort, by_blocks]


@pytest.mark.parametrize(
    ("length", "products", "measured"),
    [(5_848, 142_768, 0.88e-3), (79_806, 818_035, 8.4e-3), (38_064, 190_315, 2.16e-3), (59_112, 535_156, 5.4e-3)],
)
def test_a_block_takes_what_was_measured(length, products, measured):
    """Hub rows of long and of short rows of B, made by one block of an H200, within a factor of two.

    Blocks that share the row take less, but as long as the row's entries of A alone.
    """
    alone = choose._STEP_S * choose.row_steps(products, length)
    assert 0.5 < alone / measured < 2
    in_blocks, _ = ways(1, length, products, products)
    assert choose._STEP_S * choose.row_steps(0, length) < in_blocks.seconds < alone


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"columns": 2**31 - 2**20, "rows": 3}, "no number of 32 bits"),
        ({"products": 2**31 - 2**9}, "beyond 32 bits"),
        ({"products": 10**8, "room": 10**6}, "bytes, of 1000000"),
        ({"room": None}, "memory is limited"),
    ],
)
def test_products_that_do_not_fit_are_not_sorted(more, why):
    given = {"rows": 1, "entries": 10**6, "products": 10**7, "all_products": 2**31, **more}
    one, other = ways(**given)
    assert one.seconds > 0 and other.seconds is None and why in other.why
