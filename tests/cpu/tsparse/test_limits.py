"""What a product on the CPU takes beside A, B and C, held against its limit, and what an interrupt waits for."""

import os
import re
import signal
import threading
import time
import tracemalloc

import numba
import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import api, spgemm, symbolic

from .test_inputs import in_chance_order


def random(m, n, per_row, seed, dtype=np.float64, form="csr", duplicates=False):
    rng = np.random.default_rng(seed)
    if form == "dia":
        offsets = range(-2, 2)
        return sp.diags_array([rng.uniform(1, 9, max(m, n)) for _ in offsets], offsets=offsets, shape=(m, n))
    places = np.repeat(np.arange(m), per_row), rng.integers(0, n, m * per_row)
    A = sp.coo_array((rng.uniform(1, 9, m * per_row).astype(dtype), places), shape=(m, n)).tocsr()
    A.sort_indices()
    A.data = rng.uniform(1, 9, A.nnz).astype(dtype)
    return (
        in_chance_order(A, seed, "csr" if form == "csr" else "coo").asformat(form) if duplicates else A.asformat(form)
    )


def used(run):
    """Return the bytes that a call holds at most, and its result."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        result = run()
        return tracemalloc.get_traced_memory()[1] - before, result
    finally:
        tracemalloc.stop()


def least(run):
    """Return the limit that the last of the refusals names: each phase names what it takes, as far as is known then."""
    limits = [1000]
    while True:
        try:
            run(limits[-1])
        except MemoryError as refused:
            limits.append(int(re.search(r"raise it to at least (\d+)", str(refused))[1]))
        else:
            assert 2 <= len(limits) <= 14 and (np.diff(limits) > 0).all()
            return limits[-1]


def bytes_of(C):
    if isinstance(C, np.ndarray):
        return C.nbytes
    arrays = (C.row, C.col, C.data) if C.format == "coo" else (C.indptr, C.indices, C.data)
    return sum(array.nbytes for array in arrays)


def judge(run, spread=2**15):
    """Hold what a call asks for against what it uses beside C: within a tenth, but for parts whose size is fixed."""
    whole, enough = run(None), least(run)
    run(enough)
    # A thread of a pool may let go of its part a moment after the call has gone on: the least of three.
    peak, C = min((used(lambda: run(enough)) for _ in range(3)), key=lambda found: found[0])
    uses = peak - bytes_of(C)
    assert uses <= 1.02 * enough + 2**14, (enough, uses)  # Python's own objects, more in a process with many modules
    assert enough <= 1.1 * uses + spread, (enough, uses)
    return enough, C, whole


CASES = [
    (np.float64, "csr", False, None),
    (np.float32, "csr", False, None),
    (np.float64, "csr", False, "float32"),
    (np.float64, "csr", False, "tf32"),
    (np.float32, "csr", False, "float16"),
    (np.float64, "csr", True, None),
    (np.float32, "csr", True, None),
    (np.int64, "csr", False, None),
    (np.int8, "coo", True, None),
    (np.float64, "csc", False, None),
    (np.float32, "coo", True, "float64"),
    (np.float64, "bsr", False, None),
    (np.float64, "dia", False, None),
    (np.float64, "lil", False, None),
    (np.bool_, "csr", False, None),
    (np.complex64, "csr", False, None),
    (np.complex128, "coo", True, None),
    (np.complex64, "csr", False, "float64"),
    (np.complex128, "csr", False, "float32"),
]


@pytest.mark.parametrize(("dtype", "form", "duplicates", "precision"), CASES)
@pytest.mark.parametrize("shape", [(20_000, 3000, 500), (300, 2000, 200_000), (50, 4000, 10**7)])
def test_a_limit_is_kept(shape, dtype, form, duplicates, precision):
    m, k, n = shape
    if form in ("lil", "bsr") and max(shape) > 10**5:
        n = 3000
    A, B = random(m, k, 4, 1, dtype, form, duplicates), random(k, n, 4, 2, dtype, form, duplicates)

    def product(limit=None):
        return spgemm(A, B, precision=precision, memory_limit=limit, backend="cpu")

    _, C, whole = judge(product, 2**17 if precision == "float16" else 2**15)
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(C, name), getattr(whole, name))


@pytest.mark.parametrize(
    ("dtype", "precision"), [("f8", "float32"), ("f4", "float64"), ("f8", "tf32"), ("f4", "float16")]
)
def test_a_limit_is_kept_beside_the_values_of_a_square(dtype, precision):
    """Which are converted once, but where each side has a scale of its own."""
    A = random(1500, 1500, 40, 1, dtype)
    judge(lambda limit: spgemm(A, A, precision=precision, memory_limit=limit, backend="cpu"), 2**17)


@pytest.mark.parametrize("dtype", ["f4", "c16"])
@pytest.mark.parametrize("duplicates", [False, True])
@pytest.mark.parametrize("form", ["csr", "coo"])
def test_a_limit_is_kept_where_indices_have_64_bits(form, duplicates, dtype):
    """Of a B with many more entries than C, whose order takes the most."""
    A, B = (random(*shape, 30, seed, dtype, form, duplicates) for seed, shape in enumerate([(30, 4000), (4000, 500)]))
    for matrix in (A, B):
        if form == "csr":
            matrix.indices, matrix.indptr = matrix.indices.astype("i8"), matrix.indptr.astype("i8")
        else:
            matrix.coords = tuple(x.astype("i8") for x in matrix.coords)
    judge(lambda limit: spgemm(A, B, memory_limit=limit, backend="cpu"), 2**17)


@pytest.mark.parametrize(("left", "right"), [("f4", "c8"), ("f8", "c16"), ("f4", "c16"), ("i4", "c8"), ("c8", "f8")])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_limit_is_kept_beside_complex_factors(left, right, precision):
    A, B = random(20_000, 3000, 4, 1, left), random(3000, 500, 4, 2, right)

    def product(limit=None):
        return spgemm(A, B, precision=precision, memory_limit=limit, backend="cpu")

    judge(product)


#: Each kind of call meets every other structure.
STRUCTURES = {
    "random": lambda: (random(1200, 900, 4, 1), random(900, 500, 4, 2)),
    "a square": lambda: (random(900, 900, 6, 3),) * 2,
    "banded": lambda: (sp.diags_array(np.ones((5, 1500)), offsets=range(-2, 3), shape=(1500, 1500), format="csr"),) * 2,
    "hubs": lambda: (hubs := sp.vstack([random(4, 900, 500, 4), random(896, 900, 3, 5)], format="csr"), hubs),
    "its transpose": lambda: ((A := random(900, 700, 5, 6)), A.T),
    "its transpose in CSR": lambda: ((A := random(900, 700, 5, 6)), A.T.tocsr()),
    "Boolean": lambda: (random(1200, 900, 4, 1, np.bool_), random(900, 500, 4, 2, np.bool_)),
    "complex": lambda: (random(1200, 900, 4, 1, np.complex128), random(900, 500, 4, 2, np.complex64)),
}
WANTED = {
    "the product": lambda shape: {},
    "dense": lambda shape: {"format": "dense"},
    "by columns": lambda shape: {"format": "csc"},
    "a mask": lambda shape: {"mask": random(*shape, 5, 7)},
    "not a mask": lambda shape: {"mask": random(*shape, 5, 7), "complement": True},
    "the largest": lambda shape: {"top_n": 3},
    "pruned": lambda shape: {"prune": 5.0},
    "a sum": lambda shape: {"C": random(*shape, 4, 8), "beta": 2.0},
    "largest of a sum in a mask": lambda shape: {
        "C": random(*shape, 4, 8), "beta": 2.0, "mask": random(*shape, 5, 7), "top_n": 2,
    },
    "min_plus": lambda shape: {"semiring": "min_plus"},
    "or_and": lambda shape: {"semiring": "or_and"},
    "plus_pair": lambda shape: {"semiring": "plus_pair"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("structure", "wanted"),
    [(one, two) for i, one in enumerate(STRUCTURES) for j, two in enumerate(WANTED) if (i + j) % 2 == 0],
)
def test_what_a_call_asks_for_is_what_it_uses(structure, wanted):
    A, B = STRUCTURES[structure]()
    kinds = {A.dtype.kind, B.dtype.kind}
    if (wanted == "min_plus" and kinds != {"f"}) or ("sum" in wanted and "b" in kinds):
        pytest.skip("no such product")
    options = WANTED[wanted]((A.shape[0], B.shape[1]))
    _, C, whole = judge(lambda limit=None: spgemm(A, B, memory_limit=limit, backend="cpu", **options))
    assert abs(C.astype(complex) - whole.astype(complex)).max() < 1e-9


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr"])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_call_that_is_refused_has_not_taken_more_than_its_limit(form, share):
    """Of many columns, whose pointer is the largest of all arrays."""
    A, B = random(300, 2000, 4, 1, form=form), random(2000, 200_000, 4, 2, form=form)

    def product(limit):
        return spgemm(A, B, memory_limit=limit, backend="cpu")

    limit = int(share * least(product))

    def refused():
        with pytest.raises(MemoryError, match="raise it to at least"):
            product(limit)

    assert used(refused)[0] <= 1.1 * limit + 2**17


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("wanted", ["csc", "coo", "dense"])
def test_a_limit_is_kept_in_other_formats(form, wanted):
    A, B = random(4000, 3000, 4, 1, form=form), random(3000, 500, 4, 2, form=form)
    _, C, whole = judge(lambda limit=None: spgemm(A, B, format=wanted, memory_limit=limit, backend="cpu"), 2**16)
    np.testing.assert_allclose(abs(C - whole).max(), 0, atol=1e-12)


def test_a_square_by_columns_takes_no_more_than_by_rows():
    A = random(3000, 3000, 5, 3, dtype=np.float32, duplicates=True)
    by_rows, by_columns = (
        least(lambda limit, x=x: spgemm(x, x, format=x.format, precision="float64", memory_limit=limit, backend="cpu"))
        for x in (A, A.T)
    )
    assert by_columns == by_rows


@pytest.mark.parametrize("form", ["csr", "coo"])
def test_a_kept_pattern_keeps_its_limit(form):
    A = random(3000, 3000, 5, 3, form=form, duplicates=form == "coo")
    enough = least(lambda limit: symbolic(A, A, memory_limit=limit, backend="cpu"))
    peak, pattern = used(lambda: symbolic(A, A, memory_limit=enough, backend="cpu"))
    assert peak <= 1.02 * enough + pattern.indptr.nbytes / 2 and enough <= 1.1 * peak + 2**15
    np.testing.assert_array_equal(pattern.numeric(A.data, A.data), spgemm(A, A, backend="cpu").data)


def test_few_entries_in_many_columns_take_little():
    B = sp.csr_array((np.ones(5), np.array([3, 5, 7, 9, 10**9 - 1]), np.array([0, 2, 5])), shape=(2, 10**9))
    A = sp.csr_array([[1.0, 2.0], [0.0, 3.0]])
    for limit in (None, 10**5):
        peak, C = used(lambda limit=limit: spgemm(A, B, memory_limit=limit, backend="cpu"))
        assert peak < 2 * 10**5
        assert C.indices.tolist() == [3, 5, 7, 9, 10**9 - 1, 7, 9, 10**9 - 1]


@pytest.mark.parametrize("options", [{"top_n": 1}, {"prune": 1e9}, {"semiring": "max_plus", "top_n": 1}])
def test_what_is_selected_is_never_made_as_a_whole(options):
    A, B = (sp.csr_array(np.random.default_rng(1).normal(size=size)) for size in ((1000, 100), (100, 100)))
    whole, _ = used(lambda: spgemm(A, B, backend="cpu"))
    part, C = used(lambda: spgemm(A, B, backend="cpu", **options))
    assert C.nnz == 1000 * ("top_n" in options) and part < whole / 2


def test_columns_get_their_numbers_back_in_little_room():
    from spectile.tsparse.cpu import one_pass

    indices, held = np.random.default_rng(2).integers(0, 1000, 10**6), np.arange(1000) * 2**33 + 5
    expected = held[indices]
    assert used(lambda: one_pass.rename(indices, held))[0] < indices.nbytes / 10
    np.testing.assert_array_equal(indices, expected)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.usefixtures("hears_ctrl_c")
def test_an_interrupt_stops_a_product(threads, counted, monkeypatch):
    """After a small part of the product, whatever is left of it, and the next call is right.

    Time is the processor's, which other load does not change.
    """
    from spectile.tsparse.cpu import one_pass

    small = random(300, 300, 5, 6)
    expected = spgemm(small, small, backend="cpu")
    if counted:
        monkeypatch.setattr(one_pass, "LARGEST_RESERVE", 0)
    A = sp.csr_array(np.ones((12_000, 300)))
    B = sp.csr_array(np.ones((300, 3000)))
    sent = []

    def interrupt():
        sent.append(time.process_time())
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(one_pass, "LARGEST_KEPT", 0)
    before = numba.get_num_threads()
    numba.set_num_threads(min(threads, before))
    timer = threading.Timer(0.5, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            for _ in range(20):
                spgemm(A, B, backend="cpu")
        assert time.process_time() - sent[0] < 4
        C = spgemm(small, small, backend="cpu")
    finally:
        timer.cancel()
        numba.set_num_threads(before)
    np.testing.assert_array_equal(C.data, expected.data)


def test_what_a_thread_raises_stops_the_others():
    from spectile.tsparse.cpu import threads

    done = []

    def work(start, stop):
        done.append(int(start))
        if start == 3:
            raise MemoryError("no room")
        time.sleep(0.01)

    with pytest.raises(MemoryError, match="no room"):
        threads.over_rows(threads.between(np.arange(1, 1000), 1000), 2, work)
    assert len(done) < 500  # of 999: on a busy machine the other thread goes on until the one that failed has said so
    count = len(done)
    time.sleep(0.05)
    assert len(done) == count
    threads.over_rows(threads.between(np.arange(1, 5), 5), 2, lambda start, stop: done.append(int(start)))
    assert sorted(done[count:]) == [0, 1, 2, 3, 4]


class Begun(Exception):
    """A product on a device has taken its limit and begins."""


@pytest.mark.parametrize("form", ["csr", "coo", "dia"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "D"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": True},
        {"C": True, "beta": 2, "precision": "float64"},
        {"top_n": 3},
        {"mask": True, "complement": True},
        {"semiring": "any_pair"},
        None,
    ],
    ids=str,
)
def test_a_limit_below_the_copies_on_a_device_is_named_with_one_that_is_enough(form, dtype, options, monkeypatch):
    from spectile.core.devices import TABLE
    from spectile.tsparse.cuda import galerkin, run, wanted

    def begin(*_, **__):
        raise Begun

    monkeypatch.setattr(run, "describe", lambda: TABLE["H200"])
    for module, name in ((run, "given"), (wanted, "given"), (wanted, "_of_ones"), (galerkin, "_narrow")):
        monkeypatch.setattr(module, name, begin)
    monkeypatch.setattr(api, "choose_backend", lambda *_: "cuda")
    A, B = (random(200, 200, 4, seed, form=form).astype(dtype) for seed in (1, 2))
    asked = {name: A if name in ("mask", "C") else value for name, value in (options or {}).items()}

    def call(limit):
        if options is None:
            return galerkin.GalerkinProduct(A, B, A, np.dtype("f8"), limit)
        return spgemm(A, B, memory_limit=limit, **asked)

    with pytest.raises(MemoryError, match=r"memory_limit is 1 bytes, and copies of .* raise it to at least") as refused:
        call(1)
    enough = int(re.search(r"raise it to at least (\d+)", str(refused.value))[1])
    with pytest.raises(MemoryError, match=f"at least {enough}"):
        call(enough - 1)
    with pytest.raises(Begun):
        call(enough)
