"""Calls that repeat run from a plan: what the plan writes where, which calls share one, and what they cost the host.

Memory, streams and launches are stand-ins; the structs are those that the kernels read.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from spectile.core import plan as bound
from spectile.core.devices import TABLE
from spectile.nearsparse import api
from spectile.nearsparse.cuda import after, parts, repeated
from spectile.nearsparse.cuda import plan as plans
from spectile.nearsparse.cuda.geometry import fill, record
from spectile.nearsparse.cuda.norms import NORM_TASKS
from spectile.nearsparse.cuda.product import PRODUCT, WGMMA_PRODUCT
from spectile.nearsparse.cuda.search import FIELD, SEARCH, Places
from spectile.nearsparse.cuda.survey import COUNT
from spectile.nearsparse.multi import resident
from spectile.nearsparse.types import Request


class Memory:
    next = 1 << 20

    def __init__(self, size: int, shift: int = 0, device: int = 0) -> None:
        self.ptr, self.device_id = Memory.next + shift, device
        Memory.next += -(-(size + shift) // 512) * 512


class Here(threading.local):
    """The current device of a thread."""

    device = 0


HERE = Here()


class Device:
    def __init__(self, index: int) -> None:
        self.id = index

    def __enter__(self) -> None:
        self.before, HERE.device = HERE.device, self.id

    def __exit__(self, *_: Any) -> None:
        HERE.device = self.before


class Array:
    """What a plan reads of a device array."""

    def __init__(self, shape: Any, dtype: Any = "f4", shift: int = 0, device: int | None = None) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = np.dtype(dtype)
        self.itemsize, self.size, self.ndim = self.dtype.itemsize, int(np.prod(self.shape)), len(self.shape)
        self.strides = tuple(int(self.itemsize * np.prod(self.shape[axis + 1 :])) for axis in range(self.ndim))
        self.nbytes = self.size * self.itemsize
        self.data = Memory(self.nbytes, shift, HERE.device if device is None else device)

    @property
    def device(self) -> Any:
        return Device(self.data.device_id)


class Pinned(bytearray):
    """Memory of the host that a device writes."""

    ptr = 1 << 40


class Stream:
    capturing = False
    entered: ClassVar[list[Any]] = []

    def __init__(self, ptr: int = 0, number: int | None = None, **_: Any) -> None:
        self.ptr, self.number = ptr, number
        self.enqueued: list[Any] = []

    def __enter__(self) -> None:
        Stream.entered.append(self)

    def __exit__(self, *_: Any) -> None:
        Stream.entered.pop()

    def record(self, event: Any = None) -> Any:
        if event is not None:
            event[:] = self.enqueued
        return list(self.enqueued)

    def wait_event(self, event: Any) -> None:
        self.enqueued += event

    def is_capturing(self) -> bool:
        return self.capturing


class Machine:
    """Streams and launches of the stand-in."""

    def __init__(self) -> None:
        self.launched, self.kernel, self.shared = [], "portable", False
        #: Current streams of the devices.
        self.streams = [Stream(), Stream()]

    def current(self, device: int = -1) -> Stream:
        """Return the current stream of a device, by default the current one."""
        return self.streams[HERE.device if device < 0 else device]

    @property
    def choice(self) -> Any:
        return SimpleNamespace(copies=True, scratch_bytes=4096 * self.shared)

    @property
    def stream(self) -> Stream:
        return self.streams[0]

    @stream.setter
    def stream(self, stream: Stream) -> None:
        self.streams[0] = stream


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    state = Machine()

    class NormMaps:
        def __init__(self, a: Any, b: Any, block: int, *, paired: bool = False) -> None:
            size = -(-a.shape[1] // block)
            kind = "f8" if paired else "f4"
            self.a, self.b = Array((-(-a.shape[0] // block), size), kind), Array((-(-b.shape[1] // block), size), kind)
            self.block, self.parameters = block, np.zeros((), NORM_TASKS)
            self.pairing = parts.Pairing(self.a, self.b) if paired else None

        @property
        def tiles(self) -> Any:
            half = [tuple(-(-size // 2) for size in self.b.shape), (self.a.shape[0], -(-self.a.shape[1] // 2))]
            return SimpleNamespace(a=Array(half[1], "f8"), b=Array(half[0], "f8"))

        def bind(self) -> Any:
            pairs = [] if self.pairing is None else [self.pairing.launch]
            return [lambda stream: state.launched.append(("norms", self.parameters.copy())), *pairs]

    class Kernel:
        def __init__(self, unit: Any, name: str) -> None:
            self.name = name

        def bind(self, shape: Any, parameters: Any) -> Any:
            return lambda stream: state.launched.append((self.name, parameters.copy()))

    class Product:
        grain = (1, 1, 1)

        def __init__(self, a: Any, b: Any, out: Any, *_: Any, **options: Any) -> None:
            self.kernel = state.kernel
            self.choice = state.choice
            self.parameters = record(WGMMA_PRODUCT if self.kernel != "portable" else PRODUCT)
            self._addresses = a.data.ptr, b.data.ptr, out.data.ptr

        def addresses(self) -> Any:
            return self._addresses

        @property
        def launches(self) -> Any:
            def launch(stream: int, name: str) -> None:
                state.launched.append((name, self.parameters.copy()))

            return [functools.partial(launch, name=name) for name in ("product", "join")[: 1 + state.shared]]

    cuda = SimpleNamespace(
        get_current_stream=state.current,
        Device=Device,
        alloc=Memory,
        runtime=SimpleNamespace(getDevice=lambda: HERE.device, setDevice=lambda index: setattr(HERE, "device", index)),
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
    )
    cupy = SimpleNamespace(ndarray=Array, empty=Array, cuda=cuda)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(repeated, "_number", lambda ptr: next(one.number for one in state.streams if one.ptr == ptr))
    monkeypatch.setattr(plans, "NormMaps", NormMaps)
    monkeypatch.setattr(parts.launch, "kernel", Kernel)
    monkeypatch.setattr(parts, "real_view", lambda x: x)
    monkeypatch.setattr(plans, "Product", Product)
    monkeypatch.setattr(plans, "prepared_choice", lambda *arguments, **options: state.choice)
    monkeypatch.setattr(bound, "replace_address", lambda encoded, pointer: state.launched.append(("map", pointer)))
    repeated._plans.clear()
    yield state  # type: ignore[misc]
    repeated._plans.clear()


REQUEST = Request("fp32", tau=1.0)
OPTIONS = ("tau", 32, 1.0, False, None, "auto", "rows", "spamm")


def call(a: Any, b: Any, out: Any = None, tau: float = 1.0) -> Any:
    """As the public function does: from a plan, or by way of the checks from a new one."""
    key = repeated.key_of(a, b, out, tau, *OPTIONS)
    result = repeated.execute(key, a, b, out, tau)
    return planned(key, a, b, out, tau, REQUEST) if result is None else result


def planned(key: Any, a: Any, b: Any, out: Any, value: float, request: Request) -> Any:
    """As the public function does after its checks: C has memory when the plan is made."""
    out = Array((a.shape[0], b.shape[1])) if out is None else out
    return repeated.execute(key, a, b, out, value, lambda: repeated.planned(a, b, out, request))


def test_a_plan_writes_what_changes(machine: Machine) -> None:
    for turn, tau in enumerate((1.0, 2.0, 3.5)):
        a, b = Array((100, 70)), Array((70, 90))
        out = Array((100, 90)) if turn == 2 else None
        machine.launched.clear()
        result = call(a, b, out, tau)
        assert out is None or result.c is out
        names = [name for name, _ in machine.launched]
        assert names == ["norms", "product"]
        norms, product = machine.launched[0][1], machine.launched[-1][1]
        assert [int(task["matrix"]) for task in norms["task"]] == [a.data.ptr, b.data.ptr]
        pointers = [int(task["norms"]) for task in norms["task"]]
        assert [int(product[name]) for name in ("norms_a", "norms_b")] == pointers
        # The counters follow the maps, at a multiple of 8 bytes.
        assert pointers[1] == pointers[0] + 4 * 4 * 3 and int(norms["counter"]) == pointers[1] + 4 * 3 * 3 + 4
        assert [int(product[name]) for name in ("a", "b", "out")] == [x.data.ptr for x in (a, b, result.c)]
        assert float(product["tau"]) == tau == result.tau


def test_tiles_that_blocks_share_have_their_sums_in_the_memory_of_a_run(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def alloc(size: int) -> Memory:
        taken.append((Memory(size), size))
        return taken[-1][0]

    monkeypatch.setattr(sys.modules["cupy"].cuda, "alloc", alloc)
    machine.shared = True
    for _ in range(2):
        machine.launched.clear()
        call(Array((100, 7000)), Array((7000, 90)))
        (_, norms), (first, product), (second, join) = machine.launched
        (memory, size), end = taken[-1], int(norms["counter"]) + 32
        assert (first, second) == ("product", "join") and product == join
        assert end <= int(product["parts"]) == memory.ptr + size - 4096 and int(product["parts"]) % 16 == 0


def test_a_complex_plan_makes_the_real_form_of_b_anew(machine: Machine) -> None:
    request, key = Request("complex64", tau=1.0), None
    for tau in (1.0, 2.0):
        a, b = Array((100, 70), "c8"), Array((70, 90), "c8")
        key = key or repeated.key_of(a, b, None, tau, *OPTIONS)
        machine.launched.clear()
        result = planned(key, a, b, None, tau, request)
        assert [name for name, _ in machine.launched] == ["expand", "norms", "pair_norms", "product"]
        expand, norms, pairs, product = (parameters for _, parameters in machine.launched)
        assert [int(expand[name]) for name in ("b", "rows", "columns", "batches")] == [b.data.ptr, 70, 90, 1]
        assert int(expand["out"]) not in (0, b.data.ptr)
        assert [int(task["matrix"]) for task in norms["task"]] == [a.data.ptr, int(expand["out"])]
        assert [int(product[name]) for name in ("a", "b", "out")] == [a.data.ptr, int(expand["out"]), result.c.data.ptr]
        maps = [int(pairs[name]) for name in ("norms_a", "norms_b", "complex_a", "complex_b")]
        assert (
            [int(task["norms"]) for task in norms["task"]]
            == maps[:2]
            == [int(product[x]) for x in pairs.dtype.names[:2]]
        )
        # Real maps of 4 x 3 and 6 x 3 tiles, and complex ones of 4 x 2 and 3 x 2; the counters behind.
        assert np.diff([*maps, int(norms["counter"])]).tolist() == [8 * 4 * 3, 8 * 6 * 3, 8 * 4 * 2, 8 * 3 * 2]
        assert float(product["tau"]) == tau


@pytest.mark.parametrize("choice", ["valid_ratio", "atol", "rtol_factors"])
def test_a_plan_that_searches_writes_where_tau_will_lie(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    class Search:
        def __init__(self, *_: Any) -> None:
            self.parameters, self.places = np.zeros((), SEARCH), Places(16, 160, 320, 480, 640)
            self.launch = lambda stream: machine.launched.append(("search", self.parameters.copy()))

    monkeypatch.setattr(plans, "Search", Search)
    a, b = Array((100, 70)), Array((70, 90))
    request = Request("fp32", **{choice: 0.5})
    key = repeated.key_of(a, b, None, 0.5, choice, *OPTIONS[1:])
    assert key != repeated.key_of(a, b, None, 0.5, *OPTIONS)
    for value in (0.5, 0.25):
        machine.launched.clear()
        assert planned(key, a, b, None, value, request) is not None
        assert [name for name, _ in machine.launched] == ["norms", "search", "product"]
        norms, search, product = (parameters for _, parameters in machine.launched)
        assert float(search[FIELD[choice]]) == value
        assert choice != "valid_ratio" or float(search["tolerance"]) == 0.01
        result = int(search["result"])
        assert int(product["tau_device"]) == result and result % 16 == 0
        assert int(search["arrived"]) == int(norms["counter"]) + 4 and result >= int(norms["counter"]) + 8
        places = [int(search[name]) - result for name in ("counts", "partial", "columns_a", "sorted")]
        assert places == [16, 160, 320, 480] and int(search["norms_a"]) == int(product["norms_a"])
    for wrong in (0.0, -1.0, float("inf")):
        assert repeated.execute(key, a, b, None, wrong) is None
    if choice == "rtol_factors":
        with pytest.raises(ValueError, match="is below what rounding alone"):
            repeated.execute(key, a, b, None, 1e-9)


@pytest.mark.parametrize("kernel", ["portable", "wgmma_wide"])
def test_a_count_decides_while_the_product_is_on_its_way(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    machine.kernel = kernel
    verdict = Pinned(4)

    def bind_count(norms_a: Any, norms_b: Any, **values: Any) -> Any:
        parameters = fill(np.zeros((), COUNT), values)
        return lambda stream: machine.launched.append(("count", parameters.copy())), parameters

    def wait() -> None:
        machine.launched.append(("wait", None))

    def multiply(a: Any, b: Any, c: Any, out: Any, request: Request) -> None:
        machine.launched.append(("dense", out.data.ptr))

    cuda = sys.modules["cupy"].cuda
    cuda.alloc_pinned_memory = lambda size: verdict
    cuda.Event = lambda **_: SimpleNamespace(record=lambda: machine.launched.append(("end", None)), synchronize=wait)
    monkeypatch.setattr(plans, "bind_count", bind_count)
    monkeypatch.setattr(plans.dense, "multiply", multiply)
    monkeypatch.setattr(plans.dense, "decide_here", lambda *_: ("count", 0.25))
    a, b = Array((100, 70)), Array((70, 90))
    key = repeated.key_of(a, b, None, 1.0, *OPTIONS[:-1], "auto")
    request = Request("fp32", tau=1.0, method="auto")
    for dense, tau in ((0, 1.0), (1, 0.5), (0, 2.0)):
        verdict[:1] = bytes([dense])
        machine.launched.clear()
        result = planned(key, a, b, None, tau, request)
        launched = [entry for entry in machine.launched if entry[0] != "map"]
        names = ["norms", "count", "end", "product", "wait"]
        assert [name for name, _ in launched] == names + ["dense"] * dense
        assert result is not None and result.method == ("dense" if dense else "spamm")
        found = dict(launched)
        product = found["product"] if kernel == "portable" else found["product"]["fields"]
        count, counter = found["count"], int(found["norms"]["counter"])
        assert [float(count["tau"]), float(count["limit"]), int(count["verdict"])] == [tau, 0.25, verdict.ptr]
        # Words that the norm kernel has set to zero.
        assert [int(count[name]) - counter for name in ("count", "ended", "cancelled")] == [8, 16, 20]
        assert int(product["cancelled"]) == int(count["cancelled"])
        assert int(count["norms_a"]) == int(product["norms_a"])
        if dense:
            assert found["dense"] == result.c.data.ptr
    # What was found stands for 1, 2, 4 ... runs with the same threshold, and is counted anew when that is another.
    verdict[:1] = b"\1"
    machine.launched.clear()
    counted = []
    for _ in range(40):
        before = len(machine.launched)
        result = repeated.execute(key, a, b, None, 3.0)
        assert result is not None and result.method == "dense"
        counted.append("count" in [name for name, _ in machine.launched[before:]])
    assert np.flatnonzero(counted).tolist() == [0, 2, 5, 10, 19, 36]
    verdict[:1] = b"\0"
    methods = [repeated.execute(key, a, b, None, tau).method for tau in (3.0, 0.5, 0.5)]  # type: ignore[union-attr]
    assert methods == ["dense", "spamm", "spamm"]


def test_a_dense_product_that_is_always_faster_prepares_nothing_else(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gemm:
        def __init__(self, *_: Any) -> None:
            pass

        def __call__(self, a: int, b: int, out: int) -> None:
            machine.launched.append(("dense", (a, b, out)))

    def refuse(*_: Any) -> None:
        raise AssertionError("kernels of SpAMM are prepared")

    monkeypatch.setattr(plans.dense, "Gemm", Gemm)
    monkeypatch.setattr(plans.dense, "decide_here", lambda *_: ("dense", -1.0))
    monkeypatch.setattr(plans, "prepared_choice", refuse)
    a, b = Array((100, 70)), Array((70, 90))
    request = Request("fp32", rtol_factors=1e-3, method="auto")
    key = repeated.key_of(a, b, None, 1e-3, "rtol_factors", *OPTIONS[1:-1], "auto")
    for turn in range(2):
        result = planned(key, a, b, None, 1e-3, request) if turn == 0 else repeated.execute(key, a, b, None, 1e-3)
        assert result is not None and result.method == "dense" and result.valid_ratio == 1
        assert machine.launched == [("dense", (a.data.ptr, b.data.ptr, result.c.data.ptr))]
        machine.launched.clear()
    assert repeated.execute(key, a, b, a, 1e-3) is None and not machine.launched
    with pytest.raises(ValueError, match="is below what rounding"):
        repeated.execute(key, a, b, None, 1e-9)
    # What the entries' size rules out is told when tau is read.
    for scale, refused in ((1.0, False), (1e-30, True), (float("nan"), True), (0.0, False)):
        norms = SimpleNamespace(a=np.full((4, 3), scale), b=np.full((3, 3), scale))
        found = plans.dense_result(np.zeros((100, 90), "f4"), norms, request, (100, 70, 90), 1e-3, read=None)
        if refused:
            with pytest.raises(ValueError, match="nothing was left out"):
                _ = found.tau
        else:
            assert found.tau == 0 and found.error_bound <= 1e-3 * 20 * scale**2


def test_a_capture_reads_nothing_back(machine: Machine) -> None:
    machine.stream.capturing = True
    request = Request("fp32", rtol_factors=1e-3, method="auto")
    assert plans.dense.decide_here((64, 64, 64), request) == ("spamm", 1.0)


@pytest.mark.parametrize("ptr", [1 << 20, after.PER_THREAD])
def test_numbers_are_read_after_their_run(machine: Machine, ptr: int) -> None:
    ran, other = Stream(ptr, 5), Stream(ptr if ptr == after.PER_THREAD else 1 << 21, 6)
    a, b = Array((64, 64)), Array((64, 64))
    machine.stream = ran
    for _ in range(2):
        result = call(a, b)
    ran.enqueued.append("product")
    if ptr == after.PER_THREAD:
        # Only the thread that ran it can say where it ends.
        result = call(a, b)
    seen: list[Any] = []
    result._numbers["valid_ratio"] = lambda: seen.append(list(machine.stream.enqueued)) or 0.5
    machine.stream = other
    assert result.valid_ratio == result.valid_ratio == 0.5
    assert seen == [["product"]]
    # On the same stream nothing waits.
    machine.stream = ran
    before = len(ran.enqueued)
    if ptr != after.PER_THREAD:
        assert result.tau == 1.0 and len(ran.enqueued) == before


def test_rows_further_apart_than_cublas_counts(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    cublas = SimpleNamespace(
        setStream=lambda *_: None, gemmEx=lambda *arguments: given.append(arguments), CUBLAS_OP_N=0,
        CUBLAS_COMPUTE_64F=0, CUBLAS_COMPUTE_32F=0, CUBLAS_GEMM_DEFAULT=0,
    )  # fmt: skip
    monkeypatch.setattr(plans.dense, "_library", lambda: (cublas, int, lambda: machine.stream))
    sys.modules["cupy"].ascontiguousarray = np.ascontiguousarray
    memory = np.zeros(2**31 + 8, np.float16)  # which nobody touches
    far = np.lib.stride_tricks.as_strided(memory, (2, 4), (2**32, 2))
    one = np.lib.stride_tricks.as_strided(memory, (1, 4), (2**34, 2))
    near = np.lib.stride_tricks.as_strided(memory, (4, 3), (16, 2))
    for a, pitch in ((far, 4), (one, 4), (np.zeros((2, 4), np.float16), 4)):
        plans.dense.multiply(a, near, None, np.zeros((len(a), 3), np.float32), Request("fp16", tau=0.0))
        (_, _, _, n, m, k, _, _, _, leading_b, at_a, _, leading_a, _, _, _, leading_out, *_) = given[-1]
        assert (m, k, n) == (len(a), 4, 3)
        assert (leading_a, leading_b, leading_out) == (pitch, 8, 3)
        assert (at_a == a.ctypes.data) == (a is not far)


def test_tensor_maps_move_with_their_operands(machine: Machine) -> None:
    machine.kernel = "wgmma_wide"
    a, b, out = Array((128, 128), "f2"), Array((128, 128), "f2"), Array((128, 128))
    for _ in range(3):
        call(a, b, out)
    assert not [entry for entry in machine.launched if entry[0] == "map"]
    other = Array((128, 128), "f2")
    call(a, other, out)
    assert [entry for entry in machine.launched if entry[0] == "map"] == [("map", other.data.ptr)]
    fields = machine.launched[-1][1]["fields"]
    assert int(fields["out"]) == out.data.ptr and int(fields["counter"]) > int(fields["norms_b"])


def test_what_is_laid_out_otherwise_has_another_plan(machine: Machine) -> None:
    a, b = Array((64, 64)), Array((64, 64))
    keys = [
        repeated.key_of(*one, 1.0, *options)
        for one, options in (
            ((a, b, None), OPTIONS),
            ((a, b, Array((64, 64))), OPTIONS),
            ((a, b, Array((64, 64), shift=4)), OPTIONS),
            ((Array((64, 64), shift=4), b, None), OPTIONS),
            ((Array((64, 64), "f8"), b, None), OPTIONS),
            ((Array((32, 64)), b, None), OPTIONS),
            ((a, b, None), (64, *OPTIONS[1:])),
            ((a, b, None), (32, 2.0, *OPTIONS[2:])),
        )
    ]
    # A stream that has the address of one that was destroyed is another one.
    for number in (7, 8):
        machine.stream = Stream(1 << 20, number)
        keys.append(repeated.key_of(a, b, None, 1.0, *OPTIONS))
    assert len(set(keys)) == len(keys)
    assert repeated.key_of(Array((64, 64)), Array((64, 64)), None, 3.0, *OPTIONS) == keys[-1]
    machine.stream = Stream(1 << 20)
    assert repeated.key_of(a, b, None, 1.0, *OPTIONS) is None
    machine.stream = Stream(2, 9)
    others: list[Any] = []
    thread = threading.Thread(target=lambda: others.append(repeated.key_of(a, b, None, 1.0, *OPTIONS)))
    thread.start()
    thread.join()
    assert others[0] != repeated.key_of(a, b, None, 1.0, *OPTIONS)
    for wrong in ((np.ones((4, 4)), b, None), (Array((2, 4, 4)), b, None), (a, b, np.ones((64, 64)))):
        assert repeated.key_of(*wrong, 1.0, *OPTIONS) is None
    assert repeated.key_of(a, b, None, np.ones(3), *OPTIONS) is None
    assert repeated.key_of(a, b, None, 1.0, 32, np.ones(1), *OPTIONS[2:]) is None


def test_calls_that_must_not_use_a_plan(machine: Machine) -> None:
    a, b = Array((64, 64)), Array((64, 64))
    for _ in range(2):
        call(a, b)
        call(a, b, a)
    # Where out is an operand, what is still to be read would be overwritten.
    assert call(a, b, a) is None and call(a, b, b) is None
    # Shifted views of the operands, before and behind them.
    for x in (a, b):
        for rows in (-64, -63, 1, 63, 64):
            view = Array((64, 64))
            view.data.ptr = x.data.ptr + rows * 64 * 4
            apart = all(abs(view.data.ptr - y.data.ptr) >= 64 * 64 * 4 for y in (a, b))
            assert (call(a, b, view) is not None) == apart
    assert call(a, b, tau=float("nan")) is None and call(a, b, tau=-1.0) is None
    machine.stream.capturing = True
    # No plan is made in a capture; one that was made before runs there.
    c = Array((64, 64), shift=4)
    assert call(c, b) is None and call(c, b) is None and call(a, b) is not None


def test_plans_are_bounded_in_number(machine: Machine) -> None:
    b = Array((64, 64))
    for rows in range(1, repeated.LIMIT + 50):
        a = Array((rows, 64))
        assert call(a, b) is not None and call(a, b) is not None
    assert len(repeated._plans) == repeated.LIMIT


def test_threads_share_plans(machine: Machine) -> None:
    operands = [(Array((64, 64)), Array((64, 64))) for _ in range(8)]
    for _ in range(2):
        call(*operands[0])
    machine.launched.clear()

    def work(pair: Any) -> None:
        for _ in range(100):
            assert call(*pair) is not None

    threads = [threading.Thread(target=work, args=(pair,)) for pair in operands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(machine.launched) == 1600
    for (first, norms), (second, product) in zip(machine.launched[::2], machine.launched[1::2], strict=True):
        assert (first, second) == ("norms", "product")
        assert int(norms["task"][0]["norms"]) == int(product["norms_a"])
        assert int(norms["task"][0]["matrix"]) == int(product["a"])


class Parts:
    """Operands of two devices: rows of A, and a copy of B on each."""

    def __init__(self, rows: tuple[int, int] = (128, 64), k: int = 70, n: int = 90) -> None:
        self.a = [Array((size, k), device=index) for index, size in enumerate(rows)]
        self.b = [Array((k, n), device=index) for index in range(2)]
        self.out = [Array((size, n), device=index) for index, size in enumerate(rows)]

    def multiply(self, out: Any = None, tau: float = 1.0, again: bool = False) -> Any:
        """As the public function does: checked and planned, or once more from the plan."""
        key = repeated.key_of(self.a, self.b, out, tau, *OPTIONS, devices=2)
        plan = functools.partial(resident.Resident, self.a, self.b, self.out, REQUEST)
        return repeated.execute(key, self.a, self.b, out, tau, None if again else plan)


@pytest.fixture
def two(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Two devices, each with a stream of its own."""
    machine.streams = [Stream(1 << 20, 7), Stream(1 << 21, 8)]
    cupy = sys.modules["cupy"]
    cupy.cuda.Event, cupy.cuda.Stream, cupy.may_share_memory = lambda **_: [], Stream, lambda *_: False
    monkeypatch.setattr(resident, "connect", lambda devices: True)
    monkeypatch.setattr(resident.device, "describe", lambda: TABLE["H200"])
    monkeypatch.setattr(resident.choose, "choose_way", lambda problem, _: problem)
    return machine


