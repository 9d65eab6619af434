"""Eigenproblems of several ranks: how blocks are dealt out, and what ScaLAPACK makes of them where it is installed."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from spectile.evd.distributed.matrix import held_by, nearly_square

# A rank that fails ends the others, which wait for it.
START = """
import sys, traceback
from mpi4py import MPI
sys.excepthook = lambda *error: (traceback.print_exception(*error), MPI.COMM_WORLD.Abort(1))
"""

LAYOUT = """
import numpy as np
from spectile.evd.distributed import BlockCyclicMatrix
comm = MPI.COMM_WORLD
for shape in ((7, 7), (1, 1), (0, 0), (40, 3), (3, 40)):
    whole = np.arange(shape[0] * shape[1]).reshape(shape) * (1 + 2j)
    for block in (1, 3, 64):
        for grid in (None, (comm.size, 1), (1, comm.size)):
            a = BlockCyclicMatrix.from_function(
                comm, shape, lambda i, j: whole[i, j], complex, block=block, grid=grid)
            assert a.local.flags.f_contiguous and sum(comm.allgather(a.local.size)) == whole.size
            found = a.gather(comm.size - 1)
            assert (found is None) == (comm.rank != comm.size - 1)
            assert found is None or (found == whole).all()
for wrong in ({"grid": (2, 2)}, {"grid": 2}, {"block": 0}, {"block": 1.5}, {"block": True}, {"dtype": int}):
    try:
        BlockCyclicMatrix(comm, (4, 4), **wrong)
    except ValueError as error:
        assert next(iter(wrong)) in str(error)
    else:
        raise AssertionError(wrong)
if comm.size == 1:
    import doctest
    from spectile.evd.distributed import matrix
    assert doctest.testmod(matrix).failed == 0
"""

REFUSED = """
sys.modules["scalapack4py"] = None
import numpy as np, spectile
comm = MPI.COMM_WORLD
a = spectile.evd.distributed.BlockCyclicMatrix(comm, (4, 4), block=2)
bad = np.eye(3 if comm.rank == 0 else 4)
calls = {
    "ScaLAPACK (": lambda: spectile.eigh(a),
    "spectile[scalapack]": lambda: spectile.eigh(np.eye(4), comm=comm),
    "type 1": lambda: spectile.eigh(np.eye(4), np.eye(4), type=2, comm=comm),
    "leave out": lambda: spectile.eigh(np.eye(4), driver="ev", comm=comm),
    "CPUs": lambda: spectile.eigh(a, backend="cuda"),
    "backend": lambda: spectile.eigh(a, backend="gpu"),
    "one matrix": lambda: spectile.eigvalsh(np.zeros((2, 4, 4)), comm=comm),
    "other ranks": lambda: spectile.eigh(a, comm=MPI.COMM_SELF),
    "one shape": lambda: spectile.eigh(np.eye(4), np.eye(4, dtype=complex), comm=comm),
    "different arguments": lambda: spectile.eigh(bad, comm=comm),
    "UPLO": lambda: spectile.eigh(a, UPLO="L" if comm.rank == 0 else "X"),
    "is no communicator": lambda: spectile.eigh(np.eye(4), comm=3),
}
for words, call in calls.items():
    if comm.size == 1 and words in ("other ranks", "different arguments", "UPLO"):
        continue
    try:
        call()
    except (ImportError, ValueError, TypeError) as error:
        assert words in str(error) and "\\n" not in str(error), error
    else:
        raise AssertionError(words)
"""

SOLVED = """
import numpy as np, scipy.linalg, spectile
from spectile.evd.distributed import BlockCyclicMatrix
comm = MPI.COMM_WORLD
rng = np.random.default_rng(5)

def hermitian(n, dtype):
    a = rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))
    a = (a + a.conj().T) / 2
    return (a if np.dtype(dtype).kind == "c" else a.real).astype(dtype)

def dealt(a, **layout):
    return BlockCyclicMatrix.from_function(comm, a.shape, lambda i, j: a[i, j], a.dtype, **layout)

def check(a, w, v, wanted, b=None):
    eps, scale = np.finfo(a.dtype).eps, max(abs(wanted).max(initial=0), 1e-300)
    assert w.dtype == a.real.dtype and w.shape == wanted.shape
    assert abs(w - wanted).max(initial=0) <= 100 * len(a) * eps * scale, (a.dtype, w, wanted)
    x = v.gather()
    if x is not None and w.size:
        assert x.dtype == a.dtype
        image = x if b is None else b @ x
        residual, defect = np.linalg.norm(a @ x - image * w), np.linalg.norm(x.conj().T @ image - np.eye(w.size))
        bound = 100 * len(a) * eps
        assert residual < bound * scale * max(1, np.linalg.norm(x)) and defect < bound, (a.dtype, residual, defect)

def refused(error, words, call):
    try:
        call()
    except error as raised:
        assert words in str(raised), raised
    else:
        raise AssertionError(words)

