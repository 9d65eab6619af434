"""Settings of all tests, and MPI ranks for those of the CPU and the GPU."""

import logging
import os
import shutil
import signal
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, settings

# The first call of a compiled kernel takes seconds, which says nothing about the property.
# Examples are the same in every run: a new one is found by hand (python -m tests.random), not by a machine that judges.
settings.register_profile(
    "spectile", deadline=None, max_examples=50, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("spectile")

# What JAX compiles here runs once on a few numbers: programs of these tests, too, take XLA's quickest way.
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"]
).strip()

# Open MPI refuses to start ranks as root, as containers do, unless told twice; cases of the study start some, too.
os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

# Rank 1 dies between two calls; rank 0 must say so.
DEAD_RANK = """
import os, sys, time
from mpi4py import MPI
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm.distributed.mpi import DistributedMatrix
backend, timeout_s = sys.argv[1], float(sys.argv[2])

def begun(timeout_s):
    matrix = DistributedMatrix(TopologicalInsulator(8, 5, 4), MPI.COMM_WORLD, timeout_s=timeout_s, backend=backend)
    recursion = matrix.engine(matrix.dtype).random(1, 0, 2, 0.1, 0.0)
    MPI.COMM_WORLD.barrier()  # a short limit counts from where both are
    recursion.advance(4)
    return recursion

begun(400)  # until the kernels are compiled, a rank may wait for long
recursion = begun(timeout_s)
if MPI.COMM_WORLD.rank == 1:
    time.sleep(3 * timeout_s)
    os._exit(0)
try:
    recursion.advance(4)
except RuntimeError as error:
    print(error, flush=True)
    os._exit(0)
"""


# Of SciPy's own tests, which run with our eigensolvers in the place of SciPy's.
SCIPY_MARKERS = ("array_api_backends", "fail_slow", "parallel_threads_limit", "skip_xp_backends", "thread_unsafe",
                 "xfail_on_32bit", "xfail_xp_backends")  # fmt: skip


def pytest_configure(config):
    for marker in SCIPY_MARKERS:
        config.addinivalue_line("markers", f"{marker}: of SciPy's own tests")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give all of tests/study to one worker: its files share the records that they read and draw."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class BySharing(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            folder = file.rpartition("/")[0]
            return folder if folder == "tests/study" else file

    return BySharing(config, log)


@pytest.fixture
def impatient(monkeypatch, caplog):
    """Calls tell at once how far they are; returns caplog, which hears it."""
    from spectile.core import progress

    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    caplog.set_level(logging.INFO, "spectile.progress")
    return caplog


@pytest.fixture(scope="session")
def run_ranks():
    """Return ``run(program, ranks, *arguments)``: a Python program on MPI ranks; skip where MPI is missing."""
    command = shutil.which("mpiexec", path=f"{sys.prefix}/bin") or shutil.which("mpiexec")  # mpi4py's own first
    if command is None:
        pytest.skip("no MPI runtime was found: install one (pip install mpich, or the system's openmpi-bin)")
    if subprocess.run([sys.executable, "-c", "from mpi4py import MPI"], capture_output=True, check=False).returncode:
        pytest.skip("mpi4py does not load with this MPI runtime")

    def run(program, ranks, *arguments):
        return subprocess.run(
            [command, "-n", str(ranks), sys.executable, "-c", program, *map(str, arguments)],
            capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip

    return run


@pytest.fixture
def dead_rank(run_ranks):
    """Return ``dead_rank(backend, timeout_s)``: what two ranks do of which one dies."""
    return lambda backend, timeout_s: run_ranks(DEAD_RANK, 2, backend, timeout_s)


@pytest.fixture
def here(monkeypatch):
    """A function that lets a device of the table be that of this machine, and its cores so many."""
    from spectile.core import device
    from spectile.core.devices import TABLE

    def found(name, cores=16):
        monkeypatch.setattr(device, "refusal", lambda: None)
        monkeypatch.setattr(device, "describe", lambda: TABLE[name])
        monkeypatch.setattr(device, "cores", lambda: cores)

    return found


@pytest.fixture
def hears_ctrl_c():
    """Let this process hear Ctrl-C, which jobs in the background of a shell ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_make_parametrize_id(val, argname):
    """Name bytes by their argument: an archive's hold the second in which it was made, and workers must agree."""
    return argname if isinstance(val, bytes) else None
