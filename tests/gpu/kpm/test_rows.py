"""Every kernel on stored matrices: a step against float64, for every type, width and sort of row, outputs poisoned."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.kpm import explain, kpm_dos
from spectile_study.inputs.hamiltonians import hamiltonian

from ...blocks import block_matrix

pytestmark = pytest.mark.gpu

SEED = int(np.random.SeedSequence().generate_state(1)[0])
DTYPES = ("float32", "float64", "complex64", "complex128")
WIDTHS = (1, 2, 3, 7, 8, 10, 16, 17, 32, 33, 64)
KERNELS = ("csr", "flat", "sliced", "staged", "boxed")
# Of all Hermitian matrices here the scaled energies lie within −1 and 1.
A, B = 0.025, 0.05
SCALE, SHIFT, KEEP = 0.7, -0.3, 1.25
GUARD = 32


def matrix_of(structure, dtype, rng):
    """Return a matrix of a sort of rows, not Hermitian: a step does not ask."""
    rows = 5009
    if structure == "one":
        lengths, rows = np.array([1]), 1
    elif structure == "none":
        lengths = np.zeros(77, int)
        rows = 77
    elif structure == "empty":
        lengths = rng.integers(0, 3, rows) * (rng.random(rows) < 0.4)
        lengths[:100] = 0
    elif structure == "equal":
        lengths = np.full(rows, 7)
    elif structure == "long":
        lengths = np.full(1003, 45)
        rows = 1003
    elif structure == "unequal":
        lengths = rng.integers(0, 40, rows)
    elif structure == "hub":
        lengths = rng.integers(1, 6, rows)
        lengths[[3, rows - 1]] = 5000
    else:
        H = block_matrix(300, 10, 1, dtype, rng)
        return sp.csr_matrix(H)
    # Columns that adjacent rows share, so that shared memory may hold them.
    columns = [
        np.sort(rng.choice(rows, n, replace=False) if n > 60 or rows < 70 else (i + rng.choice(60, n, False)) % rows)
        for i, n in enumerate(lengths)
    ]
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    indices = np.concatenate(columns).astype(np.int32) if indptr[-1] else np.empty(0, np.int32)
    data = rng.normal(size=indptr[-1]) + 1j * rng.normal(size=indptr[-1])
    data = (data if np.dtype(dtype).kind == "c" else data.real).astype(dtype)
    return sp.csr_matrix((data, indices, indptr), shape=(rows, rows))


def operator_of(kernel, matrix):
    """Return a kernel's operator and its ``when`` module."""
    from cupyx.scipy.sparse import csr_matrix

    from spectile.kpm.cuda.boxed import when as boxed
    from spectile.kpm.cuda.boxed.launch import BoxedOperator
    from spectile.kpm.cuda.csr import when as csr
    from spectile.kpm.cuda.csr.launch import CsrOperator
    from spectile.kpm.cuda.flat import when as flat
    from spectile.kpm.cuda.flat.launch import FlatOperator
    from spectile.kpm.cuda.sliced import when as sliced
    from spectile.kpm.cuda.sliced.launch import SlicedOperator
    from spectile.kpm.cuda.staged import when as staged
    from spectile.kpm.cuda.staged.launch import StagedOperator

    on_gpu, longest = csr_matrix(matrix), int(np.diff(matrix.indptr).max())
    if kernel == "csr":
        return CsrOperator(on_gpu), csr
    if kernel == "flat":
        return FlatOperator(on_gpu), flat
    if kernel == "sliced":
        return SlicedOperator(on_gpu), sliced
    if kernel == "staged":
        return StagedOperator(on_gpu), staged
    return BoxedOperator(on_gpu, longest), boxed


def guarded(block, value):
    """Return a block of vectors on the device between rows of `value`, and all of it."""
    import cupy

    whole = cupy.full((len(block) + 2 * GUARD, block.shape[1]), value, block.dtype)
    whole[GUARD:-GUARD] = cupy.asarray(block)
    return whole[GUARD:-GUARD], whole


