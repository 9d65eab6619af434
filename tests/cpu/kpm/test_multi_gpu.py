"""What KPM on several devices decides on the host: partitions, halos, references, bad input."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from spectile.kpm import reference
from spectile.kpm.distributed.multi_gpu import MultiGpuMatrix, local_operators
from spectile.kpm.distributed.partition import local_planes, localize, longest_run
from spectile.kpm.operators.lattices import anderson
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile_study.bench.case import Context, Method, Skipped
from spectile_study.bench.sheets import read_sheet
from spectile_study.cases.kpm import build as cases
from spectile_study.cases.kpm import hybrid, multi, shared
from spectile_study.cases.kpm.hybrid import HybridEngine, planes_of_cpu

ROWS = read_sheet("config/kpm.tsv", "workflow/schemas/kpm.schema.yaml")


@pytest.mark.parametrize(("first", "planes"), [(0, 6), (2, 3), (5, 1), (4, 2)])
def test_planes_are_the_rows_of_the_whole_matrix(first, planes):
    sample = TopologicalInsulator(6, 5, 8, potential=np.random.default_rng(1).random((6, 5, 8)))
    matrix, order = local_planes(sample, np.dtype(np.complex128), first, planes, np)
    rows = planes * 160
    assert matrix.shape[0] == rows and matrix.indices.max() < len(order) == rows + 320
    x = np.random.default_rng(2).random(sample.shape[0])
    np.testing.assert_allclose(matrix @ x[order][: matrix.shape[1]], (sample.matrix() @ x)[order[:rows]], atol=1e-14)
    np.testing.assert_array_equal(np.sort(order[:rows]), np.arange(first * 160, (first + planes) * 160))


def test_vectors_of_the_cpus_planes_are_those_of_the_whole():
    sample = TopologicalInsulator(6, 5, 8)
    _, order = local_planes(sample, np.dtype(np.complex128), 4, 2, np)  # and the planes on both their sides
    block = np.zeros((len(order), 2, 3))
    hybrid.fill_planes(block, 160, order, 7, 11)
    whole = reference.random_phases(7, sample.shape[0], 3, first_vector=11)
    np.testing.assert_array_equal(block[:, 0] + 1j * block[:, 1], whole[order])


@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_partitions_of_any_matrix_have_its_rows(partitions):
    matrix = anderson(5, disorder=2, rng=3).tocsr()
    edges = np.linspace(0, matrix.shape[0], partitions + 1).astype(np.int64)
    x = np.random.default_rng(4).random(matrix.shape[0])
    for number in range(partitions):
        first, last = edges[number : number + 2]
        local, halo, receives = localize(matrix[first:last], edges, number)
        np.testing.assert_allclose(local @ np.r_[x[first:last], x[halo]], (matrix @ x)[first:last], atol=1e-14)
        assert sum(stop - start for _, start, stop in receives) == len(halo)
        for owner, start, stop in receives:
            assert edges[owner] <= halo[start] <= halo[stop - 1] < edges[owner + 1] and owner != number


def test_longest_run():
    assert longest_run(np.array([1, 0, 1, 1, 1, 0, 1, 1], dtype=bool)) == (2, 5)
    assert longest_run(np.zeros(3, dtype=bool)) == (0, 0)
    assert longest_run(np.ones(3, dtype=bool)) == (0, 3)


def test_reference_without_a_matrix_is_scipys():
    etas = multi.reference_etas(7, 6, 5, 11, 2)[: 2 * (shared.STEPS + 1)]
    np.testing.assert_allclose(etas, shared.reference_etas(7, 6, 5, 11), rtol=0, atol=1e-11)


@pytest.mark.parametrize("case", ["devices_400x400x40_8", "throughput_400x100x40_2", "hybrid_400x100x40"])
def test_without_a_gpu_every_method_says_why(case, tmp_path):
    methods = cases.build(ROWS[case], Context("cpu", tmp_path, seed=1, threads=1)).methods
    assert methods and all(isinstance(method, Skipped) and "no CUDA device" in method.reason for method in methods)


def test_scaling_follows_the_papers_growth():
    sizes = {
        series: {
            row["gpus"]: (row["nx"], row["ny"], row["nz"])
            for row in ROWS.values()
            if row["study"] == "devices" and series in row["scaling"].split(",")
        }
        for series in ("square", "bar", "strong")
    }
    assert sizes["bar"] == {count: (400 * count, 100, 40) for count in (1, 2, 4, 8)}
    # From four on, both sides double when the devices quadruple; between, one of them does.
    assert sizes["square"] == {1: (400, 100, 40), 2: (400, 200, 40), 4: (400, 400, 40), 8: (800, 400, 40)}
    assert sizes["strong"] == dict.fromkeys((1, 2, 4, 8), (400, 400, 40))


@pytest.mark.parametrize(
    ("planes", "cpu_over_gpu", "share"),
    [(100, 103.5, 0), (400, 103.5, 3), (400, 399.0, 1), (9, 1.0, 4), (9, 1e-6, 8), (1, 1.0, 0)],
)
def test_the_cpu_gets_planes_where_both_end_sooner(planes, cpu_over_gpu, share):
    seconds = {"cuda": 7e-6, "cpu": 7e-6 * cpu_over_gpu}
    assert planes_of_cpu(planes, seconds) == share

    def end(mine):
        return max(mine * seconds["cpu"], (planes - mine) * seconds["cuda"])

    assert end(share) == min(end(mine) for mine in range(planes))


def test_a_trial_takes_the_least_of_its_rounds(monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 14.0, 20.0, 26.0])
    monkeypatch.setattr(hybrid.time, "perf_counter", lambda: next(clock))
    steps = []
    assert hybrid.seconds_a_step(SimpleNamespace(advance=steps.append)) == 4.0 / hybrid.TRIAL_STEPS
    assert steps == [2, *[hybrid.TRIAL_STEPS] * hybrid.TRIAL_ROUNDS]


def test_what_both_could_gain_is_held_against_the_gpu_alone(monkeypatch):
    monkeypatch.setattr(multi, "_seconds", lambda run: run())
    times = iter([0.5, 0.25, 0.5])
    alone = Method("aug_spmmv", lambda: next(times), dict, {}, flops=4.0, prepare=lambda: None)
    both = multi._with_gain(replace(alone, name="both", flops=8.0), [alone], 10.0, {"cpu_planes": 3})
    assert both.values(None) == {
        "cpu_planes": 3, "sum_of_both_s": pytest.approx(1 / (1 / 0.5 + 1 / 10)), "most_gain_percent": pytest.approx(5)
    }  # fmt: skip
    assert both.values(None)["sum_of_both_s"] < 0.5


def test_bad_input_is_worded():
    sample = TopologicalInsulator(5, 4, 3)
    with pytest.raises(ValueError, match="a halo is 2 wide: take fewer"):
        local_operators(sample, np.dtype(np.complex128), [], 3, stored=False, steps_a_sweep=2)
    with pytest.raises(ValueError, match="take fewer"):
        local_operators(sample, np.dtype(np.complex128), [], 6, stored=True, steps_a_sweep=2)
    with pytest.raises(ValueError, match="devices is empty"):
        MultiGpuMatrix(sample, [])
    with pytest.raises(ValueError, match="without a plane"):
        HybridEngine(sample, 5, threads=1)
