"""Matrices stored by their distinct rows: the same matrix, the same moments, and entries where rows do not repeat."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm import bounds, reference
from spectile.kpm.cpu import kernels
from spectile.kpm.cpu.operator import CpuOperator, CpuRecursion
from spectile.kpm.cpu.patterns import MOST_PATTERNS, RowPatterns
from spectile.kpm.distributed.partition import localize
from spectile.kpm.operators.lattices import anderson, graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile_study.cases.kpm import stages

SAMPLE = TopologicalInsulator(6, 5, 4)


def expanded(patterns):
    """Write the rows out again."""
    entries = [np.arange(*patterns.first[number : number + 2]) for number in patterns.number]
    rows = np.repeat(np.arange(patterns.number.size), [each.size for each in entries])
    k = np.concatenate(entries)
    shape = (patterns.number.size,) * 2
    off_diagonal = sp.csr_array((patterns.values[k], (rows, rows + patterns.offsets[k])), shape=shape)
    return off_diagonal + sp.diags_array(patterns.diagonal)


def symmetric(size, density):
    random = sp.random_array((size, size), density=density, format="csr", rng=3)
    return sp.csr_array(random + random.T)


@pytest.mark.parametrize("dtype", ["complex128", "complex64", "float64", "float32"])
def test_patterns_hold_the_matrix_exactly(dtype):
    matrix = (SAMPLE.matrix() if dtype.startswith("complex") else anderson(6, disorder=2, rng=1)).astype(dtype)
    patterns = RowPatterns.from_csr(matrix)
    assert patterns.first.size - 1 == (108 if dtype.startswith("complex") else 27)
    assert patterns.values.dtype == dtype and patterns.diagonal.dtype == np.empty(0, dtype).real.dtype
    assert abs(expanded(patterns) - matrix).max() == 0


def test_a_value_that_differs_in_its_last_bit_makes_a_row_of_its_own():
    matrix = graphene(8, 8)
    regular = RowPatterns.from_csr(matrix).first.size
    matrix.data[matrix.indptr[40]] = np.nextafter(matrix.data[matrix.indptr[40]], 2)
    patterns = RowPatterns.from_csr(matrix)
    assert patterns.first.size == regular + 1 and np.sum(patterns.number == patterns.number[40]) == 1
    assert abs(expanded(patterns) - matrix).max() == 0


def test_a_complex_diagonal_stays_in_the_patterns():
    matrix = sp.csr_array(SAMPLE.matrix() + sp.diags_array(np.where(np.arange(480) % 4 == 0, 0.5j, 0)))
    patterns = RowPatterns.from_csr(matrix)
    assert abs(expanded(patterns) - matrix).max() == 0
    np.testing.assert_array_equal(patterns.diagonal[::4], 0)


def test_rows_that_do_not_repeat_are_stored_by_entries():
    for matrix in (symmetric(4 * MOST_PATTERNS, 2e-3), symmetric(40, 0.3)):
        assert RowPatterns.from_csr(matrix) is None
        assert CpuOperator.from_matrix(matrix).rows.func is kernels.csr_rows
    assert CpuOperator.from_matrix(SAMPLE.matrix()).rows.func is kernels.pattern_rows


@pytest.mark.parametrize("num_vectors", [1, 2, 7, 32, 45])
@pytest.mark.parametrize("dtype", ["complex128", "complex64", "float64", "float32"])
def test_patterns_and_entries_give_the_same_moments(dtype, num_vectors):
    matrix = (SAMPLE.matrix() if dtype.startswith("complex") else anderson(6, disorder=2, rng=1)).astype(dtype)
    a, b = bounds.scaling(bounds.gershgorin(matrix))
    operators = CpuOperator.from_matrix(matrix), CpuOperator.from_csr(matrix)
    start = operators[0].random_block(1, 0, num_vectors)
    etas = [CpuRecursion(operator, a, b, start.copy()).advance(12) for operator in operators]
    double = np.result_type(dtype, np.float64)
    vectors = reference.random_phases(1, matrix.shape[0], num_vectors, real=double.kind == "f")
    expected = stages.etas_blocked(matrix.astype(double), vectors, 24, a, b)
    tolerance = matrix.shape[0] * (1e-13 if double == dtype else 3e-6)
    for found in etas:
        np.testing.assert_allclose(found, expected, atol=tolerance)


def test_patterns_are_bitwise_the_same_on_any_number_of_threads():
    operator = CpuOperator.from_matrix(TopologicalInsulator(16, 10, 8).matrix())
    for num_vectors in (1, 4):
        start = operator.random_block(1, 0, num_vectors)
        runs = [CpuRecursion(operator, 0.15, 0.0, start.copy(), threads).advance(6) for threads in (1, 2, 3)]
        assert len(operator.blocks(num_vectors)) > 3
        np.testing.assert_array_equal(runs[0], runs[1])
        np.testing.assert_array_equal(runs[0], runs[2])


def test_the_smallest_insulator_has_a_pattern_for_each_position():
    sample = TopologicalInsulator(3, 3, 3)
    matrix = sample.matrix()
    columns = np.eye(108, dtype=complex)
    stencil = CpuOperator.from_topological_insulator(sample)
    block = stencil.to_block(columns)
    image = np.zeros_like(block)
    stencil.update(block, image, 1.0, 0.0, 0.0, 1, stencil.blocks())
    np.testing.assert_allclose(image[:, 0] + 1j * image[:, 1], matrix.toarray(), atol=1e-15)


def test_a_share_of_the_rows_with_a_halo_has_patterns_too():
    matrix = TopologicalInsulator(12, 6, 5).matrix()
    edges = np.array([0, 480, 1440])
    local, halo, _ = localize(matrix[480:1440], edges, 1)
    operator = CpuOperator.from_matrix(local)
    assert operator.rows.func is kernels.pattern_rows and operator.num_columns == 960 + halo.size
    vectors = reference.random_phases(5, 1440, 3)
    block = CpuOperator.from_csr(matrix).to_block(np.concatenate([vectors[480:], vectors[halo]]))
    image = np.zeros_like(block)
    operator.update(block, image, 1.0, 0.0, 0.0, 2, operator.blocks())
    np.testing.assert_allclose((image[:, 0] + 1j * image[:, 1])[:960], (matrix @ vectors)[480:], atol=1e-13)


@pytest.mark.parametrize("dtype", ["complex128", "complex64", "float64", "float32"])
@pytest.mark.parametrize("what", ["values", "one word", "imaginary parts", "offsets", "lengths"])
def test_rows_that_share_a_slot_of_the_table_stay_apart(dtype, what):
    # Few rows have a table of few slots: of so many pairs of patterns tens fall into one.
    if what == "imaginary parts" and not dtype.startswith("complex"):
        pytest.skip("real numbers have none")
    rng = np.random.default_rng(7)
    for _ in range(150):
        a, b = rng.normal(size=2) + (1j * rng.normal(size=2) if dtype.startswith("complex") else 0)
        if what == "one word":
            b = np.nextafter(a.real, 9) + 1j * a.imag
        elif what == "imaginary parts":
            b = a.real + 1j * b.imag
        blocks = {
            "offsets": [(2, a, 0), (2, a, 0), (0, a, 2), (0, a, 2)],  # (column of row 0, its value, row)
            "lengths": [(1, a, 0), (1, a, 0), (None, a, 0), (None, a, 0)],
        }.get(what, [(1, a, 0), (1, a, 0), (1, b, 0), (1, b, 0)])
        full = np.zeros((12, 12), complex)
        for n, (column, value, row) in enumerate(blocks):
            if column is not None:
                full[3 * n + row, 3 * n + column] = value
        matrix = sp.csr_array(full if dtype.startswith("complex") else full.real).astype(dtype)
        patterns = RowPatterns.from_csr(matrix)
        assert patterns is not None and abs(expanded(patterns) - matrix).max() == 0
