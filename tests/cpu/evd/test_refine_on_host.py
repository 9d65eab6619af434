"""What is between the products of a refinement, made by the kernels with their threads as fibers of the host."""

import ctypes

import numpy as np
import pytest

from spectile.evd.cuda.matrix import triangle_shape
from spectile.evd.cuda.refine import pairs_shape, survey_shape
from spectile.evd.cuda.units import REFINE
from spectile.evd.steps import Steps
from spectile.evd.types import SCALARS

from ...on_host import fibers_library

PAIRS = "const scalar_t* s, long long ld, const real_t* w, int n, const real_t* noise"
GRID = 'extern "C" int run_{}(int x, int y, int z, long long shared_bytes, '
LAUNCH = " {{\n    return launch({{x, y, z}}, 256, shared_bytes, 3, [=] {{ {}; }});\n}}\n"
OF_PAIRS = "s, ld, w, n, noise, "
RUN = "".join(
    GRID.format(name) + (PAIRS + ", " if of_pairs else "") + parameters + LAUNCH.format(f"{name}({names})")
    for name, of_pairs, parameters, names in (
        ("survey", True, "const float* shares, double* sums)", OF_PAIRS + "shares, sums"),
        (
            "strong_pairs",
            True,
            "float share, int* pairs, int* count, int most)",
            OF_PAIRS + "share, pairs, count, most",
        ),
        (
            *("lower_turns", True),
            "const int* cluster, part_t* couplings, part_t* turns, long long ldo, float first, float second)",
            OF_PAIRS + "cluster, couplings, turns, ldo, first, second",
        ),
        (
            *("raise_order", True),
            "const int* cluster, float share, int order, const low_t* product, long long ldp, part_t* half, "
            "part_t* left, long long ldo, float first, float second, scalar_t* turns, long long ldt, real_t* values)",
            OF_PAIRS + "cluster, share, order, product, ldp, half, left, ldo, first, second, turns, ldt, values",
        ),
        (
            *("exponent", False),
            "scalar_t* turns, long long ldt, const scalar_t* gram, long long ld, int n, part_t* squared, part_t* left, "
            "long long ldo, float first, float second)",
            "turns, ldt, gram, ld, n, squared, left, ldo, first, second",
        ),
    )
)


def library_of(dtype, path):
    return fibers_library(path / "refine", REFINE[dtype], RUN)


def launched(function, shape, *arguments):
    grid = (*shape.grid, 1, 1)[:3]
    given = (x.ctypes if isinstance(x, np.ndarray) else x for x in arguments)
    assert function(*grid, ctypes.c_longlong(shape.shared_bytes), *given)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@np.errstate(all="ignore")
