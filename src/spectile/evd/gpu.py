"""The two-stage eigensolver on CUDA: cuBLAS for the products, our kernels for panels, chasing, T and back.

Every matrix is column-major and addressed by pointer and leading dimension, because the products run on sub-matrices.
Nothing synchronises except where the host needs d and e, or the largest entry.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectile.gpu import device
from spectile.gpu.compile import Unit

ARCHS = ("sm_80", "sm_90a", "sm_100")
PANEL_THREADS = 256  # rows of a block in the panel kernel
STURM_THREADS = 64


def _stage_unit(name: str, bandwidth: int) -> Unit:
    """Panels, chasing and helpers for one scalar type and one bandwidth."""
    dtype = np.dtype(name)
    real_bytes = dtype.itemsize // (2 if dtype.kind == "c" else 1)
    return Unit(
        "evd",
        ("scalar.cu", "sync.cu", "matrix.cu", "panel.cu", "chasing.cu", "back.cu"),
        # The panel of 64 columns fills the register file; sm_100's assembler takes minutes over it.
        archs=ARCHS if bandwidth < 64 else ("sm_80", "sm_90a"),
        defines={
            "REAL": "double" if real_bytes == 8 else "float",
            "REAL_BYTES": str(real_bytes),
            "COMPLEX": "1" if dtype.kind == "c" else "0",
            "B": str(bandwidth),
            "PANEL_THREADS": str(PANEL_THREADS),
            "CHASE_THREADS": str(chase_threads(bandwidth)),
        },
    )


def chase_threads(bandwidth: int) -> int:
    """Threads of a chasing block: four columns a warp for b = 16, eight for more."""
    return {16: 128, 32: 128, 64: 256}[bandwidth]


# A panel row lives in the registers of one thread: at most 512 bytes.
BANDWIDTHS = {"float64": (16, 32, 64), "float32": (32,), "complex128": (32,), "complex64": (32,)}
STAGES = {(name, b): _stage_unit(name, b) for name, widths in BANDWIDTHS.items() for b in widths}
STURM = {
    lanes: Unit("evd", ("sturm.cu",), archs=ARCHS, defines={"LANES": str(lanes), "STURM_THREADS": str(STURM_THREADS)})
    for lanes in (1, 4, 16)
}
DIVIDE = Unit("evd", ("divide.cu",), archs=ARCHS)
# Sweeps of float64 reflectors on the tensor cores; the other types go through cuBLAS's batches.
SWEEPS = {
    b: Unit("evd", ("tensor.cu", "sweeps.cu"), archs=ARCHS if b == 32 else ("sm_90a",), defines={"B": str(b)})
    for b in (32, 64)
}
UNITS = (*SWEEPS.values(), *STAGES.values(), *STURM.values(), DIVIDE)

# Eigenvalues alone and with vectors are taken from the vendor below these orders (docs/performance/evd.md).
CROSSOVER_VALUES = 3000
CROSSOVER_VECTORS = 3000


@dataclass(frozen=True)
class Matrix:
    """A column-major matrix in device memory: where element (0, 0) is, the leading dimension, and what owns it."""

    pointer: int
    ld: int
    itemsize: int
    owner: Any

    def at(self, row: int, column: int) -> int:
        """Return the address of an element."""
        return self.pointer + (row + column * self.ld) * self.itemsize


def empty_matrix(rows: int, columns: int, dtype: Any) -> Matrix:
    """Allocate, with a leading dimension that keeps columns 128-byte aligned."""
    import cupy

    itemsize = np.dtype(dtype).itemsize
    step = 128 // itemsize
    ld = max(step, -(-rows // step) * step)
    owner = cupy.empty(ld * max(columns, 1), dtype)
    return Matrix(owner.data.ptr, ld, itemsize, owner)


def zero_matrix(rows: int, columns: int, dtype: Any) -> Matrix:
    """As `empty_matrix`, filled with zeros, padding included."""
    matrix = empty_matrix(rows, columns, dtype)
    matrix.owner.fill(0)
    return matrix


def as_array(matrix: Matrix, rows: int, columns: int) -> Any:
    """Return the leading part as a CuPy array."""
    import cupy

    strides = (matrix.itemsize, matrix.ld * matrix.itemsize)
    return cupy.ndarray((rows, columns), matrix.owner.dtype, memptr=matrix.owner.data, strides=strides)


class Blas:
    """cuBLAS products on pointers, on the current stream."""

    def __init__(self, dtype: Any) -> None:
        import cupy
        from cupy.cuda.device import get_cublas_handle
        from cupy_backends.cuda.libs import cublas

        self.dtype = np.dtype(dtype)
        prefix = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}[self.dtype.name]
        self._gemm = getattr(cublas, prefix + "gemm")
        self._batched = getattr(cublas, prefix + "gemmStridedBatched")
        self._listed = getattr(cublas, prefix + "gemmBatched")
        self._handle = get_cublas_handle()
        cublas.setStream(self._handle, cupy.cuda.get_current_stream().ptr)
        self._op = {"N": cublas.CUBLAS_OP_N, "C": cublas.CUBLAS_OP_C if self.dtype.kind == "c" else cublas.CUBLAS_OP_T}
        self._scalars: dict[float, Any] = {}

    def _scalar(self, value: float) -> int:
        # cuBLAS reads the factors on the host during the call; the arrays stay alive here.
        if value not in self._scalars:
            self._scalars[value] = np.array(value, self.dtype)
        return self._scalars[value].ctypes.data

    def gemm(
        self, m: int, n: int, k: int, alpha: float, a: int, lda: int, b: int, ldb: int, beta: float, c: int, ldc: int,
        ops: str = "NN",
    ) -> None:  # fmt: skip
        """C = alpha op(A) op(B) + beta C; "C" in `ops` is the conjugate transpose."""
        if m == 0 or n == 0 or (k == 0 and beta == 1):
            return
        alpha_pointer, beta_pointer = self._scalar(alpha), self._scalar(beta)
        self._gemm(
            *(self._handle, self._op[ops[0]], self._op[ops[1]], m, n, k),
            *(alpha_pointer, a, lda, b, ldb, beta_pointer, c, ldc),
        )

    def batched(
        self, m: int, n: int, k: int, alpha: float, a: int, lda: int, stride_a: int, b: int, ldb: int, stride_b: int,
        beta: float, c: int, ldc: int, stride_c: int, count: int, ops: str = "NN",
    ) -> None:  # fmt: skip
        """`count` products with constant strides, in elements."""
        if m == 0 or n == 0 or count <= 0:
            return
        alpha_pointer, beta_pointer = self._scalar(alpha), self._scalar(beta)
        self._batched(
            *(self._handle, self._op[ops[0]], self._op[ops[1]], m, n, k),
            *(alpha_pointer, a, lda, stride_a, b, ldb, stride_b, beta_pointer, c, ldc, stride_c, count),
        )

    def listed(
        self, m: int, n: int, k: int, alpha: float, a: int, lda: int, b: int, ldb: int, beta: float, c: int, ldc: int,
        count: int, ops: str = "NN",
    ) -> None:  # fmt: skip
        """`count` products; `a`, `b` and `c` are device addresses of lists of addresses."""
        if m == 0 or n == 0 or count <= 0:
            return
        alpha_pointer, beta_pointer = self._scalar(alpha), self._scalar(beta)
        self._listed(
            *(self._handle, self._op[ops[0]], self._op[ops[1]], m, n, k),
            *(alpha_pointer, a, lda, b, ldb, beta_pointer, c, ldc, count),
        )


def add_lower(
    blas: Blas, n: int, k: int, alpha: float, v: int, ldv: int, x: int, ldx: int, c: Matrix, row: int, block: int
) -> None:
    """Add alpha V Xᴴ, known to be Hermitian, to the lower triangle of C[row:, row:] (Algorithm 3 in place).

    One batch of diagonal blocks, then batches of ever larger square blocks below the diagonal; with V = [A B] and
    X = [B A] this is the rank-2k update A Bᴴ + B Aᴴ.
    """
    size = c.itemsize
    whole, rest = divmod(n, block)
    step = block * (1 + c.ld)
    blas.batched(
        *(block, block, k, alpha, v, ldv, block, x, ldx, block, 1.0, c.at(row, row), c.ld, step, whole), ops="NC"
    )
    if rest:
        start = whole * block
        end = c.at(row + start, row + start)
        blas.gemm(rest, rest, k, alpha, v + start * size, ldv, x + start * size, ldx, 1.0, end, c.ld, ops="NC")
    while block < n:
        whole = n // (2 * block)
        step = 2 * block
        below = c.at(row + block, row)
        blas.batched(
            *(block, block, k, alpha, v + block * size, ldv, step, x, ldx, step),
            *(1.0, below, c.ld, step * (1 + c.ld), whole),
            ops="NC",
        )
        start = whole * step
        rows = n - start - block
        if rows > 0:
            end = c.at(row + start + block, row + start)
            left, right = v + (start + block) * size, x + start * size
            blas.gemm(rows, block, k, alpha, left, ldv, right, ldx, 1.0, end, c.ld, ops="NC")
        block *= 2


SYR2K_BLOCK = 512


def syr2k(a: Any, b: Any, c: Any, *, alpha: float = 1.0, block: int = SYR2K_BLOCK) -> None:
    """Add alpha (A Bᴴ + B Aᴴ) to the lower triangle of C in place, by growing batched products (Algorithm 3).

    Parameters
    ----------
    a, b : cupy.ndarray, shape (n, k), column-major
    c : cupy.ndarray, shape (n, n), column-major
        Overwritten; the diagonal blocks are written whole.
    alpha : float
    block : int
        Size of the diagonal blocks.
    """
    n, k = a.shape
    blas = Blas(c.dtype)
    target = Matrix(c.data.ptr, c.strides[1] // c.itemsize, c.itemsize, c)
    pointers = [(x.data.ptr, x.strides[1] // x.itemsize) for x in (a, b)]
    for left, right in (pointers, pointers[::-1]):
        add_lower(blas, n, k, alpha, *left, *right, target, 0, block)


_KERNELS: dict[tuple[int, str, int, int], Any] = {}  # hashing a Unit takes longer than a launch


def _launch(unit: Unit, name: str, grid: Any, threads: int, arguments: tuple[Any, ...], shared_bytes: int = 0) -> None:
    import cupy

    key = (id(unit), name, shared_bytes, cupy.cuda.runtime.getDevice())
    kernel = _KERNELS.get(key)
    if kernel is None:
        kernel = _KERNELS[key] = unit.function(name, shared_bytes)
    kernel(grid if isinstance(grid, tuple) else (grid,), (threads,), arguments, shared_mem=shared_bytes)


@dataclass(frozen=True)
class Panels:
    """Q1: the reflectors below the band of `a`, and T of each panel."""

    a: Matrix
    t: Any
    bandwidth: int
    n: int


def panel_bandwidth(n: int, dtype: Any, wanted: int) -> int:
    """Return the widest supported bandwidth, up to `wanted`, that a panel of n rows allows on the current device."""
    rows = PANEL_THREADS * device.describe().multiprocessors
    if n > rows:
        raise ValueError(f"order {n:,} is beyond the {rows:,} rows that the panel kernel holds on this device")
    name, family = np.dtype(dtype).name, f"sm_{device.describe().compute_capability[0]}"
    return max(b for b in BANDWIDTHS[name] if b <= wanted and any(a.startswith(family) for a in STAGES[name, b].archs))


def band_reduction(a: Matrix, n: int, *, bandwidth: int, block: int, syr2k_block: int = SYR2K_BLOCK) -> Panels:
    """Reduce a Hermitian matrix, both triangles given, to a band by detached band reduction (Algorithm 1).

    Parameters
    ----------
    a : Matrix
        n x n; overwritten: band and, below it, the reflectors.
    n : int
    bandwidth, block : int
        b and nb, a multiple of b.
    syr2k_block : int
        Diagonal blocks of the trailing update.
    """
    import cupy

    dtype = a.owner.dtype
    size, b = a.itemsize, bandwidth
    unit = STAGES[dtype.name, b]
    parts = 2 if dtype.kind == "c" else 1
    warps = PANEL_THREADS // 32
    panel_shared = 8 * warps * b * parts + size * (3 * b + 2 * b * b)
    finish_shared = (2 * b * b + 64 * b) * size
    blas = Blas(dtype)
    block = max(b, min(block, -(-n // b) * b))
    v, x = empty_matrix(n, 2 * block, dtype), empty_matrix(n, 2 * block, dtype)
    s, gram, factor = (empty_matrix(rows, b, dtype) for rows in (2 * block, b, b))
    panels = max(-(-(n - b) // b), 0)
    t = cupy.zeros((max(panels, 1), b * b), dtype)
    grid_max = -(-n // PANEL_THREADS)
    lines = cupy.zeros(2 * (grid_max + 1) * b * parts * 4, np.uint32)
    epoch = 0
    pointer, int64, int32 = np.uintp, np.int64, np.int32
    for i in range(0, n - b, block):
        p = 0  # columns of V and X in use
        for j in range(i, min(i + block, n), b):
            local = j - i
            if p:
                rows, columns = n - j, min(b, n - j)
                blas.gemm(
                    *(rows, columns, p, -1.0, v.at(local, 0), v.ld, x.at(local, 0), x.ld, 1.0, a.at(j, j), a.ld),
                    ops="NC",
                )
            top = j + b
            m = n - top
            if m <= 0:
                break
            local += b
            y, z = x.at(local, p + b), x.at(local, p)
            grid = -(-m // PANEL_THREADS)
            t_panel = t.data.ptr + (j // b) * b * b * size
            _launch(
                unit,
                "panel_qr",
                grid,
                PANEL_THREADS,
                (
                    *(pointer(a.at(top, j)), int64(a.ld), int32(m), pointer(v.at(local, p)), pointer(y), int64(v.ld)),
                    *(pointer(t_panel), pointer(lines.data.ptr), np.uint32(epoch)),
                ),
                panel_shared,
            )
            epoch += b + 1
            # A Y at memory speed, next to X; one product then gives S = Xᴴ Y and (A Y)ᴴ Y; and the pending updates
            # of the block's panels before this one are A Y − V S.
            blas.gemm(m, b, m, 1.0, a.at(top, top), a.ld, y, x.ld, 0.0, z, x.ld)
            blas.gemm(p + b, b, m, 1.0, x.at(local, 0), x.ld, y, x.ld, 0.0, s.pointer, s.ld, ops="CN")
            _launch(unit, "correct_gram", b, 256, (pointer(s.pointer), int64(s.ld), int32(p), pointer(gram.pointer)))
            arguments = (pointer(gram.pointer), pointer(t_panel), pointer(factor.pointer))
            _launch(unit, "small_factor", b, 256, arguments, size * (256 + b * (b + 1)))
            blas.gemm(m, b, p, -1.0, v.at(local, 0), v.ld, s.pointer, s.ld, 1.0, z, x.ld)
            _launch(
                unit,
                "finish_z",
                -(-m // 32),
                256,
                (
                    *(pointer(z), pointer(y), int64(x.ld), int32(m), pointer(t_panel), pointer(factor.pointer)),
                    pointer(v.at(local, p + b)),
                ),
                finish_shared,
            )
            p += 2 * b
        rest = i + block
        m = n - rest
        if m > 0:
            add_lower(blas, m, p, -1.0, v.at(block, 0), v.ld, x.at(block, 0), x.ld, a, rest, syr2k_block)
            mirror(unit, a, rest, m, from_upper=False, factor=1.0)
    return Panels(a, t, b, n)


def mirror(unit: Unit, a: Matrix, start: int, n: int, *, from_upper: bool, factor: float) -> None:
    """Fill the other triangle of A[start:start+n, start:start+n] from one triangle times `factor`."""
    tiles = -(-n // 32)
    real = np.empty(0, a.owner.dtype).real.dtype.type
    arguments = (np.uintp(a.at(start, start)), np.int64(a.ld), np.int32(n), np.int32(from_upper), real(factor))
    _launch(unit, "mirror", (tiles, tiles), 256, arguments, 32 * 33 * a.itemsize)


def extract_band(panels: Panels) -> Any:
    """Return the band as ``band[j, i - j]`` with room for the bulges, shape (n + 2, 2 b)."""
    import cupy

    n, b = panels.n, panels.bandwidth
    band = cupy.zeros((n + 2, 2 * b), panels.a.owner.dtype)
    arguments = (np.uintp(panels.a.pointer), np.int64(panels.a.ld), np.int32(n), np.int32(b), band)
    _launch(STAGES[band.dtype.name, b], "extract_band", min(n, 2048), 256, arguments)
    return band


def chase_band(
    band: Any, n: int, bandwidth: int, reflectors: Matrix | None, *, grid: int | None = None
) -> tuple[Any, Any]:
    """Reduce a band to tridiagonal form by bulge chasing (Algorithm 2).

    Parameters
    ----------
    band : cupy.ndarray, shape (n + 2, 2 b)
        ``band[j, i - j]``; overwritten.
    n, bandwidth : int
    reflectors : Matrix, optional
        n x n; its part above the diagonal receives the reflectors, reversed: element i of sweep s at
        (n − 1 − i, n − 1 − s), τ in place of each leading 1.
    grid : int, optional
        Blocks; by default as many as there can be sweeps under way.

    Returns
    -------
    d, e : cupy.ndarray of float64, shape (n,)
        Diagonal and subdiagonal (the last element of e is not set).
    """
    import cupy

    b = bandwidth
    unit = STAGES[band.dtype.name, b]
    threads = chase_threads(b)
    progress = cupy.zeros(n + 2, np.int32)
    shared = band.itemsize * (b * (b + 1) + threads // 32 * b + b) + 16
    if reflectors is None:
        vectors = (np.uintp(0), np.int64(0), np.int64(0))
    else:
        vectors = (np.uintp(reflectors.at(n - 1, n - 1)), np.int64(-reflectors.ld), np.int64(-1))
    ticket = np.uintp(progress.data.ptr + 4 * (n + 1))
    _launch(unit, "chase", grid or n // (2 * b) + 2, threads, (band, np.int32(n), progress, ticket, *vectors), shared)
    d, e = cupy.empty(n, np.float64), cupy.empty(n, np.float64)
    _launch(unit, "tridiagonal_of_band", -(-n // 256), 256, (band, np.int32(n), np.int32(b), d, e))
    return d, e


def eigenvalues(d: Any, e: Any) -> Any:
    """Return all eigenvalues, ascending, of the tridiagonal matrix by multi-section on Sturm counts.

    Parameters
    ----------
    d, e : cupy.ndarray of float64, shape (n,)
    """
    import cupy

    n = len(d)
    size = cupy.abs(d)
    size[1:] += cupy.abs(e[: n - 1])
    size[:-1] += cupy.abs(e[: n - 1])
    bound = float(size.max())
    if not math.isfinite(bound):
        raise np.linalg.LinAlgError("the tridiagonal matrix holds NaN or infinity: no eigenvalues")
    if bound == 0:
        return cupy.zeros(n, np.float64)
    lanes = 16 if n <= 10000 else (4 if n <= 24000 else 1)
    # 2 (1 + 2⁻⁵⁰) (lanes + 1)^-passes < 2⁻⁵⁷
    passes = math.ceil(58 / math.log2(lanes + 1))
    w = cupy.empty(n, np.float64)
    squares = cupy.maximum((e / bound) ** 2, 1e-60)
    edge = 1 + 2.0**-40
    _launch(
        STURM[lanes],
        "multisect",
        -(-n * lanes // STURM_THREADS),
        STURM_THREADS,
        (d / bound, squares, np.int32(n), np.float64(-edge), np.float64(edge), np.int32(passes), w),
        512 * 16,
    )
    w *= bound
    w.sort()
    return w


LEAF = 32
VECTOR_COLUMNS = 4096  # columns of the rank-one eigenvectors made at a time


def divide_and_conquer(d: Any, e: Any, rows: int) -> tuple[Any, Matrix]:
    """Return all eigenvalues, ascending, and eigenvectors of the tridiagonal matrix, by divide and conquer in float64.

    The order is padded to leaf 2^levels with decoupled entries above the spectrum, so that all merges of a level have
    one size and run as one batch.

    Parameters
    ----------
    d, e : cupy.ndarray of float64, shape (n,)
    rows : int
        Rows, zero beyond n, that the eigenvectors are wanted with.

    Returns
    -------
    w : cupy.ndarray, shape (n,)
    q : Matrix
        float64; columns 0 ... n − 1 are the eigenvectors.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix holds NaN or infinity.
    """
    import cupy

    n = len(d)
    d_host, e_host = cupy.asnumpy(d), cupy.asnumpy(e)
    size = np.abs(d_host)
    size[1:] += np.abs(e_host[: n - 1])
    size[:-1] += np.abs(e_host[: n - 1])
    bound = float(size.max())
    if not math.isfinite(bound):
        raise np.linalg.LinAlgError("the tridiagonal matrix holds NaN or infinity: no eigenvectors")
    bound = bound or 1.0
    levels = max(0, math.ceil(math.log2(n / LEAF)))
    leaf = -(-n // 2**levels)
    order = leaf * 2**levels
    torn, coupling = np.full(order, 2.0), np.zeros(order)
    torn[:n] = d_host / bound
    coupling[: n - 1] = e_host[: n - 1] / bound
    cuts = np.arange(leaf, order, leaf)
    torn[cuts - 1] -= np.abs(coupling[cuts - 1])
    torn[cuts] -= np.abs(coupling[cuts - 1])
    d, e = cupy.asarray(torn), cupy.asarray(coupling)

    blas = Blas(np.float64)
    q, next_q = zero_matrix(max(rows, order), order, np.float64), zero_matrix(max(rows, order), order, np.float64)
    w = cupy.empty(order, np.float64)
    leaf_shared = (2 * 32 * 33 + 32) * 8 + 32 * 4
    _launch(
        DIVIDE, "leaves", 2**levels, 32, (d, e, np.int32(leaf), w, np.uintp(q.pointer), np.int64(q.ld)), leaf_shared
    )
    ds, zs, dk, zk, zr, offset = (cupy.empty(order, np.float64) for _ in range(6))
    column, kept, origin, of_rank, of_column = (cupy.empty(order, np.int32) for _ in range(5))
    count, turns = cupy.empty(2**levels, np.int32), cupy.empty(2**levels, np.int32)
    pairs, rotations = cupy.empty((order, 2), np.int32), cupy.empty((order, 2), np.float64)
    chunk = min(order, VECTOR_COLUMNS)
    s = cupy.empty(order * chunk, np.float64)
    for level in range(1, levels + 1):
        m = leaf * 2**level
        h, merges, blocks, warps = m // 2, order // m, -(-m // 256), -(-m // 4)
        m32 = np.int32(m)
        matrix = (np.uintp(q.pointer), np.int64(q.ld))
        _launch(DIVIDE, "order", (blocks, merges), 256, (w, *matrix, e, m32, ds, zs, column))
        arguments: tuple[Any, ...] = (ds, zs, column, e, m32, count, dk, zk, kept, turns, pairs, rotations)
        _launch(DIVIDE, "deflate", merges, 256, arguments, 256 * (8 + 8 + 4 + 8))
        _launch(DIVIDE, "secular", (warps, merges), 128, (e, m32, count, dk, zk, origin, offset))
        _launch(DIVIDE, "refine_z", (warps, merges), 128, (m32, count, dk, zk, origin, offset, zr))
        arguments = (m32, count, dk, kept, origin, offset, w, of_rank, of_column)
        _launch(DIVIDE, "rank", (blocks, merges), 256, arguments, 256 * 8)
        for first in range(0, m, chunk):
            columns = min(chunk, m - first)
            roots = (m32, count, dk, zr, origin, offset, of_rank, of_column)
            arguments = (*roots, np.int32(first), np.int32(columns), s)
            _launch(DIVIDE, "vectors", (columns, merges), 256, arguments, 64)
            arguments = (m32, turns, pairs, rotations, np.int32(columns), s)
            _launch(DIVIDE, "rotate", (-(-columns // 64), merges), 64, arguments)
            for half in (0, h):
                blas.batched(
                    *(h, columns, h, 1.0, q.at(half, half), q.ld, m * (1 + q.ld)),
                    *(s.data.ptr + 8 * half, m, m * columns, 0.0),
                    *(next_q.at(half, first), q.ld, m * (1 + q.ld), merges),
                )
        q, next_q = next_q, q
    return w[:n] * bound, q


BACK_COLUMNS = 512  # reflectors of the band reduction applied at a time
WAVES = 16  # waves of diamonds gathered at a time
DIAMOND_BYTES = 2**28  # of Y and W gathered at a time


def apply_chasing(reflectors: Matrix, n: int, bandwidth: int, z: int, ldz: int, columns: int) -> None:
    """Z = Q2 Z in place, b reflectors of b neighbouring sweeps at a time (diamonds), in waves of disjoint rows.

    Parameters
    ----------
    reflectors : Matrix
        As `chase_band` leaves them.
    n, bandwidth : int
    z, ldz, columns : int
        Address, leading dimension and columns of Z, whose rows n ... n + 2 b are zero.
    """
    import cupy

    b = bandwidth
    dtype = reflectors.owner.dtype
    unit, blas, size = STAGES[dtype.name, b], Blas(dtype), dtype.itemsize
    if n < 2:
        return
    groups, blocks = -(-(n - 1) // b), (n - 2) // b + 1
    vectors = (np.uintp(reflectors.at(n - 1, n - 1)), np.int64(-reflectors.ld), np.int64(-1))
    shared = size * (3 * b * b + 2 * b)
    if dtype == np.float64 and b in SWEEPS and device.describe().shared_bytes >= _sweep_shared(b):
        _apply_sweeps(unit, vectors, shared, n, b, z, ldz, columns)
        return
    width = blocks // 2 + 2
    y, w = (cupy.empty(WAVES * width * 2 * b * b, dtype) for _ in range(2))
    chunk = min(columns, 4096)
    s = cupy.empty(width * b * chunk, dtype)
    total, last = blocks + 2 * (groups - 1), groups - 1
    # Row blocks of Z interleave in memory, which cuBLAS's strided batches refuse; so lists of addresses: of the row
    # blocks (even ones, then odd ones, for each chunk of columns), of Y and W, and of S.
    rows = z + (1 + np.concatenate([np.arange(0, blocks, 2), np.arange(1, blocks, 2)]) * b) * size
    starts = np.arange(0, columns, chunk) * ldz * size
    z_list = cupy.asarray((starts[:, None] + rows).astype(np.uint64))
    y_list, w_list = (
        cupy.asarray((x.data.ptr + np.arange(WAVES * width) * 2 * b * b * size).astype(np.uint64)) for x in (y, w)
    )
    s_lists = {
        part: cupy.asarray((s.data.ptr + np.arange(width) * b * part * size).astype(np.uint64))
        for part in {chunk, columns - (columns - 1) // chunk * chunk}
    }
    even = -(-blocks // 2)
    for first in range(0, total, WAVES):
        waves = min(WAVES, total - first)
        sizes = (np.int32(n), np.int32(first), np.int32(groups), np.int32(blocks), np.int32(width))
        _launch(unit, "diamonds", (width, waves), 256, (*vectors, *sizes, y, w), shared)
        for wave in range(first, first + waves):
            low = max(0, 2 * last - wave)
            count = min(last, (blocks - 1 - wave + 2 * last) // 2) - low + 1
            q = wave - 2 * (last - low)
            slot = (wave - first) * width
            block = q // 2 + (q % 2) * even
            for number, column in enumerate(range(0, columns, chunk)):
                part = min(chunk, columns - column)
                s_list = s_lists[part].data.ptr
                rows_list = z_list.data.ptr + (number * blocks + block) * 8
                blas.listed(
                    *(b, part, 2 * b, 1.0, y_list.data.ptr + slot * 8, 2 * b, rows_list, ldz, 0.0, s_list, b, count),
                    ops="CN",
                )
                blas.listed(
                    *(2 * b, part, b, -1.0, w_list.data.ptr + slot * 8, 2 * b, s_list, b, 1.0, rows_list, ldz, count)
                )


def _sweep_shared(bandwidth: int) -> int:
    """Shared memory of `apply_sweeps`: Y, W and the window of Z."""
    ld = 2 * bandwidth + 4
    return 8 * (max(bandwidth * ld, 64 * (bandwidth + 4)) + (bandwidth + 64) * ld)


def _apply_sweeps(
    unit: Unit, vectors: tuple[Any, ...], shared: int, n: int, b: int, z: int, ldz: int, columns: int
) -> None:
    """Z = Q2 Z in place, a group of b sweeps in one kernel, in float64."""
    import cupy

    groups, blocks = -(-(n - 1) // b), (n - 2) // b + 1
    together = max(1, min(groups, DIAMOND_BYTES // (blocks * 4 * b * b * 8)))
    y, w = (cupy.empty(together * blocks * 2 * b * b, np.float64) for _ in range(2))
    for last in range(groups - 1, -1, -together):
        count = min(together, last + 1)
        width = blocks - (last - count + 1)  # diamonds of the longest of these groups
        sizes = (np.int32(n), np.int32(last), np.int32(blocks), np.int32(width))
        _launch(unit, "group_diamonds", (width, count), 256, (*vectors, *sizes, y, w), shared)
        for number in range(count):
            group = last - number
            slot = number * width * 2 * b * b * 8
            arguments = (
                *(
                    np.uintp(z),
                    np.int64(ldz),
                    np.int32(columns),
                    np.uintp(y.data.ptr + slot),
                    np.uintp(w.data.ptr + slot),
                ),
                *(np.int32(blocks - group), np.int32(group * b + 1)),
            )
            _launch(SWEEPS[b], "apply_sweeps", -(-columns // 64), 256, arguments, _sweep_shared(b))


def apply_panels(panels: Panels, z: int, ldz: int, columns: int) -> None:
    """Z = Q1 Z in place, `BACK_COLUMNS` reflectors at a time.

    Parameters
    ----------
    panels : Panels
    z, ldz, columns : int
        Address, leading dimension and columns of Z.
    """
    import cupy

    n, b, a = panels.n, panels.bandwidth, panels.a
    number = max(-(-(n - b) // b), 0)
    if number == 0:
        return
    dtype = a.owner.dtype
    unit, blas, size = STAGES[dtype.name, b], Blas(dtype), dtype.itemsize
    k = BACK_COLUMNS
    while k > b and k >= 2 * number * b:
        k //= 2
    y, s = empty_matrix(n - b, k, dtype), empty_matrix(k, 2 * columns, dtype)
    t, gram, product = (cupy.empty(k * k, dtype) for _ in range(3))
    for first in range((number * b - 1) // k * k, -1, -k):
        rows, top = n - first - b, first + b
        matrix = (np.uintp(a.pointer), np.int64(a.ld), np.int32(n), np.int32(first))
        _launch(unit, "gather_panels", (-(-rows // 256), k), 256, (*matrix, np.uintp(y.pointer), np.int64(y.ld)))
        factors = np.uintp(panels.t.data.ptr + first // b * b * b * size)
        here = min(k, number * b - first) // b
        _launch(unit, "place_factors", -(-k * k // 256), 256, (factors, np.int32(here), np.int32(k), t))
        # T of neighbouring blocks: [[T1, -T1 (Y1^H Y2) T2], [0, T2]].
        blas.gemm(k, k, rows, 1.0, y.pointer, y.ld, y.pointer, y.ld, 0.0, gram.data.ptr, k, ops="CN")
        width = b
        while width < k:
            step, corner = 2 * width * (1 + k), width * k * size
            second = t.data.ptr + width * (1 + k) * size
            pairs = k // (2 * width)
            blas.batched(
                *(width, width, width, 1.0, gram.data.ptr + corner, k, step, second, k, step),
                *(0.0, product.data.ptr, k, step, pairs),
            )
            blas.batched(
                *(width, width, width, -1.0, t.data.ptr, k, step, product.data.ptr, k, step),
                *(0.0, t.data.ptr + corner, k, step, pairs),
            )
            width *= 2
        target = z + top * size
        blas.gemm(k, columns, rows, 1.0, y.pointer, y.ld, target, ldz, 0.0, s.at(0, 0), s.ld, ops="CN")
        blas.gemm(k, columns, k, 1.0, t.data.ptr, k, s.at(0, 0), s.ld, 0.0, s.at(0, columns), s.ld)
        blas.gemm(rows, columns, k, -1.0, y.pointer, y.ld, s.at(0, columns), s.ld, 1.0, target, ldz)


def load_matrix(array: Any, *, lower: bool, bandwidth: int, check_finite: bool) -> tuple[Matrix, int]:
    """Copy one triangle into a full Hermitian work matrix times 2**scale, and return both.

    Raises
    ------
    ValueError, numpy.linalg.LinAlgError
        If the triangle holds NaN or infinity, with and without `check_finite`.
    """
    import cupy

    n, dtype = array.shape[0], array.dtype
    unit = STAGES[dtype.name, bandwidth]
    matrix = empty_matrix(n, n, dtype)
    as_array(matrix, n, n)[...] = array
    parts = cupy.empty(min(n, 1024), np.float64)
    arguments = (np.uintp(matrix.pointer), np.int64(matrix.ld), np.int32(n), np.int32(not lower), parts)
    _launch(unit, "triangle_max", len(parts), 256, arguments, 256 * 8)
    largest = float(parts.max())
    if not math.isfinite(largest):
        error = ValueError if check_finite else np.linalg.LinAlgError
        raise error(f"the {'lower' if lower else 'upper'} triangle of the matrix holds NaN or infinity")
    scale = -math.frexp(largest)[1] if largest > 0 else 0
    if -16 <= scale <= 16:
        scale = 0
    # 2**scale itself may be out of range: in two steps.
    mirror(unit, matrix, 0, n, from_upper=not lower, factor=2.0 ** (scale // 2))
    if scale:
        mirror(unit, matrix, 0, n, from_upper=False, factor=2.0 ** (scale - scale // 2))
    return matrix, scale


def parameters(n: int, dtype: Any, *, vectors: bool) -> tuple[int, int]:
    """Return bandwidth b and block nb for a matrix of order n: the best measured (docs/performance/evd.md).

    A wide band makes A W faster and the chasing slower; with eigenvectors of a large matrix it halves the passes over
    them.
    """
    wanted = 64 if vectors and n >= 12000 else 32
    return panel_bandwidth(n, dtype, wanted), 512


def eigh(
    array: Any, *, lower: bool, eigvals_only: bool, check_finite: bool, choose: Any, bandwidth: int, block: int
) -> tuple[Any, Any]:
    """Solve one matrix by our two stages, whatever its order.

    Parameters
    ----------
    array : cupy.ndarray, shape (n, n)
    lower, eigvals_only, check_finite : bool
    choose : callable
        ``choose(w)`` of all eigenvalues, a NumPy array, is the slice of those wanted.
    bandwidth, block : int
        b and nb.

    Returns
    -------
    w : cupy.ndarray, shape (m,)
    v : cupy.ndarray, shape (n, m), or None
    """
    import cupy

    n, dtype = array.shape[0], array.dtype
    real = np.empty(0, dtype).real.dtype
    a, scale = load_matrix(array, lower=lower, bandwidth=bandwidth, check_finite=check_finite)
    panels = band_reduction(a, n, bandwidth=bandwidth, block=block)
    d, e = chase_band(extract_band(panels), n, bandwidth, None if eigvals_only else a)
    if eigvals_only:
        w = cupy.ldexp(eigenvalues(d, e), -scale)
        wanted = choose(w)
        return w[wanted].astype(real), None
    rows = n + 2 * bandwidth + 1
    w, q = divide_and_conquer(d, e, rows)
    w = cupy.ldexp(w, -scale)
    wanted = choose(w)
    columns = wanted.stop - wanted.start
    if dtype == np.float64:
        z = Matrix(q.at(0, wanted.start), q.ld, 8, q.owner)
        v = cupy.ndarray((n, columns), dtype, memptr=q.owner.data + wanted.start * q.ld * 8, strides=(8, q.ld * 8))
    else:
        z = zero_matrix(rows, columns, dtype)
        v = as_array(z, n, columns)
        v[...] = as_array(q, n, n)[:, wanted]
        del q
    if columns:
        apply_chasing(a, n, bandwidth, z.pointer, z.ld, columns)
        apply_panels(panels, z.pointer, z.ld, columns)
    return w[wanted].astype(real), v


def _vendor_eigh(array: Any, *, lower: bool, eigvals_only: bool, check_finite: bool) -> tuple[Any, Any]:
    """Call cuSOLVER's syevd, for orders where it is faster than ours."""
    import cupy

    triangle = cupy.tril(array) if lower else cupy.triu(array)
    if not bool(cupy.isfinite(triangle).all()):
        error = ValueError if check_finite else np.linalg.LinAlgError
        raise error(f"the {'lower' if lower else 'upper'} triangle of the matrix holds NaN or infinity")
    uplo = "L" if lower else "U"
    if eigvals_only:
        return cupy.linalg.eigvalsh(array, UPLO=uplo), None
    return cupy.linalg.eigh(array, UPLO=uplo)


