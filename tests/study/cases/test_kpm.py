"""KPM's cases: every quick row builds and passes its checks; the model gives the paper's numbers."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile_study.bench.case import Context, Skipped
from spectile_study.bench.sheets import read_sheet
from spectile_study.cases.kpm import build as cases
from spectile_study.cases.kpm import called, model, shared, spmm, stages
from spectile_study.cases.kpm.naive import Chain
from spectile_study.cases.kpm.processes import kwant_calls
from spectile_study.cases.kpm.rivals import etas_naive
from spectile_study.cases.kpm.together import NaiveTogether

ROWS = read_sheet("config/kpm.tsv", "workflow/schemas/kpm.schema.yaml")
ONCE = ("functions_16x16x10", "step_16x16x10_r4", "cache_4x4x10_r16", "threads_16x16x10_2", "dos_16x16x10",
    "matrix_graphene_quick", "matrix_anderson_quick", "matrix_hopping_quick", "matrix_wannier_quick",
    "conductivity_quick", "interior_quick", "evolution_graphene_quick", "evolution_wannier_quick")  # fmt: skip


@pytest.mark.parametrize("case", ONCE)
def test_quick_case_passes_its_checks(case, tmp_path):
    problem = cases.build(ROWS[case], Context("cpu", tmp_path, seed=1, threads=2))
    ran = 0
    for method in problem.methods:
        if isinstance(method, Skipped):
            assert method.reason
            continue
        if method.prepare is not None:
            method.prepare()
        result = method.run()
        result = result[0] if method.clock == "external" else result
        errors = method.check(result)
        assert errors and all(errors[name] <= limit for name, limit in method.limits.items()), (method.name, errors)
        if method.values is not None:
            assert all(len(value) <= 4096 for value in method.values(result).values() if isinstance(value, list))
        # How many products an iteration takes is not known before it ends.
        assert method.name == "copy" or ROWS[case]["study"] == "interior" or method.flops > 0
        ran += 1
    assert ran


@pytest.mark.parametrize("case", ["evolution_graphene_quick", "evolution_wannier_quick"])
def test_a_term_or_a_state_too_late_and_a_wrong_last_vector_fail(case, tmp_path):
    context = Context("cpu", tmp_path, seed=1, threads=2)
    problem, later = (
        cases.build(ROWS[case] | {"num_moments": moments}, context) for moments in (ROWS[case]["num_moments"], 34)
    )
    judged = [method for method in later.methods if not method.name.startswith(("copy", "evolve_setup"))]
    limits = {method.name: (method.check, method.limits["error_fro_rel"]) for method in problem.methods}
    for method in judged:
        if method.prepare is not None:
            method.prepare()
        found = method.run()
        check, limit = limits[method.name]
        assert check(found)["error_fro_rel"] > 1e9 * limit
        found = found.copy()
        assert method.check(found)["error_fro_rel"] <= limit
        found[-1, -1] += 1e-6
        assert method.check(found)["error_fro_rel"] > limit
    assert len(judged) == 5 * 2


@pytest.mark.parametrize("dtype", ["complex128", "float64"])
def test_a_product_and_one_fused_update_are_the_chain_of_calls(dtype):
    rng = np.random.default_rng(3)
    matrix = shared.host_matrix(4, 4, 10)
    matrix = (matrix if dtype == "complex128" else matrix.real).astype(dtype)
    start = rng.standard_normal((matrix.shape[0], 3)).astype(dtype)

    def product(v, w, alpha, beta):
        w[...] = alpha * (matrix @ v) + beta * w

    def update(v, w, factor, sums):
        w += factor * v
        sums += [np.sum(abs(v) ** 2, axis=0), np.sum(w.conj() * v, axis=0).real]

    v, w = start.copy(), np.zeros_like(start)
    whole = spmm.etas_fused(product, update, v, w, 4, 0.3, 0.2)
    np.testing.assert_allclose(whole, etas_naive(matrix, np.asfortranarray(start), 4, 0.3, 0.2), rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("precision", ["complex128", "complex64"])
def test_a_call_and_what_it_does_before_the_recurrence_are_checked(precision, tmp_path):
    row, context = ROWS["cache_4x4x10_r16"] | {"precision": precision}, Context("cpu", tmp_path, seed=1, threads=2)
    matrix = shared.host_matrix(4, 4, 10).astype(precision)
    call, setup = called.methods(row, context, matrix)
    assert (call.name, setup.name) == ("as_called_stored", "as_called_stored_setup")
    density, first = call.run(), setup.run()
    assert (density.num_moments, first.num_moments) == (called.MOMENTS["cpu"], called.FIRST)
    assert density.bounds == first.bounds and density.num_vectors == row["num_vectors"]
    assert call.values(density) == {"moments": called.MOMENTS["cpu"]}
    assert call.flops / setup.flops == called.MOMENTS["cpu"] / called.FIRST
    limit = call.limits["error_fro_rel"]
    assert call.check(density)["error_fro_rel"] <= limit and setup.check(first)["error_fro_rel"] <= limit
    other = called.api.kpm_dos(matrix, 64, 16, rng=2, backend="cpu")
    assert call.check(other)["error_fro_rel"] > 10 * limit


def test_on_a_device_the_sample_itself_is_called_in_its_own_type(tmp_path):
    context, on_device = Context("cuda", tmp_path, seed=1, threads=2), SimpleNamespace(get=None)
    row = ROWS["step_16x16x10_r4"]
    both = called.methods(row | {"precision": "complex128"}, context, on_device)
    assert [method.name for method in both] == [
        f"as_called_{name}{part}" for name in ("stored", "free") for part in ("", "_setup")
    ]
    *_, free, setup = called.methods(row | {"precision": "complex64"}, context, on_device)
    assert isinstance(free, Skipped) and isinstance(setup, Skipped) and "complex128 alone" in free.reason


def test_reference_of_a_call_is_the_exact_recurrence():
    sample = TopologicalInsulator(4, 4, 3, shared.quantum_dots(4, 4, 3))
    (a, b), vectors = shared.scaling(sample), called._CHUNK + 1
    start = shared.reference.random_phases(7, sample.shape[0], vectors)
    etas = stages.etas_blocked(sample.matrix(), start, 2 * shared.STEPS, a, b)
    wanted = shared.reference.moments_from_etas(etas).mean(axis=1)
    found = called.reference_moments(4, 4, 3, vectors, 7, 2, a, b)
    np.testing.assert_allclose(found, wanted, atol=1e-12 * sample.shape[0])


KWANT_LIKE = """
import numpy as np
from spectile.kpm import bounds, reference
from spectile_study.cases.kpm import stages

