"""The host side of SpAMM's CUDA backend without a GPU: structs laid out as the kernels read them, worded refusals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from spectile.core.compile import Unit
from spectile.core.devices import TABLE
from spectile.nearsparse.cuda import geometry
from spectile.nearsparse.cuda import norms as cuda_norms
from spectile.nearsparse.cuda import product as cuda_product
from spectile.nearsparse.cuda import search as cuda_search
from spectile.nearsparse.cuda import survey as cuda_survey
from spectile.nearsparse.cuda.choose import Problem, choose, launches, norms_launch
from spectile.nearsparse.cuda.geometry import LARGEST_SIZE, check_sizes
from spectile.nearsparse.cuda.tuning import PORTABLE, WGMMA, rates
from spectile.nearsparse.cuda.units import (
    NORM_UNITS,
    SEARCH_UNITS,
    SURVEY_UNITS,
    UNITS,
    blocks_unit,
    fitting,
    hopper_unit,
    portable_unit,
)
from spectile.nearsparse.types import PRECISIONS

NORM, SURVEY = NORM_UNITS["float16"], SURVEY_UNITS["float32"]
STRUCTS = {
    "NormTask": (NORM, cuda_norms.NORM_TASK, 0),
    "NormTasks": (NORM, cuda_norms.NORM_TASKS, 0),
    "Search": (SEARCH_UNITS["error", "float32"], cuda_search.SEARCH, 0),
    "Survey": (SURVEY, cuda_survey.SURVEY, 0),
    "Product": (portable_unit("fp16", PORTABLE["fp16"], True), cuda_product.PRODUCT, 0),
    "Product-blocks": (blocks_unit("fp16"), cuda_product.PRODUCT, 0),
    "Product-wgmma": (hopper_unit(WGMMA["wgmma_wide"], "float32"), cuda_product.WGMMA_FIELDS, 384),
    "Product-tf32": (hopper_unit(WGMMA["wgmma_tf32"], "float32"), cuda_product.WGMMA_FIELDS, 384),
}


def _asserts(name: str, layout: np.dtype[Any], shift: int) -> str:
    assert layout.fields is not None
    lines = [
        f'static_assert(__builtin_offsetof({name}, {field}) == {place[1] + shift}, "{field}");'
        for field, place in layout.fields.items()
    ]
    size = layout.itemsize if shift == 0 else cuda_product.WGMMA_PRODUCT.itemsize
    return "\n".join([*lines, f'static_assert(sizeof({name}) == {size}, "size");'])


@pytest.mark.parametrize("name", STRUCTS)
def test_structs_are_laid_out_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed: install the extra cuda12 or cuda13")
    unit, layout, shift = STRUCTS[name]
    source = unit.source() + "\n" + _asserts(name.partition("-")[0], layout, shift)
    monkeypatch.setattr(Unit, "source", lambda self: source)
    assert unit.cubin("sm_90a")


@pytest.mark.parametrize("shape", WGMMA.values(), ids=WGMMA)
def test_hopper_shapes_fit_the_multiprocessor(shape: Any) -> None:
    assert shape.resident * (shape.shared_bytes + 1024) <= 228 * 1024
    assert shape.resident * shape.threads <= 2048
    # Every tile's list must hold all steps of the largest k that choose_way lets through.
    assert shape.list_steps // shape.listers >= -(-WGMMA["wgmma_small"].list_steps // shape.listers)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("precision", PORTABLE)
def test_portable_tiles_fit_every_device(precision: str, name: str) -> None:
    portable, limit = PORTABLE[precision], TABLE[name].shared_bytes
    dtype = PRECISIONS[precision].dtype
    fitted = fitting(portable, dtype, limit)
    assert fitted.stages >= 2
    assert fitted.shared_bytes(dtype) + fitted.static_bytes <= limit
    if limit >= 163 * 1024:
        assert fitted == portable


SIZES = (1, 2, 31, 33, 127, 129, 1000, 1024, 4095, 4700, 8192, 18000, 32768, 65537)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_launch_fits_every_device(precision: str, name: str) -> None:
    device = TABLE[name]
    for n in SIZES:
        for m, k, columns, batches in ((n, n, n, 1), (n, 64, n, 1), (1, n, 1, 1), (n, 1, 1, 1), (64, 64, 64, n)):
            for block, strict, aligned in ((32, False, True), (32, True, False), (8, True, True), (128, False, True)):
                problem = Problem(m, k, columns, batches % 32768 or 1, block, precision, strict, aligned, aligned)
                choice = choose(problem, device)
                assert choice.unit in UNITS
                for shape in launches(problem, device):
                    assert shape.refusal(device) is None, (problem, shape)
                static = 6 * 1024 + 32 if choice.kernel == "portable" else 0
                assert choice.launch.shared_bytes + static <= device.shared_bytes


@pytest.mark.parametrize("precision", PRECISIONS)
def test_more_rows_than_a_grid_has_blocks_for(precision: str) -> None:
    device = TABLE["H200"]
    for sizes in ((9_000_000, 64, 64), (64, 9_000_000, 64), (64, 64, 9_000_000)):
        for shape in launches(Problem(*sizes, precision=precision), device):
            assert shape.refusal(device) is None, (sizes, shape)


def test_rates_of_devices_that_were_not_measured_follow_the_rule() -> None:
    known = rates(TABLE["H200"])
    assert rates(TABLE["H100"]) == known
    for name, device in TABLE.items():
        found = rates(device)
        assert found.peer_bytes > 0 and found.executed.keys() == PRECISIONS.keys()
        assert found.executed["fp32"] == pytest.approx(45e12 * device.multiprocessors / 132)
        if not device.fast_fp64:
            assert found.executed["fp64"] < 0.1 * found.executed["fp32"], name


def test_block_sizes_are_refused_with_the_mend() -> None:
    with pytest.raises(ValueError, match="take 8, 16, 32, 64 or 128"):
        geometry.log2(48)


def test_no_shape_that_memory_holds_asks_for_more_blocks_than_a_grid_has() -> None:
    most = max(device.memory_bytes for device in TABLE.values())
    lengths = (1, 100, 129, 40_000, 600_000, 34_000_000, 2**28, LARGEST_SIZE)
    seen = set()
    for precision, row in PRECISIONS.items():
        size, output = np.dtype(row.dtype).itemsize, np.dtype(row.output).itemsize
        for m, k, n in itertools.product(lengths, repeat=3):
            if size * (m * k + k * n) + output * m * n > most:
                continue
            for block, strict in itertools.product((8, 16, 32, 64, 128), (False, True)):
                for aligned, name in ((True, "H200"), (False, "RTX 4090"), (True, "A100"), (False, "B300")):
                    problem = Problem(m, k, n, 1, block, precision, strict, aligned, aligned)
                    for shape in launches(problem, TABLE[name]):
                        assert shape.refusal(TABLE[name]) is None, (problem, shape)
                    seen.add((m, k, n))
    # The longest of each axis is among them.
    assert all(any(sizes[axis] == LARGEST_SIZE for sizes in seen) for axis in range(3))


@pytest.mark.parametrize("batches", [1, 2, 32767, 32768, 70_000, 10**6])
def test_no_batch_has_more_layers_than_a_grid(batches: int) -> None:
    shape = norms_launch((batches, 16, 16), (16, 16), 4)
    assert all(shape.refusal(device) is None for device in TABLE.values())
    # Layers of A's matrices and of B's, in turn.
    assert shape.grid[2] % 2 == 0 and shape.grid[2] // 2 >= min(batches, 32767)


def test_the_blocks_of_a_norm_map_are_those_of_the_larger_matrix_alone() -> None:
    # A row times a column, and a column times a row.
    for a, b in (((1, 10**8), (10**8, 1)), ((10**8, 1), (1, 10))):
        count = norms_launch(a, b, 4).grid[0]
        assert count * 128 * 128 <= 128 * (10**8 + 128 * 128)


def test_more_rows_than_the_kernels_count_are_refused() -> None:
    long = np.broadcast_to(np.float16(0), (2**31, 1))
    check_sizes("a", long[:LARGEST_SIZE])
    for x in (long, long.T):
        with pytest.raises(ValueError, match=r"^b has 2,147,483,648 rows or columns"):
            check_sizes("b", x)
