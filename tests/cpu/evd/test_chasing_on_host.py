"""Bulge chasing by the threads of several devices at once, as fibers of the host, in drawn orders."""

import contextlib
import ctypes
import functools
import itertools
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from spectile.core.devices import TABLE
from spectile.evd.cuda.chasing import chase
from spectile.evd.cuda.matrix import Matrix
from spectile.evd.cuda.multi import chasing
from spectile.evd.cuda.multi.units import CHASING_BY_TURNS
from spectile.evd.cuda.units import CHASING
from spectile.evd.types import SCALARS
from spectile_study.inputs.spectra import random_hermitian

from ...on_host import fibers_library

#: The narrowest band of each dtype.
BANDS = {name: one.bandwidths[0] for name, one in SCALARS.items()}
RUN = """
extern "C" int run_chase(int blocks, int devices, int threads, long long shared_bytes, unsigned seed, scalar_t** band,
                         int n, int** done, int** ticket, uint4** messages, scalar_t* vectors, long long along_sweep,
                         long long along_row, scalar_t** next_band, int** next_done, uint4** next_messages) {
    return launch({blocks, devices, 1}, threads, shared_bytes, seed, [=] {
        const int own = blockIdx.y;
        chase(band[own], n, done[own], ticket[own], messages[own], vectors, along_sweep, along_row, own, devices,
              next_band[own], next_done[own], next_messages[own]);
    });
}
extern "C" int run_tridiagonal(int blocks, const scalar_t* band, int n, int b, double* d, double* e, int part,
                               int parts) {
    return launch({blocks, 1, 1}, 256, 0, 3, [=] { tridiagonal_of_band(band, n, b, d, e, part, parts); });
}
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    @functools.cache
    def of(dtype, turns):
        unit = (CHASING_BY_TURNS if turns else CHASING)[dtype, BANDS[dtype]]
        # All but the instructions that the host has not, and turns of few sweeps.
        left_out = ("// A double that carries", "// Number `index` of those"), ("#define GROUP 64", "__device__")
        stem = tmp_path_factory.mktemp(dtype) / "chasing"
        return fibers_library(stem, unit, RUN, *left_out, before="#define GROUP 3")

    return of


def chased(libraries, dense, devices, blocks, monkeypatch, seed=0):
    """Return d, e and the reflectors of a banded matrix by so many devices with so many blocks each."""
    n, dtype, begun = len(dense), dense.dtype, []
    b, library = BANDS[dtype.name], libraries(dtype.name, devices > 1)
    band = np.zeros((n + 2, 2 * b), dtype)
    for offset in range(min(b + 1, n)):
        band[: n - offset, offset] = np.diag(dense, -offset)
    vectors = np.zeros((n, n), dtype, order="F")
    reflectors = Matrix(vectors.ctypes.data, n, dtype.itemsize, vectors)

    def pointers(items):
        return (ctypes.c_void_p * devices)(*(x.ctypes.data if isinstance(x, np.ndarray) else int(x) for x in items))

    def kernel(unit, name):
        def launch(shape, *given):
            if name == "tridiagonal_of_band":
                own, order, bandwidth, d, e, part, parts = given
                addresses = (ctypes.c_void_p(int(x)) for x in (d, e))
                sizes = own.ctypes, int(order), int(bandwidth)
                assert library.run_tridiagonal(shape.grid[0], *sizes, *addresses, int(part), int(parts))
                return
            assert given[8:10] == (len(begun), devices)
            begun.append(given)
            if len(begun) == devices:  # they wait for each other
                own, (_, order, *_) = list(zip(*begun, strict=True)), given
                assert library.run_chase(
                    *(shape.grid[0], devices, shape.threads, ctypes.c_longlong(shape.shared_bytes), seed),
                    *(pointers(own[0]), int(order), *map(pointers, own[2:5]), ctypes.c_void_p(int(given[5]))),
                    *(*(ctypes.c_longlong(int(x)) for x in given[6:8]), *map(pointers, own[10:])),
                )

        return launch

    fake = SimpleNamespace(zeros=np.zeros, empty=lambda *given: np.full(*given[:1], np.nan, *given[1:]))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(chase, "kernel", kernel)
    monkeypatch.setattr(chase.device, "describe", lambda: TABLE["H200"])
    if devices == 1:
        d, e = chase.chase_band(band, n, b, reflectors, grid=blocks)
    else:
        members = [SimpleNamespace(number=one, current=contextlib.nullcontext) for one in range(devices)]
        team = SimpleNamespace(members=members, meet=lambda: None, join=lambda: None)
        team.each = lambda task, *given: list(itertools.starmap(task, zip(members, *given, strict=True)))
        d, e = chasing.chase_band(band, n, b, reflectors, team, grid=blocks)
    return d, e[: n - 1], vectors


@pytest.mark.parametrize(("dtype", "n"), [("float64", 75), ("float64", 2), ("float64", 20), ("complex64", 120)])
@pytest.mark.parametrize(("devices", "blocks"), [(2, 1), (2, 4), (3, 2)])
def test_devices_leave_the_bits_of_one_block(dtype, n, devices, blocks, libraries, monkeypatch):
    dense = random_hermitian(n, np.random.default_rng(n), dtype)
    dense[np.abs(np.subtract.outer(np.arange(n), np.arange(n))) > BANDS[dtype]] = 0
    alone = chased(libraries, dense, 1, 1, monkeypatch)
    w = np.linalg.eigvalsh(np.diag(alone[0]) + np.diag(alone[1], 1) + np.diag(alone[1], -1))
    np.testing.assert_allclose(w, np.linalg.eigvalsh(dense), atol=200 * np.finfo(dtype).eps)
    for one, other in zip(alone, chased(libraries, dense, devices, blocks, monkeypatch, seed=n + blocks), strict=True):
        assert (one == other).all()


def test_turns_pay_where_sweeps_are_more_than_blocks(monkeypatch):
    monkeypatch.setattr(chase.device, "describe", lambda: TABLE["H200"])
    on, scalar = TABLE["H200"], SCALARS["float64"]
    for bandwidth, blocks in ((64, on.multiprocessors), (32, 2 * on.multiprocessors)):
        full = 2 * bandwidth * (blocks - 2)
        assert not chasing.pays(full, scalar, bandwidth) and chasing.pays(full + 2 * bandwidth, scalar, bandwidth)
