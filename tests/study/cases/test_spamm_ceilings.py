"""How fast a thresholded product can be at best, on the machine that measured."""

import numpy as np
import pytest

from spectile_study.cases.spamm import ceilings

H200 = ceilings.MACHINES["NVIDIA H200"]


def test_host_bound_counts_the_longer_way():
    gigabyte = 32768**2 * 4
    assert ceilings.host_bound(32768, "fp32", 1) == pytest.approx(2 * gigabyte / H200.host_bytes)
    assert ceilings.host_bound(32768, "fp16", 8) == pytest.approx(gigabyte / H200.host_bytes_together)
    assert ceilings.speedup_bound(1.0, 32768, "fp32", 0.25) == pytest.approx(4, rel=0.02)


@pytest.mark.parametrize(("precision", "entry"), [("fp16", 2), ("fp32", 4), ("fp64", 8)])
def test_no_product_is_faster_than_its_norms_and_what_it_executes(precision, entry):
    norms_s = 2 * 4096**2 * entry / 4.06e12 + 5e-6
    assert ceilings.speedup_bound(2e-3, 4096, precision, 0.3) == pytest.approx(2e-3 / (norms_s + 0.3 * 2e-3))
    assert ceilings.speedup_bound(2e-3, 4096, precision, 0.0) == pytest.approx(2e-3 / norms_s)


@pytest.mark.parametrize(("precision", "moved"), [("fp16", 12), ("fp16c16", 10), ("fp32", 20), ("fp64", 40)])
def test_no_product_is_faster_than_the_bytes_that_it_moves(precision, moved):
    assert ceilings.bytes_bound(2e-3, 8192, precision) == pytest.approx(2e-3 * 4.06e12 / (8192**2 * moved))
    assert ceilings.bytes_bound(2e-3, 1024, precision) == np.inf


@pytest.mark.parametrize(
    ("precision", "gpus", "seconds"),
    [("fp32", 1, 8e8 / 52e9), ("fp32", 2, 8e8 / 104e9), ("fp32", 8, 8e8 / 152e9), ("fp16", 1, 4e8 / 52e9)],
)
def test_host_memory_bounds_what_streams_through_it(precision, gpus, seconds):
    assert ceilings.host_bound(10_000, precision, gpus) == pytest.approx(seconds)
