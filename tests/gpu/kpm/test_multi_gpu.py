"""KPM on several devices, or one: equal to the float64 reference, whatever the partitions and the transport."""

import numpy as np
import pytest

from spectile.kpm import SpectralDensity, conductivity, evolve, kpm_dos, reference
from spectile.kpm.operators.lattices import anderson, graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile_study.cases.kpm import stages

pytestmark = pytest.mark.gpu

SEED = int(np.random.SeedSequence().generate_state(1)[0])
A, B = 0.11, 0.05
RANK = """
import sys
import numpy as np
from mpi4py import MPI
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm import SpectralDensity
from spectile.kpm.distributed.mpi import DistributedMatrix
matrix = DistributedMatrix(TopologicalInsulator(9, 6, 8), MPI.COMM_WORLD, backend="cuda")
np.save(sys.argv[1], SpectralDensity(matrix, 60, 5, rng=3, bounds=(-11, 11)).moments)
"""


def devices(count):
    """Take the machine's devices in turn: several partitions come to lie on one where there are fewer."""
    import cupy

    return [number % cupy.cuda.runtime.getDeviceCount() for number in range(count)]


def poisoned(engine, num_vectors):
    """Return a recursion whose unset memory holds NaN: what is read must have been written before."""
    recursion = engine.random(SEED, 0, num_vectors, A, B)
    for state in recursion.states:
        with state.device.working():
            state.w.fill(7.0)
            if engine.steps_a_sweep == 2:
                state.v_out, state.w_out = (state.v * np.nan for _ in range(2))
    return recursion


@pytest.mark.parametrize(("dims", "count"), [((9, 4, 3), 1), ((9, 4, 3), 4), ((16, 25, 40), 2), ((16, 25, 40), 3)])
@pytest.mark.parametrize("num_vectors", [1, 5, 32])
@pytest.mark.parametrize("kind", [{"stored": True}, {"steps_a_sweep": 1}, {"steps_a_sweep": 2}], ids=lambda k: str(k))
def test_partitions_of_the_topological_insulator(dims, count, num_vectors, kind):
    from spectile.kpm.distributed.multi_gpu import MultiGpuMatrix

    sample = TopologicalInsulator(*dims)
    engine = MultiGpuMatrix(sample, devices(count), **kind).engine(np.dtype(np.complex128))
    recursion = poisoned(engine, num_vectors)
    etas = np.concatenate([recursion.advance(4), recursion.advance(5)])
    start = reference.random_phases(SEED, sample.shape[0], num_vectors)
    expected = stages.etas_blocked(sample.matrix(), start, 18, A, B)
    assert np.abs(etas - expected).max() / sample.shape[0] < 1e-12, f"seed {SEED}"


@pytest.mark.parametrize("H", [TopologicalInsulator(9, 5, 8), graphene(9, 8), anderson(7, disorder=3, rng=1)])
def test_public_functions_equal_one_device(H, tmp_path):
    from spectile.kpm.distributed.multi_gpu import MultiGpuMatrix

    one = SpectralDensity(H, 64, 5, rng=3, backend="cpu", bounds=(-12, 12))
    several = SpectralDensity(MultiGpuMatrix(H, devices(3)), 64, 5, rng=3, bounds=(-12, 12))
    np.testing.assert_allclose(several.moments, one.moments, atol=1e-11 * H.shape[0])
    several.save(tmp_path / "state.npz")
    resumed = SpectralDensity.load(tmp_path / "state.npz", MultiGpuMatrix(H, devices(3)))
    several.add_moments(21)
    resumed.add_moments(21)
    np.testing.assert_array_equal(resumed.moments, several.moments)
    found = SpectralDensity(MultiGpuMatrix(H, devices(2)), 64, 5, rng=3)
    assert found.integrate() == pytest.approx(H.shape[0], rel=1e-12)


