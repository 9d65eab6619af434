"""Long calls: ended by a signal they leave a file and go on from it to the same bits; what they show meanwhile."""

import inspect
import logging
import os
import signal
import sys
import time
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator

import spectile
from spectile.core import progress as shown
from spectile.kpm import (
    Chebyshev,
    SpectralDensity,
    apply,
    bounds,
    chebyshev,
    conductivity,
    correlator,
    count,
    evolve,
    filter_diagonalize,
    greens_function,
    kpm_dos,
    ldos,
    spectral_function,
)
from spectile.kpm.checkpoint import Run
from spectile.kpm.cpu.engine import CpuEngine
from spectile.kpm.cpu.operator import CpuRecursion
from spectile.kpm.iterator import Terms
from spectile.kpm.operators.lattices import anderson, chain, graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from tests.hamiltonians import haldane

H = anderson(4, disorder=3, rng=1)
COMPLEX = haldane(5, mass=0.3)
PLACES = np.stack(np.unravel_index(np.arange(64), (4, 4, 4)), axis=1).astype(float)
STATES = np.random.default_rng(2).standard_normal((64, 5)) + 1j * np.eye(64)[:, :5]
CALLS = {
    "evolve": lambda **o: evolve(H, STATES, [4.0, -3.0, 9.0, *np.linspace(0, 2, 17)], backend="cpu", **o),
    "evolve float32": lambda **o: evolve(H.astype("float32"), STATES.real.astype("float32"), 5.0, backend="cpu", **o),
    "evolve by a product": lambda **o: evolve(aslinearoperator(H), STATES, 3.0, backend="cpu", **o),
    "apply": lambda **o: apply(lambda e: np.exp(-1j * e), COMPLEX[0], np.eye(50)[:, :3], backend="cpu", **o),
    "greens_function": lambda **o: greens_function(H, [3, 1], range(5), [0.1, 0.7], 0.2, backend="cpu", **o),
    "greens_function columns": lambda **o: greens_function(H, None, range(5), [0.1, 0.7], 0.3, backend="cpu", **o),
    "correlator": lambda **o: correlator(
        H, None, H, num_moments=40, num_vectors=10, rng=3, memory_limit=64 * 8 * 8 * 40, backend="cpu", **o
    ).moments_by_vector,
    "conductivity": lambda **o: conductivity(
        COMPLEX[0], "x", "y", *COMPLEX[1:2], periods=COMPLEX[2], num_moments=70, num_vectors=2, rng=3, backend="cpu",
        **o,
    ).correlator.moments_by_vector,
    "filter_diagonalize": lambda **o: np.vstack(filter_diagonalize(H, (1.0, 3.0), rng=2, backend="cpu", **o)[:2]),
    "ldos": lambda **o: ldos(H, range(5), 300, backend="cpu", **o).moments,
    "ldos of an operator": lambda **o: ldos(H, range(5), 150, operator=abs(H), backend="cpu", **o).moments,
    "spectral_function": lambda **o: spectral_function(
        H, [[0.1] * 3, [0.4] * 3], PLACES, num_moments=300, backend="cpu", **o
    ).moments,
    "kpm_dos of an operator": lambda **o: kpm_dos(H, 150, 3, rng=4, operator=H, backend="cpu", **o).moments,
    "kpm_dos of vectors": lambda **o: kpm_dos(H, 300, vectors=STATES, mean=False, backend="cpu", **o).moments,
}  # fmt: skip


def calls_of(monkeypatch, kind, name, act=lambda number: None):
    """Return a list that grows with each call of a method, before which `act` is called with its number."""
    calls, method = [], getattr(kind, name)

    def counted(self, *args):
        calls.append(args)
        act(len(calls))
        return method(self, *args)

    monkeypatch.setattr(kind, name, counted)
    return calls


def ended(monkeypatch, call, number, kind=Run, name="pause"):
    """End a call by SIGTERM in its pause of this number; return whether it has so many."""

    def act(pause):
        if pause == number:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as once:
        calls = calls_of(once, kind, name, act)
        try:
            call()
        except SystemExit as ending:
            assert ending.code == 143 and len(calls) == number
            return True
    return False


