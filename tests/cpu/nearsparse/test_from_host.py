"""The host side of SpAMM's CUDA backend without a GPU: structs laid out as the kernels read them, worded refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spectile.core.compile import Unit
from spectile.nearsparse.cuda import launch as gpu_launch
from spectile.nearsparse.cuda import norms as gpu_norms
from spectile.nearsparse.cuda import product as gpu_product
from spectile.nearsparse.cuda import survey as gpu_survey
from spectile.nearsparse.cuda import units as gpu_kernels

NORM, SURVEY = gpu_kernels.NORM_UNITS["float16"], gpu_kernels.SURVEY_UNITS["float32"]
PORTABLE = gpu_kernels.PORTABLE["fp16"]
STRUCTS = {
    "NormTask": (NORM, gpu_norms.NORM_TASK, 0),
    "NormTasks": (NORM, gpu_norms.NORM_TASKS, 0),
    "Search": (SURVEY, gpu_survey.SEARCH, 0),
    "Survey": (SURVEY, gpu_survey.SURVEY, 0),
    "Product": (PORTABLE.unit(PORTABLE.small, True), gpu_product.PRODUCT, 0),
    "Product-blocks": (PORTABLE.blocks_unit(), gpu_product.PRODUCT, 0),
    "Product-wgmma": (gpu_kernels.WGMMA["wgmma_wide"].unit("float32"), gpu_product.WGMMA_FIELDS, 384),
    "Product-tf32": (gpu_kernels.WGMMA["wgmma_tf32"].unit("float32"), gpu_product.WGMMA_FIELDS, 384),
    "Order": (gpu_kernels.ORDER_UNITS["float64"], gpu_product.ORDER, 0),
}


def _asserts(name: str, layout: np.dtype[Any], shift: int) -> str:
    assert layout.fields is not None
    lines = [
        f'static_assert(__builtin_offsetof({name}, {field}) == {place[1] + shift}, "{field}");'
        for field, place in layout.fields.items()
    ]
    size = layout.itemsize if shift == 0 else gpu_product.WGMMA_PRODUCT.itemsize
    return "\n".join([*lines, f'static_assert(sizeof({name}) == {size}, "size");'])


@pytest.mark.parametrize("name", STRUCTS)
def test_structs_are_laid_out_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed: install the extra cuda12 or cuda13")
    unit, layout, shift = STRUCTS[name]
    source = unit.source() + "\n" + _asserts(name.partition("-")[0], layout, shift)
    monkeypatch.setattr(Unit, "source", lambda self: source)
    assert unit.cubin("sm_90a")


@pytest.mark.parametrize("shape", gpu_kernels.WGMMA.values(), ids=gpu_kernels.WGMMA)
def test_hopper_shapes_fit_the_multiprocessor(shape: Any) -> None:
    assert shape.resident * (shape.shared_bytes + 1024) <= 228 * 1024
    assert shape.resident * shape.threads <= 2048
    # Every tile's list must hold all steps of the largest k that choose_kernel lets through.
    assert shape.list_steps // shape.listers >= -(-gpu_kernels.WGMMA["wgmma_small"].list_steps // shape.listers)


@pytest.mark.parametrize("precision", gpu_kernels.PORTABLE)
def test_portable_tiles_fit_a_block(precision: str) -> None:
    found = gpu_kernels.PORTABLE[precision]
    for tile in (found.large, found.small):
        # 6 KiB and a little are the kernel's own: the list and its bits.
        assert found.shared_bytes(tile) + 6272 <= 227 * 1024


def test_block_sizes_are_refused_with_the_mend() -> None:
    with pytest.raises(ValueError, match="take 8, 16, 32, 64 or 128"):
        gpu_launch.log2(48)


@pytest.mark.parametrize("tile", [(256, 256), (128, 256)], ids=lambda tile: "x".join(map(str, tile)))
@pytest.mark.parametrize("tiles", [(16, 16), (9, 13), (1, 5), (20, 3)], ids=lambda tiles: "x".join(map(str, tiles)))
def test_diagonal_order_names_every_tile_once(tiles: tuple[int, int], tile: tuple[int, int]) -> None:
    rows, columns = tiles
    order = gpu_product.tiles_by_diagonal(tiles, tile, 8)
    assert sorted(order.tolist()) == list(range(rows * columns))
    # As the kernels number them: column by column in bands of 8 rows.
    band, within = np.divmod(order, 8 * columns)
    height = np.minimum(8, rows - 8 * band)
    row, column = (8 * band + within % height).astype(int), (within // height).astype(int)
    distance = np.abs((row + 0.5) * tile[0] - (column + 0.5) * tile[1])
    assert (np.diff(distance) >= 0).all()
