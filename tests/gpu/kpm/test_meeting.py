"""Kernels whose blocks meet: Lanczos steps and steps of a recurrence, all in one launch, are those of single ones."""

import itertools

import numpy as np
import pytest

from spectile.kpm import bounds, reference
from spectile_study.inputs.hamiltonians import hamiltonian

from .test_rows import DTYPES

pytestmark = pytest.mark.gpu

SEED = int(np.random.SeedSequence().generate_state(1)[0])
FORMS = ("graphene", "anderson", "wannier")


@pytest.mark.parametrize(("form", "dtype"), list(itertools.product(FORMS, DTYPES)))
def test_lanczos_steps_are_those_of_products(form, dtype):
    from cupyx.scipy.sparse import csr_matrix

    from spectile.kpm.cuda.csr.launch import CsrOperator
    from spectile.kpm.cuda.flat.launch import FlatOperator
    from spectile.kpm.cuda.lanczos import tridiagonalize_by_products, tridiagonalize_csr
    from spectile.kpm.cuda.sliced.launch import SlicedOperator
    from spectile.kpm.operators.engine import lengthened

    single = np.finfo(dtype).eps > 1e-10
    for rows in (40, 3000, 300_000):
        matrix = hamiltonian(form, rows, np.dtype(dtype)).tocsr()
        wide = matrix.astype(np.result_type(dtype, np.float64))
        start = reference.random_phases(1, matrix.shape[0], 1, real=wide.dtype.kind != "c")[:, 0]
        # So few that rounding has not turned the vectors, and no space of a small matrix is exhausted.
        alphas, betas = bounds.tridiagonalize(lambda x, wide=wide: wide @ x, lengthened(start, 1, np), 6)
        limit = (1e-3 if single else 1e-9) * (abs(alphas).max() + abs(betas).max())
        on_device, unit = csr_matrix(matrix), 2.0 ** -np.frexp(abs(alphas).max() + 2 * abs(betas).max())[1]
        found = {"one launch": tridiagonalize_csr(on_device, 6)}
        for operator in (CsrOperator, FlatOperator, SlicedOperator):
            found[operator.__name__] = tridiagonalize_by_products(operator(on_device), 6, unit)
        for how, numbers in found.items():
            for mine, wanted in zip(numbers, (alphas, betas), strict=True):
                np.testing.assert_allclose(mine, wanted, rtol=0, atol=limit, err_msg=f"{how}, {rows} rows")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", ["1", "large", "small"])
def test_bounds_hold_whichever_way_lanczos_steps_are_made(factor, dtype, monkeypatch):
    """The same to rounding, of matrices whose squares leave the range, too."""
    from cupyx.scipy.sparse import csr_matrix

    from spectile import spectral_bounds
    from spectile.kpm.cuda.engine import StoredEngine

    single = np.finfo(dtype).eps > 1e-10
    scale = {"1": 1.0, "large": 2.0 ** (70 if single else 600), "small": 2.0 ** -(70 if single else 600)}[factor]
    for form, rows in itertools.product(FORMS, (300, 20_000)):
        matrix = hamiltonian(form, rows, np.dtype(dtype)).tocsr()
        on_device = csr_matrix(matrix * matrix.dtype.type(scale))
        found = []
        for kernel in (None, "csr", "flat", "sliced"):
            monkeypatch.setattr(StoredEngine, "_multiplying", lambda self, kernel=kernel: kernel)
            found.append(np.array(spectral_bounds(on_device)) / scale)
        width = found[0][1] - found[0][0]
        for other in found[1:]:
            np.testing.assert_allclose(other, found[0], rtol=0, atol=(1e-2 if single else 1e-3) * width)


@pytest.mark.parametrize(("dtype", "num_vectors"), list(itertools.product(DTYPES, (1, 3, 8, 33))))
def test_steps_of_one_launch_are_single_ones(dtype, num_vectors):
    from cupyx.scipy.sparse import csr_matrix

    from spectile.kpm.cuda.common import FULL, WALK
    from spectile.kpm.cuda.csr.launch import CsrOperator
    from spectile.kpm.cuda.stored import StoredRecursion

    for form, rows in itertools.product(FORMS, (60, 5000, 100_000)):
        operator = CsrOperator(csr_matrix(hamiltonian(form, rows, np.dtype(dtype)).tocsr()))
        found = []
        for mode in (WALK, FULL):
            operator.mode = lambda width, mode=mode: mode
            recursion = StoredRecursion(operator, 0.02, 0.05, operator.random_block(SEED, 0, num_vectors))
            etas = np.concatenate([recursion.advance(steps) for steps in (1, 8, 1, 70, 2)])
            found.append((etas, recursion.state()))
        (walked, state), (single, other) = found
        limit = 1e-12 if np.finfo(dtype).eps < 1e-10 else 1e-5
        np.testing.assert_allclose(walked, single, rtol=0, atol=limit * rows, err_msg=f"seed {SEED}")
        for name in "vw":
            np.testing.assert_allclose(state[name], other[name], rtol=0, atol=1e3 * limit, err_msg=f"seed {SEED}")
        assert state["steps"] == other["steps"] == 82
