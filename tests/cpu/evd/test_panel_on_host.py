"""Panels factored by the threads of a cluster, and of blocks anywhere, as fibers of the host, in drawn orders."""

import ctypes
import dataclasses
import functools

import numpy as np
import pytest

from spectile.core.devices import TABLE
from spectile.evd.cuda.choose import CLUSTER_BLOCKS, PANEL_THREADS, cluster_rows, panel_width
from spectile.evd.cuda.reduction.panel import panel_shape
from spectile.evd.cuda.units import PANEL
from spectile.evd.types import SCALARS
from spectile_study.inputs.spectra import random_hermitian

from ...on_host import fibers_library

#: The narrowest band of each dtype, and the columns of it that a kernel factors.
BANDS = {name: (one.bandwidths[0], panel_width(one, one.bandwidths[0])) for name, one in SCALARS.items()}
PARAMETERS = "scalar_t* a, long long lda, int m, scalar_t* y1, scalar_t* y2, long long ldy, scalar_t* t, int clear"
RUN = """
extern "C" int run(int blocks, int threads, long long shared_bytes, unsigned seed, %s%s) {
    const auto body = [=] { %s(a, lda, m, y1, y2, ldy, t, clear%s); };
    return launch({blocks, 1, 1}, threads, shared_bytes, seed, body);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    @functools.cache
    def load(dtype, name):
        more = ("", "") if name == "cluster_panel_qr" else (", uint4* messages", ", messages, 7")
        stem, unit = tmp_path_factory.mktemp(dtype) / name, PANEL[dtype, BANDS[dtype][0], name]
        # All but the instructions that the host has not: flagged numbers, and what blocks send.
        left_out = "// A double that carries", "#define PARTS"
        run = RUN % (PARAMETERS, more[0], name, more[1])
        return fibers_library(stem, unit, run, left_out, before="#define __cluster_dims__(...)")

    return load


def factored(library, name, panel, multiprocessors=132, seed=0):
    """Return what a kernel leaves in the panel, Y twice, and T."""
    scalar, (m, width), band = SCALARS[panel.dtype.name], panel.shape, BANDS[panel.dtype.name][0]
    capability = (9, 0) if name == "cluster_panel_qr" else (8, 0)
    on = dataclasses.replace(TABLE["H200"], multiprocessors=multiprocessors, compute_capability=capability)
    found, shape = panel_shape(m, scalar, band, on)
    assert found == name
    a, t = np.array(panel, order="F"), np.full((band, band), np.nan, panel.dtype, order="F")
    y = [np.full((m, 2 * width), np.nan, panel.dtype, order="F") for _ in range(2)]
    messages = () if name == "cluster_panel_qr" else (np.zeros(8 * (shape.grid[0] + 1) * width * scalar.parts).ctypes,)
    done = library(panel.dtype.name, name).run(
        *(shape.grid[0], shape.threads, ctypes.c_longlong(shape.shared_bytes), seed, a.ctypes, ctypes.c_longlong(m), m),
        *(y[0].ctypes, y[1].ctypes, ctypes.c_longlong(m), t.ctypes, width, *messages),
    )
    assert done
    return a, *y, t


def check(library, name, panel, **keywords):
    a, y, other, t = factored(library, name, panel, **keywords)
    m, b = panel.shape
    columns, eps = min(m, b), np.finfo(panel.dtype).eps
    wide = np.promote_types(panel.dtype, np.float64)
    assert (y[:, :b] == other[:, :b]).all() and (y[:b, b:] == 0).all() and (other[:b, b:] == 0).all()
    v, t = y[:, :columns].astype(wide), np.triu(t[:columns, :columns]).astype(wide)
    assert (np.triu(v, 1) == 0).all() and (np.diag(v) == 1).all() and (y[:, columns:b] == 0).all()
    q = np.eye(m) - v @ t @ v.conj().T
    r = np.triu(a)
    assert np.linalg.norm(q.conj().T @ q - np.eye(m)) <= 8 * b * eps
    assert np.linalg.norm(q @ r - panel) <= 8 * b * eps * max(np.linalg.norm(panel), 1e-30)


def made(m, dtype, kind="random"):
    rng = np.random.default_rng(m)
    width = BANDS[dtype][1]
    panel = random_hermitian(max(m, width), rng, dtype)[:m, :width]
    if kind == "rank":
        panel = panel[:, :1] * panel[:1, :]
    return np.zeros_like(panel) if kind == "zeros" else panel


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("m", [1, 15, 32, 1100])
def test_a_cluster_factors_panels(dtype, m, library):
    check(library, "cluster_panel_qr", made(m, dtype), seed=m)


def test_blocks_anywhere_factor_panels(library):
    check(library, "panel_qr", made(150, "float64"), multiprocessors=8)


@pytest.mark.parametrize("kind", ["rank", "zeros"])
def test_any_rank(kind, library):
    check(library, "cluster_panel_qr", made(600, "complex128", kind))


def test_the_same_bits_in_every_order_of_the_threads(library):
    panel = made(300, "float64")
    runs = (factored(library, "cluster_panel_qr", panel, seed=seed)[::3] for seed in range(3))
    first, *others = ([x.tobytes() for x in found] for found in runs)
    assert all(other == first for other in others)


def test_a_cluster_is_taken_as_far_as_its_threads_reach():
    on = TABLE["H200"]
    most = cluster_rows(on)
    assert most == CLUSTER_BLOCKS * PANEL_THREADS // 2
    for m in (1, 511, most - 1, most):
        name, shape = panel_shape(m, SCALARS["float64"], 32, on)
        assert name == "cluster_panel_qr" and shape.grid == (CLUSTER_BLOCKS,)
        assert m <= CLUSTER_BLOCKS * shape.threads and shape.threads <= PANEL_THREADS // 2
    assert panel_shape(most + 1, SCALARS["float64"], 32, on)[0] == "panel_qr"
    assert cluster_rows(TABLE["RTX 5090"]) == cluster_rows(TABLE["A100"]) == 0
