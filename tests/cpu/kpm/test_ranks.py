"""Functions of a matrix whose rows lie on two MPI ranks give what one process gives.  Skipped without MPI."""

import re
from pathlib import Path

import numpy as np

from tests.hamiltonians import haldane

PAGE = Path(__file__).parents[3] / "docs/spectral.md"

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
import scipy.sparse as sp
from mpi4py import MPI
from spectile import kpm
from spectile.kpm import functions
from spectile.kpm.checkpoint import Run
from spectile.kpm.density import SpectralDensity
from spectile.kpm.distributed.mpi import DistributedMatrix
from spectile.kpm.operators.lattices import anderson

comm = MPI.COMM_WORLD
real = anderson(4, disorder=3, rng=1)
with np.load(sys.argv[1] + "/hall.npz") as held:
    hall = sp.csr_array(held["H"]), held["positions"], held["periods"]
places = np.stack(np.unravel_index(np.arange(64), (4, 4, 4)), axis=1).astype(float)
states = np.random.default_rng(2).standard_normal((64, 3)) + 1j * np.eye(64)[:, :3]


def rows(H, first=0.3):
    edge = int(first * H.shape[0])
    own = (slice(0, edge), slice(edge, None))[comm.rank]
    return DistributedMatrix.from_rows(H[own], comm)


own_rows = (slice(0, 19), slice(19, None))[comm.rank]
forms = {
    "whole": lambda H: DistributedMatrix(H, comm),
    "rows": rows,
    "dense rows": lambda H: DistributedMatrix.from_rows(np.array_split(H.toarray(), 2)[comm.rank], comm),
}
wide = {"bounds": (-9.0, 9.0)}
calls = {
    "bounds": lambda one: kpm.spectral_bounds(one(real)),
    "operator": lambda one: kpm.kpm_dos(one(real), 20, 2, rng=1, operator=one(real), **wide).moments,
    "vectors": lambda one: kpm.kpm_dos(one(real), 20, vectors=states, mean=False, **wide).moments,
    "ldos": lambda one: kpm.ldos(one(real), [1, 50], 40, **wide).moments,
    "ldos of an operator": lambda one: kpm.ldos(one(real), [1, 50], 20, operator=one(real), **wide).moments,
    "chebyshev": lambda one: np.array([b.copy() for b in kpm.chebyshev(one(real), states, 9, **wide)]),
    "evolve": lambda one: kpm.evolve(one(real), states, [0.5, -1.0], **wide),
    "apply": lambda one: kpm.apply(np.exp, one(hall[0]), np.eye(32)[:, :2], **wide),
    "entries": lambda one: kpm.greens_function(one(real), [1, 50], [3, 2], [0.1, 0.9], 3.0, **wide),
    "columns": lambda one: kpm.greens_function(one(hall[0]), None, 3, 0.1, 3.0, **wide),
    "correlator": lambda one: kpm.correlator(
        one(real), real, one(real), num_moments=8, num_vectors=2, rng=1, **wide).moments,
    "hall": lambda one: kpm.conductivity(
        one(hall[0]), "x", "y", hall[1], periods=hall[2], num_moments=16, vectors=np.eye(32)[:, :2], **wide)([0.1, 1]),
    "current": lambda one: kpm.conductivity(
        one(real), positions=places, area=64.0, num_moments=16, num_vectors=2, rng=1, **wide)([-1.0, 0.1]),
    "count": lambda one: kpm.count(one(real), (0.1, 0.9), num_moments=40, rng=1, **wide),
    "pairs": lambda one: np.array(kpm.filter_diagonalize(one(real), (5.0, 8.0), tolerance=1e-6, rng=1, **wide)[0]),
}
for name, call in calls.items():
    exact = np.asarray(call(lambda H: H))
    for form in {"hall": ["whole", "rows"], "evolve": ["dense rows"]}.get(name, ["rows"]):
        found = np.asarray(call(forms[form]))
        error = abs(found - exact).max() / abs(exact).max()
        assert exact.size and found.shape == exact.shape and error < 1e-7, (name, form, error)
        assert len({each.tobytes() for each in comm.allgather(found)}) == 1, (name, form)

# Each rank keeps its own rows alone.
spread = rows(real)
assert spread.H is None and spread.rows.shape[0] == (19, 45)[comm.rank]
own = kpm.velocity(spread, "x", places)
assert own.rows.shape == spread.rows.shape and abs(
    own.rows - kpm.velocity(real, "x", places)[(slice(0, 19), slice(19, None))[comm.rank]]).max() == 0


