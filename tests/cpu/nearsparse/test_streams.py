"""SpAMM over several GPUs on a stand-in for CUDA that runs streams in any order their events allow.

Kernels are NumPy, memory is the host's, and work waits in a queue for each stream.  A missing event shows as a wrong
result under some order; what CUDA refuses between devices (an event recorded on another device's stream, a launch on a
stream of another device) raises here, too.
"""

import ctypes
import dataclasses
import itertools
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from spectile.core import device as core_device
from spectile.core.devices import TABLE
from spectile.core.progress import PARTS, Progress
from spectile.nearsparse.cuda import choose as cuda_choose
from spectile.nearsparse.cuda import norms as cuda_norms
from spectile.nearsparse.cuda import parts
from spectile.nearsparse.cuda import product as cuda_product
from spectile.nearsparse.multi import from_device as gpu_multi_device
from spectile.nearsparse.multi import from_host as gpu_multi_host
from spectile.nearsparse.multi import partition
from spectile.nearsparse.multi import resident as gpu_multi_resident
from spectile.nearsparse.multi import run as gpu_multi
from spectile.nearsparse.multi.batch import Batch, partitioned
from spectile.nearsparse.types import Request
from spectile_study.cases.spamm import reference


class Machine:
    """Queues of all streams; a stream is (device, number), the default one has number 0."""

    def __init__(self, seed, peers, ranked=False):
        self.peers, self.ranked = peers, ranked
        self.random = np.random.default_rng(seed)
        self.queues, self.recorded, self.done = {}, {}, {}
        self.device, self.current = 0, {}
        self.numbers = itertools.count(1)

    def stream_of(self, pointer):
        """The default stream is that of the current device."""
        return (self.device, 0) if pointer == 0 else next(key for key in self.queues if key[1] == pointer)

    def enqueue(self, stream, *operation):
        self.queues.setdefault(stream, []).append(operation)

    def launch(self, function, *arrays, written=None):
        stream = self.current.get(self.device, (self.device, 0))
        assert stream[0] == self.device, "a launch on a stream of another device"
        assert all(array.home == self.device for array in arrays), "a kernel reads another device's memory"
        assert written is None or self.peers or written.home == self.device, "a kernel writes where it cannot reach"
        self.enqueue(stream, "run", function)

    def record(self, event, stream):
        if event.device != stream[0]:
            raise RuntimeError("cudaErrorInvalidResourceHandle")
        self.recorded[event] = self.recorded.get(event, 0) + 1
        self.enqueue(stream, "record", event, self.recorded[event])

    def wait(self, event, stream):
        self.enqueue(stream, "wait", event, self.recorded.get(event, 0))

    def run_until_idle(self, event=None):
        """Run all, the next of any queue that may go on; where `ranked`, some queues starve until others are empty.

        With an event, end when it is there: the host goes on.
        """
        queues = list(self.queues.values())
        self.random.shuffle(queues)
        while any(queues) and (event is None or self.done.get(event, 0) < self.recorded[event]):
            ready = [
                queue
                for queue in queues
                if queue and not (queue[0][0] == "wait" and self.done.get(queue[0][1], 0) < queue[0][2])
            ]
            assert ready, "the streams wait for one another"
            kind, what, *number = ready[0 if self.ranked else self.random.integers(len(ready))].pop(0)
            if kind == "run":
                what()
            elif kind == "record":
                self.done[what] = number[0]


class Array(np.ndarray):
    """An array that knows its device."""

    home = 0

    def __array_finalize__(self, source):
        self.home = getattr(source, "home", 0)

    @property
    def device(self):
        return Device(self.home)

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data, memset_async=lambda *_: MACHINE.launch(lambda: None, self))


class Device:
    def __init__(self, index=None):
        self.id = MACHINE.device if index is None else index

    def __enter__(self):
        self.before, MACHINE.device = MACHINE.device, self.id

    def __exit__(self, *_):
        MACHINE.device = self.before

    def __eq__(self, other):
        return self.id == other.id


class Event:
    def __init__(self, disable_timing=False):
        self.device = MACHINE.device

    def synchronize(self):
        MACHINE.run_until_idle(self)

    @property
    def done(self):
        return MACHINE.done.get(self, 0) >= MACHINE.recorded.get(self, 0)


