"""The host side of SpAMM's CUDA backend without a GPU: structs laid out as the kernels read them, worded refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spectile.gpu.compile import Unit
from spectile.spamm import gpu

NORM, SURVEY = gpu._NORM_UNITS["float16"], gpu._SURVEY_UNITS["float32"]
PORTABLE = gpu._PRECISIONS["fp16"]
STRUCTS = {
    "NormTask": (NORM, gpu._NORM_TASK, 0),
    "NormTasks": (NORM, gpu._NORM_TASKS, 0),
    "Search": (SURVEY, gpu._SEARCH, 0),
    "Survey": (SURVEY, gpu._SURVEY, 0),
    "Product": (PORTABLE.unit(PORTABLE.small, True), gpu._PRODUCT, 0),
    "Product-blocks": (PORTABLE.blocks_unit(), gpu._PRODUCT, 0),
    "Product-wgmma": (gpu.WGMMA["wgmma_wide"].unit("float32"), gpu._WGMMA_FIELDS, 384),
    "Product-tf32": (gpu.WGMMA["wgmma_tf32"].unit("float32"), gpu._WGMMA_FIELDS, 384),
    "Order": (gpu._ORDER_UNITS["float64"], gpu._ORDER, 0),
}


def _asserts(name: str, layout: np.dtype[Any], shift: int) -> str:
    assert layout.fields is not None
    lines = [
        f'static_assert(__builtin_offsetof({name}, {field}) == {place[1] + shift}, "{field}");'
        for field, place in layout.fields.items()
    ]
    size = layout.itemsize if shift == 0 else gpu._WGMMA_PRODUCT.itemsize
    return "\n".join([*lines, f'static_assert(sizeof({name}) == {size}, "size");'])


@pytest.mark.parametrize("name", STRUCTS)
def test_structs_are_laid_out_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy, which brings NVRTC, is not installed: install the extra cuda12 or cuda13")
    unit, layout, shift = STRUCTS[name]
    source = unit.source() + "\n" + _asserts(name.partition("-")[0], layout, shift)
    monkeypatch.setattr(Unit, "source", lambda self: source)
    assert unit.cubin("sm_90a")


@pytest.mark.parametrize("shape", gpu.WGMMA.values(), ids=gpu.WGMMA)
def test_hopper_shapes_fit_the_multiprocessor(shape: Any) -> None:
    assert shape.resident * (shape.shared_bytes + 1024) <= 228 * 1024
    assert shape.resident * shape.threads <= 2048
    # Every tile's list must hold all steps of the largest k that choose_kernel lets through.
    assert shape.list_steps // shape.listers >= -(-gpu.WGMMA["wgmma_small"].list_steps // shape.listers)


@pytest.mark.parametrize("precision", gpu._PRECISIONS)
def test_portable_tiles_fit_a_block(precision: str) -> None:
    found = gpu._PRECISIONS[precision]
    for tile in (found.large, found.small):
        # 6 KiB and a little are the kernel's own: the list and its bits.
        assert found.shared_bytes(tile) + 6272 <= 227 * 1024


def test_block_sizes_are_refused_with_the_mend() -> None:
    with pytest.raises(ValueError, match="take 8, 16, 32, 64 or 128"):
        gpu._log2(48)
