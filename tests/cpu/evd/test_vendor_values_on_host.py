"""What a vendor's solver calls eigenvalues is judged by kernels, with their threads as fibers of the host."""

import numpy as np
import pytest

from spectile.evd.cuda.units import BATCH
from spectile.evd.cuda.vendor import batched, dense
from spectile.evd.types import SCALARS, Options, Subset, exponent_for_squares

from ...on_host import FIBERS, host_library

MEANS = """
using std::isinf;
using std::isfinite;
using std::scalbn;
using std::ilogb;
using std::abs;
#define __clz __builtin_clz
#define __reduce_max_sync(lanes, value) (value)
"""
RUN_BATCH = """
extern "C" int run(int blocks, int threads, int shared, real_t* w, const scalar_t* v, const int* exponents, int* info,
                   int n, int* status) {
    return launch({blocks, 1, 1}, threads, shared, 5, [=] { finish_batch(w, v, exponents, info, n, status); });
}
"""
NOT_FINITE = 100_000


def last_kernel(stem, unit, run):
    """Return a library that runs the last kernel of a unit."""
    source = unit.source()
    source = source[source.index("// The scalar of a unit") :]
    mark = 'extern "C" __global__'
    defines = "".join(f"#define {name} {value}\n" for name, value in unit.defines.items())
    shown = source[: source.index(mark)].partition("template <bool WIDE>")[0] + source[source.rindex(mark) :]
    shown = shown.replace("extern __shared__ unsigned char shared[];", "DYNAMIC_SHARED(unsigned char, shared);")
    return host_library(stem, "\n".join((defines, FIBERS.read_text(), MEANS, shown, run)), "-w")


