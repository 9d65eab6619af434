"""The norm map's source, run on the host: norms of blocks of any size, place and range."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spectile import core
from spectile.nearsparse.bounds import norm_slack
from spectile.nearsparse.cuda import kernels
from spectile.nearsparse.cuda.choose import norms_launch
from spectile.nearsparse.cuda.norms import NORM_TASKS

from ...on_host import host_library

FOLDERS = Path(__file__).parent / "on_host", Path(kernels.__file__).parent, Path(core.__file__).parent
# The load past the L1 is the one line of assembler.
SOURCE = """
#include "ptx.cuh"
#define asm
#define volatile(...) std::memcpy(&raw, from, sizeof raw)
#include "norm_map.cu"
extern "C" int run(const NormTasks* p, unsigned grid) {
  gridDim.z = 2, blockIdx.z = 0;
  return launch([p] { norm_map(*p); }, grid, 128, 0);
}
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("norms")
    flags = "-w", "-fpermissive", "-U_FORTIFY_SOURCE", *(f"-I{path}" for path in FOLDERS)
    return {
        name: host_library(folder / name, SOURCE, *flags, f"-DINPUT_BITS={bits}")
        for name, bits in (("float32", 32), ("float64", 64))
    }


def by_the_kernel(library: Any, x: Any, block: int, transposed: bool) -> Any:
    shape = tuple(-(-size // block) for size in x.shape)
    norms, p = np.full(shape[::-1] if transposed else shape, -1.0), np.zeros((), NORM_TASKS)
    task, pitch = p["task"][0], x.strides[0] // x.itemsize
    task["matrix"], task["norms"], task["leading"] = x.ctypes.data, norms.ctypes.data, pitch
    task["rows"], task["columns"], (task["norm_rows"], task["norm_columns"]) = *x.shape, shape
    task["batches"], task["transposed"] = 1, transposed
    task["aligned"] = x.ctypes.data % 16 == x.strides[0] % 16 == 0
    p["log2_block"] = block.bit_length() - 1
    grid = norms_launch(x.shape, (0, 0), x.itemsize).grid[0]
    assert library.run(p.ctypes.data_as(ctypes.c_void_p), grid)
    return norms.T if transposed else norms


def by_fractions_of_the_largest(x: Any, block: int) -> Any:
    wide, found = x.astype(np.longdouble), np.zeros([-(-size // block) for size in x.shape], np.longdouble)
    for i, j in np.ndindex(*found.shape):
        piece = wide[i * block : (i + 1) * block, j * block : (j + 1) * block]
        largest = abs(piece).max()
        found[i, j] = largest * np.sqrt(((piece / (largest or 1)) ** 2).sum()) if np.isfinite(largest) else largest
    return found


@pytest.mark.parametrize("block", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norms_of_any_place_and_range(libraries: dict[str, Any], dtype: str, block: int) -> None:
    rng, info = np.random.default_rng(3), np.finfo(dtype)
    least, most = math.frexp(float(info.smallest_subnormal))[1], math.frexp(float(info.max))[1]
    memory = np.zeros((260, 260), dtype)
    for rows, columns, shift in ((256, 256, 0), (150, 131, 0), (67, 200, 1), (3, 5, 2), (1, 260, 0)):
        x = memory[:rows, shift : shift + columns]
        # Each 16 x 16 has a range of its own, or is zero: some squares leave that of their sums, and some do not.
        ends = rng.integers(least, most, (-(-rows // 16), -(-columns // 16))).repeat(16, 0).repeat(16, 1)
        held = rng.random(ends.shape) < 0.7
        x[:] = np.where(held, np.ldexp(rng.uniform(0.5, 1, ends.shape), ends), 0)[:rows, :columns]
        wanted = by_fractions_of_the_largest(x, block)
        found = by_the_kernel(libraries[dtype], x, block, transposed=bool(shift))
        slack = norm_slack(dtype)
        assert (found * np.longdouble(slack) >= wanted).all()
        beyond = wanted > np.finfo("f8").max
        assert ((found <= wanted * np.longdouble(slack) + np.longdouble(2.0**-1074)) | beyond).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_part_has_the_norms_that_it_has_in_the_whole(libraries: dict[str, Any], dtype: str) -> None:
    whole = (np.random.default_rng(5).standard_normal((96, 300)) / 3).astype(dtype)
    part = np.zeros((97, 261), dtype)[1:, 1:]
    part[:] = whole[:, :260]  # rows that are not aligned, and end elsewhere
    for block in (16, 32, 64):
        count = 256 // block
        norms = [by_the_kernel(libraries[dtype], x, block, transposed=False)[:, :count] for x in (whole, part)]
        assert (norms[0] == norms[1]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_no_number_stays_in_its_block(libraries: dict[str, Any], dtype: str) -> None:
    x = np.full((96, 96), 1e-30, dtype)
    x[5, 40], x[40, 5], x[41, 6], x[70, 70] = np.inf, np.nan, np.inf, np.nan
    for block in (16, 32, 64):
        found = by_the_kernel(libraries[dtype], x, block, transposed=False)
        for i, j in np.ndindex(*found.shape):
            piece = x[i * block : (i + 1) * block, j * block : (j + 1) * block].astype("f8")
            wanted = math.sqrt((piece**2).sum())
            assert found[i, j] == pytest.approx(wanted, rel=2e-5, nan_ok=True)
