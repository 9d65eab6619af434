"""Operators whose expectation values are taken: matrices and functions of a caller, and velocities."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from spectile.core.arrays import host_array
from spectile.core.host import refuse_masked
from spectile.core.options import kind_of, numbers
from spectile.kpm.operators.adopt import as_operator, vector_dtype, whole_csr
from spectile.kpm.operators.engine import asymmetry, lengthened
from spectile.kpm.operators.protocol import NO_ENTRIES, PartitionedOperator, lies_on_gpu, namespace, on_host
from spectile.kpm.operators.stored import StoredMatrix
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm.types import NOT_FINITE, Array, Engine

AXES = {"x": 0, "y": 1, "z": 2}


class Observable:
    """An operator of a caller, as :func:`correlator` takes it, as a function of blocks of vectors.

    It works where an engine does.  Products are to be multiplied by its `factor`: an imaginary matrix is held as a real
    one.
    """

    def __init__(self, A: Any, engine: Engine, name: str) -> None:
        self._engine, self._name, self.factor = engine, name, 1 + 0j
        self._matrix: Any = None
        self._function: Any = None
        self._spread: Any = None  # a matrix whose rows lie on ranks
        if A is None:
            return
        n = engine.num_rows
        A = host_array(name, A) if isinstance(A, list) or (hasattr(A, "__dlpack__") and not lies_on_gpu(A)) else A
        shape = getattr(A, "shape", None)
        if shape is None and not callable(A):
            raise TypeError(f"{name} is {kind_of(A)}: give a matrix, an object with @, a callable or None")
        if shape is not None and tuple(shape) != (n, n):
            raise ValueError(f"{name} has shape {tuple(shape)} and H {(n, n)}: give an operator of the same shape")
        dtype = np.dtype(getattr(A, "dtype", None) or self._engine.dtype)
        if dtype.kind not in "biufc" or dtype.char in "gG":
            raise TypeError(f"{name} has dtype {dtype}: convert it to float32, float64, complex64 or complex128")
        held = as_operator(A) if shape is not None else None
        if isinstance(held, TopologicalInsulator):
            held = StoredMatrix(held.matrix())
        if isinstance(held, StoredMatrix):
            self._hold(held)
        else:
            self._function = A if shape is None else lambda block: A @ block
            self._spread = held if isinstance(held, PartitionedOperator) else None
            unit, difference = asymmetry(name, lambda x: self._applied(x[:, None])[:, 0], engine, 5)
            if not np.isfinite(unit):
                raise ValueError(f"{name} gave numbers that are not finite")
            if difference > 1e3 * float(np.finfo(engine.dtype).eps):
                raise ValueError(f"{name} is not Hermitian: give it as a matrix, whose adjoint is known")

    def _hold(self, held: StoredMatrix) -> None:
        dtype = np.result_type(held.dtype, self._engine.dtype)
        xp = self._engine.xp
        if xp is np:
            matrix = held.on_host().csr(dtype)
        else:
            matrix = held.csr_on_gpu(dtype)
            matrix.sum_duplicates()
        if not xp.isfinite(matrix.data).all():
            raise ValueError(f"{self._name} holds NaN or infinity: every entry must be a finite number")
        if dtype.kind == "c" and self._engine.dtype.kind != "c":
            real, imaginary = (_with_data(matrix, part) for part in (matrix.data.real, matrix.data.imag))
            if not _largest(real):
                matrix, self.factor = imaginary, 1j
            elif not _largest(imaginary):
                matrix = real
        self._matrix = matrix

    @functools.cached_property
    def _adjoint(self) -> Any:
        """The adjoint of the matrix."""
        return self._matrix.conj().T.tocsr()

    @functools.cached_property
    def hermitian(self) -> bool:
        """Whether the operator is its own adjoint."""
        if self._matrix is None:
            return True
        other = self._matrix - self._adjoint if self.factor == 1 else self._matrix + self._adjoint
        return _largest(other) <= 1024 * float(np.finfo(other.dtype).eps) * _largest(self._matrix)

    def __call__(self, block: Any) -> Any:
        """Return the operator over `factor` times a block, shape (N, R)."""
        if self._matrix is not None:
            return self._matrix @ block
        return block if self._function is None else self._applied(block)

    def shown(self) -> Any:
        """Return a few numbers that another operator would not give."""
        xp = self._engine.xp
        image = self(lengthened(self._engine.vector(7), 7, xp)[:, None])[:, 0] * self.factor
        return on_host(xp.append(image[:16], abs(image) @ lengthened(self._engine.vector(8), 8, xp)))

    def adjoint(self, block: Any) -> Any:
        """Return the adjoint of what a call applies, times a block; what is no matrix is Hermitian."""
        return self(block) if self._matrix is None else self._adjoint @ block

    def of_own_rows(self, dtype: np.dtype[Any]) -> Callable[[Any], Any]:
        """Return the same for blocks of this rank's rows; of a matrix, messages carry those of others that it needs."""
        engine: Any = self._engine
        edges, spread = engine.matrix.edges, self._spread
        if self._matrix is not None and np.diff(edges).min() > 0:
            spread = engine.matrix.derived(lambda rows, first: self._matrix[first : first + rows.shape[0]])
        if spread is None or not np.array_equal(getattr(spread, "edges", ()), edges):
            return lambda block: self(np.concatenate(engine.comm.allgather(block)))[engine.first : engine.last]
        other = spread.engine(np.result_type(dtype, spread.dtype))
        other.own_vectors = True

        def product(block: Any) -> Any:
            recursion = other.start(block.astype(other.dtype), 1.0, 0.0)
            recursion.advance(1)
            return recursion.vectors(recursion.blocks())

        return product

    def _applied(self, block: Any) -> Any:
        image = self._function(block)
        refuse_masked(f"{self._name}'s result", image)
        if getattr(image, "shape", None) != block.shape:
            raise ValueError(
                f"{self._name} gave shape {getattr(image, 'shape', None)} for a block of shape {block.shape}: it must "
                "give the same"
            )
        if np.dtype(image.dtype).kind not in "biufc":
            raise TypeError(f"{self._name} gave numbers of dtype {image.dtype}: let it give real or complex ones")
        return image


