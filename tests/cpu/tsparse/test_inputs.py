"""Every format, type, order and number of duplicates of the factors, against exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spectile.tsparse import error_bound, spgemm, symbolic

FORMATS = ("csr", "csc", "coo", "bsr", "dia", "lil", "dok")
STORED = ("csr", "csc", "coo", "bsr")  # whose values have places
INTEGERS = (np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64)
FLOATS = (np.float16, np.float32, np.float64, np.longdouble)
QUICK = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def multiply(A, B, **options):
    return spgemm(A, B, backend="cpu", **options)


def values(rng, count, dtype):
    if dtype == np.bool_:
        return rng.integers(0, 2, count).astype(bool)
    if dtype in FLOATS:
        return (
            rng.choice([0.0, -0.0, 1.0, 3e-5, -2.5, 1000.0, -1000.0, 1 / 3], count)
            .astype(np.float16)
            .astype(np.float32 if dtype == np.float16 else dtype)
        )
    information = np.iinfo(dtype)
    edges = [0, 1, 2, 3, 7, 100, 2**26, 2**27, 2**31, 2**52, 2**53, 2**53 + 1, information.max, information.min]
    edges = [edge for edge in edges if information.min <= edge <= information.max]
    few = rng.integers(0, 3) > 0  # so that most products are not refused
    return np.array([edges[i] for i in rng.integers(0, 4 if few else len(edges), count)], dtype)


def matrix(rng, shape, form, kind, dtype, count, duplicates):
    """Return a matrix whose entries are in chance order, and perhaps stored more than once, and its exact sums."""
    rows, columns = shape
    count = 0 if 0 in shape else count
    height, width = (2 if form == "bsr" and n % 2 == 0 and n else 1 for n in shape)
    grid = rows // height, columns // width
    places = rng.integers(0, max(grid[0] * grid[1], 1), count)
    if not duplicates or form not in STORED:
        places = rng.permutation(np.unique(places))
    row, column = np.divmod(places, max(grid[1], 1))
    data = values(rng, len(places) * height * width, dtype).reshape(-1, height, width)
    if form in ("csr", "bsr", "csc"):
        major = column if form == "csc" else row
        order = np.argsort(major, kind="stable")
        row, column, data = row[order], column[order], data[order]
        major, minor = (column, row) if form == "csc" else (row, column)
        indptr = np.searchsorted(major, np.arange((grid[1] if form == "csc" else grid[0]) + 1))
        make = getattr(sp, f"{form}_{kind}")
        M = make((data if form == "bsr" else data.ravel(), minor, indptr), shape=shape)
    else:
        M = getattr(sp, f"coo_{kind}")((data.ravel(), (row, column)), shape=shape).asformat(form)
    if dtype == np.float16 and form in ("csr", "csc", "coo"):
        M.data = M.data.astype(dtype)  # SciPy takes none, and does not look
    exact = np.zeros(shape, object)
    held = np.zeros(shape, bool)
    for r, c, block in zip(row, column, data, strict=True):
        for (i, j), value in np.ndenumerate(block):
            place = r * height + i, c * width + j
            held[place] = True
            number = Fraction(float(value)) if dtype in FLOATS else int(value)
            exact[place] = max(exact[place], number) if dtype == np.bool_ else exact[place] + number
    if form in ("dia", "lil", "dok"):  # which hold zeros as they like
        held = np.zeros(shape, bool)
        converted = M.tocoo()
        held[converted.row, converted.col] = True
    return M, exact, held


def arguments():
    size = st.integers(0, 8)
    factor = st.tuples(
        st.sampled_from(FORMATS),
        st.sampled_from(["array", "matrix"]),
        st.sampled_from((np.bool_, *INTEGERS, *FLOATS)),
        st.integers(0, 25),
        st.booleans(),
    )
    return st.tuples(st.tuples(size, size, size), factor, factor, st.integers(0, 2**32))


@QUICK
@given(arguments(), st.sampled_from([None, "float64", "float32"]))
def test_products_of_all_inputs(chosen, precision):
    (m, k, n), left, right, seed = chosen
    rng = np.random.default_rng(seed)
    A, exact_a, held_a = matrix(rng, (m, k), *left)
    B, exact_b, held_b = matrix(rng, (k, n), *right)
    booleans = left[2] == right[2] == np.bool_
    integers = left[2] not in FLOATS and right[2] not in FLOATS
    kind = np.int32 if all(np.can_cast(x[2], np.int32) for x in (left, right)) else np.int64
    largest = np.iinfo(kind).max
    if precision == "float32" and not (left[2] in FLOATS and right[2] in FLOATS):
        precision = None
    exact = exact_a.dot(exact_b) if k else np.zeros((m, n), object)
    try:
        C = multiply(A, B, precision=precision)
    except ValueError as error:
        assert "sums of integers may exceed" in str(error) and precision is None and integers and not booleans
        sums = np.abs(exact_a).dot(np.abs(exact_b))
        most = max((*sums.flat, *np.abs(exact_a).flat, *np.abs(exact_b).flat), default=0)
        assert most >= largest * (1 - 2.0**-20)
        return
    assert isinstance(C, sp.csr_array if "array" in (left[1], right[1]) else sp.csr_matrix)
    held = held_a.astype(int) @ held_b.astype(int) > 0
    found = np.zeros((m, n), bool)
    C.check_format()
    entries = C.tocoo()
    found[entries.row, entries.col] = True
    assert C.nnz == found.sum() and (found <= held).all()
    assert (found == held).all()
    dense = C.toarray()
    if booleans and precision is None:
        assert C.dtype == np.bool_ and (dense == (exact > 0)).all()
    elif integers and precision is None:
        assert C.dtype == kind
        assert all(int(x) == y for x, y in zip(dense.flat, exact.flat, strict=True))
    else:
        bound = np.zeros((m, n))
        limits = error_bound(A, B, precision=precision).tocoo()
        bound[limits.row, limits.col] = limits.data
        for x, y, most in zip(dense.flat, exact.flat, bound.flat, strict=True):
            assert abs(Fraction(float(x)) - y) <= Fraction(float(most))
    pattern = symbolic(A, B, backend="cpu")
    again, limited = (
        pattern.multiply(A, B, precision=precision),
        multiply(A, B, precision=precision, memory_limit=10**8),
    )
    for other in (again, limited):
        assert type(other) is type(C) and other.dtype == C.dtype
        for name in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(other, name), getattr(C, name))
    if A.dtype == B.dtype == C.dtype and left[0] in STORED and right[0] in STORED and C.dtype.kind == "f":
        np.testing.assert_array_equal(pattern.numeric(A.data, B.data), C.data)


def in_chance_order(A, seed, form="csr"):
    """Return the same matrix with the entries of each row in chance order, the first of them twice."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(A.nnz)
    A = A.tocoo()
    row, column, data = A.row[order], A.col[order], A.data[order]
    row, column, data = np.append(row, row[0]), np.append(column, column[0]), np.append(data, 1.5)
    by_row = np.argsort(row, kind="stable")
    indptr = np.searchsorted(row[by_row], np.arange(A.shape[0] + 1))
    if form == "csr":
        return sp.csr_array((data[by_row], column[by_row], indptr), shape=A.shape)
    if form == "csc":
        return sp.csc_array((data[by_row], column[by_row], indptr), shape=A.shape[::-1])
    return sp.coo_array((data, (row, column)), shape=A.shape)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_numeric_takes_values_where_the_matrix_stores_them(form):
    A = in_chance_order(sp.random_array((50, 50), density=0.1, rng=np.random.default_rng(1)), 2, form)
    B = in_chance_order(sp.random_array((50, 50), density=0.1, rng=np.random.default_rng(3)), 4, form)
    pattern = symbolic(A, B, backend="cpu")
    for factor in (1.0, -2.0):
        A.data *= factor
        np.testing.assert_array_equal(pattern.numeric(A.data, B.data), multiply(A, B).data)
        np.testing.assert_allclose(multiply(A, B).toarray(), A.toarray() @ B.toarray(), rtol=1e-12)


