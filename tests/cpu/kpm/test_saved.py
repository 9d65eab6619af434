"""Saved densities: every array is checked before a kernel reads it, signals write the state, paths are tried first."""

import dataclasses
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

from spectile import kpm
from spectile.core.atomic_file import atomic_write
from spectile.kpm import Chebyshev, SpectralDensity, chebyshev, kpm_dos, reference
from spectile.kpm.cpu.engine import CpuEngine
from spectile.kpm.operators.lattices import anderson, chain, graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator

SAMPLE = TopologicalInsulator(4, 5, 3)
KINDS = {
    "stencil": SAMPLE, "patterns": graphene(6, 5), "entries": anderson(3, disorder=2, rng=1),
    "float32": graphene(6, 5).astype("float32"), "operator": aslinearoperator(graphene(6, 5)),
}  # fmt: skip


@pytest.fixture
def saved(tmp_path):
    """Return a file of 20 moments of five vectors, its H and its arrays."""

    def make(kind="stencil", vectors=5):
        path = tmp_path / "state.npz"
        SpectralDensity(KINDS[kind], 20, vectors, rng=3, backend="cpu").save(path)
        with np.load(path) as archive:
            return path, KINDS[kind], dict(archive)

    return make


def load(path, H):
    return SpectralDensity.load(path, H, backend="cpu")


