"""The inspector of the staged kernel on the device: the same plan, bit for bit, as the one made on the host."""

import numpy as np
import pytest

from spectile.kpm.distributed.partition import local_planes
from spectile.kpm.operators.lattices import anderson, graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator

from ...plans import plan as plan_on_host

pytestmark = pytest.mark.gpu

SEED = int(np.random.SeedSequence().generate_state(1)[0])
PLANE, PLANES = 48, 5


@pytest.fixture
def bulk_copies():
    """Skip where the device has no bulk copies: its units are written for those that have them."""
    from spectile.core.device import describe

    if describe().compute_capability < (9, 0):
        pytest.skip("V is staged by bulk copies, which begin with compute capability 9.0")


def shuffled(matrix, together):
    """Return a matrix with its rows shuffled, so many adjacent ones together."""
    groups = np.random.default_rng(SEED).permutation(matrix.shape[0] // together)
    order = (groups[:, None] * together + np.arange(together)).ravel()
    mixed = matrix[order][:, order].tocsr()
    mixed.sort_indices()
    return mixed


def with_sizes(**sizes):
    return dict(dict(wave_pages=48, line_pages=8, workers=3, turns=1, slots=90, tile=2, depth=6, groups=2), **sizes)


INSULATOR = TopologicalInsulator(4, 6, 8).matrix()
CASES = {
    "planes": (INSULATOR, with_sizes()),
    "turns": (INSULATOR, with_sizes(turns=2, tile=4, depth=5, groups=3)),
    "a worker a page": (INSULATOR, with_sizes(workers=192, wave_pages=192, line_pages=0, slots=150)),
    "last page not whole": (INSULATOR[:-3, :-3].tocsr(), with_sizes()),
    "graphene": (graphene(9, 7).tocsr(), with_sizes(wave_pages=32, line_pages=0, tile=16, depth=4, slots=300)),
    "anderson": (anderson(9, disorder=2, rng=1).tocsr(), with_sizes(wave_pages=20, line_pages=2, slots=300)),
    "shuffled": (shuffled(INSULATOR, 1), with_sizes(wave_pages=192, line_pages=0, slots=192)),
    "paper": (TopologicalInsulator(6, 100, 40).matrix(), with_sizes(wave_pages=4000, line_pages=40, workers=66, turns=2,
                                                                    slots=103, tile=4, depth=5, groups=3)),
    "boundary": (local_planes(TopologicalInsulator(9, 6, 8), np.dtype(complex), 7, PLANES, np)[0],
                 with_sizes(runs=((0, PLANE), ((PLANES - 1) * PLANE, PLANES * PLANE)), turns=2)),
    "too few slots for the tiles in flight": (INSULATOR, with_sizes(workers=1, slots=20, depth=8)),
    "too few slots for a tile": (shuffled(INSULATOR, 1), with_sizes(slots=30)),
}  # fmt: skip


def both(matrix, sizes, wide=False):
    """Return the plans made on the device and on the host."""
    import cupy

    from spectile.kpm.cuda.staged.inspector import plan

    indptr, indices = matrix.indptr.astype(np.int64 if wide else np.int32), matrix.indices.astype(np.int32)
    sizes = dict(sizes, num_columns=matrix.shape[1])
    arrays = indptr, indices, matrix.data
    with cupy.cuda.using_allocator(poisoned):
        made = plan(*map(cupy.asarray, arrays), **sizes)
    return made, plan_on_host(*arrays, **sizes)


def poisoned(size):
    """Return memory full of ones, so that what is not written is seen."""
    import cupy

    memory = cupy.get_default_memory_pool().malloc(size)
    if size:
        memory.memset(0xFF, size)
    return memory


@pytest.mark.usefixtures("bulk_copies")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("wide", [False, True])
def test_the_plan_is_the_hosts(name, wide):
    matrix, sizes = CASES[name]
    found, wanted = both(matrix, sizes, wide)
    assert (found is None) == (wanted is None) == name.startswith("too few"), f"seed {SEED}"
    if found is None:
        return
    for part in ("first", "tiles", "loads", "codes", "values"):
        got, hosts = getattr(found, part).get(), getattr(wanted, part)
        assert got.dtype == hosts.dtype
        np.testing.assert_array_equal(got, hosts, err_msg=f"{part}, seed {SEED}")
    assert found.pages == wanted.pages and found.reuse == wanted.reuse


@pytest.mark.usefixtures("bulk_copies")
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_values_of_every_type(dtype):
    matrix, sizes = CASES["anderson"]
    found, wanted = both(matrix.astype(dtype), sizes)
    assert found.values.dtype == wanted.values.dtype == dtype
    np.testing.assert_array_equal(found.values.get(), wanted.values)


def test_pages_and_lattice_are_the_hosts():
    import cupy

    from spectile.kpm.cuda.staged.inspector import lattice_of, worker_pages

    matrix = TopologicalInsulator(12, 10, 8).matrix()
    arrays = matrix.indptr, matrix.indices
    assert lattice_of(*map(cupy.asarray, arrays), cupy) == lattice_of(*arrays)
    for arguments in ((960, 80, 8, 7, 1), (961, 80, 8, 5, 3), (7, 7, 0, 9, 1), (80000, 4000, 40, 132, 2)):
        (pages, sizes), (hosts, hosts_sizes) = worker_pages(*arguments, cupy), worker_pages(*arguments)
        np.testing.assert_array_equal(pages.get(), hosts)
        np.testing.assert_array_equal(sizes, hosts_sizes)
