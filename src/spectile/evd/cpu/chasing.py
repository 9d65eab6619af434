"""Bulge chasing on the CPU: Numba threads that follow each other down the band (Algorithm 2)."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from spectile.core.jit import njit

# Reductions may be reordered by the compiler, the same way in every run and on every thread.
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}}


@intrinsic
def _load_acquire(typingctx: Any, array: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load_atomic(builder.gep(data, [args[1]]), "acquire", 8)

    return types.int64(array, types.intp), codegen


@intrinsic
def _store_release(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        builder.store_atomic(args[2], builder.gep(data, [args[1]]), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), codegen


@intrinsic
def _yield_processor(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.IntType(32), []), "sched_yield")
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), codegen


@njit(**_OPTIONS)
def _reflector(x, v, negligible):  # type: ignore[no-untyped-def]
    """Write v with v[0] = 1, return τ and β, as `reference.reflector` does; a column below `negligible` is dropped."""
    m = len(x)
    tail = x[0].real * 0
    for i in range(1, m):
        tail += x[i].real * x[i].real + x[i].imag * x[i].imag
    v[0] = 1
    square = x[0].real * x[0].real + x[0].imag * x[0].imag + tail
    # Squares that have lost digits to underflow would make a reflector that is not unitary.
    if (tail == 0 and x[0].imag == 0) or square < negligible:
        for i in range(1, m):
            v[i] = 0
        return x[0] * 0, x[0] * 0 + x[0].real
    norm = np.sqrt(square)
    beta = -norm if x[0].real >= 0 else norm
    scale = 1 / (x[0] - beta)
    for i in range(1, m):
        v[i] = x[i] * scale
    return (beta - x[0]) / beta, x[0] * 0 + beta


@njit(**_OPTIONS)
def _sweeps(a, n, b, first, stride, done, vectors, negligible):  # type: ignore[no-untyped-def]
    """Run the sweeps first, first + stride, ...; element (i, j) of the band is ``a[i + j (2 b − 1)]``."""
    ld = 2 * b - 1
    keep = vectors.shape[0] > 0
    v = np.zeros(b, a.dtype)
    before = np.zeros(b, a.dtype)
    w = np.zeros(b, a.dtype)
    for sweep in range(first, n - 1, stride):
        tau_before = a[0] * 0
        tasks = (n - 2 - sweep) // b + 1
        for task in range(tasks):
            if sweep > 0:
                spins = 0
                while _load_acquire(done, sweep - 1) < task + 2:  # type: ignore[call-arg]
                    spins += 1
                    if spins > 200:
                        _yield_processor()
            start = sweep + 1 + task * b
            m = min(b, n - start)
            column = sweep if task == 0 else start - b
            if task > 0:
                # The block left of the diagonal: the reflector of the task before, from the right ...
                for i in range(m):
                    w[i] = 0
                for j in range(b):
                    o = a[start + (column + j) * ld : start + (column + j) * ld + m]
                    for i in range(m):
                        w[i] += o[i] * before[j]
                for j in range(b):
                    o = a[start + (column + j) * ld : start + (column + j) * ld + m]
                    f = tau_before * np.conj(before[j])
                    for i in range(m):
                        o[i] -= w[i] * f
            x = a[start + column * ld : start + column * ld + m]
            tau, beta = _reflector(x, v, negligible)
            x[0] = beta
            for i in range(1, m):
                x[i] = 0
            if task > 0:
                # ... and the new one, from the left.
                for j in range(1, b):
                    o = a[start + (column + j) * ld : start + (column + j) * ld + m]
                    f = a[0] * 0
                    for i in range(m):
                        f += np.conj(v[i]) * o[i]
                    f *= np.conj(tau)
                    for i in range(m):
                        o[i] -= v[i] * f
            # The diagonal block, from both sides, in its lower triangle: D − v qᴴ − q vᴴ.
            for i in range(m):
                w[i] = 0
            for j in range(m):
                o = a[start + j + (start + j) * ld : start + j + (start + j) * ld + m - j]
                f = o[0].real * v[j]
                for i in range(1, m - j):
                    w[j + i] += o[i] * v[j]
                    f += np.conj(o[i]) * v[j + i]
                w[j] += f
            gamma = tau.real * 0
            for i in range(m):
                gamma += v[i].real * w[i].real + v[i].imag * w[i].imag
            gamma *= 0.5 * (tau.real * tau.real + tau.imag * tau.imag)
            for i in range(m):
                w[i] = tau * w[i] - gamma * v[i]
            for j in range(m):
                o = a[start + j + (start + j) * ld : start + j + (start + j) * ld + m - j]
                f = np.conj(w[j])
                g = np.conj(v[j])
                for i in range(m - j):
                    o[i] -= v[j + i] * f + w[j + i] * g
                o[0] = o[0].real
            if keep:
                vectors[sweep, start] = tau
                for i in range(1, m):
                    vectors[sweep, start + i] = v[i]
            v, before = before, v
            tau_before = tau
            _store_release(done, sweep, task + 1)  # type: ignore[call-arg]
        _store_release(done, sweep, n + 2)  # type: ignore[call-arg]


def chase(band: np.ndarray, bandwidth: int, *, keep: bool, threads: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reduce a band matrix to a real tridiagonal one.

    Parameters
    ----------
    band : array, shape (n, 2 b)
        Lower band: ``band[j, i - j]`` is element (i, j); the half beyond the band is zero.  Overwritten.
    bandwidth : int
        b, at least 1.
    keep : bool
        Whether the reflectors are kept.
    threads : int
        Sweep s runs on thread s mod `threads`, three blocks behind the sweep before it.

    Returns
    -------
    d, e : array, shape (n,), (n - 1,)
    vectors : array, shape (n, n), or (0, 0) unless `keep`
        Row s holds the reflectors of sweep s at their rows, with τ in place of each leading 1.
    """
    from threading import Thread

    n = band.shape[0]
    # Columns at the end reach beyond the last row by up to 2 b elements.
    flat = np.concatenate([band.ravel(), np.zeros(2 * bandwidth, band.dtype)])
    vectors = np.zeros((n, n) if keep else (0, 0), band.dtype)
    done = np.zeros(n + 1, np.int64)
    real = np.finfo(band.dtype)
    negligible = real.dtype.type(real.tiny / real.eps)
    threads = max(1, min(threads, n // (3 * bandwidth) or 1))
    workers = [
        Thread(target=_sweeps, args=(flat, n, bandwidth, first, threads, done, vectors, negligible))
        for first in range(1, threads)
    ]
    for worker in workers:
        worker.start()
    _sweeps(flat, n, bandwidth, 0, threads, done, vectors, negligible)
    for worker in workers:
        worker.join()
    step = 2 * bandwidth
    return flat[: n * step : step].real.copy(), flat[1 : (n - 1) * step + 1 : step].real.copy(), vectors