@pytest.mark.parametrize("other", ["float32", "complex128", "complex64", "int64"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
def test_an_h_of_another_type_is_told_by_its_type(dtype, other, tmp_path):
    """Not as damage, nor as another matrix: what was saved is whole, and the matrix is the same."""
    H, path = sp.csr_array(chain(40)), tmp_path / "state.npz"
    given, wrong = H.astype(dtype), H.astype(other)
    calls = {
        "load": (lambda h: kpm_dos(h, 16, 2, rng=1, backend="cpu").save(path), lambda h: load(path, h)),
        "terms": (
            lambda h: chebyshev(h, np.ones(40, "float32"), 9, backend="cpu").save(path),
            lambda h: Chebyshev.load(path, h, backend="cpu"),
        ),
    }
    for name, (write, read) in calls.items():
        write(given)
        # The type in which it is held, or terms made in a wider one.
        same = dtype == other or (dtype, other) == ("float64", "int64")
        if same or (name == "terms" and (dtype, other) in (("float64", "float32"), ("complex128", "complex64"))):
            assert read(wrong) is not None
            continue
        with pytest.raises(ValueError, match=f"{dtype}|another type") as told:
            read(wrong)
        assert "damaged" not in str(told.value) and "another matrix" not in str(told.value)


DAMAGES = {
    "missing": lambda a: None,
    "fewer rows": lambda a: a[:-3],
    "more rows": lambda a: np.concatenate([a, a[-1:]]),
    "fewer vectors": lambda a: a[..., :-1],
    "flat": lambda a: a.ravel(),
    "empty": lambda a: a[:0],
    "NaN": lambda a: np.where(np.arange(a.size).reshape(a.shape) == a.size // 2, np.nan, a),
    "infinity": lambda a: np.where(np.arange(a.size).reshape(a.shape) == 0, np.inf, a),
    "integers": lambda a: a.astype(np.int64),
    "half precision": lambda a: a.astype(np.float16),
    "complex": lambda a: a.astype(np.complex128),
    "words": lambda a: a.astype(str),
    "objects": lambda a: a.astype(object),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["v_0", "w_0", "etas_0"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_array_is_named_and_read_by_no_kernel(damage, name, kind, saved):
    path, H, arrays = saved(kind)
    if damage == "complex" and np.iscomplexobj(arrays[name]):
        arrays[name] = arrays[name].real
    else:
        arrays[name] = DAMAGES[damage](arrays[name])
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    for call in (lambda: load(path, H), lambda: kpm_dos(H, 40, 5, rng=3, backend="cpu", checkpoint=path)):
        with pytest.raises(ValueError, match=f"{path} (is damaged: .*_0|holds no saved density)") as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_what_another_host_rounds_otherwise_is_the_same_matrix(kind, saved):
    path, H, arrays = saved(kind)
    eps = float(np.finfo(arrays["v_0"].dtype).eps)
    whole = load(path, H)
    for off, alike in ((20 * eps, True), (-20 * eps, True), (1e5 * eps, False)):
        kept = arrays["fingerprint"].copy()
        kept[1:] *= 1 + off
        np.savez(path, **arrays | {"fingerprint": kept})
        if alike:
            np.testing.assert_array_equal(load(path, H).moments, whole.moments)
        else:
            with pytest.raises(ValueError, match="another matrix"):
                load(path, H)


def test_a_file_of_an_earlier_version_holds_half_a_fingerprint(saved):
    path, H, arrays = saved()
    whole = load(path, H)
    np.savez(path, **arrays | {"fingerprint": arrays["fingerprint"][:18]})
    np.testing.assert_array_equal(load(path, H).moments, whole.moments)
    with pytest.raises(ValueError, match="another matrix"):
        load(path, dataclasses.replace(H, hopping=1.001))


@pytest.mark.filterwarnings("error")
def test_a_file_is_named_and_closed(saved, tmp_path):
    path, H, _ = saved()
    density = load(os.fsencode(path), H)
    for wrong in (3, None, 1.5):
        for call, others in ((density.save, ()), (load, (H,))):
            with pytest.raises(TypeError, match="is no path: name a file"):
                call(wrong, *others)
    with pytest.raises(OSError, match=f"^{tmp_path} cannot be written"):
        density.save(tmp_path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"state\.npz holds no saved density"):
        load(path, H)
    gc.collect()


SCALARS = ["seed", "bounds", "kernel", "num_moments", "fixed_bounds", "blocks", "fingerprint", "backend", "finished",
           "total", "steps_0"]  # fmt: skip


@pytest.mark.parametrize("name", SCALARS)
def test_a_missing_or_wrong_number_is_one_sentence(name, saved):
    path, H, arrays = saved()
    for wrong in (None, np.array(-1), np.array(10**9), np.array(np.nan), np.array("nothing"), np.zeros(0), np.ones(5)):
        changed = {key: value for key, value in (arrays | {name: wrong}).items() if value is not None}
        np.savez(path, **changed)
        counted = wrong is not None and wrong.size and wrong.dtype == np.int64 and wrong > 0
        if name in ("seed", "total") and counted:
            continue  # nobody can tell
        with pytest.raises(ValueError, match=r"state\.npz"):
            load(path, H)


def test_numbers_that_do_not_fit_together_are_seen(saved):
    path, H, arrays = saved()
    for changes in (
        {"steps_0": np.array(9)},
        {"num_moments": np.array(21)},
        {"total": np.array(4)},
        {"blocks": np.array(2)},
        {"finished": np.array(1)},
        {"bounds": arrays["bounds"][::-1]},
        {"scaling": np.array([-1.0, 0.0])},
        {"scaling": np.array([1.0, 100.0])},
        {"etas_0": arrays["etas_0"] * 2},
        {"etas_0": np.concatenate([arrays["etas_0"], arrays["etas_0"]])},
    ):
        np.savez(path, **arrays | changes)
        with pytest.raises(ValueError, match=r"state\.npz is damaged"):
            load(path, H)


@pytest.mark.parametrize("kind", KINDS)
def test_other_orders_of_memory_and_bytes_go_on_to_the_same_bits(kind, saved):
    path, H, arrays = saved(kind)
    whole = SpectralDensity(H, 50, 5, rng=3, backend="cpu")
    for change in (np.asfortranarray, lambda a: a.astype(a.dtype.newbyteorder("S"))):
        np.savez(path, **{key: value if value.ndim == 0 else change(value) for key, value in arrays.items()})
        density = load(path, H)
        density.add_moments(30)
        np.testing.assert_array_equal(density.moments, whole.moments)
        density.add_vectors(2)
        assert density.num_vectors == 7


def test_a_file_that_was_cut_anywhere_is_one_sentence(saved):
    path, H, _ = saved()
    whole = path.read_bytes()
    for size in (0, 1, 30, len(whole) // 3, len(whole) - 1):
        path.write_bytes(whole[:size])
        for call in (lambda: load(path, H), lambda: kpm_dos(H, 40, 5, rng=3, backend="cpu", checkpoint=path)):
            with pytest.raises(ValueError, match=r"state\.npz holds no saved density, or not all"):
                call()
    for place in range(200, len(whole), len(whole) // 40):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            np.testing.assert_array_equal(load(path, H).num_vectors, 5)
        except ValueError as error:
            assert "state.npz" in str(error)
    np.save(path.with_suffix(".npy"), np.zeros(4))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("fingerprint.npy", b"no array")
    for other in (path, path.with_suffix(".npy"), path.parent):
        with pytest.raises(ValueError, match=r"holds no saved density|is damaged"):
            load(other, H)
    with pytest.raises(FileNotFoundError):
        load(path.with_name("nowhere.npz"), H)


def test_a_file_without_the_scale_of_its_moments_is_damaged(saved):
    path, H, arrays = saved()
    np.savez(path, **{key: value for key, value in arrays.items() if key != "scaling"})
    with pytest.raises(ValueError, match=r"state\.npz is damaged"):
        load(path, H)


def test_the_scale_of_a_saved_density_is_that_of_its_moments(saved):
    path, H, arrays = saved()
    density = load(path, H)
    assert (1 / density.scale, density.centre) == pytest.approx(tuple(arrays["scaling"]), rel=1e-15)
    whole = SpectralDensity(H, 20, 5, rng=3, backend="cpu")
    assert (density.scale, density.centre, density.bounds) == (whole.scale, whole.centre, whole.bounds)


def test_a_kernel_that_is_a_function_is_given_again(tmp_path):
    path = tmp_path / "state.npz"
    arguments = {"num_vectors": 3, "rng": 1, "backend": "cpu"}
    density = SpectralDensity(SAMPLE, 20, kernel=np.ones, **arguments)
    density.save(path)
    with pytest.raises(ValueError, match=r"state\.npz was written with a function as kernel: give it"):
        load(path, SAMPLE)
    again = SpectralDensity.load(path, SAMPLE, backend="cpu", kernel=np.ones)
    np.testing.assert_array_equal(again.densities, density.densities)
    whole = kpm_dos(SAMPLE, 40, kernel=np.ones, **arguments, checkpoint=path)
    np.testing.assert_array_equal(whole.densities, kpm_dos(SAMPLE, 40, kernel=np.ones, **arguments).densities)
    density.save(path)
    with pytest.raises(ValueError, match="function as kernel"):
        kpm_dos(SAMPLE, 40, kernel="jackson", **arguments, checkpoint=path)


# ---- where it is written


@pytest.mark.parametrize("place", ["folder", "below a file", "name too long"])
def test_a_path_that_cannot_be_written_is_named_at_once(place, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    path = {"folder": tmp_path, "below a file": tmp_path / "file" / "x.npz", "name too long": tmp_path / ("x" * 300)}[
        place
    ]
    monkeypatch.setattr(SpectralDensity, "_prepare", lambda *each: pytest.fail("work began"))
    with pytest.raises(OSError, match="cannot be written"):
        kpm_dos(SAMPLE, 64, 2, rng=1, backend="cpu", checkpoint=path)
    assert [each.name for each in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_is_not_there_is_made_for_a_file(tmp_path):
    path = tmp_path / "a" / "b" / "dos.npz"
    density = kpm_dos(SAMPLE, 64, 2, rng=1, backend="cpu", checkpoint=path)
    assert list(tmp_path.iterdir()) == []  # it was done before there was anything to write
    density.save(path)
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(ValueError, match="checkpoint_s = nan"):
        kpm_dos(SAMPLE, 64, 2, rng=1, backend="cpu", checkpoint=path, checkpoint_s=float("nan"))


def test_threads_that_write_one_file_leave_a_whole_one(tmp_path):
    path, began = tmp_path / "dos.npz", threading.Barrier(4)
    densities = [SpectralDensity(SAMPLE, 20 + 2 * n, 2, rng=3, backend="cpu") for n in range(4)]

    def write(density):
        began.wait()
        for _ in range(10):
            density.save(path)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, densities))
    assert load(path, SAMPLE).num_moments in (20, 22, 24, 26)
    assert [each.name for each in tmp_path.iterdir()] == ["dos.npz"]


def test_writers_of_one_file_write_beside_one_another(tmp_path):
    path = tmp_path / "file"
    with atomic_write(path) as one, atomic_write(path) as two:
        one.write_text("1" * 100)
        two.write_text("2")
    assert path.read_text() == "1" * 100 and len(list(tmp_path.iterdir())) == 1


# ---- signals


def sending(monkeypatch, call, number):
    """Send a signal in the `call`-th time that a density adds moments."""
    calls, add_moments = [], SpectralDensity.add_moments

    def counted(self, num_moments):
        calls.append(num_moments)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        add_moments(self, num_moments)

    monkeypatch.setattr(SpectralDensity, "add_moments", counted)
    return calls


ENDS = {signal.SIGINT: (KeyboardInterrupt, None), signal.SIGTERM: (SystemExit, 143)}


@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize("call", [1, 3, 6])  # of six: the last one completes the density
@pytest.mark.parametrize("passes", [1, 2])
def test_a_signal_writes_the_state_and_ends_the_call(number, call, passes, tmp_path, monkeypatch):
    path = tmp_path / "dos.npz"
    if passes == 2:
        monkeypatch.setattr(CpuEngine, "capacity", lambda self: 2)
    arguments = {"num_moments": 700 if passes == 1 else 380, "num_vectors": 2 * passes, "rng": 5, "backend": "cpu"}
    whole = kpm_dos(SAMPLE, **arguments, checkpoint=path)
    before = {each: signal.getsignal(each) for each in ENDS}
    with monkeypatch.context() as once:
        calls = sending(once, call, number)
        with pytest.raises(ENDS[number][0]) as caught:
            kpm_dos(SAMPLE, **arguments, checkpoint=path)
        assert len(calls) == call and getattr(caught.value, "code", None) == ENDS[number][1]
    assert {each: signal.getsignal(each) for each in ENDS} == before
    calls = sending(monkeypatch, 0, number)
    np.testing.assert_array_equal(kpm_dos(SAMPLE, **arguments, checkpoint=path).moments, whole.moments)
    assert len(calls) == 6 - call and not path.exists()


def test_a_handler_of_the_callers_is_called_behind_the_writing(tmp_path, monkeypatch):
    path, seen = tmp_path / "dos.npz", []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append((number, path.exists())))
    try:
        sending(monkeypatch, 2, signal.SIGTERM)
        density = kpm_dos(SAMPLE, 500, 2, rng=5, backend="cpu", checkpoint=path)
        assert seen == [(signal.SIGTERM, True)] and density.num_moments == 500
        handler = signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert callable(handler) and not path.exists()


def test_other_threads_hear_no_signals(tmp_path):
    with ThreadPoolExecutor(1) as thread:
        density = thread.submit(
            kpm_dos, SAMPLE, 300, 2, rng=5, backend="cpu", checkpoint=tmp_path / "dos.npz", checkpoint_s=0
        ).result()
    np.testing.assert_array_equal(density.moments, kpm_dos(SAMPLE, 300, 2, rng=5, backend="cpu").moments)


JOB = """
import sys, os, signal
from spectile.kpm import SpectralDensity, kpm_dos
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
add, calls = SpectralDensity.add_moments, []
def counted(self, number):
    calls.append(number)
    if len(calls) == 2:
        print("begun", flush=True)
        sys.stdin.readline()
    add(self, number)
SpectralDensity.add_moments = counted
kpm_dos(TopologicalInsulator(4, 5, 3), 700, 2, rng=5, backend="cpu", checkpoint=sys.argv[1])
"""


def test_a_job_that_a_batch_system_ends_leaves_its_state(tmp_path):
    path = tmp_path / "dos.npz"
    job = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", JOB, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert job.stdout.readline() == "begun\n"
    job.send_signal(signal.SIGTERM)
    job.communicate("go on\n", timeout=300)
    assert job.returncode == 143
    assert load(path, SAMPLE).num_moments == 2 + 2 * 128
    whole = kpm_dos(SAMPLE, 700, 2, rng=5, backend="cpu", checkpoint=path)
    np.testing.assert_array_equal(
        whole.moments, SpectralDensity(SAMPLE, 700, 2, rng=5, backend="cpu", bounds=None).moments
    )


def test_the_reference_makes_the_same_phases_in_any_number_of_rows():
    for real in (False, True):
        block = reference.random_phases(7, 3000, 50, first_vector=3, real=real)
        rows = np.arange(3000, dtype=np.uint64)[:, None]
        with np.errstate(over="ignore"):
            bits = reference.phase_bits(np.uint64(7), rows, np.arange(3, 53, dtype=np.uint64)[None])
        quarter = (bits >> np.uint64(62)).astype(int)
        wanted = np.where(quarter < 2, 1, -1) if real else np.array([1, 1j, -1, -1j])[quarter]
        np.testing.assert_array_equal(block, wanted)


V, E = np.ones(40), np.linspace(-1, 1, 40)
WRONG = {
    "kpm_dos": lambda **way: kpm_dos(chain(40), 16, 2, bounds=(3.0, 1.0), **way),
    "kpm_dos, operator": lambda **way: kpm_dos(chain(40), 16, 2, operator=np.eye(3), **way),
    "kpm_dos, kernel": lambda **way: kpm_dos(chain(40), 16, 2, kernel=lambda number: np.ones(3), **way),
    "ldos": lambda **way: kpm.ldos(chain(40), [99], 16, **way),
    "spectral_function": lambda **way: kpm.spectral_function(chain(40), [[0.1]], E[:3, None], num_moments=16, **way),
    "evolve": lambda **way: kpm.evolve(chain(40), V[:3], 1.0, **way),
    "apply": lambda **way: kpm.apply(lambda x: x[:3], chain(40), V, **way),
    "correlator": lambda **way: kpm.correlator(chain(40), np.eye(3), None, num_moments=8, **way),
    "conductivity": lambda **way: kpm.conductivity(chain(40), positions=E[:3], num_moments=8, **way),
    "greens_function": lambda **way: kpm.greens_function(chain(40), [0], [99], 0.1, 0.1, **way),
    "filter_diagonalize": lambda **way: kpm.filter_diagonalize(chain(40), (2.0, 1.0), **way),
}


@pytest.mark.parametrize("call", WRONG)
def test_a_call_that_fails_leaves_no_folder(call, tmp_path):
    for backend in ("cpu", "nowhere"):
        with pytest.raises((ValueError, IndexError)):
            WRONG[call](checkpoint=tmp_path / "new/folder/state.npz", backend=backend)
        assert list(tmp_path.iterdir()) == []


def test_every_function_with_a_checkpoint_is_tried():
    named = {name for name in kpm.__all__ if "checkpoint" in inspect.signature(getattr(kpm, name)).parameters}
    assert named == {call.partition(",")[0] for call in WRONG}