NARROW = ["evolve", "greens_function", "greens_function columns", "correlator", "ldos", "kpm_dos of an operator"]


@pytest.mark.parametrize(("name", "narrow"), [*((name, False) for name in CALLS), *((name, True) for name in NARROW)])
def test_a_call_that_is_ended_goes_on_to_the_same_bits(name, narrow, tmp_path, monkeypatch):
    path, call = tmp_path / "run.npz", CALLS[name]
    step = (CpuRecursion, "advance") if name in ("ldos", "spectral_function", "kpm_dos of vectors") else (Terms, "step")
    if narrow:
        monkeypatch.setattr("spectile.kpm.iterator.MAX_BLOCK", 2)
    with monkeypatch.context() as once:
        steps = calls_of(once, *step)
        exact = call()
    with monkeypatch.context() as once:
        pauses = calls_of(once, Run, "pause")
        np.testing.assert_array_equal(call(checkpoint=path), exact)
    assert not list(tmp_path.iterdir())
    for number in sorted({1, len(pauses) // 2, len(pauses)}):
        handler = signal.getsignal(signal.SIGTERM)
        assert ended(monkeypatch, lambda: call(checkpoint=path), number)
        assert signal.getsignal(signal.SIGTERM) is handler and path.exists()
        with monkeypatch.context() as once:
            again = calls_of(once, *step)
            np.testing.assert_array_equal(call(checkpoint=path), exact)
        assert not list(tmp_path.iterdir())
        assert len(again) < len(steps) or number == 1 or name in ("correlator", "conductivity")
    assert len(again) <= 80  # the last pause leaves nothing to do, but recurrences on the left


DIVIDED = {name: CALLS[name] for name in ("evolve", "apply", *NARROW[1:3], "filter_diagonalize")} | {
    "correlator": lambda **o: correlator(
        H, None, H, num_moments=12, num_vectors=4, rng=3, backend="cpu", **o
    ).moments_by_vector,
}  # fmt: skip


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("name", DIVIDED)
def test_a_call_goes_on_where_memory_is_free_that_was_not_or_the_other_way(name, more, tmp_path, monkeypatch):
    path, call = tmp_path / "run.npz", DIVIDED[name]

    def free(much):
        monkeypatch.setattr("spectile.kpm.iterator.MAX_BLOCK", 3 if much else 1)
        monkeypatch.setattr("spectile.kpm.response.room_for_vectors", lambda engine: 10**6 if much else 10**4)

    free(not more)
    with monkeypatch.context() as once:
        pauses = calls_of(once, Run, "pause")
        exact = call(checkpoint=path)
    assert ended(monkeypatch, lambda: call(checkpoint=path), len(pauses) * 2 // 3)
    free(more)
    np.testing.assert_allclose(call(checkpoint=path), exact, rtol=0, atol=1e-9 * abs(exact).max())


def test_a_call_with_nothing_to_do_leaves_a_file_that_is_there(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    assert ended(monkeypatch, lambda: CALLS["apply"](checkpoint=path), 2)
    before = path.read_bytes()
    evolve(H, STATES, [], backend="cpu", checkpoint=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("name", "pauses"), [("evolve", 6), ("correlator", 45), ("filter_diagonalize", 2)])
def test_a_call_may_be_ended_again_and_again(name, pauses, tmp_path, monkeypatch):
    path, call, times = tmp_path / "run.npz", CALLS[name], 0
    while ended(monkeypatch, lambda: call(checkpoint=path), pauses):
        times += 1
    assert times > 1
    np.testing.assert_array_equal(call(checkpoint=path), CALLS[name]())


def test_files_are_written_in_time_and_are_whole(tmp_path, monkeypatch):
    path, written = tmp_path / "run.npz", []
    calls_of(monkeypatch, Run, "pause", lambda number: written.append(path.exists()))
    CALLS["evolve"](checkpoint=path, checkpoint_s=0)
    assert not written[0] and all(written[1:])
    written.clear()
    CALLS["evolve"](checkpoint=path, checkpoint_s=1e9)
    assert not any(written)


def test_an_error_leaves_the_file_and_a_signal_in_the_last_moment_too(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"

    def fail(number):
        if number == 4:
            raise RuntimeError("broken")

    with monkeypatch.context() as once:
        calls_of(once, Run, "pause", fail)
        with pytest.raises(RuntimeError, match="broken"):
            CALLS["evolve"](checkpoint=path, checkpoint_s=0)
    assert path.exists()
    exact, close = CALLS["evolve"](), shown.Progress.close
    with monkeypatch.context() as once:
        once.setattr(shown.Progress, "close", lambda self: (os.kill(os.getpid(), signal.SIGTERM), close(self)))
        with pytest.raises(SystemExit):
            CALLS["evolve"](checkpoint=path)
    with monkeypatch.context() as once:
        steps = calls_of(once, Terms, "step")
        np.testing.assert_array_equal(CALLS["evolve"](checkpoint=path), exact)
        assert not steps


#: A smaller correlator, whose pauses are fewer, and densities of the whole, which pause between moments.
WIDENED = CALLS | {
    "correlator": DIVIDED["correlator"],
    "kpm_dos": lambda **o: kpm_dos(H, 60, 5, rng=4, backend="cpu", **o).moments_by_vector,
    "kpm_dos resolved": lambda **o: kpm_dos(H, 3, 5, rng=4, energy_resolution=0.8, backend="cpu", **o).moments,
}


@pytest.mark.parametrize("share", [0.98 / 1.1**4 / 2, 0.8])
@pytest.mark.parametrize("name", WIDENED)
def test_a_call_that_is_ended_while_its_bounds_widen_goes_on_to_the_same_bits(name, share, tmp_path, monkeypatch):
    """Bounds are found that hold but a share of the spectrum: they widen up to six times."""
    path, call, lanczos, widened = tmp_path / "run.npz", WIDENED[name], bounds.lanczos, bounds.widened
    pause = (SpectralDensity, "add_moments") if name in ("kpm_dos", "kpm_dos resolved") else (Run, "pause")

    def found(engine):
        low, high = lanczos(engine)
        return (low + high) / 2 - share * (high - low) / 2, (low + high) / 2 + share * (high - low) / 2

    for module in ("moments", "density", "expectation", "iterator"):
        monkeypatch.setattr(f"spectile.kpm.{module}.LOOK_STEPS", 2)
    monkeypatch.setattr("spectile.kpm.moments.FIRST_STEPS", 2)
    monkeypatch.setattr(bounds, "lanczos", found)
    exact, widenings = call(), []
    with monkeypatch.context() as once:
        pauses = calls_of(once, *pause)
        once.setattr(bounds, "widened", lambda *each: widenings.append(len(pauses)) or widened(*each))
        np.testing.assert_array_equal(call(checkpoint=path), exact)
    assert len(widenings) >= 2
    for number in sorted({*range(1, widenings[-1] + 2), *range(1, len(pauses) + 1, 8)}):
        if ended(monkeypatch, lambda: call(checkpoint=path), number, *pause):
            np.testing.assert_array_equal(call(checkpoint=path), exact)


def test_passes_of_a_density_whose_bounds_widen_go_on_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(CpuEngine, "capacity", lambda engine: 2)
    monkeypatch.setattr(bounds, "given_or_found", lambda engine, given: (-5.0, 5.0))
    path, call, pause = tmp_path / "run.npz", WIDENED["kpm_dos"], (SpectralDensity, "add_moments")
    monkeypatch.setattr("spectile.kpm.density.LOOK_STEPS", 4)
    with monkeypatch.context() as once:
        pauses = calls_of(once, *pause)
        exact = call(checkpoint=path)
    for number in range(1, len(pauses) + 1):
        assert ended(monkeypatch, lambda: call(checkpoint=path), number, *pause) or number == len(pauses)
        np.testing.assert_array_equal(call(checkpoint=path), exact)


@pytest.mark.parametrize("name", ["evolve by a product", "kpm_dos"])
def test_a_file_without_the_number_of_widenings_is_gone_on_with_where_its_bounds_hold(name, tmp_path, monkeypatch):
    """Of an earlier version: it may be of any of them, and the next one would be another."""
    path, call = tmp_path / "run.npz", WIDENED[name]
    pause = (SpectralDensity, "add_moments") if name == "kpm_dos" else (Run, "pause")

    def older(first):
        monkeypatch.setattr("spectile.kpm.density.LOOK_STEPS", 1 if first else 64)
        assert ended(monkeypatch, lambda: call(checkpoint=path), 1, *pause)
        with np.load(path) as archive:
            arrays = dict(archive)
        np.savez(path, **{key: value for key, value in arrays.items() if key != "widenings"})

    exact = call()
    older(False)
    np.testing.assert_array_equal(call(checkpoint=path), exact)
    monkeypatch.setattr(bounds, "lanczos", lambda engine: (-3.0, 3.0))
    monkeypatch.setattr("spectile.kpm.iterator.MAX_BLOCK", 1)
    older(True)
    with pytest.raises(ValueError, match="remove it, and begin again"):
        call(checkpoint=path)


def other_calls():
    start = STATES.copy()
    start[3, 1] += 1e-9
    yield lambda **o: evolve(H, start, [3.0], backend="cpu", **o), "other arguments"
    yield lambda **o: evolve(H, STATES, [3.1], backend="cpu", **o), "other arguments"
    yield lambda **o: evolve(H, STATES[:, :4], [3.0], backend="cpu", **o), "other arguments"
    yield lambda **o: evolve(H, STATES, [3.0], tolerance=1e-6, backend="cpu", **o), "other arguments"
    yield lambda **o: evolve(H * 1.0000001, STATES, [3.0], backend="cpu", **o), "another matrix"
    yield lambda **o: evolve(H, STATES, [3.0], bounds=(-20, 20), backend="cpu", **o), "has bounds"
    yield lambda **o: correlator(H, None, None, rng=1, backend="cpu", **o), "belongs to evolve, not correlator"


@pytest.mark.parametrize("number", range(7))
def test_a_file_of_another_call_is_refused_and_stays(number, tmp_path, monkeypatch):
    path, (other, message) = tmp_path / "run.npz", list(other_calls())[number]
    assert ended(monkeypatch, lambda: evolve(H, STATES, [3.0], backend="cpu", checkpoint=path), 2)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf"run\.npz .*{message}") as refused:
        other(checkpoint=path)
    assert "\n" not in str(refused.value) and path.read_bytes() == before


def test_the_seed_of_a_file_is_gone_on_with(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"

    def call(A, rng, limit=None):
        return correlator(
            H, A, H, num_moments=20, num_vectors=2, rng=rng, backend="cpu", memory_limit=limit, checkpoint=path
        ).moments

    assert ended(monkeypatch, lambda: call(None, 5), 21)
    with pytest.raises(ValueError, match="another rng"):
        call(None, 6)
    with pytest.raises(ValueError, match="other arguments"):
        call(H, 5)
    with pytest.raises(ValueError, match="other arguments"):
        call(None, 5, 10**6)
    mine = call(None, None)
    np.testing.assert_array_equal(mine, call(None, 5))


@pytest.mark.parametrize(("name", "pauses"), [("evolve", 6), ("correlator", 55)])
def test_a_damaged_file_is_one_sentence(name, pauses, tmp_path, monkeypatch):
    path, call = tmp_path / "run.npz", CALLS[name]
    assert ended(monkeypatch, lambda: call(checkpoint=path), pauses)
    with np.load(path) as archive:
        arrays = dict(archive)
    assert {"bounds", "stage", "fingerprint"} < set(arrays)
    for key, value in arrays.items():
        wrongs = [None, np.array("nothing"), np.zeros(0), np.array(np.nan), value.ravel()[:-1]]
        wrongs += [np.where(np.arange(value.size).reshape(value.shape) == 0, np.nan, value)] if value.size and (
            value.dtype.kind in "fc"
        ) else []  # fmt: skip
        for wrong in wrongs:
            if wrong is None and key in (
                "seed",
                "order",
                "widenings",
                "dtype",
                *(k for k in arrays if k.endswith("_0") or k == "norms"),
            ):
                continue  # of an earlier version, or another stage is begun, or one at hand from its beginning
            np.savez(path, **{k: v for k, v in (arrays | {key: wrong}).items() if v is not None})
            with pytest.raises(ValueError, match=r"run\.npz") as refused:
                call(checkpoint=path)
            assert "\n" not in str(refused.value), key
    whole = path.read_bytes()
    for size in (0, 30, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"run\.npz holds no saved state of a call, or not all of it"):
            call(checkpoint=path)
    with pytest.raises(OSError, match="cannot be written"):
        call(checkpoint=tmp_path)


# ---- the iterator


@pytest.mark.parametrize("kind", ["f", "c"])
@pytest.mark.parametrize("form", ["real", "complex", "stencil", "product", "single"])
def test_an_iterator_is_saved_and_loaded_between_any_items(form, kind, tmp_path):
    forms = {"real": H, "complex": COMPLEX[0], "stencil": TopologicalInsulator(3, 4, 3), "product": aslinearoperator(H)}
    matrix = forms.get(form, H.astype("float32"))
    rng, n = np.random.default_rng(1), matrix.shape[0]
    start, bra = (rng.standard_normal((n, 3)) + (0j if kind == "c" else 0.0) for _ in range(2))
    if form == "single":
        start = start[:, 0].astype("complex64" if kind == "c" else "float32")
        bra = bra[:, 0].astype(start.dtype)
    exact = [block.copy() for block in chebyshev(matrix, start, 20, backend="cpu")]
    overlaps = list(chebyshev(matrix, start, 20, bra=bra, backend="cpu"))
    terms = chebyshev(matrix, start, 20, backend="cpu")
    for given in range(20):
        terms.save(tmp_path / "terms.npz")
        again = Chebyshev.load(tmp_path / "terms.npz", matrix, backend="cpu")
        assert (again.order, len(again), again.dtype) == (given - 1, 20 - given, terms.dtype)
        assert (again.scale, again.centre, again.bounds) == (terms.scale, terms.centre, terms.bounds)
        np.testing.assert_array_equal([block.copy() for block in again], exact[given:])
        between = Chebyshev.load(tmp_path / "terms.npz", matrix, bra=bra, backend="cpu")
        np.testing.assert_array_equal(list(between), overlaps[given:])
        next(terms)


def test_an_iterators_file_is_checked(tmp_path):
    path = tmp_path / "terms.npz"
    terms = chebyshev(H, STATES, 20, backend="cpu")
    next(terms), next(terms)
    terms.save(path)
    load = lambda H=H, **o: Chebyshev.load(path, H, **{"backend": "cpu"} | o)  # noqa: E731
    for matrix in (2 * H, graphene(4, 8)):
        with pytest.raises(ValueError, match="belongs to another matrix"):
            load(matrix)
    with pytest.raises(ValueError, match="float64, and this one is complex128"):
        load(H.astype("complex128"))
    with np.load(path) as archive:
        arrays = dict(archive)
    rounded = arrays["fingerprint"] * np.append(1, np.full(len(arrays["fingerprint"]) - 1, 1 + 4e-15))
    np.savez(path, **arrays | {"fingerprint": rounded})  # by another host
    assert load().order == terms.order
    with pytest.raises(ValueError, match=r"bra have shape \(64, 4\)"):
        load(bra=STATES[:, :4])
    with pytest.raises(TypeError, match="file = 3 is no path"):
        Chebyshev.load(3, H, backend="cpu")
    with np.load(path) as archive:
        arrays = dict(archive)
    for key in arrays:
        for wrong in (None, np.array("nothing"), np.zeros(0, bool), np.array(np.nan), np.array(10**6)):
            np.savez(path, **{k: v for k, v in (arrays | {key: wrong}).items() if v is not None})
            if key == "moments" and wrong is not None and wrong.size and wrong.dtype.kind == "i":
                continue  # nobody can tell
            if key == "dtype" and wrong is None:
                continue  # as of an earlier version
            with pytest.raises(ValueError, match=r"terms\.npz|bounds"):
                load()
    # Bounds that are too narrow are seen by what is loaded, too.
    narrow = chebyshev(H, STATES, 200, backend="cpu", bounds=(-1, 1))
    next(narrow), next(narrow)
    narrow.save(path)
    with pytest.raises(ValueError, match="leaves the bounds"):
        list(load())


# ---- progress


SHOWN = CALLS | {
    "kpm_dos": lambda **o: kpm_dos(H, 40, 3, rng=1, backend="cpu", **o).moments,
    "kpm_dos of an operator": lambda **o: kpm_dos(H, 40, 3, rng=1, backend="cpu", operator=H, **o).moments,
    "ldos": lambda **o: ldos(H, [1, 2], 40, backend="cpu", **o).densities,
    "ldos of an operator": lambda **o: ldos(H, [1, 2], 40, backend="cpu", operator=H, **o).densities,
    "spectral_function": lambda **o: spectral_function(H, [[0.1] * 3], PLACES, None, None, 40, backend="cpu", **o)
    .densities,
    "count": lambda **o: np.array(count(H, (0.1, 0.9), rng=1, backend="cpu", **o)),
    "chebyshev": lambda **o: np.array(list(chebyshev(H, STATES.real, 40, backend="cpu", bra=STATES, **o))),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_calls_tell_how_far_they_are_or_are_silent(name, impatient, monkeypatch):
    counters = []
    begin = shown.Progress.__init__
    monkeypatch.setattr(shown.Progress, "__init__", lambda self, *a, **k: counters.append(self) or begin(self, *a, **k))
    loud = SHOWN[name]()
    lines = [record.getMessage() for record in impatient.records]
    assert lines and all(line.startswith(f"{name.split()[0]}: ") for line in lines)
    (counter,) = counters
    if not name.startswith("filter_diagonalize"):
        assert counter.total == counter.done > 0 and "100 % of" in lines[-1]
    impatient.clear()
    np.testing.assert_array_equal(SHOWN[name](progress=False), loud)
    assert not impatient.records


def test_progress_counts_on_in_a_call_that_goes_on(impatient, monkeypatch, tmp_path):
    path = tmp_path / "run.npz"
    assert ended(monkeypatch, lambda: CALLS["evolve"](checkpoint=path), 9)
    impatient.clear()
    CALLS["evolve"](checkpoint=path)
    first, last = (impatient.records[n].getMessage() for n in (0, -1))
    assert "100 % of" in last and int(first.split()[1]) > 10


def test_all_functions_that_may_take_long_have_both(monkeypatch):
    for name in spectile.kpm.__all__:
        function = getattr(spectile.kpm, name)
        taken = inspect.signature(function).parameters if inspect.isfunction(function) else {}
        if "bounds" in taken and name != "explain":
            assert taken["progress"].default is True, name
            assert ("checkpoint" in taken) == (name not in ("chebyshev", "count")), name
    with pytest.raises(TypeError, match="progress = 'loudly' is no truth value"):
        evolve(H, STATES, 1.0, progress="loudly")


class Bar:
    """What stands for tqdm's."""

    bars: ClassVar = []

    def __init__(self, **given):
        self.given, self.total, self.n, self.closed = given, given["total"], given["initial"], False
        self.bars.append(self)

    def update(self, count):
        self.n += count

    def close(self):
        self.closed = True


@pytest.mark.parametrize("installed", [True, False])
def test_a_terminal_has_a_bar_where_tqdm_is_installed(installed, impatient, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=Bar) if installed else None)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True, write=lambda text: None))
    Bar.bars.clear()
    CALLS["evolve"]()
    assert len(Bar.bars) == installed and bool(impatient.records) != installed
    for bar in Bar.bars:
        assert bar.closed and bar.n == bar.total and bar.given["desc"] == "evolve"
    Bar.bars.clear()
    if installed:
        with pytest.raises(ValueError, match="leaves the"):
            evolve(H, STATES, 9.0, backend="cpu", bounds=(-1, 1))
        assert all(bar.closed for bar in Bar.bars)


def test_short_calls_show_nothing_and_lines_are_ten_seconds_apart(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "spectile.progress")
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with shown.Progress("work", unit="rows", total=90) as progress:
        for _ in range(30):
            now[0] += 1.0
            progress.add(3)
    assert [record.getMessage() for record in caplog.records] == [
        f"work: {share} % of 90 rows in {seconds} s" for share, seconds in ((33, 10), (67, 20), (100, 30))
    ]


def test_a_file_of_another_kind_is_not_called_damaged(tmp_path):
    matrix, calls = graphene(4, 4), iter(range(100))

    class Ends:
        shape, dtype = matrix.shape, matrix.dtype

        def __matmul__(self, x):
            if next(calls, None) is None:
                raise KeyboardInterrupt
            return matrix @ x

    density, terms, call = (tmp_path / name for name in ("density.npz", "terms.npz", "call.npz"))
    SpectralDensity(matrix, 16, 2, backend="cpu").save(density)
    chebyshev(matrix, np.eye(32), 9, backend="cpu").save(terms)
    with pytest.raises(KeyboardInterrupt):
        evolve(Ends(), np.eye(32), [200.0], checkpoint=call, checkpoint_s=0, backend="cpu")
    readers = {
        density: lambda file: SpectralDensity.load(file, matrix, backend="cpu"),
        terms: lambda file: Chebyshev.load(file, matrix, backend="cpu"),
        call: lambda file: evolve(matrix, np.eye(32), [200.0], checkpoint=file, backend="cpu"),
    }
    for own, read in readers.items():
        for other in readers.keys() - {own}:
            with pytest.raises(ValueError, match=rf"{other.name} holds no saved .*: give a file that holds one"):
                read(other)


class Product:
    """An operator of a user, whose numbers he may change."""

    def __init__(self, matrix):
        self.data, self.shape, self.dtype = matrix.toarray(), matrix.shape, matrix.dtype

    def __matmul__(self, x):
        return self.data @ x


FORMS = {
    "csr": lambda H: H.copy(), "float32": lambda H: H.astype(np.float32), "complex": lambda H: H.astype(complex),
    "csc": lambda H: H.tocsc(), "coo": lambda H: H.copy().tocoo(), "dense": lambda H: H.toarray(), "product": Product,
    "far": lambda H: (H + 1e4 * sparse.eye_array(64)).tocsr(), "csr of patterns": lambda H: chain(64),
}  # fmt: skip
GO_ON = {
    "moments": lambda density, file: density.add_moments(3),
    "vectors": lambda density, file: density.add_vectors(2),
    "save": lambda density, file: density.save(file),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", [*GO_ON, "moments of A", "vectors of A", "moments of each", "loaded"])
@pytest.mark.parametrize("part", [slice(None), slice(30, 31)])
def test_a_density_goes_on_with_its_own_matrix_or_says_that_it_has_changed(form, how, part, tmp_path):
    file, words = tmp_path / "state.npz", {}
    if "of" in how.split():
        words = {"operator": np.diag(np.arange(64.0))} if how.endswith("A") else {"mean": False}
    go_on = GO_ON[how.split()[0]] if how != "loaded" else GO_ON["moments"]

    def begun():
        matrix = FORMS[form](H)
        density = kpm_dos(matrix, 8, 2, rng=1, backend="cpu", **words)
        if how == "loaded":
            density.save(file)
            density = SpectralDensity.load(file, matrix, backend="cpu")
        return matrix, density

    def all_moments(density, matrix):
        if how == "save":
            density = SpectralDensity.load(file, matrix, backend="cpu")
            density.add_moments(3)
        return density.moments

    matrix, density = begun()
    go_on(density, file)
    expected = all_moments(density, matrix)
    matrix, density = begun()
    before = density.moments.copy()
    numbers = matrix if isinstance(matrix, np.ndarray) else matrix.data
    numbers.reshape(-1)[part] *= 3
    try:
        go_on(density, file)
    except ValueError as error:
        assert "H has changed" in str(error)
        assert np.array_equal(density.moments, before)
    else:
        assert np.array_equal(all_moments(density, FORMS[form](H)), expected)
