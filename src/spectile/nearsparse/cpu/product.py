"""The CPU backend: tiles packed once, norms on the way, and a register-blocked kernel over exactly the valid products.

A library's GEMM is slow on 32 x 32 tiles (it packs its operands again at each call), so A and B are packed once into
tiles, where their norms are taken, and each tile of C stays in the first-level cache while the valid k are multiplied
into it.  The innermost loop is LLVM vector code; the rest is plain Numba, run by threads without the GIL.
"""

from __future__ import annotations

import functools
import math
import os
import queue
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from spectile.nearsparse.bounds import NORM_SLACK, largest_tau, rounding_bound, skipping_limit
from spectile.nearsparse.result import SpammResult

# Tiles are padded to a multiple of this many rows and columns, which every register block divides.
PAD = 32
# Tile rows of A that one thread holds packed (at most), and tile columns of B that it multiplies with them at a time.
PANEL, GROUP = 32, 8
PANEL_BYTES = 64 << 20
# How many tiles ahead of packing their rows are fetched.
AHEAD = 2
# Tile rows in one task of the norm map.
STRIP = 4
# Tile products, and tiles of a norm map, below which starting threads costs more than it gains.
SERIAL, SERIAL_NORMS = 64, 4096


@functools.cache
def register_block(bits: int) -> tuple[int, int, int]:
    """Return rows, vectors and lanes of the block of C in registers: half of the registers are accumulators."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        lanes = 512 // bits
        vectors = PAD // lanes
        return 16 // vectors, vectors, lanes
    return 4, 2, (256 if features.get("avx2") else 128) // bits


def _emit_prefetch(builder: ir.IRBuilder, pointer: Any, level: int) -> None:
    """Emit a prefetch of the cache line at `pointer` for reading, into the cache of this level and those below."""
    half_word, byte = ir.IntType(32), ir.IntType(8).as_pointer()
    prefetch = builder.module.declare_intrinsic(
        "llvm.prefetch.p0", (), ir.FunctionType(ir.VoidType(), [byte, half_word, half_word, half_word])
    )
    read, keep, data = half_word(0), half_word(4 - level), half_word(1)
    builder.call(prefetch, [builder.bitcast(pointer, byte), read, keep, data])


@intrinsic
def _multiply_add(
    typing: Any,
    c: Any,
    at_c: Any,
    a: Any,
    at_a: Any,
    b: Any,
    at_b: Any,
    ld: Any,
    length: Any,
    ahead: Any,
    at_ahead: Any,
) -> Any:
    """C += A[:length].T @ B[:length] for one register block, length >= 1, k running in the rows of A and of B.

    `c`, `a`, `b` and `ahead` are C-contiguous arrays of one dtype, `at_*` the places of the first elements in them and
    `ld` the leading dimension of the first three.  One cache line of `ahead` is prefetched at each step.
    """
    kind = c.dtype
    rows, vectors, lanes = register_block(kind.bitwidth)
    size = kind.bitwidth // 8
    word, half_word = ir.IntType(64), ir.IntType(32)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        c, a, b, ahead = (
            builder.gep(context.make_array(signature.args[n])(context, builder, arguments[n]).data, [arguments[n + 1]])
            for n in (0, 2, 4, 8)
        )
        ld, length = arguments[6], arguments[7]
        scalar = context.get_value_type(kind)
        vector = ir.VectorType(scalar, lanes)
        undefined = ir.Constant(vector, ir.Undefined)
        broadcast = ir.Constant(ir.VectorType(half_word, lanes), [0] * lanes)
        fma = builder.module.declare_intrinsic(
            f"llvm.fma.v{lanes}f{kind.bitwidth}", (), ir.FunctionType(vector, [vector] * 3)
        )

        def load(pointer: Any, element: int, of: ir.Type) -> Any:
            place = builder.gep(pointer, [word(element)])
            return builder.load(builder.bitcast(place, of.as_pointer()), align=size)

        rows_of_c = [builder.gep(c, [builder.mul(ld, word(row))]) for row in range(rows)]
        start = [load(row, v * lanes, vector) for row in rows_of_c for v in range(vectors)]
        entry = builder.block
        loop, done = builder.append_basic_block("k"), builder.append_basic_block("store")
        builder.branch(loop)

        builder.position_at_end(loop)
        k, row_a, row_b = builder.phi(word), builder.phi(a.type), builder.phi(b.type)
        sums = [builder.phi(vector) for _ in start]
        from_b = [load(row_b, v * lanes, vector) for v in range(vectors)]
        new = []
        for row in range(rows):
            lane = builder.insert_element(undefined, load(row_a, row, scalar), half_word(0))
            factor = builder.shuffle_vector(lane, undefined, broadcast)
            new += [builder.call(fma, [factor, from_b[v], sums[row * vectors + v]]) for v in range(vectors)]
        _emit_prefetch(builder, builder.gep(ahead, [builder.mul(k, word(64 // size))]), level=1)
        next_k = builder.add(k, word(1))
        for phi, first, then in (
            (k, word(0), next_k),
            (row_a, a, builder.gep(row_a, [ld])),
            (row_b, b, builder.gep(row_b, [ld])),
            *zip(sums, start, new, strict=True),
        ):
            phi.add_incoming(first, entry)
            phi.add_incoming(then, loop)
        builder.cbranch(builder.icmp_signed("<", next_k, length), loop, done)

        builder.position_at_end(done)
        for place, value in enumerate(new):
            pointer = builder.gep(rows_of_c[place // vectors], [word(place % vectors * lanes)])
            builder.store(value, builder.bitcast(pointer, vector.as_pointer()), align=size)
        return context.get_dummy_value()

    places = types.intp
    return types.void(c, places, a, places, b, places, places, places, ahead, places), generate


@intrinsic
def _prefetch(typing: Any, x: Any, at: Any) -> Any:
    """Fetch the line of element `at` of a C-contiguous array into the second-level cache."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        _emit_prefetch(builder, builder.gep(data, [arguments[1]]), level=2)
        return context.get_dummy_value()

    return types.void(x, types.intp), generate


