"""The film and the packet of KPM: exact states against dense matrices, checks that hold, and what is drawn of them."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot
from scipy.linalg import expm

from spectile.kpm.observables import velocity
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile_study.bench import record
from spectile_study.bench.case import Context
from spectile_study.cases.kpm import films
from spectile_study.figures.elements import elements

ROOT = Path(__file__).parents[3]
FILM = {"study": "film", "element": "film", "nx": 12, "ny": 12, "nz": 2, "num_moments": 64}
PACKET = {"study": "packet", "element": "packet", "nx": 7, "ny": 6, "nz": 3}


def test_exact_states_are_those_of_the_whole_matrix(tmp_path):
    sample = TopologicalInsulator(4, 5, 2)
    spin = 1j * films.GAMMA_HOP[0] @ films.GAMMA_HOP[1]
    assert np.allclose(spin, spin.conj().T)
    H = sample.matrix().toarray() + 0.5 * np.kron(np.eye(sample.num_sites), spin)
    energies, states = np.linalg.eigh(H)
    places, periods = films._places(sample), np.diag([4.0, 5.0])
    v, w = (states.conj().T @ velocity(H, axis, places, periods=periods).toarray() @ states for axis in "xy")
    for level in (0.0, 1.1):
        filled = energies < level
        apart = np.where(filled[:, None] & ~filled, energies[:, None] - energies, np.inf)
        whole = 2 * np.pi / 20 * np.sum((1j * (v * w.T - v.T * w)).real / apart**2)
        assert films.hall_of(H, sample, np.array([level]))[0] == pytest.approx(whole, abs=1e-9)
    start = np.random.default_rng(1).standard_normal(sample.shape[0]) + 0j
    exact = expm(-1.7j * sample.matrix().toarray()) @ start
    np.testing.assert_allclose(films.evolved(sample, start, 1.7), exact, atol=1e-10)


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    """Return the frame of small samples, and the errors of its methods."""
    records, errors, context = [], {}, Context("cpu", tmp_path_factory.mktemp("none"), seed=1, threads=1)
    for row, build in ((FILM, films.film_problem), (PACKET, films.packet_problem)):
        problem, methods = build(row, context), []
        for method in problem.methods:
            result = method.run()
            errors[method.name] = dict(method.check(result)), method.limits
            methods.append(
                {"method": method.name, "status": "ok", "reason": None, "clock": "wall", "samples_s": [1.0],
                 "errors": errors[method.name][0], "limits": dict(method.limits), "values": dict(method.values(result))}
            )  # fmt: skip
        origin = {"commit": "0" * 40, "dirty": False, "digest": "0" * 64, "seed": 1, "threads": 1, "python": "3.12"}
        records.append(
            {"paper": "kpm", "case": row["study"], "machine": "test", "device": "a CPU", "status": "ok", "reason": None,
             "params": row, "values": dict(problem.values), "inputs": dict(problem.inputs), "methods": methods,
             "provenance": origin | {"cpu": "any", "libraries": {}}, "measured_at": "2026-01-01T00:00:00+00:00"}
        )  # fmt: skip
    return record.frame(records), errors


def test_checks_hold_where_moments_resolve_the_gap(frames):
    _, errors = frames
    for name in ("packet", "packet_disorder", "longitudinal"):
        found, limits = errors[name]
        assert all(found[each] <= limit for each, limit in limits.items()), (name, found)
    assert errors["hall"][0]["error_hall"] < 0.2  # 64 moments of 320


def test_figures_draw_every_curve_and_say_what_is_missing(frames):
    frame, _ = frames
    for element in elements("kpm", ROOT / "workflow/scripts"):
        if element.name not in ("film", "packet"):
            continue
        noted = {(note["method"], note["y_column"]) for note in element.draw(frame).notes}
        assert (
            noted
            == {
                "film": {("hall", "v_hall"), ("hall", "v_exact"), ("longitudinal", "v_along")},
                "packet": {("packet", "v_spread"), ("packet_disorder", "v_spread")},
            }[element.name]
        )
        assert not element.draw(frame.iloc[:0]).notes
    pyplot.close("all")
