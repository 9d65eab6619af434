"""The door of compiled kernels: what passes it, what is copied, what is refused, and that nothing goes round it."""

from __future__ import annotations

import ast
import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spectile.core import pointers

SOURCES = Path(__file__).parents[3] / "src"


INTERFACES = ("__array_interface__", "__cuda_array_interface__", "__array_struct__")
CHAINS = (("ctypes", "data"), ("ctypes", "data_as"), ("data", "ptr"))
#: Attributes that lead to an address by themselves.
DIRECT = ("data_ptr", "as_ctypes", "from_buffer", "_as_parameter_", "__array_struct__")


def _item(node: ast.AST | None) -> object:
    """Return the constant that an expression is subscribed with, or None."""
    return node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None


def _named_memory(tree: ast.AST) -> set[str]:
    """Return the names that a module gives to ``x.data`` or ``x.ctypes``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.NamedExpr):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs = zip(target.elts, node.value.elts, strict=False) if several else [(target, node.value)]
                found |= {
                    name.id
                    for name, value in pairs
                    if isinstance(name, ast.Name)
                    and isinstance(value, ast.Attribute)
                    and value.attr in {owner for owner, _ in CHAINS}
                }
    return found


def _reads_address(tree: ast.AST) -> bool:
    """Return whether a module reads where an array begins."""
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    memory = _named_memory(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "attrgetter"):
            words = " ".join(str(one.value) for one in node.args if isinstance(one, ast.Constant))
            if any(word in words for word in (*INTERFACES, *DIRECT, "ctypes", "data.ptr", "ptr")):
                return True
        if not isinstance(node, ast.Attribute):
            continue
        if node.attr in DIRECT:
            return True
        if isinstance(node.value, ast.Name) and node.value.id in memory and node.attr in {part for _, part in CHAINS}:
            return True
        if node.attr in INTERFACES:
            field, part = above.get(node), above.get(above.get(node))
            shape_or_so = isinstance(_item(field), str) and _item(field) != "data"
            read_only_flag = _item(field) == "data" and _item(part) == 1
            if not shape_or_so and not read_only_flag:
                return True
        owner = node.value
        if isinstance(owner, ast.Attribute) and (owner.attr, node.attr) in CHAINS:
            return True
    return False


@pytest.mark.parametrize(
    ("line", "reads"),
    [
        ("f(x.ctypes.data)", True),
        ("self.x[0].ctypes.data_as(pointer)", True),
        ("address = matrix.owner.data.ptr + 4", True),
        ('x.__array_interface__["data"][0]', True),
        ('x.__cuda_array_interface__["data"]', True),
        ("g(x.__cuda_array_interface__)", True),
        ("memory = x.data; f(memory.ptr)", True),
        ("p, q = a.data, b.data; f(q.ptr)", True),
        ("f(held := x.ctypes); held.data_as(pointer)", True),
        ('getattr(x, "ctypes")', True),
        ('getattr(x, "__array_interface__")', True),
        ("tensor.data_ptr()", True),
        ("np.ctypeslib.as_ctypes(x)", True),
        ("(c_char * 8).from_buffer(x)", True),
        ('data = matrix.data; data.shape, getattr(matrix, "data", None)', False),
        ('x.__cuda_array_interface__["shape"], x.__cuda_array_interface__["data"][1]', False),
        ('hasattr(x, "__cuda_array_interface__")', False),
        ("ctypes.c_void_p(pointers.address(x)), x.data, stream.ptr", False),
    ],
)
def test_reading_an_address_is_noticed(line: str, reads: bool) -> None:
    assert _reads_address(ast.parse(line)) is reads


def test_no_other_module_reads_an_address() -> None:
    reading = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if _reads_address(ast.parse(path.read_text()))
    }
    assert reading == {"spectile/core/pointers.py"}


class DeviceArray:
    """What the door asks of a CuPy array, over memory of the host."""

    def __init__(self, array: np.ndarray, device: int = 0) -> None:
        self.array, self.dtype, self.shape, self.size = array, array.dtype, array.shape, array.size
        self.flags = SimpleNamespace(c_contiguous=array.flags.c_contiguous)
        self.data = SimpleNamespace(ptr=array.ctypes.data, device_id=device)
        self.device = contextlib.nullcontext()

    def astype(self, dtype: np.dtype, order: str, copy: bool) -> DeviceArray:
        return DeviceArray(self.array.astype(dtype, order=order, copy=copy))  # type: ignore[call-overload]

    def copy(self) -> DeviceArray:
        return DeviceArray(self.array.copy())


@pytest.fixture(params=["host", "device"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes an array of one of the two kinds from one of NumPy."""
    cupy = SimpleNamespace(may_share_memory=lambda x, y: np.may_share_memory(x.array, y.array))
    cupy.cuda = SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: 0))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return DeviceArray if request.param == "device" else lambda array: array


