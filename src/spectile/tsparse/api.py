"""The public functions of sparse products: check the input, choose the backend, call it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from spectile.core.device import choose_backend
from spectile.tsparse import errors
from spectile.tsparse.precision import (
    BY_ENTRY,
    IN_TILES,
    HalfRange,
    Precision,
    fits_half,
    half_exponents,
    lookup,
    round_half,
    round_tf32,
)

Backend = Literal["auto", "cpu", "cuda"]
PrecisionName = Literal["float64", "float32", "tf32", "float16"]
Method = Literal["auto", "rows", "tiles"]

Exponents = tuple[np.ndarray, np.ndarray]  # of the rows of A and of the columns of B

METHODS = ("auto", "rows", "tiles")


def spgemm(
    A: Any,
    B: Any,
    *,
    precision: PrecisionName = "float64",
    method: Method = "auto",
    memory_limit: int | None = None,
    backend: Backend = "auto",
) -> Any:
    """Multiply two sparse matrices: C = A B.

    Parameters
    ----------
    A : sparse matrix or array, shape (m, k)
        Of `scipy.sparse` or `cupyx.scipy.sparse`, any format, real, integer or Boolean.  Rows may be empty or unsorted;
        duplicates are summed.
    B : sparse matrix or array, shape (k, n)
        Of the same library as `A`.
    precision : {"float64", "float32", "tf32", "float16"}
        ``float64`` and ``float32``: that arithmetic throughout.  ``tf32``, ``float16``: inputs rounded to 11
        significant bits, products and sums in float32 (the mixed precision of tensor cores).  For ``float16``, what
        its range does not hold is scaled by powers of two and C is scaled back: in tiles by rows of A and columns of B,
        otherwise entry by entry, and by rows and columns only where an entry leaves the range of float32 or is above
        2**48.
    method : {"auto", "rows", "tiles"}
        ``rows``: row by row, entry by entry; on a GPU an analysis chooses for each row how it is gathered.
        ``tiles``: the paper's 8x8 bitmap tiles, on a GPU with tensor cores.  ``auto``: ``rows``, the faster from CSR to
        CSR on every matrix measured but a generated full band (docs/performance/tsparse.md).
    memory_limit : int, optional
        Bytes that the product may use beside A, B, C and, on a CPU, three integers a row.  Fewer threads (CPU) or
        chunks of rows (GPU) keep it.
    backend : {"auto", "cpu", "cuda"}
        ``auto``: CUDA for matrices on a GPU and where a device is found, else the CPU.

    Returns
    -------
    C : CSR matrix or array, shape (m, n)
        Of the library of `A`, indices sorted, float64 for ``precision="float64"`` and float32 otherwise.  Its pattern
        is structural: an entry that cancels is stored as 0.  The same call gives the same bits every time, whatever the
        number of threads and the memory limit.

    Raises
    ------
    TypeError
        If a factor is not sparse or not real, or the factors are of different libraries.
    ValueError
        If the shapes do not fit, an index is out of range, an entry is NaN or infinite, or float16 cannot hold a row.
    MemoryError
        If `memory_limit` is too small for one row.

    Notes
    -----
    On a CPU up to 64 MB of work space stay for the next call, unless `memory_limit` is given.

    Source: Zachariadis et al., "Accelerating sparse matrix-matrix multiplication with GPU Tensor Cores" (2020).

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from spectile.tsparse import spgemm
    >>> C = spgemm(sp.eye_array(4), sp.random_array((4, 3), density=0.5), precision="float32")
    """
    chosen = lookup(precision)
    _one_of("method", method, METHODS)
    A, B, on_gpu, chosen_backend = _factors(A, B, backend)
    _check_limit(memory_limit)
    if chosen_backend == "cuda":
        from spectile.tsparse.cuda import run as gpu

        return gpu.spgemm(A, B, chosen, method, memory_limit, host=not on_gpu)
    left, right = _operands(A, B)
    if method == "tiles":
        return _tiles_on_cpu(left, right, chosen)
    return _by_rows_on_cpu(left, right, chosen, memory_limit)


def symbolic(A: Any, B: Any, *, memory_limit: int | None = None, backend: Backend = "auto") -> Any:
    """Analyse the patterns of A and B once, for many products with the same patterns and other values.

    Parameters
    ----------
    A, B : sparse matrix or array
        As for :func:`spgemm`; their values are not used.
    memory_limit : int, optional
        As for :func:`spgemm`; on a GPU the analysis of all rows, which is kept, has to fit.
    backend : {"auto", "cpu", "cuda"}
        As for :func:`spgemm`; ``multiply`` runs there too.

    Returns
    -------
    SymbolicProduct
        Its ``multiply(A, B, precision=...)`` gives what :func:`spgemm` gives, without the symbolic phase.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`spgemm`.
    """
    A, B, on_gpu, chosen_backend = _factors(A, B, backend)
    _check_limit(memory_limit)
    if chosen_backend == "cuda":
        from spectile.tsparse.cuda import run as gpu

        return gpu.symbolic(A, B, memory_limit, host=not on_gpu)
    return _symbolic(*_operands(A, B), memory_limit)


def error_bound(A: Any, B: Any, *, precision: PrecisionName = "float64", method: Method = "auto") -> Any:
    """Bound the rounding error of each entry of ``spgemm(A, B, precision=precision, method=method)``.

    Parameters
    ----------
    A, B : scipy.sparse matrix or array
        The factors.
    precision, method : str
        As for :func:`spgemm`.

    Returns
    -------
    CSR array, float64
        On the pattern of C: ``|dA| |B| + |A'| |dB| + gamma |A'| |B'|``, where A' and B' are the rounded inputs, dA and
        dB what the rounding changed, and ``gamma = n u / (1 - n u)`` for the n products of the entry and the unit
        roundoff u of the sum (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 3.1).
    """
    chosen = lookup(precision)
    left, right = _operands(A, B)
    half = IN_TILES if method == "tiles" else BY_ENTRY
    rounded_left, rounded_right, exponents = _rounded(left, right, chosen, half)
    pattern = _symbolic(left, right, None)
    exact = lookup("float64")

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return pattern._numeric(left.with_data(a), right.with_data(b), exact, None).data

    a, b = np.abs(rounded_left.astype(np.float64)), np.abs(rounded_right.astype(np.float64))
    if exponents is not None:
        a = np.ldexp(a, exponents[0][left.row_of_entries()])
        b = np.ldexp(b, exponents[1][right.indices])
    lost_a, lost_b = (np.abs(np.abs(x.data.astype(np.float64)) - y) for x, y in ((left, a), (right, b)))
    n = product(np.ones(len(a)), np.ones(len(b))) + 1
    gamma = n * chosen.unit / (1 - n * chosen.unit)
    bound = product(lost_a, np.abs(right.data.astype(np.float64))) + product(a, lost_b) + gamma * product(a, b)
    # The bound is itself rounded; two units more than cover it.  Below float32's normal range the error is absolute.
    bound = bound * (1 + 8 * n * 2.0**-53) + (n * 2.0**-149 if chosen.dtype == np.float32 else n * 2.0**-1074)
    import scipy.sparse as sp

    return sp.csr_array((bound, pattern.indices, pattern.indptr), shape=pattern.shape)


@dataclass(frozen=True)
class Operand:
    """A checked CSR factor on the host: sorted rows without duplicates, finite real values."""

    shape: tuple[int, int]
    indptr: np.ndarray  # int64
    indices: np.ndarray  # int32, or int64 where a shape or the input asks for it
    data: np.ndarray
    array: bool  # scipy sparse array rather than matrix

    def with_data(self, data: np.ndarray) -> Operand:
        """Return the same pattern with other values."""
        return Operand(self.shape, self.indptr, self.indices, data, self.array)

    def row_of_entries(self) -> np.ndarray:
        """Return the row of each stored entry."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))

    def csr(self) -> Any:
        """Return the factor as a scipy CSR array."""
        import scipy.sparse as sp

        return sp.csr_array((self.data, self.indices, self.indptr), shape=self.shape)


