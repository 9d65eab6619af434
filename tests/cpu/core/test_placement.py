"""Where host arrays are computed: by rates alone, for every device of the table."""

from __future__ import annotations

import logging
import math
import random

import pytest

import spectile
from spectile.core import device, placement
from spectile.core.devices import TABLE
from spectile.core.placement import Work

SLOW = sorted(name for name, one in TABLE.items() if one.fp64_divisor > 2)
FAST = sorted(set(TABLE) - set(SLOW))


def never():
    raise AssertionError("the cost is asked where there is no choice")


def best(work, name, cores=16):
    listed = [one for one in placement.candidates(work, TABLE[name], cores) if one.seconds is not None]
    return min(listed, key=lambda one: one.seconds).kernel


def random_work(rng, real):
    return Work(
        real, *(10 ** rng.uniform(0, 14) for _ in range(3)), steps=rng.uniform(1, 1e5), moved=rng.uniform(0, 1e9)
    )


@pytest.mark.parametrize("name", TABLE)
def test_more_of_anything_never_helps(name):
    rng = random.Random(1)
    for real in ("float32", "float64"):
        for _ in range(50):
            work, cores = random_work(rng, real), rng.randint(1, 128)
            cpu, cuda = placement.candidates(work, TABLE[name], cores)
            assert 0 < cpu.seconds < math.inf and (cuda.seconds is None or 0 < cuda.seconds < math.inf)
            assert placement.candidates(work, TABLE[name], cores + 1)[0].seconds <= cpu.seconds
            for field in Work._fields[1:]:
                more = work._replace(**{field: 2 * getattr(work, field)})
                for one, other in zip((cpu, cuda), placement.candidates(more, TABLE[name], cores), strict=True):
                    assert one.seconds is None or one.seconds <= other.seconds


def test_cores_read_side_by_side_until_memory_can_no_more():
    work = Work("float64", 0, 1e12, 0, 0, 0)
    one, two, *_, most, more = (
        placement.candidates(work, TABLE["H200"], cores)[0].seconds for cores in range(1, placement.MOST_CORES + 2)
    )
    assert two == pytest.approx(one / 2) and most == more == pytest.approx(one / placement.MOST_CORES)


@pytest.mark.parametrize("name", SLOW)
def test_slow_float64_keeps_float64_on_the_host(name):
    rng = random.Random(2)
    assert all(best(random_work(rng, "float64"), name, rng.randint(1, 128)) == "cpu" for _ in range(50))
    assert best(Work("float32", 1e13, 0, 0, 100, 1e8), name) == "cuda"


@pytest.mark.parametrize("name", FAST)
def test_the_link_and_the_launches_count(name):
    much = Work("float64", 1e13, 0, 0, 100, 1e8)
    assert best(much, name) == "cuda"
    assert best(much._replace(moved=1e12), name) == "cpu"
    assert best(much._replace(steps=1e7), name) == "cpu"
    assert best(Work("float64", 1e6, 0, 0, 1, 1e4), name) == "cpu"


def test_the_cost_is_asked_only_where_there_is_a_choice(monkeypatch):
    monkeypatch.setattr(device, "refusal", lambda: None)
    assert device.choose_backend("cpu", work=never) == "cpu"
    assert device.choose_backend("cuda", work=never) == "cuda"
    assert device.choose_backend("auto", True, work=never) == "cuda"
    assert device.backends("cpu", False, never) == device.backends("auto", True, never) == []
    monkeypatch.setattr(device, "refusal", lambda: "no device")
    monkeypatch.setattr(device, "unavailable_reason", lambda: "no device")
    assert device.choose_backend("auto", work=never) == "cpu"
    assert device.backends("auto", False, never) == []


def test_both_predictions_are_told(monkeypatch, caplog):
    monkeypatch.setattr(device, "refusal", lambda: None)
    monkeypatch.setattr(device, "describe", lambda: TABLE["A100"])
    with caplog.at_level(logging.DEBUG, "spectile.evd"):
        assert device.choose_backend("auto", False, "evd", lambda: Work("float64", 1e14, 0, 0, 1, 1)) == "cuda"
    (record,) = caplog.records
    assert "cpu" in record.getMessage() and TABLE["A100"].name in record.getMessage()


def test_the_configuration_shows_the_rates():
    found = spectile.show_config(mode="dicts")
    assert found["rates"]["cpu"] == {real: rate * found["cores"] for real, rate in placement.CORE_RATES.items()}
    shown = placement.rates(TABLE["RTX 4090"], 4)
    assert shown["cuda"]["float64"] is None and shown["cuda"]["float32"] > shown["cpu"]["float32"]
