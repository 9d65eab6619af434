"""Calls of the eigensolver on the CPU as users write them: intervals, arrays of any kind, results, memory."""

import ctypes
import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import spectile
from spectile import evd
from spectile.evd import load
from spectile.evd.cpu import run as cpu_run
from spectile_study.inputs.spectra import random_hermitian

from ...eigenproblems import LAYOUTS, laid_out
from ...intervals import check_batches, check_ends
from ...scales import PATHS, check_path

DTYPES = ("float64", "float32", "complex128", "complex64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("copies", [1, 2, 4])
def test_all_copies_of_an_eigenvalue_or_none(copies, dtype, monkeypatch):
    for driver in (None, "evr", "evx"):
        check_ends(copies, dtype, backend="cpu", driver=driver)
    monkeypatch.setattr(cpu_run, "by_stages", lambda array, *, vectors: True)
    check_ends(copies, dtype, backend="cpu")


def test_an_interval_as_narrow_as_roundoff_is_taken_as_it_is():
    a = np.diag([1e-20, 1.0])
    assert evd.eigvalsh(a, subset_by_value=(1e-21, 1e-19), backend="cpu").tolist() == [1e-20]


@pytest.mark.parametrize("n", [20, 100])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_ends_between_numbers_of_single_precision_count_by_every_path(dtype, n):
    d = np.repeat(np.arange(1, n // 4 + 1, dtype="float32"), 4)
    a, beside = np.diag(d).astype(dtype), np.zeros(n - 1, "float32")
    for ends in ((2 - 1e-9, 2.0), (2.0, 2 + 1e-9), (2 - 1e-9, 2 + 1e-9), (2 + 1e-9, 3 + 1e-9)):
        wanted = d[(d.astype(float) > ends[0]) & (d.astype(float) <= ends[1])]
        for driver in (None, "evr", "evx"):
            for found in (
                evd.eigvalsh(a, subset_by_value=ends, driver=driver, backend="cpu"),
                evd.eigh(a, subset_by_value=ends, driver=driver, backend="cpu")[0],
            ):
                np.testing.assert_allclose(found, wanted, rtol=1e-6, err_msg=f"{ends} by {driver}")
        part = {"select": "v", "select_range": ends, "backend": "cpu"}
        for driver in ("auto", "stebz"):
            w, v = evd.eigh_tridiagonal(d, beside, lapack_driver=driver, **part)
            assert v.shape == (n, len(w))
            np.testing.assert_allclose(w, wanted, rtol=1e-6, err_msg=f"{ends} by {driver}")
        np.testing.assert_allclose(evd.eigvals_banded(d[None].astype(dtype), **part), wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [7, 40])
def test_batches_by_value(n, dtype):
    check_batches(n, dtype, backend="cpu")


def test_the_pair_has_names():
    a = random_hermitian(6, np.random.default_rng(1))
    found = evd.eigh(a, backend="cpu")
    w, v = found
    assert w is found.eigenvalues and v is found.eigenvectors
    assert np.linalg.norm(a @ v - v * w) < 1e-12


def test_what_is_no_dense_matrix_is_refused_in_one_sentence():
    for call, words in (
        (lambda: evd.eigh(scipy.sparse.eye_array(3), backend="cpu"), "eigsh.*spectile.kpm_dos.*a.toarray"),
        (lambda: evd.eigh(np.eye(3), scipy.sparse.eye_array(3), backend="cpu"), "b is a sparse matrix"),
        (lambda: evd.eigh(np.eye(3), "U", backend="cpu"), 'b is the word.*lower=False or UPLO="U"'),
        (lambda: evd.eigh(np.eye(3, dtype=np.longdouble), backend="cpu"), "float32, float64"),
        (lambda: evd.eigh(np.eye(3, dtype=object), backend="cpu"), "float32, float64"),
    ):
        with pytest.raises(TypeError, match=words):
            call()


class Exporter:
    """An object that has ``__dlpack__`` and nothing else."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **keywords):
        return self._array.__dlpack__(**keywords)


class Lazy:
    """A tensor that is yet to be conjugated, and refuses before."""

    def __init__(self, array):
        self._array, self.shape = array, array.shape

    def resolve_conj(self):
        return self._array.conj()

    def __array__(self, *args, **keywords):
        raise RuntimeError("resolve it")


@pytest.mark.parametrize("values_only", [True, False])
def test_a_batch_of_numpys_loop_wakes_no_other_blas(values_only, monkeypatch):
    """Threads of SciPy's BLAS spin beside those of NumPy's loop, which takes twice the time then."""

    routine, sizes = load._routine, []

    def asked(*words):
        return lambda flat, *rest: sizes.append(len(flat)) or routine(*words)(flat, *rest)

    monkeypatch.setattr(load, "_routine", asked)
    a = np.random.default_rng(3).standard_normal((5, 20, 20))
    a += a.swapaxes(1, 2)
    w = spectile.eigh(a, eigvals_only=True) if values_only else spectile.eigh(a).eigenvalues
    assert w == pytest.approx(np.linalg.eigvalsh(a))
    a[3] = 1e307 * np.eye(20)
    a[3, 0] = a[3, :, 0] = 1e307  # the sum overflows
    assert np.isfinite(spectile.eigvalsh(a)).all()
    assert max(sizes) <= w.size  # eigenvalues alone, which are too few for threads


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [6, 40, 140])
def test_arrays_of_any_kind(n, dtype):
    a = random_hermitian(n, np.random.default_rng(n), dtype)
    w = np.linalg.eigvalsh(a)
    frozen = np.asfortranarray(a)
    frozen.flags.writeable = False
    shifted = np.frombuffer(bytes(1) + a.tobytes(), dtype, offset=1).reshape(n, n)  # not aligned
    kinds = {
        "read-only": frozen,
        "gaps": np.repeat(a, 2, axis=1)[:, ::2],
        "backwards": a[::-1, ::-1].copy()[::-1, ::-1],
        "swapped bytes": a.astype(a.dtype.newbyteorder()),
        "columns": np.asfortranarray(a),
        "not aligned": shifted,
        "list": a.tolist(),
        "exporter": Exporter(a.copy()),
        "lazy": Lazy(a.conj()),
    }
    for name, operand in kinds.items():
        for overwrite in (False, True):
            kept = operand.copy() if isinstance(operand, np.ndarray) else None
            found = evd.eigvalsh(operand, overwrite_a=overwrite and name != "columns", backend="cpu")
            np.testing.assert_allclose(found, w, atol=100 * n * np.finfo(dtype).eps, err_msg=name)
            if kept is not None and (not overwrite or not operand.flags.writeable):
                np.testing.assert_array_equal(operand, kept, err_msg=name)


@pytest.mark.parametrize("driver", ["gv", "gvd", "gvx"])
def test_one_array_for_both_matrices(driver):
    a = np.asfortranarray(np.eye(20) + 0.01)
    w = evd.eigvalsh(a, a, overwrite_a=True, overwrite_b=True, driver=driver, backend="cpu")
    np.testing.assert_allclose(w, 1)


@pytest.mark.parametrize("driver", [None, "gv", "gvd", "gvx"])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_batches_of_one_array_that_may_be_overwritten(dtype, driver):
    """What a problem leaves in its memory is not what the next one reads as its other matrix."""
    n, rng = 40, np.random.default_rng(1)
    given = np.stack([random_hermitian(n, rng, dtype) / n + k * np.eye(n, dtype=dtype) for k in (3, 5, 4, 7)])
    for first, second in ((0, 1), (1, 0), (0, 2), (2, 0), (0, 0)):
        places = slice(first, first + 2), slice(second, second + 2)
        wanted = evd.eigvalsh(*(given[place] for place in places), backend="cpu")
        for words in ({"overwrite_a": True}, {"overwrite_b": True}, {"overwrite_a": True, "overwrite_b": True}):
            left = given.swapaxes(1, 2).copy().swapaxes(1, 2)  # columns are contiguous, as LAPACK wants them
            w = evd.eigvalsh(*(left[place] for place in places), **words, driver=driver, backend="cpu")
            np.testing.assert_allclose(w, wanted, rtol=100 * n * np.finfo(dtype).eps, err_msg=f"{first} {second}")


def buffers_of_batches(shape, dtype, rng):
    """Give arrays of `shape` whose matrices share memory, with the arrays that own it: entries of norms near 1."""
    count, *own = shape
    size = np.dtype(dtype).itemsize
    for name, strides in {"rows": (own[1], 1), "columns": (1, own[0])}.items():
        for lead in (0, max(strides)):
            buffer = rng.standard_normal(count * lead + own[0] * own[1]).astype(dtype)
            steps = [size * step for step in (lead, *strides)]
            yield f"{name}, {lead}", np.lib.stride_tricks.as_strided(buffer, shape, steps), buffer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [6, 40, 200])
def test_matrices_that_share_memory_are_not_overwritten(n, dtype):
    """Of a batch that overlaps itself, every problem is solved as given, whatever may be overwritten."""
    rng, near = np.random.default_rng(n), 100 * n * np.finfo(dtype).eps
    for name, batch, buffer in buffers_of_batches((3, n, n), dtype, rng):
        kept, definite = buffer.copy(), np.eye(n, dtype=dtype) + 0.1
        calls = {
            "values": lambda x, **words: evd.eigvalsh(x, **words, backend="cpu"),
            "vectors": lambda x, **words: evd.eigh(x, **words, backend="cpu")[0],
            "QR": lambda x, **words: evd.eigvalsh(x, **words, driver="ev", backend="cpu"),
            "first of two": lambda x, d=definite, **words: evd.eigvalsh(x, d, **words, backend="cpu"),
            "function": lambda x, **words: spectile.matrix_function(np.arctan, x, **words, backend="cpu"),
        }
        for call, solve in calls.items():
            wanted = solve(batch.copy())
            found = solve(batch, overwrite_a=True)
            np.testing.assert_allclose(found, wanted, atol=near * abs(wanted).max(), err_msg=f"{call}: {name}")
            np.testing.assert_array_equal(buffer, kept)
        if batch.strides[0]:  # in one place alone all can be definite
            continue
        batch[0] = definite
        identity = np.eye(n, dtype=dtype)
        wanted = evd.eigvalsh(identity, batch.copy(), backend="cpu")
        found = evd.eigvalsh(identity, batch, overwrite_b=True, backend="cpu")
        np.testing.assert_allclose(found, wanted, atol=near * abs(wanted).max(), err_msg=f"second of two: {name}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [3, 40])
def test_bands_that_share_memory_or_are_read_only_are_not_overwritten(n, dtype):
    rng = np.random.default_rng(n)
    bands = [(name, band) for name, band, _ in buffers_of_batches((3, 3, n), dtype, rng)]
    bands += [("broadcast", np.broadcast_to(np.asfortranarray(bands[0][1][0]), (3, 3, n)))]
    bands += [("read-only", np.asfortranarray(bands[0][1][0]))]
    bands[-1][1].flags.writeable = False
    for name, band in bands:
        kept = band.copy()
        for lower in (False, True):
            wanted = evd.eigvals_banded(kept, lower, backend="cpu")
            found = evd.eigvals_banded(band, lower, overwrite_a_band=True, backend="cpu")
            np.testing.assert_array_equal(found, wanted, err_msg=name)
            np.testing.assert_array_equal(band, kept, err_msg=name)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    n=st.integers(4, 60),
    dtype=st.sampled_from(DTYPES),
    path=st.sampled_from(sorted(PATHS)),
    part=st.floats(0, 1),
)
def test_any_problem_of_any_size(n, dtype, path, part):
    limits = np.finfo(dtype)
    low, high = limits.minexp - 1, limits.maxexp - 4 - n.bit_length()
    check_path(path, n, dtype, low + round(part * (high - low)), backend="cpu")


def test_a_result_shows_itself_in_a_line_and_in_a_table():
    w, v = np.array([-1.5, 0.25, 2.0]), np.eye(3)
    result = evd.eigh(np.diag(w), backend="cpu")
    assert repr(result) == "EighResult(3 eigenvalues from -1.5 to 2, eigenvectors 3 x 3 float64)"
    assert repr(evd.EighResult(np.empty((2, 0)), np.empty((2, 3, 0)))).startswith("EighResult(2 x 0 eigenvalues")
    page = result._repr_html_()
    assert page.count("<tr>") == page.count("</tr>") == 2 and "from -1.5 to 2" in page
    torch = pytest.importorskip("torch")
    assert "from -1.5 to 2" in repr(evd.EighResult(torch.as_tensor(w), torch.as_tensor(v)))


MEMORY = {
    "divide and conquer": ({}, False),
    "complex": ({"dtype": "complex128"}, False),
    "ten pairs": ({"subset_by_index": (0, 9)}, False),
    "QR": ({"driver": "ev"}, False),
    "MRRR": ({"driver": "evr"}, False),
    "values": ({"eigvals_only": True}, False),
    "in place": ({"overwrite_a": True}, False),
    "generalized": ({}, True),
    "ten generalized": ({"driver": "gvx", "subset_by_index": (0, 9)}, True),
}


def peak_and_asked(keywords, pair, n=1200):
    """Return how many bytes a call of a child process has used at most, and how many it has asked for."""
    keywords = dict(keywords)
    dtype = keywords.pop("dtype", "float64")
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            small = np.eye(400, dtype=dtype, order="F")
            call = lambda *operands: evd.eigh(*operands, **keywords, backend="cpu")  # noqa: E731
            call(small, *([small.copy()] if pair else []))
            a = np.asfortranarray(random_hermitian(n, np.random.default_rng(1), dtype))
            operands = (a, np.eye(n, dtype=dtype, order="F") + np.asarray(1e-9, dtype)) if pair else (a,)
            scipy.linalg.get_blas_funcs("gemm", (a,))(1, a, a)  # buffers of the BLAS come on top: they are touched
            asked = []
            cpu_run.memory.UNASKED = 0
            cpu_run.memory.require_host_free = lambda size, what: asked.append(size)

            def status(key):
                lines = Path("/proc/self/status").read_text().splitlines()
                return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

            ctypes.CDLL(None).malloc_trim(0)  # what was freed would be used again, and not be seen
            before = status("RssAnon")
            Path("/proc/self/clear_refs").write_text("5")
            call(*operands)
            code_pages = status("RssFile") + status("RssShmem")
            os.write(send, f"{status('VmHWM') - code_pages - before} {max(asked)}".encode())
            code = 0
        finally:
            os._exit(code)
    os.close(send)
    _, status = os.waitpid(child, 0)
    assert status == 0
    peak, asked = map(int, os.read(receive, 100).split())
    os.close(receive)
    return peak, asked


@pytest.mark.skipif(sys.platform != "linux", reason="the most memory of a process is read from /proc")
@pytest.mark.parametrize("case", MEMORY)
def test_a_call_uses_what_it_asks_for_at_most(case):
    keywords, pair = MEMORY[case]
    # Pages of files that the system drops meanwhile are taken for the call's: not in each of three processes.
    peak, asked = min(peak_and_asked(keywords, pair) for _ in range(3))
    # Memory that other tests have freed may be used again, and is not seen then.
    assert peak < 1.1 * asked + 4e6


def traced_and_asked(operands, keywords):
    """Return the most that Python allocated in a call, and the bytes that it asked for."""
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_run.memory, "UNASKED", 0)
        patch.setattr(cpu_run.memory, "require_host_free", lambda size, what: asked.append(size))
        evd.eigh(*([np.eye(3)] * len(operands)), backend="cpu")  # what a first call keeps
        asked.clear()
        tracemalloc.start()
        try:
            evd.eigh(*operands, **keywords, backend="cpu")
            return tracemalloc.get_traced_memory()[1], asked
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("case", MEMORY)
def test_a_call_asks_for_what_it_uses(case):
    keywords, pair = MEMORY[case]
    keywords = dict(keywords)
    dtype, n = keywords.pop("dtype", "float64"), 700
    a = np.asfortranarray(random_hermitian(n, np.random.default_rng(1), dtype))
    operands = (a, np.eye(n, dtype=dtype, order="F")) if pair else (a,)
    peak, asked = traced_and_asked(operands, keywords)
    # Beside n² they work in some blocks of columns.
    assert 0.9 * (peak - 256 * n * a.itemsize) <= sum(asked) <= 1.1 * peak


@settings(max_examples=16, deadline=None, derandomize=True)
@given(
    n=st.integers(320, 380),
    dtype=st.sampled_from([*DTYPES, "int32", ">f8", "float16"]),
    layout=st.sampled_from(LAYOUTS),
    keywords=st.fixed_dictionaries({name: st.booleans() for name in ("lower", "eigvals_only", "overwrite_a")}),
    part=st.sampled_from(["all", "driver", "index", "value"]),
    pair=st.booleans(),
    chosen=st.floats(0, 1, exclude_max=True),
)
def test_no_call_uses_more_than_it_has_asked_for(n, dtype, layout, keywords, part, pair, chosen):
    if part == "driver":
        names = ("gv", "gvd", "gvx") if pair else ("ev", "evd", "evr", "evx")
        keywords["driver"] = names[int(chosen * len(names))]
    elif part == "index":
        keywords["subset_by_index"] = (int(chosen * n / 2), int(chosen * n))
    elif part == "value":
        keywords["subset_by_value"] = (0.0, 30 * chosen + 1)
    working = dtype if dtype in DTYPES else "float64"
    full = [8 * random_hermitian(n, np.random.default_rng(n), working), np.eye(n, dtype=working)][: 1 + pair]
    operands = [laid_out(one.astype(dtype), layout, keywords["lower"], np) for one in full]
    peak, asked = traced_and_asked(operands, keywords)
    # Beside n² both of us work in some blocks of columns.
    assert peak < 1.1 * sum(asked) + 256 * n * np.dtype(working).itemsize


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_either_matrix_of_a_pair_may_be_a_batch(kind):
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(2, 6, 6))
    a, b = a + a.T, b @ b.T + np.eye(6)
    several = np.arange(1.0, 4)[:, None, None]
    one = evd.eigh(a, b, type=kind, eigvals_only=True, backend="cpu")
    for left, right, factor in (
        (several * a, b, several[:, 0]),
        (a, several * b, several[:, 0] ** (-1 if kind == 1 else 1)),
    ):
        w = evd.eigh(left, right, type=kind, eigvals_only=True, backend="cpu")
        np.testing.assert_allclose(w, factor * one, rtol=1e-10)
