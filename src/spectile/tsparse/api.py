"""The public functions of sparse products: check the input, choose the backend, call it."""

from __future__ import annotations

import cmath
import functools
import importlib
import operator
import reprlib
import sys
from collections.abc import Iterator, Sequence
from numbers import Complex, Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from spectile.core.arrays import host_array, require_here
from spectile.core.choice import Candidate, not_taken
from spectile.core.device import NO_DEVICES, Backend, backends, choose_backend, require_device
from spectile.core.memory import require_host_free
from spectile.core.options import flag, kind_of, number, word
from spectile.core.places import device_ids, home_of
from spectile.core.protocols import SparseMatrix
from spectile.core.threads import num_threads
from spectile.tsparse.matrices import (
    as_boolean,
    both_boolean,
    check_beside,
    check_pair,
    check_sparse,
    choose_precision,
    host_csr,
    in_format,
    is_array,
    related,
)
from spectile.tsparse.matrices import on_gpu as is_on_gpu
from spectile.tsparse.selection import Wanted
from spectile.tsparse.semirings import SemiringName, lookup_semiring, precision_of
from spectile.tsparse.types import BYTES, FORMATS, FormatName, Precision, PrecisionName, SymbolicProduct

if TYPE_CHECKING:
    from spectile.tsparse.cpu.galerkin import GalerkinProduct


