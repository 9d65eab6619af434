"""What users do that no sheet holds: any shape, any layout, tiny and huge entries, matrices in place of norm maps."""

from __future__ import annotations

import itertools
import math
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from spectile import TileMatrix
from spectile.core.devices import TABLE
from spectile.core.tensor_map import _strides
from spectile.nearsparse import NormMap, distribute, norm_map, spamm, spamm_threshold, tune_tau
from spectile.nearsparse.cpu.norms import row_major
from spectile.nearsparse.cuda.choose import Problem, choose_way
from spectile.nearsparse.result import SpammResult
from spectile.nearsparse.types import PRECISIONS
from spectile_study.cases.spamm import reference

LENGTHS = (0, 1, 2, 31, 32, 33, 127, 128, 129)


def decay(rows: int, columns: int, dtype: str = "f8", scale: float = 1.0) -> Any:
    i, j = np.arange(rows)[:, None] // 32, np.arange(columns)[None] // 32
    values = np.random.default_rng(rows + 7 * columns).standard_normal((rows, columns))
    return (scale * values * np.exp(-0.5 * abs(i - j))).astype(dtype)


@pytest.mark.parametrize("m", LENGTHS)
def test_any_shape(m: int) -> None:
    shapes = [(m, k, n) for k, n in itertools.product((0, 1, 33, 128), (1, 2, 127))]
    for rows, inner, columns in [*shapes, (m, 4999, 1), (1, m, 4999)]:
        for dtype in ("f2", "f4", "f8"):
            a, b = decay(rows, inner, dtype), decay(inner, columns, dtype)
            result = spamm(a, b, tau=0.5, backend="cpu")
            wanted = reference.spamm_flat(a.astype("f8"), b.astype("f8"), 0.5)
            np.testing.assert_allclose(result.c, wanted, rtol=1e-4, atol=1e-3 if dtype == "f2" else 1e-4)


