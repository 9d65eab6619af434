"""A product over several GPUs in three placements of its data, compared with one GPU's bit by bit.

``spectile_30`` ... have rows of A and all of B on every GPU, ``spectile_30_device`` all on the first,
``spectile_30_host`` all in pinned host memory; ``one_gpu_30`` is one GPU's product in the same rounds.  All of several
GPUs are calls as a user makes them; ``called_30`` ... are those of the first kind by the wall clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from spectile.core.pointers import address
from spectile.nearsparse.api import spamm
from spectile.nearsparse.cuda.norms import NormMaps
from spectile.nearsparse.cuda.product import Product
from spectile.nearsparse.cuda.survey import ratio
from spectile.nearsparse.multi import run as multi
from spectile.nearsparse.types import Request, Split
from spectile_study.bench.case import Clock, Context, Method, Problem, Skipped, Value
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.spamm.device import VENDOR_MODES, Operands
from spectile_study.cases.spamm.thresholds import BLOCK, TABLE_1, thresholds


def spread_product(row: Mapping[str, Any], context: Context) -> Problem:
    """Time the product spread over several GPUs, in three placements, beside one GPU's and cuBLAS (Figure 5)."""
    precision, taus = row["precision"], thresholds(row)
    operands = Operands(row["n"], precision, context.seed)
    # A graph would leave out what launching on several devices costs.
    operands.clock = "events"
    spread = Spread(operands.a, operands.b, operands.out, precision, row["gpus"], TABLE_1[row["n"]][0])
    methods: list[Method | Skipped] = [spread.resident(name, tau) for name, tau in taus.items()]
    name, tau = next(iter(taus.items()))
    methods += [spread.called(called.replace("spectile", "called"), tau) for called, tau in taus.items()]
    methods += [spread.from_device(f"{name}_device", tau), spread.from_host(f"{name}_host", tau)]
    methods.append(dataclasses.replace(operands.spamm(name, tau), name="one_gpu_30"))
    methods.append(operands.vendor("cublas", VENDOR_MODES[precision], operands.limit))
    return Problem(methods, inputs={"a": digest_array(operands.first)})


