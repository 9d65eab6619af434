"""The cases of CuPy's own tests of `eigh` and `eigvalsh`, which its wheels do not hold, with ours in CuPy's place."""

import numpy as np
import pytest

from spectile import evd

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu
REAL = ("?", "b", "h", "i", "l", "q", "B", "H", "I", "L", "Q", "f", "d")
SYMMETRIC = [[2, 0, 3], [0, 2, 0], [3, 0, 1]]
BATCH = [[[1, 0, 3], [0, 5, 0], [7, 0, 9]], [[3, 0, 3], [0, 7, 0], [7, 0, 11]]]
COMPLEX = [[1, 2j, 3], [4j, 5, 6j], [7, 8j, 9]]
COMPLEX_BATCH = [[[1, 2j, 3], [4j, 5, 6j], [7, 8j, 9]], [[0, 2j, 3], [4j, 4, 6j], [7, 8j, 8]]]


def check(a, uplo):
    """Compare with NumPy, which reads the same triangle of a matrix that need not be symmetric."""
    given = cupy.asarray(a)
    w, v = evd.eigh(given, UPLO=uplo)
    assert isinstance(w, cupy.ndarray)
    assert isinstance(v, cupy.ndarray)
    wide = np.asarray(a, np.complex128 if a.dtype.kind == "c" else np.float64)
    expected = np.linalg.eigvalsh(wide, UPLO=uplo)
    tolerance = 1e-3 if w.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(cupy.asnumpy(w), expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(cupy.asnumpy(evd.eigvalsh(given, UPLO=uplo)), expected, rtol=tolerance, atol=tolerance)
    half = np.tril(wide, -1) if uplo == "L" else np.swapaxes(np.triu(wide, 1), -1, -2).conj()
    full = half + np.swapaxes(half.conj(), -1, -2) + np.eye(3) * np.diagonal(wide, 0, -2, -1).real[..., None]
    v = cupy.asnumpy(v)
    np.testing.assert_allclose(full @ v, v * cupy.asnumpy(w)[..., None, :], atol=20 * tolerance)


@pytest.mark.parametrize("uplo", ["U", "L"])
@pytest.mark.parametrize("matrix", [SYMMETRIC, BATCH], ids=["one", "batch"])
@pytest.mark.parametrize("dtype", REAL)
def test_eigh(matrix, dtype, uplo):
    check(np.array(matrix).astype(dtype), uplo)


@pytest.mark.parametrize("uplo", ["U", "L"])
def test_eigh_float16(uplo):
    a = np.array(SYMMETRIC, np.float16)
    check(a, uplo)
    assert evd.eigvalsh(cupy.asarray(a)).dtype == np.float32


@pytest.mark.parametrize("uplo", ["U", "L"])
@pytest.mark.parametrize("matrix", [COMPLEX, COMPLEX_BATCH], ids=["one", "batch"])
@pytest.mark.parametrize("dtype", ["F", "D"])
def test_eigh_complex(matrix, dtype, uplo):
    check(np.array(matrix, dtype), uplo)


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3)])
@pytest.mark.parametrize("dtype", ["f", "d", "F", "D"])
def test_empty(shape, dtype):
    w, v = evd.eigh(cupy.empty(shape, dtype))
    assert w.shape == evd.eigvalsh(cupy.empty(shape, dtype)).shape == shape[:-1]
    assert v.shape == shape
    assert v.dtype == np.dtype(dtype)
    assert w.dtype == np.dtype(dtype.lower())


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (4, 0), (2, 2, 3), (0, 2, 3)])
def test_not_square(shape):
    for function in (evd.eigh, evd.eigvalsh):
        with pytest.raises(ValueError, match="square"):
            function(cupy.zeros(shape))


@pytest.mark.parametrize("uplo", ["None", "X", ""])
def test_uplo(uplo):
    with pytest.raises(ValueError, match="UPLO"):
        evd.eigh(cupy.eye(2), UPLO=uplo)
