"""The public functions of sparse products: check the input, choose the backend, call it."""

from __future__ import annotations

from numbers import Real
from typing import Any

from spectile.core.choice import Candidate
from spectile.core.device import Backend, choose_backend
from spectile.core.options import flag
from spectile.core.threads import num_threads
from spectile.tsparse.matrices import as_boolean, both_boolean, both_integer, check_pair, choose_precision
from spectile.tsparse.types import PrecisionName, SymbolicProduct


def spgemm(
    A: Any,
    B: Any,
    *,
    precision: PrecisionName | None = None,
    memory_limit: int | None = None,
    check_finite: bool = True,
    backend: Backend = "auto",
) -> Any:
    """Multiply two sparse matrices: C = A B.

    Parameters
    ----------
    A : sparse matrix or array, shape (m, k)
        Of `scipy.sparse` or `cupyx.scipy.sparse`, any format, real, integer or Boolean.  Rows may be empty or unsorted.
        Duplicates are summed, in float64 whatever the `precision`, and integers exactly; True and True is True.
    B : sparse matrix or array, shape (k, n)
        Of the same library as `A`.
    precision : {"float64", "float32", "tf32", "float16"}, optional
        Also spelled fp64, fp32 and fp16.  By default that of the values: float32 where both factors hold float32 (or
        NumPy's rules of types give float16 or float32), else float64.  By default integers are multiplied exactly in
        float64, or refused, and two Boolean factors give a Boolean C.  ``float64`` and ``float32``: that arithmetic
        throughout.  ``tf32``, ``float16``: inputs rounded to 11 significant bits, products and sums in float32 (the
        mixed precision of tensor cores).  For ``float16`` each entry keeps its own power of two; where an entry leaves
        the range of float32 or is above 2**48, rows of A and columns of B are scaled by powers of two, and C is scaled
        back.
    memory_limit : int, optional
        Bytes that the product may use beside A, B and C, copies of A and B in another format, order or type included.
        It is respected by using fewer threads (CPU) or chunks of rows (GPU).
    check_finite : bool, default True
        Whether entries that are NaN or infinite are refused.  If not, entries of C are what IEEE arithmetic makes of
        them.
    backend : {"auto", "cpu", "cuda"}
        ``auto``: CUDA for matrices on a GPU or if there is a device, and the CPU otherwise.

    Returns
    -------
    C : CSR matrix or array, shape (m, n)
        Of the library of `A`: an array if `A` or `B` is an array, and a matrix if both are matrices.  Indices are
        sorted, and of 64 bits where C has 2**31 columns or entries, or more.  Values are float64 for
        ``precision="float64"`` and float32 otherwise, and Boolean for Boolean factors without a `precision`.  The
        pattern is structural: an entry whose terms cancel is stored as 0.  The same call gives the same bits every
        time, whatever the number of threads and the memory limit.

    Raises
    ------
    TypeError
        If a factor is not sparse or not real or holds a masked array, or long doubles that float64 does not hold, or
        the factors are of different libraries.
    ValueError
        If the shapes or the lengths of arrays do not fit, an index is out of range, an entry is NaN or infinite,
        float16 cannot hold a row, sums of the sizes of products of integers reach 2**53 and no `precision` is named,
        or a factor is on a GPU that is not the current one.
    MemoryError
        If `memory_limit` is too small for one row; the message names what suffices.
    KeyboardInterrupt
        On a CPU within about a second, after which the next call works.

    See Also
    --------
    spectile.tsparse.symbolic : analyses two patterns once, for many products with other values.
    spectile.tsparse.error_bound : bounds the rounding error of each entry of C.

    Notes
    -----
    Row by row (F. G. Gustavson, "Two fast algorithms for sparse matrices", 1978); on a GPU an analysis chooses for each
    row how its entries are gathered.  The tiles on tensor cores of the paper are measured by the study.

    On a CPU up to 64 MB of work space are kept for the next call, unless `memory_limit` is given.

    Source: Zachariadis et al., "Accelerating sparse matrix-matrix multiplication with GPU Tensor Cores" (2020).

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from spectile import spgemm
    >>> a = sp.csr_array([[1.0, 2.0], [0.0, 3.0]])
    >>> spgemm(a, a, backend="cpu").toarray().tolist()
    [[1.0, 8.0], [0.0, 9.0]]
    """
    on_gpu = check_pair(A, B)
    chosen_backend = choose_backend(backend, on_gpu)
    _check_limit(memory_limit)
    chosen = choose_precision(A, B, precision)
    options: dict[str, Any] = {
        "exact": precision is None and both_integer(A, B),
        "check_finite": flag("check_finite", check_finite),
    }
    if chosen_backend == "cuda":
        from spectile.tsparse.cuda import run as gpu

        C = gpu.spgemm(A, B, chosen, memory_limit, host=not on_gpu, **options)
    else:
        from spectile.tsparse.cpu import run as cpu

        C = cpu.spgemm(A, B, chosen, memory_limit, **options)
    return as_boolean(C) if precision is None and both_boolean(A, B) else C


