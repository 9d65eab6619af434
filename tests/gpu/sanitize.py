"""compute-sanitizer over one small call of every kernel: memcheck, racecheck, synccheck and initcheck.

    python tests/gpu/sanitize.py [memcheck racecheck synccheck initcheck]

The calls themselves are run by ``python tests/gpu/sanitize.py --calls``, once under each tool, in one process each;
it ends with the kernels that no call launched, so that none is left out unseen.  What synccheck reports of `chase`
is the tool's error (docs/notes/evd.md), which arrivals.py shows with a kernel of thirty lines.
"""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys

TOOLS = {
    "memcheck": ["--leak-check", "no"],
    "racecheck": ["--racecheck-report", "analysis"],
    "synccheck": [],
    "initcheck": [],
}


def calls() -> None:
    """Call every public function once for each kernel that it can take, as small as that kernel is taken."""
    import cupy
    import cupyx.scipy.sparse
    import numpy as np
    import scipy.sparse as sp

    import spectile
    from spectile.evd.cuda import generalized
    from spectile.kpm.operators.lattices import graphene
    from spectile.tsparse.types import lookup
    from spectile_study.cases.tsparse.tiles.product import spgemm as by_tiles

    rng = np.random.default_rng(1)
    a = cupy.asarray(rng.standard_normal((320, 320)))
    for dtype in ("float16", "float32", "float64"):
        x = a.astype(dtype)
        for options in (
            {"tau": 20.0},
            {"valid_ratio": 0.5},
            {"rtol_factors": 0.05},
            {"tau": 5.0, "block": 16, "strict": True},
        ):
            float(spectile.spamm(x, x, **options).error_bound)
        spectile.spamm(x[:, 1:], x[1:], tau=20.0)  # rows that start anywhere
        spectile.spamm(cupy.stack([x, x]), x, tau=20.0)
    single = a.astype("float32")
    spectile.spamm(single, single, tau=20.0, precision="tf32x3")
    spectile.nearsparse.norm_map(a)
    s = cupyx.scipy.sparse.csr_matrix(sp.csr_matrix(sp.random_array((300, 300), density=0.03, rng=1)))
    dense_row = sp.lil_matrix(sp.random(300, 300, 0.01, random_state=1))
    dense_row[7] = 1.0
    d = cupyx.scipy.sparse.csr_matrix(dense_row.tocsr())
    for precision in ("float64", "float32", "tf32", "float16"):
        for factor in (s, d):
            spectile.spgemm(factor, factor, precision=precision)
            single = factor.astype(lookup(precision).dtype)
            by_tiles(single, single, precision=precision, drop_cancelled=True)
    eye = cupyx.scipy.sparse.identity(2000, format="csr")
    by_tiles(eye, eye, precision="float64", drop_cancelled=False)  # short rows of tiles, sorted by warps
    row = cupyx.scipy.sparse.csr_matrix(cupy.ones((1, 160_000)))
    one = cupyx.scipy.sparse.csr_matrix(cupy.ones((1, 1)))
    by_tiles(one, row, precision="float64", drop_cancelled=False)  # sorted by keys
    signs = cupyx.scipy.sparse.csr_matrix(cupy.asarray([[1.0, -1.0], [1.0, 1.0]]))
    ones = cupyx.scipy.sparse.csr_matrix(cupy.ones((2, 2)))
    by_tiles(signs, ones, precision="float64", drop_cancelled=True)  # cancels
    lengths = np.arange(600) % 60  # rows for every kernel of short rows, by numbers of products and of columns
    far = np.concatenate([np.sort(rng.choice(2**26, n, replace=False)) for n in lengths[:300]])
    columns = np.sort(rng.integers(0, 600, lengths.sum()))
    steps = sp.csr_matrix((np.ones(len(columns)), columns, np.cumsum([0, *lengths])), shape=(600, 600))
    steps.sum_duplicates()
    wide = sp.csr_matrix((np.ones(len(far)), far, np.cumsum([0, *lengths[:300]])), shape=(300, 2**26))
    pairs = [(s, s), (d, d), (cupyx.scipy.sparse.csr_matrix(steps),) * 2, (s, cupyx.scipy.sparse.csr_matrix(wide))]
    for dtype in ("float32", "float64"):
        for left, right in ((left.astype(dtype), right.astype(dtype)) for left, right in pairs):
            spectile.spgemm(left, right)
            for limit in (None, 10**9):
                pattern = spectile.tsparse.symbolic(left, right, memory_limit=limit)
                pattern.numeric(left.data, right.data)
                pattern.multiply(left, right)
    for dtype in ("float32", "float64", "complex64", "complex128"):
        for n in (70, 1601):
            x = cupy.asarray(rng.standard_normal((n, n)).astype(dtype))
            spectile.eigh(x + x.T)
            spectile.eigvalsh(x + x.T)
        graded = x + x.T
        spectile.eigh(graded, subset_by_index=(0, 9))  # inverse iteration
        spectile.eigvalsh(graded, subset_by_value=(-1.0, 1.0))  # counted before they are computed
        for order in (4096, 100):  # the factor by cuBLAS's solver, and by products
            generalized.SOLVED_ORDER = order
            spectile.eigh(graded, graded @ graded.conj().T + 1601 * cupy.eye(1601, dtype=dtype))
        for n in (1, 5, 33, 70):
            batch = cupy.asarray(rng.standard_normal((3, n, n)).astype(dtype))
            spectile.eigh(batch + batch.swapaxes(-1, -2))
    h = graphene(24, 24)
    for dtype in ("float32", "float64", "complex64", "complex128"):
        # Rows of three entries, and of twelve that four adjacent ones share.
        for matrix in (h, sp.kron(h, np.ones((4, 4)), format="csr")):
            for vectors in (1, 4, 8, 32):
                spectile.kpm_dos(cupyx.scipy.sparse.csr_matrix(matrix.astype(dtype)), 16, vectors, rng=1)
    cupy.cuda.Device().synchronize()


