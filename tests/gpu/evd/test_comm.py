"""Eigenproblems of two ranks with a GPU each, by cuSOLVERMp, against their definition."""

import pytest

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

PROGRAM = """
import sys, traceback
from mpi4py import MPI
sys.excepthook = lambda *error: (traceback.print_exception(*error), MPI.COMM_WORLD.Abort(1))
import cupy, numpy as np, spectile
from spectile.evd import BlockCyclicMatrix
comm = MPI.COMM_WORLD
cupy.cuda.Device(comm.rank).use()
n, dtype, block, grid = int(sys.argv[1]), np.dtype(sys.argv[2]), int(sys.argv[3]), eval(sys.argv[4])
rng = np.random.default_rng(n)  # the same on both ranks

def hermitian():
    a = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if dtype.kind == "c" else 0)
    return cupy.asarray((a + a.conj().T).astype(dtype))

def dealt(whole):
    return BlockCyclicMatrix.from_function(
        comm, whole.shape, lambda i, j: whole[i, j], dtype, block=block, grid=grid, backend="cuda")

def check(w, v, b=None):
    assert isinstance(w, cupy.ndarray) and w.dtype == dtype.type(0).real.dtype
    both = comm.allgather(w.get())
    assert (both[0] == both[1]).all() and (np.diff(both[0]) >= 0).all()
    x = v.gather()
    if x is not None:
        image = x if b is None else b @ x
        bound = 50 * n * np.finfo(dtype).eps
        residual = float(abs(a @ x - image * w).max()) / float(abs(w).max()) / max(1.0, float(abs(x).max()))
        defect = float(abs(x.conj().T @ image - cupy.eye(w.size)).max())
        assert residual < bound and defect < bound, (dtype, residual, defect)

a = hermitian()
g = hermitian()
b = g @ g.conj().T / n + cupy.eye(n, dtype=dtype)
wanted = cupy.linalg.eigvalsh(a).get()
tolerance = 50 * n * np.finfo(dtype).eps * abs(wanted).max()
for lower in (True, False):
    kept = dealt(cupy.tril(a) if lower else cupy.triu(a))
    before = kept.local.copy()
    w, v = spectile.eigh(kept, lower=lower)
    check(w, v)
    assert abs(w.get() - wanted).max() < tolerance and (kept.local == before).all()
    values = spectile.eigvalsh(kept, lower=lower)
    assert abs(values.get() - wanted).max() < tolerance
w, v = spectile.eigh(dealt(a), dealt(b))
check(w, v, b)
w, v = spectile.eigh(dealt(a), subset_by_index=(n // 3, n // 2), overwrite_a=True)
assert v.shape == (n, w.size) and abs(w.get() - wanted[n // 3 : n // 2 + 1]).max() < tolerance
check(w, v)
try:
    spectile.eigh(dealt(a), dealt(-b))
except np.linalg.LinAlgError as error:
    assert "positive definite" in str(error)
else:
    raise AssertionError("an indefinite second matrix")
print("done", flush=True)
"""


@pytest.fixture(scope="module")
def run_on_gpus(run_ranks):
    """Return `run_ranks`; skip without two GPUs, or where cuSOLVERMp is missing."""
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("two GPUs are needed")
    done = run_ranks("from spectile.evd.distributed.cusolvermp import library; library()", 1)
    if done.returncode:
        pytest.skip(done.stderr.strip().rpartition("\n")[2])
    return run_ranks


@pytest.mark.parametrize(
    ("n", "dtype", "block", "grid"),
    [
        (511, "float64", 64, None),
        (300, "float32", 32, (2, 1)),
        (257, "complex128", 16, None),
        (400, "complex64", 64, (2, 1)),
    ],
)
def test_two_ranks_with_a_gpu_each(n, dtype, block, grid, run_on_gpus):
    done = run_on_gpus(PROGRAM, 2, n, dtype, block, grid)
    assert done.returncode == 0 and done.stdout.count("done") == 2, done.stderr


def test_small_problems_and_ranks_with_one_gpu(run_on_gpus):
    done = run_on_gpus(
        """
import cupy, numpy as np, spectile
from mpi4py import MPI
comm = MPI.COMM_WORLD
cupy.cuda.Device(comm.rank).use()
w, v = spectile.eigh(cupy.diag(cupy.arange(20.0)), comm=comm)  # one rank alone
assert isinstance(w, cupy.ndarray) and cupy.allclose(w, cupy.arange(20.0)) and v.backend == "cuda"
cupy.cuda.Device(0).use()
try:
    spectile.eigh(cupy.eye(200), comm=comm)
except ValueError as error:
    assert "both on GPU" in str(error)
    print("done", flush=True)
""",
        2,
    )
    assert done.returncode == 0 and done.stdout.count("done") == 2, done.stderr