def test_numeric_takes_blocks():
    A = sp.random_array((40, 40), density=0.1, rng=np.random.default_rng(5)).tobsr((2, 4))
    pattern = symbolic(A, A, backend="cpu")
    np.testing.assert_array_equal(pattern.numeric(A.data, A.data), multiply(A, A).data)
    with pytest.raises(ValueError, match="values of shape"):
        pattern.numeric(A.data.ravel(), A.data)


@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_integer_duplicates_are_summed_exactly(form, kind):
    def duplicated(numbers, dtype):
        zeros = np.zeros(len(numbers), int)
        M = getattr(sp, f"coo_{kind}")((np.array(numbers, dtype), (zeros, zeros)), shape=(1, 1))
        if form == "coo":
            return M
        return getattr(sp, f"{form}_{kind}")((M.data, zeros, np.array([0, len(numbers)])), shape=(1, 1))

    one = sp.csr_array([[1]])
    for dtype, numbers in (
        (np.int8, [100, 100]),
        (np.uint8, [255] * 5),
        (np.int64, [2**62, 2**62, 2**62, -3 * 2**62 + 7]),
    ):
        if max(numbers) < 2**63 and min(numbers) >= -(2**63):
            assert int(multiply(duplicated(numbers, dtype), one).data[0]) == sum(numbers)
    for numbers in ([2**63, 2**63], [2**63, 1], [2**62, 2**62]):
        with pytest.raises(ValueError, match="sums of integers"):
            multiply(duplicated(numbers, np.uint64), one)
        C = multiply(duplicated(numbers, np.uint64), one, precision="float64")
        assert (
            abs(int(C.data[0]) - sum(numbers))
            <= error_bound(duplicated(numbers, np.uint64), one, precision="float64").data[0]
        )


