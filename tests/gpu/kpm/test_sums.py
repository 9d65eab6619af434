"""Sums of terms that the steps of the recurrence make themselves: against float64, for every kernel, type and width."""

import numpy as np
import pytest

from spectile.kpm import apply, evolve
from spectile.kpm.functions import additions

from .test_chebyshev import FORMS
from .test_rows import DTYPES, KERNELS, matrix_of, operator_of

pytestmark = pytest.mark.gpu

SEED = int(np.random.SeedSequence().generate_state(1)[0])
A, B = 0.02, 0.05


@pytest.mark.parametrize("structure", ["equal", "unequal", "groups"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_steps_add_to_sums(kernel, dtype, structure):
    import cupy

    from spectile.core.device import describe
    from spectile.kpm.cuda.stored import StoredRecursion

    rng = np.random.default_rng(SEED)
    matrix = matrix_of(structure, dtype, rng)
    operator, when = operator_of(kernel, matrix)
    wide = np.result_type(dtype, np.float64)
    single = np.finfo(dtype).eps > 1e-10
    for width in (1, 2, 7, 16, 40, 64):
        problem = operator.problem(width)._replace(longest=int(np.diff(matrix.indptr).max()))
        fits = operator.beyond(width) is not None if width in when.widths(problem) else False
        if (
            when.applies(
                problem._replace(groups=len(operator.first) - 1 if kernel == "boxed" else problem.rows), describe()
            )
            or not fits
        ):
            continue
        start = rng.normal(size=(matrix.shape[0], width)) + (1j * rng.normal(size=(matrix.shape[0], width)))
        start = (start if np.dtype(dtype).kind == "c" else start.real).astype(dtype)
        # Three sums: all terms, few, and none but the last; complex weights where numbers are complex, or in pairs.
        weights = rng.normal(size=(11, 3)) + 1j * rng.normal(size=(11, 3))
        weights[:, 1] *= np.arange(11) % 4 == 1
        weights[:10, 2] = 0
        pairs = np.dtype(dtype).kind != "c" and width % 2 == 0
        if np.dtype(dtype).kind != "c" and not pairs:
            weights = weights.real
        recursion = StoredRecursion(operator, A, B, operator.to_block(cupy.asarray(start)))
        block = recursion.blocks()[0]
        sums = cupy.zeros((3, *block.shape), block.dtype)
        recursion.sum_into([sums])
        terms = [start.astype(wide)]
        H = matrix.astype(wide)
        for step, each in enumerate(additions(weights), 1):
            recursion.enqueue(1, each)
            image = A * (H @ terms[-1] - B * terms[-1])
            terms.append(image if step == 1 else 2 * image - terms[-2])
        norms = recursion.collect()[::2]
        as_complex = [term.view(complex) if pairs else term for term in terms]
        for k in range(3):
            wanted = sum(weight * term for weight, term in zip(weights[:, k], as_complex, strict=True))
            found = np.ascontiguousarray(operator.from_block(sums[k], width).get().astype(wide))
            found = found.view(complex) if pairs else found
            limit = (2e-4 if single else 1e-12) * max(abs(term).max() for term in terms)
            assert abs(found - wanted).max() <= limit, f"seed {SEED}, {width} vectors, sum {k}"
        exact = np.sort([(abs(term) ** 2).sum(axis=0) for term in terms[:-1]], axis=0)
        np.testing.assert_allclose(np.sort(norms, axis=0), exact, rtol=1e-3 if single else 1e-10)


@pytest.mark.parametrize("width", [1, 3, 33])
@pytest.mark.parametrize("kind", ["f", "c"])
@pytest.mark.parametrize("form", FORMS)
def test_functions_are_those_of_the_cpu(form, kind, width):
    H, rng = FORMS[form], np.random.default_rng(5)
    start = rng.standard_normal((H.shape[0], width))
    start = start if kind == "f" else start + 1j * rng.standard_normal(start.shape)
    tolerance = 1e-12
    if form == "float32":
        start, tolerance = start.astype("float32" if kind == "f" else "complex64"), 1e-5
    allowed = 200 * tolerance * np.linalg.norm(start)
    for call in (
        lambda **o: evolve(H, start, [0.4, 1.0, -0.7], tolerance=tolerance, **o),
        lambda **o: evolve(H, start, np.linspace(0, 1, 9), tolerance=tolerance, **o),
        lambda **o: apply(lambda e: np.exp(-((e / 40) ** 2)), H, start, tolerance=tolerance, **o),
        lambda **o: apply(lambda e: 1 / (e - 900 - 300j), H, start, tolerance=tolerance, **o),
        lambda **o: apply(lambda e: 0 * e + 3, H, start, tolerance=tolerance, **o),
    ):
        here, there = call(backend="cpu"), call(backend="cuda").get()
        assert there.dtype == here.dtype and there.shape == here.shape
        assert np.linalg.norm(there - here) <= allowed