def refused(call, kind, words):
    try:
        call()
    except kind as error:
        assert words in str(error) and "\\n" not in str(error), str(error)
    else:
        raise AssertionError(f"not refused: {words}")


# What one rank alone gives wrong is refused on both.
alone = comm.rank == 1
refused(lambda: DistributedMatrix.from_rows("rows" if alone else real[:32], comm), TypeError, "rank 1 of 2")
refused(lambda: DistributedMatrix.from_rows(real[:0] if alone else real[:64], comm), ValueError, "at least one row")
mixed = "gpu" if alone else "cpu"
refused(lambda: DistributedMatrix.from_rows(real[:32], comm, backend=mixed), ValueError, "'gpu'")
refused(lambda: DistributedMatrix.from_rows(real[:30], comm), ValueError, "as many rows as columns")
refused(lambda: kpm.evolve(rows(sp.csr_array(np.triu(real.toarray()))), states, 1.0), ValueError, "not Hermitian")
ring = sp.csr_array(np.roll(np.eye(6), 1, 0) + np.roll(np.eye(6), -1, 0))
uneven = np.array([[0.0], [1.0], [2.0], [3.0], [4.0], [7.0]])
refused(lambda: kpm.velocity(rows(ring, 0.5), "x", uneven, periods=[[6.0]]), ValueError, "of 2)")



class Counted:  # gathered blocks of vectors
    def __init__(self):
        self.blocks = 0

    def __getattr__(self, name):
        return getattr(comm, name)

    def allgather(self, given):
        self.blocks += getattr(given, "ndim", 0) == 2 and len(given) > 1
        return comm.allgather(given)


# Expectation values are sums of what each rank has of a term, not of gathered terms.
counted = Counted()
found = kpm.kpm_dos(DistributedMatrix(real, counted), 60, 2, rng=1, operator=real, **wide).moments
np.testing.assert_allclose(found, kpm.kpm_dos(real, 60, 2, rng=1, operator=real, **wide).moments, atol=1e-9)
assert counted.blocks < 10, counted.blocks

# So are moments of two operators, whatever these are; memory for few vectors repeats the recurrence.
current = 1j * (real @ sp.diags_array(places[:, 0]) - sp.diags_array(places[:, 0]) @ real)
mixed = sp.csr_array(real + 0.3 * current)
for A, B, options in (
    (real, current, {}),
    (current, mixed, {"vectors": states}),
    (None, real.toarray(), {"memory_limit": 20_000}),
    (mixed, rows(current, 0.6), {}),
    (rows(real), lambda block: real @ block, {}),
):
    def moments(H, *operators):
        return kpm.correlator(H, *operators, num_moments=14, num_vectors=2, rng=1, **wide, **options).moments

    whole = [each @ np.eye(64) if hasattr(each, "edges") else each for each in (A, B)]
    exact = moments(real, *whole)
    counted = Counted()
    for H in (DistributedMatrix(real, counted), DistributedMatrix.from_rows(real[own_rows], counted)):
        np.testing.assert_allclose(moments(H, A, B), exact, atol=1e-8 * abs(exact).max())
    if not callable(B) and not hasattr(B, "edges"):
        assert counted.blocks < 10, counted.blocks

# Own rows of vectors.
edge = 20
own = (slice(0, edge), slice(edge, None))[comm.rank]
spread = DistributedMatrix.from_rows(real[own], comm, vectors="own")
halves = DistributedMatrix(real, comm, vectors="own")
half = slice(*halves.edges[comm.rank : comm.rank + 2])
for H, mine in ((spread, own), (halves, half)):
    for block in (states, states.real.copy(), states[:, 0]):
        for call in (
            lambda one, each: kpm.evolve(one, each, [0.5, -1.0], **wide),
            lambda one, each: kpm.evolve(one, each, 2.0, **wide)[None],
            lambda one, each: kpm.apply(np.exp, one, each)[None],
            lambda one, each: np.array([b.copy() for b in kpm.chebyshev(one, each, 9, **wide)]),
        ):
            whole = call(real, block)
            np.testing.assert_allclose(call(H, block[mine]), whole[:, mine], atol=1e-9 * abs(whole).max())
overlaps = list(kpm.chebyshev(real, states, 70, bra=states[:, ::-1], **wide))
terms = kpm.chebyshev(spread, states[own], 70, bra=states[own, ::-1], **wide)
np.testing.assert_allclose([next(terms) for _ in range(9)], overlaps[:9], atol=1e-10)
terms.save(sys.argv[1] + "/terms.npz")
comm.barrier()
again = kpm.Chebyshev.load(sys.argv[1] + "/terms.npz", spread, bra=states[own, ::-1])
np.testing.assert_allclose(list(again), overlaps[9:], atol=1e-9)
refused(lambda: kpm.evolve(spread, states[:20] if alone else states[own], 1.0, **wide), ValueError, "rank 1 of 2")
refused(lambda: kpm.evolve(spread, states[own][:, : 2 if alone else 3], 1.0, **wide), ValueError, "must give as many")
refused(lambda: list(kpm.chebyshev(spread, states[own], 9, bounds=(-2.0, 2.0))), ValueError, "leaves the")