@dataclass
class SymbolicProduct:
    """The pattern of C = A B, kept for further products of matrices with the patterns of A and B.

    Attributes
    ----------
    shape : tuple of int
        Shape of C.
    indptr, indices : ndarray
        Row pointer and sorted columns of C.  `indices` is None until the first product.
    products : int
        Multiplications of one product.
    """

    shape: tuple[int, int]
    indptr: np.ndarray
    indices: np.ndarray | None
    products: int
    _chunks: list[tuple[np.uint64, np.uint64]]
    _patterns: tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    _memory_limit: int | None = field(default=None)

    @property
    def nnz(self) -> int:
        """Stored entries of C."""
        return int(self.indptr[-1])

    def multiply(self, A: Any, B: Any, *, precision: PrecisionName = "float64") -> Any:
        """Return C = A B for factors with the analysed patterns.

        Raises
        ------
        ValueError
            If the pattern of a factor differs from the analysed one, and for the reasons of :func:`spgemm`.
        """
        chosen = lookup(precision)
        A, B, _, _ = _factors(A, B, "cpu")
        operands = _operands(A, B)
        for name, operand, (indptr, indices) in zip("AB", operands, self._patterns, strict=True):
            if not (np.array_equal(operand.indptr, indptr) and np.array_equal(operand.indices, indices)):
                raise errors.other_pattern(name)
        return self._numeric(*operands, chosen, self._memory_limit)

    def _numeric(self, A: Operand, B: Operand, precision: Precision, memory_limit: int | None) -> Any:
        from spectile.tsparse.cpu import rows as cpu

        threads = cpu.workers(B.shape[1], precision.dtype.itemsize, memory_limit)
        data_a, data_b, exponents = _rounded(A, B, precision)
        left, right = (A.indptr, A.indices, data_a), (B.indptr, B.indices, data_b)
        size, chunks = B.shape[1], self._chunks
        if self.indices is None:
            self.indices, data = cpu.fill(left, right, size, chunks, self.indptr, threads)
        else:
            data = cpu.refill(left, right, size, chunks, self.indptr, self.indices, threads)
        data = _unscale(data, self.indptr, self.indices, exponents)
        return _csr(self.shape, self.indptr, self.indices, data, A.array or B.array)


