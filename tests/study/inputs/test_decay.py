import numpy as np
import pytest

from spectile_study.inputs import decay


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (7, 3), (3, 70), (64, 64), (100, 33)])
def test_entries_follow_the_definition(shape, dtype):
    i, j = np.indices(shape)
    distance = np.abs(i - j).astype(np.float64)
    algebraic = decay.algebraic(*shape, dtype=dtype)
    assert algebraic.dtype == dtype and algebraic.flags.c_contiguous and algebraic.flags.writeable
    np.testing.assert_array_equal(algebraic, (0.1 / (distance**0.1 + 1)).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("block", [1, 8, 32])
@pytest.mark.parametrize("shape", [(1, 1), (32, 32), (96, 96), (100, 33), (31, 130), (65, 64)])
def test_norm_map_equals_that_of_the_dense_matrix(shape, block, dtype):
    a = decay.algebraic(*shape, dtype=dtype).astype(np.float64)
    rows, columns = (-(-size // block) for size in shape)
    expected = np.array(
        [
            [np.linalg.norm(a[i * block : (i + 1) * block, j * block : (j + 1) * block]) for j in range(columns)]
            for i in range(rows)
        ]
    )
    found = decay.algebraic_norm_map(*shape, block=block, dtype=dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize(
    ("n", "mean"),
    [(1024, 1.391336), (2048, 1.270949), (4096, 1.159567), (8192, 1.056221), (16384, 0.960334), (32768, 0.871496)],
)
def test_mean_norm_product_of_table_1(n, mean):
    norms = decay.algebraic_norm_map(n)
    product = norms.sum(axis=0) @ norms.sum(axis=1) / norms.shape[0] ** 3
    assert product == pytest.approx(mean, abs=1e-6)
    assert norms[0, 0] == pytest.approx(1.5220, abs=1e-3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: decay.algebraic(0), "m of a decay matrix is 0"),
        (lambda: decay.algebraic(3, 0), "n of a decay matrix is 0"),
        (lambda: decay.algebraic(3, dtype=np.int32), "float16, float32 or float64"),
        (lambda: decay.algebraic_norm_map(3, block=0), "block"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
