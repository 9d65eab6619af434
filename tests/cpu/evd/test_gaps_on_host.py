"""What is between the products of a gradient, made by the kernel with its threads as fibers of the host."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from spectile.autodiff import spectra
from spectile.evd.cuda.gradient import gaps_shape
from spectile.evd.cuda.units import GRADIENT
from spectile.evd.types import SCALARS

from ...on_host import host_library

FIBERS = Path(__file__).parents[2] / "fibers.h"
RUN = """
extern "C" int run(int x, int y, int z, long long shared_bytes, const scalar_t* s, const real_t* w, const real_t* w_bar,
                   int n, double resolution, double unit, double most, double told, double turned, int* cluster,
                   real_t* sizes, scalar_t* out, double* parts, int* fault) {
    return launch({z, 1, 1}, 256, 4096, 3, [=] { number_clusters(w, w_bar, n, resolution, unit, cluster, sizes); }) &&
           launch({x, y, z}, 256, shared_bytes, 3, [=] {
               divide_by_gaps(s, w, cluster, w_bar, sizes, n, told, turned, out, parts, fault);
           }) && launch({z, 1, 1}, 256, 4096, 3, [=] { judge_gauge(parts, sizes, x, most, fault); });
}
"""
KINDS = ("distinct", "cluster", "cluster_turned", "cluster_told", "phase")


@pytest.mark.parametrize("dtype", SCALARS)
def test_the_kernel_judges_and_divides_as_the_arrays_do(dtype, tmp_path):
    scalar, unit, rng = SCALARS[dtype], GRADIENT[dtype], np.random.default_rng(6)
    source = unit.source()
    defines = "".join(f"#define {name} {value}\n" for name, value in unit.defines.items())
    text = "\n".join((defines, FIBERS.read_text(), source[source.index("// The scalar of a unit") :], RUN))
    library, count, n = host_library(tmp_path / "gaps", text, "-w"), 2, 45
    for kind in KINDS:
        for with_values in (True, False):
            w = np.sort(rng.standard_normal((count, n)), -1).astype(scalar.real)
            s = rng.standard_normal((count, n, n)) + (
                1j * rng.standard_normal((count, n, n)) if scalar.is_complex else 0
            )
            w_bar = rng.standard_normal((count, n)).astype(scalar.real) if with_values else None
            if scalar.is_complex and kind != "phase":
                s[:, np.arange(n), np.arange(n)] = s[:, np.arange(n), np.arange(n)].real
            if kind.startswith("cluster"):
                w[:, 4:7] = w[:, 4:5]
                s[:, 4:7, 4:7] = 0
                if w_bar is not None:
                    w_bar[:, 4:7] = w_bar[:, 4:5]
            if kind == "cluster_turned":
                s[1, 4, 6] = 0.3
            if kind == "cluster_told" and w_bar is not None:
                w_bar[1, 5] += 0.3
            s = s.astype(dtype)
            out, fault, shape = np.full(s.shape, np.nan, dtype), np.zeros(1, np.int32), gaps_shape(n, count, scalar)
            cluster, sizes = np.zeros((count, n), np.int32), np.zeros((count, 2), scalar.real)
            parts = np.full((count, *shape.grid[:2], 2), np.nan)
            assert library.run(
                *(*shape.grid, ctypes.c_longlong(shape.shared_bytes)),
                *(None if x is None else x.ctypes for x in (s, w, w_bar)),
                *(n, *map(ctypes.c_double, spectra.limits(w)), cluster.ctypes, sizes.ctypes, out.ctypes),
                *(parts.ctypes, fault.ctypes),
            )
            assert (cluster == spectra.numbered(np, w)).all()
            told = spectra.faults(np, w, w_bar, s, None).any()
            assert (
                bool(fault[0])
                == told
                == (
                    kind == "cluster_turned"
                    or (kind == "cluster_told" and with_values)
                    or (kind == "phase" and scalar.is_complex)
                )
            )
            inner = spectra.quotients(np, w) * (s - spectra.adjoint(s))
            if w_bar is not None:
                inner = inner + 2 * spectra.diagonal(np, w_bar)
            np.testing.assert_allclose(out, inner, rtol=1e-5 if scalar.real == "float32" else 1e-13)
