"""Small generalized problems, alone and in batches, in one launch."""

import numpy as np
import pytest
import scipy.linalg

from spectile import eigh, eigvalsh

cupy = pytest.importorskip("cupy")

from spectile.evd.cuda.choose import PAIR_ORDER  # noqa: E402

pytestmark = pytest.mark.gpu


def pair(n, dtype, lead=()):
    rng = np.random.default_rng(n)

    def normal():
        x = rng.standard_normal((*lead, n, n))
        return x + 1j * rng.standard_normal((*lead, n, n)) if np.dtype(dtype).kind == "c" else x

    a, b = normal(), normal()
    a, b = a + a.conj().swapaxes(-1, -2), b @ b.conj().swapaxes(-1, -2) / n + np.eye(n)
    return a.astype(dtype), b.astype(dtype)


@pytest.mark.parametrize("kind", [1, 2, 3])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", list(PAIR_ORDER))
def test_orders_around_the_largest(dtype, lower, kind):
    for n in (1, 5, PAIR_ORDER[dtype], PAIR_ORDER[dtype] + 1):
        a, b = pair(n, dtype)
        keep = np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T
        given = [cupy.asarray(np.where(keep, x, np.nan)) for x in (a, b)]
        w, v = (x.get() for x in eigh(*given, lower=lower, type=kind))
        a, b, v = (x.astype(np.complex128) for x in (a, b, v))
        expected, eps = scipy.linalg.eigvalsh(a, b, type=kind), 40 * n * np.finfo(dtype).eps
        assert np.abs(w - expected).max() <= eps * np.abs(expected).max()
        gram = np.linalg.inv(b) if kind == 3 else b
        assert np.linalg.norm(v.conj().T @ gram @ v - np.eye(n)) <= eps
        only = eigvalsh(*given, lower=lower, type=kind, subset_by_index=(0, n // 2)).get()
        assert np.abs(only - expected[: n // 2 + 1]).max() <= eps * np.abs(expected).max()


def test_batches_that_broadcast():
    a, b = pair(20, "complex64", (3, 2))
    for own in (b, b[0, 0], b[:, :1]):
        w, v = eigh(cupy.asarray(a), cupy.asarray(own))
        whole = np.broadcast_to(own, a.shape)
        assert w.shape == (3, 2, 20) and v.shape == a.shape
        for index in np.ndindex(3, 2):
            expected = scipy.linalg.eigvalsh(a[index], whole[index])
            assert np.abs(w[index].get() - expected).max() <= 1e-4 * np.abs(expected).max()


def test_errors_name_what_is_wrong_and_the_next_call_works():
    a, b = pair(16, "float64", (4,))
    bad = b.copy()
    bad[2, 3, 3] = -1
    with pytest.raises(np.linalg.LinAlgError, match="order 4 of B"):
        eigh(cupy.asarray(a), cupy.asarray(bad))
    bad = a.copy()
    bad[1, 5, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        eigh(cupy.asarray(bad), cupy.asarray(b))
    with pytest.raises(OverflowError):
        eigh(cupy.asarray(1e300 * a), cupy.asarray(1e-300 * b))
    w = eigvalsh(cupy.asarray(a), cupy.asarray(b))
    assert np.abs(w[3].get() - scipy.linalg.eigvalsh(a[3], b[3])).max() <= 1e-12
