"""SpAMM's cases: what they compute, the run sheet, and drawing from whole, partial and empty frames."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from spectile_study.bench import record, sheets
from spectile_study.bench.case import Context, Skipped
from spectile_study.cases.spamm import build as cases
from spectile_study.cases.spamm import ceilings, checks, reference, thresholds, truncation
from spectile_study.cases.spamm.networks import digits
from spectile_study.figures.elements import elements
from spectile_study.inputs import decay

ROOT = Path(__file__).parents[3]
SHEET, SCHEMA = ROOT / "config/spamm.tsv", ROOT / "workflow/schemas/spamm.schema.yaml"
ELEMENTS = elements("spamm", ROOT / "workflow/scripts")


@pytest.fixture
def context(tmp_path):
    return Context("cpu", tmp_path, seed=1, threads=2)


def checked(row, context):
    """Build a case and run its methods once; return the values of each, after their checks."""
    problem = cases.build(row, context)
    found = {}
    for method in problem.methods:
        if isinstance(method, Skipped):
            assert len(method.reason) > 10
            continue
        if method.prepare is not None:
            method.prepare()
        result = method.run()
        errors = method.check(result)
        for name, limit in method.limits.items():
            assert errors[name] <= limit, (method.name, name, errors[name])
        found[method.name] = method.values(result) if method.values else {}
    return found


def test_every_quick_row_is_built_and_every_row_names_its_study():
    rows = sheets.read_sheet(SHEET, SCHEMA)
    quick = sheets.read_sheet(SHEET, SCHEMA, "quick")
    assert {row["study"] for row in quick.values()} == {
        "thresholds", "truncation", "map", "product", "water", "digits", "accuracy", "density",
    }  # fmt: skip
    assert all(row["gpus"] == 0 for row in quick.values())
    sizes = {(row["n"], row["precision"], row["gpus"]) for row in rows.values() if row["study"] == "product"}
    for n in thresholds.TABLE_1:
        for precision in ("fp16", "fp16c16", "fp32", "tf32x3", "fp64"):
            assert (n, precision, 1) in sizes
        for gpus in (2, 4, 8):
            assert {(n, "fp16", gpus), (n, "fp32", gpus)} <= sizes


def test_square_of_a_toeplitz_matrix_row_by_row():
    rng = np.random.default_rng(1)
    for n in (1, 2, 7, 100):
        first = rng.standard_normal(n)
        matrix = first[np.abs(np.arange(n)[:, None] - np.arange(n)[None, :])]
        np.testing.assert_allclose(np.array(list(truncation.toeplitz_squared(first))), matrix @ matrix, atol=1e-12)


def test_single_precision_sum_stops_growing():
    row, zero = np.full(1_000_000, 8.1), np.zeros(1_000_000)
    true, single = truncation.difference_norms([row] * 2, [zero] * 2)
    assert single == pytest.approx(true, rel=1e-2)
    # Addends of 65.6 are lost from 2^31 on, where half the last place is 128: the paper's 46,340.
    true, single = truncation.difference_norms([row] * 40, [zero] * 40)
    assert true == pytest.approx(8.1 * 40e6**0.5)
    assert int(single) == 46_340


def test_table_3_small_reproduces_to_the_digits_printed(context):
    printed = {1: (1020, 996, 0.5213, 0.2683), 2: (1324, 1302, 0.2437, 0.0670), 3: (1400, 1387, 0.1091, 0.0187)}
    rows = sheets.read_sheet(SHEET, SCHEMA, "quick")
    for place, (truncated, near_sparse, nonzeros, valid) in printed.items():
        found = checked(rows[f"truncation_1024_{place}"], context)
        assert int(found["truncation"]["error_fro_float32"]) == truncated
        assert int(found["spectile"]["error_fro_float32"]) == near_sparse
        assert found["truncation"]["nz_ratio"] == pytest.approx(nonzeros, abs=1e-4)
        assert found["spectile"]["valid_ratio"] == pytest.approx(valid, abs=1e-4)


def test_what_thresholds_leave_out_is_what_the_products_lack():
    n, tile = 512, 32
    a = decay.algebraic(n)
    norms = reference.norm_map(a, tile)
    products = np.multiply.outer(norms[0], norms[0])
    taus = [1.000001 * float(np.quantile(products, share)) for share in (0.3, 0.6, 0.95)]  # no norm is equal to one
    exact = a @ a
    lacking = []
    for tau in taus:
        product, _ = checks.product_over_valid_set(a, a, tau, range(n // tile))
        lacking.append(np.linalg.norm(product - exact) / np.linalg.norm(exact))
    assert 0.05 < lacking[0] < lacking[1] < lacking[2]
    assert truncation.left_out(a[0], taus, norms[0], tile, step=1) == pytest.approx(lacking, rel=1e-10)
    assert truncation.left_out(a[0], taus, norms[0], tile) == pytest.approx(lacking, rel=1e-3)


def test_thresholds_and_map(context):
    rows = sheets.read_sheet(SHEET, SCHEMA, "quick")
    for case in ("thresholds_1024", "thresholds_32768"):
        found = checked(rows[case], context)["spectile"]
        assert 0.6 < found["error_rel_30"] < found["error_rel_10"] < found["error_rel_05"] < 1
    found = checked(rows["map_1024"], context)["spectile"]
    assert sum(found["loads_1"]) == sum(found["loads_2"]) == round(found["valid_ratio"] * 32**3)
    assert found["max_over_mean_2"] < found["max_over_mean_1"]


def test_product_is_checked_against_the_valid_set(context):
    rows = sheets.read_sheet(SHEET, SCHEMA, "quick")
    found = checked(rows["product_1024_fp64"], context)
    assert found["spectile_10"]["valid_ratio"] == found["spectile_10"]["executed_ratio"]
    paper = sheets.read_sheet(SHEET, SCHEMA, "paper")
    assert not checked(paper["product_1024_fp16_gpus1"], context)


def test_check_of_a_product_sees_a_missing_tile():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 160, 160))
    rows = checks.sampled_rows(160, seed=1)
    for tau in (0.0, 1000.0):
        expected, count = checks.product_over_valid_set(a, b, tau, rows)
        whole = reference.spamm_flat(a, b, tau)
        assert checks.relative_error(checks.strips(whole, rows), expected) < 1e-14
        assert count == reference.valid_set(reference.norm_map(a), reference.norm_map(b), tau)[rows].sum()


def test_executed_ratio_of_larger_tiles():
    norms = decay.algebraic_norm_map(1024)
    valid = reference.valid_set(norms, norms, 1.5)
    union = valid.reshape(16, 2, 32, 8, 4).any(axis=(1, 4))
    assert ceilings.executed_ratio(norms, 1.5, 2, 4) == pytest.approx(union.mean())


def test_water_and_vgg_rows(context):
    rows = sheets.read_sheet(SHEET, SCHEMA)
    found = checked(rows["water_10_overlap"] | {"molecules": 3}, context)
    errors = [found[f"spectile_{tau:.0e}"]["error_fro"] for tau in thresholds.ERGO_TAUS]
    assert errors == sorted(errors)
    assert not checked(rows["vgg_conv21_gpus1"], context)


def test_digits_are_recognised_and_lose_little(context, monkeypatch):
    monkeypatch.setattr(digits, "EPOCHS", 3)
    row = sheets.read_sheet(SHEET, SCHEMA, "quick")["digits"]
    found = checked(row, context)
    assert found["spectile_97"]["accuracy"] > 0.85
    assert abs(found["spectile_97"]["accuracy_change"]) < 0.02
    ratios = [found[name]["valid_ratio"] for name in thresholds.network_ratios("digits")]
    assert ratios == sorted(ratios, reverse=True)


def test_gradients_of_the_network_by_differences():
    rng = np.random.default_rng(0)
    images, labels = rng.random((5, 1, 8, 8)), rng.integers(0, 10, 5)
    shapes = {"conv1": (32, 9), "conv2": (32, 288), "linear": (10, 512)}
    parameters = {name: 0.2 * rng.standard_normal(shape) for name, shape in shapes.items()}

    def loss():
        scores = digits._forward(parameters, images)[-1]
        return float((np.log(np.exp(scores).sum(axis=0)) - scores[labels, np.arange(5)]).mean())

    gradients = digits._gradients(parameters, images, labels)
    for name, gradient in gradients.items():
        place = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
        kept = parameters[name][place]
        parameters[name][place] = kept + 1e-6
        up = loss()
        parameters[name][place] = kept - 1e-6
        down = loss()
        parameters[name][place] = kept
        assert (up - down) / 2e-6 == pytest.approx(gradient[place], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
def test_scripts_draw_from_nothing_and_from_skipped_rows(element, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    suffix = ".svg" if element.is_figure else ".html"
    shared = {"paper": "spamm", "machine": "m", "device": "d", "status": "ok", "reason": None, "values": {}}
    provenance = {"commit": "c", "dirty": False, "digest": "0"}
    skipped = [
        shared
        | {
            "case": row["case"],
            "params": {key: value for key, value in row.items() if key != "case"},
            "methods": [{"method": "spectile", "status": "skipped", "reason": "not here, for a reason"}],
            "provenance": provenance,
        }
        for row in sheets.read_sheet(SHEET, SCHEMA).values()
    ]
    for number, records in enumerate(([], skipped)):
        element.draw(record.frame(records)).save(tmp_path / f"{number}{suffix}")
        assert (tmp_path / f"{number}{suffix}").stat().st_size > 100


def test_cases_that_lacked_gpus_share_a_sentence():
    reasons = [f"the case n_{gpus} needs {gpus} GPUs and 4 are visible: run it where they are" for gpus in (8, 16)]
    frame = pd.DataFrame({"status": "skipped", "reason": [*reasons, "ergo is not installed"]})
    assert thresholds.skip_reasons(frame) == [
        "ergo is not installed",
        "2 cases were skipped for want of 8 or 16 GPUs on one host.",
    ]
    assert thresholds.skip_reasons(frame.iloc[2:]) == ["ergo is not installed"]
    assert thresholds.skip_reasons(frame.assign(status="ok")) == []


@pytest.mark.parametrize(("n", "cutoff"), [(1, 0.0), (40, 0.0), (40, 0.06), (41, 0.2), (200, 0.063)])
def test_intermediate_products_of_truncated_matrices_are_counted(n, cutoff):
    first = 0.1 / (np.arange(n) ** 0.1 + 1)
    first[first < cutoff] = 0
    kept = first[abs(np.arange(n)[:, None] - np.arange(n))] != 0
    assert truncation.intermediate_products(first) == kept.sum(0) @ kept.sum(1)


def test_cusparse_computes_the_largest_share_whose_two_work_spaces_fit():
    def fits(share, products, gigabytes):
        return share * products < 2**31 and 48 * share * products < 0.9e9 * gigabytes

    for products in (10, 10**9, 4 * 10**10, 2 * 10**11):
        for gigabytes in (10, 40, 80, 139, 280):
            share = truncation.share_at_a_time(products, gigabytes * 1e9)
            assert fits(share, products, gigabytes) or share == truncation.SHARES[-1]
            assert not any(fits(each, products, gigabytes) for each in truncation.SHARES if each > share)
    # Table 3 at N = 8,192 on an H200: TRUN = 0.031 would need 488 GB at the first share.
    first = 0.1 / (np.arange(8192) ** 0.1 + 1)
    shares = [
        truncation.share_at_a_time(truncation.intermediate_products(np.where(first < cut, 0, first)), 139e9)
        for cut in (0.031, 0.033, 0.039)
    ]
    assert shares == [0.01, 0.05, 0.05]
