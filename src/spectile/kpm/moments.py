"""Chebyshev moments of a Hamiltonian on any backend: which engine, how far, and whether the bounds hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spectile.core.choice import Candidate, not_taken
from spectile.core.device import Backend, backends, choose_backend
from spectile.core.options import whole_number, word
from spectile.core.placement import Work
from spectile.core.progress import Progress
from spectile.kpm import bounds as spectrum
from spectile.kpm.operators.adopt import as_operator, vector_dtype
from spectile.kpm.operators.protocol import PartitionedOperator, lies_on_gpu
from spectile.kpm.operators.stored import StoredMatrix
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm.types import MAX_BLOCK, OUT_OF_RANGE, Array, Engine, Recursion

# Steps between two looks at the norms: a spectrum outside the bounds shows within a few steps, and grows exponentially.
FIRST_STEPS = 8
LOOK_STEPS = 64


def make_engine(
    H: Any,
    backend: Backend = "auto",
    *,
    complex_vectors: bool = False,
    at_least: Any = np.float32,
    steps: int | None = None,
    num_vectors: int = 1,
) -> Engine:
    """Return the engine of H, as :func:`kpm_dos` takes it, on the backend that is to work, in at least this precision.

    With `steps`, about how many products with each of `num_vectors` follow, "auto" takes a GPU for an H of the host
    where they are predicted to take less there, and a kernel is prepared that so many repay; without it, "auto" takes a
    GPU if there is one.  Raises TypeError if H has an unusable type, and ValueError if it is not square or empty, or
    the backend is unknown.
    """
    operator = as_operator(H)
    dtype = np.result_type(vector_dtype(operator.dtype, complex_vectors), at_least)
    if isinstance(operator, PartitionedOperator):
        return operator.engine(dtype)
    if _backend_of(operator, backend, dtype, steps, num_vectors) == "cuda":
        from spectile.kpm.cuda import engine as cuda

        return cuda.engine_of(operator, dtype, (steps or 0) * -(-num_vectors // MAX_BLOCK))
    from spectile.kpm.cpu.engine import engine_of

    return engine_of(operator, dtype)


def _backend_of(
    operator: Any, backend: Backend, dtype: np.dtype[Any], steps: int | None = None, num_vectors: int = 1
) -> str:
    """Return the backend that is to work with an operator."""
    on_gpu = getattr(operator, "on_gpu", False) or lies_on_gpu(operator)
    stored = isinstance(operator, StoredMatrix | TopologicalInsulator)
    word("backend", backend, "auto", "cpu", "cuda")
    if backend == "auto" and not stored and not on_gpu:
        backend = "cpu"  # what a user's operator is written for is known to the user alone
    if backend == "cpu" and on_gpu and not stored:
        raise ValueError('H is an operator on a GPU and backend is "cpu": use backend="auto"')
    work = None if steps is None or not stored else lambda: work_of(operator, dtype, steps, num_vectors)
    # A matrix on a GPU is copied for backend="cpu".
    return choose_backend(backend, on_gpu and backend != "cpu", "kpm", work)


def where_it_works(H: Any, backend: Backend) -> Any:
    """Return a stored matrix of the host on the GPU where that is to work with it, and anything else as it is."""
    held = as_operator(H)
    if not isinstance(held, StoredMatrix) or held.on_gpu:
        return H
    dtype = vector_dtype(held.dtype)
    return H if _backend_of(held, backend, dtype) == "cpu" else held.csr_on_gpu(dtype)


def work_of(operator: Any, dtype: np.dtype[Any], steps: int, num_vectors: int) -> Work:
    """Return what so many products of H with each vector cost, with the search of the bounds before them.

    A step reads a matrix for each block, and three vectors; its arithmetic hides behind the bytes.
    """
    held = getattr(operator, "matrix", None) if isinstance(operator, StoredMatrix) else None
    entries = 0 if held is None else getattr(held, "nnz", held.shape[0] * held.shape[1])
    matrix = entries * (dtype.itemsize + 4)
    vectors = operator.shape[0] * num_vectors * dtype.itemsize
    blocks, looking = -(-num_vectors // MAX_BLOCK), spectrum.lanczos_steps(operator.shape[0])
    return Work(
        real=np.empty(0, dtype).real.dtype.name,
        flops=0,
        streamed=steps * (blocks * matrix + 3 * vectors) + looking * (matrix + 3 * vectors / num_vectors),
        scalar=0,
        steps=steps * blocks + looking,
        moved=matrix + vectors,
    )


def other_place(engine: Engine, operator: Any, backend: Backend, steps: int, num_vectors: int) -> list[Candidate]:
    """Return the backend that :func:`make_engine` did not take for an operator, if it had a choice, and why."""
    if not isinstance(operator, StoredMatrix | TopologicalInsulator):
        return []
    on_gpu = getattr(operator, "on_gpu", False)
    choice = backends(backend, on_gpu, lambda: work_of(operator, engine.dtype, steps, num_vectors))
    return not_taken(engine.name, choice)


def candidates_of(engine: Engine, num_vectors: int) -> list[Candidate]:
    """Return the kernels of an engine for a block of R vectors, with what a step of each is predicted to take.

    Where there is no choice, the one that works, without a prediction (NaN).
    """
    width = min(whole_number(num_vectors, "num_vectors", 1), MAX_BLOCK, engine.capacity())
    listed = getattr(engine, "candidates", None)
    return [Candidate(engine.name, float("nan"), "the only one")] if listed is None else list(listed(width))


def advance_watched(
    recursion: Recursion,
    etas: Array,
    num_moments: int,
    progress: Progress | None = None,
    after: Callable[[Array], None] = lambda etas: None,
) -> tuple[Array, bool]:
    """Advance a recursion to `num_moments` moments; stop where a norm shows an eigenvalue outside [−1, 1].

    Returns the scalar products, shape (2 * steps, R), `etas` before them, and whether the spectrum stayed inside;
    `after` gets those so far whenever they have been found to be inside.  Raises ValueError if the numbers are no
    longer finite though they did not grow before: H holds NaN or infinity, or the start vectors are too large.
    """
    target = -(-num_moments // 2)
    while len(etas) < 2 * target:
        done = len(etas) // 2
        steps = min(FIRST_STEPS if done < FIRST_STEPS else LOOK_STEPS, target - done)
        with np.errstate(over="ignore", invalid="ignore"):
            etas = np.concatenate([etas, recursion.advance(steps)])
        if progress is not None:
            progress.add(steps * recursion.num_vectors)
        # |T_m(x)| <= 1 inside, so no norm may exceed the first one by more than rounding.
        if np.isinf(etas[0]).any() or not np.all(etas[2 * done :: 2] <= etas[0] * (1 + 1e-3)):
            if not np.isfinite(etas[:2]).all():
                raise ValueError(OUT_OF_RANGE)
            return etas, False
        after(etas)
    return etas, True


def check_counts(num_moments: int, num_vectors: int) -> tuple[int, int]:
    """Return M and R, if both are usable numbers."""
    return whole_number(num_moments, "num_moments", 2), whole_number(num_vectors, "num_vectors", 1)