def symbolic(A: Any, B: Any, *, memory_limit: int | None = None, backend: Backend = "auto") -> SymbolicProduct:
    """Analyse the patterns of A and B once, for many products with the same patterns and other values.

    Parameters
    ----------
    A, B : sparse matrix or array
        As for :func:`spgemm`; their values are not looked at.
    memory_limit : int, optional
        As for :func:`spgemm`; on a GPU the analysis of all rows is kept and has to fit.
    backend : {"auto", "cpu", "cuda"}
        As for :func:`spgemm`; ``multiply`` runs there too.

    Returns
    -------
    SymbolicProduct
        The pattern of C (``indptr``, ``indices``, ``nnz``).  Its ``multiply(A, B, precision=...)`` gives what
        :func:`spgemm` gives, without the symbolic phase; ``numeric(data_a, data_b, out=...)`` the values of C alone,
        for values in the order in which A and B store theirs, without a check of the factors and without a wait.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`spgemm`.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from spectile.tsparse import symbolic
    >>> a = sp.csr_array([[1.0, 2.0], [0.0, 3.0]])
    >>> pattern = symbolic(a, a, backend="cpu")
    >>> pattern.indices.tolist(), pattern.numeric(2 * a.data, a.data).tolist()
    ([0, 1, 1], [2.0, 16.0, 18.0])
    """
    on_gpu = check_pair(A, B)
    chosen_backend = choose_backend(backend, on_gpu)
    _check_limit(memory_limit)
    if chosen_backend == "cuda":
        from spectile.tsparse.cuda import symbolic as gpu

        return gpu.SymbolicProduct(A, B, memory_limit, host=not on_gpu)
    from spectile.tsparse.cpu import symbolic as cpu

    return cpu.analyse(A, B, memory_limit)


def error_bound(A: Any, B: Any, *, precision: PrecisionName | None = None) -> Any:
    """Bound the rounding error of each entry of ``spgemm(A, B, precision=precision)``.

    Parameters
    ----------
    A, B : scipy.sparse matrix or array
        The factors.
    precision : str
        As for :func:`spgemm`.

    Returns
    -------
    CSR array, float64
        On the pattern of C: ``|dA| |B| + |A'| |dB| + gamma |A'| |B'|``, where A' and B' are the rounded inputs, dA and
        dB what the rounding changed, and ``gamma = n u / (1 - n u)`` for the n products of the entry and the unit
        roundoff u of the sum (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 3.1).

    Raises
    ------
    TypeError, ValueError
        As :func:`spgemm`.
    """
    import scipy.sparse as sp

    from spectile.tsparse import bounds
    from spectile.tsparse.cpu import symbolic as cpu
    from spectile.tsparse.cpu.operands import operands
    from spectile.tsparse.rounding import rounded

    if check_pair(A, B):
        raise TypeError("A and B are on a GPU, and the bound is computed on the host: copy them there with A.get()")
    chosen = choose_precision(A, B, precision)
    left, right = operands(A, B)
    pattern = cpu.symbolic(left, right)
    bound = bounds.error_bound(left, right, chosen, rounded(left, right, chosen), pattern.values)
    return sp.csr_array((bound, pattern.indices, pattern.indptr), shape=pattern.shape)


def explain(
    A: Any,
    B: Any,
    *,
    precision: PrecisionName | None = None,
    memory_limit: int | None = None,
    check_finite: bool = True,
    backend: Backend = "auto",
) -> list[Candidate]:
    """Return the ways in which :func:`spgemm` may make a product, and what each is predicted to take.

    Parameters
    ----------
    A, B : sparse matrix or array
        As for :func:`spgemm`; patterns on a GPU are copied to the host.
    precision, memory_limit, check_finite, backend
        As for :func:`spgemm`.

    Returns
    -------
    list of spectile.core.choice.Candidate
        Of each way its name, seconds (None where the call would not take it) and what they are made of.  The backend
        follows from `backend` and from where the factors are, whatever the prediction.

    Raises
    ------
    TypeError, ValueError
        As :func:`spgemm`.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from spectile.tsparse import explain
    >>> a = sp.csr_array([[1.0, 2.0], [0.0, 3.0]])
    >>> [one.kernel for one in explain(a, a, backend="cpu") if one.seconds is not None]
    ['cpu: one pass', 'cpu: counted, then filled']
    """
    from spectile.tsparse import candidates
    from spectile.tsparse.cpu.operands import operands

    on_gpu = check_pair(A, B)
    chosen_backend = choose_backend(backend, on_gpu)
    _check_limit(memory_limit)
    chosen = choose_precision(A, B, precision)
    left, right = (A.get(), B.get()) if on_gpu else (A, B)
    work = candidates.work_of(*operands(left, left if B is A else right, values=False))
    cpu = candidates.on_cpu(work, chosen, num_threads(), memory_limit is not None)
    if chosen_backend == "cuda":
        from spectile.core.device import describe

        why = "the product is made on a GPU"
        return [candidates.on_gpu(work, chosen, describe()), *(one._replace(seconds=None, why=why) for one in cpu)]
    return [*cpu, Candidate("cuda: rows by bins", None, "the product is made on a CPU")]


def _check_limit(memory_limit: int | None) -> None:
    if memory_limit is not None and (not isinstance(memory_limit, Real) or not memory_limit > 0):
        raise ValueError(f"memory_limit is {memory_limit!r}; give a positive number of bytes, or None for no limit")


#: What `spectile.explain` asks, by the name of the function.
EXPLAINED = {"spgemm": explain}