class Stream:
    def __init__(self, non_blocking=False, ptr=None):
        self.ptr = next(MACHINE.numbers) if ptr is None else ptr
        if ptr is None:
            MACHINE.queues[MACHINE.device, self.ptr] = []

    def __enter__(self):
        stream = MACHINE.stream_of(self.ptr)
        assert stream[0] == MACHINE.device, "a stream of another device"
        self.before = MACHINE.current.get(MACHINE.device)
        MACHINE.current[MACHINE.device] = stream

    def __exit__(self, *_):
        MACHINE.current[MACHINE.device] = self.before or (MACHINE.device, 0)

    def record(self, event):
        MACHINE.record(event, MACHINE.stream_of(self.ptr))

    def wait_event(self, event):
        MACHINE.wait(event, MACHINE.stream_of(self.ptr))

    def is_capturing(self):
        return False

    def synchronize(self):
        MACHINE.run_until_idle()


def copy_rows(into, pitch, out_of, step, width, rows, kind, pointer):
    def copy():
        for row in range(rows):
            ctypes.memmove(into + row * pitch, out_of + row * step, width)

    MACHINE.enqueue(MACHINE.stream_of(pointer), "run", copy)


def empty(shape, dtype="float64"):
    array = np.full(shape, np.nan, dtype).view(Array)
    array.home = MACHINE.device
    return array


