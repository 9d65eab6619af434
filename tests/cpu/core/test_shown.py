"""Every result tells of itself in a line with numbers, in a notebook as HTML, and is drawn where it is a picture."""

from __future__ import annotations

import sys
import warnings
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import scipy.sparse as sp

import spectile
from spectile import kpm, nearsparse, tsparse
from spectile.kpm.operators.lattices import chain

N = 40
A = np.exp(-abs(np.subtract.outer(np.arange(N), np.arange(N))) / 2.0)
S = sp.csr_array(sp.random_array((N, N), density=0.1, rng=np.random.default_rng(1)))
H = chain(N)
RESULTS = {
    "spamm": lambda: spectile.spamm(A, A, rtol_factors=1e-3, block=8, backend="cpu"),
    "a batch": lambda: spectile.spamm(np.stack([A, 2 * A]), A, tau=0.1, backend="cpu"),
    "norm_map": lambda: nearsparse.norm_map(A, 8),
    "spamm_threshold": lambda: spectile.spamm_threshold(A, A, rtol_factors=1e-3, backend="cpu"),
    "TileMatrix": lambda: spectile.TileMatrix.from_dense(A, rows=8, hermitian=True),
    "density_matrix": lambda: spectile.density_matrix(np.diag(np.arange(N) - 9.5), electrons=10, error=1e-3),
    "symbolic": lambda: tsparse.symbolic(S, S, backend="cpu"),
    "galerkin": lambda: tsparse.galerkin(S, S, S),
    "eigh": lambda: spectile.eigh(A, backend="cpu"),
    "tridiagonalize": lambda: spectile.tridiagonalize(A, backend="cpu"),
    "kpm_dos": lambda: spectile.kpm_dos(H, 16, 2, rng=1, backend="cpu"),
    "an operator's density": lambda: spectile.kpm_dos(H, 16, 2, rng=1, operator=H, backend="cpu"),
    "ldos": lambda: spectile.ldos(H, [1, 5], 16, backend="cpu"),
    "correlator": lambda: spectile.correlator(H, H, None, num_moments=8, num_vectors=2, rng=1, backend="cpu"),
    "conductivity": lambda: spectile.conductivity(
        H, "x", "x", np.arange(float(N)), area=40.0, num_moments=8, num_vectors=2, rng=1, backend="cpu"
    ),
    "chebyshev": lambda: spectile.chebyshev(H, np.ones(N), 9, backend="cpu"),
    "count": lambda: kpm.count(H, (-1.0, 1.0), num_moments=32, rng=1, backend="cpu"),
    "filter_diagonalize": lambda: spectile.filter_diagonalize(H, (0.0, 0.4), rng=1, backend="cpu"),
}  # fmt: skip
#: Numbers alone, which a notebook shows by their line.
PLAIN = {"spamm_threshold", "count"}
DRAWN = {"spamm", "TileMatrix", "density_matrix", "kpm_dos", "an operator's density", "ldos", "conductivity"}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_tells_of_itself_in_a_line(name):
    told = repr(RESULTS[name]())
    assert len(told) < 400 and "\n" not in told and " at 0x" not in told and "array(" not in told
    assert any(letter.isdigit() for letter in told)


@pytest.mark.parametrize("name", sorted(set(RESULTS) - PLAIN))
def test_a_notebook_shows_a_result(name):
    shown = RESULTS[name]()._repr_html_().replace("<br>", "<br/>")
    text = "".join(ElementTree.fromstring(f"<div>{shown}</div>").itertext())
    assert any(letter.isdigit() for letter in text)


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_a_picture_is_drawn_on_axes_that_are_given_or_new(name):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    result, (_, axes) = RESULTS[name](), pyplot.subplots()
    assert result.plot(axes=axes) is axes and (axes.lines or axes.images)
    assert result.plot() is not axes
    pyplot.close("all")


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_without_matplotlib_a_picture_says_what_to_install(name, monkeypatch):
    result = RESULTS[name]()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        result.plot()


def test_tiles_are_drawn_by_their_norms():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    big = 1e200 * A
    for result, expected, block in (
        (spectile.spamm(big, A, tau=0.0, backend="cpu"), big @ A, 16),
        (RESULTS["TileMatrix"](), A, 8),
    ):
        image = (result.plot(block=block) if block == 16 else result.plot()).images[0].get_array()
        ends = range(0, N, block)
        norms = [[np.linalg.norm(expected[i : i + block, j : j + block] / 1e100) for j in ends] for i in ends]
        np.testing.assert_allclose(10 ** (image - 100), norms, rtol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of tiles that are zero
        drawn = spectile.spamm(np.eye(32), np.eye(32), tau=0.0, backend="cpu").plot(block=8).images[0].get_array()
    np.testing.assert_array_equal(np.ma.getmaskarray(drawn), ~np.eye(4, dtype=bool))
    pyplot.close("all")


def test_a_batch_is_not_drawn():
    with pytest.raises(ValueError, match="no single matrix"):
        RESULTS["a batch"]().plot()
