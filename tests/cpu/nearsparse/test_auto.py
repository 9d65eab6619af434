"""When ``method="auto"`` takes the dense product: held against measured times of both."""

from __future__ import annotations

import itertools

import pytest

from spectile.core.devices import TABLE
from spectile.nearsparse import spamm
from spectile.nearsparse.cuda.dense import Costs, decide
from spectile.nearsparse.cuda.tuning import KEPT, READ_SECONDS
from spectile.nearsparse.types import ALL, PRECISIONS, Request

# One H200, microseconds a call, throughput: the dense product, and SpAMM by executed share.
MEASURED = {
    (1024, "fp32"): (56.3, {0.049: 23.9, 0.302: 38.2, 0.598: 54.7, 1.0: 69.0}),
    (2048, "fp32"): (341.0, {0.049: 48.3, 0.304: 148.3, 0.595: 258.8, 1.0: 422.6}),
    (4096, "fp32"): (2733.2, {0.052: 249.6, 0.309: 1033.2, 0.596: 1916.7, 1.0: 3229.4}),
    (8192, "fp32"): (21852.5, {0.046: 1588.2, 0.301: 7479.7, 0.592: 14320.4, 1.0: 24155.2}),
    (4096, "fp16"): (164.3, {0.112: 68.6, 0.359: 104.5, 0.629: 149.6, 1.0: 186.7}),
    (8192, "fp16"): (1321.9, {0.077: 280.4, 0.326: 543.3, 0.61: 892.9, 1.0: 1456.4}),
    (1024, "fp64"): (40.8, {0.049: 31.7, 0.302: 36.2, 0.598: 51.4, 1.0: 61.8}),
    (2048, "fp64"): (284.7, {0.049: 60.5, 0.304: 137.0, 0.595: 229.6, 1.0: 382.0}),
    (4096, "fp64"): (2267.4, {0.052: 277.0, 0.309: 908.9, 0.596: 1705.8, 1.0: 2841.6}),
    (8192, "fp64"): (18247.0, {0.046: 1455.9, 0.301: 7200.1, 0.592: 14805.9, 1.0: 22506.0}),
    (2048, "tf32x3"): (345.1, {0.079: 34.6, 0.329: 79.5, 0.612: 123.7, 1.0: 152.8}),
    (8192, "tf32x3"): (21592.0, {0.054: 691.0, 0.307: 2793.6, 0.597: 5388.0, 1.0: 8609.0}),
}

# The same of another H200, whose host had neighbours; a share of 0.05 is one of 0.046 at n = 8192.
MEASURED_AGAIN = {
    (1024, "fp32"): (57.0, {0.05: 21.9, 0.6: 53.3, 1.0: 68.8}),
    (1024, "fp64"): (41.2, {0.05: 22.3, 0.6: 49.5, 1.0: 62.1}),
    (2048, "fp32"): (343.5, {0.05: 53.9, 0.6: 276.1, 1.0: 423.9}),
    (2048, "fp16"): (26.6, {0.05: 21.1, 0.6: 29.4, 1.0: 33.9}),
    (2048, "fp16c16"): (25.2, {0.05: 21.2, 0.6: 25.6, 1.0: 29.4}),
    (2048, "fp64"): (287.2, {0.05: 54.0, 0.6: 243.5, 1.0: 362.1}),
    (4096, "fp32"): (2751.0, {0.05: 223.3, 0.6: 1921.5, 1.0: 3241.4}),
    (4096, "fp16"): (190.3, {0.05: 63.5, 0.6: 167.9, 1.0: 207.4}),
    (4096, "fp16c16"): (179.9, {0.05: 52.2, 0.6: 158.6, 1.0: 197.3}),
    (4096, "fp64"): (2259.9, {0.05: 252.8, 0.6: 1608.5, 1.0: 2640.3}),
    (8192, "fp32"): (22279.3, {0.046: 1590.5, 0.592: 14306.2, 1.0: 24079.8}),
    (8192, "fp16"): (1523.6, {0.046: 272.2, 0.592: 882.6, 1.0: 1395.3}),
    (8192, "fp16c16"): (1437.0, {0.046: 236.7, 0.592: 866.0, 1.0: 1460.8}),
    (8192, "fp64"): (18230.8, {0.046: 1506.6, 0.592: 12899.8, 1.0: 22581.3}),
}
# What counting added in that run: where SpAMM was taken, and where the dense product was, at shares of 0.05 and 1.
COUNTED = {
    (2048, "fp32"): (13.7, 58.8), (2048, "fp64"): (13.1, 59.5), (4096, "fp32"): (22.0, 111.6),
    (4096, "fp16"): (21.1, 70.3), (4096, "fp16c16"): (21.2, 65.3), (4096, "fp64"): (25.3, 102.2),
    (8192, "fp32"): (17.4, 267.8), (8192, "fp16"): (20.9, 117.4), (8192, "fp16c16"): (22.4, 203.1),
    (8192, "fp64"): (36.3, 897.7),
}  # fmt: skip