def spgemm(
    A: SparseMatrix,
    B: SparseMatrix,
    *,
    semiring: SemiringName = "plus_times",
    mask: Any = None,
    complement: bool = False,
    alpha: complex = 1,
    beta: complex = 0,
    C: Any = None,
    prune: float | None = None,
    top_n: int | None = None,
    format: FormatName = "csr",
    precision: PrecisionName | None = None,
    memory_limit: int | None = None,
    check_finite: bool = True,
    devices: int | Sequence[int] | None = None,
    backend: Backend = "auto",
) -> Any:
    """Multiply two sparse matrices: C = A B, over a semiring, under a mask, or with its largest entries alone.

    Parameters
    ----------
    A : sparse matrix or array, shape (m, k)
        Of `scipy.sparse` or `cupyx.scipy.sparse`, any format, real, complex, integer or Boolean.  Rows may be empty or
        unsorted.  Duplicates are summed, in double precision whatever the `precision`, and integers exactly; True and
        True is True.
    B : sparse matrix or array, shape (k, n)
        Of the same library as `A`.
    semiring : {"plus_times", "min_plus", "max_plus", "max_min", "or_and", "any_pair", "plus_pair"}
        What is added and what is multiplied; an entry that is not stored is the identity of the addition.
        ``min_plus``, ``max_plus`` (lengths of paths) and ``max_min`` (widths) are of real numbers and integers.
        ``or_and`` is of Booleans: what is not 0 is True.  ``any_pair`` gives True where A and B meet, ``plus_pair``
        how often, int64 (of CuPy, which has no sparse integers, float64); both read no values.
    mask : sparse matrix or array, shape (m, n), optional
        Only those entries of C are made where the mask has an entry that is not 0; they cost what their products cost,
        by rows of B or, whichever is less, by its columns (CPU) or a search in its rows (GPU).
    complement : bool, default False
        Whether those entries are dropped instead, and all others made.
    alpha, beta : number, default 1 and 0
        The result is ``alpha A B + beta C`` (``plus_times`` of real and complex numbers).
    C : sparse matrix or array, shape (m, n), optional
        What is added; entries outside of the mask are dropped from it, too.
    prune : float, optional
        Entries of the result below it in absolute value are dropped (`error_bound` tells what that changes).
    top_n : int, optional
        Of each row the so many largest entries are kept, in the order of their columns; complex ones by absolute value,
        and of equal ones those of the least columns.  Neither this nor `prune` keeps more than a few rows of the whole
        product at a time.
    format : {"csr", "csc", "coo", "bsr", "dense"}, default "csr"
        That of C.  ``dense`` is an array whose missing entries are the identity of the semiring's addition, 0 for
        ``plus_times``, as are entries of ``bsr`` that fill its blocks, which SciPy chooses.  On a CPU matrices in CSC
        are taken as they are, and C is made by columns, where that brings fewer entries into another order.
    precision : {"float64", "float32", "tf32", "float16"}, optional
        Also spelled fp64, fp32 and fp16.  By default that of the values: float32 where both factors hold float32 (or
        NumPy's rules of types give float16, float32 or complex64), else float64.  By default integers are multiplied
        exactly, or refused, and two Boolean factors give a Boolean C.  ``float64`` and ``float32``: that arithmetic
        throughout, of real and imaginary parts where a factor is complex.  ``tf32``, ``float16``: inputs rounded to 11
        significant bits, products and sums in float32 (the mixed precision of tensor cores).  For ``float16`` each
        entry keeps its own power of two; where an entry leaves the range of float32 or is above 2**48, rows of A and
        columns of B are scaled by powers of two, and C is scaled back.
    memory_limit : int, optional
        Bytes that the product may use beside A, B and C, copies of A and B in another format, order or type included;
        ``bsr``, and ``csc`` of factors in other formats than CSR and CSC, take those of C once more.
        It is respected by using fewer threads (CPU) or chunks of rows (GPU).
    check_finite : bool, default True
        Whether entries that are NaN or infinite are refused.  If not, entries of C are what IEEE arithmetic makes of
        them.  On a CPU, rows of a large B that a small A does not meet are not looked at.
    devices : int or sequence of int, optional
        GPUs of this host that make rows of like work side by side, with the bits of one: the first so many, or those
        named, each once.  B is copied to each.  Matrices on a GPU lie on one of them, which then has C; `memory_limit`
        is of each.
    backend : {"auto", "cpu", "cuda"}
        ``auto``: CUDA for matrices on a GPU, with `devices`, and for those of the host if there is a device which is
        predicted to take less: C's way back counts, so that it does where an entry of C has many products.

    Returns
    -------
    C : matrix or array, shape (m, n)
        In the format asked for and of the library of `A`: an array if `A` or `B` is an array, and a matrix if both are
        matrices.  Indices are sorted, and of 64 bits where C has 2**31 columns or entries, or more.  Values are float64
        for ``precision="float64"`` and float32 otherwise, complex128 and complex64 where a factor is complex.  Without
        a `precision` they are Boolean for Boolean factors, and of integers int32 where that holds both types of values,
        else int64.  The pattern is structural: an entry whose terms cancel is stored as 0, unless it is pruned.  The
        same call gives the same bits every time, whatever the number of threads and the memory limit.

    Raises
    ------
    TypeError
        If the values of a factor have no identity of the semiring, or a factor is not sparse or not of numbers or holds
        a masked array, or long doubles that float64 does not hold, or the factors are of different libraries.
    ValueError
        If the shapes, of the mask and of C too, or the lengths of arrays do not fit, an index is out of range, an entry
        is NaN or infinite, float16 cannot hold a row, a complex factor meets tf32 or float16, sums of the sizes of
        products of integers are beyond their type (on a GPU, beyond 2**53) and no `precision` is named, or a factor is
        on a GPU that is not the current one, or `devices` are not there.
    MemoryError
        If `memory_limit` is too small, or a dense C does not fit.  The message names what the call takes, as far as it
        is known then: entries of C are counted after the factors are in order.
    KeyboardInterrupt
        On a CPU within about a second, after which the next call works.

    See Also
    --------
    spectile.tsparse.symbolic : analyses two patterns once, for many products with other values.
    spectile.tsparse.error_bound : bounds the rounding error of each entry of C.

    Notes
    -----
    Row by row (F. G. Gustavson, "Two fast algorithms for sparse matrices", 1978); on a GPU an analysis chooses for each
    row how its entries are gathered.  ``A @ A.T``, ``A.T @ A`` and those of ``A.conj().T`` are found by their arrays
    and take half the products, without a `memory_limit`, on a GPU where C's entries have many products each.  The tiles
    on tensor cores of the paper are measured by the study.

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
    asked = _Asked(
        A, B, semiring=semiring, mask=mask, complement=complement, alpha=alpha, beta=beta, C=C, prune=prune,
        top_n=top_n, format=format, precision=precision, memory_limit=memory_limit, check_finite=check_finite,
        devices=devices, backend=backend,
    )  # fmt: skip
    cuda, on_gpu, wanted, form = asked.cuda, asked.on_gpu, asked.wanted, asked.form
    chosen, memory_limit, check_finite = asked.chosen, asked.memory_limit, asked.check_finite
    booleans, whole = asked.booleans, wanted.all_of_it
    if cuda and on_gpu and form == "bsr":
        raise ValueError('format = "bsr" is of SciPy, and CuPy has no such matrix: choose csr, csc, coo or dense')
    if form == "dense" and not on_gpu:
        needed = A.shape[0] * B.shape[1] * chosen.dtype.itemsize
        require_host_free(needed, f"C, an array of shape {(A.shape[0], B.shape[1])},")
    if devices is not None:
        made = _on_devices(A, B, asked)
    elif cuda and whole:
        from spectile.tsparse.cuda import run as gpu

        options: dict[str, Any] = {"form": form, "check_finite": check_finite, "booleans": booleans}
        made = gpu.spgemm(A, B, chosen, memory_limit, not on_gpu, **options)
    elif cuda:
        from spectile.tsparse.cuda import wanted as gpu_wanted

        made = gpu_wanted.spgemm(A, B, chosen, memory_limit, wanted, not on_gpu, check_finite=check_finite)
    elif whole:
        from spectile.tsparse.cpu import run as cpu

        kind = BYTES if booleans else chosen
        made = cpu.spgemm(A, B, kind, memory_limit, form=form, check_finite=check_finite)
    else:
        from spectile.tsparse.cpu import wanted as cpu_wanted

        made = cpu_wanted.spgemm(A, B, chosen, memory_limit, wanted, check_finite=check_finite, booleans=booleans)
    made = as_boolean(made) if booleans else made
    return _in_format(made, form, wanted.semiring.identity(made.dtype))


_DEFAULTS: dict[str, Any] = dict(spgemm.__kwdefaults__ or {})


class _Asked:
    """What the options of a product ask for, each of them read once; those left out are as `spgemm` has them."""

    def __init__(self, A: Any, B: Any, **options: Any) -> None:
        if options.keys() != _DEFAULTS.keys():
            if unknown := options.keys() - _DEFAULTS:
                raise TypeError(f"spgemm has no option {min(unknown)!r}: leave it out")
            options = _DEFAULTS | options
        precision = options["precision"]
        self.on_gpu, self.devices = check_pair(A, B), options["devices"]
        #: Says what a product of host matrices costs, where there is a choice.
        self.work = functools.partial(_work, A, B, precision)
        self.backend: Backend = options["backend"]
        if self.devices is not None and self.backend == "cuda":
            require_device(NO_DEVICES)
        chosen = choose_backend(self.backend, self.on_gpu, "tsparse", self.work if self.devices is None else None)
        self.cuda, self.memory_limit = chosen == "cuda", _limit(options["memory_limit"])
        self.check_finite = flag("check_finite", options["check_finite"])
        #: Whether sums of products become Boolean.
        self.booleans = precision is None and both_boolean(A, B)
        if all(map(operator.is_, _selected(options), _selected(_DEFAULTS))):
            self.wanted = _WHOLE[self.booleans]
            self.chosen = choose_precision(A, B, precision)
        else:
            ring, complement = lookup_semiring(options["semiring"]), flag("complement", options["complement"])
            alpha, beta = _number("alpha", options["alpha"]), _number("beta", options["beta"])
            self.booleans = self.booleans and ring.name == "plus_times"
            others = options["C"], options["prune"], options["top_n"], self.booleans or ring.value == "bool"
            self.wanted = Wanted(ring, options["mask"], complement, alpha, beta, *others)
            self.chosen = _choose(A, B, self.wanted, precision)
        self.form = word("format", options["format"], *FORMATS)


#: The options that `Wanted` is made of; what is wanted where none is given, by whether the result is Boolean.
_selected = operator.itemgetter("semiring", "mask", "complement", "alpha", "beta", "C", "prune", "top_n")
_WHOLE = [Wanted(lookup_semiring("plus_times"), boolean=boolean) for boolean in (False, True)]


def _work(A: Any, B: Any, precision: str | None) -> Any:
    """Return what a product of host matrices costs."""
    from spectile.tsparse.candidates import placed

    return placed(A, B, choose_precision(A, B, precision))


def _on_devices(A: Any, B: Any, asked: _Asked) -> Any:
    """Return what is wanted of a product, made on several devices."""
    if not asked.cuda:
        raise ValueError("devices spread a product over GPUs: leave them out on a CPU")
    import cupy

    ids, wanted = _device_ids(asked.devices), asked.wanted
    named = {"A": A, "B": B, "mask": wanted.mask, "C": wanted.C}
    places = {name: one.data.device.id if asked.on_gpu else None for name, one in named.items() if one is not None}
    with cupy.cuda.Device(home_of(places, ids)):
        from spectile.tsparse.cuda.spread import RowProduct

        product = RowProduct(A, B, asked.chosen, wanted, not asked.on_gpu, asked.check_finite, asked.form)
        C = product.on_devices(ids, asked.memory_limit)
        return _in_format(C, asked.form, wanted.semiring.identity(C.dtype))


def _device_ids(devices: Any) -> list[int]:
    import cupy

    return device_ids(devices, cupy.cuda.runtime.getDeviceCount())


def _in_format(C: Any, form: str, missing: complex = 0) -> Any:
    """Return C, on a GPU in CSR, in another format; see `in_format`."""
    if form == "csc" != getattr(C, "format", "dense") and is_on_gpu(C):
        from spectile.tsparse.cuda.turn import in_columns

        return in_columns(C)
    return in_format(C, form, missing)


def _choose(A: Any, B: Any, wanted: Wanted, precision: PrecisionName | None) -> Precision:
    """Return the precision of a product; raise where what is wanted contradicts itself or the factors."""
    chosen = choose_precision(A, B, precision)
    if wanted.all_of_it:
        _check_complement(wanted)
        return chosen
    chosen = precision_of(wanted.semiring, chosen, precision is not None, (A.dtype, B.dtype))
    _check_wanted(A, B, wanted, chosen)
    return chosen


def row_blocks(
    A: SparseMatrix,
    B: SparseMatrix,
    *,
    semiring: SemiringName = "plus_times",
    mask: Any = None,
    complement: bool = False,
    alpha: complex = 1,
    beta: complex = 0,
    C: Any = None,
    prune: float | None = None,
    top_n: int | None = None,
    precision: PrecisionName | None = None,
    memory_limit: int | None = None,
    check_finite: bool = True,
    backend: Backend = "auto",
) -> Iterator[tuple[slice, Any]]:
    """Multiply two sparse matrices and give the result block of rows by block, for products beyond the memory.

    Parameters
    ----------
    A, B : sparse matrix or array
        As for :func:`spgemm`.
    semiring, mask, complement, alpha, beta, C, prune, top_n, precision, check_finite, backend
        As for :func:`spgemm`.  On a CPU what a mask lets through is one block.  On a GPU B is as a whole, and A where
        both take half of what is free or of the limit at most; else its rows are copied there with their block.
    memory_limit : int, optional
        Bytes that the product may use beside A and B, one block of C included unless it is a single row or on a CPU
        one of 4,096 parts of the rows; without it a block has four million products, on a GPU about eight million
        entries.

    Yields
    ------
    rows : slice
        The rows of C that come next; together they are all, in order.
    part : CSR matrix or array, shape (rows, n)
        These rows of what :func:`spgemm` returns.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`spgemm`, at the call or with the first block.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from spectile.tsparse import row_blocks
    >>> a = sp.csr_array([[1.0, 2.0], [0.0, 3.0]])
    >>> [(rows.start, rows.stop, part.toarray().tolist()) for rows, part in row_blocks(a, a)]
    [(0, 2, [[1.0, 8.0], [0.0, 9.0]])]
    """
    asked = _Asked(
        A, B, semiring=semiring, mask=mask, complement=complement, alpha=alpha, beta=beta, C=C, prune=prune,
        top_n=top_n, precision=precision, memory_limit=memory_limit, check_finite=check_finite, backend=backend,
    )  # fmt: skip
    chosen, wanted, booleans = asked.chosen, asked.wanted, asked.booleans

    def blocks() -> Iterator[tuple[slice, Any]]:
        if asked.cuda:
            from spectile.tsparse.cuda.spread import RowProduct, fits

            copied = None if asked.on_gpu else fits(A, B, chosen, asked.memory_limit)
            product = RowProduct(A, B, chosen, wanted, not asked.on_gpu, asked.check_finite, copied=copied)
            for first, stop, part in product.blocks(asked.memory_limit):
                yield slice(first, stop), as_boolean(part) if booleans else part
            return
        from spectile.tsparse.cpu.wanted import parts_of

        options = asked.memory_limit, wanted, asked.check_finite, True, booleans
        for first, stop, rows in parts_of(A, B, chosen, *options):
            yield slice(first, stop), host_csr((stop - first, B.shape[1]), *rows, is_array(A, B))

    return blocks()


def spmm(A: Any, X: Any, *, check_finite: bool = True) -> Any:
    """Multiply a sparse matrix and a dense block of vectors, C = A X, where they are.

    Parameters
    ----------
    A : sparse matrix or array of SciPy or CuPy, shape (m, k)
        Any format; on a CPU ``A.T`` of a matrix in CSR needs no copy.
    X : (k,) or (k, r) array
        Of CuPy where A is, else what :func:`spectile.eigh` takes on the host.
    check_finite : bool, default True
        Whether entries that are NaN or infinite are refused.

    Returns
    -------
    (m,) or (m, r) array
        NumPy's or CuPy's, of the common type of both, single or double precision, real or complex.  The same call gives
        the same bits whatever the number of threads.

    Raises
    ------
    TypeError
        If `A` is not sparse, `X` is sparse, masked or not where A is, or the common type is no float.
    ValueError
        If the shapes do not fit, an entry is not finite, or an operand is on a GPU that is not the current one.

    Examples
    --------
    >>> import numpy as np
    >>> import scipy.sparse as sp
    >>> from spectile.tsparse import spmm
    >>> spmm(sp.csr_array([[1.0, 2.0], [0.0, 3.0]]), np.ones(2)).tolist()
    [3.0, 3.0]
    """
    on_gpu, X, kind = _dense_operands(A, X)
    library = importlib.import_module("cupy") if on_gpu else np
    if on_gpu:
        choose_backend("cuda", on_gpu)
        require_here("X", X)
    if flag("check_finite", check_finite) and not bool(library.isfinite(X).all()):
        raise ValueError("X holds entries that are NaN or infinite: remove or replace them")
    if on_gpu:
        from spectile.tsparse.cuda.dense import times_dense
    else:
        from spectile.tsparse.cpu.dense import times_dense
    block = X[:, None] if X.ndim == 1 else X
    C = times_dense(A, block.astype(kind, copy=False), bool(check_finite))
    return C.reshape(A.shape[0], *X.shape[1:])


def _dense_operands(A: Any, X: Any) -> tuple[bool, Any, np.dtype]:
    """Return whether A is on a GPU, X as an array, and the type of their product."""
    on_gpu = check_sparse("A", A)
    if hasattr(X, "tocsr") or (on_gpu and not isinstance(X, importlib.import_module("cupy").ndarray)):
        name = "CuPy" if on_gpu else "NumPy"
        raise TypeError(f"X is {kind_of(X)}, not an array of {name}: pass one, or use spgemm for a sparse one")
    X = X if on_gpu else host_array("X", X)
    if X.ndim not in (1, 2) or X.shape[0] != A.shape[1]:
        raise ValueError(f"A has shape {A.shape} and X {X.shape}: the columns of A must be the rows of X")
    kind = np.result_type(A.dtype, X.dtype)
    if kind.char not in "fdFD":
        raise TypeError(f"the common type of A and X is {kind}: convert one with .astype(float)")
    return on_gpu, X, kind


def _check_complement(wanted: Wanted) -> None:
    if wanted.complement and wanted.mask is None:
        raise ValueError("complement is True and there is no mask: name the mask that is complemented")
    if (wanted.C is None) != (wanted.beta == 0):
        given, missing = ("C", "beta") if wanted.beta == 0 else ("beta", "C")
        raise ValueError(f"{given} is given without {missing}: alpha A B + beta C needs both")


def _check_wanted(A: Any, B: Any, wanted: Wanted, precision: Precision) -> None:
    """Raise where options contradict each other or the factors."""
    _check_complement(wanted)
    shape = A.shape[0], B.shape[1]
    for name, matrix in (("mask", wanted.mask), ("C", wanted.C)):
        if matrix is not None:
            check_beside(name, matrix, A, shape)
    if wanted.alpha != 1 or wanted.C is not None:
        if wanted.semiring.name != "plus_times" or precision.dtype.kind not in "fc" or both_boolean(A, B):
            raise ValueError(
                "alpha, beta and C are of plus_times of real and complex numbers: "
                'leave them out, or name precision="float64"'
            )
        kinds = [("C", wanted.C.dtype)] if wanted.C is not None else []
        kinds += [(name, np.asarray(number).dtype) for name, number in (("alpha", wanted.alpha), ("beta", wanted.beta))]
        for name, kind in kinds:
            if kind.kind == "c" and precision.dtype.kind != "c":
                raise TypeError(f"{name} is complex and the product is real: convert A with .astype(complex)")
        for name, number in (("alpha", wanted.alpha), ("beta", wanted.beta)):
            with np.errstate(over="ignore", under="ignore"):
                lost = abs(complex(precision.dtype.type(number)) - complex(number))
            if not lost <= float(np.finfo(precision.dtype).eps) * abs(complex(number)):  # what underflows, too
                raise ValueError(
                    f'{name} is {number:.3g}, beyond the range of {precision.dtype}: name precision="float64"'
                )
    _check_prune(wanted.prune)
    top_n = wanted.top_n
    if top_n is not None and (not isinstance(top_n, Integral) or top_n < 1):
        raise ValueError(
            f"top_n is {reprlib.repr(top_n)}; give the number of entries of a row that are kept, 1 or more"
        )


def _check_prune(prune: Any) -> None:
    if prune is not None and (not isinstance(prune, Real) or not 0 <= _number("prune", prune) < np.inf):
        raise ValueError(f"prune is {reprlib.repr(prune)}; give the size below which entries are dropped, 0 or more")


def _number(name: str, value: Any) -> Any:
    """Return a finite number, real or complex."""
    try:
        if isinstance(value, Complex) and cmath.isfinite(complex(value)):
            return value
    except (OverflowError, TypeError, ValueError):
        pass
    raise ValueError(f"{name} is {reprlib.repr(value)}; give a finite number")


def symbolic(
    A: SparseMatrix, B: SparseMatrix, *, memory_limit: int | None = None, backend: Backend = "auto"
) -> SymbolicProduct:
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

    See Also
    --------
    spgemm : one product.
    galerkin : products of three matrices.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from spectile.tsparse import symbolic
    >>> a = sp.csr_array([[1.0, 2.0], [0.0, 3.0]])
    >>> pattern = symbolic(a, a, backend="cpu")
    >>> pattern.indices.tolist(), pattern.numeric(2 * a.data, a.data).tolist()
    ([0, 1, 1], [2.0, 16.0, 18.0])
    """
    asked = _Asked(A, B, memory_limit=memory_limit, backend=backend)
    if asked.cuda:
        from spectile.tsparse.cuda import symbolic as gpu

        return gpu.SymbolicProduct(A, B, asked.memory_limit, host=not asked.on_gpu)
    from spectile.tsparse.cpu import symbolic as cpu

    return cpu.analyse(A, B, asked.memory_limit)