@pytest.mark.parametrize("kind", [{"stored": True}, {}], ids=str)
def test_vectors_that_do_not_fit_together_are_done_in_passes(kind, monkeypatch):
    from spectile.kpm.distributed.multi_gpu import MultiGpuEngine, MultiGpuMatrix

    matrix = MultiGpuMatrix(TopologicalInsulator(9, 5, 8), devices(2), **kind)
    assert matrix.engine(matrix.dtype).capacity() > 1000
    whole = SpectralDensity(matrix, 32, 5, rng=3, bounds=(-12, 12))
    monkeypatch.setattr(MultiGpuEngine, "capacity", lambda self: 2)
    passes = SpectralDensity(matrix, 32, 5, rng=3, bounds=(-12, 12))
    np.testing.assert_allclose(passes.moments, whole.moments, rtol=0, atol=1e-11 * matrix.shape[0])


def with_transport(engine, transport):
    """Return the engine, its messages by copies or by NCCL, as the ranks of several processes send them."""
    from cupy.cuda import nccl

    from spectile.kpm.distributed.transport import NcclMessages

    if transport == "nccl":
        devices = [local.device.ordinal for local in engine.partitions]
        engine.transport = NcclMessages(dict(enumerate(nccl.NcclCommunicator.initAll(devices))))
    return engine


@pytest.mark.parametrize("transport", ["peer", "nccl"])
def test_batches_wait_for_their_start_vectors(transport, tmp_path):
    # A device that is slow to begin, as one that others share: what a batch reads must be ordered, not merely early.
    import cupy

    from spectile.kpm.distributed.multi_gpu import MultiGpuMatrix

    sleep = cupy.RawKernel(
        'extern "C" __global__ void nap() { for (int n = 0; n < 50; ++n) __nanosleep(1000000); }', "nap"
    )
    sample = TopologicalInsulator(9, 6, 8, potential=np.random.default_rng(SEED).random((9, 6, 8)))
    start = reference.random_phases(SEED, sample.shape[0], 5)
    expected = stages.etas_blocked(sample.matrix(), start, 20, A, B)

    def slow(engine):
        for local in engine.partitions:
            with local.device.working():
                sleep((1,), (1,), ())

    matrix = MultiGpuMatrix(sample, range(cupy.cuda.runtime.getDeviceCount()))
    engine = with_transport(matrix.engine(np.dtype(np.complex128)), transport)
    slow(engine)
    recursion = engine.random(SEED, 0, 5, A, B)
    etas = recursion.advance(3)
    held = recursion.state()
    etas = np.concatenate([etas, recursion.advance(7)])
    assert np.abs(etas - expected).max() / sample.shape[0] < 1e-12, f"seed {SEED}"
    slow(engine)
    resumed = engine.random(SEED, 0, 5, A, B)
    resumed.restore(held)
    np.testing.assert_array_equal(resumed.advance(7), etas[6:])


def test_bitwise_repeatable():
    from spectile.kpm.distributed.multi_gpu import MultiGpuMatrix

    sample = TopologicalInsulator(40, 30, 40)
    runs = [
        MultiGpuMatrix(sample, devices(4)).engine(np.dtype(np.complex128)).random(SEED, 0, 8, A, B).advance(20)
        for _ in range(3)
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])


def test_nccl_equals_copies():
    import cupy

    from spectile.kpm.distributed.multi_gpu import MultiGpuMatrix

    count = cupy.cuda.runtime.getDeviceCount()
    sample = TopologicalInsulator(4 * count + 1, 6, 8)
    found = [
        with_transport(MultiGpuMatrix(sample, range(count)).engine(np.dtype(np.complex128)), transport)
        .random(SEED, 0, 4, A, B)
        .advance(9)
        for transport in ("peer", "nccl")
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-12 * sample.shape[0])


