"""Where a number came from: device, libraries, clocks, threads, commit, digest of the sources that can change it."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from spectile_study import papers
from spectile_study.bench import reached, sources

PAPERS = tuple(papers.PAPERS)
_LIBRARIES = ("numpy", "scipy", "numba", "threadpoolctl", "pandas", "pyscf", "kwant", "torch", "mpi4py")


class Case(NamedTuple):
    """What decides which sources a case runs.

    Attributes
    ----------
    paper : str
    study : str
        Value of the column ``study`` of its row, "" where its paper has none.
    backend : {"cpu", "cuda"}
    """

    paper: str
    study: str
    backend: str

    def drivers(self) -> tuple[str, str]:
        """Return what builds and what measures it."""
        if self.paper not in PAPERS:
            raise ValueError(f"no paper is called {self.paper!r}: choose one of {', '.join(PAPERS)}")
        return f"spectile_study.cases.{self.paper}.build.build", "spectile_study.bench.measure.case.measure_methods"

    def programs(self) -> str:
        """Return the digest of the programs that it reaches (:mod:`spectile_study.bench.reached`)."""
        return reached.programs(self.drivers(), self.study, self.backend)

    def kernels(self) -> dict[str, str]:
        """Return the digests of the CUDA sources that it may launch."""
        return reached.may_launch(self.drivers(), self.study, self.backend)

    def digest(self) -> str:
        """Return the digest of all sources that can change its numbers."""
        return reached.digest_of_all(self.drivers(), self.study, self.backend)


def ran(case: Case, launched: Collection[str]) -> dict[str, Any]:
    """Return what a record says of the sources that ran: ``digest``, and ``kernels``, digests by name.

    Parameters
    ----------
    case : Case
    launched : collection of str
        The CUDA sources whose kernels were launched.  If there are none, others may have been, by another process: all
        count that could have been.
    """
    kernels = case.kernels()
    if launched and set(launched) <= set(kernels):
        kernels = {name: kernels[name] for name in sorted(launched)}
    return {"digest": reached.digest(case.programs(), kernels), "kernels": kernels}


def edited(facts: Mapping[str, Any], case: Case) -> list[str]:
    """Return what of the sources is not as a record says: kernels by name, or else the programs.

    Parameters
    ----------
    facts : mapping
        The record's provenance.  One that lists no kernels was measured with other programs.
    case : Case
        Its case.
    """
    kernels = facts.get("kernels", {})
    here = set(reached.kernels().values()) if kernels else set()
    gone = [f"kernel {name}" for name, digest in kernels.items() if digest not in here]
    if gone or reached.digest(case.programs(), kernels) == facts["digest"]:
        return gone
    return ["sources"]


def digest_array(*arrays: Any) -> str:
    """Return the sha256 of dtype, shape and content of `arrays` (NumPy or CuPy), in order."""
    import numpy as np

    total = hashlib.sha256()
    for array in arrays:
        host = np.ascontiguousarray(array.get() if hasattr(array, "get") else array)
        total.update(f"{host.dtype.str}{host.shape}".encode())
        total.update(host.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def commit() -> tuple[str, bool | None]:
    """Return the commit of the sources and whether they differ from it.

    An archive of the sources (``git archive``, a download of a release) says its commit in ``commit.txt``; elsewhere
    without a repository the environment variable ``SPECTILE_COMMIT`` names it.  Whether such a copy differs is unknown
    (None).
    """
    archived = _commit_in(Path(__file__).with_name("commit.txt").read_text().strip())
    if archived:  # an archive unpacked inside another repository is not of that one's commit
        return archived, None

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(sources.SOURCES), *words], capture_output=True, text=True, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "HEAD")
    if head:
        return head, bool(git("status", "--porcelain", "--untracked-files=no"))
    return _commit_in(os.environ.get("SPECTILE_COMMIT", "")) or "unknown", None


def _commit_in(text: str) -> str | None:
    return text if re.fullmatch("[0-9a-f]{40}", text) else None


def provenance(
    made_from: Mapping[str, Any], device: str, threads: int, seed: int, plan: Mapping[str, float]
) -> dict[str, Any]:
    """Describe this process: everything that a reader needs to repeat or to doubt a number.

    Parameters
    ----------
    made_from : mapping
        What says which sources ran: ``digest``, as `ran` gives it, or that of all that could.
    device : {"cpu", "cuda"}
    threads, seed : int
        Threads of the CPU code, and seed of the random inputs.
    plan : mapping
        How often a case is timed: ``rounds, warmup, budget_s``.
    """
    head, dirty = commit()
    facts: dict[str, Any] = {
        "commit": head,
        "dirty": dirty,
        **made_from,
        "seed": seed,
        "threads": threads,
        **plan,
        "host": platform.node(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "libraries": _libraries(),
        "blas": _blas(),
    }
    if device == "cuda":
        facts["gpu"] = _gpu_facts()
    return facts


#: What of the software a record is stale without: libraries of CPU records, and facts of a GPU.
CPU_SOFTWARE = ("numpy", "scipy", "numba")
GPU_SOFTWARE = ("driver", "runtime_cuda", "cupy", "cublas", "cusolver", "cusparse", "nvrtc")


def software(device: str) -> dict[str, str]:
    """Return the versions of the driver and the libraries here that decide about the numbers of a backend."""
    return _software(device, {"libraries": _libraries(), "gpu": _gpu_facts() if device == "cuda" else {}})


def software_of(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions with which a record was measured, as far as it says."""
    return _software(record.get("backend", ""), record["provenance"])