def galerkin(R: Any, A: Any, P: Any, *, memory_limit: int | None = None) -> GalerkinProduct:
    """Multiply three sparse matrices, C = R A P, as the coarse operator of multigrid.

    Rows of R A are made block by block, multiplied with P and dropped: the whole of R A is never in memory.

    Parameters
    ----------
    R : sparse matrix or array of SciPy or CuPy, shape (m, k)
        Real or complex.  ``P.T`` needs no copy by the caller.  R and P are kept for ``numeric``, not copied.
    A : sparse matrix or array, shape (k, l)
    P : sparse matrix or array, shape (l, n)
        Both of the library of `R`; those of CuPy are multiplied on their GPU.
    memory_limit : int, optional
        Bytes of work space beside the matrices and copies of R and P, at most.

    Returns
    -------
    GalerkinProduct
        Its ``C`` is the product, and its ``numeric(A)`` that of another A of the same pattern.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`spgemm`.

    See Also
    --------
    spgemm : products of two matrices.
    symbolic : a pattern that is kept for other values.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from spectile.tsparse import galerkin
    >>> A = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(4, 4), format="csr")
    >>> P = sp.csr_array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> product = galerkin(P.T, A, P)
    >>> product.C.toarray().tolist(), product.numeric(2 * A).toarray().tolist()
    ([[2.0, -1.0], [-1.0, 2.0]], [[4.0, -2.0], [-2.0, 4.0]])
    """
    check_pair(R, A, "R", "A")
    on_gpu, limit = check_pair(A, P, "A", "P"), _limit(memory_limit)
    if any(matrix.dtype.kind not in "fc" for matrix in (R, A, P)):
        raise TypeError("the values of R, A and P are floats, real or complex: convert them with .astype(float)")
    kind = np.result_type(*(choose_precision(one, one, None).dtype for one in (R, A, P)))
    if on_gpu:
        from spectile.tsparse.cuda.galerkin import GalerkinProduct as OnGPU

        return OnGPU(R, A, P, kind, limit)
    from spectile.tsparse.cpu.galerkin import GalerkinProduct

    return GalerkinProduct(R, A, P, kind, limit)


