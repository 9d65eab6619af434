"""What is told of a call's choice is what it chooses."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from spectile.core.devices import TABLE
from spectile.nearsparse import explain
from spectile.nearsparse.cuda.candidates import candidates
from spectile.nearsparse.cuda.choose import Problem, Way, choose, choose_way
from spectile.nearsparse.cuda.dense import decide
from spectile.nearsparse.types import PRECISIONS, Request


@pytest.mark.parametrize("device", TABLE)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_kernel_that_applies_and_the_product_that_is_taken(precision: str, device: str) -> None:
    seen = set()
    for n in (100, 2048, 16384):
        for problem in (Problem(n, n, n, precision=precision), Problem(n, n, n, 1, 8, precision, strict=True)):
            for share in (None, 0.01, 1.0):
                request = Request(precision, *(1.0, None) if share is None else (None, share), block=problem.block)
                request = replace(request, strict=problem.strict)
                listed = {one.kernel: one for one in candidates(problem, TABLE[device], request, True)}
                taken = [name for name, one in listed.items() if one.seconds is not None and name != "dense"]
                taken = [min(taken, key=lambda name: listed[name].seconds or 0.0)]
                assert taken == [choose_way(problem, TABLE[device]).kernel]
                verdict = decide((n, n, n), request, TABLE[device])[0]
                if share is not None:
                    faster = min((*taken, "dense"), key=lambda name: listed[name].seconds or math.inf)
                    assert (faster == "dense") == (verdict == "dense")
                seen.add(verdict)
                without = candidates(problem, TABLE[device], request, False)
                assert without[-1].kernel == "dense" and without[-1].seconds is None
    assert {"spamm", "dense"} <= seen
    # Each product of a batch takes as long.
    one, many = (
        candidates(replace(problem, batches=count), TABLE[device], Request(precision, None, 0.5), False)
        for count in (1, 3)
    )
    assert [x.seconds and 3 * x.seconds for x in one] == pytest.approx([x.seconds for x in many])


@pytest.mark.parametrize("device", ["H100 PCIe", "H100", "H200", "GH200"])
def test_small_tiles_are_taken_while_large_ones_leave_multiprocessors_idle(device: str) -> None:
    """Large tiles are 1.5 times as fast, and half as many: small ones pay up to a third of the multiprocessors."""
    many = TABLE[device].multiprocessors
    for m, pieces in itertools.product((1, 128, 129, 256, 300, 512), range(1, many)):
        problem = Problem(m, 64, 256 * pieces, precision="fp16")
        small = 3 * pieces * (1 + (m > 256)) < many
        large = "wgmma_wide_pair" if m > 128 else "wgmma_wide"
        assert choose_way(problem, TABLE[device]).kernel == ("wgmma_small" if small else large)
        assert choose_way(replace(problem, precision="tf32x3"), TABLE[device]).kernel == "wgmma_tf32"
        for other in ({"aligned": False}, {"strict": True}, {"block": 16}, {"k": 2**16}):
            assert choose_way(replace(problem, **other), TABLE[device]).kernel == "portable"
        assert choose_way(replace(problem, block=16, strict=True), TABLE[device]).kernel == "blocks"


def test_arguments_are_those_of_a_product() -> None:
    a = np.eye(64)
    (one,) = explain(a, a, valid_ratio=0.1, backend="cpu")
    assert one.kernel == "cpu" and math.isnan(one.seconds or 0.0)
    with pytest.raises(ValueError, match="exactly one of tau"):
        explain(a, a)
    with pytest.raises(ValueError, match="do not multiply"):
        explain(a, a[:3], tau=0.0)
    with pytest.raises(TypeError, match="a has dtype int64: SpAMM multiplies"):
        explain(a.astype(int), a, tau=0.0)


@pytest.mark.parametrize("device", TABLE)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_blocks_share_the_tiles_of_few(precision: str, device: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(200):
        m, k, n = (int(2 ** rng.uniform(0, 15)) for _ in range(3))
        problem = Problem(m, k, n, int(rng.integers(1, 4)), precision=precision, aligned=bool(rng.integers(2)))
        way = choose_way(problem, TABLE[device])
        choice = choose(problem, TABLE[device], replace(way, kernel="portable"))
        blocks = np.prod(choice.launch.grid)
        alone = choose(problem, TABLE[device], Way("portable"))
        assert (
            alone.join is None and alone.scratch_bytes == 0 and choice.way.splits * np.prod(alone.launch.grid) == blocks
        )
        # All of them run at once, and each has some of k; what they write fits the second-level cache.
        shared = choice.way.splits > 1
        assert not shared or (not choice.launch.after_previous and -(-k // 32) >= 8 * choice.way.splits)
        assert (choice.join is not None) == shared and choice.scratch_bytes <= 32 << 20
        for launch in (choice.launch, choice.join):
            assert launch is None or launch.refusal(TABLE[device]) is None
    assert choose_way(Problem(64, 2**15, 64, precision=precision, aligned=False), TABLE[device]).splits > 8
