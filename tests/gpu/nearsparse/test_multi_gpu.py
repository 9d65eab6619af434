"""SpAMM spread over several GPUs: to the bit the result of one, wherever the data lie.

On a machine with one GPU the same device stands for all; with more, every device takes part.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from spectile.nearsparse import api, distribute, spamm
from spectile.nearsparse.cuda import norms as gpu_norms
from spectile.nearsparse.cuda import repeated
from spectile.nearsparse.cuda.tuning import WGMMA
from spectile.nearsparse.multi import cut as gpu_multi_cut
from spectile.nearsparse.multi import from_device as gpu_multi_device
from spectile.nearsparse.multi import partition
from spectile.nearsparse.multi import run as gpu_multi
from spectile.nearsparse.types import Request

pytestmark = pytest.mark.gpu

DTYPES = {"fp16": "f2", "fp16c16": "f2", "fp32": "f4", "tf32x3": "f4", "fp64": "f8"}
OUTPUTS = {"fp16": "f4", "fp16c16": "f2", "fp32": "f4", "tf32x3": "f4", "fp64": "f8"}
PRECISIONS = list(DTYPES)
# The last has few tiles of C, which blocks share.
SHAPES = [(2100, 1031, 1500), (640, 512, 2304), (1, 40, 3), (200, 9000, 70)]


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    if count > 1:
        return list(range(min(count, 8)))
    listed = api._listed
    monkeypatch.setattr(api, "_listed", lambda asked, *more: asked if asked == [0, 0, 0] else listed(asked, *more))
    return [0, 0, 0]


def _random(rows: int, columns: int, dtype: str) -> Any:
    """Blocks whose norms decay from the diagonal, made on the first device."""
    import cupy

    i, j = cupy.arange(rows)[:, None] // 32, cupy.arange(columns)[None] // 32
    return (cupy.random.standard_normal((rows, columns)) * cupy.exp(-0.1 * abs(i - j))).astype(dtype)


def _tau(a: Any, b: Any, ratio: float = 0.3) -> float:
    return float(spamm(a, b, valid_ratio=ratio).tau)


def _planned(sizes: tuple[int, int, int], devices: list[int]) -> tuple[float, Any, Any, Any]:
    """A threshold, the product on one device, and parts of A and B whose plan is kept."""
    m, k, n = sizes
    a, b = _random(m, k, "f4"), _random(k, n, "f4")
    tau = _tau(a, b)
    one = spamm(a, b, tau=tau)
    parts_a, parts_b = distribute(a, b, tau, devices)
    spamm(parts_a, parts_b, tau=tau, devices=devices)
    return tau, one, parts_a, parts_b


def _finish(devices: list[int]) -> None:
    import cupy

    for index in set(devices):
        cupy.cuda.Device(index).synchronize()


def _same(parts: Any, wanted: Any) -> None:
    """Assert equal bits; poisoned entries are equal to nothing."""
    found = np.concatenate([part if isinstance(part, np.ndarray) else part.get() for part in parts])
    np.testing.assert_array_equal(found.view(f"u{found.itemsize}"), wanted.get().view(f"u{found.itemsize}"))


def _same_parts(parts: Any, wanted: Any) -> None:
    """Assert equal bits of a result in parts, complex or real."""
    real = f"f{wanted.dtype.itemsize // 2}" if wanted.dtype.kind == "c" else wanted.dtype
    _same([part.get().view(real) for part in parts], wanted.view(real))


def _poisoned(parts_a: Any, parts_b: Any, dtype: str) -> list[Any]:
    """C of parts, each on its device, full of NaN."""
    import cupy

    made = []
    for a, b in zip(parts_a, parts_b, strict=True):
        with a.device:
            made.append(cupy.full((len(a), b.shape[1]), cupy.nan, dtype))
    return made


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_placement_gives_the_bits_of_one_gpu(
    precision: str, shape: tuple[int, int, int], devices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy

    m, k, n = shape
    a, b = _random(m, k, DTYPES[precision]), _random(k, n, DTYPES[precision])
    tau = _tau(a, b)
    options: Any = {"tau": tau, "precision": precision, "alpha": 1.5}
    one = spamm(a, b, **options)

    for columns in (partition.PANEL_COLUMNS, 256):
        monkeypatch.setattr(partition, "PANEL_COLUMNS", columns)
        out = cupy.full((m, n), cupy.nan, OUTPUTS[precision])
        result = spamm(a, b, devices=devices, out=out, **options)
        assert result.c is out
        _same([out], one.c)

    parts_a, parts_b = distribute(a, b, tau, devices)
    parts = spamm(parts_a, parts_b, devices=devices, **options)
    assert [part.shape[0] for part in parts.c] == [part.shape[0] for part in parts_a]
    _same(parts.c, one.c)

    host = spamm(a.get(), b.get(), devices=devices, **options)
    assert isinstance(host.c, np.ndarray)
    _same([host.c], one.c)
    for other in (result, parts, host):
        assert other.valid_ratio == one.valid_ratio and other.executed_ratio == one.executed_ratio
        assert other.error_bound == pytest.approx(one.error_bound, rel=1e-6)
        assert other.error_bound_rel == pytest.approx(one.error_bound_rel, rel=1e-6)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_added_is_that_of_one_gpu(precision: str, devices: list[int]) -> None:
    import cupy

    m, k, n = 1100, 700, 1300
    a, b = _random(m, k, DTYPES[precision]), _random(k, n, DTYPES[precision])
    c = _random(m, n, OUTPUTS[precision])
    tau = _tau(a, b)
    options: Any = {"tau": tau, "precision": precision, "alpha": 1.5, "beta": -0.5}
    one = spamm(a, b, c=c, **options)

    out = cupy.full((m, n), cupy.nan, OUTPUTS[precision])
    result = spamm(a, b, c=c, devices=devices, out=out, **options)
    _same([out], one.c)
    out[...] = c
    _same([spamm(a, b, c=out, devices=devices, out=out, **options).c], one.c)
    host = spamm(a.get(), b.get(), c=c.get(), devices=devices, **options)
    _same([host.c], one.c)
    target = c.get()
    _same([spamm(a.get(), b.get(), c=target, out=target, devices=devices, **options).c], one.c)

    rows = distribute(a, b, tau, devices)
    ends = np.cumsum([0, *(len(part) for part in rows[0])])
    parts_c = []
    for part, first, last in zip(rows[0], ends[:-1], ends[1:], strict=True):
        with part.device:
            parts_c.append(cupy.asarray(c[first:last].get()))
    parts = spamm(*rows, c=parts_c, devices=devices, **options)
    _same(parts.c, one.c)
    # The bound depends on the C that was added, which the next product overwrites.
    assert parts.error_bound == pytest.approx(one.error_bound, rel=1e-6)
    again = spamm(*rows, c=parts_c, out=parts_c, devices=devices, **options)
    _same(again.c, one.c)
    for other in (result, parts, host, again):
        assert other.valid_ratio == one.valid_ratio and other.executed_ratio == one.executed_ratio
        assert other.error_bound == pytest.approx(one.error_bound, rel=1e-6)


@pytest.mark.parametrize("one_works", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_columns_on_their_gpus_give_the_bits_of_one_gpu(precision: str, one_works: bool, devices: list[int]) -> None:
    m, k, n = 128, 576, 256 * len(devices) + 300
    a, b = _random(m, k, DTYPES[precision]), _random(k, n, DTYPES[precision])
    if one_works:
        b[:, 256:] *= 1e-3  # some devices get no columns
    tau = _tau(a, b, 0.1 if one_works else 0.3)
    one = spamm(a, b, tau=tau, precision=precision)
    parts_a, parts_b = distribute(a, b, tau, devices, split="columns")
    assert sum(part.shape[1] for part in parts_b) == n
    out = _poisoned(parts_a, parts_b, OUTPUTS[precision])
    plan = gpu_multi.Resident(parts_a, parts_b, out, Request(precision, tau), split="columns")
    norms: Any = None
    for _ in range(3):
        for part in out:
            with part.device:
                part.fill(np.nan)
        norms = plan.run(parts_a, parts_b, out, tau)
        _finish(devices)
        _same([np.concatenate([part.get() for part in out], axis=1)], one.c)
    maps, whole = plan._whole(norms), gpu_norms.NormMaps(a, b, 32)
    whole()
    assert (maps.a == whole.a).all() and (maps.b == whole.b).all()
    found = spamm(parts_a, parts_b, tau=tau, precision=precision, devices=devices, split="columns")
    _same([np.concatenate([part.get() for part in found.c], axis=1)], one.c)
    assert found.valid_ratio == one.valid_ratio and found.error_bound == pytest.approx(one.error_bound, rel=1e-6)
    with pytest.raises(ValueError, match="every device holds all of b"):
        spamm(parts_a, parts_b, tau=tau, precision=precision, devices=devices)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_of_b_that_no_valid_product_needs_stay(
    precision: str, devices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy

    monkeypatch.setattr(partition, "shares", lambda parts, *_: (1 / parts,) * parts)
    monkeypatch.setattr(partition, "PANEL_COLUMNS", 256)
    monkeypatch.setattr(gpu_multi_device, "SPARED_BYTES", 0)
    m, k, n = 2000, 2500, 2200
    i, j = (cupy.arange(size) // 32 for size in (m, k))
    a = (cupy.random.standard_normal((m, k)) * cupy.exp(-0.2 * abs(i[:, None] - j[None]))).astype(DTYPES[precision])
    b = (cupy.random.standard_normal((k, n)) * cupy.exp(-0.2 * abs(j[:, None] - (cupy.arange(n) // 32)[None]))).astype(
        DTYPES[precision]
    )
    tau = _tau(a, b, 0.05)
    out = cupy.empty((m, n), OUTPUTS[precision])
    for turn in range(2):
        plan = gpu_multi.FromDevice(a, b, out, devices, Request(precision, tau))
        for part in plan._ring:
            with part.b.device:
                part.b.fill(np.nan)
        out.fill(cupy.nan)
        _finish(devices)
        plan()
        one = spamm(a, b, tau=tau, precision=precision)
        _same([out], one.c)
        sent = plan._reach[..., 1] - plan._reach[..., 0]
        assert (sent[0] >= sent[-1]).all() and sent.sum() < 0.8 * k * sent.size
        if turn == 0:
            # Other data need other rows.
            a[...] = a[::-1].copy()
            out.fill(cupy.nan)
    reach = gpu_multi_cut.reach(plan._norms, [(0, m)], [(0, n)], 0.0, k).get()
    assert reach.tolist() == [[[0, k]]]
    assert not gpu_multi_cut.reach(plan._norms, [(0, m)], [(0, n)], np.inf, k).get().any()


@pytest.mark.parametrize("shapes", [((9, 70, 90), (9, 90, 110)), ((2, 5, 96, 64), (64, 128)), ((64, 33), (7, 33, 65))])
@pytest.mark.parametrize("precision", ["fp16", "fp32", "fp64"])
def test_batches_give_the_bits_of_one_gpu(
    precision: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], devices: list[int]
) -> None:
    import cupy

    a, b = (cupy.random.standard_normal(shape).astype(DTYPES[precision]) for shape in shapes)
    shape = (*np.broadcast_shapes(shapes[0][:-2], shapes[1][:-2]), shapes[0][-2], shapes[1][-1])
    c = cupy.random.standard_normal(shape).astype(OUTPUTS[precision])
    for choice in ({"tau": 300.0}, {"valid_ratio": 0.4}, {"atol": 1e3}, {"rtol_factors": 0.1}):
        options: Any = choice | {"precision": precision, "alpha": 2.0, "beta": 0.5}
        one = spamm(a, b, c=c, **options)
        out = cupy.full(shape, cupy.nan, OUTPUTS[precision])
        found = spamm(a, b, c=c, devices=devices, out=out, **options)
        host = spamm(a.get(), b.get(), c=c.get(), devices=devices, **options)
        # The host searches with norms in float64: one tile product of a dozen more or less.
        np.testing.assert_allclose(host.valid_ratio, one.valid_ratio, atol=0.1)
        for other, bits in ((found, out), (host, host.c))[: 2 if "tau" in choice else 1]:
            np.testing.assert_array_equal(other.tau, one.tau)
            _same([bits], one.c)
            for name in ("valid_ratio", "executed_ratio", "error_bound", "error_bound_rel"):
                np.testing.assert_allclose(getattr(other, name), getattr(one, name), rtol=1e-5)


def test_batches_of_few_and_distributed_products(devices: list[int]) -> None:
    import cupy

    a, b = (cupy.random.standard_normal((2, *size)).astype("f4") for size in ((300, 200), (200, 400)))
    tau = 150.0
    one = spamm(a, b, tau=tau)
    found = spamm(a, b, tau=tau, devices=devices)
    _same([found.c], one.c)
    np.testing.assert_array_equal(found.valid_ratio, one.valid_ratio)
    _same([spamm(a.get(), b.get(), tau=tau, devices=devices).c], one.c)
    single = spamm(a[:1], b[:1], tau=tau, devices=devices)
    assert single.c.shape == (1, 300, 400) and single.valid_ratio.shape == (1,)
    a, b = (cupy.concatenate([x] * len(devices)) for x in (a, b))
    one = spamm(a, b, valid_ratio=0.5)
    parts_a, parts_b = distribute(a, b, tau, devices)
    parts = spamm(parts_a, parts_b, valid_ratio=0.5, devices=devices)
    assert [part.shape for part in parts.c] == [(len(part), 300, 400) for part in parts_a]
    _same(parts.c, one.c)
    np.testing.assert_array_equal(parts.tau, one.tau)
    # Batches that broadcast in both directions.
    a, b = (cupy.random.standard_normal(shape).astype("f4") for shape in ((3, 1, 40, 50), (1, 4, 50, 60)))
    _same([spamm(a, b, tau=10.0, devices=devices).c], spamm(a, b, tau=10.0).c)
    _same([spamm(a.get(), b.get(), tau=10.0, devices=devices).c], spamm(a, b, tau=10.0).c)


@pytest.mark.parametrize("block", [16, 64, 128])
def test_other_blocks_and_strict(block: int, devices: list[int]) -> None:
    a, b = _random(1500, 700, "f4"), _random(700, 1100, "f4")
    tau = float(spamm(a, b, valid_ratio=0.4, block=block).tau)
    for strict in (False, True):
        one = spamm(a, b, tau=tau, block=block, strict=strict)
        _same([spamm(a, b, tau=tau, block=block, strict=strict, devices=devices).c], one.c)
        _same([spamm(a.get(), b.get(), tau=tau, block=block, strict=strict, devices=devices).c], one.c)


def test_a_plan_of_resident_operands_is_called_again_with_new_data_and_captured(devices: list[int]) -> None:
    import cupy

    a, b = _random(2048, 1024, "f4"), _random(1024, 1024, "f4")
    tau = _tau(a, b)
    parts_a, parts_b = distribute(a, b, tau, devices)
    out = _poisoned(parts_a, parts_b, "f4")
    plan = gpu_multi.Resident(parts_a, parts_b, out, Request("fp32", tau))

    def poison() -> None:
        for part in out:
            with part.device:
                part.fill(cupy.nan)
        _finish(devices)

    for _ in range(3):
        for part in parts_a:
            with part.device:
                part[...] = part[::-1].copy()
        poison()
        assert plan.run(parts_a, parts_b, out, tau) is not None
        _finish(devices)
        whole = np.concatenate([part.get() for part in parts_a])
        _same(out, spamm(cupy.asarray(whole), b, tau=tau).c)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        norms = plan.run(parts_a, parts_b, out, tau)
        graph = stream.end_capture()
        assert norms is not None
        poison()
        graph.launch(stream)
    stream.synchronize()
    _same(out, spamm(cupy.asarray(whole), b, tau=tau).c)


@pytest.mark.parametrize("precision", [*PRECISIONS, "complex64"])
def test_repeated_calls_of_parts_run_from_one_plan(precision: str, devices: list[int]) -> None:
    import cupy

    sizes, dtype = [(2100, 1024, 1536), (640, 512, 2304), (300, 70, 90)], DTYPES.get(precision, "c8")
    repeated._plans.clear()
    given = []
    for m, k, n in sizes:
        for _ in range(2):
            a, b = (_random(*size, "f4").astype(dtype) for size in ((m, k), (k, n)))
            tau = _tau(a, b)
            given.append((distribute(a, b, tau, devices), tau, spamm(a, b, tau=tau, precision=precision, alpha=1.5)))
    # Other addresses and thresholds in one layout, and other layouts between.
    for turn in range(3):
        for (parts_a, parts_b), tau, one in given[:: (-1) ** turn]:
            options: Any = {"tau": tau, "precision": precision, "alpha": 1.5, "devices": devices}
            out = _poisoned(parts_a, parts_b, OUTPUTS.get(precision, "c8"))
            _finish(devices)
            found = spamm(parts_a, parts_b, out=out, **options)
            assert found.c is out
            _same_parts(out, one.c)
            _same_parts(spamm(parts_a, parts_b, **options).c, one.c)
            assert (found.tau, found.valid_ratio) == (one.tau, one.valid_ratio)
            assert found.executed_ratio == one.executed_ratio
            assert found.error_bound == pytest.approx(one.error_bound, rel=1e-6)
            assert found.error_bound_rel == pytest.approx(one.error_bound_rel, rel=1e-6)
    kept = [plan for plan in repeated._plans.values() if isinstance(plan, gpu_multi.Resident)]
    assert len(sizes) <= len(kept) <= 4 * len(sizes)
    # Written over while the call is under way: the result is of what they held.
    (parts_a, parts_b), tau, one = given[0]
    out = _poisoned(parts_a, parts_b, OUTPUTS.get(precision, "c8"))
    _finish(devices)
    for _ in range(5):
        spamm(parts_a, parts_b, tau=tau, precision=precision, alpha=1.5, devices=devices, out=out)
    for part in parts_a:
        with part.device:
            part.fill(0)
    _same_parts(out, one.c)
    # C in the place of all of B, which is read while C is written.
    square = _random(768, 768, dtype if dtype != "c8" else "f4").astype(dtype)
    tau = _tau(square, square)
    one = spamm(square, square, tau=tau, precision=precision)
    if one.c.dtype == square.dtype:
        parts_a, parts_b = distribute(square, square, tau, devices)
        over = [part[: len(mine)] for mine, part in zip(parts_a, parts_b, strict=True)]
        for _ in range(2):
            _same_parts(spamm(parts_a, parts_b, tau=tau, precision=precision, devices=devices, out=over).c, one.c)
            for part in parts_b:
                with part.device:
                    part[...] = cupy.asarray(square.get())
    assert cupy.cuda.Device().id == devices[0]


def test_parts_on_streams_and_threads(devices: list[int]) -> None:
    import cupy

    tau, one, parts_a, parts_b = _planned((1500, 700, 900), devices)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for turn in range(20):
                streams = []
                for index in dict.fromkeys(devices):
                    with cupy.cuda.Device(index):
                        streams.append(cupy.cuda.Stream(non_blocking=True))
                        if (turn + seed) % 3:
                            streams[-1].use()
                found = spamm(parts_a, parts_b, tau=tau, devices=devices)
                # All of it is there for what follows on the first device's stream.
                with cupy.cuda.Device(devices[0]):
                    cupy.cuda.get_current_stream().synchronize()
                _same_parts(found.c, one.c)
                assert found.valid_ratio == one.valid_ratio
                for index in dict.fromkeys(devices):
                    with cupy.cuda.Device(index):
                        cupy.cuda.Stream.null.use()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_a_device_that_lacks_memory_leaves_the_others_in_order(devices: list[int]) -> None:
    import cupy

    tau, one, parts_a, parts_b = _planned((4096, 4096, 4096), devices)
    pool = cupy.get_default_memory_pool()
    with cupy.cuda.Device(devices[-1]):
        pool.free_all_blocks()
        before = pool.get_limit()
        pool.set_limit(pool.used_bytes() + 4096)
    try:
        with pytest.raises(MemoryError):
            spamm(parts_a, parts_b, tau=tau, devices=devices)
    finally:
        with cupy.cuda.Device(devices[-1]):
            pool.set_limit(before)
    assert cupy.cuda.Device().id == devices[0]
    _same_parts(spamm(parts_a, parts_b, tau=tau, devices=devices).c, one.c)


def test_parts_of_any_kind(devices: list[int]) -> None:
    class Exported:
        def __init__(self, array: Any) -> None:
            self.array = array
            self.__cuda_array_interface__ = array.__cuda_array_interface__
            self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    a, b = _random(1200, 300, "f4"), _random(300, 700, "f4")
    tau = _tau(a, b)
    one = spamm(a, b, tau=tau)
    parts_a, parts_b = distribute(a, b, tau, devices)
    _same(spamm([Exported(x) for x in parts_a], [Exported(x) for x in parts_b], tau=tau, devices=devices).c, one.c)
    torch = pytest.importorskip("torch")
    found = spamm(*([torch.from_dlpack(x) for x in parts] for parts in (parts_a, parts_b)), tau=tau, devices=devices).c
    assert all(isinstance(part, torch.Tensor) for part in found)
    _same([part.cpu().numpy() for part in found], one.c)


def test_memory_is_that_of_the_operands(devices: list[int]) -> None:
    import cupy

    def used() -> dict[int, int]:
        found = {}
        for index in dict.fromkeys(devices):
            with cupy.cuda.Device(index):
                found[index] = cupy.get_default_memory_pool().used_bytes()
        return found

    n = 4096
    a, b = _random(n, n, "f4"), _random(n, n, "f4")
    tau, out = _tau(a, b), cupy.empty((n, n), "f4")
    before = used()
    plan = gpu_multi.FromDevice(a, b, out, devices, Request("fp32", tau))
    plan()
    copies, part = dict.fromkeys(before, 0), None
    for part in plan._ring:
        copies[part.a.device.id] += part.a.nbytes + part.b.nbytes
    # On the first device inputs and C were there before; the others hold rows of A, all of B, and no C.
    there = dict.fromkeys(before, 0) | {devices[0]: a.nbytes + b.nbytes + out.nbytes}
    assert all(used()[i] - before[i] - copies[i] <= 0.05 * (copies[i] + there[i]) for i in before)
    del plan, part
    # A result keeps nothing on other devices but norm maps.
    before = used()
    found = [spamm(a, b, tau=tau, devices=devices), spamm(a.get(), b.get(), tau=tau, devices=devices)]
    there = dict.fromkeys(before, 0) | {devices[0]: found[0].c.nbytes}
    assert all(used()[i] - before[i] - there[i] <= 0.1 * a.nbytes for i in before)
    assert found[0].valid_ratio == found[1].valid_ratio
    del found
    parts_a, parts_b = distribute(a, b, tau, devices)
    before = used()
    resident = spamm(parts_a, parts_b, tau=tau, devices=devices)
    for index in before:
        mine = [x for x in (*parts_a, *parts_b, *resident.c) if x.device.id == index]
        results = [x for x in resident.c if x.device.id == index]
        extra = used()[index] - before[index] - sum(x.nbytes for x in results)
        assert extra <= 0.05 * sum(x.nbytes for x in mine)


def test_rows_are_cut_by_their_work(devices: list[int]) -> None:
    a, b = _random(4096, 1024, "f4"), _random(1024, 1024, "f4")
    a[: 4096 * 3 // 4] *= 1e-6
    tau = float(spamm(a[4096 * 3 // 4 :], b, valid_ratio=0.3).tau)
    maps = gpu_norms.NormMaps(a, b, 32)
    maps()
    unit, work = partition.ROW_UNIT, gpu_multi_cut.row_work(maps, tau, 4096)
    assert not work[: 4096 * 3 // 4 // unit].any() and work[4096 * 3 // 4 // unit :].any()
    norms_a, norms_b = maps.a.get(), maps.b.get()
    high = norms_a.reshape(-1, unit // 32, norms_a.shape[1]).max(axis=1)
    wide = norms_b.reshape(-1, 8, norms_b.shape[1]).max(axis=1)
    count = (high[:, None] * wide[None] >= np.float32(tau)).sum(axis=(1, 2))
    np.testing.assert_allclose(work, count / (high.shape[0] * wide.size))
    parts, _ = distribute(a, b, tau, devices)
    assert len(parts[0]) > 4096 * 3 // 4
    np.testing.assert_allclose(gpu_multi_cut.column_work(maps, tau, 1024).sum(), work.sum())


def test_searches_on_several_gpus(devices: list[int]) -> None:
    a, b = _random(900, 800, "f8"), _random(800, 1000, "f8")
    wanted = spamm(a, b, valid_ratio=0.3)
    assert spamm(a, b, valid_ratio=0.3, devices=devices).tau == wanted.tau
    assert spamm(a.get(), b.get(), valid_ratio=0.3, devices=devices).valid_ratio == pytest.approx(0.3, abs=0.01)
    one = float(spamm(a, b, rtol_factors=1e-3, method="spamm").tau)
    assert spamm(a, b, rtol_factors=1e-3, devices=devices).tau == pytest.approx(one)
    parts = distribute(a, b, wanted.tau, devices)
    assert spamm(*parts, valid_ratio=0.3, devices=devices).tau == wanted.tau
    assert spamm(*parts, rtol_factors=1e-3, devices=devices).tau == pytest.approx(one)
    host = spamm(a.get(), b.get(), rtol_factors=1e-3, devices=devices)
    assert host.error_bound <= 1e-3 * float(np.linalg.norm(a.get()) * np.linalg.norm(b.get())) * (1 + 1e-9)


def test_products_from_the_host_tell_how_far_they_are(devices: list[int], impatient: pytest.LogCaptureFixture) -> None:
    a, b = _random(900, 800, "f8"), _random(800, 1000, "f8")
    told = spamm(a.get(), b.get(), tau=_tau(a, b), devices=devices)
    lines = [record.getMessage() for record in impatient.records]
    assert lines and lines[-1].startswith("spamm: 100 % of")
    impatient.set_level("WARNING", "spectile.progress")
    impatient.clear()
    _same([told.c], spamm(a, b, tau=_tau(a, b)).c)
    assert not impatient.records


def test_blocks_of_rows_where_memory_is_short() -> None:
    a, b = _random(3000, 500, "f4"), _random(500, 700, "f4")
    tau = _tau(a, b)
    one = spamm(a, b, tau=tau)
    out = np.full((3000, 700), np.nan, "f4")
    needed = 4 * 500 * 700 + (9 << 20)
    asked = Request("fp32", tau)
    plan = gpu_multi.FromHost(a.get(), b.get(), out, [0], asked, memory_bytes=needed + 4 * 2 * 1200 * 300)
    plan()
    plan.wait()
    assert len(plan.parts[0].rows) > 5
    _same([out], one.c)
    with pytest.raises(MemoryError, match=r"needs [\d,]+ bytes of device memory"):
        gpu_multi.FromHost(a.get(), b.get(), out, [0], asked, memory_bytes=1000)


def test_memory_that_a_device_lacks_is_named(devices: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    monkeypatch.setattr(partition, "shares", lambda parts, *_: (1 / parts,) * parts)
    a, b = _random(2048, 4096, "f4"), _random(4096, 2048, "f4")
    tau, out = _tau(a, b), cupy.empty((2048, 2048), "f4")
    pool = cupy.get_default_memory_pool()
    with cupy.cuda.Device(devices[-1]):
        pool.free_all_blocks()
        before = pool.get_limit()
        pool.set_limit(pool.used_bytes() + (4 << 20))
    try:
        with pytest.raises(MemoryError, match=r"part on device \d+ needs [\d,]+ bytes"):
            gpu_multi.FromDevice(a, b, out, devices, Request("fp32", tau))
        with pytest.raises(MemoryError, match=r"copy on device \d+ needs [\d,]+ bytes"):
            distribute(a, b, tau, devices)
    finally:
        with cupy.cuda.Device(devices[-1]):
            pool.set_limit(before)


def test_host_matrices_that_do_not_fit_are_streamed() -> None:
    import cupy

    a, b = _random(4096, 512, "f4"), _random(512, 4096, "f4")
    tau = _tau(a, b)
    wanted, host_a, host_b = spamm(a, b, tau=tau).c.get(), a.get(), b.get()
    del a, b
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    # Small arrays in large pieces, which the pool can neither give back nor use for a large array.
    pieces = [cupy.empty(16 << 20, "u1") for _ in range(2)]
    pieces.clear()
    small = [cupy.empty(4096, "u1") for _ in range(2)]
    before = pool.get_limit()
    pool.set_limit(pool.total_bytes() + (48 << 20))
    try:
        found = spamm(host_a, host_b, tau=tau).c
        assert len(small) == 2
    finally:
        pool.set_limit(before)
    np.testing.assert_array_equal(found, wanted)


def test_wrong_devices_and_operands_are_named(devices: list[int]) -> None:
    import cupy

    a, b = _random(100, 100, "f4"), _random(100, 100, "f4")
    visible = cupy.cuda.runtime.getDeviceCount()
    for wrong in (visible + 1, [visible], [], -1):
        with pytest.raises(ValueError, match="visible"):
            spamm(a, b, tau=1.0, devices=wrong)
    with pytest.raises(ValueError, match="names device 0 twice"):
        spamm(a, b, tau=1.0, devices=[0, 0])
    with pytest.raises(TypeError, match="are no GPUs"):
        spamm(a, b, tau=1.0, devices="0")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="beta"):
        spamm(a, b, tau=1.0, devices=devices, beta=1.0)
    with pytest.raises(ValueError, match="c lies elsewhere"):
        spamm(a, b, tau=1.0, devices=devices, beta=1.0, c=a.get())
    with pytest.raises(ValueError, match="lists"):
        spamm([a], [b, b], tau=1.0, devices=devices)
    with pytest.raises(ValueError, match="GPU arrays"):
        spamm([a.get()] * len(devices), [b] * len(devices), tau=1.0, devices=devices)
    with pytest.raises(ValueError, match="distributed by columns"):
        spamm(a, b, tau=1.0, devices=devices, split="columns")
    with pytest.raises(ValueError, match="without entries"):
        spamm(cupy.zeros((2, 4, 4)), cupy.zeros((4, 0)), tau=1.0, devices=devices)
    parts = distribute(a, b, 1.0, devices)
    some = next(part for part in parts[0] if len(part))
    with some.device:
        some[3, 5] = np.nan
    with pytest.raises(ValueError, match="a holds NaN"):
        spamm(*parts, valid_ratio=0.5, devices=devices)
    host = a.get()
    host[3, 5] = np.nan
    with pytest.raises(ValueError, match="a holds NaN"):
        spamm(host, b.get(), tau=1.0, devices=devices)
    with pytest.raises(ValueError, match="overflows float16"):
        spamm(np.full((64, 64), 60000, "f2"), np.ones((64, 64), "f2"), tau=0.0, precision="fp16c16", devices=devices)


def test_cuts_are_multiples_of_the_tiles() -> None:
    assert partition.ROW_UNIT % 128 == 0
    assert all(partition.COLUMN_UNIT % shape.tile_n == 0 for shape in WGMMA.values())


def test_out_that_overlaps_an_operand_and_what_is_added(devices: list[int]) -> None:
    import cupy

    n = 700
    a, b, c = (_random(n, n, "f4") for _ in range(3))
    options: Any = {"tau": _tau(a, b), "beta": 300.0}
    square, one = spamm(a, b, c=a, **options), spamm(a, b, c=c, **options)
    longer = cupy.concatenate([c, cupy.zeros((1, n), "f4")])
    for there in (True, False):
        x, y, place, shifted = ((z.copy() if there else z.get()) for z in (a, b, a, longer))
        found = spamm(place, y, c=place, out=place, devices=devices, **options)
        assert found.c is place and found.error_bound == pytest.approx(square.error_bound, rel=1e-4)
        _same([place], square.c)
        found = spamm(x, y, c=shifted[:-1], out=shifted[1:], devices=devices, **options)
        assert found.error_bound == pytest.approx(one.error_bound, rel=1e-4)
        _same([shifted[1:]], one.c)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_complex_products_give_the_bits_of_one_gpu(dtype: str, devices: list[int]) -> None:
    import cupy

    m, k, n, real = 700, 260, 900, {"c8": "f4", "c16": "f8"}[dtype]
    a, b, c = (_random(*size, real) + 1j * _random(*size, real) for size in ((m, k), (k, n), (m, n)))
    tau = _tau(a, b)
    for options in ({"alpha": 1.5}, {"beta": -0.5, "c": c}):
        more: Any = {"tau": tau} | options
        one = spamm(a, b, **more)
        wide = a.astype("c16") @ b.astype("c16") * options.get("alpha", 1.0) + c * options.get("beta", 0.0)
        assert float(cupy.linalg.norm(one.c - wide)) <= one.error_bound
        out = cupy.full((m, n), cupy.nan, dtype)
        found = spamm(a, b, out=out, devices=devices, **more)
        assert found.c is out
        host = spamm(a.get(), b.get(), devices=devices, **more | ({"c": c.get()} if "c" in options else {}))
        assert isinstance(host.c, np.ndarray) and host.c.dtype == dtype
        for other in (found.c, host.c):
            bits = other if isinstance(other, np.ndarray) else other.get()
            np.testing.assert_array_equal(bits.view(real), one.c.get().view(real))
        for other in (found, host):
            assert other.valid_ratio == one.valid_ratio and other.executed_ratio == one.executed_ratio
            assert other.error_bound == pytest.approx(one.error_bound, rel=1e-6)
    one = spamm(a, b, tau=tau)
    for split, axis in (("rows", 0), ("columns", 1)):
        parts = distribute(a, b, tau, devices, split=split)  # type: ignore[arg-type]
        assert all(part.dtype == dtype for listed in parts for part in listed)
        spread = spamm(*parts, tau=tau, devices=devices, split=split)  # type: ignore[arg-type]
        joined = np.concatenate([part.get() for part in spread.c], axis=axis)
        np.testing.assert_array_equal(joined.view(real), one.c.get().view(real))
        assert spread.valid_ratio == one.valid_ratio
    for wanted in (
        {"valid_ratio": 0.3},
        {"rtol_factors": 1e-2},
        {"atol": 1e-2 * float(cupy.linalg.norm(a) * cupy.linalg.norm(b))},
    ):
        told = spamm(a, b, method="spamm", **wanted)  # type: ignore[arg-type]
        assert spamm(a, b, devices=devices, **wanted).tau == pytest.approx(told.tau)  # type: ignore[arg-type]
        assert spamm(a.get(), b.get(), devices=devices, **wanted).tau == pytest.approx(told.tau, rel=0.2)  # type: ignore[arg-type]
    stack = cupy.stack([a[:100, :70]] * 5), b[:70, :90]
    whole = spamm(*stack, tau=tau / 4)
    spread = spamm(*stack, tau=tau / 4, devices=devices)
    np.testing.assert_array_equal(spread.c.get().view(real), whole.c.get().view(real))
    np.testing.assert_array_equal(spread.valid_ratio, whole.valid_ratio)
