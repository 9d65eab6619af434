"""Eigenproblems of several ranks: how blocks are dealt out, and what ScaLAPACK makes of them where it is installed."""

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
import copy, pickle
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
            for made, wanted in (
                (a.adjoint(), whole.conj().T),
                (a.columns_from(shape[1] // 3, shape[1] // 2), whole[:, shape[1] // 3 :][:, : shape[1] // 2]),
            ):
                assert made.shape == wanted.shape and made.grid == a.grid and made.block == block
                assert (made.local == wanted[np.ix_(made.rows, made.columns)]).all()
            root = comm.size - 1
            for copied in (copy.copy(a), copy.deepcopy(a)):
                copied.local[:] += 1
                assert (copied.local == a.local + 1).all() and copied.grid == a.grid and copied.block == block
            b = BlockCyclicMatrix.scatter(comm, whole if comm.rank == root else None, root, block=block, grid=grid)
            assert b.dtype == complex and b.shape == shape and (b.local == a.local).all()
assert BlockCyclicMatrix(comm, (4, 4), ">f8").local.dtype.isnative
for words, call in {
    "not pickled": lambda: pickle.dumps(BlockCyclicMatrix(comm, (4, 4))),
    "pass dtype=complex128": lambda: BlockCyclicMatrix.from_function(comm, (4, 4), lambda i, j: i + 1j * j),
    "two dimensions": lambda: BlockCyclicMatrix.scatter(comm, np.zeros(4)),
}.items():
    try:
        call()
    except (TypeError, ValueError) as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
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
import numpy as np, spectile, spectile.core.device
spectile.core.device.refusal = lambda: "no GPU is there"
comm = MPI.COMM_WORLD
a = spectile.evd.distributed.BlockCyclicMatrix(comm, (4, 4), block=2)
bad = np.eye(3 if comm.rank == 0 else 4)
huge = spectile.evd.distributed.BlockCyclicMatrix(comm, (4, 4), block=2)
huge._local = np.broadcast_to(0.0, (2**16, 2**15 + 1))  # which takes no memory
calls = {
    "spectile[scalapack]": lambda: spectile.eigh(np.eye(64 * comm.size), comm=comm),
    "is not supported": lambda: spectile.eigh(np.eye(4, dtype="G"), comm=comm),
    "32 bits": lambda: spectile.eigh(huge),
    "type 1": lambda: spectile.eigh(np.eye(4), np.eye(4), type=2, comm=comm),
    "leave out": lambda: spectile.eigh(np.eye(4), driver="ev", comm=comm),
    "backend = 'cuda'": lambda: spectile.eigh(a, backend="cuda"),
    "leave out devices": lambda: spectile.eigh(a, devices=2),
    "no GPU": lambda: spectile.eigh(np.eye(64), comm=comm, backend="cuda"),
    "no GPU is there": lambda: spectile.evd.distributed.BlockCyclicMatrix(comm, (4, 4), backend="cuda"),
    "backend": lambda: spectile.eigh(a, backend="gpu"),
    "one matrix": lambda: spectile.eigvalsh(np.zeros((2, 4, 4)), comm=comm),
    "other ranks": lambda: spectile.eigh(a, comm=MPI.COMM_SELF),
    "one shape": lambda: spectile.eigh(a, np.eye(4, dtype=complex)),
    "different arguments": lambda: spectile.eigh(bad, comm=comm),
    "UPLO": lambda: spectile.eigh(a, UPLO="L" if comm.rank == 0 else "X"),
    "is no communicator": lambda: spectile.eigh(np.eye(4), comm=3),
}
for words, call in calls.items():
    if comm.size == 1 and words in ("other ranks", "different arguments", "UPLO", "spectile[scalapack]", "32 bits"):
        continue
    try:
        call()
    except (ImportError, RuntimeError, ValueError, TypeError) as error:
        assert words in str(error) and "\\n" not in str(error), error
    else:
        raise AssertionError(words)
"""

CHECKED = (
    START
    + """
import numpy as np, scipy.linalg, spectile
from spectile.evd.distributed import BlockCyclicMatrix
from spectile_study.inputs.spectra import FAMILIES, random_hermitian, residuals
comm = MPI.COMM_WORLD
rng = np.random.default_rng(5)

# On GPUs, which a stand-in may be, blocks are of powers of two.
def dealt(a, **layout):
    if "cupy" in sys.modules:
        layout |= {"backend": "cuda", "block": 2 ** (layout.get("block", 64).bit_length() - 1)}
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
"""
)

# cuSOLVERMp, NCCL and GPUs in host memory: the library gathers what its arguments describe, and solves on one rank.
STAND_IN = """
import ctypes, sys, types
import numpy as np
from mpi4py import MPI
from spectile.evd.cpu import run
import spectile.core.device, spectile.core.memory, spectile.evd.distributed.solver as solver
from spectile.evd.distributed import cusolvermp, matrix
world, version, answers, alive = MPI.COMM_WORLD, int(sys.argv[1]), {}, {}

class Array(np.ndarray):
    data = property(lambda self: types.SimpleNamespace(ptr=self.ctypes.data, device_id=0))
    get = lambda self: np.array(self)

Array.__module__ = "cupy"
here = types.SimpleNamespace(id=0, pci_bus_id=f"0000:{world.rank}")

class Communicator:
    made = 0
    def __init__(self, size, identity, rank):
        assert (size, identity, rank) == (world.size, (1, 2), world.rank)
        self.comm = 2**40 + 1
        Communicator.made += 1

cupy = types.ModuleType("cupy")
cupy.ndarray = cupy.Array = Array
cupy.zeros = lambda *a, **k: np.zeros(*a, **k).view(Array)
cupy.empty = lambda *a, **k: np.full(*a[:1], 7, *a[1:]).view(Array)
cupy.asarray = lambda *a: np.asarray(*a).view(Array)
cupy.ldexp, cupy.stack = np.ldexp, np.stack
cupy.cuda = types.ModuleType("cupy.cuda")
cupy.cuda.Device, cupy.cuda.get_current_stream = lambda: here, lambda: types.SimpleNamespace(ptr=2**33)
cupy.cuda.runtime = types.SimpleNamespace(getDevice=lambda: 0)
cupy.cuda.nccl = types.SimpleNamespace(get_unique_id=lambda: (1, 2), NcclCommunicator=Communicator, available=True)
sys.modules |= {"cupy": cupy, "cupy.cuda": cupy.cuda}
spectile.core.memory.free_bytes = lambda: 2**40
spectile.core.device.refusal = lambda: None
solver._alone = lambda backend: types.SimpleNamespace(eigh=lambda *a: [part.view(Array) for part in run.eigh(*a)])
matrix.on_device = lambda array: type(array) is Array
solver.any_on_device = lambda operands: any(map(matrix.on_device, operands))

def new(out):
    out._obj.value = 2**36 + len(alive)
    alive[out._obj.value] = True
    return out._obj.value

class Library:
    def cusolverMpCreate(self, out, device, stream):
        assert device.value == 0
        new(out)
    def cusolverMpSetStream(self, handle, stream):
        assert alive[handle.value] and stream.value == 2**33
        return answers.get("SetStream", 0)
    def cusolverMpCreateDeviceGrid(self, handle, out, comm, rows, columns, order):
        assert alive[handle.value] and comm.value == 2**40 + 1 and order.value == 1
        shapes[new(out)] = rows.value, columns.value
    def cusolverMpCreateMatrixDesc(self, out, grid, kind, *layout):
        m, n, mb, nb, r, c, self.ld = (one.value for one in layout)
        assert alive[grid.value] and m == n and mb == nb and r == c == 0
        described[new(out)] = n, nb, kind.value, self.ld, shapes[grid.value]
    def cusolverMpGetVersion(self, handle, out):
        out._obj.value = version
    def end(self, key):
        assert alive.pop(key.value)
    cusolverMpDestroyGrid = cusolverMpDestroyMatrixDesc = end
    def sized(self, *arguments):
        arguments[-2]._obj.value, arguments[-1]._obj.value = 40, 24
    cusolverMpSyevd_bufferSize = cusolverMpSygvd_bufferSize = cusolverMpPotrf_bufferSize = sized
    def part(self, pointer, first, column, key):
        n, block, kind, ld, shape = described[key.value]
        assert first.value == column.value == 1 and alive[key.value]
        like = solver.BlockCyclicMatrix(world, (n, n), {0: "f", 1: "d", 4: "F", 5: "D"}[kind], block=block,
                                        grid=shape)
        rows, columns = like.local.shape
        memory = (ctypes.c_char * (ld * columns * like.dtype.itemsize)).from_address(pointer.value)
        like._local = np.ndarray((ld, columns), like.dtype, memory, order="F")[:rows]
        return like
    def whole(self, *place):
        part = self.part(*place)
        lower = np.tril(world.bcast(part.gather()))
        part.local[:] = np.nan
        return lower + np.tril(lower, -1).conj().T
    def write(self, place, whole):
        part = self.part(*place)
        part.local[:] = whole[np.ix_(part.rows, part.columns)]
    def finish(self, kind, work, size, beside, room, info, found=0):
        assert (size.value, room.value) == (40, 24)
        ctypes.memset(work.value, 1, 40), ctypes.memset(beside.value, 1, 24)
        ctypes.c_int.from_address(info.value).value = answers.get("info", found)
        return answers.get("status", 0)
    def values(self, pointer, w):
        ctypes.memmove(pointer.value, w.ctypes.data, w.nbytes)
    def cusolverMpSyevd(self, handle, job, uplo, n, *rest):
        a, w, q, end = rest[:4], rest[4], rest[5:9], rest[9:]
        assert uplo.value == 0 and job.value == (b"Z" if version < 900 else b"V" if q[0].value else b"N")
        values, vectors = np.linalg.eigh(self.whole(*a))
        self.values(w, values)
        if q[0].value:
            self.write(q, vectors)
        return self.finish(*end)
    def cusolverMpSygvd(self, handle, kind, job, uplo, n, *rest):
        import scipy.linalg
        a, b, w, q, end = rest[:4], rest[4:8], rest[8], rest[9:13], rest[13:]
        assert (kind.value, job.value, uplo.value) == (1, 1, 0)
        values, vectors = scipy.linalg.eigh(self.whole(*a), self.whole(*b))
        self.values(w, values)
        self.write(q, vectors)
        return self.finish(*end)
    def cusolverMpPotrf(self, handle, uplo, n, *rest):
        b = self.whole(*rest[:4])
        minors = [k for k in range(1, n.value + 1) if np.linalg.eigvalsh(b[:k, :k])[0] <= 0]
        return self.finish(*rest[4:], found=(minors or [0])[0])

shapes, described, stand_in = {}, {}, Library()
cusolvermp.library = lambda: stand_in
"""

ON_GPUS = """
grids = 2 if comm.size == 2 else 1
assert len(alive) == 1 + grids and Communicator.made == grids  # the handle, and grids for the next call
own = comm.Dup()
spectile.eigvalsh(BlockCyclicMatrix(own, (16, 16), block=4, backend="cuda"))
assert len(alive) == 2 + grids
own.Free()
assert len(alive) == 1 + grids
a = dealt(np.eye(16), block=4)
assert "'s GPU" in repr(a) and spectile.explain(spectile.eigh, a)[0].kernel == "cuSOLVERMp's syevd"
assert spectile.explain(spectile.eigh, np.eye(4), comm=comm)[0].kernel == "ScaLAPACK's syevd"
w, v = spectile.eigh(np.diag(np.arange(128.0)), comm=comm, backend="cuda")  # the same on every rank
assert type(w) is Array and v.backend == "cuda" and np.allclose(w, np.arange(128))
whole = np.diag(np.arange(128.0)).view(Array)
w, v = spectile.eigh(whole, comm=comm)
x = v.gather()
assert type(w) is Array and (x is None or abs(abs(x) - np.eye(128)).max() < 1e-12)
w, v = spectile.eigh(dealt(np.diag([2.0, 1.0]), block=64))  # smaller than a block
assert v.backend == "cuda" and np.allclose(w, [1, 2])
b = dealt(np.diag([1.0, 1, 1, -1] + [1.0] * 12), block=4)
refused(np.linalg.LinAlgError, "minor of order 4", lambda: spectile.eigh(a, b))
odd = BlockCyclicMatrix(comm, (16, 16), block=3, backend="cuda")
refused(ValueError, "power of two", lambda: spectile.eigh(odd))
host = BlockCyclicMatrix(comm, (16, 16), block=4)
refused(ValueError, "cpu and cuda", lambda: spectile.eigh(a, host))
refused(ValueError, "backend = 'cpu'", lambda: spectile.eigh(a, backend="cpu"))
refused(ValueError, "backend", lambda: BlockCyclicMatrix(comm, (16, 16), backend="gpu"))
nan = dealt(np.eye(16), block=4)
nan.local[nan.rows[:, None] + nan.columns == 0] = np.nan  # on one rank
refused(ValueError, "infs or NaNs", lambda: spectile.eigh(nan))
answers["info"] = comm.rank  # of one rank
refused(np.linalg.LinAlgError, "info = 1", lambda: spectile.eigh(a))
answers |= {"info": 0, "status": 7}
refused(RuntimeError, "Syevd ended with status 7", lambda: spectile.eigh(a))
refused(np.linalg.LinAlgError, "seems not to be positive", lambda: spectile.eigh(a, dealt(np.eye(16), block=4)))
answers |= {"status": 0, "SetStream": 3}
refused(RuntimeError, "SetStream ended with status 3", lambda: spectile.eigh(a))
answers.clear()
here.pci_bus_id = "0000:0"
refused(ValueError, "ranks 0 and 1 are both on GPU 0000:0", lambda: spectile.eigh(a))
print("done", flush=True)
"""

# Each dtype with another layout and another triangle, in turn.
SOLVED = (
    CHECKED
    + """
cases = ((21, 4, None), (50, 7, (comm.size, 1)), (2 * comm.size, 2, (1, comm.size)), (40, 5, None))
for number, dtype in enumerate(("float64", "float32", "complex128", "complex64")):
    if comm.size > 2 and number % 2 != comm.size % 2:
        continue
    n, block, grid = cases[number]
    layout, lower = {"block": block, "grid": grid}, bool((number + comm.size) % 2)
    a, half = random_hermitian(n, rng, dtype), rng.standard_normal((n, n))
    b = (half @ half.T / n + np.eye(n)).astype(dtype)
    kept = np.tril(a) if lower else np.triu(a)
    given = dealt(np.where(kept != 0, kept, np.nan), **layout)  # what is not read is NaN
    if np.dtype(dtype).kind == "c":
        given.local[given.rows[:, None] == given.columns] += 3j  # nor is this
    before = given.local.copy()
    wanted, both = np.linalg.eigvalsh(a), scipy.linalg.eigh(a, b, eigvals_only=True)
    check(a, *spectile.eigh(given, b, lower=lower, subset_by_index=(n // 3, n // 2)), both[n // 3 : n // 2 + 1], b)
    assert np.array_equal(given.local, before, equal_nan=True)
    if comm.size > 2:
        continue
    check(a, *spectile.eigh(given, lower=lower), wanted)
    assert abs(spectile.eigvalsh(given, lower=lower) - wanted).max() < 1e3 * np.finfo(dtype).eps * n
    check(a, *spectile.eigh(given, dealt(b, **layout), lower=lower), both, b)
    one = dealt(b, **layout)
    w, _ = spectile.eigh(one, one, lower=lower, overwrite_a=True, overwrite_b=True)
    assert abs(w - 1).max() < 1e3 * np.finfo(dtype).eps * n
    check(a, *spectile.eigh(given, lower=lower, subset_by_value=(0.0, np.inf)), wanted[wanted > 0])
    for exponent in (-60, 60) if dtype in ("float32", "complex64") else (-700, 700):
        scaled = (a * a.real.dtype.type(2.0) ** exponent).astype(dtype)
        w, v = spectile.eigh(dealt(scaled, **layout), lower=lower, overwrite_a=True)
        check(a, np.ldexp(w, -exponent), v, wanted)
print("done", flush=True)
"""
)

DIFFICULT = (
    CHECKED
    + """
for number, (family, make) in enumerate(FAMILIES.items()):
    a = make(40, rng, ("float64", "complex128")[number % 2])
    w, v = spectile.eigh(dealt(a, block=8))
    v = v.gather()
    assert v is None or max(residuals(a, w, v).values()) < 10, (family, residuals(a, w, v))
result = spectile.eigh(np.diag(np.arange(128.0)).astype(">f8"), comm=comm)  # the same on every rank
assert np.allclose(result.eigenvalues, np.arange(128), rtol=1e-13, atol=1e-12), result.eigenvalues
assert repr(result).startswith("EighResult(128 eigenvalues")

nan = dealt(np.eye(9), block=2)
nan.local[nan.rows[:, None] + nan.columns == 0] = np.nan  # on one rank
refused(ValueError, "infs or NaNs", lambda: spectile.eigh(nan))
refused(np.linalg.LinAlgError, "infs or NaNs", lambda: spectile.eigh(nan, check_finite=False))
b = dealt(np.diag([1.0, 1, 1, -1, 1]), block=2)
refused(np.linalg.LinAlgError, "minor of order 4", lambda: spectile.eigh(np.eye(5), b))
refused(OverflowError, "range", lambda: spectile.eigh(dealt(np.full((9, 9), 1e308), block=2)))
# Half of the ranks alone, while the others solve their own
part = comm.Split(comm.rank % 2)
own = np.arange(70.0) * (1 + comm.rank % 2)
assert np.allclose(spectile.eigvalsh(np.diag(own), comm=part), own)
print("done", flush=True)
"""
)

# Of which some ranks have no whole block: no ScaLAPACK is needed.
SMALL = (
    CHECKED
    + """
sys.modules["scalapack4py"] = None
for n, block in ((0, 1), (0, 64), (1, 1), (1, 64), (5, 4), (63, 64)):
    for dtype in ("float32", "complex128") if n != 63 else ("float64",):
        a, half = random_hermitian(n, rng, dtype), rng.standard_normal((n, n))
        b, wanted = (half @ half.T + np.eye(n)).astype(dtype), np.linalg.eigvalsh(a)
        given = dealt(a, block=block, grid=(comm.size, 1))
        check(a, *spectile.eigh(given, lower=False), wanted)
        check(a, *spectile.eigh(given, b), scipy.linalg.eigh(a, b, eigvals_only=True) if n else wanted, b)
        assert np.allclose(spectile.eigvalsh(given), wanted, atol=1e-5) and (given.local == dealt(
            a, block=block, grid=(comm.size, 1)).local).all()
        if n > 1:
            check(a, *spectile.eigh(given, subset_by_index=(1, n - 2)), wanted[1 : n - 1])
w, v = spectile.eigh(np.diag(np.arange(3)).astype("float16"), comm=comm)
assert w.dtype == v.dtype == np.float32 and w.tolist() == [0, 1, 2]
assert spectile.eigvalsh(np.eye(2, dtype="float32"), 2 * np.eye(2), comm=comm).dtype == np.float64
refused(np.linalg.LinAlgError, "minor of order 2", lambda: spectile.eigh(np.eye(2), np.diag([1, -1]), comm=comm))
refused(ValueError, "infs or NaNs", lambda: spectile.eigh(np.full((2, 2), np.nan), comm=comm))
print("done", flush=True)
"""
)


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


@pytest.mark.parametrize("ranks", [1, 3])
def test_problems_smaller_than_a_block_of_each_rank(ranks, run_ranks):
    done = run_ranks(SMALL, ranks)
    assert done.returncode == 0 and done.stdout.count("done") == ranks, done.stderr


@pytest.mark.parametrize(("ranks", "version"), [(2, 800), (2, 901), (4, 900)])
def test_problems_of_ranks_with_a_gpu_each(ranks, version, run_ranks):
    program = START + STAND_IN + SOLVED + (ON_GPUS if ranks == 2 else "")
    done = run_ranks(program, ranks, version)
    assert done.returncode == 0 and done.stdout.count("done") == ranks * program.count('print("done"'), done.stderr


def test_without_cusolvermp_every_rank_says_how_to_install_it(run_ranks):
    gpus = STAND_IN.rpartition("cusolvermp.library =")[0]
    done = run_ranks(
        START + gpus + CHECKED + "sys.modules['cuda'] = None\n"
        "refused(ImportError, 'spectile[cusolvermp13]', lambda: spectile.eigh(np.eye(128).view(Array), comm=comm))",
        2, 900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def run_scalapack(run_ranks):
    """Return `run_ranks`; skip where there is no ScaLAPACK."""
    done = run_ranks("from spectile.evd.distributed.scalapack import library; library()", 1)
    if done.returncode:
        pytest.skip(done.stderr.strip().rpartition("\n")[2])
    return run_ranks


@pytest.mark.parametrize(("program", "ranks"), [(SOLVED, 2), (SOLVED, 3), (SOLVED, 4), (DIFFICULT, 2)])
def test_problems_of_several_ranks(program, ranks, run_scalapack):
    done = run_scalapack(program, ranks)
    assert done.returncode == 0 and done.stdout.count("done") == ranks, done.stderr


def test_the_guide_runs(run_scalapack):
    guide = Path(__file__).parents[3] / "docs/guide.md"
    (block,) = re.findall(r"```python requires=scalapack\n(.*?)```", guide.read_text(), flags=re.DOTALL)
    done = run_scalapack(START + block, 2)
    assert done.returncode == 0, done.stderr
    low, high, *shape = done.stdout.split()
    assert 0 < float(low) < 1 < float(high) < 20 and shape == ["(500,", "256)"]