# Everyday draws of an H200 that skipped, most with rows that are not aligned: precision, (m, k, n), executed share, and
# microseconds of the dense product and of SpAMM, each with its search for an error.
DRAWN = [
    ("fp16", (565, 1531, 13475), 0.083, 491, 342),
    ("fp16", (14556, 158, 8496), 0.2, 438, 629),
    ("fp16", (8875, 1205, 4390), 0.276, 941, 707),
    ("fp16", (1428, 3053, 2660), 0.308, 291, 340),
    ("fp16", (1238, 5177, 7595), 0.759, 938, 1288),
    ("fp32", (2876, 3700, 2603), 0.117, 1513, 539),
    ("fp32", (1467, 4599, 1287), 0.122, 592, 354),
    ("fp32", (8844, 248, 11300), 0.156, 1410, 674),
    ("fp32", (4144, 831, 7735), 0.17, 1396, 745),
    ("fp32", (12974, 1830, 13674), 0.182, 14077, 3814),
    ("fp32", (6467, 547, 11897), 0.188, 2097, 850),
    ("fp32", (2046, 6829, 2108), 0.251, 1592, 847),
    ("fp32", (510, 9159, 10300), 0.342, 2304, 1685),
    ("fp32", (3319, 8127, 2084), 0.541, 2757, 2440),
    ("fp32", (15127, 1080, 858), 0.545, 909, 791),
    ("fp64", (1220, 11248, 12217), 0.259, 7978, 4059),
    ("fp64", (1591, 7190, 2315), 0.455, 1659, 1223),
    ("fp64", (10975, 1809, 231), 0.457, 509, 477),
    ("fp64", (69, 6069, 11191), 1.0, 638, 904),
]


def request(precision: str, share: float | None = None) -> Request:
    """With a threshold, where no share is given: what was measured is without a search."""
    return Request(precision, 1.0) if share is None else Request(precision, 1.0, share)


@pytest.mark.parametrize("measured", [MEASURED, MEASURED_AGAIN], ids=["first", "again"])
@pytest.mark.parametrize(("n", "precision"), MEASURED | MEASURED_AGAIN)
def test_a_known_share_loses_little_to_the_better_product(
    n: int, precision: str, measured: dict[tuple[int, str], tuple[float, dict[float, float]]]
) -> None:
    dense, by_share = measured.get((n, precision), (1.0, {}))
    for share, spamm_time in by_share.items():
        verdict, limit = decide((n, n, n), request(precision, share), TABLE["H200"])
        assert verdict == ("spamm" if share <= limit else "dense")
        assert {"spamm": spamm_time, "dense": dense}[verdict] <= 1.1 * min(spamm_time, dense), (share, limit)


@pytest.mark.parametrize(("precision", "shape", "share", "dense", "skipping"), DRAWN)
def test_a_share_that_was_found_loses_little_to_the_better_product(
    precision: str, shape: tuple[int, int, int], share: float, dense: float, skipping: float
) -> None:
    limit = decide(shape, Request(precision, rtol_factors=1e-3), TABLE["H200"])[1]
    assert (skipping if share <= limit else dense) <= 1.1 * min(skipping, dense), limit