def faults(n):
    """Yield what may be wrong with n eigenvalues: a function that puts it there."""

    def swapped(at):
        def put(w):
            w[[at, at + 1]] = w[[at + 1, at]]

        return put

    def written(at, value):
        def put(w):
            w[at] = value

        return put

    # Inside of what a block takes at once, and at its borders.
    yield from (swapped(at) for at in (0, 2, 126, 127, 128, 255, 256, n - 2) if 0 <= at < n - 1)
    yield from (written(at, value) for at in {0, n // 2, n - 1} for value in (np.nan, np.inf, -np.inf))


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_results_of_a_batch_are_scaled_and_judged(dtype, tmp_path):
    library, rng = last_kernel(tmp_path / "finish", BATCH[dtype], RUN_BATCH), np.random.default_rng(1)
    exponents, kind, dtype = np.array([3, 0, -7], np.int32), dtype, SCALARS[dtype].real
    eps = float(np.finfo(dtype).eps)

    def finished(w, exponents=exponents, info=(0, 0, 0), *, v=None):
        w, info, status, shape = w.copy(), np.array(info, np.int32), np.zeros(4, np.int32), batched.finish_shape(n, 3)
        places = exponents.ctypes, info.ctypes, n, status.ctypes
        launch = shape.grid[0], shape.threads, shape.shared_bytes
        assert library.run(*launch, w.ctypes, None if v is None else v.ctypes, *places)
        return w, info.tolist(), status.tolist()

    for n in (1, 5, 130):
        # The largest entry of a matrix in single precision comes near the root of the largest number.
        size = 2.0 ** (exponent_for_squares(n) if dtype == "float32" else 0)
        given = size * np.sort(rng.standard_normal((3, n)), axis=1).astype(dtype)
        given[:, n // 2 :] = given[:, n // 2, None]  # a multiple eigenvalue is in order
        scaled = np.ldexp(given, exponents[:, None])
        w, info, status = finished(given)
        np.testing.assert_array_equal(w, scaled)
        assert (info, status) == ([0, 0, 0], [0, 0, 0, 0])
        if n > 4:  # roundoff that has changed the order of copies
            given[1, n - 2] += 4 * eps * abs(given[1, n - 2])
            assert (np.diff(given[1]) < 0).any()
            w, info, status = finished(given)
            assert (np.diff(w) >= 0).all() and (info, status) == ([0, 0, 0], [0, 0, 0, 0])
            np.testing.assert_allclose(w, np.ldexp(given, exponents[:, None]), rtol=16 * eps)
        given[:] = size * np.linspace(-1, 1, n)  # none so near that roundoff may change them
        scaled = np.ldexp(given, exponents[:, None])
        v = np.linalg.qr(
            rng.standard_normal((3, n, n)) + (1j * rng.standard_normal((3, n, n)) if kind[0] == "c" else 0)
        )
        v = v.Q.astype(kind)
        for place, factor in ((None, 1), ((1, n - 1, n // 2), 1.01), ((2, 0, 0), np.nan)):
            own = v.copy()
            if place is not None:
                own[place] = own[place] * factor + (0.01 if factor > 1 else 0)
            expected = [int(place is not None and matrix == place[0]) for matrix in range(3)]
            assert finished(given, v=own)[1:] == (expected, [0, 0, 0, max(expected)])
        for number, put in enumerate(faults(n)):
            broken, bad = given.copy(), number % 3
            put(broken[bad])
            expected = [int(matrix == bad) for matrix in range(3)]
            w, info, status = finished(broken)
            np.testing.assert_array_equal(w, np.ldexp(broken, exponents[:, None]))
            assert (info, status) == (expected, [0, 0, 0, 1])
            if number >= 3:
                continue
            # A matrix that is not finite has no eigenvalues to judge.
            unknown = exponents.copy()
            unknown[bad] = NOT_FINITE
            w, info, status = finished(broken, unknown)
            assert np.isnan(w[bad]).all() and (info, status) == ([0, 0, 0], [1, 0, 0, 0])
        # What the solver reports goes before; what is too large when scaled is not out of order.
        w, info, status = finished(given, info=(0, -4, 0))
        assert (info, status) == ([0, 0, 0], [0, 4, 0, 0])
        large = np.array([np.finfo(dtype).maxexp, 0, 0], np.int32)
        assert finished(np.ones_like(given), large)[1:] == ([0, 0, 0], [0, 0, 1, 0])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_only_roundoff_is_put_in_order(dtype):
    eps, rng = float(np.finfo(dtype).eps), np.random.default_rng(4)
    copies = np.repeat(np.linspace(-1, 1, 30), 20).astype(dtype)
    w = copies * (1 + eps * rng.integers(-3, 4, copies.size).astype(dtype))
    assert (np.diff(w) < 0).any()
    order = dense.order_of(w, 8 * eps)
    np.testing.assert_array_equal(w[order], np.sort(w))
    for put in faults(len(w)):
        broken = copies[::20].repeat(20) + np.arange(len(w), dtype=dtype)  # no copies
        put(broken)
        assert dense.order_of(broken, 8 * eps * len(w)) is None


@pytest.mark.parametrize("subset", [None, Subset(True, 1, 3)])
@pytest.mark.parametrize("vectors", [True, False])
def test_matrices_that_failed_are_solved_again(subset, vectors):
    rng, calls = np.random.default_rng(3), []
    a = rng.standard_normal((5, 7, 7))
    a += a.swapaxes(1, 2)
    wanted = slice(None) if subset is None else subset.of(None)
    w, v = np.linalg.eigh(a)
    w, v, failed = w[:, wanted], v[:, :, wanted], np.array([0, 1, 0, 0, 1])
    found = np.where(failed[:, None], np.nan, w), np.where(failed[:, None, None], np.nan, v) if vectors else None
    options = Options(subset=subset, vectors=vectors)

    def alone(matrix, options):
        calls.append(options)
        values, all_vectors = np.linalg.eigh(matrix)
        return values[wanted], all_vectors[:, wanted] if options.vectors else None

    batched.solve_again(a, options, alone, failed, *found)
    assert calls == [options] * 2
    np.testing.assert_allclose(found[0], w, atol=1e-13)
    if vectors:
        np.testing.assert_allclose(a @ found[1], found[1] * found[0][:, None], atol=1e-12)