def test_the_kernels_see_and_correct_as_the_arrays_do(dtype, tmp_path):
    scalar, rng, n = SCALARS[dtype], np.random.default_rng(6), 35
    library, low, ld = library_of(dtype, tmp_path), np.dtype("F" if scalar.is_complex else "f"), ctypes.c_longlong(n)
    twist = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if scalar.is_complex else 0)
    levels = np.arange(n) // 2 + 0.95 * (np.arange(n) % 8 == 5) + 0.7 * (np.arange(n) % 8 == 3)
    a = np.diag(levels) + 1e-3 * (twist + twist.conj().T)
    a[0, :10] = a[:10, 0] = 0  # nothing but rounding couples these
    steps = Steps(a.astype(dtype), lower=True)
    steps.begin(np.eye(n, dtype=dtype))
    shares = np.array([1 / 512, 1 / 64, 1 / 8], np.float32)
    share = float(shares[1])
    seen = steps.look(tuple(shares))
    steps.cluster = (np.arange(n) // 2).astype(np.int32)
    noise, pair_share = np.array([steps._noise], scalar.real), ctypes.c_float(share)
    s = np.asfortranarray(np.tril(steps.s) + np.triu(np.full((n, n), np.nan, dtype), 1))
    pairs_of = s, ld, steps.w, n, noise
    sums = np.full((n, 7), np.nan)
    launched(library.run_survey, survey_shape(n), *pairs_of, shares, sums)
    counts = sums.sum(0)[4:].astype(int)
    np.testing.assert_allclose(
        np.sqrt(sums.sum(0)[:4]), [seen.residual, *seen.turned], rtol=1e-4 if scalar.real == "float32" else 1e-12
    )
    assert counts.tolist() == seen.strong and n * n > counts[0] > counts[1] > counts[2] > 0
    wanted = set(zip(*steps.pairs(share, int(counts[1])), strict=True))
    for most in (int(counts[1]), 3):
        pairs, count = np.full((n * n, 2), -1, np.int32), np.zeros(1, np.int32)
        launched(library.run_strong_pairs, pairs_shape(n), *pairs_of, pair_share, pairs, count, int(most))
        assert count[0] == counts[1] and (pairs[most:] == -1).all()
        assert wanted >= set(map(tuple, pairs[:most])) and len(set(map(tuple, pairs[:most]))) == most
    # What tensor cores read, scaled, and what that leaves 2048 times as large.
    kind, small, scales = "F" if scalar.is_complex else "e", 2.0**-11, (2.0**9, 2.0**4)
    given_scales = tuple(map(ctypes.c_float, scales))

    def whole(two, scale):
        """Return the numbers of which there are two parts in columns."""
        return (two[0].astype(scalar.wide) + small * two[1].astype(scalar.wide)).T / scale

    couplings, firsts = np.full((2, 2, n, n), np.nan, kind)
    launched(
        *(library.run_lower_turns, triangle_shape(n, scalar, 2), *pairs_of, steps.cluster, couplings, firsts, ld),
        *given_scales,
    )
    if scalar.is_complex:
        assert not (couplings[0].view(np.int32) & 0x1FFF).any()
    coupling, first = map(whole, (couplings, firsts), scales)
    for one, two, sign in ((coupling, couplings, 1), (first, firsts, -1)):
        assert abs(one - sign * one.conj().T).max() == 0 < abs(small * two[1]).max() < 2**-11 * abs(two[0]).max()
    turned = np.divide(coupling, steps.w - steps.w[:, None], out=np.zeros_like(coupling), where=coupling != 0)
    np.testing.assert_allclose(first, turned, rtol=1e-5, atol=1e-9)

    def in_columns(product):
        return np.asfortranarray(product.astype(low))

    for third in (False, True):
        turns, values = np.full((n, n), np.nan, dtype, order="F"), np.zeros(n, scalar.real)
        half, left = (np.full((n, n), np.nan, kind, order="F") for _ in range(2))
        product = in_columns(coupling @ first)
        for order in (2, 3)[: 1 + third]:
            launched(
                *(library.run_raise_order, triangle_shape(n, scalar, 3), *pairs_of, steps.cluster, pair_share, order),
                *(product, ld, *((half, left) if third and order == 2 else (None, None)), ld, *given_scales),
                *(turns, ld, values),
            )
            parts = (each.astype(scalar.wide) / scale for each, scale in zip((half, left), scales, strict=True))
            product = in_columns(coupling @ next(parts) + next(parts) @ first)
        assert abs(turns + turns.conj().T).max() == 0
        gram = np.asfortranarray(np.tril(turns.conj().T @ turns) + np.triu(np.full((n, n), np.nan, dtype), 1))
        squared, left = np.full((2, 2, n, n), np.nan, kind)
        launched(
            *(library.run_exponent, triangle_shape(n, scalar, 2), turns, ld, gram, ld, n),
            *(*((squared, left) if third else (None, None)), ld, *given_scales),
        )
        before, w = steps.x, steps.w
        steps.advance(share, exactly=True, third=third)
        found = before + turns
        if third:
            found = found + whole(squared, scales[0]) @ whole(left, scales[1])
        # Single precision of the second order, and eleven bits of the third.
        tolerance = 1e-6 if third or scalar.real == "float32" else 2e-9
        np.testing.assert_allclose(found, steps.x, atol=tolerance)
        np.testing.assert_allclose(w + values, steps.w, atol=20 * tolerance)
        assert abs(steps.x - before).max() > 1e-3
        steps.x, steps.w = before, w
