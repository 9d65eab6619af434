"""KPM over MPI: 1, 2 and 4 ranks give the serial moments; a dead rank is worded.  Skipped without an MPI runtime."""

import numpy as np
import pytest

from spectile.kpm import SpectralDensity, chebyshev, correlator, evolve
from spectile.kpm.distributed.partition import split_rows
from spectile.kpm.operators.topological_insulator import TopologicalInsulator

PROGRAM = """
import sys
import numpy as np
import scipy.sparse as sp
from mpi4py import MPI
from spectile.kpm.operators.lattices import anderson
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm import SpectralDensity, chebyshev, correlator, evolve, spectral_bounds
from spectile.kpm.distributed.mpi import DistributedMatrix
comm = MPI.COMM_WORLD
samples = {"ti": TopologicalInsulator(9, 5, 4), "anderson": anderson(7, disorder=3, rng=1)}
samples["short"] = TopologicalInsulator(3, 4, 2)  # on four ranks a halo is wider than a slab
for wrong in ([1], [1.0] * comm.size + [1.0], [0.0] * comm.size):
    try:
        DistributedMatrix(samples["ti"], comm, weights=wrong if comm.size > 1 or len(wrong) != 1 else [0])
    except ValueError as error:
        assert "give one for each rank" in str(error)
    else:
        raise AssertionError("wrong weights were taken")
for name, H in samples.items():
    for weighted in (False, True):
        weights = [1 + rank for rank in range(comm.size)] if weighted and name != "short" else None
        matrix = DistributedMatrix(H, comm, weights=weights)
        if weights:
            share = matrix.rows.shape[0] / H.shape[0] * sum(weights) / weights[comm.rank]
            assert abs(share - 1) < 0.2
        density = SpectralDensity(matrix, 60, 5, rng=3, bounds=(-11, 11))
        density.add_moments(20)
        np.save(f"{sys.argv[1]}/{name}_{weighted}_{comm.rank}.npy", density.moments)
    start = np.random.default_rng(4).standard_normal((H.shape[0], 2)) + 1j
    *_, last = chebyshev(DistributedMatrix(H, comm), start, 30, bounds=(-11, 11))
    np.save(f"{sys.argv[1]}/{name}_terms_{comm.rank}.npy", last)
matrix = DistributedMatrix(samples["anderson"], comm)
np.save(f"{sys.argv[1]}/states_{comm.rank}.npy", evolve(matrix, np.eye(343)[:, :2], [0.5, 2.0]))
mu = correlator(matrix, samples["anderson"], None, num_moments=6, num_vectors=2, rng=1, bounds=(-11, 11)).moments
np.save(f"{sys.argv[1]}/correlator_{comm.rank}.npy", mu)
# A wide circle and a narrow spectrum, where single precision holds multiples of 8.
coupled = sp.triu(np.random.default_rng(5).random((200, 200)) < 0.06, 1).astype(float)
coupled = coupled + coupled.T
far = (coupled + 1e8 * sp.eye_array(200)).astype("float32").tocsr()
low, high = spectral_bounds(DistributedMatrix(far, comm))
levels = np.linalg.eigvalsh(coupled.toarray())
assert levels[0] - 0.2 < low - 1e8 <= levels[0] and levels[-1] <= high - 1e8 < levels[-1] + 0.2, (low, high, levels)
"""


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_equal_serial(ranks, run_ranks, tmp_path):
    from spectile.kpm.operators.lattices import anderson

    done = run_ranks(PROGRAM, ranks, tmp_path)
    assert done.returncode == 0, done.stderr
    samples = {"ti": TopologicalInsulator(9, 5, 4), "anderson": anderson(7, disorder=3, rng=1)}
    for name, H in (samples | {"short": TopologicalInsulator(3, 4, 2)}).items():
        serial = SpectralDensity(H, 80, 5, rng=3, bounds=(-11, 11), backend="cpu").moments
        for weighted in (False, True):
            for rank in range(ranks):
                moments = np.load(tmp_path / f"{name}_{weighted}_{rank}.npy")
                np.testing.assert_allclose(moments, serial, rtol=0, atol=1e-12 * H.shape[0])
        start = np.random.default_rng(4).standard_normal((H.shape[0], 2)) + 1j
        *_, last = chebyshev(H, start, 30, bounds=(-11, 11), backend="cpu")
        for rank in range(ranks):
            np.testing.assert_allclose(np.load(tmp_path / f"{name}_terms_{rank}.npy"), last, atol=1e-12)
    H = samples["anderson"]
    states = evolve(H, np.eye(343)[:, :2], [0.5, 2.0], backend="cpu")
    mu = correlator(H, H, None, num_moments=6, num_vectors=2, rng=1, bounds=(-11, 11), backend="cpu").moments
    for rank in range(ranks):
        np.testing.assert_allclose(np.load(tmp_path / f"states_{rank}.npy"), states, atol=1e-12)
        np.testing.assert_allclose(np.load(tmp_path / f"correlator_{rank}.npy"), mu, atol=1e-10 * abs(mu).max())


def test_a_dead_rank_is_worded_and_nothing_hangs(dead_rank):
    done = dead_rank("cpu", 3)
    assert "rank 1 did not answer rank 0" in done.stdout, done.stderr


def test_rows_are_split_into_interior_and_boundary_once_each():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 4, 500)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    own = np.ones(indptr[-1], dtype=bool)
    own[indptr[80] : indptr[95]] = False
    own[indptr[400]] = False
    interior, boundary = split_rows(indptr, own, [(0, 250), (250, 500)])
    covered = sorted(interior + boundary)
    assert [low for low, _ in covered] == [0, *[high for _, high in covered[:-1]]] and covered[-1][1] == 500
    for low, high in interior:
        assert own[indptr[low] : indptr[high]].all()