@pytest.mark.parametrize(("n", "precision"), COUNTED)
def test_an_unknown_share_loses_what_no_other_choice_would_save(n: int, precision: str) -> None:
    dense, by_share = MEASURED_AGAIN[n, precision]
    (least, *_, most), (before_spamm, before_dense) = by_share.values(), COUNTED[n, precision]
    losses = {
        "spamm": most / min(most, dense),
        "dense": dense / min(least, dense),
        # Shared by the runs that keep to what was found.
        "count": 1 + (max((least + before_spamm) / least, (dense + before_dense) / min(most, dense)) - 1) / KEPT,
    }
    verdict = decide((n, n, n), request(precision), TABLE["H200"])[0]
    assert losses[verdict] <= min(losses.values()) + 0.05, losses


@pytest.mark.parametrize("n", [64, 512, 1024])
@pytest.mark.parametrize("precision", ["fp16", "fp16c16"])
def test_small_products_of_half_precision_are_dense(n: int, precision: str) -> None:
    for share in (None, 0.01, 1.0):
        assert decide((n, n, n), request(precision, share), TABLE["H200"])[0] == "dense"


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_unknown_share_loses_the_least_where_it_is_wrong(precision: str, name: str) -> None:
    device = TABLE[name]
    for n in (16, 256, 1024, 2048, 4096, 8192, 32768):
        costs = Costs.of((n, n, n), request(precision), device)
        verdict = costs.verdict(None)
        if costs.limit >= 1:
            assert verdict == "spamm"
        elif costs.limit <= 0:
            assert verdict == "dense"
        elif n == 32768 and precision in ("fp32", "fp64"):
            # Counting costs next to nothing of a long product.
            assert verdict == "count"
        assert costs.verdict(0.0) == ("dense" if costs.limit < 0 else "spamm")


def test_an_unknown_method_is_refused() -> None:
    import numpy as np

    one = np.eye(32)
    with pytest.raises(ValueError, match="choose 'spamm' or 'auto'"):
        spamm(one, one, tau=0.0, method="dense")  # type: ignore[arg-type]
    assert spamm(one, one, tau=0.0, method="auto", backend="cpu").method in ("spamm", "dense")


def _taken(costs: Costs, verdict: str, share: float) -> float:
    """Return what a product is predicted to take of which so much is valid; a count is shared by the runs it is for."""
    skipping = costs.skipping(share)
    if verdict == "count":
        found = costs.count if share <= costs.limit else costs.count + READ_SECONDS + costs.norms
        return (skipping if share <= costs.limit else costs.dense) + found / KEPT
    return skipping if verdict == "spamm" else costs.dense


@pytest.mark.parametrize("name", ["A100", "H100", "B200", "RTX 4090", "DGX Spark"])
@pytest.mark.parametrize("precision", ALL)
def test_no_size_or_tolerance_is_far_from_its_neighbours_or_from_the_dense_product(precision: str, name: str) -> None:
    device, within = TABLE[name], Request(precision, rtol_factors=1e-3, method="auto")
    sizes = [round(64 * 2 ** (i / 8)) // 8 * 8 for i in range(65)]  # 64 to 16,384
    shapes = (1, 1, 1), (1, 4, 1), (4, 1, 1), (1, 1, 16)
    for shape, share in itertools.product(shapes, (0.02, 0.3, 1.0)):
        known, taken = Request(precision, valid_ratio=share, method="auto"), []
        for size in sizes:
            m, k, n = (size * factor for factor in shape)
            costs = Costs.of((m, k, n), known, device)
            seconds = _taken(costs, decide((m, k, n), known, device)[0], share)
            # Of a known share it never costs more than the dense product; where nothing is known, a fourth at most.
            assert seconds <= costs.dense
            unknown = Costs.of((m, k, n), within, device)
            assert _taken(unknown, unknown.verdict(None), share) <= 1.25 * unknown.dense
            if size >= 1024 and k <= 32_768:
                taken.append(seconds)
        # Work grows by 1.3 from one size to the next; with more pieces of C multiprocessors may be used better.
        steps = [after / before for before, after in itertools.pairwise(taken)]
        assert min(steps) >= 0.85 and max(steps) <= 1.3 * 1.3, (shape, share)