def _to_device(array: Any) -> tuple[Any, Any]:
    found, give_back = device.to_device(array)
    if found.dtype.kind in "biu":
        found = found.astype(np.float64)
    elif found.dtype == np.float16:
        found = found.astype(np.float32)
    elif found.dtype.name not in BANDWIDTHS:
        raise TypeError(f"dtype {found.dtype} is not supported: pass float32, float64, complex64 or complex128")
    return found, give_back


def workspace_bytes(n: int, dtype: Any, *, vectors: bool) -> int:
    """Return the bytes of device memory that `eigh` needs beyond its input: about n² elements, 3 n² with vectors."""
    itemsize = np.dtype(dtype).itemsize
    _, block = parameters(n, dtype, vectors=vectors)
    total = itemsize * n * (n + 4 * block)
    if vectors:
        total += 2 * 8 * (n + 160) * int(n * 1.07) + 8 * n * min(n, VECTOR_COLUMNS)
        total += 0 if np.dtype(dtype) == np.float64 else itemsize * n * n
    return total


def solve(
    array: Any,
    *,
    lower: bool,
    eigvals_only: bool,
    overwrite_a: bool,
    check_finite: bool,
    select: tuple[str, Any] | None,
) -> Any:
    """`api.eigh` on the current device, for one matrix of order at least 1.

    Parameters
    ----------
    array : array, shape (n, n)
        On the device or on the host; the results are of its kind.
    lower, eigvals_only, overwrite_a, check_finite : bool
    select : None or tuple
        As for `api.chosen_range`.
    """
    import cupy

    from .api import chosen_range

    found, give_back = _to_device(array)
    n = found.shape[0]
    vectors = not eigvals_only
    rows = PANEL_THREADS * device.describe().multiprocessors
    if n < (CROSSOVER_VECTORS if vectors else CROSSOVER_VALUES) or n > rows:
        w, v = _vendor_eigh(found, lower=lower, eigvals_only=eigvals_only, check_finite=check_finite)
        wanted = chosen_range(cupy.asnumpy(w), select) if select else slice(0, n)
        w, v = w[wanted], None if v is None else v[:, wanted]
    else:
        bandwidth, block = parameters(n, found.dtype, vectors=vectors)
        what, needed = f"the eigenproblem of order {n:,}", workspace_bytes(n, found.dtype, vectors=vectors)
        device.require(needed, what)
        with device.allocating(what, needed):
            w, v = eigh(
                found,
                lower=lower,
                eigvals_only=eigvals_only,
                check_finite=check_finite,
                choose=lambda w: chosen_range(cupy.asnumpy(w), select) if select else slice(0, n),
                bandwidth=bandwidth,
                block=block,
            )
    return give_back(w) if eigvals_only else (give_back(w), give_back(v))