def test_one_rank_a_device(run_ranks, tmp_path):
    import cupy

    done = run_ranks(RANK, cupy.cuda.runtime.getDeviceCount(), tmp_path / "moments.npy")
    assert done.returncode == 0, done.stderr
    one = SpectralDensity(TopologicalInsulator(9, 6, 8), 60, 5, rng=3, bounds=(-11, 11), backend="cpu")
    np.testing.assert_allclose(np.load(tmp_path / "moments.npy"), one.moments, atol=1e-11 * one.shape[0])


MIXED = """
import sys
import numpy as np
from mpi4py import MPI
from spectile.kpm import SpectralDensity
from spectile.kpm.distributed.mpi import DistributedMatrix
from spectile.kpm.operators.lattices import anderson
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
comm = MPI.COMM_WORLD
for name, H in {"ti": TopologicalInsulator(12, 6, 8), "anderson": anderson(9, disorder=3, rng=1)}.items():
    for backends, weights in ((("cuda", "cpu"), (5, 1)), (("cpu", "cuda"), (1, 2)), (("cuda", "cuda"), (1, 1))):
        matrix = DistributedMatrix(H, comm, backend=backends[comm.rank], weights=weights)
        density = SpectralDensity(matrix, 60, 5, rng=3, bounds=(-12, 12))
        density.add_moments(21)
        found = SpectralDensity(matrix, 16, 2, rng=3)
        assert abs(found.integrate() / H.shape[0] - 1) < 1e-12
        np.save(f"{sys.argv[1]}/{name}_{'_'.join(backends)}_{comm.rank}.npy", density.moments)
"""


def test_ranks_with_and_without_a_gpu_share_a_matrix_by_weights(run_ranks, tmp_path):
    done = run_ranks(MIXED, 2, tmp_path)
    assert done.returncode == 0, done.stderr
    for name, H in {"ti": TopologicalInsulator(12, 6, 8), "anderson": anderson(9, disorder=3, rng=1)}.items():
        one = SpectralDensity(H, 81, 5, rng=3, bounds=(-12, 12), backend="cpu").moments
        files = list(tmp_path.glob(f"{name}_*.npy"))
        assert len(files) == 6
        for file in files:
            np.testing.assert_allclose(np.load(file), one, rtol=0, atol=1e-11 * H.shape[0], err_msg=file.stem)


OF_EACH = """
import sys
import numpy as np
from mpi4py import MPI
from spectile.kpm import conductivity, evolve, kpm_dos
from spectile.kpm.distributed.mpi import DistributedMatrix
from spectile.kpm.operators.lattices import anderson
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
comm = MPI.COMM_WORLD
places = np.stack(np.unravel_index(np.arange(729), (9, 9, 9)), axis=1).astype(float)
for name, H in {"ti": TopologicalInsulator(5, 6, 8).matrix(), "anderson": anderson(9, disorder=3, rng=1)}.items():
    edge = H.shape[0] // 3
    own = H[:edge] if comm.rank == 0 else H[edge:]
    for backends in (("cuda", "cuda"), ("cpu", "cuda")):
        matrix = DistributedMatrix.from_rows(own, comm, backend=backends[comm.rank])
        found = {"moments": kpm_dos(matrix, 60, 5, rng=3, bounds=(-12, 12)).moments}
        found["states"] = evolve(matrix, np.eye(H.shape[0])[:, :3], [0.5, 1.5], bounds=(-12, 12))
        if name == "anderson":
            sigma = conductivity(matrix, positions=places, area=81.0, num_moments=16, num_vectors=2, rng=1,
                                 bounds=(-12, 12))
            found["sigma"] = sigma([-1.0, 0.1])
        np.savez(f"{sys.argv[1]}/{name}_{'_'.join(backends)}_{comm.rank}.npz", **found)
"""