@pytest.mark.parametrize("order", ["FF", "FC", "CF"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_operands_in_fortrans_order(order: str, dtype: str) -> None:
    a, b, c = decay(300, 200, dtype), decay(200, 170, dtype), decay(300, 170)
    given = [np.asarray(x, order=o) for x, o in zip((a, b), order, strict=True)]
    plain, found = (spamm(*pair, valid_ratio=0.4, backend="cpu") for pair in ((a, b), given))
    np.testing.assert_allclose(found.c, plain.c, rtol=1e-5, atol=1e-5)
    assert found.tau == pytest.approx(plain.tau) and found.valid_ratio == plain.valid_ratio
    assert found.error_bound == pytest.approx(plain.error_bound)
    # Nothing is copied where all lie by columns, and the result does, too.
    assert found.c.flags.f_contiguous == (order == "FF")
    added = np.asfortranarray(c.astype(plain.c.dtype))
    both = [spamm(*x, tau=1.0, beta=2.0, c=y, backend="cpu").c for x, y in (((a, b), c), (given, added), (given, c))]
    for other in both[1:]:
        np.testing.assert_allclose(other, both[0], rtol=1e-5, atol=1e-5)
    out = np.empty(plain.c.shape, plain.c.dtype)
    assert spamm(*given, valid_ratio=0.4, out=out, backend="cpu").c is out
    np.testing.assert_allclose(out, plain.c, rtol=1e-5, atol=1e-5)


def test_a_matrix_by_columns_is_copied_by_tiles() -> None:
    for shape in ((1, 1), (33, 65), (700, 1000), (1000, 1)):
        x = np.asfortranarray(decay(*shape))
        assert row_major(x).flags.c_contiguous
        np.testing.assert_array_equal(row_major(x), x)
        np.testing.assert_array_equal(row_major(x[::2]), x[::2])


@pytest.mark.parametrize(
    ("dtype", "scale"), [("f4", 1e-24), ("f4", 1e-30), ("f4", 1e17), ("f8", 1e-170), ("f8", 1e150)]
)
def test_the_bound_holds_where_squares_or_products_leave_the_range(dtype: str, scale: float) -> None:
    a, b = decay(160, 192, dtype, scale), decay(192, 128, dtype, scale)
    wide_a, wide_b = (x.astype(np.longdouble) / scale for x in (a, b))
    exact = wide_a @ wide_b
    norms = norm_map(a).norms
    assert (norms > 0).all() and np.isfinite(norms).all()
    np.testing.assert_allclose(norms / scale, reference.norm_map(a.astype("f8") / scale), rtol=1e-12)
    for choice in ({"tau": 0.0}, {"tau": float(norms.max()) * float(norm_map(b).norms.max()) / 2}):
        with np.errstate(over="ignore"):
            result = spamm(a, b, backend="cpu", **choice)
        if np.isfinite(result.c).all():
            error = float(np.linalg.norm((result.c.astype(np.longdouble) / scale / scale - exact).astype("f8")))
            assert error <= result.error_bound / scale / scale
    if scale < 1:
        with pytest.raises(ValueError, match="underflow"):
            spamm(a, b, rtol_factors=1e-3, backend="cpu")


def test_matrices_are_told_from_norm_maps() -> None:
    a = decay(256, 256)
    # A matrix without negative entries, too, which by its numbers could be a norm map.
    for matrix in (a, abs(a), norm_map(a).norms):
        assert tune_tau(matrix, matrix, 0.25) == tune_tau(norm_map(matrix), norm_map(matrix), 0.25)
    assert tune_tau(abs(a), abs(a), 0.25, block=16) == tune_tau(norm_map(a, 16), norm_map(a, 16), 0.25)
    with pytest.raises(ValueError, match="as no norm map does"):
        tune_tau(NormMap(-norm_map(a).norms), norm_map(a), valid_ratio=0.1)
    with pytest.raises(ValueError, match="take both with one block"):
        tune_tau(norm_map(a, 16), norm_map(a, 32), 0.1)


@pytest.mark.parametrize("choice", [{"tau": 3.0}, {"valid_ratio": 0.3}, {"rtol_factors": 0.1}, {"rtol_factors": 1e-3}])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_a_threshold_is_that_of_the_product(choice: dict[str, float], dtype: str) -> None:
    a, b = decay(300, 260, dtype), decay(260, 200, dtype)
    made = spamm(a, b, backend="cpu", method="spamm", **choice)
    told = spamm_threshold(a, b, backend="cpu", **choice)
    assert (told.tau, told.valid_ratio) == (made.tau, made.valid_ratio)
    assert told.error_bound == pytest.approx(made.error_bound)


def test_a_threshold_is_of_two_matrices() -> None:
    a = decay(64, 64)
    with pytest.raises(ValueError, match="of one product"):
        spamm_threshold(a[None], a, tau=1.0)
    with pytest.raises(ValueError, match="exactly one"):
        spamm_threshold(a, a)


@pytest.mark.parametrize("word", ["fp32", "float32"])
def test_both_spellings_of_a_precision_are_one(word: Any) -> None:
    a = decay(64, 64, "f4")
    np.testing.assert_array_equal(spamm(a, a, tau=1.0, precision=word, backend="cpu").c, spamm(a, a, tau=1.0).c)
    with pytest.raises(ValueError, match="'float16', 'float16c16', 'float32', 'tf32x3', 'float64'"):
        spamm(a, a, tau=1.0, precision="tf32", backend="cpu")  # type: ignore[arg-type]


def test_rows_of_one_element_have_strides_that_the_copy_engine_takes() -> None:
    for shape in ((1, 1, 1), (1, 1, 7), (1, 5, 8), (3, 1, 8), (1, 300, 64)):
        array = np.empty(shape, "f2")
        for size, stride in zip(shape[:-1], _strides(array), strict=True):
            assert size > 1 or (stride % 16 == 0 and stride > 0)
            assert size == 1 or stride == array.strides[shape.index(size)]


def test_layouts_that_the_copy_engine_refuses_take_another_kernel() -> None:
    def layout(shape: tuple[int, ...], strides: tuple[int, ...], pointer: int = 256) -> Any:
        return SimpleNamespace(
            shape=shape, strides=strides, itemsize=2, ndim=len(shape), data=SimpleNamespace(ptr=pointer)
        )

    plain, device = layout((256, 256), (512, 2)), TABLE["H200"]
    for other, kernel in (
        (plain, "wgmma_small"),
        (layout((1, 256), (2, 2)), "wgmma_small"),
        (layout((256, 256), (512, 2), 258), "portable"),
        (layout((256, 256), (514, 2)), "portable"),
        (layout((256, 256), (1 << 41, 2)), "portable"),
        (layout((3, 256, 256), (-131072, 512, 2)), "portable"),
    ):
        out = layout((3, 256, 256), (131072, 512, 2)) if len(other.shape) == 3 else plain
        problem = Problem.of(other, plain, out, 32, "fp16")
        assert choose_way(problem, device).kernel == kernel, other
    for precision in PRECISIONS:
        for m, n in itertools.product((1, 2, 31, 129), repeat=2):
            assert choose_way(Problem(m, 1, n, precision=precision), device).kernel


def test_a_result_travels_between_processes() -> None:
    a = np.eye(70)
    result = pickle.loads(pickle.dumps(spamm(a, a, tau=0.5, backend="cpu")))  # none of its numbers was read before
    np.testing.assert_array_equal(result.c, a)
    assert result.tau == 0.5 and result.method == "spamm" and 0 < result.error_bound < 1e-10


def test_a_result_tells_what_is_known_and_computes_nothing() -> None:
    a = np.eye(70)
    result = spamm(a, a, tau=0.5, backend="cpu")
    ratio = result.valid_ratio
    assert repr(result) == (
        f"SpammResult(70x70 float64, tau=0.5, valid_ratio={ratio:.6g}, executed_ratio={ratio:.6g}, "
        "not read yet: error_bound)"
    )
    bound = result.error_bound
    assert repr(result).endswith(f"executed_ratio={ratio:.6g}, error_bound={bound:.6g})")
    batch = spamm(np.stack([a, a]), a, tau=0.5, backend="cpu")
    assert f"valid_ratio={ratio:.6g} to {ratio:.6g}" in repr(batch)
    half = spamm(a.astype("f2"), a.astype("f2"), tau=0.5, backend="cpu")
    assert "not read yet: error_bound" in repr(half)
    assert f"error_bound={half.error_bound:.6g})" in repr(half)


@pytest.mark.parametrize(("size", "alpha"), [(1e30, 1.0), (1.0, 1e60), (1e30, 1e-40)])
def test_the_bound_holds_where_c_overflows(size: float, alpha: float) -> None:
    a = np.full((8, 8), size, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        result = spamm(a, a, tau=0.0, alpha=alpha, backend="cpu")
        error = np.linalg.norm(result.c - alpha * (a.astype(float) @ a.astype(float)))
    assert not error <= 1e30 and result.error_bound == np.inf and result.error_bound_rel == np.inf
    if alpha == 1:
        with pytest.raises(ValueError, match="rtol_factors"):
            spamm(a, a, rtol_factors=1e-3, backend="cpu")


# Powers of two by which entries below 1 are scaled, and whether norms of 256 x 256 of them have a product within range.
SCALES = [
    *(("f2", exponent, True) for exponent in (-3, 0, 8, 15)),
    *(("f4", exponent, -60 <= exponent <= 55) for exponent in (-100, -60, -30, 30, 55, 64, 100, 127)),
    *(("f8", exponent, -500 <= exponent <= 505) for exponent in (-537, -500, -300, -200, 200, 300, 505, 520, 1000)),
]


@pytest.mark.parametrize(("dtype", "exponent", "fits"), SCALES)
def test_a_wanted_error_is_met_or_refused_wherever_entries_lie(dtype: str, exponent: int, fits: bool) -> None:
    i = np.arange(256)
    a = np.exp(-abs(i[:, None] - i) / 20).astype(dtype)
    a[a < 1e-3] = 0
    scaled, rtol = np.ldexp(a, exponent), 1e-3
    if not fits:
        for call in (spamm, spamm_threshold):
            with pytest.raises(ValueError, match="below what rounding"):
                call(scaled, scaled, rtol_factors=rtol, backend="cpu")
        return
    plain, found = (spamm(x, x, rtol_factors=rtol, backend="cpu", method="spamm") for x in (a, scaled))
    assert 0.1 < plain.valid_ratio < 0.9 and found.valid_ratio == plain.valid_ratio
    assert np.ldexp(found.tau, -2 * exponent) == pytest.approx(plain.tau, rel=2e-6)
    wide = a.astype(float)
    error = np.linalg.norm(np.ldexp(found.c.astype(float), -2 * exponent) - wide @ wide)
    bound = np.ldexp(found.error_bound, -2 * exponent)
    assert 0 < error <= bound <= rtol * np.linalg.norm(wide) ** 2 * (1 + 1e-9)


def test_no_finite_bound_stands_beside_an_infinite_c_in_half_precision() -> None:
    # As on a GPU, where nothing looks for infinity in C.
    numbers = {"tau": 0.0, "valid_ratio": 1.0, "executed_ratio": 1.0, "error_bound": 0.5}
    c = np.array([[2.0, 1.0]], "f2")
    assert SpammResult(c, norm_c=lambda: 5**0.5, **numbers).error_bound == 0.5
    c[0, 1] = np.inf
    for parts in (c, [c, c]):
        broken = SpammResult(parts, norm_c=lambda: math.inf, **numbers)
        assert broken.error_bound == broken.error_bound_rel == math.inf
    several = numbers | {"error_bound": np.array([0.5, 0.25])}
    one_broken = SpammResult(np.stack([c, c]), norm_c=np.array([math.inf, 1.0]), **several)
    assert one_broken.error_bound.tolist() == one_broken.error_bound_rel.tolist() == [math.inf, 0.25]


def test_masks_and_sparse_matrices_are_refused() -> None:
    a = np.eye(40)
    masked = np.ma.masked_array(a, mask=a > 0)
    for call in (
        lambda: spamm(masked, a, tau=0.0, backend="cpu"),
        lambda: spamm(a, a, tau=0.0, beta=1.0, c=masked, backend="cpu"),
        lambda: spamm_threshold(a, masked, tau=0.0, backend="cpu"),
        lambda: norm_map(masked),
    ):
        with pytest.raises(TypeError, match="has masked entries"):
            call()
    with pytest.raises(TypeError, match=r"b is a sparse matrix.*b.toarray\(\)"):
        spamm(a, sp.csr_array(a), tau=0.0, backend="cpu")
    np.testing.assert_array_equal(spamm(np.ma.masked_array(a), a, tau=0.0, backend="cpu").c, a)


@pytest.mark.parametrize(
    "options",
    [
        {"tau": "1"}, {"tau": [1.0]}, {"tau": 1j}, {"valid_ratio": "x"}, {"tau": np.ones(2)},
        {"tau": 1.0, "alpha": None}, {"tau": 1.0, "beta": 1j}, {"tau": 1.0, "out": [[0.0]]},
    ],
)  # fmt: skip
def test_arguments_of_other_types_are_named(options: dict[str, Any]) -> None:
    name = list(options)[-1]
    with pytest.raises(TypeError, match=rf"^{name} (is a|=) .*: (give|pass) "):
        spamm(np.eye(4), np.eye(4), **options, backend="cpu")
    with pytest.raises(TypeError, match=r"^a has dtype object"):
        spamm(None, np.eye(4), tau=1.0, backend="cpu")


def test_a_tile_larger_than_the_matrices_takes_no_more_memory() -> None:
    a = np.random.default_rng(1).standard_normal((70, 50))
    result = spamm(a, a.T, tau=1.0, block=10**7, backend="cpu")
    np.testing.assert_array_equal(result.c, spamm(a, a.T, tau=1.0, block=70, backend="cpu").c)


def test_a_matrix_with_an_error_of_its_own_is_refused() -> None:
    i = np.arange(96)
    dense = np.exp(-abs(i[:, None] - i) / 4.0)
    rough, exact = (TileMatrix.from_dense(dense, 32, atol=atol) for atol in (1e-3, 0.0))
    assert rough.error.fro > 0 == exact.error.fro
    calls: list[Any] = [
        lambda x: spamm(x, dense, rtol_factors=1e-6, backend="cpu"),
        lambda x: spamm(dense, x, tau=0.0, backend="cpu"),
        lambda x: spamm(dense, dense, tau=0.0, beta=1.0, c=x, backend="cpu"),
        lambda x: spamm_threshold(x, x, rtol_factors=1e-6, backend="cpu"),
        lambda x: norm_map(x),
        lambda x: tune_tau(x, dense, 0.5),
        lambda x: distribute(dense, x, 1.0, 1),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"is a TileMatrix with an error of its own.*to_dense\(\)"):
            call(rough)
    found = spamm(exact, exact, rtol_factors=1e-6, backend="cpu")
    assert np.linalg.norm(found.c - dense @ dense) <= found.error_bound
