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
PANEL_THREADS = 512  # most threads, and rows, of a block in the panel kernel
STURM_THREADS = 64


def _scalar_defines(name: str) -> dict[str, str]:
    dtype = np.dtype(name)
    real_bytes = dtype.itemsize // (2 if dtype.kind == "c" else 1)
    return {
        "REAL": "double" if real_bytes == 8 else "float",
        "REAL_BYTES": str(real_bytes),
        "COMPLEX": "1" if dtype.kind == "c" else "0",
    }


def _stage_unit(name: str, bandwidth: int) -> Unit:
    """Panels, chasing and helpers for one scalar type and one bandwidth."""
    return Unit(
        "evd",
        ("scalar.cu", "sync.cu", "matrix.cu", "panel.cu", "chasing.cu", "back.cu"),
        archs=ARCHS,
        defines=_scalar_defines(name)
        | {
            "B": str(bandwidth),
            "W": str(panel_width(name, bandwidth)),
            "PANEL_THREADS": str(PANEL_THREADS),
            "CHASE_THREADS": str(chase_threads(bandwidth)),
            "CHASE_BLOCKS": str(chase_blocks(bandwidth)),
        },
    )


def chase_threads(bandwidth: int) -> int:
    """Threads of a chasing block: four columns a warp for b = 16, eight for more."""
    return {16: 128, 32: 128, 64: 256}[bandwidth]


def chase_blocks(bandwidth: int) -> int:
    """Chasing blocks that a multiprocessor has registers for."""
    return 2 if bandwidth == 64 else 3