cases = ((1, 64, (1, 1)), (2, 1, None), (21, 4, None), (50, 7, (comm.size, 1)), (9, 9, (1, 1)))
for dtype in ("float64", "float32", "complex128", "complex64"):
    for n, block, grid in cases if comm.size < 4 else cases[2:3]:
        if grid == (1, 1) != (comm.size, 1):
            continue
        layout = {"block": block, "grid": grid}
        for lower in (True, False):
            a, half = hermitian(n, dtype), rng.standard_normal((n, n))
            b = (half @ half.T / n + np.eye(n)).astype(dtype)
            kept = np.tril(a) if lower else np.triu(a)
            given = dealt(np.where(kept != 0, kept, np.nan), **layout)  # what is not read is NaN
            if np.dtype(dtype).kind == "c":
                given.local[given.rows[:, None] == given.columns] += 3j  # nor is this
            before = given.local.copy()
            w, v = spectile.eigh(given, lower=lower)
            wanted = np.linalg.eigvalsh(a)
            check(a, w, v, wanted)
            assert np.array_equal(given.local, before, equal_nan=True)
            assert abs(spectile.eigvalsh(given, lower=lower) - wanted).max() < 1e3 * np.finfo(dtype).eps * n
            w, v = spectile.eigh(given, dealt(b, **layout), lower=lower)
            check(a, w, v, scipy.linalg.eigh(a, b, eigvals_only=True), b)
            part = (n // 3, n // 2)
            w, v = spectile.eigh(given, lower=lower, subset_by_index=part)
            check(a, w, v, wanted[part[0] : part[1] + 1])
            w, v = spectile.eigh(given, lower=lower, subset_by_value=(0.0, np.inf))
            check(a, w, v, wanted[wanted > 0])
            spectile.eigh(given, lower=lower, overwrite_a=True)
            for exponent in (-60, 60) if dtype in ("float32", "complex64") else (-700, 700):
                scaled = (a * a.real.dtype.type(2.0) ** exponent).astype(dtype)
                w, v = spectile.eigh(dealt(scaled, **layout), lower=lower)
                check(a, np.ldexp(w, -exponent), v, wanted)

result = spectile.eigh(np.diag([2, 1, 4, 3]), comm=comm)  # the same on every rank
assert result.eigenvalues.tolist() == [1.0, 2.0, 3.0, 4.0] and repr(result).startswith("EighResult(4 eigenvalues")
few = BlockCyclicMatrix(comm, (60, 60))  # in one block, of which the other ranks have none
if comm.size > 1:
    refused(ValueError, "smaller blocks, or fewer ranks", lambda: spectile.eigh(few))
assert spectile.eigh(np.empty((0, 0)), comm=comm).eigenvalues.shape == (0,)
assert spectile.eigvalsh(np.zeros((4, 4)), comm=comm).tolist() == [0, 0, 0, 0]

nan = dealt(np.eye(9), block=2)
nan.local[nan.rows[:, None] + nan.columns == 0] = np.nan  # on one rank
refused(ValueError, "infs or NaNs", lambda: spectile.eigh(nan))
refused(np.linalg.LinAlgError, "infs or NaNs", lambda: spectile.eigh(nan, check_finite=False))
b = np.diag([1, 1, 1, -1, 1])
refused(np.linalg.LinAlgError, "minor of order 4", lambda: spectile.eigh(np.eye(5), b, comm=comm))
refused(OverflowError, "range", lambda: spectile.eigh(np.full((9, 9), 1e308), comm=comm))
# Half of the ranks alone, while the others solve their own
part = comm.Split(comm.rank % 2)
factor = 1 + comm.rank % 2
assert np.allclose(spectile.eigvalsh(np.diag([3.0, 1.0, 2.0]) * factor, comm=part), np.array([1.0, 2.0, 3.0]) * factor)
print("done", flush=True)
"""


def test_every_index_is_held_once():
    for places, length, block in ((1, 5, 2), (2, 9, 2), (3, 10, 4), (4, 3, 1), (5, 0, 3)):
        parts = [held_by(place, places, length, block) for place in range(places)]
        assert sorted(np.concatenate(parts).tolist()) == list(range(length))
    assert [nearly_square(ranks) for ranks in (1, 2, 4, 6, 7, 12)] == [(1, 1), (1, 2), (2, 2), (2, 3), (1, 7), (3, 4)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_matrices_are_dealt_out_and_gathered(ranks, run_ranks):
    done = run_ranks(START + LAYOUT, ranks)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_one_rank_refuses_all_refuse(ranks, run_ranks):
    done = run_ranks(START + REFUSED, ranks)
    assert done.returncode == 0, done.stderr


INSTALLED = pytest.mark.skipif(importlib.util.find_spec("scalapack4py") is None, reason="ScaLAPACK is not installed")


@INSTALLED
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_problems_of_several_ranks(ranks, run_ranks):
    done = run_ranks(START + SOLVED, ranks)
    assert done.returncode == 0 and done.stdout.count("done") == ranks, done.stderr


@INSTALLED
def test_the_guide_runs(run_ranks):
    guide = Path(__file__).parents[3] / "docs/guide.md"
    (block,) = re.findall(r"```python requires=scalapack\n(.*?)```", guide.read_text(), flags=re.DOTALL)
    done = run_ranks(START + block, 2)
    assert done.returncode == 0, done.stderr
    low, high, *shape = done.stdout.split()
    assert 0 < float(low) < 1 < float(high) < 20 and shape == ["(500,", "256)"]