class SpectralDensity:
    def __init__(self, matrix, num_vectors, num_moments, vector_factory, bounds, eps):
        start = np.stack(list(vector_factory), axis=1)
        assert start.shape[1] == num_vectors
        self.a, self.b = (2 - eps) / (bounds[1] - bounds[0]), sum(bounds) / 2
        etas = stages.etas_blocked(matrix, start, num_moments, self.a, self.b)
        self.moments = reference.moments_from_etas(etas).mean(axis=1) * reference.jackson_kernel(num_moments) FACTOR

    def __call__(self, energy):
        return self.a * reference.chebyshev_density(self.moments, self.a * (energy - self.b)) + 0j
"""


@pytest.mark.parametrize(("factor", "right"), [("", True), ("* 1.001", False)])
def test_kwant_is_asked_in_its_own_python_and_its_density_checked(factor, right, tmp_path, monkeypatch):
    (tmp_path / "kwant").mkdir()
    (tmp_path / "kwant/__init__.py").write_text("")
    (tmp_path / "kwant/kpm.py").write_text(KWANT_LIKE.replace("FACTOR", factor))
    row = ROWS["host_dos_50x50x40"] | {"nx": 5, "ny": 4, "nz": 3, "num_moments": 64}
    context = Context("cpu", tmp_path, seed=1, threads=2)
    monkeypatch.delenv(kwant_calls.KWANT, raising=False)
    skipped = cases.build(row, context).methods[1]
    assert isinstance(skipped, Skipped) and kwant_calls.KWANT in skipped.reason
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(kwant_calls.KWANT, sys.executable)
    ours, kwant = cases.build(row, context).methods
    assert ours.check(ours.run())["error_fro_rel"] < 1e-12
    density, seconds = kwant.run()
    assert seconds > 0
    assert (kwant.check(density)["error_fro_rel"] < 1e-12) is right


def test_every_paper_row_has_a_study_and_its_parameters():
    for row in ROWS.values():
        assert row["study"] in cases._STUDIES
        if row["study"] in ("matrix", "evolution"):
            assert None not in (row["matrix"], row["rows"], row["num_vectors"], row["num_moments"])
        elif row["study"] == "conductivity":
            assert None not in (row["rows"], row["num_vectors"], row["num_moments"])
        elif row["study"] == "interior":
            assert None not in (row["rows"], row["num_vectors"])
        elif row["study"] not in ("machine", "host_machine"):
            assert None not in (row["nx"], row["ny"], row["nz"])


def test_code_balance_is_the_papers():
    assert model.code_balance(1) == pytest.approx(308 / 138)
    assert round(model.code_balance(1), 2) == 2.23
    assert model.code_balance(32) == pytest.approx(0.407, abs=1e-3)
    assert round(model.code_balance(math.inf), 2) == 0.35


def test_step_adds_up_to_table_1_and_eq_4():
    rows, nnz, vectors = 1000, 13000, 7
    table = model.functions(rows, nnz)
    calls = {"spmv": 1, "axpy": 2, "scal": 1, "nrm2": 1, "dot": 1}
    for place, total in ((0, model.step_bytes("naive", rows, nnz, vectors)), (1, model.step_flops(rows, nnz, vectors))):
        assert vectors * sum(calls[name] * table[name][place] for name in calls) == pytest.approx(total)
    assert model.step_flops(rows, nnz, 1) == 138 * rows
    stages = [
        model.step_bytes(stage, rows, nnz, 32) for stage in ("naive", "aug_spmv", "aug_spmmv", "stencil", "blocked")
    ]
    assert stages == sorted(stages, reverse=True)
    assert model.step_bytes("rows", rows, nnz, 32) - model.step_bytes("stencil", rows, nnz, 32) == 10 * rows


@pytest.mark.parametrize("threads", [1, 3])
def test_the_threaded_chain_is_the_naive_version(threads):
    sample = TopologicalInsulator(4, 5, 3)
    matrix, (a, b) = sample.matrix(), shared.scaling(sample)
    start = np.asfortranarray(shared.reference.random_phases(5, matrix.shape[0], 2))
    expected = stages.etas_naive(matrix, start, 14, a, b)
    np.testing.assert_allclose(Chain(matrix, threads).etas(start, 7, a, b), expected, atol=1e-11)


def test_the_chain_on_planes_of_the_cpu_takes_its_halo_from_them():
    sample = TopologicalInsulator(6, 5, 4)
    (a, b), start = shared.scaling(sample), shared.reference.random_phases(3, sample.shape[0], 1, first_vector=1)
    chain = NaiveTogether(sample, 6, 2, a, b)
    chain.begin(3, 1)
    etas = np.concatenate([chain.advance(3), chain.advance(4)])
    np.testing.assert_allclose(etas, stages.etas_blocked(sample.matrix(), start, 14, a, b), atol=1e-11)


def test_omega_counts_planes_and_lines_that_do_not_stay():
    plane = 4 * 100 * 40 * (260 + 32 * 32)  # bytes of the matrix and of 32 vectors twice
    assert model.omega(100, 40, 32, 2.5 * plane) == 1
    # V is read three times instead of once, and W is read and written.
    assert model.omega(100, 40, 32, 1.5 * plane) == pytest.approx((260 + 5 * 512) / (260 + 3 * 512))
    assert model.omega(100, 40, 32, 1e4) == pytest.approx((260 + 7 * 512) / (260 + 3 * 512))
    assert model.omega(100, 40, 1, 1.5 * plane) == 1
    assert model.working_set(1000, 13000, 32) == 1000 * (260 + 1024)


def test_reference_of_a_case_is_the_exact_recurrence():
    sample = TopologicalInsulator(4, 4, 3)
    etas = shared.reference_etas(4, 4, 3, 5)
    energies, states = np.linalg.eigh(sample.matrix().toarray())
    a, b = shared.scaling(sample)
    start = shared.reference.random_phases(5, sample.shape[0], 2)
    overlap = np.abs(states.conj().T @ start) ** 2
    polynomials = np.cos(np.arange(shared.STEPS + 2)[:, None] * np.arccos(a * (energies - b)))
    for m in range(shared.STEPS + 1):
        np.testing.assert_allclose(etas[2 * m], polynomials[m] ** 2 @ overlap, atol=1e-11)
        np.testing.assert_allclose(etas[2 * m + 1], (polynomials[m] * polynomials[m + 1]) @ overlap, atol=1e-11)


def test_the_library_chain_equals_the_reference():
    sample = TopologicalInsulator(4, 5, 3)
    matrix, (a, b) = sample.matrix(), shared.scaling(sample)
    start = shared.reference.random_phases(5, matrix.shape[0], 2)
    chained = etas_naive(matrix, np.asfortranarray(start), 15, a, b)
    np.testing.assert_allclose(chained, stages.etas_naive(matrix, start, 30, a, b), atol=1e-11)