def never_launched() -> list[str]:
    """Return the kernels of the current device that this process has not launched, each as "unit: name"."""
    from spectile.core.compile import _image, choose_image, compilable
    from spectile.core.device import actual_arch, describe
    from spectile.core.launch import _KERNELS

    launched = {(known.unit, known.name) for known in _KERNELS.values()}
    left = []
    for system in ("evd", "kpm", "nearsparse", "tsparse"):
        for unit in dict.fromkeys(importlib.import_module(f"spectile.{system}.cuda.units").UNITS):
            image = choose_image(unit.archs, describe().arch, actual_arch(), compilable())
            if image is None:
                continue
            code = _image(unit, *image)
            pattern = rb"\.text\.(\w+)\0" if image[1] == "cubin" else rb"\.visible \.entry (\w+)\("
            names = sorted({name.decode() for name in re.findall(pattern, code)})
            missing = [name for name in names if (unit, name) not in launched]
            if missing:
                defines = " ".join(f"{key}={value}" for key, value in unit.defines.items())
                left.append(f"{system} {'+'.join(unit.sources)} [{defines}]: {', '.join(missing)}")
    return left


def under(tools: dict[str, list[str]], command: list[str]) -> int:
    """Run a command under each tool with its options; return 1 if one reports an error, and 2 where there is none."""
    program = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if program is None:
        print("compute-sanitizer is not installed: it comes with the CUDA toolkit")
        return 2
    subprocess.run([program, "--version"], check=True)
    status = 0
    for tool, options in tools.items():
        given = [program, "--tool", tool, "--error-exitcode", "1", "--print-limit", "40", *options]
        done = subprocess.run([*given, *command], check=False)
        print(
            f"{tool}: {'no error' if done.returncode == 0 else f'errors (exit status {done.returncode})'}", flush=True
        )
        status |= done.returncode != 0
    return status


if __name__ == "__main__":
    if sys.argv[1:] == ["--calls"]:
        calls()
        print(*never_launched(), sep="\n")
    else:
        chosen = {tool: TOOLS[tool] for tool in sys.argv[1:] or TOOLS}
        sys.exit(under(chosen, [sys.executable, __file__, "--calls"]))