def launches_by_device(machine: Machine) -> list[list[tuple[str, Any]]]:
    """Launches in the order of two devices, of which each has its own, all after another."""
    half = len(machine.launched) // 2
    return [machine.launched[:half], machine.launched[half:]]


def test_parts_on_their_devices_run_from_one_plan(two: Machine) -> None:
    first = Parts()
    assert first.multiply() is not None and len(repeated._plans) == 1
    for turn, tau in enumerate((1.0, 2.0, 3.5)):
        parts_ = Parts()
        out = None if turn == 2 else parts_.out
        two.launched.clear()
        if out is not None and turn == 0:
            assert parts_.multiply(out, tau, again=True) is None  # laid out otherwise: without `out` before
            assert parts_.multiply(out, tau) is not None
            two.launched.clear()
        result = parts_.multiply(out, tau, again=True)
        assert out is None or result.c is out
        for index, launched in enumerate(launches_by_device(two)):
            (norms, measured), (product, multiplied) = launched
            assert (norms, product) == ("norms", "product")
            operands = [parts_.a[index], parts_.b[index], result.c[index]]
            assert [x.data.device_id for x in operands] == [index] * 3
            assert [int(multiplied[name]) for name in ("a", "b", "out")] == [x.data.ptr for x in operands]
            assert [int(task["matrix"]) for task in measured["task"]] == [x.data.ptr for x in operands[:2]]
            assert int(measured["task"][0]["norms"]) == int(multiplied["norms_a"]) and float(multiplied["tau"]) == tau
        assert result.tau == tau
    # Other sizes, another stream of one device, or the operands in another place have plans of their own.
    assert Parts((64, 128)).multiply(again=True) is None
    assert Parts((192, 64), 70, 90).multiply() is not None
    two.streams[1] = Stream(1 << 22, 9)
    assert first.multiply(again=True) is None
    two.streams[1] = Stream(1 << 21, 8)
    assert first.multiply(again=True) is not None
    first.a.reverse()
    assert first.multiply(again=True) is None