@njit(nogil=True, cache=True)
def _prefetch_tile(x: Any, block: int, i: int, j: int) -> None:
    """Fetch tile (i, j), whose rows lie far apart where no hardware prefetch reaches."""
    columns = min(block, x.shape[1] - j * block)
    for r in range(i * block, min((i + 1) * block, x.shape[0])):
        for s in range(0, columns, 64 // x.itemsize):
            _prefetch(x, r * x.shape[1] + j * block + s)  # type: ignore[call-arg]


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _norms(x: Any, block: int, first: int, last: int, norms: Any) -> None:
    """Take the norms of the tiles of tile rows first ... last - 1, squares and sums in float64."""
    for i in range(first, last):
        norms[i] = 0
        # Row by row through all tiles: memory is read as a stream.
        for r in range(i * block, min((i + 1) * block, x.shape[0])):
            for j in range(norms.shape[1]):
                row = x[r, j * block : min((j + 1) * block, x.shape[1])]
                total = 0.0
                for s in range(row.shape[0]):
                    value = np.float64(row[s])
                    total += value * value
                norms[i, j] += total
        for j in range(norms.shape[1]):
            norms[i, j] = math.sqrt(norms[i, j])


@njit(nogil=True, cache=True)
def _pack(x: Any, block: int, i: int, j: int, transpose: bool, tile: Any) -> None:
    """Copy tile (i, j) of `x`, zero-padded; A's are transposed, so that k runs in the rows as in B's."""
    rows, columns = min(block, x.shape[0] - i * block), min(block, x.shape[1] - j * block)
    if rows < tile.shape[1] or columns < tile.shape[1]:
        tile[:] = 0
    for r in range(rows):
        source = x[i * block + r, j * block : j * block + columns]
        if transpose:
            for s in range(columns):
                tile[s, r] = source[s]
        else:
            for s in range(columns):
                tile[r, s] = source[s]


@njit(nogil=True, cache=True)
def _multiply(
    a: Any, b: Any, norms_a: Any, norms_bt: Any, tau: float, block: int, first: int, last: int, registers: Any,
    alpha: Any, beta: Any, c: Any, out: Any, packed_a: Any, packed_b: Any,
) -> int:  # fmt: skip
    """Compute tile rows first ... last - 1 of C; return the number of tile products.

    ``packed_a[i, k]`` and ``packed_b[k, j]`` are work space: this panel of A, and GROUP tile columns of B.
    """
    blocks, columns_b = norms_bt.shape[1], norms_bt.shape[0]
    ld, size, line = packed_a.shape[3], block * packed_a.shape[3], 64 // out.itemsize
    sums = np.empty((ld, ld), out.dtype)
    counts, valid = np.empty((last - first, GROUP), np.intp), np.empty((last - first, GROUP, blocks), np.intp)
    needed_a, needed_b = np.zeros((last - first, blocks), np.bool_), np.empty((blocks, GROUP), np.bool_)
    executed = 0
    for group in range(0, columns_b, GROUP):
        width = min(GROUP, columns_b - group)
        needed_b[:] = False
        for i in range(last - first):
            for j in range(width):
                count = 0
                for k in range(blocks):
                    # A product that is NaN is not below tau, so that NaN and infinity propagate.
                    if not (norms_a[first + i, k] * norms_bt[group + j, k] < tau):
                        valid[i, j, count] = k
                        count += 1
                for t in range(count):
                    k, ahead = valid[i, j, t], valid[i, j, min(t + AHEAD, count - 1)]
                    if not needed_a[i, ahead]:
                        _prefetch_tile(a, block, first + i, ahead)
                    if not needed_b[ahead, j]:
                        _prefetch_tile(b, block, ahead, group + j)
                    if not needed_a[i, k]:
                        needed_a[i, k] = True
                        _pack(a, block, first + i, k, True, packed_a[i, k])
                    if not needed_b[k, j]:
                        needed_b[k, j] = True
                        _pack(b, block, k, group + j, False, packed_b[k, j])
                counts[i, j] = count
                executed += count
        for i in range(last - first):
            for j in range(width):
                row, column = (first + i) * block, (group + j) * block
                height, breadth = min(block, out.shape[0] - row), min(block, out.shape[1] - column)
                sums[:] = 0
                for t in range(counts[i, j]):
                    k, ahead = valid[i, j, t], valid[i, j, min(t + 1, counts[i, j] - 1)]
                    tile_a, tile_b = (i * blocks + k) * size, (k * GROUP + j) * size
                    # The next product's tiles are fetched during this one: A's in its first half, B's in the other.
                    ahead_a, ahead_b = (i * blocks + ahead) * size, (ahead * GROUP + j) * size
                    for r in range(0, height, registers[0]):
                        for s in range(0, breadth, registers[1]):
                            at, from_a, from_b = r * ld + s, tile_a + r, tile_b + s
                            if 2 * r < height:
                                _multiply_add(  # type: ignore[call-arg]
                                    sums, at, packed_a, from_a, packed_b, from_b, ld, block, packed_a, ahead_a
                                )
                                ahead_a += block * line
                            else:
                                _multiply_add(  # type: ignore[call-arg]
                                    sums, at, packed_a, from_a, packed_b, from_b, ld, block, packed_b, ahead_b
                                )
                                ahead_b += block * line
                for r in range(height):
                    target = out[row + r, column : column + breadth]
                    if beta == 0:
                        for s in range(breadth):
                            target[s] = alpha * sums[r, s]
                    else:
                        source = c[row + r, column : column + breadth]
                        for s in range(breadth):
                            target[s] = alpha * sums[r, s] + beta * source[s]
    return executed


@njit(nogil=True, cache=True)
def _count(sorted_a: Any, sorted_b: Any, tau: float) -> int:
    """Count the products that reach tau; row k holds the norms of A's column k, and of B's row k, in rising order."""
    count = 0
    for k in range(sorted_a.shape[0]):
        first = 0
        for i in range(sorted_a.shape[1] - 1, -1, -1):
            # The smaller the norm of A, the later the first norm of B that reaches tau with it.
            while first < sorted_b.shape[1] and sorted_a[k, i] * sorted_b[k, first] < tau:
                first += 1
            count += sorted_b.shape[1] - first
    return count


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _skipped(norms_a: Any, norms_bt: Any, tau: float, first: int, last: int) -> float:
    """Sum over the tiles of C of (sum of the skipped ||A_ik|| ||B_kj||)^2."""
    total = 0.0
    for i in range(first, last):
        for j in range(norms_bt.shape[0]):
            tile = 0.0
            for k in range(norms_a.shape[1]):
                product = norms_a[i, k] * norms_bt[j, k]
                tile += product if product < tau else 0.0
            total += tile * tile
    return total


@functools.cache
def _blas() -> Any:
    import threadpoolctl

    return threadpoolctl.ThreadpoolController().select(user_api="blas")


def threads() -> int:
    """Return the threads to use: as many as BLAS is set to (threadpoolctl), at most the cores given."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(library["num_threads"] for library in _blas().info())]))


def _each(function: Callable[[Any], Any], items: Iterable[Any], parallel: bool) -> list[Any]:
    count = threads() if parallel else 1
    if count == 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(function, items))


def _tiles(length: int, block: int) -> int:
    return -(-length // block)


def norm_map(x: Any, block: int = 32) -> Any:
    """Return the Frobenius norms of the tiles, float64, shape (ceil(m / block), ceil(n / block))."""
    x = np.ascontiguousarray(_computed(x))
    norms = np.empty((_tiles(x.shape[0], block), _tiles(x.shape[1], block)))
    rows = norms.shape[0]

    def strip(first: int) -> None:
        _norms(x, block, first, min(first + STRIP, rows), norms)

    _each(strip, range(0, rows, STRIP), parallel=norms.size > SERIAL_NORMS)
    return norms


def _computed(x: Any) -> Any:
    """Return `x` in the dtype of the sums: float16 is multiplied in float32, where its products are exact."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def count_valid(norms_a: Any, norms_b: Any, tau: float) -> int:
    """Return how many tile products have ``||A_ik|| ||B_kj|| >= tau``, for finite norms."""
    return _counter(norms_a, norms_b)(tau)


def _counter(norms_a: Any, norms_b: Any) -> Callable[[float], int]:
    """Return `count_valid` of these norm maps: sorting them once makes each count a merge, O(n^2) for n^3 products."""
    sorted_a, sorted_b = np.sort(norms_a.T, axis=1), np.sort(norms_b, axis=1)
    return lambda tau: int(_count(sorted_a, sorted_b, tau))


def skipped_bound(norms_a: Any, norms_b: Any, tau: float) -> float:
    """Return sqrt(sum_ij (sum of the skipped ||A_ik|| ||B_kj||)^2), a bound of the Frobenius norm of what tau skips."""
    norms_bt = np.ascontiguousarray(norms_b.T)
    rows, parallel = norms_a.shape[0], norms_a.size * norms_b.shape[1] > SERIAL**3
    return (
        math.sqrt(sum(_each(lambda i: _skipped(norms_a, norms_bt, tau, i, i + 1), range(rows), parallel))) * NORM_SLACK
    )


def _ratio(norms_a: Any, norms_b: Any, count: int) -> float:
    products = norms_a.size * norms_b.shape[1]
    return count / products if products else 1.0


def tune_tau(
    norms_a: Any, norms_b: Any, valid_ratio: float, iterations: int = 20, tolerance: float = 0.01
) -> tuple[float, float]:
    """Search tau for a valid ratio as the paper does (Section 3.5.2); see :func:`spectile.nearsparse.tune_tau`."""
    mean = float(norms_a.sum(axis=0) @ norms_b.sum(axis=1)) / max(1, norms_a.size * norms_b.shape[1])
    if valid_ratio == 1 or mean == 0:
        return 0.0, 1.0

    count = _counter(norms_a, norms_b)

    def found(tau: float) -> float:
        return _ratio(norms_a, norms_b, count(tau))

    low, high = 0.0, mean
    tau, ratio = high, found(high)
    while ratio > valid_ratio + tolerance:
        low, high = high, 2 * high
        tau, ratio = high, found(high)
    best = (tau, ratio) if abs(ratio - valid_ratio) < 1 - valid_ratio else (0.0, 1.0)
    for _ in range(iterations):
        if abs(best[1] - valid_ratio) < tolerance:
            break
        tau = (low + high) / 2
        ratio = found(tau)
        if abs(ratio - valid_ratio) < abs(best[1] - valid_ratio):
            best = tau, ratio
        if ratio > valid_ratio:
            low = tau
        else:
            high = tau
    return best


def tau_for_error(norms_a: Any, norms_b: Any, limit: float) -> float:
    """Return the largest tau, to a relative 1e-6 and never above it, whose :func:`skipped_bound` is at most `limit`."""
    largest = float((norms_a.max(axis=0) * norms_b.max(axis=1)).max())
    return largest_tau(functools.partial(skipped_bound, norms_a, norms_b), largest, limit)


def spamm_cpu(
    a: Any,
    b: Any,
    *,
    tau: float | None,
    valid_ratio: float | None,
    rtol: float | None,
    block: int,
    alpha: float,
    beta: float,
    c: Any,
    out: Any,
    strict: bool,
    precision: str,
    check_finite: bool,
) -> SpammResult:
    """Multiply on the CPU; see :func:`spectile.nearsparse.spamm`.  Exactly the valid products, `strict` or not."""
    del strict
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    half = precision == "fp16c16"
    sums = _computed(a[..., :0, :0]).dtype
    # Packing reads all of a and b before out is written, but only one product of a batch at a time.
    fresh = out is None or half or (batch and (np.may_share_memory(out, a) or np.may_share_memory(out, b)))
    result = np.empty(shape, sums) if fresh else out
    a, b = np.broadcast_to(a, (*batch, *a.shape[-2:])), np.broadcast_to(b, (*batch, *b.shape[-2:]))
    if c is not None and c is not result:
        c = np.ascontiguousarray(c, dtype=sums)
        # An entry of C is read just before the same one of the result is written, and only that one.
        same = c.ctypes.data == result.ctypes.data and c.strides == result.strides
        c = c if same or not np.may_share_memory(c, result) else c.copy()
    taus, ratios, bounds = np.empty(batch), np.empty(batch), np.empty(batch, object)
    for index in np.ndindex(batch):
        source = None if c is None else c[index]
        one_a, one_b = (np.ascontiguousarray(_computed(x[index])) for x in (a, b))
        norms_a, norms_b = norm_map(one_a, block), norm_map(one_b, block)
        _check_norms(norms_a, norms_b, required=check_finite or tau is None)
        rounding = functools.partial(rounding_bound, (*a.shape[-2:], b.shape[-1]), precision=precision)
        taus[index] = _threshold(norms_a, norms_b, tau, valid_ratio, rtol, rounding)
        # C may be overwritten before its norm is asked for.
        added = 0.0 if source is None else float(np.linalg.norm(norm_map(source, block)))
        executed = _product(
            one_a, one_b, norms_a, norms_b, float(taus[index]), block, alpha, beta, source, result[index]
        )
        ratios[index] = _ratio(norms_a, norms_b, executed)
        bounds[index] = functools.partial(
            _error_bound, norms_a, norms_b, float(taus[index]), rounding, alpha, beta, added
        )
    if half:
        with np.errstate(over="ignore"):
            rounded = result.astype(np.float16)
        if np.isinf(rounded).any() and not np.isinf(result).any():
            raise ValueError("C overflows float16 (above 65504): take precision='fp16', whose C is float32, or scale a")
        result = rounded
    if out is not None and result is not out:
        out[...] = result
        result = out

    def norm_c() -> Any:
        return _collect(batch, lambda index: float(np.linalg.norm(norm_map(result[index], block))))

    return SpammResult(
        result,
        tau=_number(taus),
        valid_ratio=_number(ratios),
        executed_ratio=_number(ratios),
        error_bound=lambda: _collect(batch, lambda index: bounds[index]()),
        norm_c=norm_c,
    )


def _product(
    a: Any, b: Any, norms_a: Any, norms_b: Any, tau: float, block: int, alpha: float, beta: float, c: Any, out: Any
) -> int:
    """Compute alpha A B + beta C into `out`; return the number of tile products."""
    rows, blocks = norms_a.shape
    register_rows, vectors, lanes = register_block(8 * out.itemsize)
    kind, source = out.dtype.type, out if c is None else c
    norms_bt = np.ascontiguousarray(norms_b.T)
    parallel = norms_a.size * norms_b.shape[1] > SERIAL
    workers = threads() if parallel else 1
    ld = _tiles(block, PAD) * PAD
    # Several panels a thread, for balance, but tall enough that B is not packed too often, and of bounded size.
    affordable = PANEL_BYTES // max(1, blocks * block * ld * out.itemsize)
    panel = max(1, min(PANEL, max(GROUP, rows // (4 * workers)), affordable))
    spare: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(workers):
        spare.put((np.empty((panel, blocks, block, ld), out.dtype), np.empty((blocks, GROUP, block, ld), out.dtype)))

    def multiply(first: int) -> int:
        packed_a, packed_b = spare.get()
        executed = _multiply(
            a, b, norms_a, norms_bt, tau, block, first, min(first + panel, rows), (register_rows, vectors * lanes),
            kind(alpha), kind(beta), source, out, packed_a, packed_b,
        )  # fmt: skip
        spare.put((packed_a, packed_b))
        return int(executed)

    return sum(_each(multiply, range(0, rows, panel), parallel))


def _check_norms(norms_a: Any, norms_b: Any, *, required: bool) -> None:
    for name, norms in (("a", norms_a), ("b", norms_b)):
        if required and not np.isfinite(norms).all():
            i, k = np.argwhere(~np.isfinite(norms))[0]
            raise ValueError(
                f"tile ({i}, {k}) of {name} holds NaN or infinity, or its norm overflows: mend or scale {name}, "
                "or give tau with check_finite=False to let them propagate as in a dense product"
            )


def _threshold(
    norms_a: Any, norms_b: Any, tau: float | None, valid_ratio: float | None, rtol: float | None, rounding: Any
) -> float:
    if tau is not None:
        return tau
    if valid_ratio is not None:
        return tune_tau(norms_a, norms_b, valid_ratio, 60, min(0.01, valid_ratio / 10))[0]
    assert rtol is not None
    norm_a, norm_b = float(np.linalg.norm(norms_a)), float(np.linalg.norm(norms_b))
    if norm_a * norm_b == 0:
        return math.inf
    return tau_for_error(norms_a, norms_b, skipping_limit(rtol, norm_a * norm_b, rounding(norm_a, norm_b)))


def _error_bound(
    norms_a: Any, norms_b: Any, tau: float, rounding: Any, alpha: float, beta: float, norm_c: float
) -> float:
    norm_a, norm_b = float(np.linalg.norm(norms_a)), float(np.linalg.norm(norms_b))
    return abs(alpha) * skipped_bound(norms_a, norms_b, tau) + rounding(
        norm_a, norm_b, alpha=alpha, beta=beta, norm_c=norm_c
    )


def _collect(batch: tuple[int, ...], number: Callable[[Any], float]) -> Any:
    values = np.empty(batch)
    for index in np.ndindex(batch):
        values[index] = number(index)
    return _number(values)


def _number(values: Any) -> Any:
    return float(values) if values.ndim == 0 else values
