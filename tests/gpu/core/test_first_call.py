"""The first call of a process with empty caches compiles what it launches side by side, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import spectile

pytestmark = pytest.mark.gpu

# Compilations of the first call and of the second, each by its file and kernel, and whether a thread of its own did it.
CODE = """
import json, threading
import cupy, cupyx.scipy.sparse, numpy, scipy.sparse
import spectile
import spectile.core.compile
from spectile.core.compile import Unit
spectile.core.compile.shipping_folders = lambda: ()  # a tree may have been compiled as a whole
compiled, inner = [], Unit._compile
def compile(unit, arch, method):
    beside = threading.current_thread() is not threading.main_thread()
    compiled.append([unit.sources[0], unit.defines.get("NAME") or unit.defines.get("FAMILY", ""), beside])
    return inner(unit, arch, method)
Unit._compile = compile
{setup}
counts = []
for _ in range(2):
    right = {call}
    counts.append(len(compiled))
print(json.dumps([bool(right), counts, compiled]))
"""
RANDOM = (
    "h = scipy.sparse.random({n}, {n}, {share}, format='csr', rng=numpy.random.default_rng(1)); "
    "g = cupyx.scipy.sparse.csr_matrix(h)"
)
PRODUCT = "abs(spectile.spgemm(g, g).get() - h @ h).max() < 1e-10"
BEFORE = {"check.cu", "rows/analysis.cu", "rows/place.cu", "WINDOWS", "TABLES", "SORTS"}
# The setup, a call that must be true, and what it compiles at least and at most.
CALLS = {
    "spamm": (
        "a = cupy.asarray(numpy.ones((4096, 4096), 'f2'))",
        "spectile.spamm(a, a, tau=0.0).c[5, 9].get() == 4096",
        {"norm_map.cu"},
        {"norm_map.cu", "product_wgmma.cu", "product.cu"},
    ),
    "spgemm by blocks": (
        RANDOM.format(n=2000, share=0.01),
        PRODUCT,
        BEFORE | {"rows/symbolic_block.cu", "numeric_window_2048_32", "numeric_sort_128_32"},  # a row has 126 products
        BEFORE | {
            "rows/symbolic_block.cu", "numeric_window_2048_32", "numeric_window_2048_few_16", "numeric_sort_128_32"
        },
    ),
    "spgemm by warps": (
        RANDOM.format(n=40000, share=1e-4),
        PRODUCT,
        BEFORE | {"numeric_few_1", "numeric_sort_32_8"},
        BEFORE | {
            "rows/symbolic_block.cu", "numeric_few_1", *(f"numeric_sort_{4 * lanes}_{lanes}" for lanes in (8, 16, 32))
        },
    ),
    "eigh": (
        "h = numpy.random.default_rng(1).standard_normal((2100, 2100)); h = h + h.T; g = cupy.asarray(h)",
        "abs(spectile.eigh(g)[0].get() - numpy.linalg.eigvalsh(h)).max() < 1e-9",
        set(),
        {
            "reduction/panel.cu", "reduction/products.cu", "chasing/chasing.cu", "matrix.cu", "back/tiles.cu",
            "back/sweeps.cu", "back/panels.cu",
            *(f"tridiagonal/{name}.cu" for name in ("divide", "roots", "vectors", "leaves")),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_what_is_launched_is_compiled_side_by_side(name: str, tmp_path: Path) -> None:
    setup, call, least, most = CALLS[name]
    here = os.pathsep.join((str(Path(spectile.__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
    # NVRTC has a cache of its own.
    own = {"CUPY_CACHE_DIR": str(tmp_path / "cupy"), "CUDA_CACHE_PATH": str(tmp_path / "cuda"), "PYTHONPATH": here}
    command = [sys.executable, "-c", CODE.format(setup=setup, call=call)]
    environment = {**os.environ, **own}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    right, (first, second), compiled = json.loads(done.stdout.splitlines()[-1])
    assert right and first == second
    # One alone may be compiled by who waits for it: a device with slow float64 leaves eigh's stages to cuSOLVER.
    assert len(compiled) == 1 or [source for source, _, beside in compiled if not beside] == []
    names = [kernel or source for source, kernel, _ in compiled]
    assert least <= set(names) <= most and len(names) == len(set(names))
