"""Samples of crystals and Hamiltonians of other programs: their energies, positions, and worded errors."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm import (
    LatticeModel,
    average,
    conductivity,
    from_kwant,
    from_pybinding,
    from_pythtb,
    read_wannier90,
    velocity,
)
from tests.hamiltonians import haldane, unit_vectors

VECTORS = np.array([[1.0, 0.0], [0.5, np.sqrt(3) / 2]])


def haldane_model(mass=0.0):
    onsite = np.array([[mass, -1.0], [-1.0, -mass]], complex)
    hoppings = {(0, 0): onsite}
    for cell in ((1, 0), (0, 1)):
        hoppings.setdefault(cell, np.zeros((2, 2), complex))[1, 0] -= 1
    for cell in ((-1, 0), (0, 1), (1, -1)):
        hoppings.setdefault(cell, np.zeros((2, 2), complex))[...] += 0.2j * np.diag([1, -1])
    whole = {}
    for cell, t in hoppings.items():
        back = tuple(-n for n in cell)
        whole[cell] = whole.get(cell, 0) + (t if cell != (0, 0) else t / 2)
        whole[back] = whole.get(back, 0) + (t if cell != (0, 0) else t / 2).conj().T
    return LatticeModel(VECTORS, [[0, 0], VECTORS.sum(axis=0) / 3], whole)


@pytest.mark.parametrize("twist", [None, (0.3, -1.1)])
def test_a_periodic_sample_has_the_energies_of_bloch_states(twist):
    model = haldane_model(0.3)
    H, positions, periods = model.sample([5, 4], twist=twist)
    shift = np.zeros(2) if twist is None else np.array(twist)
    momenta = [(2 * np.pi * np.array([i, j]) + shift) / [5, 4] for i in range(5) for j in range(4)]
    exact = np.sort(np.concatenate([np.linalg.eigvalsh(model.bloch(k)) for k in momenta]))
    np.testing.assert_allclose(np.linalg.eigvalsh(H.toarray()), exact, atol=1e-12)
    assert positions.shape == (40, 2)
    np.testing.assert_allclose(periods, [5 * VECTORS[0], 4 * VECTORS[1]])


def test_a_sample_is_haldanes_model_with_its_plateau():
    H, positions, periods = haldane_model().sample([12, 12])
    other = haldane(12)
    assert abs(H - other[0]).max() < 1e-14
    np.testing.assert_allclose(positions, other[1])
    sigma = conductivity(
        H, "x", "y", positions, periods=periods, vectors=unit_vectors(288, [0, 1]), num_moments=144, backend="cpu"
    )
    assert sigma(0.0) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("cells", [5, 14])
def test_a_hop_with_a_shorter_image_is_told(cells):
    hoppings = {(0, 1): [[-1.0]], (0, -1): [[-1.0]]}
    model = LatticeModel([[1.0, 0.0], [3.0, 1.0]], [[0.0, 0.0]], hoppings)
    if cells == 5:
        with pytest.warns(UserWarning, match=r"a hop over \(0, -?1\) has a shorter image in \(5, 5\) cells"):
            model.sample([cells, cells])
        return
    H, positions, periods = model.sample([cells, cells])
    v = velocity(H, "x", positions, periods=periods)
    assert abs(v).power(2).sum() == pytest.approx(2 * 9 * cells**2)


def test_open_ends_have_no_hops_around():
    model = haldane_model()
    H, positions, periods = model.sample([4, 3], periodic=[True, False])
    assert periods.shape == (1, 2)
    v = velocity(H, "y", positions, periods=periods)
    assert abs(v).max() < 3
    H, positions, periods = model.sample([1, 2], periodic=False)
    assert periods is None and H.shape == (4, 4)
    np.testing.assert_allclose(H.toarray(), H.toarray().conj().T)


def hr_file(path, model, degeneracy=2):
    cells = [(a, b, 0) for a in (-1, 0, 1) for b in (-1, 0, 1)] + [(3, 0, 0), (-3, 0, 0)] * 4
    cells = list(dict.fromkeys(cells))
    lines = ["written by a test", "2", str(len(cells))]
    numbers = [str(degeneracy)] * len(cells)
    lines += ["    ".join(numbers[first : first + 15]) for first in range(0, len(numbers), 15)]
    for cell in cells:
        t = model.hoppings.get(cell[:2], np.zeros((2, 2))) * degeneracy
        for n in range(2):
            for m in range(2):
                lines.append(
                    f"{cell[0]:5d}{cell[1]:5d}{cell[2]:5d}{m + 1:5d}{n + 1:5d}{t[m, n].real:12.6f}{t[m, n].imag:12.6f}"
                )
    path.write_text("\n".join(lines) + "\n")
    return path


def test_wannier90s_file_is_read(tmp_path):
    model = haldane_model(0.25)
    read = read_wannier90(hr_file(tmp_path / "a_hr.dat", model), lattice=np.diag([2.0, 3.0, 4.0]))
    for k in ((0.1, 0.2), (2.0, -1.0)):
        np.testing.assert_allclose(read.bloch([*k, 0.7]), model.bloch(k), atol=1e-6)
    assert read.sample([7, 3, 1]).positions.max() == 12
    whole = (tmp_path / "a_hr.dat").read_text()
    for broken in (whole[: len(whole) // 2], "", "comment\nmany\n3\n", whole.replace("    1    2 ", "    1    9 ")):
        (tmp_path / "b_hr.dat").write_text(broken)
        with pytest.raises(ValueError, match=r"b_hr\.dat"):
            read_wannier90(tmp_path / "b_hr.dat")
    with pytest.raises(FileNotFoundError):
        read_wannier90(tmp_path / "c_hr.dat")


def test_models_of_other_programs():
    matrix = sp.coo_array(np.diag([1.0, 2.0, 2.0]))
    places = [(0.0, 1.0), (2.0, 3.0)]

    def submatrix(params, sparse, return_norb):
        assert sparse and return_norb and params == {"t": 1}
        return matrix, np.array([1, 2]), np.array([1, 2])

    finalized = SimpleNamespace(hamiltonian_submatrix=submatrix, pos=lambda site: places[site])
    for system in (finalized, SimpleNamespace(finalized=lambda: finalized)):
        H, positions, _ = from_kwant(system, {"t": 1})
        np.testing.assert_array_equal(positions, [places[0], places[1], places[1]])
        np.testing.assert_array_equal(H.toarray(), matrix.toarray())
    axes = SimpleNamespace(x=[0.0, 1, 2], y=[0.0, 0, 0], z=[0.0, 0, 0])
    H, positions, _ = from_pybinding(SimpleNamespace(hamiltonian=matrix.tocsr(), system=axes))
    np.testing.assert_array_equal(positions[:, 0], [0, 1, 2])
    hops = [[-1.0, 0, 1, np.array([0, 0])], [-1.0, 0, 1, np.array([-1, 0])], [-1.0 + 0.2j, 0, 1, np.array([0, -1])]]
    orbitals, energies = np.array([[0, 0], [1 / 3, 1 / 3]]), np.array([0.5, -0.5])
    tb = SimpleNamespace(_lat=VECTORS, _orb=orbitals, _nspin=1, _site_energies=energies, _hoppings=hops)
    model = from_pythtb(tb)
    f = -1 - np.exp(-0.3j) + (-1 + 0.2j) * np.exp(-0.8j)
    np.testing.assert_allclose(model.bloch([0.3, 0.8]), [[0.5, f], [np.conj(f), -0.5]], atol=1e-14)
    np.testing.assert_allclose(model.orbitals[1], VECTORS.sum(axis=0) / 3)
    for read in (from_kwant, from_pybinding, from_pythtb):
        with pytest.raises(TypeError, match="is an object"):
            read(object())


def test_averages_have_a_seed_for_each_realization():
    seen = []

    def observe(rng):
        seen.append(rng.random())
        return [seen[-1], 2 * seen[-1]]

    mean, error = average(observe, 4, rng=3)
    np.testing.assert_allclose(mean, [np.mean(seen), 2 * np.mean(seen)])
    np.testing.assert_allclose(error, np.std(seen, ddof=1) / 2 * np.array([1, 2]))
    first = list(seen)
    average(observe, 6, rng=3)
    assert seen[4:8] == first and len(set(seen)) == 6
    assert np.isnan(average(observe, 1, rng=3)[1]).all()
    with pytest.raises(ValueError, match="num_realizations = 0"):
        average(observe, 0)


def test_averages_copy_what_they_are_given_and_take_numbers_alone():
    kept = np.zeros(3)

    def observe(rng):
        kept[:] = rng.random(3)
        return kept

    wanted = average(lambda rng: rng.random(3), 4, rng=1)
    for found, values in zip(average(observe, 4, rng=1), wanted, strict=True):
        np.testing.assert_array_equal(found, values)
    for given, error, words in (
        (3, TypeError, "^observe is"),
        (lambda rng: None, ValueError, "observe gave object"),
        (lambda rng: "a", ValueError, "observe gave <U1"),
        (lambda rng: rng.random(rng.integers(1, 9)), ValueError, "the same shape each time"),
        (lambda rng: np.ma.masked_less(rng.random(3), 0.5), TypeError, "masked entries"),
    ):
        with pytest.raises(error, match=words):
            average(given, 4, rng=1)


def test_models_that_do_not_fit_are_refused():
    for arguments, message in (
        (([[1.0]], [[0.0]], {(1,): [[1.0]]}), "not adjoint"),
        (([[1.0]], [[0.0]], {(1, 0): [[1.0]]}), "give 1 numbers"),
        (([[1.0, 0.0]], [[0.0]], {}), "lattice has shape"),
        (([[1.0]], [[0.0]], {(0,): [[1j]]}), "not adjoint"),
        (([[1.0]], [[0.0]], {(0,): [[np.nan]]}), "1 x 1 finite entries"),
        (([[1.0]], [[0.0]], {(0,): [["a"]]}), "is <U1 of shape"),
        (([[1.0]], [[0.0]], {(0.5,): [[1.0]], (-0.5,): [[1.0]]}), "a cell's number = 0.5"),
        ((1.0, [[0.0]], {}), "lattice has shape"),
    ):
        with pytest.raises(ValueError, match=message):
            LatticeModel(*arguments)
    with pytest.raises(TypeError, match=r"^hoppings is None"):
        LatticeModel([[1.0]], [[0.0]], None)
    model = haldane_model()
    for arguments, message in (
        ((([2, 5]),), "too small"),
        (([5],), "must have 2 entries"),
        (([4.7, 5],), "a size = 4.7"),
        (("a",), "a size = 'a'"),
        (([5, 0],), "a size = 0"),
    ):
        with pytest.raises(ValueError, match=message):
            model.sample(*arguments)
