"""What the eigensolver launches, kernel by kernel, as its modules shape it: no GPU is needed to look at it."""

from spectile.evd.cuda import gradient, matrix, refine, triangular
from spectile.evd.cuda.back import panels, sweeps
from spectile.evd.cuda.chasing import chase
from spectile.evd.cuda.choose import PAIR_ORDER, reduction_parameters, solver_of, sturm_lanes
from spectile.evd.cuda.multi import reduction
from spectile.evd.cuda.multi.partition import Cyclic
from spectile.evd.cuda.reduction import direct, panel
from spectile.evd.cuda.small import rotations
from spectile.evd.cuda.tridiagonal import divide, inverse, merge, sturm
from spectile.evd.cuda.vendor import batched
from spectile.evd.cuda.workspace import merge_sizes, padded_order
from spectile.evd.types import SCALARS


def of_rotations(n, count, scalar):
    yield "rotate_small", rotations.rotate_shape(n, count, scalar)
    if n <= PAIR_ORDER[scalar.name]:
        yield "rotate_pairs", rotations.pair_shape(n, count, scalar)


def of_triangular(scalar):
    yield "invert_blocks", triangular.invert_shape(triangular.SIZE, scalar)


def of_several_devices(n, scalar, bandwidth, block, parts, on):
    """The largest ones on `parts` devices."""
    columns = Cyclic(n, block, parts).count(0)
    yield "place_rows", reduction.place_shape(columns, bandwidth)
    yield "mirror", reduction.mirror_shape(n, columns, scalar, on)


def of_panels_back(n, bandwidth, scalar):
    count, together = panels._sizes(n, bandwidth)
    if count:
        yield "gather_panels", panels.gather_shape(n - bandwidth, together)
        if bandwidth > 1:
            yield "place_factors", panels.place_shape(together)
        else:
            yield "form_factors", panels.form_shape(together, scalar)


def of_sweeps(n, scalar, bandwidth, columns, on):
    plan = sweeps.Sweeps(n, bandwidth, scalar, columns, on)
    for last, count in plan.batches() if n >= 2 else ():
        yield "sweep_tiles", plan.tile_shape(last, count)
        yield plan.apply_shape(1 if plan.fills else count)


def of_chase(n, scalar, bandwidth, on):
    yield "extract_band", chase.band_shape(n)
    yield "chase", chase.chase_shape(n, scalar, bandwidth, on)
    yield "tridiagonal_of_band", chase.tridiagonal_shape(n)


def of_merges(leaf, levels, sizes):
    """Those of 2^levels leaves."""
    chunk, step = sizes
    for level in range(1, levels + 1):
        m, merges = leaf * 2**level, 2 ** (levels - level)
        for name in ("order", "rank"):
            yield name, merge.entries_shape(m, merges)
        yield "deflate", merge.deflate_shape(merges)
        for name in ("secular", "refine_z"):
            yield name, merge.roots_shape(m, merges)
        yield "vectors", merge.vectors_shape(min(chunk, m), merges)
        yield "rotate", merge.rotate_shape(min(chunk, m), merges)
    if levels:
        yield "move_columns", merge.move_shape(step, min(leaf * 2**levels, merge.MOST_MOVED))


def of_sturm(count, on):
    """Those of `count` eigenvalues of an interval."""
    yield "scale_tridiagonal", sturm.SCALE_SHAPE
    yield "count_below", sturm.COUNT_SHAPE
    yield "multisect", sturm.multisect_shape(count, sturm_lanes(count, on))
    yield "ascend", sturm.SCALE_SHAPE


def of_divide(n):
    levels, order = padded_order(n)
    yield "tear", divide.TEAR_SHAPE
    yield "leaves", divide.leaf_shape(levels, order >> levels)
    yield from of_merges(order >> levels, levels, merge_sizes(n))


def of_batches(n, count):
    yield "load_batch", batched.load_shape(n, count)
    yield "finish_batch", batched.finish_shape(n, count)


def of_band_reduction(n, scalar, bandwidth, block, on):
    yield "join_halves", panel.join_shape(scalar, bandwidth)
    yield "correct_gram", panel.gram_shape(bandwidth)
    yield "small_factor", panel.factor_shape(2 * block, scalar, bandwidth)
    for j in range(0, n - bandwidth, bandwidth):
        m = n - j - bandwidth
        yield panel.panel_shape(m, scalar, bandwidth, on)
        yield "copy_panel", panel.copy_shape(m, bandwidth)


def of_matrix(n, scalar):
    for name in ("symmetrize", "load_triangle", "load_wide"):
        yield name, matrix.triangle_shape(n, scalar)
    yield "scale_triangle", matrix.columns_shape(n)
    for name in ("find_word", "scale_parts", "widen"):
        yield name, matrix.parts_shape(n)
    yield "scale_values", matrix.values_shape(n)


def of_refinement(n, scalar):
    yield "survey", refine.survey_shape(n)
    yield "strong_pairs", refine.pairs_shape(n)
    for name, held in (("lower_turns", 2), ("raise_order", 3), ("exponent", 2)):
        yield name, matrix.triangle_shape(n, scalar, held)


def of_gradient(n, scalar):
    """Those of one matrix."""
    yield "find_clusters", gradient.rows_shape(1)
    yield "arrange", gradient.tiles_shape(n, 1, scalar, 1)
    yield "divide_by_gaps", gradient.tiles_shape(n, 1, scalar, 2, gradient.SUMS)
    for name in ("mix_clusters", "take_triangle"):
        yield name, gradient.rows_shape(n, 1)


def launches(n, dtype, on, *, vectors, columns=None):
    """Yield the kernel and the launch of everything that `eigh` starts for one matrix; by default, with all vectors."""
    scalar = SCALARS[dtype]
    solver = solver_of(n, 1, scalar, vectors=vectors, device=on, batched=lambda: False)
    if solver == "rotations":
        yield from of_rotations(n, 1, scalar)
        return
    yield from of_matrix(n, scalar)
    if solver == "vendor":
        return
    bandwidth, block = reduction_parameters(n, scalar, vectors=vectors, device=on)
    if bandwidth == 1:
        yield "tridiagonalize", direct.direct_shape(n, scalar, on)
    else:
        yield from of_band_reduction(n, scalar, bandwidth, block, on)
        yield from of_chase(n, scalar, bandwidth, on)
    if not vectors:
        yield from of_sturm(n, on)
        return
    if columns is not None and inverse.pays(n, columns):
        yield from of_sturm(columns, on)
        yield "inverse_iteration", inverse.iteration_shape(columns)
    else:
        yield from of_divide(n)
    if bandwidth > 1:
        yield from of_sweeps(n, scalar, bandwidth, n if columns is None else columns, on)
    yield from of_panels_back(n, bandwidth, scalar)
