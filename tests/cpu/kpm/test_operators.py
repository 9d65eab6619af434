"""Operators: users' own are as good as ours, no unit of energy matters, a matrix is compared with its adjoint."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm import kpm_dos, ldos, moments, reference
from spectile.kpm.operators.adopt import as_operator
from spectile.kpm.operators.lattices import anderson, graphene
from spectile.kpm.operators.protocol import Operator
from spectile.kpm.operators.stored import StoredMatrix
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm.operators.user import OperatorRecursion, ProductOperator
from spectile_study.cases.kpm import stages

SAMPLE = TopologicalInsulator(4, 5, 3, potential=np.random.default_rng(1).random((4, 5, 3)), hopping=0.7)


class Ring:
    """A ring with hopping −1 by the protocol."""

    def __init__(self, size, dtype=np.float64):
        self.shape, self.dtype = (size, size), np.dtype(dtype)

    def matmat(self, block, out):
        out[:-1] = -block[1:]
        out[-1] = -block[0]
        out[1:] -= block[:-1]
        out[0] -= block[-1]

    def bounds(self):
        return -2.0, 2.0

    def memory_bytes(self, num_vectors):
        return 0


def stored_ring(size):
    ones = -np.ones(size)
    return sp.diags_array(
        [ones, ones, ones, ones], offsets=[1, -1, size - 1, 1 - size], shape=(size, size), format="csr"
    )


def test_an_operator_of_the_users_own_gives_what_its_matrix_gives():
    ring, matrix = Ring(60), stored_ring(60)
    assert as_operator(ring) is ring
    mine, stored = (kpm_dos(H, 64, 5, rng=2, backend="cpu", bounds=(-2, 2)) for H in (ring, matrix))
    np.testing.assert_allclose(mine.moments, stored.moments, atol=1e-11)
    density = kpm_dos(ring, 64, 5, rng=2)  # bounds of its own, on the host whatever the machine has
    assert -2 <= density.bounds[0] < density.bounds[1] <= 2
    np.testing.assert_allclose(
        ldos(ring, [3], 32, bounds=(-2, 2)).moments, ldos(matrix, [9], 32, bounds=(-2, 2)).moments
    )
    density.add_moments(20)
    assert density.integrate() == pytest.approx(60, rel=1e-12)


def test_an_operator_of_the_users_own_stays_on_the_host_unless_it_is_sent_away(monkeypatch):
    asked = []
    monkeypatch.setattr(moments, "choose_backend", lambda backend, on_gpu, *_: asked.append((backend, on_gpu)) or "cpu")
    for backend in ("auto", "cpu", "cuda"):
        for operator in (Ring(60), stored_ring(60)):
            moments.make_engine(operator, backend)
    assert asked == [("cpu", False), ("auto", False), ("cpu", False), ("cpu", False), ("cuda", False), ("cuda", False)]


def test_sums_of_many_rows_keep_the_digits_of_float32():
    matrix = graphene(150, 150).tocsr()
    operator = ProductOperator(matrix.astype(np.float32))
    start = reference.random_phases(1, matrix.shape[0], 8, real=True, dtype=np.float64)
    etas = OperatorRecursion(operator, 0.3, 0.0, start.astype(np.float32)).advance(4)
    np.testing.assert_allclose(etas, stages.etas_blocked(matrix, start, 8, 0.3, 0.0), rtol=0, atol=1e-6 * len(start))


@pytest.mark.parametrize("operator", [SAMPLE, StoredMatrix(SAMPLE.matrix()), ProductOperator(SAMPLE.matrix())])
def test_every_operator_keeps_the_protocol(operator):
    assert isinstance(operator, Operator)
    block = np.random.default_rng(2).normal(size=(240, 3)) + 0j
    image = np.full_like(block, np.nan)
    operator.matmat(block, image)
    np.testing.assert_allclose(image, SAMPLE.matrix() @ block, atol=1e-13)
    assert operator.memory_bytes(3) > 0
    bounds, exact = operator.bounds(), np.linalg.eigvalsh(SAMPLE.matrix().toarray())
    assert bounds is None or bounds[0] <= exact[0] <= exact[-1] <= bounds[1]


def test_a_method_called_gershgorin_makes_no_topological_insulator():
    matrix = stored_ring(30)

    class Matrix:
        shape, dtype = matrix.shape, matrix.dtype

        def __matmul__(self, block):
            return matrix @ block

        def gershgorin(self):
            return -5.0, 5.0

        def engine(self, dtype):
            raise AssertionError("an engine of its own")

    density = kpm_dos(Matrix(), 32, 4, rng=1, backend="cpu", bounds=(-2, 2))
    np.testing.assert_allclose(density.moments, kpm_dos(matrix, 32, 4, rng=1, bounds=(-2, 2), backend="cpu").moments)


@pytest.mark.parametrize("unit", [1e-18, 1e-30, 1e18])
@pytest.mark.parametrize("kind", ["float64", "complex128", "float32", "operator"])
def test_the_unit_of_energy_does_not_matter(unit, kind):
    matrix = SAMPLE.matrix() if kind == "complex128" else graphene(9, 8)
    single = kind == "float32"
    matrix = matrix.astype("float32" if single else matrix.dtype)
    scaled = (matrix * unit).astype(matrix.dtype)
    if kind == "operator":
        scaled, matrix = ProductOperator(scaled), ProductOperator(matrix)
    ours, other = (kpm_dos(H, 64, 4, rng=3, backend="cpu") for H in (matrix, scaled))
    low, high = other.bounds
    width = ours.bounds[1] - ours.bounds[0]
    np.testing.assert_allclose((low / unit, high / unit), ours.bounds, atol=1e-4 * width)
    exact = kpm_dos(matrix, 64, 4, rng=3, backend="cpu", bounds=(low / unit, high / unit))
    size = matrix.shape[0]
    np.testing.assert_allclose(other.moments / size, exact.moments / size, atol=1e-5 if single else 1e-10)


def test_zero_is_a_hamiltonian():
    density = kpm_dos(sp.csr_array((5, 5)), 16, 2, rng=1, backend="cpu")
    assert density.integrate() == pytest.approx(5) and abs(density.integrate(lambda energy: energy)) < 1e-5


def changed(matrix, row, by):
    matrix = matrix.tocsr().copy()
    entry = matrix.indptr[row]
    assert matrix.indices[entry] != row
    matrix.data[entry] += by
    return matrix


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64", "complex128"])
def test_one_entry_without_its_partner_is_seen(dtype):
    matrix = graphene(200, 200).astype(dtype)
    with pytest.raises(ValueError, match="not Hermitian"):
        kpm_dos(changed(matrix, 41_001, 1), 8, 1, backend="cpu")
    with pytest.raises(ValueError, match="not Hermitian"):
        kpm_dos(changed(matrix, 7, 1e-3), 8, 1, backend="cpu")
    one_sided = matrix.tolil()
    one_sided[5, 70_000] = 0.5
    with pytest.raises(ValueError, match="not Hermitian"):
        ldos(one_sided.tocsr(), [0], 8, backend="cpu")
    if matrix.dtype.kind == "c":
        matrix = matrix.copy()
        matrix.data *= 1j
        with pytest.raises(ValueError, match="not Hermitian"):
            kpm_dos(matrix, 8, 1, backend="cpu")


def test_rounding_and_stored_zeros_are_no_fault():
    matrix = graphene(9, 8)
    assert kpm_dos(changed(matrix, 7, 3e-16), 16, 1, rng=1, backend="cpu").num_moments == 16
    with_zero = matrix.tocoo()
    with_zero = sp.csr_array(
        (np.append(with_zero.data, 0.0), (np.append(with_zero.row, 3), np.append(with_zero.col, 100))), with_zero.shape
    )
    assert with_zero.nnz == matrix.nnz + 1
    assert kpm_dos(with_zero, 16, 1, rng=1, backend="cpu").integrate() == pytest.approx(144)
    rng = np.random.default_rng(1)
    rotation = sp.random_array((300, 300), density=0.05, rng=rng)
    assert kpm_dos(rotation.T @ anderson(7, disorder=2, rng=1)[:300, :300] @ rotation, 16, 1, backend="cpu")