def velocity(H: Any, direction: str, positions: npt.ArrayLike, *, periods: npt.ArrayLike | None = None) -> Any:
    """Return the velocity i [H, r] along an axis: entries i H_jk (r_k − r_j).

    Parameters
    ----------
    H : stored matrix, TopologicalInsulator or matrix over ranks or GPUs, shape (N, N)
        As in :func:`kpm_dos`.
    direction : {"x", "y", "z"}
        Component of the positions.
    positions : array_like, shape (N, d)
        Position of each row's site.
    periods : array_like, shape (P, d), or None
        Vectors by which a periodic sample repeats: r_k − r_j is the shortest of its images.

    Returns
    -------
    csr_array, cupyx csr_matrix or DistributedMatrix, complex, shape (N, N)
        Hermitian, on the host or on a GPU or spread over ranks as H is.

    Raises
    ------
    TypeError
        If H is an operator without entries.
    ValueError
        If positions or periods do not fit, an entry is not finite, or a hop has two shortest images: take a larger
        sample.

    Examples
    --------
    >>> from spectile.kpm import velocity
    >>> from spectile.kpm.operators.lattices import chain
    >>> velocity(chain(3), "x", [[0.0], [1.0], [2.0]]).toarray().imag.tolist()
    [[0.0, -1.0, 0.0], [1.0, 0.0, -1.0], [0.0, 1.0, 0.0]]
    """
    operator = as_operator(H)
    if not isinstance(operator, StoredMatrix | TopologicalInsulator | PartitionedOperator):
        raise TypeError(NO_ENTRIES)
    n = operator.shape[0]
    r = numbers("positions", on_host(positions) if lies_on_gpu(positions) else positions)
    r = r[:, None] if r.ndim == 1 else r
    if r.ndim != 2 or len(r) != n:
        raise ValueError(f"positions have shape {r.shape}: give one row for each of the {n} rows of H")
    if not np.isfinite(r).all():
        raise ValueError("positions must be finite numbers")
    axis = AXES.get(direction) if isinstance(direction, str) else None
    if axis is None or axis >= r.shape[1]:
        raise ValueError(f'direction={direction!r} is none of the {r.shape[1]} axes of the positions: take "x" first')

    def entries(matrix: Any, first: int) -> Any:
        xp: Any = namespace(matrix.data)
        if not xp.isfinite(matrix.data).all():
            raise ValueError(NOT_FINITE)
        sites = xp.asarray(r)
        hops = sites[matrix.indices] - sites[first + matrix.tocoo(copy=False).row]
        if periods is not None:
            hops = shortest(hops, periods, matrix.data != 0)
        return _with_data(matrix, 1j * matrix.data * hops[:, axis].astype(matrix.data.real.dtype))

    if isinstance(operator, PartitionedOperator):
        return operator.derived(entries)
    if isinstance(operator, StoredMatrix) and operator.on_gpu:
        return entries(operator.csr(vector_dtype(operator.dtype)), 0)
    return entries(whole_csr(operator if isinstance(operator, TopologicalInsulator) else operator.matrix), 0)


