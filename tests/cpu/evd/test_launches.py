"""What the eigensolver's launches ask of a device, held against the table of devices; no GPU is needed."""

import ast
import dataclasses
import itertools
import re
from pathlib import Path

import pytest

import spectile.evd.cuda
from spectile.core.devices import TABLE
from spectile.evd.cuda.choose import (
    calls_vendor,
    largest_order,
    rotated_order,
    stage_parameters,
    tile_slots,
    tuning,
)
from spectile.evd.cuda.workspace import workspace_bytes
from spectile.evd.types import SCALARS

from .launches import (
    launches,
    of_batches,
    of_gradient,
    of_refinement,
    of_rotations,
    of_several_devices,
    of_sweeps,
    of_triangular,
)

FOLDER = Path(spectile.evd.cuda.__file__).parent
ORDERS = (1, 2, 31, 32, 33, 127, 128, 129, 639, 640, 1031, 1536, 2047, 4096, 4099, 8192, 11_999, 12_000, 13_007, 16_384)


def orders(device, scalar, vectors):
    """Orders up to the largest whose matrix and work space fit the device."""
    most = 1
    while most < 2 * largest_order(device) and fits(most + 1024, device, scalar, vectors):
        most += 1024
    return [*(n for n in ORDERS if n <= most), *range(16_384 + 4096, most, 8192), most]