# Each rank sums terms as its own layout is best summed, as a GPU beside a CPU does: the messages are the same.
for name in ("_are_complex", "_in_steps"):
    way = getattr(functions, name)
    setattr(functions, name, lambda *args: alone and way(*args))
    for H, exact, block in ((rows(real), real, states), (rows(mixed), mixed, states), (rows(real), real, states.real)):
        whole = kpm.evolve(exact, block, [0.5, 2.0], **wide)
        np.testing.assert_allclose(kpm.evolve(H, block, [0.5, 2.0], **wide), whole, atol=1e-9 * abs(whole).max())
        comm.barrier()
    setattr(functions, name, way)

# Checkpoints: each rank has a file, and all write at one time.
path, files = sys.argv[1] + "/run.npz", [sys.argv[1] + f"/run.npz.{rank}" for rank in (0, 1)]


def broken(kind, name, count, call):
    method, calls = getattr(kind, name), []

    def counted(self, *args):
        calls.append(1)
        if len(calls) == count:
            raise RuntimeError("broken")
        return method(self, *args)

    setattr(kind, name, counted)
    try:
        call()
    except RuntimeError as error:
        assert str(error) == "broken"
    else:
        raise AssertionError("was not broken")
    finally:
        setattr(kind, name, method)
    assert Path(files[comm.rank]).exists() and not Path(path).exists()
    comm.barrier()


for kind, name, call in (
    (Run, "pause", lambda **o: kpm.evolve(rows(real), states, [1.0, 2.0], **wide, **o)),
    (SpectralDensity, "add_moments", lambda **o: kpm.kpm_dos(rows(real), 300, 2, rng=3, **wide, **o).moments),
):
    exact = call()
    broken(kind, name, 3, lambda: call(checkpoint=path, checkpoint_s=0))
    np.testing.assert_array_equal(call(checkpoint=path), exact)
    comm.barrier()
    assert not any(map(Path.exists, map(Path, files)))
    broken(kind, name, 3, lambda: call(checkpoint=path, checkpoint_s=0))
    if alone:
        Path(files[1]).unlink()
    comm.barrier()
    refused(lambda: call(checkpoint=path), ValueError, "not of the same time")
    comm.barrier()
    if not alone:
        Path(files[0]).unlink()
    comm.barrier()
# A rank for which it is time lets all write.
call = lambda **o: kpm.evolve(rows(real), states, [1.0, 2.0], **wide, **o)
broken(Run, "pause", 3, lambda: call(checkpoint=path, checkpoint_s=0 if alone else 1e9))
np.testing.assert_array_equal(call(checkpoint=path), call())

terms = kpm.chebyshev(rows(real), states, 20, **wide)
for _ in range(7):
    next(terms)
terms.save(path)
comm.barrier()
again = kpm.Chebyshev.load(path, rows(real))
np.testing.assert_array_equal([b.copy() for b in again], [b.copy() for b in terms])
"""


def test_two_ranks_with_rows_of_their_own(run_ranks, tmp_path):
    H, positions, periods = haldane(4, mass=0.3)
    np.savez(tmp_path / "hall.npz", H=H.toarray(), positions=positions, periods=periods)
    done = run_ranks(PROGRAM, 2, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_pages_example_runs_on_two_ranks(run_ranks, tmp_path):
    # What two ranks print at once may come out in pieces: each prints into a file.
    before = "import sys\nfrom mpi4py import MPI\n"
    before += "sys.stdout = open(f'{sys.argv[1]}/{MPI.COMM_WORLD.rank}.txt', 'w')\n"
    before += "import numpy as np, spectile\nfrom spectile.kpm.operators.lattices import anderson\n"
    before += "H = anderson(9, disorder=4.0, rng=1)\n"
    before += "site = np.stack(np.unravel_index(np.arange(9**3), (9, 9, 9)), axis=1)\n"
    (example,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    done = run_ranks(before + example + "\nsys.stdout.close()\n", 2, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    # Both ranks print the same numbers.
    one, two = ((tmp_path / f"{rank}.txt").read_text() for rank in (0, 1))
    assert one == two and one.startswith("disordered, per length: ") and one.count("\n") == 1
