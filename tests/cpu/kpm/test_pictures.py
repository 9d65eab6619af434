"""Curves that draw themselves: with Matplotlib, and without anything in a notebook."""

import re
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import spectile
from spectile.core.pictures import curve_html
from spectile.kpm.operators.lattices import graphene

H = graphene(4, 4)


@pytest.fixture
def pyplot():
    module = pytest.importorskip("matplotlib.pyplot")
    module.close("all")
    module.switch_backend("agg")
    yield module
    module.close("all")


def test_a_density_is_drawn_with_its_errors(pyplot):
    density = spectile.kpm_dos(H, 32, 3, rng=1, backend="cpu")
    axes = density.plot()
    (line,), (band,) = axes.lines, axes.collections
    assert np.array_equal(line.get_xydata(), np.column_stack([density.energies, density.densities]))
    drawn = band.get_paths()[0].vertices
    high, low = density.densities + density.errors, density.densities - density.errors
    assert np.isclose(drawn[:, 1].max(), high.max()) and np.isclose(drawn[:, 1].min(), low.min())
    assert density.plot(axes) is axes and len(axes.lines) == 2
    single = spectile.kpm_dos(H, 32, 1, rng=1, backend="cpu").plot()
    assert len(single.lines) == 1 and not single.collections


def test_curves_are_drawn_one_by_one(pyplot):
    curves = spectile.ldos(H, [0, 5, 7], 16, backend="cpu")
    lines = curves.plot().lines
    assert np.array_equal(np.array([line.get_ydata() for line in lines]), curves.densities.T)


@pytest.mark.parametrize("vectors", [1, 3])
def test_a_conductivity_is_drawn_and_told(pyplot, vectors):
    sites = np.arange(32)[:, None].astype(float)
    ring = spectile.kpm.LatticeModel([[1.0]], [[0.0]], {(1,): [[-1.0]], (-1,): [[-1.0]]}).sample([32])
    sigma = spectile.conductivity(
        ring.H, "x", "x", sites, periods=ring.periods, num_moments=16, num_vectors=vectors, rng=1, backend="cpu"
    )
    mu = np.linspace(-1, 1, 5)
    axes = sigma.plot(mu, temperature=0.1)
    assert np.array_equal(axes.lines[0].get_ydata(), sigma(mu, 0.1)) and len(axes.collections) == (vectors > 1)
    assert len(sigma.plot().lines[0].get_xdata()) == 401
    assert repr(sigma).startswith(f"Conductivity(greenwood, 16 moments of {vectors} vectors, energies -2")


def test_without_matplotlib_a_drawing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    curves = spectile.ldos(H, [0], 16, backend="cpu")
    with pytest.raises(ImportError, match="pip install matplotlib"):
        curves.plot()
    assert curves.plot.__doc__ and "1 curves" in curves._repr_html_()


def test_a_notebook_shows_the_curve():
    density = spectile.kpm_dos(H, 32, 3, rng=1, backend="cpu")
    for result, y in ((density, density.densities), (spectile.ldos(H, [0], 16, backend="cpu"), None)):
        shown = ElementTree.fromstring(result._repr_html_().replace("<br>", "<br/>"))
        assert shown.text == repr(result)
        (points,) = [part.get("points") for part in shown.iter() if part.tag == "polyline"]
        places = np.array([point.split(",") for point in points.split()], dtype=float)
        assert len(places) == len(result.energies) and (np.diff(places[:, 0]) >= 0).all()
        if y is not None:  # upside down
            assert places[:, 1].argmin() == y.argmax()


def test_a_flat_curve_and_odd_text_are_shown():
    shown = curve_html("a < b", np.zeros(3), np.zeros(3))
    assert "a &lt; b" in shown and not re.search("nan|inf", shown)


def test_a_curve_fills_its_picture():
    shown = curve_html("", np.array([-2.0, 0.0, 2.0]), np.array([3.0, 0.0, 6.0]), width=100, height=60)
    assert 'points="0.0,30.0 50.0,60.0 100.0,0.0"' in shown
    lifted = curve_html("", np.array([0.0, 1.0]), np.array([3.0, 6.0]), width=10, height=60)
    assert 'points="0.0,30.0 10.0,0.0"' in lifted  # from zero, or from below it
