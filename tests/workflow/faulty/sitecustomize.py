"""Put on PYTHONPATH by tests: the system kpm gets methods that crash, hang, lie and forget."""

import atexit
import os
import resource
import signal
import sys
import time
import types
from pathlib import Path


def build(row, context):
    import numpy as np

    from spectile_study.bench.case import Method, Problem, Skipped

    if row["n"] == 0:
        raise ValueError("n = 0: a problem needs at least one row, give n >= 1")
    if row["n"] < 0:
        raise FileNotFoundError("the matrix nowhere is absent: fetch it first")
    if row.get("matrix"):
        from spectile_study.inputs import suitesparse

        suitesparse.load(row["matrix"], context.resources, "config/matrices.tsv")
    data = np.random.default_rng(context.seed).random(row["n"])
    calls = {"n": 0}

    def count():
        calls["n"] += 1
        if calls["n"] > 3:
            raise RuntimeError("a device was lost")
        return data.sum()

    def hang():
        time.sleep(60)

    def lose_gpu():
        sys.modules["cupy"].lost = True
        raise RuntimeError("cudaErrorIllegalAddress")

    def on_gpu():
        sys.modules["cupy"].cuda.runtime.deviceSynchronize()
        return data.sum()

    def crash():
        os.kill(os.getpid(), signal.SIGSEGV)

    def slow_then_note():
        note = Path(os.environ.get("FAULTY_NOTE", os.devnull))
        if not note.exists():  # the first time only: what is tried again ends well
            note.write_text(str(os.getpid()))
            time.sleep(60)
        return data.sum()

    def right(result):
        return {"error_fro_rel": abs(result - data.sum())}

    limits = {"error_fro_rel": 1e-12}
    kinds = {
        "good": Method(
            "good", data.sum, right, limits, flops=row["n"], values=lambda r: {"sum": r, "list": [1.0, 2.0]}
        ),
        "vendor": Method("vendor", lambda: np.add.reduce(data), right, limits, flops=row["n"]),
        "crash": Method("crash", crash, right, limits),
        "hang": Method("hang", hang, right, limits, time_limit_s=1.0),
        "nan": Method("nan", lambda: float("nan"), right, limits),
        "wrong": Method("wrong", lambda: data.sum() + 1, right, limits),
        "raises": Method("raises", lambda: 1 / 0, right, limits),
        "lost": Method("lost", count, right, limits),
        "waits": Method("waits", slow_then_note, right, limits),
        "gpu_lost": Method("gpu_lost", lose_gpu, right, limits),
        "gpu_good": Method("gpu_good", on_gpu, right, limits),
        "absent": Skipped("absent", "no device is found"),
    }
    return Problem(
        [kinds[name] for name in row["methods"].split(",")], inputs={"data": "0" * 64}, values={"n": row["n"]}
    )


def fake_gpu(count):
    """Pretend that `count` GPUs are here, as far as measuring asks; after an error the device answers nothing."""
    cupy, device = types.ModuleType("cupy"), types.ModuleType("spectile.core.device")
    cupy.lost = False

    def synchronize():
        if cupy.lost:
            raise RuntimeError("cudaErrorIllegalAddress, again")

    sizes = {"name": b"Fake GPU", "multiProcessorCount": 1, "totalGlobalMem": 1, "l2CacheSize": 1}
    cupy.ndarray = type("ndarray", (), {})
    cupy.cuda = types.SimpleNamespace(
        is_available=lambda: True,
        Device=lambda: types.SimpleNamespace(id=0),
        runtime=types.SimpleNamespace(
            deviceSynchronize=synchronize,
            getDeviceProperties=lambda index: sizes,
            getDeviceCount=lambda: count,
            driverGetVersion=lambda: 13000,
            runtimeGetVersion=lambda: 13000,
        ),
    )
    device.available = lambda: True
    sys.modules |= {"cupy": cupy, "spectile.core.device": device}


def note_processor_time(path):
    """Let a Snakemake append to `path`, at its end, its Slurm job and the processor time of it and its children."""

    def note():
        seconds = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        with Path(path).open("a") as file:
            file.write(f"{os.environ.get('SLURM_JOB_ID', '-')} {seconds:.3f}\n")

    atexit.register(note)


if "FAULTY_SECONDS" in os.environ and "snakemake" in sys.orig_argv:
    note_processor_time(os.environ["FAULTY_SECONDS"])
if "FAULTY_GPUS" in os.environ:
    fake_gpu(int(os.environ["FAULTY_GPUS"]))
module = types.ModuleType("spectile_study.cases.kpm.build")
module.build = build
sys.modules["spectile_study.cases.kpm.build"] = module