def panel_width(name: str, bandwidth: int) -> int:
    """Columns that the panel kernel holds in registers, 256 bytes of a row: a panel is this wide, or two of this."""
    return min(bandwidth, 256 // np.dtype(name).itemsize)


BANDWIDTHS = {"float64": (16, 32, 64), "float32": (32,), "complex128": (32,), "complex64": (32,)}
STAGES = {(name, b): _stage_unit(name, b) for name, widths in BANDWIDTHS.items() for b in widths}
# Alone, so that a matrix that goes to the vendor does not wait for the stages to compile.
HELPERS = {
    name: Unit("evd", ("scalar.cu", "matrix.cu"), archs=ARCHS, defines=_scalar_defines(name)) for name in BANDWIDTHS
}
STURM = {
    lanes: Unit("evd", ("sturm.cu",), archs=ARCHS, defines={"LANES": str(lanes), "STURM_THREADS": str(STURM_THREADS)})
    for lanes in (1, 4, 16)
}
DIVIDE = Unit("evd", ("divide.cu",), archs=ARCHS)
OZAKI = Unit("evd", ("ozaki.cu",), archs=ARCHS)  # launched by ozaki.py


def _sweep_unit(name: str, bandwidth: int) -> Unit:
    """Back-transformation by the reflectors of the chasing: these are of type `name`, Z is in double precision."""
    own = _scalar_defines(name)
    defines = {**own, "REAL": "double", "REAL_BYTES": "8", "SOURCE": own["REAL"], "B": str(bandwidth)}
    return Unit("evd", ("scalar.cu", "tensor.cu", "sweeps.cu"), archs=ARCHS, defines=defines)


SWEEPS = {(name, b): _sweep_unit(name, b) for name, widths in BANDWIDTHS.items() for b in widths}
UNITS = (*SWEEPS.values(), *STAGES.values(), *HELPERS.values(), *STURM.values(), DIVIDE, OZAKI)

# Eigenvalues alone and with vectors are taken from the vendor below these orders (docs/performance/evd.md).
CROSSOVER_VALUES = {"float64": 1100, "float32": 900, "complex128": 1500, "complex64": 2200}
CROSSOVER_VECTORS = {"float64": 2400, "float32": 2500, "complex128": 2400, "complex64": 3500}


def calls_vendor(n: int, dtype: Any, *, vectors: bool) -> bool:
    """Return whether `solve` calls cuSOLVER: below the crossover, or beyond what the panel kernel holds."""
    crossover = CROSSOVER_VECTORS if vectors else CROSSOVER_VALUES
    return n < crossover[np.dtype(dtype).name] or n > largest_order()


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
    start = matrix.owner.data + (matrix.pointer - matrix.owner.data.ptr)
    return cupy.ndarray((rows, columns), matrix.owner.dtype, memptr=start, strides=strides)


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
# A and B are laid side by side for up to so many columns, and from this order up.
SYR2K_JOINED = (256, 8192)


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
    import cupy

    n, k = a.shape
    blas = Blas(c.dtype)
    target = Matrix(c.data.ptr, c.strides[1] // c.itemsize, c.itemsize, c)
    if k <= SYR2K_JOINED[0] and n >= SYR2K_JOINED[1]:
        # [A B] [B A]ᴴ in one pass over C, which is what a thin update costs.
        v, x = (cupy.concatenate([left.T, right.T]) for left, right in ((a, b), (b, a)))
        add_lower(blas, n, 2 * k, alpha, v.data.ptr, n, x.data.ptr, n, target, 0, block)
        return
    pointers = [(x.data.ptr, x.strides[1] // x.itemsize) for x in (a, b)]
    for left, right in (pointers, pointers[::-1]):
        add_lower(blas, n, k, alpha, *left, *right, target, 0, block)


# Hashing a Unit takes longer than a launch; every unit lives as long as the module, so its id is its own.
_KERNELS: dict[tuple[int, str, int, int], Any] = {}


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


def largest_order() -> int:
    """Return the largest order that the panel kernel takes on the current device: one row a thread."""
    return PANEL_THREADS * device.describe().multiprocessors


def panel_bandwidth(n: int, dtype: Any, wanted: int) -> int:
    """Return the widest supported bandwidth up to `wanted`, for an order that the panel kernel takes."""
    if n > largest_order():
        rows = largest_order()
        raise ValueError(f"order {n:,} is beyond the {rows:,} rows that the panel kernel holds on this device")
    return max(b for b in BANDWIDTHS[np.dtype(dtype).name] if b <= wanted)


class _PanelFactor:
    """QR of panels of A in place: reflectors also into V and X, T apart."""

    def __init__(self, a: Matrix, bandwidth: int, blas: Blas) -> None:
        import cupy

        dtype = a.owner.dtype
        self._a, self._blas, self._bandwidth, self._size = a, blas, bandwidth, a.itemsize
        self._unit, self._width = STAGES[dtype.name, bandwidth], panel_width(dtype.name, bandwidth)
        parts, warps, width = (2 if dtype.kind == "c" else 1), PANEL_THREADS // 32, self._width
        self._shared = 8 * warps * width * parts + self._size * (3 * width + 2 * width * width)
        # What the blocks tell each other carries its epoch, so nothing has to be cleared.
        self._lines = cupy.zeros(2 * (device.describe().multiprocessors + 1) * width * parts * 4, np.uint32)
        self._epoch = 0
        self._products = [empty_matrix(width, width, dtype) for _ in range(2)]

    def _householder(self, a: int, m: int, y1: int, y2: int, ldy: int, t: int, clear: int = 0) -> None:
        pointer = np.uintp
        arguments = (
            *(pointer(a), np.int64(self._a.ld), np.int32(m), pointer(y1), pointer(y2), np.int64(ldy)),
            *(pointer(t), np.int32(clear), self._lines, np.uint32(self._epoch)),
        )
        tall = m > PANEL_THREADS // 2 * device.describe().multiprocessors
        threads = PANEL_THREADS if tall else PANEL_THREADS // 2
        name = "tall_panel_qr" if tall else "panel_qr"
        _launch(self._unit, name, -(-m // threads), threads, arguments, self._shared)
        self._epoch += self._width + 1

    def factor(self, row: int, column: int, m: int, y1: int, y2: int, ldy: int, t: int) -> None:
        """Factor the panel of m rows at (row, column); y1, y2 and t are addresses.  T is for `join` to complete."""
        width, size, a, blas = self._width, self._size, self._a, self._blas
        self._householder(a.at(row, column), m, y1, y2, ldy, t, self._bandwidth - width)
        if width == self._bandwidth:
            return
        # The other half: A2 - Y1 T1^H Y1^H A2, and its own reflectors.
        inner, scaled = self._products
        other, right = a.at(row, column + width), width * ldy * size
        blas.gemm(width, width, m, 1.0, y1, ldy, other, a.ld, 0.0, inner.pointer, inner.ld, ops="CN")
        corner = (t, self._bandwidth, inner.pointer, inner.ld, 0.0, scaled.pointer, scaled.ld)
        blas.gemm(width, width, width, 1.0, *corner, ops="CN")
        blas.gemm(m, width, width, -1.0, y1, ldy, scaled.pointer, scaled.ld, 1.0, other, a.ld)
        down = width * size
        if m > width:
            second = t + width * (1 + self._bandwidth) * size
            self._householder(other + down, m - width, y1 + right + down, y2 + right + down, ldy, second)

    def join(self, t: int, gram: int, ldg: int) -> None:
        """Complete T of the panel from Y^H Y; both are addresses."""
        width = self._width
        if width == self._bandwidth:
            return
        beside = np.uintp(gram + width * ldg * self._size)
        shared = width * width * self._size
        _launch(self._unit, "join_halves", 1, 256, (np.uintp(t), beside, np.int64(ldg)), shared)


def band_reduction(
    a: Matrix, n: int, *, bandwidth: int, block: int, syr2k_block: int = SYR2K_BLOCK, update: Any = add_lower
) -> Panels:
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
    update : callable
        The trailing update: `add_lower`, or a function with its parameters.
    """
    import cupy

    dtype = a.owner.dtype
    size, b = a.itemsize, bandwidth
    unit = STAGES[dtype.name, b]
    blas = Blas(dtype)
    block = max(b, min(block, -(-n // b) * b))
    v, x = empty_matrix(n, 2 * block, dtype), empty_matrix(n, 2 * block, dtype)
    s, gram, factor = (empty_matrix(rows, b, dtype) for rows in (2 * block, b, 2 * b))
    panels = max(-(-(n - b) // b), 0)
    t = cupy.zeros((max(panels, 1), b * b), dtype)
    factorization = _PanelFactor(a, b, blas)
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
            t_panel = t.data.ptr + (j // b) * b * b * size
            factorization.factor(top, j, m, v.at(local, p), y, v.ld, t_panel)
            # A Y at memory speed, next to X; one product then gives S = Xᴴ Y, (A Y)ᴴ Y and Yᴴ Y; and the pending
            # updates of the block's panels before this one are A Y − V S.
            blas.gemm(m, b, m, 1.0, a.at(top, top), a.ld, y, x.ld, 0.0, z, x.ld)
            blas.gemm(p + 2 * b, b, m, 1.0, x.at(local, 0), x.ld, y, x.ld, 0.0, s.pointer, s.ld, ops="CN")
            factorization.join(t_panel, s.at(p + b, 0), s.ld)
            arguments: tuple[Any, ...] = (pointer(s.pointer), int64(s.ld), int32(p), pointer(gram.pointer))
            _launch(unit, "correct_gram", (b, b // 8), 256, arguments)
            arguments = (pointer(gram.pointer), pointer(t_panel), pointer(factor.pointer))
            _launch(unit, "small_factor", b, 256, arguments, size * (256 + b * (b + 1)))
            blas.gemm(m, b, p, -1.0, v.at(local, 0), v.ld, s.pointer, s.ld, 1.0, z, x.ld)
            # Z = P T + Y K
            target = v.at(local, p + b)
            blas.gemm(m, b, 2 * b, 1.0, z, x.ld, factor.pointer, factor.ld, 0.0, target, v.ld)
            arguments = (pointer(target), int64(v.ld), pointer(z), int64(x.ld), int32(m))
            _launch(unit, "copy_panel", (-(-m // 1024), b), 256, arguments)
            p += 2 * b
        rest = i + block
        m = n - rest
        if m > 0:
            update(blas, m, p, -1.0, v.at(block, 0), v.ld, x.at(block, 0), x.ld, a, rest, syr2k_block)
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


MAIL_SLOTS = 8192  # SLOTS of chasing.cu
CHASE_HELPERS = 2  # HELPERS of chasing.cu: warps that wait, so that the others need not


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
    shared = band.itemsize * (b * (b + 3) + 3 * (threads // 32) * b) + 16
    if reflectors is None:
        vectors = (np.uintp(0), np.int64(0), np.int64(0))
    else:
        vectors = (np.uintp(reflectors.at(n - 1, n - 1)), np.int64(-reflectors.ld), np.int64(-1))
    ticket = np.uintp(progress.data.ptr + 4 * (n + 1))
    parts = 2 if band.dtype.kind == "c" else 1
    mail = cupy.zeros(MAIL_SLOTS * (b + 1) * parts * 4, np.uint32)
    arguments = (band, np.int32(n), progress, ticket, mail, *vectors)
    _launch(unit, "chase", grid or n // (2 * b) + 2, threads + 32 * CHASE_HELPERS, arguments, shared)
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
    # Lanes that share an eigenvalue, while there are too few eigenvalues to fill the device (measured).
    lanes = 16 if n <= 10000 else (4 if n <= 24000 else 1)
    # 2 (1 + 2⁻⁵⁰) (lanes + 1)^-passes < 2⁻⁵⁷
    passes = math.ceil(58 / math.log2(lanes + 1))
    w = cupy.empty(n, np.float64)
    squares = cupy.maximum((e / bound) ** 2, 1e-60)  # not 0: after a zero of the recurrence all would be 0
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
LARGE_LEAF = 64


def padded_order(n: int) -> tuple[int, int]:
    """Return the levels, and the order, a multiple of 2^levels, that `divide_and_conquer` pads n to.

    Leaves are larger where they would need more than 3.5 % of padding otherwise.
    """
    levels = max(0, math.ceil(math.log2(n / LEAF)))
    order = -(-n // 2**levels) * 2**levels
    if levels and order > 1.035 * n:
        levels -= 1
        order = -(-n // 2**levels) * 2**levels
    return levels, order


def merge_sizes(n: int) -> tuple[int, int]:
    """Return how many columns of the rank-one eigenvectors `divide_and_conquer` makes at a time, and for how many rows
    of each half the last merge does so.

    The last merge makes them again for each group of rows.  So many that the work space is 2.2 n² elements from
    n = 4096 on, the matrix included.
    """
    order = padded_order(n)[1]
    if n < 4096:  # a few MB: not worth making the rank-one eigenvectors again
        return min(order, 1024), order // 2
    left = int(1.2 * n * n) - 128 * n - order * order
    columns = min(max(192, min(left // order // 2, 1024)), order)
    rows = max(192, min((left - order * columns) // (order + 2 * columns), order // 8))
    return columns, min(rows, order // 2)


def divide_and_conquer(d: Any, e: Any, space: Matrix | None = None) -> tuple[Any, Matrix]:
    """Return all eigenvalues, ascending, and eigenvectors of the tridiagonal matrix, by divide and conquer in float64.

    The order is padded to leaf 2^levels with decoupled entries above the spectrum, so that all merges of a level have
    one size and run as one batch.  Both halves of Q merge between two places each, in the diagonal blocks and beside
    them; the last merge writes over its own input, some rows at a time.

    Parameters
    ----------
    d, e : cupy.ndarray of float64, shape (n,)
    space : Matrix, optional
        Memory for Q: `padded_order` columns, and its leading dimension.

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
    levels, order = padded_order(n)
    leaf = order >> levels
    torn, coupling = np.full(order, 2.0), np.zeros(order)
    torn[:n] = d_host / bound
    coupling[: n - 1] = e_host[: n - 1] / bound
    cuts = np.arange(leaf, order, leaf)
    torn[cuts - 1] -= np.abs(coupling[cuts - 1])
    torn[cuts] -= np.abs(coupling[cuts - 1])
    d, e = cupy.asarray(torn), cupy.asarray(coupling)

    blas = Blas(np.float64)
    q = space or empty_matrix(order, order, np.float64)
    w = cupy.empty(order, np.float64)
    name, threads = ("leaves", 32) if leaf <= 32 else ("large_leaves", 64)
    leaf_shared = (2 * threads * (threads + 1) + threads) * 8 + threads * 4
    _launch(
        DIVIDE,
        name,
        2**levels,
        threads,
        (d, e, np.int32(leaf), w, np.uintp(q.pointer), np.int64(q.ld)),
        leaf_shared,
    )
    ds, zs, dk, zk, zr, offset = (cupy.empty(order, np.float64) for _ in range(6))
    column, kept, origin, of_rank, of_column = (cupy.empty(order, np.int32) for _ in range(5))
    count, turns = cupy.empty(2**levels, np.int32), cupy.empty(2**levels, np.int32)
    pairs, rotations = cupy.empty((order, 2), np.int32), cupy.empty((order, 2), np.float64)
    chunk, step = merge_sizes(n)
    s = cupy.empty(order * chunk, np.float64)
    shift, middle = 0, order // 2
    for level in range(1, levels + 1):
        m = leaf * 2**level
        h, merges, blocks, warps = m // 2, order // m, -(-m // 256), -(-m // 4)
        m32 = np.int32(m)
        matrix = (np.uintp(q.pointer), np.int64(q.ld))
        _launch(DIVIDE, "order", (blocks, merges), 256, (w, *matrix, e, m32, np.int32(shift), ds, zs, column))
        arguments: tuple[Any, ...] = (ds, zs, column, e, m32, count, dk, zk, kept, turns, pairs, rotations)
        _launch(DIVIDE, "deflate", merges, 256, arguments, 256 * (8 + 8 + 4 + 8))
        _launch(DIVIDE, "secular", (warps, merges), 128, (e, m32, count, dk, zk, origin, offset))
        _launch(DIVIDE, "refine_z", (warps, merges), 128, (m32, count, dk, zk, origin, offset, zr))
        arguments = (m32, count, dk, kept, origin, offset, w, of_rank, of_column)
        _launch(DIVIDE, "rank", (blocks, merges), 256, arguments, 256 * 8)

        roots = (m32, count, dk, zr, origin, offset, of_rank, of_column)
        if merges == 1:
            _last_merge(blas, q, (shift, middle - shift), (chunk, step), roots, kept, (turns, pairs, rotations), s)
            break
        starts = (shift, middle - shift)  # columns of the first and of the second half's blocks
        for first in range(0, m, chunk):
            columns = min(chunk, m - first)
            listed = (np.uintp(0), np.int32(first), np.int32(columns), np.uintp(0), m32)
            _launch(DIVIDE, "vectors", (columns, merges), 256, (*roots, *listed, s), 64)
            turned = (m32, turns, pairs, rotations, np.int32(columns), m32, s)
            _launch(DIVIDE, "rotate", (-(-columns // 64), merges), 64, turned)
            stride, each = m * (1 + q.ld), merges // 2
            for number, (start, target) in enumerate(zip(starts, reversed(starts), strict=True)):
                top, vectors = number * middle, s.data.ptr + 8 * number * each * m * columns
                for half in (0, h):
                    blas.batched(
                        *(h, columns, h, 1.0, q.at(top + half, start + half), q.ld, stride),
                        *(vectors + 8 * half, m, m * columns, 0.0),
                        *(q.at(top + half, target + first), q.ld, stride, each),
                    )
        shift = middle - shift
    return w[:n] * bound, q


def _last_merge(
    blas: Blas, q: Matrix, starts: tuple[int, int], sizes: tuple[int, int], roots: tuple[Any, ...], kept: Any,
    turned: tuple[Any, ...], s: Any,
) -> None:  # fmt: skip
    """Merge the two halves of Q, from column `starts` on, in place; `sizes` as from `merge_sizes`.

    Only what is not deflated is multiplied: a dropped column that no rotation has touched moves to its place.
    """
    import cupy

    m = int(roots[0])
    h = m // 2
    k, of_rank, of_column = int(roots[1][0]), cupy.asnumpy(roots[6]), cupy.asnumpy(roots[7])
    turns, pairs, rotations = turned
    touched = cupy.asnumpy(pairs[: int(turns[0])])
    active = of_column >= 0
    active[touched.ravel()] = True
    column_of_rank = cupy.asnumpy(kept)[of_rank]
    moved = (of_rank >= k) & ~active[column_of_rank]
    products, moves = np.flatnonzero(~moved), np.flatnonzero(moved)
    halves = []  # of the columns of Q: those multiplied, then the others
    for start in (0, h):
        own = np.arange(start, start + h)
        halves.append(np.concatenate([own[active[own]], own[~active[own]]]))
    sources = []  # of the columns that only move, in the copies of the halves
    for half in halves:
        place = np.full(m, -1)
        place[half] = np.arange(h)
        sources.append(_list(place[column_of_rank[moves]]))
    # The rows of both halves of S, each filled up to the same number, so many that all columns are aligned.
    depth = max(int(active[:h].sum()), int(active[h:].sum()))
    depth = min(-(-depth // 16) * 16, h)
    rows, position = np.full(2 * depth, -1), np.zeros(m, np.int64)
    for start, first in ((0, 0), (h, depth)):
        own = start + np.flatnonzero(active[start : start + h])
        rows[first : first + len(own)] = own
        position[own] = first + np.arange(len(own))
    pairs = _list(position[touched])
    lists = [_list(half - start) for half, start in zip(halves, (0, h), strict=True)]
    product_list, move_list, row_list = _list(products), _list(moves), _list(rows)
    height = 2 * depth

    chunk, step = sizes
    both = empty_matrix(step, m, np.float64)
    parts = [both.pointer, both.at(0, h)]
    width = min(chunk, len(products))
    result = empty_matrix(step, 2 * width, np.float64)
    for row in range(0, h, step):
        here = min(step, h - row)
        for part, own, start, top in zip(parts, lists, starts, (row, row + h), strict=True):
            _move_columns(q.at(top, start), q.ld, own, part, both.ld, None, h, here)
        for first in range(0, len(products), chunk):
            columns = min(chunk, len(products) - first)
            listed = (product_list, np.int32(first), np.int32(columns), row_list, np.int32(height))
            _launch(DIVIDE, "vectors", (columns, 1), 256, (*roots, *listed, s), 64)
            arguments = (roots[0], turns, pairs, rotations, np.int32(columns), np.int32(height), s)
            _launch(DIVIDE, "rotate", (-(-columns // 64), 1), 64, arguments)
            places = product_list[first : first + columns]
            blas.batched(
                *(here, columns, depth, 1.0, both.pointer, both.ld, h * both.ld, s.data.ptr, height, depth),
                *(0.0, result.pointer, result.ld, width * result.ld, 2),
            )
            for number, top in enumerate((row, row + h)):
                _move_columns(result.at(0, number * width), result.ld, None, q.at(top, 0), q.ld, places, columns, here)
        for part, source, top in zip(parts, sources, (row, row + h), strict=True):
            _move_columns(part, both.ld, source, q.at(top, 0), q.ld, move_list, len(moves), here)


def _list(numbers: Any) -> Any:
    import cupy

    return cupy.asarray(np.ascontiguousarray(numbers, np.int32))


def _move_columns(
    source: int, lds: int, origins: Any, target: int, ldt: int, places: Any, columns: int, rows: int
) -> None:
    if columns:
        pointers = [np.uintp(0) if numbers is None else numbers for numbers in (origins, places)]
        arguments = (np.uintp(source), np.int64(lds), pointers[0], np.uintp(target), np.int64(ldt), pointers[1])
        _launch(DIVIDE, "move_columns", (-(-rows // 1024), columns), 256, (*arguments, np.int32(rows)))


SWEEP_GROUP = 64  # sweeps applied together: GROUP of sweeps.cu
TILES = SWEEP_GROUP // 16


def tile_bytes(n: int) -> int:
    """Return how many bytes of tiles `apply_chasing` makes at a time, if one group of sweeps needs no more."""
    return min(2**27, 3 * n * n // 4)


def back_columns(n: int) -> tuple[int, int]:
    """Return how many reflectors of the band reduction `apply_panels` takes at a time, to how many columns of Z."""
    return 512 if n >= 8192 else 256, max(512, min(8192, n // 4))


def apply_chasing(reflectors: Matrix, n: int, bandwidth: int, z: int, ldz: int, columns: int) -> None:
    """Z = Q2 Z in place, in double precision, a group of neighbouring sweeps after the other (sweeps.cu).

    Parameters
    ----------
    reflectors : Matrix
        As `chase_band` leaves them.
    n, bandwidth : int
    z, ldz, columns : int
        Address (a multiple of 16), leading dimension (even) and columns of Z, of type float64 or complex128.
    """
    import cupy

    if n < 2:
        return
    dtype, b = reflectors.owner.dtype, bandwidth
    unit, parts = SWEEPS[dtype.name, b], 2 if dtype.kind == "c" else 1
    tile = parts * 8 * (b + 16) * 32  # bytes of Y and Y T of 16 sweeps, one task
    groups = -(-(n - 1) // SWEEP_GROUP)
    # Eight warps share what they read; four spread a small Z over more multiprocessors.
    warps = 8 if columns * parts >= 120 * device.describe().multiprocessors else 4
    make_shared = TILES * 8 * parts * (16 * (b + 17) + 16 * 17 + 16)
    apply_shared = TILES * tile + 8 * (warps * 16 * b + 2 * TILES)

    def tasks(group: int) -> int:
        return (n - 2 - group * SWEEP_GROUP) // b + 1

    vectors = (np.uintp(reflectors.at(n - 1, n - 1)), np.int64(-reflectors.ld), np.int64(-1))
    together = max(1, min(groups, tile_bytes(n) // (tasks(0) * TILES * tile)))
    tiles = cupy.empty(together * tasks(0) * TILES * tile // 8, np.float64)
    for last in range(groups - 1, -1, -together):
        count = min(together, last + 1)
        width = tasks(last - count + 1)
        sizes = (np.int32(n), np.int32(last), np.int32(width))
        _launch(unit, "sweep_tiles", (width, count), 32 * TILES, (*vectors, *sizes, tiles), make_shared)
        for group in range(last, last - count, -1):
            here = tiles.data.ptr + (last - group) * width * TILES * tile
            arguments = (
                *(np.uintp(z), np.int64(ldz), np.int32(n), np.int32(columns), np.uintp(here)),
                *(np.int32(tasks(group)), np.int32(group * SWEEP_GROUP)),
            )
            grid = -(-columns * parts // (16 * warps))
            _launch(unit, "apply_sweeps", grid, 32 * warps, arguments, apply_shared)


def apply_panels(panels: Panels, z: int, ldz: int, columns: int) -> None:
    """Z = Q1 Z in place, `back_columns` reflectors and columns at a time.

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
    k, width = back_columns(n)
    while k > b and k >= 2 * number * b:
        k //= 2
    width = min(columns, width)
    y, s = empty_matrix(n - b, k, dtype), empty_matrix(k, 2 * width, dtype)
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
        span = b
        while span < k:
            step, corner = 2 * span * (1 + k), span * k * size
            second = t.data.ptr + span * (1 + k) * size
            pairs = k // (2 * span)
            blas.batched(
                *(span, span, span, 1.0, gram.data.ptr + corner, k, step, second, k, step),
                *(0.0, product.data.ptr, k, step, pairs),
            )
            blas.batched(
                *(span, span, span, -1.0, t.data.ptr, k, step, product.data.ptr, k, step),
                *(0.0, t.data.ptr + corner, k, step, pairs),
            )
            span *= 2
        for start in range(0, columns, width):
            part, target = min(width, columns - start), z + (top + start * ldz) * size
            blas.gemm(k, part, rows, 1.0, y.pointer, y.ld, target, ldz, 0.0, s.at(0, 0), s.ld, ops="CN")
            blas.gemm(k, part, k, 1.0, t.data.ptr, k, s.at(0, 0), s.ld, 0.0, s.at(0, width), s.ld)
            blas.gemm(rows, part, k, -1.0, y.pointer, y.ld, s.at(0, width), s.ld, 1.0, target, ldz)


def load_matrix(
    array: Any, *, lower: bool, bandwidth: int, check_finite: bool, overwrite: bool = False
) -> tuple[Matrix, int]:
    """Bring one triangle into a full Hermitian work matrix times 2**scale, and return both.

    Parameters
    ----------
    array : cupy.ndarray, shape (n, n)
    lower, check_finite : bool
    bandwidth : int
    overwrite : bool
        Work in the memory of `array` where `fits_in_place`.

    Raises
    ------
    ValueError, numpy.linalg.LinAlgError
        If the triangle holds NaN or infinity, with and without `check_finite`.
    """
    n, dtype = array.shape[0], array.dtype
    unit = STAGES[dtype.name, bandwidth]
    if overwrite and fits_in_place(array):
        matrix, triangle = _as_columns(array, lower)
    else:
        # A real symmetric matrix in rows is copied as it lies, which is several times faster than transposed.
        rows = dtype.kind != "c" and array.strides[0] != array.itemsize
        matrix, triangle = empty_matrix(n, n, dtype), lower != rows
        # Transposed on both sides, because CuPy takes the last index as the fastest.
        as_array(matrix, n, n).T[...] = array if rows else array.T
    largest = _largest(matrix, n, lower=triangle)
    _require_finite(largest, lower, check_finite)
    scale = -math.frexp(largest)[1] if largest > 0 else 0
    if -16 <= scale <= 16:
        scale = 0
    # 2**scale itself may be out of range: in two steps.
    mirror(unit, matrix, 0, n, from_upper=not triangle, factor=2.0 ** (scale // 2))
    if scale:
        mirror(unit, matrix, 0, n, from_upper=False, factor=2.0 ** (scale - scale // 2))
    return matrix, scale


def fits_in_place(array: Any) -> bool:
    """Return whether the kernels can work in the memory of `array`: aligned columns, or rows of a real matrix."""
    size, n = array.itemsize, array.shape[0]
    views = (array,) if array.dtype.kind == "c" else (array, array.T)
    return array.data.ptr % 128 == 0 and any(
        view.strides[0] == size and view.strides[1] >= n * size and view.strides[1] % 128 == 0 for view in views
    )


def _as_columns(array: Any, lower: bool) -> tuple[Matrix, bool]:
    """Return `array` or its transpose, whichever is column-major, else a copy; and whether `lower` is lower there.

    The transpose of a Hermitian matrix is its conjugate.
    """
    import cupy

    n, size = array.shape[0], array.itemsize
    for view, triangle in ((array, lower), (array.T, not lower)):
        if view.strides[0] == size and view.strides[1] >= n * size:
            return Matrix(view.data.ptr, view.strides[1] // size, size, view), triangle
    copy = cupy.array(array, order="F")
    return Matrix(copy.data.ptr, n, size, copy), lower


def _largest(matrix: Matrix, n: int, *, lower: bool) -> float:
    """Return the largest real or imaginary part of a triangle; NaN or infinity if it holds any."""
    import cupy

    parts = cupy.empty(min(n, 1024), np.float64)
    arguments = (np.uintp(matrix.pointer), np.int64(matrix.ld), np.int32(n), np.int32(not lower), parts)
    _launch(HELPERS[matrix.owner.dtype.name], "triangle_max", len(parts), 256, arguments, 256 * 8)
    return float(parts.max())


def _require_finite(largest: float, lower: bool, check_finite: bool) -> None:
    if not math.isfinite(largest):
        error = ValueError if check_finite else np.linalg.LinAlgError
        raise error(f"the {'lower' if lower else 'upper'} triangle of the matrix holds NaN or infinity")


def parameters(n: int, dtype: Any, *, vectors: bool) -> tuple[int, int]:
    """Return bandwidth b and block nb for a matrix of order n: the best measured (docs/performance/evd.md).

    A wide band makes A W faster and the chasing slower; with eigenvectors of a large matrix it halves the passes over
    them.
    """
    wanted = 64 if n >= (12000 if vectors else 16000) else 32
    return panel_bandwidth(n, dtype, wanted), 512


def eigh(
    array: Any, *, lower: bool, eigvals_only: bool, check_finite: bool, choose: Any, bandwidth: int, block: int,
    overwrite_a: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """Solve one matrix by our two stages, whatever its order.

    Parameters
    ----------
    array : cupy.ndarray, shape (n, n)
    lower, eigvals_only, check_finite : bool
    choose : callable
        ``choose(w)`` of all eigenvalues, a NumPy array, is the slice of those wanted.
    bandwidth, block : int
        b and nb.
    overwrite_a : bool
        Work in the memory of `array` where its layout allows.

    Returns
    -------
    w : cupy.ndarray, shape (m,)
    v : cupy.ndarray, shape (n, m), or None
    """
    import cupy

    n, dtype = array.shape[0], array.dtype
    real = np.empty(0, dtype).real.dtype
    a, scale = load_matrix(array, lower=lower, bandwidth=bandwidth, check_finite=check_finite, overwrite=overwrite_a)
    panels = band_reduction(a, n, bandwidth=bandwidth, block=block)
    d, e = chase_band(extract_band(panels), n, bandwidth, None if eigvals_only else a)
    if eigvals_only:
        w = cupy.ldexp(eigenvalues(d, e), -scale)
        wanted = choose(w)
        return w[wanted].astype(real), None
    w, z = _tridiagonal_vectors(d, e, dtype)
    w = cupy.ldexp(w, -scale)
    wanted = choose(w)
    columns = wanted.stop - wanted.start
    z = Matrix(z.at(0, wanted.start), z.ld, z.itemsize, z.owner)
    if columns:
        z = _take_back(panels, z, columns)
    return w[wanted].astype(real), as_array(z, n, columns).astype(dtype, copy=False)


def _tridiagonal_vectors(d: Any, e: Any, dtype: Any) -> tuple[Any, Matrix]:
    """`divide_and_conquer`, with the eigenvectors as float64 or, for a complex `dtype`, as complex128."""
    n = len(d)
    if dtype.kind != "c":
        return divide_and_conquer(d, e)
    z = empty_matrix(n, n, np.complex128)
    _, order = padded_order(n)
    q = Matrix(z.pointer, -(-order // 16) * 16, 8, z.owner.view(np.float64))
    w, q = divide_and_conquer(d, e, q)
    source, target = as_array(q, n, n).T, as_array(z, n, n).T
    # From the last column on, so many at a time that what is written lies behind what is still to be read.
    stop = n
    while stop:
        start = min(-(-stop * q.ld // (2 * z.ld)), stop - 1)
        part = source[start:stop]
        target[start:stop] = part.copy() if stop <= 2 else part
        stop = start
    return w, z


def _take_back(panels: Panels, z: Matrix, columns: int) -> Matrix:
    """Return Q1 Q2 Z in the precision of the panels; Z, in double precision, is overwritten."""
    a, n = panels.a, panels.n
    apply_chasing(a, n, panels.bandwidth, z.pointer, z.ld, columns)
    if z.owner.dtype != a.owner.dtype:
        narrow = empty_matrix(n, columns, a.owner.dtype)
        as_array(narrow, n, columns).T[...] = as_array(z, n, columns).T
        z = narrow
    apply_panels(panels, z.pointer, z.ld, columns)
    return z


def _vendor_eigh(array: Any, *, lower: bool, eigvals_only: bool, check_finite: bool) -> tuple[Any, Any]:
    """Call cuSOLVER's syevd, for orders where it is faster than ours."""
    import cupy

    matrix, triangle = _as_columns(array, lower)
    _require_finite(_largest(matrix, array.shape[0], lower=triangle), lower, check_finite)
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


def workspace_bytes(n: int, dtype: Any, *, vectors: bool, overwrite_a: bool = False) -> int:
    """Return the bytes of device memory that `eigh` needs beyond its input.

    About n² elements, with eigenvectors 2.2 n² (from n = 16,384 on), and n² fewer in the input's own memory.  The
    eigenvectors of float32 and complex64 are formed in double precision, which takes 2 n² more.
    """
    itemsize, wide = np.dtype(dtype).itemsize, 16 if np.dtype(dtype).kind == "c" else 8
    bandwidth, block = parameters(n, dtype, vectors=vectors)
    matrix = (0 if overwrite_a else itemsize * n * n) + n * (itemsize * bandwidth + 64 * 8)
    reduction = itemsize * 4 * block * n
    if not vectors:
        return matrix + reduction
    order = padded_order(n)[1]
    columns, rows = merge_sizes(n)
    merging = 8 * (order * (columns + rows) + 2 * rows * columns)
    reflectors, width = back_columns(n)
    taking_back = max(tile_bytes(n), itemsize * reflectors * (n + 2 * min(n, width)))
    narrow = 0 if itemsize == wide else itemsize * n * n
    return matrix + max(reduction, max(8 * order**2, wide * n * n) + max(merging, taking_back + narrow))


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
    if calls_vendor(n, found.dtype, vectors=vectors):
        # cuSOLVER works in a copy of the matrix and in about four times its size.
        what, needed = f"cuSOLVER's eigensolver of order {n:,}", 5 * found.nbytes
        with device.allocating(what, needed):
            w, v = _vendor_eigh(found, lower=lower, eigvals_only=eigvals_only, check_finite=check_finite)
        wanted = chosen_range(cupy.asnumpy(w), select) if select else slice(0, n)
        w, v = w[wanted], None if v is None else v[:, wanted]
    else:
        bandwidth, block = parameters(n, found.dtype, vectors=vectors)
        overwrite = _may_overwrite(array, found, overwrite_a)
        what = f"the eigenproblem of order {n:,}"
        needed = workspace_bytes(n, found.dtype, vectors=vectors, overwrite_a=overwrite)
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
                overwrite_a=overwrite,
            )
    return give_back(w) if eigvals_only else (give_back(w), give_back(v))


def _may_overwrite(array: Any, found: Any, overwrite_a: bool) -> bool:
    """Whether `found`, `array` on the device, is ours to overwrite, a copy or allowed, and laid out for it."""
    copied = not device.on_device(array) or found.data.ptr != device.to_device(array)[0].data.ptr
    return (overwrite_a or copied) and fits_in_place(found)


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
    overwrite = _may_overwrite(array, found, overwrite_a)
    needed = workspace_bytes(n, dtype, vectors=calc_q, overwrite_a=overwrite)
    device.require(needed, f"the tridiagonalization of order {n:,}")
    with device.allocating(f"the tridiagonalization of order {n:,}", needed):
        a, scale = load_matrix(found, lower=lower, bandwidth=bandwidth, check_finite=check_finite, overwrite=overwrite)
        panels = band_reduction(a, n, bandwidth=bandwidth, block=block)
        d, e = chase_band(extract_band(panels), n, bandwidth, a if calc_q else None)
        q = None
        if calc_q:
            z = zero_matrix(n, n, np.complex128 if dtype.kind == "c" else np.float64)
            as_array(z, n, n)[np.arange(n), np.arange(n)] = 1
            z = _take_back(panels, z, n)
            q = give_back(as_array(z, n, n))
    real = np.empty(0, dtype).real.dtype
    d, e = (cupy.ldexp(x, -scale).astype(real) for x in (d, e[: n - 1]))
    return give_back(d), give_back(e), q
