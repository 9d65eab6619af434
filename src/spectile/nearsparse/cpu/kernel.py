"""The innermost loop on the CPU: one register block of C as LLVM vector code, and prefetches."""

from __future__ import annotations

import functools
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from spectile.core.jit import njit

# Tiles are padded to a multiple of this many rows and columns, which every register block divides.
PAD = 32


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
def multiply_add(
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


@njit(nogil=True)
def prefetch_tile(x: Any, block: int, width: int, i: int, j: int) -> None:
    """Fetch tile (i, j), of `block` rows and `width` columns, whose rows lie where no hardware prefetch reaches."""
    columns = min(width, x.shape[1] - j * width)
    for r in range(i * block, min((i + 1) * block, x.shape[0])):
        for s in range(0, columns, 64 // x.itemsize):
            _prefetch(x, r * x.shape[1] + j * width + s)  # type: ignore[call-arg]