def test_parts_wait_for_the_first_device_which_waits_for_them(two: Machine) -> None:
    parts_ = Parts()
    parts_.multiply()
    (home, beside), launched = two.streams, two.launched
    assert home.enqueued == beside.enqueued == []
    home.enqueued, beside.enqueued = ["operands"], ["before"]

    class Launched(list[Any]):
        """Writes down what each stream does."""

        def append(self, entry: Any) -> None:
            two.current().enqueued.append(entry[0])
            super().append(entry)

    two.launched, HERE.device = Launched(launched), 1
    assert parts_.multiply(again=True) is not None
    assert HERE.device == 1
    HERE.device = 0
    assert beside.enqueued == ["before", "operands", "norms", "product"]
    assert home.enqueued == ["operands", "norms", "product", *beside.enqueued]


def test_what_fails_on_one_device_leaves_the_other_in_order(two: Machine) -> None:
    parts_, cuda = Parts(), sys.modules["cupy"].cuda
    assert parts_.multiply() is not None
    memory_of, failures = cuda.alloc, iter([MemoryError("full"), RuntimeError("the driver refuses")])

    def alloc(size: int) -> Any:
        if HERE.device == 1:
            raise next(failures)
        return memory_of(size)

    cuda.alloc = alloc
    two.streams[1].enqueued.append("earlier")
    # Memory that lacks is said by the call that is made anew.
    assert parts_.multiply(again=True) is None
    assert "earlier" in two.streams[0].enqueued and HERE.device == 0
    with pytest.raises(RuntimeError, match="the driver refuses"):
        parts_.multiply(again=True)
    assert HERE.device == 0 and not Stream.entered
    cuda.alloc = memory_of
    two.launched.clear()
    assert parts_.multiply(again=True) is not None and len(two.launched) == 4
    # A result that overlaps an operand of its device is not written while that is read.
    parts_.out[1].data.ptr = parts_.b[1].data.ptr + 16
    assert parts_.multiply(parts_.out) is None