def check_step(operator, matrix, num_vectors, width, rng, what):
    """Assert that a step is within the rounding of its own sums, writes what it should and reads nothing else."""
    import cupy

    from spectile.kpm.cuda.common import NO_DOTS, PLAIN

    dtype, rows = matrix.dtype, matrix.shape[0]
    v, w = (
        (rng.normal(size=(rows, width)) + 1j * rng.normal(size=(rows, width))).astype(np.result_type(dtype, "c8"))
        for _ in "vw"
    )
    v, w = (x.astype(dtype) if dtype.kind == "c" else x.real.astype(dtype) for x in (v, w))
    v[:, num_vectors:] = w[:, num_vectors:] = 0
    wide = np.result_type(dtype, np.float64)
    product = matrix.astype(wide) @ v.astype(wide)
    wanted = SCALE * product + SHIFT * v - KEEP * w
    count = np.diff(matrix.indptr)[:, None] + 8
    magnitude = abs(matrix).astype(float) @ abs(v).astype(float) * SCALE + abs(SHIFT * v) + abs(KEEP * w)
    bound = 16 * np.finfo(dtype).eps * count * magnitude + np.finfo(dtype).tiny
    etas = cupy.full((2, width), cupy.nan)
    v_on_gpu, _ = guarded(v, np.nan)
    for mode in (None, NO_DOTS, PLAIN):
        w_on_gpu, around = guarded(np.full_like(w, np.nan) if mode == PLAIN else w, np.nan)
        if mode is None:
            operator.launcher(width)(v_on_gpu, w_on_gpu, SCALE, SHIFT, KEEP, etas)
        else:
            factors = (1.0, 0.0, 0.0) if mode == PLAIN else (SCALE, SHIFT, KEEP)
            operator.launcher(width, mode)(v_on_gpu, w_on_gpu, *factors, None)
        found = w_on_gpu.get()
        if mode == PLAIN:
            error = abs(found - product)
            assert (error <= bound / SCALE).all(), f"{what}, plain"
        else:
            assert (abs(found - wanted) <= bound).all(), f"{what}, mode {mode}"
            assert (found[:, num_vectors:] == 0).all(), what
        rest = around.get()
        assert np.isnan(rest[:GUARD]).all() and np.isnan(rest[-GUARD:]).all(), what
        if mode is None:
            exact = np.stack([(abs(v.astype(wide)) ** 2).sum(0), (found.astype(wide) * v.conj()).sum(0).real])
            room = (abs(found) * abs(v)).astype(float).sum(0) + (abs(v) ** 2).astype(float).sum(0)
            limit = 1e-11 if np.finfo(dtype).eps < 1e-10 else 1e-5
            assert (abs(etas.get() - exact) <= limit * room + np.finfo(dtype).tiny).all(), f"{what}, scalar products"


