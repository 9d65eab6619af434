"""The first call of a process with an empty cache compiles what it launches side by side, and nothing alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import spectile

pytestmark = pytest.mark.gpu

# Compilations of the first call and of the second, each by its file, and whether a thread of its own did it.
CODE = """
import json, threading
import cupy, cupyx.scipy.sparse, numpy, scipy.sparse
import spectile
from spectile.core.compile import Unit
compiled, inner = [], Unit.cubin
def cubin(unit, arch):
    compiled.append([unit.sources[0], threading.current_thread() is not threading.main_thread()])
    return inner(unit, arch)
Unit.cubin = cubin
Unit.ptx = lambda unit, arch, inner=Unit.ptx: compiled.append([unit.sources[0], True]) or inner(unit, arch)
{setup}
counts = []
for _ in range(2):
    right = {call}
    counts.append(len(compiled))
print(json.dumps([bool(right), counts, compiled]))
"""
RANDOM = (
    "h = scipy.sparse.random({n}, {n}, {share}, format='csr', random_state=1); g = cupyx.scipy.sparse.csr_matrix(h)"
)
PRODUCT = "abs(spectile.spgemm(g, g).get() - h @ h).max() < 1e-10"
CALLS = {
    "spamm": (
        "a = cupy.asarray(numpy.ones((4096, 4096), 'f2'))",
        "spectile.spamm(a, a, tau=0.0).c[5, 9].get() == 4096",
    ),
    "spgemm by blocks": (RANDOM.format(n=2000, share=0.01), PRODUCT),
    "spgemm by warps": (RANDOM.format(n=40000, share=2e-4), PRODUCT),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_compiled_alone(name: str, tmp_path: Path) -> None:
    setup, call = CALLS[name]
    here = os.pathsep.join((str(Path(spectile.__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "CUPY_CACHE_DIR": str(tmp_path), "PYTHONPATH": here}
    command = [sys.executable, "-c", CODE.format(setup=setup, call=call)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    right, (first, second), compiled = json.loads(done.stdout.splitlines()[-1])
    assert right and first == second
    assert [source for source, beside in compiled if not beside] == []