def error_bound(
    A: SparseMatrix, B: SparseMatrix, *, precision: PrecisionName | None = None, prune: float | None = None
) -> Any:
    """Bound the error of each entry of ``spgemm(A, B, precision=precision, prune=prune)``.

    Parameters
    ----------
    A, B : scipy.sparse matrix or array
        The factors.
    precision : str
        As for :func:`spgemm`.
    prune : float, optional
        As for :func:`spgemm`: an entry that it drops is wrong by its size, too.

    Returns
    -------
    CSR array, float64
        On the pattern of the whole product, pruned entries among them: ``|dA| |B| + |A'| |dB| + gamma |A'| |B'|``,
        where A' and B' are the rounded inputs, dA and dB what the rounding changed, and ``gamma = n u / (1 - n u)`` for
        the n products of the entry and the unit roundoff u of the sum (N. J. Higham, Accuracy and Stability of
        Numerical Algorithms, 3.1).

    Raises
    ------
    TypeError, ValueError
        As :func:`spgemm`.

    See Also
    --------
    spgemm : the product whose error this bounds.

    Examples
    --------
    >>> import scipy.sparse
    >>> import spectile
    >>> from spectile.tsparse import error_bound
    >>> a = scipy.sparse.random_array((50, 50), density=0.1, format="csr", rng=1)
    >>> rounded = spectile.spgemm(a, a, precision="float16", backend="cpu")
    >>> bool((abs(rounded - a @ a) <= error_bound(a, a, precision="float16").toarray()).all())
    True
    """
    import scipy.sparse as sp

    from spectile.tsparse import bounds
    from spectile.tsparse.cpu import symbolic as cpu
    from spectile.tsparse.cpu.operands import operands
    from spectile.tsparse.rounding import rounded

    if check_pair(A, B):
        raise TypeError("A and B are on a GPU, and the bound is computed on the host: copy them there with A.get()")
    chosen = choose_precision(A, B, precision)
    _check_prune(prune)
    left, right = operands(A, B)
    pattern = cpu.symbolic(left, right)
    if chosen.dtype.kind == "i":
        bound = np.zeros(pattern.nnz)
    else:
        bound = bounds.error_bound(left, right, chosen, rounded(left, right, chosen), pattern.values)
    if prune is not None:
        size = np.abs(pattern.multiply(A, B, precision=precision).data.astype(np.result_type(chosen.dtype, np.float64)))
        bound[size < prune] += size[size < prune]
    return sp.csr_array((bound, pattern.indices.copy(), pattern.indptr.copy()), shape=pattern.shape)