def _by_rows_on_cpu(A: Operand, B: Operand, precision: Precision, memory_limit: int | None) -> Any:
    """Multiply row by row: in one pass, or with the rows counted first where its room may be too large."""
    from spectile.tsparse.cpu import rows as cpu

    work = cpu.survey(A.indptr, A.indices, B.indptr)
    threads = cpu.workers(B.shape[1], 8, memory_limit)
    chunks = cpu.chunks(work, threads)
    if memory_limit is None:
        data_a, data_b, exponents = _rounded(A, B, precision)
        left, right = (A.indptr, A.indices, data_a), (B.indptr, B.indices, data_b)
        found = cpu.multiply(left, right, B.shape[1], work, chunks, threads)
        if found is not None:
            indptr, indices, data = found
            data = _unscale(data, indptr, indices, exponents)
            return _csr((A.shape[0], B.shape[1]), indptr, indices, data, A.array or B.array)
    return _count(A, B, memory_limit, work, chunks)._numeric(A, B, precision, memory_limit)


def _symbolic(A: Operand, B: Operand, memory_limit: int | None) -> SymbolicProduct:
    from spectile.tsparse.cpu import rows as cpu

    work = cpu.survey(A.indptr, A.indices, B.indptr)
    return _count(A, B, memory_limit, work, cpu.chunks(work, cpu.workers(B.shape[1], 8, memory_limit)))


def _count(A: Operand, B: Operand, memory_limit: int | None, work: Any, chunks: Any) -> SymbolicProduct:
    from spectile.tsparse.cpu import rows as cpu

    shape = A.shape[0], B.shape[1]
    threads = cpu.workers(shape[1], 8, memory_limit)
    indptr = cpu.count(A.indptr, A.indices, B.indptr, B.indices, shape[1], chunks, threads)
    patterns = (A.indptr, A.indices), (B.indptr, B.indices)
    return SymbolicProduct(shape, indptr, None, work.products, chunks, patterns, memory_limit)


def _rounded(
    A: Operand, B: Operand, precision: Precision, half: HalfRange = BY_ENTRY
) -> tuple[np.ndarray, np.ndarray, Exponents | None]:
    """Return the values of A and B as `precision` takes them, and the exponents they were scaled by."""
    if precision.name == "float16":
        if fits_half(A.data, half) and fits_half(B.data, half):
            return round_half(A.data, half), round_half(B.data, half), None
        row = A.row_of_entries()
        rows = half_exponents(A.data, row, A.shape[0], "row of A", half)
        columns = half_exponents(B.data, B.indices, B.shape[1], "column of B", half)
        data_a = np.ldexp(A.data.astype(np.float64), -rows[row])
        data_b = np.ldexp(B.data.astype(np.float64), -columns[B.indices])
        return round_half(data_a, half), round_half(data_b, half), (rows, columns)
    values = []
    for name, operand in (("A", A), ("B", B)):
        with np.errstate(over="ignore"):
            data = operand.data.astype(precision.dtype, copy=False)
        if precision.dtype == np.float32 and operand.data.dtype.itemsize == 8 and not np.isfinite(data).all():
            raise errors.beyond_float32(f"{name} holds entries")
        values.append(round_tf32(data) if precision.name == "tf32" else data)
    return values[0], values[1], None


def _unscale(data: np.ndarray, indptr: np.ndarray, indices: np.ndarray, exponents: Exponents | None) -> np.ndarray:
    """Multiply C by the powers of two that the inputs were divided by."""
    if exponents is None:
        return data
    rows, columns = exponents
    exponent = np.repeat(rows, np.diff(indptr)) + columns[indices]
    with np.errstate(over="ignore"):
        scaled = np.ldexp(data, exponent)
    if not np.isfinite(scaled).all():
        raise errors.beyond_float32("an entry of C is")
    return scaled


