"""When ``method="auto"`` takes the dense product: held against measured times of both."""

from __future__ import annotations

import pytest

from spectile.core.devices import TABLE
from spectile.nearsparse import spamm
from spectile.nearsparse.cuda.dense import Costs, decide
from spectile.nearsparse.types import PRECISIONS

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


@pytest.mark.parametrize(("n", "precision"), MEASURED)
def test_a_known_share_loses_little_to_the_better_product(n: int, precision: str) -> None:
    dense, by_share = MEASURED[n, precision]
    for share, spamm_time in by_share.items():
        verdict, limit = decide(n, n, n, precision, share, TABLE["H200"])
        assert verdict == ("spamm" if share <= limit else "dense")
        assert {"spamm": spamm_time, "dense": dense}[verdict] <= 1.1 * min(spamm_time, dense), (share, limit)


@pytest.mark.parametrize("n", [64, 512, 1024])
@pytest.mark.parametrize("precision", ["fp16", "fp16c16"])
def test_small_products_of_half_precision_are_dense(n: int, precision: str) -> None:
    for share in (None, 0.01, 1.0):
        assert decide(n, n, n, precision, share, TABLE["H200"])[0] == "dense"


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_unknown_share_loses_the_least_where_it_is_wrong(precision: str, name: str) -> None:
    device = TABLE[name]
    for n in (16, 256, 1024, 2048, 4096, 8192, 32768):
        costs = Costs.of(n, n, n, precision, device)
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
    result = spamm(one, one, tau=0.0, method="auto", backend="cpu")
    assert result.method == "spamm" and result.faster is None
