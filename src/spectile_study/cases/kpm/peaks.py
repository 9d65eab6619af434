"""Attainable peaks, for Table II: a CPU's bandwidth and multiply-adds, a GPU's multiply-adds."""

from __future__ import annotations

import numba

from spectile.core.compile import PORTABLE, Unit
from spectile.core.jit import njit

#: Rate of independent double-precision multiply-adds.
GPU_PEAK = Unit(__package__, ("peak.cu",), PORTABLE)
UNITS = (GPU_PEAK,)

#: Passes of :func:`multiply_add`'s inner chains, and flop of one pass.
ROUNDS = 2_000_000
_CHAINS, _LANES = 10, 8
FLOPS = 2 * _CHAINS * _LANES


@njit(nogil=True, fastmath={"contract"})
def triad(x, y, z, start, stop):  # type: ignore[no-untyped-def]
    """Compute x = y + 3 z from start to stop (STREAM)."""
    for i in range(start, stop):
        x[i] = y[i] + 3.0 * z[i]


@njit(nogil=True, fastmath={"contract"})
def update(x, y, start, stop):  # type: ignore[no-untyped-def]
    """Compute x = x / 2 + y / 4 from start to stop, which leaves ones beside twos as they are."""
    for i in range(start, stop):
        x[i] = 0.5 * x[i] + 0.25 * y[i]


def multiply_add(rounds: int) -> float:
    """Run `rounds` passes of chained multiply-adds, enough independent ones to fill the pipelines; return their sum."""
    return float(_multiply_add(rounds))


@numba.extending.intrinsic
def _chains(typingctx, x, rounds):  # type: ignore[no-untyped-def]
    from numba import types

    from spectile.kpm.cpu.lanes import Lanes

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        lanes = Lanes(builder, args[0].type, _LANES)
        factor, intp = lanes.splat(args[0]), args[1].type
        before = builder.block
        loop, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        n = builder.phi(intp)
        sums = [builder.phi(lanes.type) for _ in range(_CHAINS)]
        n.add_incoming(intp(0), before)
        following = builder.add(n, intp(1))
        n.add_incoming(following, loop)
        new = []
        for total in sums:
            total.add_incoming(factor, before)
            new.append(lanes.multiply_add(total, factor, factor))
            total.add_incoming(new[-1], loop)
        builder.cbranch(builder.icmp_signed("<", following, args[1]), loop, done)
        builder.position_at_end(done)
        total = new[0]
        for other in new[1:]:
            total = builder.fadd(total, other)
        return lanes.lane(total, 0)

    return types.float64(types.float64, types.intp), codegen


@njit(nogil=True, fastmath={"contract"})
def _multiply_add(rounds):  # type: ignore[no-untyped-def]
    return _chains(0.5, rounds)  # type: ignore[call-arg]