def on_host(array: Any) -> np.ndarray:
    return array.array if isinstance(array, DeviceArray) else array


def unaligned(count: int, dtype: str) -> np.ndarray:
    """Return an array that begins one byte after where it should."""
    space = np.zeros((count + 1) * np.dtype(dtype).itemsize, np.uint8)
    shift = 1 + -space.ctypes.data % np.dtype(dtype).itemsize
    return space[shift : shift + count * np.dtype(dtype).itemsize].view(dtype)


def test_addresses_are_those_of_the_first_element(kind: Any) -> None:
    x = np.arange(12.0).reshape(3, 4)
    assert pointers.address(kind(x[1:, 2:])) - pointers.address(kind(x)) == 48
    assert pointers.address(kind(x[::-1])) - pointers.address(kind(x)) == 64


def test_arrays_that_may_share_memory_are_copied_and_others_are_not(kind: Any) -> None:
    x = np.arange(64.0).reshape(8, 8)
    for one, other, shared in (
        (x, x, True),
        (x, x.T, True),
        (x[:4], x[4:], False),
        (x[:5], x[4:], True),
        (x[::2], x[1::2], True),  # by their bounds: rows between each other's rows
        (x[::-1][:4], x[4:], True),
        (x[::-1][:4], x[:4], False),
        (x[:0], x, False),
        (x, x.copy(), False),
    ):
        one, other = kind(one), kind(other)
        assert pointers.overlap(one, other) is pointers.overlap(other, one) is shared
        (passed,) = pointers.apart(other, one)
        assert (passed is one) is not shared
        np.testing.assert_array_equal(on_host(passed), on_host(one))
        assert not np.may_share_memory(on_host(passed), on_host(other))
    first, none, second = pointers.apart(kind(x), kind(x), None, kind(x + 1))
    assert none is None and not np.shares_memory(on_host(first), x) and (on_host(second) == x + 1).all()
    inputs = kind(x), None
    assert pointers.apart(None, *inputs) == inputs
    # Parts on devices: those alone are copied that a part of the result may overlap.
    parts = [kind(x[:2]), kind(x[2:6]), kind(x[6:])]
    (passed,) = pointers.apart([kind(x[3:4]), kind(x[7:])], parts)
    assert [mine is part for mine, part in zip(passed, parts, strict=True)] == [True, False, False]
    assert all((on_host(mine) == on_host(part)).all() for mine, part in zip(passed, parts, strict=True))


def test_arrays_of_other_libraries_are_copied_too() -> None:
    torch = pytest.importorskip("torch")
    x = np.arange(12.0).reshape(3, 4)
    for one, other in ((torch.from_numpy(x), x), (x, torch.from_numpy(x)), (torch.from_numpy(x), torch.from_numpy(x))):
        (passed,) = pointers.apart(other, one)
        assert passed is not one and (np.asarray(passed) == x).all() and not np.shares_memory(np.asarray(passed), x)
    apart = torch.zeros(3)
    assert pointers.apart(x, apart)[0] is apart


def test_an_array_of_the_host_and_one_of_the_device_do_not_overlap() -> None:
    x = np.zeros(4)
    assert not pointers.overlap(x, DeviceArray(x)) and not pointers.overlap(DeviceArray(x), x)


def test_what_a_kernel_can_read_passes_as_it_is(kind: Any) -> None:
    fixed = np.arange(6.0)
    fixed.setflags(write=False)
    for x in (np.arange(6.0).reshape(2, 3), np.zeros((0, 3)), np.array(1.5), np.zeros((3, 1))[:, ::-1], fixed):
        given = kind(x)
        assert pointers.operand("x", given) is given
        assert pointers.operand("x", given, np.float64, shape=x.shape) is given
        copied = pointers.operand("x", given, copy=True)
        assert copied is not given and not np.shares_memory(on_host(copied), x)


