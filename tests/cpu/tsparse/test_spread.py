"""Products by rows over several GPUs or block by block: the cuts and what is joined; rows are made on the CPU here."""

from __future__ import annotations

import contextlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.core.devices import TABLE
from spectile.tsparse import api, row_blocks, spgemm
from spectile.tsparse.selection import Wanted
from spectile.tsparse.semirings import lookup_semiring

OPTIONS = [
    {},
    {"format": "dense"},
    {"format": "csc"},
    {"semiring": "max_plus"},
    {"semiring": "any_pair"},
    {"prune": 60.0},
    {"top_n": 3, "alpha": -2.0},
    {"precision": "float16"},
    {"mask": True},
    {"mask": True, "complement": True},
    {"C": True, "beta": 2.0},
]


@pytest.fixture
def used(monkeypatch):
    """Return on which devices rows were made."""
    pytest.importorskip("cupy", reason="CuPy is not installed: install the extra cuda12 or cuda13")
    from spectile.tsparse.cpu import run as cpu
    from spectile.tsparse.cpu import wanted as cpu_wanted
    from spectile.tsparse.cuda import spread

    made, current = [], threading.local()

    class Device:
        def __init__(self, number=None):
            self.id = getattr(current, "number", 0) if number is None else number

        def __enter__(self):
            self.before, current.number = getattr(current, "number", 0), self.id
            return self

        def __exit__(self, *_):
            current.number = self.before

        def synchronize(self):
            pass

    class Stream(contextlib.nullcontext):
        def __enter__(self):
            return self

        def synchronize(self):
            pass

    runtime = SimpleNamespace(getDeviceCount=lambda: 4, getDevice=lambda: getattr(current, "number", 0))
    cuda = SimpleNamespace(Device=Device, runtime=runtime, Stream=lambda non_blocking: Stream(), Event=lambda **_: None)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(spread, "pool", lambda name, workers: ThreadPoolExecutor(workers))
    monkeypatch.setattr(api, "choose_backend", lambda backend, *_: "cpu" if backend == "cpu" else "cuda")
    monkeypatch.setattr(spread.memory, "free_bytes", lambda: 2**40)
    monkeypatch.setattr(spread, "fits", lambda *_: None)
    monkeypatch.setattr(spread.RowProduct, "right_here", lambda self: spread._host_matrix(self._right))

    def whole(A, B, precision, memory_limit, host, check_finite, form, fetch):
        made.append(runtime.getDevice())
        return cpu.spgemm(A, B, precision, None, check_finite=check_finite, form=form)

    def selected(A, B, precision, memory_limit, wanted, host, check_finite):
        made.append(runtime.getDevice())
        return cpu_wanted.spgemm(A, B, precision, None, wanted, check_finite=check_finite)

    monkeypatch.setattr(spread.run, "describe", lambda: TABLE["H200"])
    monkeypatch.setattr(spread.run, "spgemm", whole)
    monkeypatch.setattr(spread.selected, "spgemm", selected)
    return SimpleNamespace(devices=made, module=spread)


def random(m, n, density, seed=1, dtype=np.float64):
    A = sp.random_array((m, n), density=density, rng=np.random.default_rng(seed), format="csr")
    return sp.csr_array(((9 * A.data + 1).astype(dtype), A.indices, A.indptr), shape=A.shape)


def filled(options):
    others = {"mask": random(300, 200, 0.2, 3), "C": random(300, 200, 0.1, 4)}
    return {name: others[name] if value is True and name in others else value for name, value in options.items()}


def same(C, known):
    assert type(C) is type(known) and C.dtype == known.dtype and C.shape == known.shape
    if isinstance(C, np.ndarray):
        np.testing.assert_array_equal(C, known)
        return
    assert C.format == known.format and C.indices.dtype == known.indices.dtype
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(C, name), getattr(known, name))


@pytest.mark.parametrize("options", OPTIONS)
def test_rows_of_several_devices_are_those_of_one(used, options):
    A, B, options = random(300, 80, 0.05), random(80, 200, 0.05, seed=2), filled(options)
    known = spgemm(A, B, backend="cpu", **options)
    for devices, listed in ((1, {0}), (3, {0, 1, 2}), ([3, 1], {1, 3})):
        del used.devices[:]
        same(spgemm(A, B, devices=devices, **options), known)
        assert set(used.devices) == listed and len(used.devices) == len(listed)


@pytest.mark.parametrize("kind", [np.bool_, np.int32, np.complex64])
def test_types_and_formats_of_the_host(used, kind):
    A = sp.csc_matrix(random(60, 60, 0.1, dtype=kind))
    same(spgemm(A, A.tocoo(), devices=2), spgemm(A, A.tocsr(), backend="cpu").tocsr())


def test_parts_have_like_work(used):
    A = sp.vstack([random(5, 400, 0.9), random(995, 400, 0.01, 2)], format="csr")
    product = used.module.RowProduct(
        A, A.T.tocsr(), *(api.choose_precision(A, A, None), Wanted(lookup_semiring("plus_times"))), True, True
    )
    work = np.array(
        [product.before[stop] - product.before[first] for first, stop in used.module._even(product.before, 4)]
    )
    assert work.sum() == product.before[-1] and work.max() <= 0.3 * work.sum()


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (2, 1, 1)])
@pytest.mark.parametrize("devices", [1, 4])
def test_fewer_rows_than_devices(used, shape, devices):
    m, k, n = shape
    A, B = sp.csr_array(np.ones((m, k))), sp.csr_array(np.ones((k, n)))
    same(spgemm(A, B, devices=devices), spgemm(A, B, backend="cpu"))


@pytest.mark.parametrize("limit", [None, 2**15])
@pytest.mark.parametrize("options", [one for one in OPTIONS if "format" not in one])
def test_blocks_are_the_rows_in_order(used, options, limit, monkeypatch):
    monkeypatch.setattr(used.module, "_BLOCK_ENTRIES", 700)
    A, B, options = random(300, 80, 0.05), random(80, 200, 0.05, seed=2), filled(options)
    known, end, parts = spgemm(A, B, backend="cpu", **options), 0, []
    for rows, part in row_blocks(A, B, memory_limit=limit, **options):
        assert rows.start == end
        end = rows.stop
        parts.append(part)
    assert (end == 300 and len(parts) > 3) or limit
    C = sp.vstack(parts, format="csr")
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(C, name), getattr(known, name))
    assert C.dtype == known.dtype


def test_what_is_wrong_is_said_as_of_one_device(used):
    A = random(50, 50, 0.2)
    A.data[-1] = np.nan
    with pytest.raises(ValueError) as one:
        spgemm(A, A, backend="cpu")
    with pytest.raises(ValueError) as several:
        spgemm(A, A, devices=3)
    assert str(one.value) == str(several.value)
    A = random(50, 50, 0.2)
    with pytest.raises(ValueError, match="leave them out on a CPU"):
        spgemm(A, A, devices=2, backend="cpu")
    with pytest.raises(ValueError, match="4 are visible"):
        spgemm(A, A, devices=5)
    with pytest.raises(ValueError, match="names device 1 twice"):
        spgemm(A, A, devices=[1, 1])
    with pytest.raises(MemoryError, match="raise it to at least"):
        list(row_blocks(A, A, memory_limit=100))