def shortest(hops: Any, periods: npt.ArrayLike, there: Any) -> Any:
    """Return the shortest images of hops, shape (K, d); `there` says which of them must have but one."""
    lattice = np.atleast_2d(numbers("periods", periods))
    if lattice.ndim != 2 or lattice.shape[1] != hops.shape[1] or not np.isfinite(lattice).all():
        raise ValueError(
            f"periods have shape {lattice.shape}: give one vector of {hops.shape[1]} components for each direction in "
            "which the sample repeats"
        )
    if np.linalg.matrix_rank(lattice) < len(lattice):
        raise ValueError("periods are not independent: give one vector for each direction in which the sample repeats")
    lattice = _reduced(lattice)
    # No vector of the lattice is shorter than its smallest singular value: hops below half of it are the shortest.
    far = (hops**2).sum(axis=1) >= (0.4999 * np.linalg.svd(lattice, compute_uv=False)[-1]) ** 2
    hops[far] = _shortest_of(hops[far], lattice, there[far])
    return hops


def _reduced(lattice: Array) -> Array:
    """Return vectors that span the same lattice, none of which others make shorter: nearest images lie around them."""
    vectors, shortened = lattice.copy(), True
    while shortened:
        shortened = False
        for k in range(len(vectors)):
            others = np.delete(vectors, k, axis=0)
            near = np.round(vectors[k] @ np.linalg.pinv(others)) if len(others) else np.zeros(0)
            for shift in itertools.product((-1, 0, 1), repeat=len(others)):
                other = vectors[k] - (near + shift) @ others
                if other @ other < (1 - 1e-9) * (vectors[k] @ vectors[k]):
                    vectors[k], near, shortened = other, np.zeros(len(others)), True
    return vectors


def _shortest_of(hops: Any, lattice: Array, there: Any) -> Any:
    """Return the same by comparing each hop with the images around it."""
    xp: Any = namespace(hops)
    hops = hops - xp.round(hops @ xp.asarray(np.linalg.pinv(lattice))) @ xp.asarray(lattice)
    best, lengths = hops.copy(), (hops**2).sum(axis=1)
    second = xp.full(len(hops), np.inf)
    for shift in itertools.product((-1, 0, 1), repeat=len(lattice)):
        if any(shift):
            image = hops + xp.asarray(np.array(shift) @ lattice)
            length = (image**2).sum(axis=1)
            second = xp.minimum(second, xp.maximum(length, lengths))
            closer = length < lengths
            best[closer], lengths[closer] = image[closer], length[closer]
    if (there & (second < lengths * (1 + 1e-9)) & (lengths > 0)).any():
        raise ValueError("a hop goes half around the periodic sample, by either way: take a larger sample")
    return best


def _largest(matrix: Any) -> float:
    """Return the largest modulus of a matrix's entries."""
    return float(abs(matrix.data).max()) if matrix.nnz else 0.0


def _with_data(matrix: Any, data: Any) -> Any:
    """Return a CSR matrix of the same places with other values."""
    values = namespace(data).ascontiguousarray(data)
    return type(matrix)((values, matrix.indices, matrix.indptr), shape=matrix.shape)