def test_rows_of_each_rank_are_taken_to_its_gpu(run_ranks, tmp_path):
    done = run_ranks(OF_EACH, 2, tmp_path)
    assert done.returncode == 0, done.stderr
    places = np.stack(np.unravel_index(np.arange(729), (9, 9, 9)), axis=1).astype(float)
    matrices = {"ti": TopologicalInsulator(5, 6, 8).matrix(), "anderson": anderson(9, disorder=3, rng=1)}
    given = {"bounds": (-12, 12), "backend": "cpu"}
    for name, H in matrices.items():
        files = list(tmp_path.glob(f"{name}_*.npz"))
        assert len(files) == 4
        wanted = {
            "moments": kpm_dos(H, 60, 5, rng=3, **given).moments,
            "states": evolve(H, np.eye(H.shape[0])[:, :3], [0.5, 1.5], **given),
        }
        if name == "anderson":
            sigma = conductivity(H, positions=places, area=81.0, num_moments=16, num_vectors=2, rng=1, **given)
            wanted["sigma"] = sigma([-1.0, 0.1])
        for file in files:
            with np.load(file) as found:
                for key, value in wanted.items():
                    np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-11 * H.shape[0], err_msg=file.stem)


@pytest.mark.parametrize(("dims", "cpu_planes"), [((9, 4, 3), 2), ((12, 6, 16), 11), ((20, 12, 40), 10)])
def test_gpu_and_cpu_together(dims, cpu_planes):
    from spectile.kpm.cpu.operator import CpuOperator, CpuRecursion
    from spectile_study.cases.kpm.hybrid import HybridEngine
    from spectile_study.cases.kpm.shared import scaling

    sample = TopologicalInsulator(*dims)
    a, b = scaling(sample)
    both = HybridEngine(sample, cpu_planes, threads=2).random(SEED, 0, 5, a, b)
    operator = CpuOperator.from_topological_insulator(sample, np.dtype(np.complex128))
    one = CpuRecursion(operator, a, b, operator.random_block(SEED, 0, 5), 2)
    for steps in (1, 2, 29):
        np.testing.assert_allclose(both.advance(steps), one.advance(steps), atol=1e-11 * sample.shape[0])


def test_a_dead_rank_is_worded_and_nothing_hangs(dead_rank):
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("a rank that waits for another needs a second GPU")
    done = dead_rank("cuda", 2)
    assert "another rank did not answer rank 0" in done.stdout, done.stderr


def test_bad_input_is_worded():
    from spectile.kpm.distributed.multi_gpu import MultiGpuMatrix

    dtype = np.dtype(np.complex128)
    with pytest.raises(ValueError, match="a halo is 2 wide"):
        MultiGpuMatrix(TopologicalInsulator(5, 4, 3), [0, 0, 0]).engine(dtype)
    with pytest.raises(ValueError, match="take fewer"):
        MultiGpuMatrix(anderson(3, disorder=1, rng=1), [0] * 30).engine(np.dtype(np.float64))
    with pytest.raises(ValueError, match="devices is empty"):
        MultiGpuMatrix(TopologicalInsulator(5, 4, 3), [])


@pytest.mark.parametrize(
    ("study", "scaling"), [("devices", "strong"), ("devices", "throughput"), ("hybrid", None), ("step", None)]
)
def test_cases_pass_their_checks(study, scaling, tmp_path):
    import cupy

    from spectile_study.bench.case import Context, Skipped
    from spectile_study.cases.kpm import build as cases

    count = cupy.cuda.runtime.getDeviceCount()
    row = {"study": study, "nx": 4 * count, "ny": 6, "nz": 8, "num_vectors": 9, "gpus": count, "scaling": scaling}
    row["precision"] = "complex128"
    for method in cases.build(row, Context("cuda", tmp_path, SEED, 2)).methods:
        if isinstance(method, Skipped):
            continue
        for _ in range(2):
            if method.prepare is not None:
                method.prepare()
            result = method.run()
        result = result[0] if method.clock == "external" else result
        errors = method.check(result)
        assert errors and all(errors[name] <= limit for name, limit in method.limits.items()), (method.name, errors)