def solve_tridiagonal(
    array: Any, *, lower: bool, calc_q: bool, overwrite_a: bool, check_finite: bool,
    bandwidth: int | None = None, block: int | None = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """`api.tridiagonalize` on the current device, for one matrix of order at least 1.

    Parameters
    ----------
    array : array, shape (n, n)
    lower, calc_q, overwrite_a, check_finite : bool
    bandwidth, block : int, optional
        b and nb.
    """
    import cupy

    found, give_back = _to_device(array)
    n, dtype = found.shape[0], found.dtype
    best = parameters(n, dtype, vectors=calc_q)
    bandwidth, block = bandwidth or best[0], block or best[1]
    needed = workspace_bytes(n, dtype, vectors=calc_q)
    device.require(needed, f"the tridiagonalization of order {n:,}")
    with device.allocating(f"the tridiagonalization of order {n:,}", needed):
        a, scale = load_matrix(found, lower=lower, bandwidth=bandwidth, check_finite=check_finite)
        panels = band_reduction(a, n, bandwidth=bandwidth, block=block)
        d, e = chase_band(extract_band(panels), n, bandwidth, a if calc_q else None)
        q = None
        if calc_q:
            z = zero_matrix(n + 2 * bandwidth + 1, n, dtype)
            as_array(z, n, n)[np.arange(n), np.arange(n)] = 1
            apply_chasing(a, n, bandwidth, z.pointer, z.ld, n)
            apply_panels(panels, z.pointer, z.ld, n)
            q = give_back(as_array(z, n, n))
    real = np.empty(0, dtype).real.dtype
    d, e = (cupy.ldexp(x, -scale).astype(real) for x in (d, e[: n - 1]))
    return give_back(d), give_back(e), q
