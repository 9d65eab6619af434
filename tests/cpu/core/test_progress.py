"""Calls that take long tell how far they are, by one mechanism in all systems (KPM: kpm/test_continued.py)."""

import logging
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

import spectile
from spectile.core import progress
from spectile.core.threads import each
from spectile.density import inverse_sqrt, polar, sign
from spectile.tiles import TileMatrix

SITE = np.arange(96)
DECAYING = np.exp(-np.abs(SITE[:, None] - SITE) / 2.0)
GAPPED = np.diag(np.where(SITE % 2, 1.0, -1.0)) + np.eye(96, k=1) / 4 + np.eye(96, k=-1) / 4
SPARSE = sp.random_array((300, 300), density=0.05, format="csr", rng=1)

CALLS = {
    "spamm": lambda: spectile.spamm(DECAYING, DECAYING, tau=1e-6, block=8, backend="cpu").c,
    "spgemm": lambda: spectile.spgemm(SPARSE, SPARSE, memory_limit=10**9, backend="cpu").toarray(),
    "spgemm under a mask": lambda: spectile.spgemm(SPARSE, SPARSE, mask=SPARSE, backend="cpu").toarray(),
    "density_matrix": lambda: spectile.density_matrix(GAPPED, electrons=48, method="sp2").matrix.to_dense(),
    "inverse_sqrt": lambda: inverse_sqrt(DECAYING).to_dense(),
    "polar": lambda: polar(DECAYING)[0].to_dense(),
    "sign": lambda: sign(TileMatrix.from_dense(GAPPED, 16, hermitian=True)).to_dense(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_tells_how_far_it_is_under_its_own_name_alone_or_is_silent(name, impatient):
    told = CALLS[name]()
    lines = [record.getMessage() for record in impatient.records]
    assert lines and {line.partition(":")[0] for line in lines} == {name.split()[0]}
    impatient.clear()
    impatient.set_level(logging.WARNING, "spectile.progress")
    np.testing.assert_array_equal(CALLS[name](), told)
    assert not impatient.records


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_parts_of_a_call_are_counted_once_on_any_number_of_threads(threads, impatient):
    with progress.Progress("work", unit=progress.PARTS) as call:
        each(range(20), threads, lambda item: None)
        assert (call.done, call.total) == (20, 20)
        each(range(5), threads, lambda item: None)
        assert (call.done, call.total) == (25, 25)
    assert impatient.records[-1].getMessage().startswith("work: 100 % of 25 parts")


def test_what_counts_other_things_is_not_told_of_parts(impatient):
    with progress.Progress("work", unit=progress.MATRICES) as call:
        each(range(20), 2, lambda item: None)
    assert call.done == 0 and not impatient.records


def test_a_call_that_counts_nothing_for_long_is_told_of_until_it_ends(caplog, monkeypatch):
    monkeypatch.setattr(progress, "SILENCE_S", 0.05)
    monkeypatch.setattr(progress, "_WATCH", progress._Watch())
    caplog.set_level(logging.INFO, "spectile.progress")

    @progress.Progress("outer", unit=progress.OPERATIONS)
    def outer():
        with progress.Progress("inner"):
            time.sleep(0.4)

    threads = [threading.Thread(target=outer) for _ in range(3)]
    outer()
    alone = len(caplog.records)
    assert 2 <= alone <= 9 and {record.getMessage().partition(":")[0] for record in caplog.records} == {"outer"}
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(caplog.records) >= alone + 2 * len(threads)
    told = len(caplog.records)
    time.sleep(0.2)
    assert len(caplog.records) == told and progress._WATCH._thread is None
    caplog.set_level(logging.WARNING, "spectile.progress")
    outer()
    assert len(caplog.records) == told


def test_a_call_that_failed_hides_no_later_one(impatient):
    with pytest.raises(ValueError, match="no gap"):
        spectile.density_matrix(np.eye(64), electrons=32)
    impatient.clear()
    CALLS["spgemm"]()
    assert {record.getMessage().partition(":")[0] for record in impatient.records} == {"spgemm"}


def test_a_bar_is_silenced_as_the_log_is(impatient, monkeypatch):
    bars, closed = [], []
    bar = SimpleNamespace(update=lambda count: None, close=lambda: closed.append(bars[-1]), total=None)
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=lambda **given: bars.append(given["desc"]) or bar))
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True, write=lambda text: None))
    CALLS["polar"]()
    assert bars == closed == ["polar"] and not impatient.records
    impatient.set_level(logging.WARNING, "spectile.progress")
    CALLS["polar"]()
    assert bars == ["polar"]