class NormMaps:
    def __init__(self, a, b, block, into=None, *, paired=False):
        self.block, self.k_blocks, self.paired = block, -(-a.shape[-1] // block), paired
        self.operands = a, b
        sizes = (*a.shape[:-2], -(-a.shape[-2] // block)), (*b.shape[:-2], -(-b.shape[-1] // block))
        self.a, self.b = into or (empty((*size, self.k_blocks)) for size in sizes)
        self.counter = empty((1,))

    def of(self, item):
        return tuple(norms[i] if norms.ndim == 3 else norms for norms, i in zip((self.a, self.b), item, strict=True))

    def __call__(self):
        def measure():
            a, b = self.operands
            for whole, matrices in ((self.a, a), (self.b, np.swapaxes(b, -1, -2))):
                stacks = (x if x.ndim == 3 else x[None] for x in (whole, matrices))
                for norms, matrix in zip(*stacks, strict=True):
                    for i, k in np.ndindex(*norms.shape):
                        tile = matrix[i * self.block : (i + 1) * self.block, k * self.block : (k + 1) * self.block]
                        norms[i, k] = np.sqrt((np.asarray(tile, float) ** 2).sum())
            if self.paired:
                pair(self.a, 1)
                pair(self.b, 2)

        MACHINE.launch(measure, self.a, self.b, *self.operands)


def pair(norms, height):
    """Give real tiles the norm of their complex one; entries of B's real form are there twice."""
    for i in range(0, norms.shape[-2], height):
        for k in range(0, norms.shape[-1], 2):
            tile = norms[..., i : i + height, k : k + 2]
            tile[...] = np.sqrt((np.asarray(tile) ** 2).sum(axis=(-2, -1), keepdims=True) / height)


class Product:
    grain = (1, 1, 1)

    def __init__(self, a, b, out, maps, tau, *, precision, alpha=1.0, beta=0.0, c=None, way=None):
        self.operands, self.maps, self.tau, self.beta, self.c = (a, b, out), maps, tau, beta, c

    def __call__(self):
        a, b, out = self.operands
        assert self.c is None or MACHINE.peers or self.c.home == MACHINE.device, "a kernel reads what it cannot reach"

        def multiply():
            items = range(len(out)) if out.ndim == 3 else [...]
            for item in items:
                added = 0 if self.c is None else self.beta * self.c[item]
                index = [item if x.ndim == 3 else ... for x in (a, b)]
                norms = [x[i] for x, i in zip((self.maps.a, self.maps.b), index, strict=True)]
                tau = self.tau if isinstance(self.tau, float) else self.tau[item]
                out[item] = added + valid_product(a[index[0]], b[index[1]], norms, tau, self.maps.block)

        MACHINE.launch(multiply, a, b, self.maps.a, self.maps.b, written=out)


class CallPlan:
    """One GPU's part: norms and the product on the current stream, which is that of the part's device."""

    grain = (1, 1, 1)

    def __init__(self, a, b, out, request, c=None, way=None):
        self.request = request
        assert way == cuda_choose.Way("portable") and MACHINE.device == a.home == b.home == out.home

    def run(self, a, b, out, value, c=None):
        request = self.request
        x, y, z, added = a, b, out, c
        if request.arithmetic.parts == 2:
            x, z, added = (None if one is None else parts.real_view(one) for one in (a, out, c))
            y = empty((2 * len(b), 2 * b.shape[1]))
            MACHINE.launch(lambda: np.copyto(y, parts.expanded(np.asarray(b))), y, b)
        maps = NormMaps(x, y, request.block, paired=y is not b)
        maps()
        Product(x, y, z, maps, value, precision=request.precision, beta=request.beta, c=added)()
        maps.value, maps.end = value, (MACHINE.device, sys.modules["cupy"].cuda.get_current_stream(), None)
        return maps


def valid_product(a, b, norms, tau, block):
    out = np.zeros((len(a), b.shape[1]))
    for k in range(norms[0].shape[1]):
        valid = ~(norms[0][:, k, None] * norms[1][None, :, k] < tau)
        mask = np.repeat(np.repeat(valid, block, 0), block, 1)[: out.shape[0], : out.shape[1]]
        inner = slice(k * block, (k + 1) * block)
        out += np.where(mask, a[:, inner] @ b[inner], 0)
    return out


def reach(norms, parts, panels, tau, depth):
    """Which rows of each panel are needed, by the valid products themselves."""
    MACHINE.run_until_idle()  # the host waits for them
    found = np.zeros((len(parts), len(panels), 2), np.int32)
    for number, (start, _) in enumerate(parts):
        for panel, (first, last) in enumerate(panels):
            high = norms.a[start // 32 : -(-parts[-1][1] // 32)]
            valid = ~(high[:, None] * norms.b[None, first // 32 : -(-last // 32)] < tau)
            needed = np.flatnonzero(valid.any(axis=(0, 1)))
            found[number, panel] = (32 * needed[0], min(32 * needed[-1] + 32, depth)) if needed.size else (0, 0)
    return SimpleNamespace(get=lambda: found)


MACHINE = Machine(0, peers=True)


@pytest.fixture(params=[(0, True), (1, True, True), (2, False), (3, False, True)])
def machine(request, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "MACHINE", Machine(*request.param))
    runtime = SimpleNamespace(
        memcpyDefault=4,
        memcpyAsync=lambda into, out_of, size, kind, stream: copy_rows(into, size, out_of, size, size, 1, kind, stream),
        memcpy2DAsync=copy_rows,
        getDevice=lambda: MACHINE.device,
        setDevice=lambda index: setattr(MACHINE, "device", index),
        deviceCanAccessPeer=lambda *_: MACHINE.peers,
        _deviceEnsurePeerAccess=lambda _: None,
    )

    def current(index=-1):
        return Stream(ptr=MACHINE.current.get(MACHINE.device if index < 0 else index, (0, 0))[1])

    cuda = SimpleNamespace(runtime=runtime, Device=Device, Event=Event, Stream=Stream, get_current_stream=current)
    fake = SimpleNamespace(cuda=cuda, empty=empty, zeros=lambda *a: empty(*a[:1]), uint32="uint32")
    fake.asarray, fake.may_share_memory = np.asarray, np.may_share_memory
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    for module, replaced in (
        (cuda_norms, {"NormMaps": NormMaps}),
        (cuda_product, {"Product": Product}),
        (cuda_choose, {"choose_way": lambda *_: cuda_choose.Way("portable")}),
        (core_device, {"describe": lambda: TABLE["H200"]}),
        (gpu_multi_resident, {"CallPlan": CallPlan, "NormMaps": NormMaps}),
        (gpu_multi_device, {"row_work": lambda maps, tau, rows: np.ones(-(-rows // 128))}),
        (gpu_multi_device, {"reach": reach, "SPARED_BYTES": 1 << 60}),
    ):
        for name, value in replaced.items():
            monkeypatch.setattr(module, name, value, raising=False)
    return MACHINE


def integers(rows, columns, device=0):
    """Small integers, whose products are exact in any order."""
    with Device(device):
        matrix = empty((rows, columns))
    matrix[...] = MACHINE.random.integers(-4, 5, (rows, columns))
    return matrix


def wanted(a, b, tau, c=0):
    with Device(0):
        plain_a, plain_b = (np.array(x).view(Array) for x in (a, b))
        maps = NormMaps(plain_a, plain_b, 32)
        maps()
        MACHINE.run_until_idle()
    return (
        valid_product(np.asarray(plain_a), np.asarray(plain_b), [np.asarray(maps.a), np.asarray(maps.b)], tau, 32) + c
    )


TAU, M, K, N = 7000.0, 600, 100, 700


@pytest.fixture
def asked(machine):
    """With beta where some queues starve within reach, and where none do out of reach."""
    return Request("fp64", TAU, beta=3.0 if machine.peers == machine.ranked else 0.0)


def empty_parts(parts_a, parts_b):
    """C of parts, each on its device."""
    made = []
    for a, b in zip(parts_a, parts_b, strict=True):
        with Device(a.home):
            made.append(empty((len(a), b.shape[1])))
    return made


def seen_after(plan, out):
    """Call a plan; return what a kernel that follows on the first device's current stream finds in `out`."""
    seen = []
    plan()
    with Device(out.home):
        MACHINE.launch(lambda: seen.append(np.array(out)), out)
    MACHINE.run_until_idle()
    return seen[0]


def added(asked, device=0, shape=(M, N)):
    """What beta multiplies, and the same times beta."""
    if asked.beta == 0:
        return None, 0
    c = integers(*shape, device)
    return c, asked.beta * np.asarray(c)


@pytest.mark.parametrize("spared", [False, True], ids=["", "spared"])
@pytest.mark.parametrize("devices", [[0, 0], [0, 1, 2, 3, 4]], ids=str)
def test_all_on_the_first_gpu(machine, devices, asked, spared, monkeypatch):
    # Some work for every part, as where the link is fast.
    monkeypatch.setattr(partition, "shares", lambda parts, *_: (1 / parts,) * parts)
    monkeypatch.setattr(partition, "PANEL_COLUMNS", 256)
    monkeypatch.setattr(gpu_multi_device, "SPARED_BYTES", 0 if spared else 1 << 60)
    a, b, out = integers(M, K), integers(K, N), empty((M, N))
    c, plus = added(asked)
    # What decays leaves rows of B out.
    if spared:
        b[...] = np.round(np.asarray(b) * np.exp(-np.arange(K) / 10.0)[:, None])
    plan = gpu_multi.FromDevice(a, b, out, devices, asked, c)
    for part in plan._ring:
        part.b[...] = np.nan
    found = seen_after(plan, out)
    expected = wanted(a, b, TAU, plus)
    np.testing.assert_array_equal(found, expected)
    assert np.mean(expected != 0) > 0.05 or spared
    if spared and len(devices) > 2:
        sent = plan._reach[..., 1] - plan._reach[..., 0]
        assert (sent[0] >= sent[-1]).all() and sent.sum() < K * sent.size


@pytest.mark.parametrize("n", [N, 300, 3])
@pytest.mark.parametrize("devices", [[0, 1, 2], [1, 0], [0, 0]], ids=str)
def test_rows_on_their_gpus(machine, devices, n, asked):
    cuts = [*range(0, 128 * len(devices), 128), M]
    copy, tau = integers(K, n), TAU if n == N else 1000.0
    parts_a, parts_b, parts_c, plus = [], [], [], []
    for first, last, index in zip(cuts[:-1], cuts[1:], devices, strict=True):
        parts_a.append(integers(last - first, K, index))
        parts_b.append(integers(K, n, index))
        parts_b[-1][...] = copy
        c, more = added(asked, index, (last - first, n))
        parts_c.append(c)
        plus.append(np.broadcast_to(more, (last - first, n)))
    asked = dataclasses.replace(asked, tau=tau)
    parts_c = None if asked.beta == 0 else parts_c
    plan = gpu_multi.Resident(parts_a, parts_b, empty_parts(parts_a, parts_b), asked, parts_c)
    for _ in range(2):
        # Operands are made on the first device's stream, and the result is read there.
        out, seen = plan.empty(), []
        with Device(devices[0]):
            MACHINE.launch(lambda: [part.__setitem__(..., integers(*part.shape)) for part in parts_a])
        norms = plan.run(parts_a, parts_b, out, tau, parts_c)
        with Device(devices[0]):
            MACHINE.launch(lambda out=out, seen=seen: seen.extend(np.array(part) for part in out))
        machine.run_until_idle()
        expected = wanted(np.concatenate(parts_a), copy, tau, np.concatenate(plus))
        np.testing.assert_array_equal(np.concatenate(seen), expected)
    with Device(devices[0]):
        maps = plan._whole(norms)
    machine.run_until_idle()
    assert maps.a.shape == (-(-M // 32), -(-K // 32)) and np.isfinite(maps.a).all() and np.isfinite(maps.b).all()


@pytest.mark.parametrize("devices", [[0, 1, 2], [1, 0], [0, 0]], ids=str)
def test_columns_on_their_gpus(machine, devices):
    a, b = integers(M, K), integers(K, N)
    expected = wanted(a, b, TAU)
    cuts = [*range(0, 256 * len(devices), 256), N]
    parts_a, parts_b, out = [], [], []
    for first, last, index in zip(cuts[:-1], cuts[1:], devices, strict=True):
        for listed, source in ((parts_a, a), (parts_b, b[:, first:last])):
            listed.append(integers(*source.shape, index))
            listed[-1][...] = source
        with Device(index):
            out.append(empty((M, last - first)))
    plan = gpu_multi.Resident(parts_a, parts_b, out, Request("fp64", TAU), split="columns")
    for _ in range(2):
        norms = plan.run(parts_a, parts_b, out, TAU)
        machine.run_until_idle()
        np.testing.assert_array_equal(np.concatenate([np.asarray(part) for part in out], axis=1), expected)
    with Device(devices[0]):
        maps = plan._whole(norms)
    machine.run_until_idle()
    assert maps.a.shape == (-(-M // 32), -(-K // 32)) and maps.b.shape == (-(-N // 32), -(-K // 32))
    assert np.isfinite(maps.a).all() and np.isfinite(maps.b).all()


@pytest.mark.parametrize("devices", [[0, 1, 2], [0], [0, 0]], ids=str)
def test_blocks_of_rows_from_the_host(machine, devices, asked):
    a, b, out = (np.asarray(x) for x in (integers(M, K), integers(K, N), empty((M, N))))
    c, plus = added(asked)
    room = 8 * K * N + (9 << 20) + 2 * 8 * (K + N) * 200
    c = None if c is None else np.asarray(c)
    plan = gpu_multi.FromHost(a, b, out, devices, asked, c, memory_bytes=room * len(devices))
    assert len(plan.parts[0].rows) >= 2
    plan()
    machine.run_until_idle()
    np.testing.assert_array_equal(out, wanted(a, b, TAU, plus))


def test_a_product_from_the_host_tells_how_far_it_is_and_is_there_when_all_is_told(machine, impatient):
    a, b, out = (np.asarray(x) for x in (integers(M, K), integers(K, N), empty((M, N))))
    room = 8 * K * N + (9 << 20) + 2 * 8 * (K + N) * 200
    plan = gpu_multi.FromHost(a, b, out, [0, 1], Request("fp64", TAU), memory_bytes=2 * room)
    pieces = sum(len(part.products) for part in plan.parts)
    with Progress("spamm", unit=PARTS) as call:
        plan()
        plan.wait()
        assert call.done == call.total == pieces > 2
    np.testing.assert_array_equal(out, wanted(a, b, TAU, 0))
    assert impatient.records[-1].getMessage().startswith(f"spamm: 100 % of {pieces} parts")


@pytest.mark.parametrize("on_host", [False, True], ids=["device", "host"])
@pytest.mark.parametrize(("shared", "devices"), [(None, [0, 1, 2]), ("a", [0, 0]), ("b", [1, 0])], ids=str)
def test_batches(machine, devices, shared, on_host, asked):
    count, m, k, n = 11, 40, 70, 90

    def stack(rows, columns, items):
        found = np.concatenate([integers(rows, columns) for _ in range(items)]).reshape(items, rows, columns)
        return found[0] if items == 1 else found

    a, b = (stack(*size, 1 if name == shared else count) for name, size in (("a", (m, k)), ("b", (k, n))))
    out, c = (stack(m, n, count) for _ in range(2))
    if on_host:
        a, b, out, c = (np.asarray(x) for x in (a, b, out, c))
    c = c if asked.beta else None
    asked = dataclasses.replace(asked, tau=3000.0)
    plan = Batch(partitioned(a, b, out, c, devices), asked, (count,))
    out[...] = np.nan
    plan()
    machine.run_until_idle()
    for item in range(count):
        x, y = (z[item] if z.ndim == 3 else z for z in (a, b))
        plus = 0 if c is None else asked.beta * np.asarray(c[item])
        np.testing.assert_array_equal(np.asarray(out[item]), wanted(x, y, 3000.0, plus))


def complex_integers(rows, columns, device=0):
    x = integers(rows, 2 * columns, device)
    return x.view("c16")


def real_forms(a, b):
    with Device(a.home):
        return parts.real_view(a), parts.expanded(b)


@pytest.mark.parametrize("place", ["device", "rows", "columns", "host", "batch"])
def test_complex_products_in_their_real_forms(machine, place, monkeypatch):
    monkeypatch.setattr(partition, "shares", lambda parts, *_: (1 / parts,) * parts)
    monkeypatch.setattr(partition, "PANEL_COLUMNS", 256)
    m, k, n, tau, devices = 400, 70, 450, 14000.5, [0, 1, 2]
    a, b, out = complex_integers(m, k), complex_integers(k, n), empty((m, n), "complex128")
    expected = reference.spamm_flat(np.asarray(a), np.asarray(b), tau)
    dense = np.asarray(a) @ np.asarray(b)
    assert np.mean(expected != dense) > 0.1 and np.any(expected == dense)
    request, real_out, plan = Request("complex128", tau), parts.real_view(out), None
    if place == "batch":
        stack = [np.stack([np.asarray(x)] * 5).view(Array) for x in (a, b, out)]
        out = stack[2]
        plan = Batch(partitioned(*real_forms(*stack[:2]), parts.real_view(out), None, devices), request, (5,))
    elif place == "device":
        plan = gpu_multi.FromDevice(*real_forms(a, b), real_out, devices, request)
    elif place == "host":
        given = (np.asarray(x) for x in (*real_forms(a, b), real_out))
        room = 2 * 16 * k * n + (9 << 20) + 2 * 16 * (k + n) * 200
        plan = gpu_multi.FromHost(*given, devices, request, memory_bytes=room)
        assert len(plan.parts[0].rows) >= 1 and len(plan.panels) > 1
    else:
        by_rows = place == "rows"
        ends = [0, 128, 256, m if by_rows else n]
        cuts = [slice(*pair) for pair in itertools.pairwise(ends)]
        mine, targets = [], []
        for index, cut in zip(devices, cuts, strict=True):
            x, y = (a[cut], b) if by_rows else (a, b[:, cut])
            x, y, z = (np.ascontiguousarray(one).view(Array) for one in (x, y, np.zeros((len(x), y.shape[1]), "c16")))
            x.home = y.home = z.home = index
            targets.append(z)
            mine.append([x, y, z])
        operands = list(map(list, zip(*mine, strict=True)))
        resident = gpu_multi.Resident(*operands, request, split=place)
        assert resident.shape == (m, k, n)
        resident.run(*operands, tau)
    if plan is not None:
        plan()
        assert plan.told_shape == (m, k, n)
    machine.run_until_idle()
    if place in ("rows", "columns"):
        out = np.concatenate(targets, axis=int(place == "columns"))
    for found in out if place == "batch" else [out]:
        np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize(("batch", "dtype"), [((), "f8"), ((2,), "c16"), ((2, 3), "c16")], ids=str)
def test_calls_with_matrices_of_the_host(machine, batch, dtype, monkeypatch):
    monkeypatch.setattr(gpu_multi_host, "free_bytes", lambda: 1 << 30)
    make = complex_integers if dtype == "c16" else integers
    a, b, c = (
        np.stack([np.asarray(make(*size)) for _ in range(int(np.prod(batch)))]).reshape(*batch, *size)
        for size in ((300, 70), (70, 90), (300, 90))
    )
    tau = 9000.5 if dtype == "c16" else 3000.5
    asked = Request({"f8": "fp64", "c16": "complex128"}[dtype], tau, beta=3.0)
    expected = np.empty(c.shape, dtype)
    for i in np.ndindex(batch):
        expected[i] = reference.spamm_flat(a[i], b[i], tau) + 3 * c[i]
    for out in (None, np.full(c.shape, np.nan, dtype), c):
        result = gpu_multi.spamm_devices(a, b, c, out, asked, [0, 1, 2], "rows")
        assert out is None or result.c is out
        np.testing.assert_array_equal(result.c, expected)


def test_the_stand_in_refuses_what_cuda_refuses(machine):
    stream, default = Stream(), Stream(ptr=0)
    with Device(1):
        event = Event()
        with pytest.raises(AssertionError, match="another device"):
            stream.__enter__()
        default.record(event)
    with pytest.raises(RuntimeError, match="InvalidResourceHandle"):
        stream.record(event)
    with pytest.raises(RuntimeError, match="InvalidResourceHandle"):
        default.record(event)