class Spread:
    """A product over several GPUs, timed in its placements and compared bit by bit with one GPU's.

    Parameters
    ----------
    a, b, out : cupy.ndarray
        On the first device.
    precision : str
        Of the product.
    gpus : int
        How many devices share it.
    tau : float, optional
        Threshold at which the rows are cut for `resident`; without one columns are cut, in equal parts.
    """

    def __init__(self, a: Any, b: Any, out: Any, precision: str, gpus: int, tau: float | None) -> None:
        import cupy

        self.a, self.b, self.out, self.precision = a, b, out, precision
        self.devices = list(range(gpus))
        for index in self.devices[1:]:
            with cupy.cuda.Device(index):
                cupy.get_default_memory_pool().free_all_blocks()
        self.by_rows = tau is not None
        self._split: Split = "rows" if self.by_rows else "columns"
        # Without a threshold all parts have equal work.
        self.parts_a, self.parts_b = multi.distribute(a, b, tau or 0.0, self.devices, split=self._split)
        self.parts_c = []
        for mine, other in zip(self.parts_a, self.parts_b, strict=True):
            with mine.device:
                self.parts_c.append(cupy.empty((len(mine), other.shape[1]), out.dtype))
        self.bytes = float(a.nbytes + b.nbytes + out.nbytes)

    def resident(self, name: str, tau: float, clock: Clock = "events") -> Method:
        """Return the product of operands that lie on their GPUs; of a captured graph that of its plan."""
        request, operands = Request(self.precision, tau), (self.parts_a, self.parts_b, self.parts_c)
        plan = multi.Resident(*operands, request, split=self._split)
        rows = [len(part) for part in self.parts_a]
        method = self._method(name, tau, plan, rows, self.parts_a, self.parts_b, self.parts_c)
        held: list[Any] = []

        def captured() -> None:
            # The launches of a graph use the memory of the run that was captured.
            held[:] = plan.run(*operands, tau) or []

        return dataclasses.replace(method, clock=clock, run=captured if clock == "graph" else method.run)

    def called(self, name: str, tau: float) -> Method:
        """Return the product of resident operands by the wall clock."""
        import cupy

        method = self.resident(name, tau)

        def run() -> None:
            method.run()
            for index in self.devices:
                cupy.cuda.Device(index).synchronize()

        return dataclasses.replace(method, run=run, clock="wall", prepare=None)

    def from_device(self, name: str, tau: float) -> Method:
        """Return the product of matrices on the first GPU."""
        plan = multi.FromDevice(self.a, self.b, self.out, self.devices, Request(self.precision, tau))
        rows: list[int] = np.diff(plan.rows).tolist()
        # The call makes a plan of its own.
        plan.release()
        return self._method(name, tau, plan, rows, self.a, self.b, plan.outputs())

    def from_host(self, name: str, tau: float) -> Method:
        """Return the product of matrices in pinned host memory."""
        import cupyx

        a, b, out = (cupyx.empty_pinned(x.shape, x.dtype) for x in (self.a, self.b, self.out))
        for target, source in ((a, self.a), (b, self.b)):
            source.get(out=target)
        plan = multi.FromHost(a, b, out, self.devices, Request(self.precision, tau))
        plan.release()
        return self._method(name, tau, plan, [], a, b, plan.outputs())

    def _method(self, name: str, tau: float, plan: Any, rows: list[int], a: Any, b: Any, outputs: list[Any]) -> Method:
        import cupy

        maps = NormMaps(self.a, self.b, BLOCK)
        maps()
        total = maps.a.size * maps.b.shape[0]
        valid, executed = ratio(maps, (0, 0), tau), ratio(maps, (0, 0), tau, plan.grain)
        kernel = plan.kernel

        def run() -> None:
            options: dict[str, Any] = {"precision": self.precision, "devices": self.devices}
            options |= {"out": self.parts_c, "split": self._split} if a is self.parts_a else {"out": outputs[0]}
            spamm(a, b, tau=tau, **options)

        def check(_: None) -> dict[str, float]:
            for index in self.devices:
                cupy.cuda.Device(index).synchronize()
            wanted = cupy.empty_like(self.out)
            maps()
            Product(self.a, self.b, wanted, maps, tau, precision=self.precision)()
            different, row, column = 0, 0, 0
            for part in outputs:
                for start in range(0, len(part), 4096):
                    rows = part[start : start + 4096]
                    computed = cupy.empty(rows.shape, rows.dtype)
                    places = address(computed), address(rows)
                    cupy.cuda.runtime.memcpy(*places, rows.nbytes, cupy.cuda.runtime.memcpyDefault)
                    beside = wanted[row + start :, column:][: len(computed), : computed.shape[1]]
                    word = f"u{computed.itemsize}"
                    different += int((computed.view(word) != beside.view(word)).sum())
                row, column = (row + len(part), 0) if self.by_rows else (0, column + part.shape[1])
            ends = (row, column) != ((len(wanted), 0) if self.by_rows else (0, wanted.shape[1]))
            return {"error_bits": float(different + ends)}

        def poison() -> None:
            for part in outputs:
                if isinstance(part, np.ndarray):
                    part[::512] = np.nan
                else:
                    with part.device:
                        part.fill(np.nan)
            # The product waits for all devices: what poisons them is not in the clock.
            for index in self.devices:
                cupy.cuda.Device(index).synchronize()

        def values(_: None) -> dict[str, Value]:
            values: dict[str, Value] = {"tau": tau, "valid_ratio": valid, "executed_ratio": executed}
            return values | {"kernel": kernel, "rows_of_gpus": rows}

        return Method(
            name,
            run,
            check,
            {"error_bits": 0},
            flops=2.0 * BLOCK**3 * total * valid,
            bytes=self.bytes,
            clock="events",
            values=values,
            prepare=poison,
        )