def fits(n, device, scalar, vectors):
    needed = scalar.itemsize * n * n + workspace_bytes(n, scalar, device, vectors=vectors)
    return needed <= device.memory_bytes


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("vectors", [False, True])
def test_every_launch_fits_every_device(name, dtype, vectors):
    device, scalar = TABLE[name], SCALARS[dtype]
    for n in orders(device, scalar, vectors):
        columns = {1, min(n, 10), n // 8 + 1, n} if vectors else {n}
        for count in columns:
            for kernel, shape in launches(n, dtype, device, vectors=vectors, columns=count):
                assert shape.refusal(device) is None, (n, count, kernel, shape)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dtype", SCALARS)
def test_batches_fit_every_device(name, dtype):
    scalar = SCALARS[dtype]
    for n in range(1, 1025):
        for count in (1, 1000, 2**24):
            rotated = n <= rotated_order(dtype, count)
            for kernel, shape in of_rotations(n, count, scalar) if rotated else of_batches(n, count):
                assert shape.refusal(TABLE[name]) is None, (n, count, kernel, shape)
    for kernel, shape in (*of_triangular(scalar), *of_refinement(16_384, scalar)):
        assert shape.refusal(TABLE[name]) is None, (kernel, shape)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dtype", SCALARS)
def test_what_several_devices_share_fits_each(name, dtype):
    device, scalar = TABLE[name], SCALARS[dtype]
    for n in (1, 33, 13_000, largest_order(device)):
        for parts in (1, 2, 8):
            bandwidth, block = stage_parameters(n, scalar, vectors=True, device=device)
            for kernel, shape in of_several_devices(n, scalar, bandwidth, block, parts, device):
                assert shape.refusal(device) is None, (n, parts, kernel, shape)


def test_every_kernel_is_counted():
    """The launches name every kernel of the sources, so the test above has seen them all."""
    sources = "".join(path.read_text() for path in sorted(FOLDER.rglob("*.cu")))
    bounds = r"(?:__cluster_dims__\([^()]*\) )?__launch_bounds__\([^()]*\)"
    written = set(re.findall(rf'extern "C" __global__ void {bounds}\s+(\w+)\(', sources))
    counted = {
        kernel
        for dtype, vectors, n in itertools.product(SCALARS, (False, True), (32, 1100, 3001, 13_000))
        for columns in (10, n)
        for kernel, _ in launches(n, dtype, TABLE["H200"], vectors=vectors, columns=columns)
    } | {kernel for kernel, _ in launches(40_000, "float64", TABLE["H200"], vectors=False)}
    counted |= {kernel for kernel, _ in of_batches(100, 10)}
    counted |= {kernel for kernel, _ in of_triangular(SCALARS["float64"])}
    counted |= {kernel for kernel, _ in of_several_devices(1000, SCALARS["float64"], 32, 128, 2, TABLE["H200"])}
    for part in (of_gradient, of_refinement):
        counted |= {kernel for kernel, _ in part(1000, SCALARS["float64"])}
    assert written == counted


def test_every_kernel_is_launched_through_core():
    """Limits of shared memory belong to a kernel, not to its launch: core.launch sets the largest, once.

    Found with ``eigh(a); eigh(a, subset_by_index=(0, 9)); eigh(a)`` of order 3001, where the second call lowered it.
    """
    forbidden = {"RawKernel", "RawModule", "get_function", "max_dynamic_shared_size_bytes", "module"}
    for path in FOLDER.rglob("*.py"):
        used = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert not used & forbidden, path


def test_one_kernel_has_several_sizes():
    """The case of the fault: a part of the spectrum asks for less shared memory than the whole."""
    device = TABLE["H200"]
    sizes = {
        shape.shared_bytes
        for columns in (3001, 10)
        for kernel, shape in launches(3001, "float64", device, vectors=True, columns=columns)
        if kernel == "follow_sweeps"
    }
    assert len(sizes) == 2


@pytest.mark.parametrize("name", TABLE)
def test_blocks_that_wait_for_each_other_are_launched_together(name):
    for n in (3001, 16_000):
        for kernel, shape in launches(n, "float64", TABLE[name], vectors=False):
            assert shape.cooperative == (kernel in ("panel_qr", "tall_panel_qr", "tridiagonalize"))
            assert not shape.cooperative or shape.grid[0] <= TABLE[name].multiprocessors


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_single_precision_does_not_pass_through_slow_double(name, dtype):
    device = TABLE[name]
    assert device.fast_fp64 or calls_vendor(8000, SCALARS[dtype], vectors=True, device=device)
    assert not calls_vendor(8000, SCALARS[dtype], vectors=False, device=device)


@pytest.mark.parametrize("name", TABLE)
def test_two_stages_are_taken_where_they_save_time(name):
    """With FP64 at 1/32 or 1/64 of FP32 the reduction does not wait for memory, and two stages take more operations."""
    device, scalar = TABLE[name], SCALARS["float64"]
    assert calls_vendor(8000, scalar, vectors=True, device=device) == (not device.fast_fp64)
    assert calls_vendor(500, scalar, vectors=True, device=device) == (not device.fast_fp64)
    if device.fast_fp64:
        assert not calls_vendor(8000, scalar, vectors=False, device=device)
    assert (stage_parameters(20_000, scalar, vectors=False, device=device)[0] == 64) == device.fast_fp64


def test_what_was_measured_goes_before_the_rule():
    for name in ("H100", "H200"):
        assert tuning(TABLE[name]) is tuning(TABLE["H200"])
    slow_memory = dataclasses.replace(TABLE["H200"], name="other", bytes_per_second=1e9)
    assert tuning(slow_memory) == dataclasses.replace(tuning(TABLE["H200"]))
    no_units = dataclasses.replace(TABLE["H200"], name="other", fp64_divisor=64)
    assert tuning(no_units).vendor_values["float64"] > largest_order(no_units)
    assert tuning(no_units).vendor_values["float32"] == tuning(TABLE["H200"]).vendor_values["float32"]


def test_wide_bands_fit_small_shared_memory():
    """Found at n = 12,000: the back-transformation asked for 105,488 bytes where a block has 101,376."""
    for name in ("A10", "RTX 3090", "RTX 4090", "L40S", "RTX 5090", "RTX PRO 6000"):
        device = TABLE[name]
        assert tile_slots(device) == 1
        for kernel, shape in of_sweeps(12_000, SCALARS["float64"], 64, 12_000, device):
            assert shape.shared_bytes <= 101_376, kernel