@pytest.mark.parametrize("structure", ["one", "none", "empty", "equal", "long", "unequal", "hub", "groups"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_step_is_within_its_rounding(kernel, dtype, structure):
    from spectile.core.compile import prepare
    from spectile.core.device import describe
    from spectile.kpm.cuda.common import FULL, NO_DOTS, PLAIN

    rng = np.random.default_rng(SEED)
    matrix = matrix_of(structure, dtype, rng)
    operator, when = operator_of(kernel, matrix)
    longest, groups = int(np.diff(matrix.indptr).max()), matrix.shape[0] // (5 if structure == "groups" else 1)
    taken = []
    for num_vectors in WIDTHS:
        asked = operator.problem(num_vectors)._replace(longest=longest, groups=max(1, groups))
        for width in when.widths(asked):
            refused = when.applies(asked._replace(vectors=width), describe())
            # The sliced form is refused for its memory alone.
            if (not refused or kernel == "sliced") and operator.beyond(width) is not None:
                taken.append((num_vectors, width))
    assert taken or kernel in ("staged", "boxed")
    # Most of the time goes by in the compiler, which takes several units side by side.
    prepare(*(operator.unit(width, mode) for width in {width for _, width in taken} for mode in (FULL, NO_DOTS, PLAIN)))
    for num_vectors, width in taken:
        what = f"{kernel}, {dtype}, {structure}, R = {num_vectors} in {width}, seed {SEED}"
        check_step(operator, matrix, num_vectors, width, rng, what)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_shape_that_stages_vectors(dtype):
    from cupyx.scipy.sparse import csr_matrix

    from spectile.core.device import describe
    from spectile.kpm.cuda.staged.launch import StagedOperator
    from spectile.kpm.cuda.staged.when import staged_shapes

    if describe().compute_capability < (9, 0):
        pytest.skip("V is staged by bulk copies, which begin with compute capability 9.0")
    rng, taken = np.random.default_rng(SEED), set()
    for structure, longest in (("equal", 7), ("long", 45)):
        matrix = matrix_of(structure, dtype, rng)
        for shape in staged_shapes(512 // np.dtype(dtype).itemsize, dtype, longest):
            operator = StagedOperator(csr_matrix(matrix), tuning=shape)
            for width in (shape.columns, 2 * shape.columns + 16 // np.dtype(dtype).itemsize):
                if operator.planned(width):
                    check_step(operator, matrix, width, width, rng, f"{shape}, {structure}, R = {width}, seed {SEED}")
                    taken.add(shape)
    assert len(taken) >= 6


@pytest.mark.parametrize("structure", ["equal", "unequal", "hub"])
@pytest.mark.parametrize(
    ("kernel", "dtype", "num_vectors"),
    [*itertools.product(("csr", "sliced"), DTYPES, (1, 8, 32)), *(("flat", dtype, 1) for dtype in DTYPES)],
)
def test_parts_of_the_rows(kernel, dtype, num_vectors, structure):
    import cupy

    rng = np.random.default_rng(SEED)
    matrix = matrix_of(structure, dtype, rng)
    operator, _ = operator_of(kernel, matrix)
    v = operator.random_block(SEED, 0, num_vectors)
    whole, part = cupy.zeros_like(v), cupy.full_like(v, cupy.nan)
    etas, of_part = cupy.full((2, num_vectors), cupy.nan), cupy.full((2, num_vectors), cupy.nan)
    operator.launcher(num_vectors)(v, whole, SCALE, SHIFT, 0.0, etas)
    part[45:3001] = 0
    operator.launcher(num_vectors, rows=(45, 3001))(v, part, SCALE, SHIFT, 0.0, of_part)
    # A row at the end of a tile is summed in another order where tiles begin elsewhere.
    room = 1e3 * float(np.finfo(dtype).eps * abs(whole).max()) if kernel == "flat" else 0
    cupy.testing.assert_allclose(part[45:3001], whole[45:3001], rtol=0, atol=room, err_msg=f"seed {SEED}")
    assert bool(cupy.isnan(part[:45]).all()) and bool(cupy.isnan(part[3001:]).all())
    exact = cupy.stack([(abs(v) ** 2)[45:3001].sum(0), (whole * v.conj())[45:3001].sum(0).real])
    limit = 1e-11 if np.finfo(dtype).eps < 1e-10 else 1e-4
    room = float((abs(whole) * abs(v)).sum(0).max())
    cupy.testing.assert_allclose(of_part, exact, rtol=0, atol=limit * max(room, len(v)))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_do_not_depend_on_what_is_beside_them(kernel, dtype):
    """Padded and whole blocks of one width have the same bits, before and after a checkpoint."""
    from spectile.core.device import describe
    from spectile.kpm.cuda.stored import StoredRecursion

    matrix = matrix_of("groups", dtype, np.random.default_rng(SEED))
    operator, when = operator_of(kernel, matrix)
    longest = int(np.diff(matrix.indptr).max())
    for num_vectors in (3, 13, 29, 61):
        asked = operator.problem(num_vectors)._replace(longest=longest, groups=matrix.shape[0] // 5)
        width = max(when.widths(asked))
        if when.applies(asked._replace(vectors=width), describe()) or operator.beyond(width) is None:
            continue
        whole = StoredRecursion(operator, A, B, operator.random_block(SEED, 5, width))
        block = operator.random_block(SEED, 5, num_vectors, width)
        padded = StoredRecursion(operator, A, B, block, num_vectors)
        before = padded.advance(3)
        assert before.shape == (6, num_vectors)
        state = padded.state()
        assert state["v"].shape == (matrix.shape[0], num_vectors)
        again = StoredRecursion(operator, A, B, operator.to_block(np.zeros_like(state["v"]), width), num_vectors)
        again.restore(state)
        found, resumed = padded.advance(5), again.advance(5)
        wanted = whole.advance(8)[:, :num_vectors]
        np.testing.assert_array_equal(np.concatenate([before, found]), wanted, f"seed {SEED}")
        np.testing.assert_array_equal(resumed, found, f"seed {SEED}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["anderson", "wannier"])
def test_calls_of_any_width_equal_the_cpu(kind, dtype):
    from cupyx.scipy.sparse import csr_matrix

    matrix = hamiltonian(kind, 5000, np.dtype(dtype)).tocsr()
    on_gpu, limit = csr_matrix(matrix), 1e-9 if np.finfo(dtype).eps < 1e-10 else 1e-3
    for num_vectors in (1, 3, 10, 33, 41):
        found = kpm_dos(on_gpu, 48, num_vectors, rng=4)
        wanted = kpm_dos(matrix, 48, num_vectors, rng=4, backend="cpu", bounds=found.bounds)
        np.testing.assert_allclose(found.moments, wanted.moments, rtol=0, atol=limit * matrix.shape[0])


def test_a_block_in_two_parts_is_the_whole(monkeypatch):
    from spectile.kpm.cuda import engine as engine_module
    from spectile.kpm.cuda.choose import Part
    from spectile.kpm.cuda.stored import SplitRecursion
    from spectile.kpm.moments import make_engine

    matrix = hamiltonian("anderson", 5000, np.dtype("float64")).tocsr()
    whole = make_engine(matrix, "cuda").random(SEED, 2, 11, A, B)
    monkeypatch.setattr(
        engine_module, "choose", lambda problem, *_: (
            (Part("sliced", 8, 8), Part("csr", problem.vectors - 8, problem.vectors - 7))
            if problem.vectors > 8 else (Part("csr", problem.vectors, problem.vectors),)
        ),
    )  # fmt: skip
    engine = make_engine(matrix, "cuda")
    parts = engine.random(SEED, 2, 11, A, B)
    assert isinstance(parts, SplitRecursion) and parts.num_vectors == 11
    wanted = whole.advance(9)
    np.testing.assert_allclose(parts.advance(4), wanted[:8], rtol=0, atol=1e-10 * matrix.shape[0])
    state = parts.state()
    resumed = engine.start(np.zeros((matrix.shape[0], 11)), A, B)
    resumed.restore(state)
    ahead = parts.advance(5)
    np.testing.assert_allclose(ahead, wanted[8:], rtol=0, atol=1e-10 * matrix.shape[0])
    np.testing.assert_array_equal(resumed.advance(5), ahead)


def test_an_engine_takes_what_is_predicted_to_be_cheapest():
    from spectile.kpm.moments import make_engine
    from spectile.kpm.operators.topological_insulator import TopologicalInsulator

    engine = make_engine(hamiltonian("anderson", 5000, np.dtype("float64")).tocsr(), "cuda")
    for num_vectors in (1, 8, 33):
        candidates = engine.candidates(num_vectors)
        best = min((each for each in candidates if each.seconds is not None), key=lambda each: each.seconds)
        assert best.kernel == " + ".join(part.kernel for part in engine._parts(num_vectors))
    assert engine._parts(1)[0].kernel == "csr"  # so small that many steps are one launch
    (sweep,) = explain(TopologicalInsulator(6, 5, 8), num_vectors=8, backend="cuda")
    assert sweep.kernel == "stencil" and sweep.seconds > 0