def _tiles_on_cpu(A: Operand, B: Operand, precision: Precision) -> Any:
    """Multiply by the paper's algorithm, in NumPy."""
    from spectile.tsparse import reference

    data_a, data_b, exponents = _rounded(A, B, precision, IN_TILES)
    left, right = (reference.to_bitmap(x.with_data(d).csr()) for x, d in ((A, data_a), (B, data_b)))
    C = reference.to_csr(reference.spgemm(left, right, precision.dtype))
    indptr, indices, data = C.indptr.astype(np.int64), C.indices, C.data
    data = _unscale(data, indptr, indices, exponents)
    return _csr((A.shape[0], B.shape[1]), indptr, indices.astype(A.indices.dtype), data, A.array or B.array)


def _csr(shape: tuple[int, int], indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, array: bool) -> Any:
    import scipy.sparse as sp

    # One index type for both: 64-bit only where the count or the columns need it.
    small = indptr[-1] < 2**31 and indices.dtype == np.int32
    index = np.int32 if small else np.int64
    arrays = (data, indices.astype(index, copy=False), indptr.astype(index, copy=False))
    C = (sp.csr_array if array else sp.csr_matrix)(arrays, shape=shape)
    C.has_canonical_format = True
    return C


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(allowed)}")


def _check_limit(memory_limit: int | None) -> None:
    if memory_limit is not None and memory_limit <= 0:
        raise ValueError(f"memory_limit is {memory_limit}; give a positive number of bytes, or None for no limit")


def _factors(A: Any, B: Any, backend: str) -> tuple[Any, Any, bool, str]:
    """Check kinds and shapes; return the factors, whether they are on a GPU, and the backend to use."""
    import scipy.sparse as sp

    kinds = []
    for name, matrix in (("A", A), ("B", B)):
        if sp.issparse(matrix):
            kinds.append("scipy.sparse")
        elif type(matrix).__module__.startswith("cupyx.scipy.sparse"):
            kinds.append("cupyx.scipy.sparse")
        else:
            raise TypeError(
                f"{name} is a {type(matrix).__name__}, not a sparse matrix: wrap it in scipy.sparse.csr_array(...)"
            )
        if matrix.ndim != 2:
            raise ValueError(f"{name} has {matrix.ndim} dimension(s); a product of matrices needs 2")
        if matrix.dtype.kind not in "bifu":
            raise TypeError(
                f"{name} holds {matrix.dtype} values; sparse products here are real: "
                "multiply real and imaginary parts apart"
            )
    if kinds[0] != kinds[1]:
        raise TypeError(f"A is of {kinds[0]} and B of {kinds[1]}: bring both to one library first")
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"A has shape {A.shape} and B {B.shape}: the columns of A must be the rows of B")
    on_gpu = kinds[0] == "cupyx.scipy.sparse"
    return A, B, on_gpu, choose_backend(backend, on_gpu)


def _operands(A: Any, B: Any) -> tuple[Operand, Operand]:
    """Check both host factors; a square's factor is checked once."""
    left = _operand(A, "A")
    return left, left if B is A else _operand(B, "B")


def _operand(matrix: Any, name: str) -> Operand:
    """Check a host factor and bring it to CSR with sorted rows and no duplicates; the input is not changed."""
    import scipy.sparse as sp

    from spectile.tsparse.cpu import rows as cpu

    csr = matrix.tocsr()
    rows, columns = csr.shape
    indptr, indices, data = csr.indptr, csr.indices, csr.data
    if len(indptr) != rows + 1 or indptr[0] != 0 or not 0 <= indptr[-1] <= min(len(indices), len(data)):
        raise errors.bad_pointer(name)
    nnz = int(indptr[-1])
    indices, data = indices[:nnz], data[:nnz]
    if data.dtype.kind != "f" or data.dtype.itemsize == 2:
        data = data.astype(np.float32 if data.dtype.itemsize < 4 else np.float64)
    elif data.dtype not in (np.float32, np.float64):
        data = data.astype(np.float64)
    indptr = indptr.astype(np.int64)
    outside, infinite, unsorted, falls = cpu.examine(indptr, indices, data, columns)
    if falls:
        raise errors.bad_pointer(name)
    if outside:
        raise errors.bad_index(name, columns)
    if infinite:
        worst = int(np.argmin(np.isfinite(data)))
        row = int(np.searchsorted(indptr, worst, side="right")) - 1
        raise errors.not_finite(name, data[worst], row, indices[worst])
    index = np.int64 if indices.dtype.itemsize == 8 and max(columns, rows) >= 2**31 else np.int32
    indices = indices.astype(index, copy=False)
    if unsorted:
        clean = sp.csr_array((data.copy(), indices.copy(), indptr.copy()), shape=csr.shape)
        clean.sum_duplicates()
        indptr, indices, data = clean.indptr.astype(np.int64), clean.indices.astype(index), clean.data
    return Operand(csr.shape, indptr, indices, data, isinstance(matrix, sp.sparray))