def explain(A: Any, B: Any, **options: Any) -> list[Candidate]:
    """Return the ways in which :func:`spgemm` may make a product, and what each is predicted to take.

    Parameters
    ----------
    A, B : sparse matrix or array
        As for :func:`spgemm`; patterns on a GPU are copied to the host.
    **options
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
    from spectile.tsparse.cpu import ways
    from spectile.tsparse.cpu.operands import factors
    from spectile.tsparse.cpu.wanted import as_mask

    asked = _Asked(A, B, **options)
    on_gpu, wanted, chosen, form, devices = asked.on_gpu, asked.wanted, asked.chosen, asked.form, asked.devices
    limited = asked.memory_limit is not None
    left, right = (A.get(), B.get()) if on_gpu else (A, B)
    right = left if B is A else right
    operands, threads = factors(left, right, values=False), num_threads()
    work = candidates.work_of(*operands)
    if wanted.mask is not None and not wanted.complement:
        kept = as_mask(wanted.mask.get() if on_gpu else wanted.mask)
        cpu = candidates.masked(*operands, (kept.indptr, kept.indices), threads)
    elif not wanted.all_of_it:
        cpu = [candidates.selected(work, chosen, threads)]
    else:
        cpu = candidates.on_cpu(work, chosen, threads, limited, form == "dense")
        if form != "dense":
            cpu.append(candidates.triangle(work, cpu[0], any(related(left, right)), int(left.nnz), threads))
            rows, columns = ways.conversions(left, right, form)
            turned = ways.by_columns(left, right, form, chosen, limited)
            cpu = candidates.converted(cpu, columns, ", by columns") if turned else candidates.converted(cpu, rows)
    if asked.cuda:
        from spectile.core.device import describe

        why, count = "the product is made on a GPU", 1 if devices is None else len(_device_ids(devices))
        wide = B.shape[1] if form == "dense" and wanted.all_of_it else None
        one = candidates.on_gpu(work, chosen, describe(), wide, count)
        return [one, *(one._replace(seconds=None, why=why) for one in cpu)]
    if devices is not None:
        raise ValueError("devices spread a product over GPUs: leave them out on a CPU")
    other = not_taken("cpu", backends(asked.backend, on_gpu, asked.work))
    why = other[0].why if other else "the product is made on a CPU"
    return [*cpu, Candidate("cuda: rows by bins", None, why)]


def _limit(memory_limit: Any) -> int | None:
    """Return a limit in whole bytes, what no memory holds for a larger one, or None for none."""
    if memory_limit is None:
        return None
    limit = memory_limit if isinstance(memory_limit, int | np.integer) else number("memory_limit", memory_limit)
    if not limit > 0:
        raise ValueError(
            f"memory_limit is {reprlib.repr(memory_limit)}; give a positive number of bytes, or None for no limit"
        )
    return int(min(limit, sys.maxsize))


def explain_blocks(A: Any, B: Any, **options: Any) -> list[Candidate]:
    """Return the ways in which :func:`row_blocks` may make a product; see `explain`."""
    from spectile.tsparse import candidates
    from spectile.tsparse.cpu.operands import factors

    listed, on_gpu = explain(A, B, **options), check_sparse("A", A)
    pair = (A.get(), B.get()) if on_gpu else (A, B)
    work, chosen = candidates.work_of(*factors(*pair, values=False)), choose_precision(A, B, options.get("precision"))
    return [
        candidates.in_blocks(one, work, chosen, not on_gpu and one.kernel.startswith("cuda"))
        for one in listed
        if "one pass" not in one.kernel and "mirrored" not in one.kernel
    ]


def explain_spmm(A: Any, X: Any, *, check_finite: bool = True) -> list[Candidate]:
    """Return the way in which :func:`spmm` makes a product; see `explain`."""
    from spectile.core.device import describe
    from spectile.tsparse import candidates

    on_gpu, _, kind = _dense_operands(A, X)
    flag("check_finite", check_finite)
    columns, device = 1 if X.ndim == 1 else X.shape[1], describe() if on_gpu else None
    return [candidates.dense_block(int(A.nnz), A.shape[0], columns, kind.itemsize, num_threads(), device)]


#: What `spectile.explain` asks, by the name of the function.
EXPLAINED = {"spgemm": explain, "row_blocks": explain_blocks, "spmm": explain_spmm}
