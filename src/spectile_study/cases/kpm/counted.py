"""The process whose kernels are counted: build a ``step`` case and call each method, marked, under the profiler.

:func:`spectile_study.cases.kpm.counters.count` starts it beneath Nsight Compute.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cupy

from spectile_study.bench.case import Context, Method
from spectile_study.cases.kpm.counters import MARK
from spectile_study.cases.kpm.cuda import step


def run(order: Mapping[str, Any]) -> dict[str, float]:
    """Call every method of `order` twice, the second time counted, and return the error of each result."""
    problem = step(order["row"], Context("cuda", Path(), order["seed"], order["threads"]))
    errors = {}
    for method in problem.methods:
        if not isinstance(method, Method) or method.name not in order["methods"]:
            continue
        mark = cupy.ElementwiseKernel("", "int32 out", "out = 0", f"{MARK}{method.name}")
        assert method.prepare is not None
        for counted in (False, True):
            method.prepare()
            mark(cupy.empty(1, cupy.int32))
            cupy.cuda.runtime.deviceSynchronize()
            if counted:
                cupy.cuda.runtime.profilerStart()
                mark(cupy.empty(1, cupy.int32))
            result = method.run()
            cupy.cuda.runtime.deviceSynchronize()
            if counted:
                cupy.cuda.runtime.profilerStop()
        errors[method.name] = method.check(result)["error_fro_rel"]
    return errors


if __name__ == "__main__":
    print(json.dumps({"errors": run(json.loads(Path(sys.argv[1]).read_text()))}), flush=True)
