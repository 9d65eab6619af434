"""What the study makes and calls on a device: counted matrices, MAGMA where it is installed, checks of the cases."""

import numpy as np
import pytest
import scipy.linalg

cupy = pytest.importorskip("cupy")

from spectile_study.bench.case import Context, Method, Skipped  # noqa: E402
from spectile_study.cases.evd import build, magma, wide  # noqa: E402
from spectile_study.cases.evd.cuda import inputs  # noqa: E402
from spectile_study.inputs import counted  # noqa: E402

pytestmark = pytest.mark.gpu
ROW = {
    "case": "test", "k": None, "bandwidth": None, "block": None, "vectors": False, "precision": "float64",
    "one_stage": True, "cpu_chasing": True, "magma": True, "problem": None, "batch": 1,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_a_device_makes_the_matrix_of_the_host(dtype):
    a = inputs.matrix_of(301, 7, dtype)
    assert a.flags.f_contiguous and np.array_equal(cupy.asnumpy(a), counted.matrix(301, 7, dtype))
    assert len(inputs.first_columns(a, 7)["a_first_columns"]) == 64
    with pytest.raises(ValueError, match="another matrix of order 301 and seed 8"):
        inputs.first_columns(a, 8)


def test_a_device_makes_the_dense_operand_of_the_host():
    rows, columns = np.arange(300)[:, None], np.arange(50)
    assert np.array_equal(cupy.asnumpy(inputs.dense_of(300, 50, 3)), counted.dense(rows, columns, 3))


@pytest.mark.parametrize(
    "row",
    [
        {"study": "evd", "n": 700, "vectors": True},
        {"study": "evd", "n": 700, "precision": "complex64"},
        {"study": "tridiagonal", "n": 700},
        {"study": "reduction", "n": 700, "bandwidth": 64, "block": 64},
        {"study": "reduction", "n": 700, "bandwidth": 128, "block": 128},
        {"study": "chasing", "n": 700, "bandwidth": 32},
        {"study": "syr2k", "n": 700, "k": 40},
        {"study": "roofline", "n": 700, "bandwidth": 40},
        {"study": "int8", "n": 700, "k": 64},
        {"study": "stages", "n": 700},
        {"study": "problems", "n": 700, "problem": "generalized"},
        {"study": "problems", "n": 1500, "problem": "partial", "k": 10},
        {"study": "problems", "n": 40, "problem": "batched", "batch": 20},
        {"study": "problems", "n": 700, "problem": "banded", "bandwidth": 8},
        {"study": "problems", "n": 700, "problem": "banded", "bandwidth": 8, "vectors": True},
        {"study": "problems", "n": 700, "problem": "tridiagonal"},
        {"study": "problems", "n": 700, "problem": "tridiagonal", "vectors": True},
        {"study": "drivers", "n": 70, "vectors": True},
        {"study": "gradients", "n": 300},
        {"study": "sequences", "n": 512},
    ],
    ids=lambda row: "-".join(map(str, row.values())),
)
def test_methods_of_a_case_pass_their_checks(row, tmp_path):
    problem = build.build(ROW | row, Context("cuda", tmp_path, seed=1, threads=4))
    assert any(isinstance(method, Method) for method in problem.methods)
    for method in problem.methods:
        if isinstance(method, Skipped):
            assert method.reason
            continue
        if method.prepare:
            method.prepare()
        errors = method.check(method.run())
        assert all(errors[name] <= limit for name, limit in method.limits.items()), (method.name, errors)


@pytest.mark.parametrize(("n", "b"), [(100, 128), (257, 128), (1500, 128), (999, 256), (1111, 256)])
def test_wide_bands_are_chased(n, b):
    host = counted.band(n, b, n)
    expected = scipy.linalg.eigvals_banded(host[:, : b + 1].T, lower=True)
    for _ in range(3):  # the order of the blocks differs
        d, e = wide.chase(cupy.asarray(host), b)
        found = scipy.linalg.eigvalsh_tridiagonal(cupy.asnumpy(d), cupy.asnumpy(e))
        assert np.abs(found - expected).max() < 10 * n * np.finfo(float).eps * np.abs(expected).max()
    with pytest.raises(ValueError, match="bands of 64 subdiagonals are not chased here"):
        wide.chase(cupy.asarray(host), 64)


@pytest.mark.skipif(magma.find() is None, reason="MAGMA is not installed: name its folder by MAGMA_DIR")
@pytest.mark.parametrize("n", [300, 1025])
def test_magma_solves_what_numpy_solves(n):
    a = inputs.matrix_of(n, 2)
    expected = np.linalg.eigvalsh(cupy.asnumpy(a))
    scale = n * np.finfo(float).eps * np.abs(expected).max()
    for vectors in (False, True):
        solve = magma.Syevdx(n, vectors=vectors)
        solve.restore(a)
        w = solve()[0] if vectors else solve()
        assert np.abs(w - expected).max() < 10 * scale
    v = solve.array
    assert np.abs(cupy.asnumpy(a) @ v - v * w).max() < 10 * scale
    assert np.abs(v.T @ v - np.eye(n)).max() < 10 * n * np.finfo(float).eps
