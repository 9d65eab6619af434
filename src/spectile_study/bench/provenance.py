"""Where a number came from: device, libraries, clocks, threads, commit, digest of the sources that can change it."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from spectile_study import papers

SOURCES = Path(__file__).resolve().parents[2]
PAPERS = tuple(papers.PAPERS)
_SHARED_SOURCES = ("inputs", "bench/timing.py", "bench/vendor.py", "bench/record.py")
_LIBRARIES = ("numpy", "scipy", "numba", "threadpoolctl", "pandas", "pyscf", "kwant", "torch", "mpi4py")


@functools.cache
def source_digest(paper: str) -> str:
    """Return the sha256 of every source that can change the numbers of `paper`.

    The system's package, ``core/``, and of the study its cases, ``inputs/`` and ``bench/{timing,vendor,record}.py``
    count; comments, docstrings, layout and where a file lies do not, so that an edited kernel or baseline is measured
    again, and an edited comment or a renamed file is not.
    """
    if paper not in PAPERS:
        raise ValueError(f"no paper is called {paper!r}: choose one of {', '.join(PAPERS)}")
    return programs_digest(_source_files(paper))


def programs_digest(files: Iterable[Path]) -> str:
    """Return the sha256 of the programs in `files`, their comments and docstrings left out; other files count whole.

    A file counts by what it says, whatever its name; where it names another source, as an import, an include or a unit
    of compilation does, by what that one says.
    """
    return hashlib.sha256("".join(sorted(map(_program_digest, files))).encode()).hexdigest()


def _source_files(paper: str) -> Iterator[Path]:
    library, study = SOURCES / "spectile", SOURCES / "spectile_study"
    shared = [study / part for part in _SHARED_SOURCES]
    for root in (library / papers.PAPERS[paper].package, library / "core", study / "cases" / paper, *shared):
        if root.is_file():
            yield root
        elif root.is_dir():
            yield from sorted(p for p in root.rglob("*") if p.suffix in {".py", ".cu", ".cuh"})


def program(path: Path, named: Callable[[str], str] = str) -> str:
    """Return a Python or CUDA source without comments, docstrings and layout, the same in every version of Python.

    Parameters
    ----------
    path : Path
    named : callable, optional
        What stands where it names another source, by that name: ``"spectile.core.launch"`` or ``"rows/hash.cu"``.
    """
    return _with_names(_template(path), named)


#: What encloses the name of another source; no program holds it.
_MARK = "\0"


def _with_names(template: str, named: Callable[[str], str]) -> str:
    return "".join(named(part) if number % 2 else part for number, part in enumerate(template.split(_MARK)))


def _template(path: Path) -> str:
    """Return a source as `program` does, with marks around what names another source."""
    text = path.read_text()
    if path.suffix == ".py":
        return _printed(ast.parse(text))
    if path.suffix not in {".cu", ".cuh"}:
        return text
    text = text.replace("\\\n", " ")  # lines that go on, of macros
    # A string may hold what looks like a comment.
    code = re.sub(
        r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', lambda m: m[0] if m[0][0] == '"' else " ", text, flags=re.DOTALL
    )
    code = re.sub(r'(#include *")([^"]*)"', lambda m: f'{m[1]}{_MARK}{m[2]}{_MARK}"', code)
    # Blanks count in strings, and between words.
    return re.sub(r'"(?:\\.|[^"\\])*"|\s+', lambda m: m[0] if m[0][0] == '"' else _blank(m), code)


def _blank(found: re.Match[str]) -> str:
    before, after = found.string[max(0, found.start() - 1) : found.start()], found.string[found.end() : found.end() + 1]
    return " " if re.fullmatch(r"\w\w", before + after) else ""


def _printed(node: object) -> str:
    """Return a syntax tree as text; fields that are empty, or new in a later Python, leave no trace."""
    if isinstance(node, list):
        return f"[{','.join(map(_printed, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    kind, parts = type(node), []
    for name in kind._fields:
        value = getattr(node, name, None)
        if value is None or value == [] or name == "ctx":  # whether a name is read or written follows from its place
            continue
        if name == "body" and kind in _DOCUMENTED and ast.get_docstring(node, clean=False) is not None:  # type: ignore[arg-type]
            value = value[1:]
        if name == "module" or (name == "value" and isinstance(value, str) and value.endswith((".cu", ".cuh"))):
            parts.append(f"{name}={_MARK}{value}{_MARK}")
        else:
            parts.append(f"{name}={_printed(value)}")
    return f"{kind.__name__}({','.join(parts)})"


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


#: A file is read once, for four systems, for itself and for those that name it.
_template_of = functools.cache(_template)


@functools.cache
def _program_digest(path: Path) -> str:
    return hashlib.sha256(_with_names(_template_of(path), _said_by).encode()).hexdigest()


@functools.cache
def _said_by(name: str) -> str:
    """Return the digest of what a source of ours says, without what it names itself, or the name of another's."""
    if name.endswith((".cu", ".cuh")):  # relative to a package, which may stand before it with a colon
        end = "/" + name.rpartition(":")[2]
        files = [path for path in _cuda_sources() if path.as_posix().endswith(end)]
    else:
        place = SOURCES.joinpath(*name.split("."))
        files = [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()]
    said = sorted(_with_names(_template_of(path), lambda other: "") for path in files)
    return hashlib.sha256("\n".join(said).encode()).hexdigest() if said else name


@functools.cache
def _cuda_sources() -> tuple[Path, ...]:
    return tuple(path for path in SOURCES.rglob("*.cu*") if path.suffix in {".cu", ".cuh"})


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
            done = subprocess.run(["git", "-C", str(SOURCES), *words], capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "HEAD")
    if head:
        return head, bool(git("status", "--porcelain", "--untracked-files=no"))
    return _commit_in(os.environ.get("SPECTILE_COMMIT", "")) or "unknown", None


def _commit_in(text: str) -> str | None:
    return text if re.fullmatch("[0-9a-f]{40}", text) else None


def provenance(paper: str, device: str, threads: int, seed: int, plan: Mapping[str, float]) -> dict[str, Any]:
    """Describe this process: everything that a reader needs to repeat or to doubt a number.

    Parameters
    ----------
    paper : str
        Whose sources count.
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
        "digest": source_digest(paper),
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
