"""What is between the products of a refinement, made by the kernels with their threads as fibers of the host."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from spectile.evd.cuda.refine import pairs_shape, survey_shape, tiles_shape
from spectile.evd.cuda.units import REFINE
from spectile.evd.steps import Steps
from spectile.evd.types import SCALARS

from ...on_host import host_library

FIBERS = Path(__file__).parents[2] / "fibers.h"
PENCIL = "const scalar_t* s, const scalar_t* g, long long ld, const real_t* scale, const real_t* w, int n,"
PENCIL += " const real_t* noise"
GRID = 'extern "C" int {}(int x, int y, int z, long long shared_bytes, ' + PENCIL + ", "
RUN = (
    GRID.format("look")
    + """const float* shares, double* sums) {
    return launch({x, y, z}, 256, shared_bytes, 3, [=] {
        survey(s, g, ld, scale, w, n, noise, shares, sums);
    });
}
"""
    + GRID.format("strong")
    + """float share, int* pairs, int* count, int most) {
    return launch({x, y, z}, 256, shared_bytes, 3, [=] {
        strong_pairs(s, g, ld, scale, w, n, noise, share, pairs, count, most);
    });
}
"""
    + GRID.format("lower")
    + """const int* cluster, low_t* couplings, low_t* turns, low_t* left, long long ldo) {
    return launch({x, y, z}, 256, shared_bytes, 3, [=] {
        lower_turns(s, g, ld, scale, w, n, noise, cluster, couplings, turns, left, ldo);
    });
}
"""
    + GRID.format("step")
    + """const int* cluster, float share, const low_t* product, const low_t* squared, long long ldo,
                    scalar_t* out, long long ldy) {
    return launch({x, y, z}, 256, shared_bytes, 3, [=] {
        correct(s, g, ld, scale, w, n, noise, cluster, share, product, squared, ldo, out, ldy);
    });
}
"""
)
ATOMIC = "static inline int atomicAdd(int* at, int more) { const int before = *at; *at += more; return before; }\n"


def launched(function, shape, *arguments):
    grid = (*shape.grid, 1, 1)[:3]
    given = (x.ctypes if isinstance(x, np.ndarray) else x for x in arguments)
    assert function(*grid, ctypes.c_longlong(shape.shared_bytes), *given)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@np.errstate(all="ignore")
def test_the_kernels_see_and_correct_as_the_arrays_do(dtype, tmp_path):
    scalar, unit, rng, n = SCALARS[dtype], REFINE[dtype], np.random.default_rng(6), 35
    source = unit.source()
    defines = "".join(f"#define {name} {value}\n" for name, value in unit.defines.items())
    text = "\n".join((defines, FIBERS.read_text(), ATOMIC, source[source.index("// The scalar of a unit") :], RUN))
    library = host_library(tmp_path / "refine", text, "-w")

    def hermitian():
        a = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if scalar.is_complex else 0)
        return (a + a.conj().T) / 2

    a, b = np.diag(rng.integers(0, 20, n)) + 2e-3 * hermitian(), np.eye(n) + 1e-3 * hermitian()
    a[0, :10] = a[:10, 0] = 0  # nothing but rounding couples these
    steps = Steps(a.astype(dtype), b.astype(dtype), lower=True)
    steps.begin(np.diag(rng.uniform(0.5, 2, n)).astype(dtype))
    shares = np.array([1 / 512, 1 / 64, 1 / 8], np.float32)
    share = float(shares[1])
    seen = steps.look(tuple(shares))
    steps.cluster = np.maximum(np.arange(n) // 2, 3).astype(np.int32)  # whatever they are
    noise = np.array([steps._noise], scalar.real)
    s, g = (np.asfortranarray(np.tril(x) + np.triu(np.full((n, n), np.nan, dtype), 1)) for x in (steps.s, steps.g))
    pencil = s, g, ctypes.c_longlong(n), steps.scale, steps.w, n, noise
    sums = np.full((n, 6), np.nan)
    launched(library.look, survey_shape(n), *pencil, shares, sums)
    counts = sums.sum(0)[3:].astype(int)
    tolerance = 1e-4 if scalar.real == "float32" else 1e-12
    np.testing.assert_allclose(np.sqrt(sums.sum(0)[:3]), seen[:3], rtol=tolerance)
    assert counts.tolist() == seen.strong and n * n > counts[0] > counts[1] > counts[2] > 0
    wanted = set(zip(*steps.pairs(share, int(counts[1])), strict=True))
    for most in (int(counts[1]), 3):
        pairs, count = np.full((n * n, 2), -1, np.int32), np.zeros(1, np.int32)
        launched(library.strong, pairs_shape(n), *pencil, ctypes.c_float(share), pairs, count, int(most))
        assert count[0] == counts[1] and (pairs[most:] == -1).all()
        assert wanted >= set(map(tuple, pairs[:most])) and len(set(map(tuple, pairs[:most]))) == most
    low = np.dtype("F" if scalar.is_complex else "f")
    couplings, turns, left = np.full((3, n, n), np.nan, low)
    launched(
        library.lower, tiles_shape(n, scalar, 3), *pencil, steps.cluster, couplings, turns, left, ctypes.c_longlong(n)
    )
    couplings, turns, left = couplings.T, turns.T, left.T
    assert abs(couplings - couplings.conj().T).max() == 0 == abs(turns + turns.conj().T).max()
    r = (np.eye(n) - steps.g * steps.scale * steps.scale[:, None]) * (1 - np.eye(n))
    np.testing.assert_allclose(left, turns + r, atol=1e-6)
    made = [np.asfortranarray(x @ turns) for x in (couplings, left)]
    for second in (False, True):
        y = np.full((n, n), np.nan, dtype, order="F")
        given = made if second else (None, None)
        launched(library.step, tiles_shape(n, scalar, 2), *pencil, steps.cluster, ctypes.c_float(share), *given,
                 ctypes.c_longlong(n), y, ctypes.c_longlong(n))  # fmt: skip
        before = steps.x
        steps.advance(share, second)
        change = (steps.x - before) / before.diagonal()[:, None]
        steps.x = before
        np.testing.assert_allclose(y, change, atol=1e-6 if second else 100 * np.finfo(dtype).eps)