@pytest.mark.parametrize("kind", ["device"], indirect=True)
def test_arrays_are_readable_where_they_would_pass_as_they_are(kind: Any) -> None:
    x, types = np.arange(24.0).reshape(4, 6), {np.dtype(np.float64), np.dtype(np.int32)}
    for one in (x, x[:0], x.astype(np.int32), x.T, x[:, ::2], unaligned(5, "f8"), x.astype(">f8"), x.astype("f4")):
        given = kind(one)
        passes = one.dtype in types and pointers.operand("x", given, given.dtype) is given
        assert pointers.readable(types, given) == passes == pointers.readable(types, kind(x), given)
    assert pointers.readable(types, kind(x)) and not pointers.readable(types, DeviceArray(x, device=1))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int32"])
def test_what_it_cannot_read_is_copied_with_its_values(kind: Any, dtype: str) -> None:
    x = np.arange(24).reshape(4, 6).astype(dtype)
    shifted = unaligned(24, dtype).reshape(4, 6)
    shifted[...] = x
    complex_parts = (x + 0j).astype("complex128").real
    given = [x.T, x[::-1], x[:, ::2], x[:, 1:], np.broadcast_to(x[0], (3, 6)), np.asfortranarray(x), shifted]
    given += [x.astype(np.dtype(dtype).newbyteorder()), complex_parts]
    for one in given:
        passed = on_host(pointers.operand("x", kind(one), dtype))
        assert passed.flags.c_contiguous and passed.flags.aligned and passed.dtype.isnative and passed.dtype == dtype
        assert passed is not one
        np.testing.assert_array_equal(passed, one)
    swapped = x.astype(np.dtype(dtype).newbyteorder())
    assert on_host(pointers.operand("x", kind(swapped))).dtype.isnative  # its own dtype, in native order
    wide = on_host(pointers.operand("x", kind(np.arange(3, dtype=np.int8)), np.int64))
    assert wide.dtype == np.int64 and wide.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("shape", "wanted", "said"),
    [
        ((2, 3), (3, 2), r"^x has shape \(2, 3\), and 3 x 2 is needed$"),
        ((2, 3), (None, 2), r"and any x 2 is needed$"),
        ((6,), (2, 3), r"^x has shape \(6,\), and 2 x 3 is needed$"),
        ((2, 3), (6,), r"and 6 is needed$"),
    ],
)
def test_another_shape_is_refused(kind: Any, shape: tuple[int, ...], wanted: tuple[int | None, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pointers.operand("x", kind(np.zeros(shape)), shape=wanted)
    if None not in wanted:
        with pytest.raises(ValueError, match=said):
            pointers.output("x", kind(np.zeros(shape)), np.float64, wanted)
    pointers.operand("x", kind(np.zeros(shape)), shape=(None,) * len(shape))


def test_an_output_is_taken_as_it_is_or_refused(kind: Any) -> None:
    for shape in ((2, 3), (0, 3), ()):
        out = kind(np.zeros(shape, np.float32))
        assert pointers.output("out", out, "float32", shape) is out
    x = np.zeros((4, 6))
    for dtype in ("float32", "int64", x.dtype.newbyteorder()):
        with pytest.raises(TypeError, match=r"^out is .*, and the result is float64: pass an array of that dtype$"):
            pointers.output("out", kind(np.zeros((4, 6), dtype)), np.float64, (4, 6))
    for spoilt in (x[::-1], x[:, ::2], x[:2, 1:], x.T, unaligned(24, "float64").reshape(4, 6)):
        with pytest.raises(ValueError, match=r"^out is not C-contiguous, aligned and writeable"):
            pointers.output("out", kind(spoilt), np.float64, spoilt.shape)


def test_a_read_only_output_is_refused() -> None:
    out = np.zeros(3)
    out.setflags(write=False)
    with pytest.raises(ValueError, match="writeable"):
        pointers.output("out", out, np.float64, (3,))


@pytest.mark.parametrize("kind", ["device"], indirect=True)
def test_what_lies_on_another_device_is_refused(kind: Any) -> None:
    elsewhere = DeviceArray(np.zeros(3), device=1)
    with pytest.raises(ValueError, match=r"^x is on device 1, and the current device is 0"):
        pointers.operand("x", elsewhere)
    with pytest.raises(ValueError, match=r"^out is on device 1"):
        pointers.output("out", elsewhere, np.float64, (3,))


def test_read_only_memory_is_shared_without_its_mark() -> None:
    array = np.arange(5.0)
    assert pointers.without_read_only(array) is array
    array.flags.writeable = False
    same = pointers.without_read_only(array)
    assert same.flags.writeable and pointers.address(same) == pointers.address(array)
    del array
    np.testing.assert_array_equal(same, np.arange(5.0))
