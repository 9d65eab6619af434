"""Turning a matrix and mirroring a triangle as on a GPU: the kernels compiled for the host, NumPy in CuPy's place."""

import ctypes
import sys
from importlib.resources import files
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse.types import Factor, of_values

from ...on_host import host_library

SHIMS = """
#include <cmath>
#define __device__
#define __global__ static
#define __launch_bounds__(threads)
#define __forceinline__ inline
using u32 = unsigned int;
using u64 = unsigned long long;
struct Place { unsigned x; };
static Place blockIdx, blockDim, threadIdx, gridDim;
static inline int atomicAdd(int* at, int more) { const int before = *at; *at += more; return before; }
static inline void __syncwarp(u32) {}
static inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
template <class T> T __shfl_sync(u32, T value, int, int) { return value; }
constexpr u32 ALL = ~0u;
"""
POINTER = """
struct any {
    void* p;
    explicit any(void* q) : p(q) {}
    template <class T> operator T*() const { return (T*)p; }
};"""
#: The parameters of the kernels, one of which runs thread after thread, the last first.
KERNELS = {
    "count_columns": "iui***",
    "list_columns": "iui****",
    "order_columns": "i****",
    "mirror": "ii********",
    "place_rows": "ili****",
}
C_TYPES = {"i": "int", "u": "u32", "l": "long long", "*": "void*"}


def calls():
    for name, kinds in KERNELS.items():
        listed = ", ".join(f"{C_TYPES[kind]} x{i}" for i, kind in enumerate(kinds))
        passed = ", ".join(f"any(x{i})" if kind == "*" else f"x{i}" for i, kind in enumerate(kinds))
        yield f"""
extern "C" void run_{name}(int blocks, int threads, {listed}) {{
    gridDim.x = blocks, blockDim.x = threads;
    for (blockIdx.x = blocks; blockIdx.x-- > 0;)
        for (threadIdx.x = threads; threadIdx.x-- > 0;) {name}({passed});
}}"""


@pytest.fixture(scope="module", params=["double", "Complex<double>"])
def compiled(request, tmp_path_factory):
    folder = files("spectile.tsparse.cuda")
    turn, dense = (
        (folder / name).read_text().replace('#include "shared.cuh"', "").replace('extern "C" {', "namespace {")
        for name in ("turn.cu", "dense.cu")
    )
    dense = dense.partition("// The value of the lane")[0] + "}\nnamespace {\n" + dense[dense.index("// 2^log lanes") :]
    text = (
        SHIMS,
        (folder / "value.cuh").read_text(),
        f"using VALUE = {request.param};",
        turn,
        dense,
        POINTER,
        *calls(),
    )
    stem = tmp_path_factory.mktemp("turn") / "turn"
    library = host_library(
        stem, "\n".join(text), "-ffp-contract=off", "-Wno-unused-function", "-std=c++17", f"-I{folder}"
    )
    return np.dtype("f8" if request.param == "double" else "c16"), library


@pytest.fixture
def turn(compiled, monkeypatch):
    pytest.importorskip("cupy", reason="CuPy is not installed: install the extra cuda12 or cuda13")
    from spectile.tsparse.cuda import dense, turn

    dtype, library = compiled

    def kernel(unit, name):
        def launch(shape, *arguments):
            passed = [ctypes.c_void_p(x.ctypes.data) if isinstance(x, np.ndarray) else x.item() for x in arguments]
            kinds = {"i": ctypes.c_int, "u": ctypes.c_uint, "l": ctypes.c_longlong}
            passed = [kinds[k](x) if k != "*" else x for k, x in zip(KERNELS[name], passed, strict=True)]
            getattr(library, f"run_{name}")(shape.grid[0], shape.threads, *passed)

        return launch

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(**{**np.__dict__, "asnumpy": np.asarray}))
    for module in (turn, dense):
        monkeypatch.setattr(module, "kernel", kernel)
    monkeypatch.setattr(turn.memory, "free_bytes", lambda: 2**40)
    monkeypatch.setattr(turn, "_WORTH_MIRRORING", 0)
    monkeypatch.setattr(turn, "_WORTH_AN_ENTRY", 0)

    def count_rows(A, B, first, stop, value, counters=None):
        """Count rows of factors as kernels read them: row k of B is at two entries of the row pointer."""
        dense_c = np.zeros((stop - first, B.shape[1]), dtype)
        met = np.zeros(dense_c.shape, bool)
        products = 0
        A = sp.csr_array((A.data, A.indices, A.indptr), shape=A.shape)[first:stop]
        for i in range(stop - first):
            for p in range(A.indptr[i], A.indptr[i + 1]):
                k = A.indices[p]
                for q in range(B.indptr[k], B.indptr[k + 1]):
                    products += 1
                    met[i, B.indices[q]] = True
                    dense_c[i, B.indices[q]] += A.data[p] * B.data[q]
        indptr = np.append(0, np.cumsum(met.sum(1))).astype(np.int32)
        return SimpleNamespace(indptr=indptr, entries=int(met.sum()), products=products, made=(dense_c, met))

    def fill_rows(A, B, phase, indices, data):
        C, met = phase.made
        indices[:], data[:] = np.nonzero(met)[1], C[met]

    for module in (turn, dense):
        monkeypatch.setattr(module, "count_rows", count_rows)
        monkeypatch.setattr(module, "fill_rows", fill_rows)
    return SimpleNamespace(module=turn, dense=dense, dtype=dtype)