def test_parts_in_a_capture_leave_other_streams_alone(two: Machine) -> None:
    parts_ = Parts()
    plan = resident.Resident(parts_.a, parts_.b, parts_.out, REQUEST)
    two.streams[0].capturing = True
    two.streams[1].enqueued.append("outside")
    norms = plan.run(parts_.a, parts_.b, parts_.out, 1.0)
    assert norms is not None and len(two.launched) == 4
    assert "outside" not in two.streams[0].enqueued and two.streams[1].enqueued == ["outside"]


def test_threads_share_the_plan_of_parts(two: Machine) -> None:
    given = [Parts() for _ in range(4)]
    assert given[0].multiply() is not None
    two.launched.clear()

    def work(parts_: Parts) -> None:
        for _ in range(50):
            assert parts_.multiply(again=True) is not None

    threads = [threading.Thread(target=work, args=(parts_,)) for parts_ in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(two.launched) == 4 * 50 * 4
    # Each part's launches follow one another and are of one call, whatever another thread does meanwhile.
    known = {parts_.a[index].data.ptr: (parts_, index) for parts_ in given for index in range(2)}
    open_: dict[int, int] = {}
    for name, parameters in two.launched:
        at = int(parameters["task"][0]["matrix"] if name == "norms" else parameters["a"])
        parts_, index = known[at]
        if name == "norms":
            assert index not in open_
            open_[index] = at
        else:
            assert open_.pop(index) == at and int(parameters["b"]) == parts_.b[index].data.ptr


def test_a_repeated_call_of_parts_costs_the_host_little(two: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.gettrace() is not None:
        pytest.skip("lines are traced, which takes most of the time")
    monkeypatch.setattr(api, "_on_cupy", lambda a: True)
    parts_ = Parts()
    assert parts_.multiply(parts_.out) is not None
    assert api.spamm(parts_.a, parts_.b, tau=1.0, out=parts_.out, devices=2).c is parts_.out
    entered = _functions_entered(lambda: api.spamm(parts_.a, parts_.b, tau=1.0, out=parts_.out, devices=2))
    assert 0 < entered <= 130, entered


def test_a_repeated_call_costs_the_host_little(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.gettrace() is not None:
        pytest.skip("lines are traced, which takes most of the time")
    monkeypatch.setattr(api, "_on_cupy", lambda a: True)
    a, b, out = Array((64, 64)), Array((64, 64)), Array((64, 64))
    call(a, b, out)
    assert api.spamm(a, b, tau=1.0, out=out).c is out
    # Counted, as the time of so short a call follows what else the machine does, below 30 microseconds or 36, for
    # the 35 functions that a call enters (Python 3.11), beside launches and allocations, which the stand-in leaves out.
    entered = _functions_entered(lambda: api.spamm(a, b, tau=1.0, out=out))
    assert 0 < entered <= 45, entered


def _functions_entered(function: Callable[[], object]) -> int:
    """Return how many functions a call enters, Python's and C's."""
    events: list[str] = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        function()
    finally:
        sys.setprofile(None)
    return events.count("call") + events.count("c_call")