def _software(backend: str, facts: Mapping[str, Any]) -> dict[str, str]:
    names, known = (GPU_SOFTWARE, facts.get("gpu")) if backend == "cuda" else (CPU_SOFTWARE, facts.get("libraries"))
    return {name: str((known or {})[name]) for name in names if (known or {}).get(name) is not None}


@functools.cache
def cpu_name() -> str:
    """Return the processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.split(":", 1)[1].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def device_name(device: str) -> str:
    """Return the name of the device that ``"cpu"`` or ``"cuda"`` stands for here."""
    if device == "cpu":
        return cpu_name()
    import cupy

    return cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()


def _memory_bytes() -> int | None:
    import psutil

    return int(psutil.virtual_memory().total)


def _libraries() -> dict[str, str]:
    versions = {}
    for name in (*_LIBRARIES, "cupy-cuda12x", "cupy-cuda13x", "spectile"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _blas() -> list[dict[str, Any]]:
    import numpy  # noqa: F401  # loads the BLAS that is described
    import threadpoolctl

    keys = ("internal_api", "version", "num_threads", "architecture")
    # Others register themselves here, too: SciPy's reader of MatrixMarket files, with a version that is no text.
    pools = [info for info in threadpoolctl.threadpool_info() if info["user_api"] in ("blas", "openmp")]
    return [{key: info.get(key) for key in keys} for info in pools]


def _gpu_facts() -> dict[str, Any]:
    import cupy

    index = cupy.cuda.Device().id
    properties = cupy.cuda.runtime.getDeviceProperties(index)
    facts: dict[str, Any] = {
        "name": properties["name"].decode(),
        "count": cupy.cuda.runtime.getDeviceCount(),
        "multiprocessors": properties["multiProcessorCount"],
        "memory_bytes": properties["totalGlobalMem"],
        "l2_bytes": properties["l2CacheSize"],
        "driver_cuda": cupy.cuda.runtime.driverGetVersion(),
        "runtime_cuda": cupy.cuda.runtime.runtimeGetVersion(),
    }
    facts |= _cuda_libraries()
    try:
        import pynvml

        pynvml.nvmlInit()
        # NVML counts all devices of the host, CUDA those that it is shown.
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(cupy.cuda.Device().pci_bus_id)
        facts |= {
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "memory_clock_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "throttle_bits": pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
            "power_limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
            "power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        }
    except Exception as error:  # NVML is absent in some containers; the record says so instead of failing
        facts["nvml"] = f"not readable: {error}"
    return facts


def _cuda_libraries() -> dict[str, Any]:
    """Return the versions of the libraries that CuPy calls."""
    names = ("cublas", "cusolver", "cusparse", "nvrtc")
    try:
        import cupy
        import cupyx

        info = cupyx.get_runtime_info()
        versions = {name: getattr(info, f"{name}_version", None) for name in names}
        return {"cupy": cupy.__version__} | {name: _dotted(version) for name, version in versions.items()}
    except Exception as error:  # CuPy's description of itself is no part of a measurement
        return {"cuda_libraries": f"not readable: {error}"}


def _dotted(version: Any) -> str | None:
    """Return a version as text; NVRTC's is a pair of numbers."""
    if version is None:
        return None
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