def random(m, n, dtype, seed=1):
    A = sp.random_array((m, n), density=0.15, rng=np.random.default_rng(seed), format="csr")
    A.data = np.round(9 * A.data + 1).astype(dtype) * (1 if dtype == np.float64 else 1 + 2j)
    A.sort_indices()
    return A


@pytest.mark.parametrize("longest", [2048, 0])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (1, 5), (5, 1), (3, 0), (0, 3)])
def test_columns_are_in_order(turn, shape, strict, longest, monkeypatch):
    monkeypatch.setattr(turn.module, "_LONGEST", longest)
    rng = np.random.default_rng(1)
    A = random(*shape, turn.dtype)
    rows, columns = np.repeat(np.arange(shape[0]), np.diff(A.indptr)), A.indices
    indptr, indices, entries = A.indptr, columns, np.arange(A.nnz)
    if A.nnz and not strict:  # in chance order, and one entry twice
        order = np.lexsort((rng.random(A.nnz + 1), np.append(rows, rows[-1])))
        rows, indices = np.append(rows, rows[-1])[order], np.append(columns, columns[-1])[order]
        indptr, entries = np.searchsorted(rows, np.arange(shape[0] + 1)), np.arange(A.nnz + 1)
    kept = entries[rows != indices] if strict else entries
    expected = kept[np.lexsort((kept, rows[kept], indices[kept]))]
    found = turn.module.turned(indptr.astype(np.int32), indices.astype(np.int32), shape[1], strict)
    starts = np.append(0, np.cumsum(np.bincount(indices[kept], minlength=shape[1])[: shape[1]]))
    for one, known in zip(found, (starts, rows[expected], expected), strict=True):
        assert one.dtype == np.int32
        np.testing.assert_array_equal(one, known)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_half_of_a_product_with_the_transpose_is_the_whole(turn, first, adjoint):
    A = random(40, 30, turn.dtype)
    other = A.conj().T if adjoint else A.T
    left, right = (A, other) if first else (other, A)
    expected = sp.csr_array(left @ right)
    expected.sort_indices()
    base = Factor(A.shape, A.indptr.astype(np.int32), A.indices.astype(np.int32), A.data)
    factors = turn.module.with_transpose(base, first, adjoint)
    indptr, indices, data = turn.module.multiply(*factors, of_values(turn.dtype), adjoint)
    for found, known in ((indptr, expected.indptr), (indices, expected.indices), (data, expected.data)):
        np.testing.assert_array_equal(found, known)


@pytest.mark.parametrize("fitting", [1, 60, 10**6])
def test_a_dense_product(turn, fitting, monkeypatch):
    """Of all rows, or of as many at a time as fit."""
    monkeypatch.setattr(turn.dense, "_ALWAYS", 0)
    monkeypatch.setattr(turn.dense, "_fitting", lambda dtype: fitting)
    A, B = random(20, 30, turn.dtype), random(30, 25, turn.dtype, 2)
    factors = (Factor(x.shape, x.indptr.astype(np.int32), x.indices.astype(np.int32), x.data) for x in (A, B))
    np.testing.assert_array_equal(turn.dense.multiply(*factors, turn.dtype, None), (A @ B).toarray())