EDGE = 2**63


@pytest.mark.parametrize("run", ["spgemm", "multiply"])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([[EDGE - 1]], [[1]]),
        ([[EDGE // 2, EDGE // 2, 1]], [[1], [1], [1]]),
        ([[EDGE // 2, EDGE // 2 - 1]], [[1], [1]]),
        ([[2**60 + 1]], [[1]]),
        ([[2**53, 1]], [[1], [1]]),
        ([[2**32]], [[2**31 + 1]]),
        ([[2**32 - 1]], [[2**31]]),
        ([[-(2**63)]], [[-1]]),
        ([[EDGE - 1, 1]], [[1], [-1]]),
    ],
)
def test_integers_at_the_edge_are_exact_or_refused(left, right, run):
    A, B = sp.csr_array(np.array(left, np.int64)), sp.csr_array(np.array(right, np.int64))
    exact = sum(a * b[0] for a, b in zip(left[0], right, strict=True))
    try:
        if run == "multiply":
            C = symbolic(A, B, backend="cpu").multiply(A, B)
        else:
            C = multiply(A, B)
    except ValueError as error:
        assert "sums of integers" in str(error)
        sizes = sum(abs(a * b[0]) for a, b in zip(left[0], right, strict=True))
        assert max(sizes, *map(abs, left[0])) >= EDGE * (1 - 2.0**-20)
    else:
        assert int(C.data[0]) == exact


def test_precision_asked_is_that_of_sums_of_duplicates():
    zeros = np.zeros(2, int)
    A = sp.csr_array((np.array([1, 3e-8], np.float32), zeros, np.array([0, 2])), shape=(1, 1))
    B = sp.csr_array([[1.0]])
    C = multiply(A, B, precision="float64")
    assert abs(C.data[0] - (1 + float(np.float32(3e-8)))) <= error_bound(A, B, precision="float64").data[0] < 1e-15


def test_what_sums_of_duplicates_lose_is_in_the_bound():
    zeros = np.zeros(3, int)
    A = sp.csr_array((np.array([1.0, 2.0**-60, -1.0]), zeros, np.array([0, 3])), shape=(1, 1))
    B = sp.csr_array([[1.0]])
    assert abs(multiply(A, B).data[0] - 2.0**-60) <= error_bound(A, B).data[0]


@pytest.mark.parametrize("value", ["1e400", "-1e400"])
def test_wider_types_are_exact_or_refused(value):
    narrow = sp.csr_array(np.array([[0.5, 3]], np.longdouble))
    assert multiply(narrow, sp.csr_array(narrow.T)).data[0] == 9.25
    one = np.longdouble(1)
    for number in (one + one / 2**60, np.longdouble(value)):
        if float(number) == number:
            pytest.skip("longdouble is float64 on this machine")
        for run in (multiply, symbolic(narrow, sp.csr_array([[1], [1]]), backend="cpu").multiply):
            with pytest.raises(TypeError, match="values that float64 does not hold"):
                run(sp.csr_array(np.array([[number, 1]])), sp.csr_array([[1], [1]]))


@pytest.mark.parametrize("precision", ["float64", "float32", "tf32", "float16"])
def test_unchecked_values_are_passed_on(precision):
    A = sp.csr_array(np.array([[1.0, 0, 2], [0, np.nan, 0], [np.inf, 1, 0], [3, 0, 1]]))
    B = sp.csr_array(np.array([[2.0, 0], [1, 4], [0, -np.inf]]))
    expected = np.array([[2, -np.inf], [np.nan, np.nan], [np.inf, 4], [6, -np.inf]])
    pattern = symbolic(A, B, backend="cpu")  # whose values are not used
    for C in (
        multiply(A, B, precision=precision, check_finite=False),
        pattern.multiply(A, B, precision=precision, check_finite=False),
    ):
        np.testing.assert_array_equal(C.toarray(), expected)
    for run in (multiply, pattern.multiply):
        with pytest.raises(ValueError, match="A holds nan at row 1, column 1"):
            run(A, B, precision=precision)
    small = sp.csr_array(np.array([[2.0**-140, np.inf], [2.0**-141, 0]]))  # which float16 scales
    C = multiply(small, sp.csr_array(np.eye(2)), precision="float16", check_finite=False)
    np.testing.assert_array_equal(C.toarray(), [[2.0**-140, np.inf], [2.0**-141, 0]])


def test_sums_of_duplicates_beyond_the_range_are_refused():
    A = sp.csr_array((np.full(2, 1.7e308), np.zeros(2, int), np.array([0, 2])), shape=(1, 1))
    with pytest.raises(ValueError, match="A holds inf at row 0, column 0"):
        multiply(A, A)


def test_values_may_overlap_what_is_written():
    A = sp.random_array((40, 40), density=0.3, rng=np.random.default_rng(6), format="csr")
    A.sort_indices()
    one = sp.eye_array(40, format="csr")
    for left, right in ((A, one), (one, A)):
        pattern = symbolic(left, right, backend="cpu")
        expected = pattern.numeric(left.data, right.data)
        room = np.empty(A.nnz + 3)
        for shift in (0, 3):
            data = room[:-3]
            data[:] = A.data
            pair = [data if factor is A else factor.data for factor in (left, right)]
            out = room[shift : len(room) - 3 + shift]
            np.testing.assert_array_equal(pattern.numeric(*pair, out=out), expected)


def test_arrays_in_any_memory():
    """Read-only, strided, of the other byte order, unaligned: the product or one sentence."""
    A = sp.random_array((30, 30), density=0.2, rng=np.random.default_rng(7), format="csr")
    A.sort_indices()
    expected = multiply(A, A)

    def read_only(x):
        x = x.copy()
        x.flags.writeable = False
        return x

    def strided(x):
        return np.repeat(x, 2)[::2]

    def backward(x):
        return x[::-1].copy()[::-1]

    def unaligned(x):
        held = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype)
        held[:] = x
        return held

    def swapped(x):
        return x.astype(x.dtype.newbyteorder())

    pattern = symbolic(A, A, backend="cpu")
    for change in (read_only, strided, backward, unaligned, swapped):
        for names in (("data",), ("indices",), ("indptr",), ("data", "indices", "indptr")):
            M = A.copy()
            for name in names:
                setattr(M, name, change(getattr(A, name)))
            C = multiply(M, M)
            for name in ("indptr", "indices", "data"):
                np.testing.assert_array_equal(getattr(C, name), getattr(expected, name))
        try:
            found = pattern.numeric(change(A.data), A.data)
        except (TypeError, ValueError) as error:
            assert change is not read_only and "data_a is" in str(error)
        else:
            np.testing.assert_array_equal(found, expected.data)


@pytest.mark.parametrize("short", ["indices", "data", "indptr"])
@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo"])
def test_lengths_that_do_not_fit_are_refused(form, short):
    A = sp.random_array((30, 30), density=0.2, rng=np.random.default_rng(8)).asformat(form)
    if form == "coo":
        if short == "indptr":
            pytest.skip("a list of coordinates has none")
        short = "row" if short == "indices" else short
        if short == "row":
            A.coords = (A.row[:-2], A.col)
    if short != "row":
        setattr(A, short, getattr(A, short)[:-2])
    with pytest.raises(ValueError, match="A"):
        multiply(A, sp.eye_array(30, format="csr"))
    with pytest.raises(ValueError, match="A"):
        symbolic(A, sp.eye_array(30, format="csr"), backend="cpu")


@pytest.mark.parametrize("form", STORED)
def test_a_pattern_takes_no_notice_of_values(form):
    A = sp.random_array((30, 30), density=0.2, format="csr", rng=1)
    odd = A.copy()
    odd.data[::3], odd.data[1::5] = np.nan, np.inf
    product = symbolic(odd.asformat(form), odd.asformat(form), backend="cpu")
    again = multiply(A, A)
    found = product.multiply(A.asformat(form), A.asformat(form))
    assert (found.indptr == again.indptr).all() and (found.indices == again.indices).all()
    assert (found.data == again.data).all()
