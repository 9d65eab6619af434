"""Chebyshev polynomials of a Hamiltonian applied to vectors: what everything beyond a density is made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from spectile.core.arrays import host_array, on_device, to_device
from spectile.core.copies import Uncopied
from spectile.core.device import Backend
from spectile.core.options import flag, path, whole_number, word
from spectile.core.pictures import shown, shown_html
from spectile.core.pointers import operand
from spectile.core.progress import Progress
from spectile.core.ranks import on_every_rank
from spectile.kpm import bounds as spectrum
from spectile.kpm.checkpoint import (
    PRODUCTS,
    Run,
    SavedState,
    comm_of,
    fingerprint,
    matrix_of,
    ranked,
    require_alike,
    write_arrays,
)
from spectile.kpm.moments import LOOK_STEPS, MAX_BLOCK, make_engine
from spectile.kpm.operators.adopt import vector_dtype
from spectile.kpm.operators.protocol import lies_on_gpu, namespace, on_host
from spectile.kpm.reference import random_phases
from spectile.kpm.types import OUT_OF_RANGE, Array, Engine, ReadableRecursion, Recursion

#: Vectors T_m(H̃)|v⟩ that a product of matrices adds to sums at a time.
TOGETHER = 8


class OutsideBoundsError(ValueError):
    """The spectrum leaves the bounds of an expansion."""


class Chebyshev(Uncopied, Iterator[Any]):
    """Iterator over the vectors T_m(H̃)|v⟩, m = 0, 1, ..., M − 1; :func:`chebyshev` makes it.

    Attributes
    ----------
    scale, centre : float
        Of H̃ = (H − `centre`) / `scale`, in the units of H.
    bounds : (float, float)
        Energies between which the spectrum lies.
    dtype : dtype
        Of the vectors.
    order : int
        m of the last item; −1 before the first.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from spectile.kpm import Chebyshev, chebyshev
    >>> from spectile.kpm.operators.lattices import chain
    >>> terms = chebyshev(chain(9), np.eye(9)[:, :2], 30, backend="cpu")
    >>> for block in terms:
    ...     if terms.order == 20:
    ...         break
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     terms.save(f"{folder}/terms.npz")
    ...     again = Chebyshev.load(f"{folder}/terms.npz", chain(9), backend="cpu")
    >>> bool((next(again) == next(terms)).all()), again.order
    (True, 21)
    """

    def __init__(self, terms: Terms, num_moments: int, bounds: tuple[float, float], bra: Any, single: bool) -> None:
        self._terms, self._num_moments, self._single = terms, num_moments, single
        self._bra: Any = None if bra is None else bra.copy()
        self.bounds, self.dtype, self.order = bounds, terms.dtype, -1
        self.scale, self.centre = 1 / terms.scaling[0], terms.scaling[1]

    __repr__ = shown
    _repr_html_ = shown_html
    _instead = "save() writes where it stands, and Chebyshev.load() makes another that goes on from there"

    def _told(self) -> list[str]:
        low, high = self.bounds
        return [f"item {self.order + 1} of {self._num_moments}", f"{self.dtype}", f"energies {low:.6g} to {high:.6g}"]

    def __iter__(self) -> Chebyshev:
        return self

    def __len__(self) -> int:
        """Return how many items are left."""
        return self._num_moments - 1 - self.order

    #: Whether a step is being made, or was broken off, by Ctrl-C or an H that fails: then the vectors are anything.
    _stepping = False

    def _require_whole(self) -> None:
        if self._stepping:
            raise ValueError("a step of this iterator was broken off: begin anew, or load what was saved before")

    def __next__(self) -> Any:
        """Return the next item: ⟨bra|T_m|v⟩ where there is a bra, else T_m(H̃)|v⟩."""
        self._require_whole()
        if self.order + 1 >= self._num_moments:
            raise StopIteration
        if self.order >= 0:
            self._stepping = True
            self._terms.step()
            self._stepping = False
        self.order += 1
        if self.order == self._num_moments - 1:
            self._terms.finish()
            self._terms.progress.close()
        return self.vectors if self._bra is None else self._overlaps()

    @property
    def vectors(self) -> Any:
        """T_m(H̃)|v⟩ of the last item, of the shape of the start vectors; the next step may write into it."""
        self._require_whole()
        block = self._terms.vectors()
        if isinstance(block, np.ndarray):
            block = block.view()
            block.flags.writeable = False
        return block[:, 0] if self._single else block

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write where the recurrence stands, so that :meth:`load` goes on with the next item, to the same bits.

        Parameters
        ----------
        file : path
            NumPy archive, replaced only when the new one is complete; each of several ranks writes one, whose name ends
            with its number.
        """
        self._require_whole()
        engine = self._terms.engine
        arrays = {
            **matrix_of(engine, fingerprint(engine)), "bounds": self.bounds, "moments": self._num_moments,
            "order": self.order, "single": self._single,
            "like": np.empty((0, self._terms.width), self.dtype), "precision": np.empty(0, engine.dtype),
        }  # fmt: skip
        write_arrays(ranked(path("file", file), comm_of(engine)), arrays | self._terms.state())

    @classmethod
    def load(
        cls, file: str | os.PathLike[str], H: Any, *, bra: Any = None, backend: Backend = "auto", progress: bool = True
    ) -> Chebyshev:
        """Read what :meth:`save` wrote, and go on behind the item that was given last.

        Parameters
        ----------
        file : path
            The file.
        H : as in :func:`kpm_dos`
            The matrix with which it was written.
        bra, progress
            As in :func:`chebyshev`; a file does not hold the bra.
        backend : {"auto", "cpu", "cuda"}
            The backend that wrote it.

        Raises
        ------
        ValueError
            If the file is no such state or damaged, or `H` or `backend` not the one that wrote it.
        """
        shown, comm = flag("progress", progress), comm_of(H)
        file = ranked(path("file", file), comm)
        require_alike(comm, file, "moments")
        state = SavedState(file, "iterator")
        dtype, width = state.like("like")
        if width < 1:
            raise state.damaged("it holds no vectors")
        precision, _ = state.like("precision")
        engine = make_engine(H, backend, at_least=np.empty(0, precision).real.dtype)
        rows = rows_held(engine, H)
        state.require_engine(engine, fingerprint(engine))
        if engine.dtype != precision:
            raise ValueError(f"{file} was written with an H of another type than {engine.dtype}: give that one")
        low, high = state.array("bounds", np.float64, (2,)).tolist()
        moments, order = state.number("moments", 1), state.number("order", -1)
        if order >= moments:
            raise state.damaged(f"order is {order} of {moments} moments")
        other = None if bra is None else _here(engine, lambda: given_vectors("bra", bra, engine.xp, (rows, width)))
        run = Run("chebyshev", progress=shown)
        run.progress.total, run.progress.done = (moments - 1) * width, max(0, order) * width
        terms = Terms(engine, engine.xp.zeros((rows, width), dtype), (low, high), run.progress)
        terms.restore(state, max(0, order))
        found = cls(terms, moments, (low, high), other, bool(state.array("single", np.bool_, ())))
        found.order = order
        return found

    def _overlaps(self) -> Any:
        wide = np.result_type(self.dtype, self._bra.dtype, np.float64)
        overlaps = over_ranks(self._terms.engine, (self._bra.conj() * self._terms.vectors()).sum(axis=0, dtype=wide))
        return overlaps[0] if self._single else overlaps


def chebyshev(
    H: Any,
    vectors: Any,
    num_moments: int,
    *,
    bra: Any = None,
    bounds: tuple[float, float] | None = None,
    backend: Backend = "auto",
    progress: bool = True,
) -> Chebyshev:
    """Iterate over T_m(H̃)|v⟩, the Chebyshev polynomials of a Hermitian matrix applied to vectors of your own.

    T_0 = 1, T_1 = H̃ and T_m+1 = 2 H̃ T_m − T_m−1, with H̃ = (H − centre)/scale, whose spectrum lies in [−1, 1].

    Parameters
    ----------
    H : as in :func:`kpm_dos`
        Shape (N, N); not copied, so that its arrays must stay as they are until the last item.
    vectors : array, shape (N, R) or (N,)
        Start vectors |v⟩, real or complex, on the host or on the GPU that computes; never written to.
    num_moments : int
        M.
    bra : array, shape of `vectors`, or None
        Vectors ⟨bra|, one for each of `vectors`.
    bounds : (float, float) or None
        Lowest and highest energy; found if None, as :func:`spectral_bounds` does.
    backend : {"auto", "cpu", "cuda"}
        As in :func:`kpm_dos`.
    progress : bool
        Whether progress is shown, as in :func:`kpm_dos`.

    Returns
    -------
    Chebyshev
        An iterator over M items, which can be saved between them.  Without `bra` an item is T_m(H̃)|v⟩, of the shape
        of `vectors`, NumPy's or CuPy's by where H is applied.  It lies where the recurrence does, and NumPy's is read-
        only: the next step may write into it, so copy what is to stay (complex vectors of a complex H on a CPU are
        copies already, as the kernels keep real and imaginary parts apart).  With `bra` an item is ⟨bra|T_m(H̃)|v⟩,
        shape (R,), and the iterator's ``vectors`` is the block. ``scale``, ``centre`` and ``bounds`` say what H̃ is.

    Raises
    ------
    ValueError
        If H is not Hermitian or not finite, a shape does not fit, or the spectrum leaves the bounds.  That shows in
        norms that grow, which are looked at once in 64 steps on a GPU and in every step on a CPU, and at the end.
    TypeError
        If H or the vectors have an unusable type.
    MemoryError
        If the state of these vectors does not fit into memory.

    Notes
    -----
    The result has the type that NumPy promotes those of H and the vectors to.  Complex vectors of a real H are
    multiplied as twice as many real ones.  Each step is the fused kernel of :func:`kpm_dos`.  Weiße et al., Rev. Mod.
    Phys. 78, 275 (2006), Section II.

    Examples
    --------
    >>> import numpy as np
    >>> from spectile.kpm import chebyshev
    >>> from spectile.kpm.operators.lattices import chain
    >>> start = np.zeros(50)
    >>> start[20] = 1
    >>> terms = chebyshev(chain(50), start, 4, backend="cpu", bounds=(-1.98, 1.98))
    >>> [int(np.flatnonzero(abs(block) > 1e-9).max()) for block in terms], terms.scale
    ([20, 21, 22, 23], 2.0)
    """
    num_moments = whole_number(num_moments, "num_moments", 1)
    counted = Progress("chebyshev", shown=flag("progress", progress), unit=PRODUCTS)
    engine, block = engine_for(H, vectors, backend, spread=True)
    counted.total = (num_moments - 1) * block.shape[1]
    other = None if bra is None else _here(engine, lambda: given_vectors("bra", bra, engine.xp, tuple(block.shape)))
    engine.check_hermitian()
    bounds = spectrum.given_or_found(engine, bounds)
    terms = Terms(engine, block, bounds, counted)
    return Chebyshev(terms, num_moments, bounds, other, np.ndim(vectors) == 1)


def spectral_bounds(H: Any, *, backend: Backend = "auto") -> tuple[float, float]:
    """Return energies between which the spectrum of a Hermitian matrix lies, by Lanczos steps.

    Parameters
    ----------
    H, backend
        As in :func:`kpm_dos`.

    Returns
    -------
    float, float
        Lowest and highest energy: the extreme Ritz values, moved outwards by their residuals, within Gershgorin's
        circles.  In all likelihood the spectrum is inside, which no Lanczos step proves; expansions watch their norms.

    Raises
    ------
    ValueError, TypeError
        As :func:`kpm_dos`.

    Examples
    --------
    >>> from spectile.kpm import spectral_bounds
    >>> from spectile.kpm.operators.lattices import chain
    >>> low, high = spectral_bounds(chain(1000), backend="cpu")
    >>> bool(-2.1 < low < -1.999 and 1.999 < high < 2.1)
    True
    """
    engine = make_engine(H, backend, steps=0)
    engine.check_hermitian()
    return spectrum.given_or_found(engine, None)


class Terms:
    """The recurrence of given vectors, shape (N, R), whose norms are watched; `progress` counts the products.

    Complex vectors of a real engine are taken as 2 R real ones.  Any method but the first raises OutsideBoundsError if
    the norms show that the spectrum leaves the bounds.
    """

    def __init__(self, engine: Engine, vectors: Any, bounds: tuple[float, float], progress: Progress) -> None:
        self.engine, self.bounds, self.scaling = engine, bounds, spectrum.scaling(bounds)
        self.width, self.progress = int(vectors.shape[1]), progress
        self.doubled = is_doubled(engine, vectors)
        self.dtype = np.result_type(engine.dtype, np.complex64) if self.doubled else engine.dtype
        self.recursion = cast(ReadableRecursion, begun(engine, vectors, bounds))
        self._norms: Array | None = None
        #: Whether steps return before they are done, and can add to sums of terms.
        self.enqueues = getattr(self.recursion, "enqueues", False)
        self._waiting = 0

    def step(self, weights: Array | None = None) -> None:
        """Go from T_m to T_m+1; on one GPU this returns before it is done.

        `weights` are those of ``recursion.enqueue``, where there are sums.
        """
        if self.enqueues:
            self.recursion.enqueue(1, weights)  # type: ignore[attr-defined]
            self._waiting += 1
            if self._waiting == LOOK_STEPS:
                self._look()
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                self._check(self.recursion.advance(1))
        self.progress.add(self.width)

    def state(self) -> dict[str, Array]:
        """Return what a file must hold."""
        self._look()
        norms = {} if self._norms is None else {"norms": self._norms}
        return norms | {f"{key}_0": value for key, value in self.recursion.state().items()}

    def restore(self, state: SavedState, order: int) -> None:
        """Go on from a file that holds :meth:`state` after `order` steps."""
        self.recursion.restore(state.recursion(self.recursion, 0, order))
        if order:
            self._norms = state.array("norms", np.float64, (self.recursion.num_vectors,))

    def finish(self) -> None:
        """Check the norms that have not been looked at, that of the last vectors too."""
        self._look()
        if self._norms is not None:
            last = self.recursion.vectors(self.recursion.blocks())
            xp: Any = namespace(last)
            with np.errstate(over="ignore", invalid="ignore"):
                # By a product with ones: CuPy's sum along columns takes as long as many steps.
                squares = (last.conj() * last).real.astype(np.float64)
                norms = over_ranks(self.engine, xp.ones(len(squares)) @ squares)
            self._check(norms[None] if xp is np else norms.get()[None])

    def blocks(self) -> list[Any]:
        """Return T_m|v⟩ in the layout of the recurrence."""
        return self.recursion.blocks()

    def vectors(self, rows: Any = None) -> Any:
        """Return T_m|v⟩ as vectors of shape (N, R), or as these rows of them."""
        return self._viewed(self.recursion.vectors(self.blocks(), rows))

    def own(self, blocks: Any) -> Any:
        """Return blocks like those of T_m|v⟩ as vectors, shape (N, R), or of ranks as this one's rows of them."""
        own = getattr(self.recursion, "own", self.recursion.vectors)
        return self._viewed(own(blocks))

    def gathered(self, own: Any) -> Any:
        """Return vectors by :meth:`own`, shape (..., rows, R), as each rank has them: of all rows, or of its own."""
        gathered = getattr(self.recursion, "gathered", None)
        return gathered(own) if gathered else own

    def _viewed(self, found: Any) -> Any:
        if not self.doubled:
            return found
        return namespace(found).ascontiguousarray(found).view(self.dtype)

    def _look(self) -> None:
        if self._waiting:
            self._waiting = 0
            self._check(self.recursion.collect())  # type: ignore[attr-defined]

    def _check(self, etas: Array) -> None:
        """Raise where squared norms, every other row, exceed those of the start vectors."""
        if self._norms is None:
            self._norms = etas[0]
            if not np.isfinite(etas[:2]).all():
                raise ValueError(OUT_OF_RANGE)
            if not self._norms.all():
                found = self.recursion.vectors(self.recursion.blocks())
                there = over_ranks(self.engine, on_host((found != 0).any(axis=0)))
                if np.any(there & (self._norms == 0)):
                    raise ValueError("the squares of the vectors' entries are below the range of H's dtype: scale them")
        if not np.all(etas[::2] <= self._norms * (1 + 1e-3)):
            raise OutsideBoundsError(
                f"the spectrum leaves the bounds {self.bounds}: give wider ones as bounds=, or None to have them found"
            )


def is_doubled(engine: Engine, vectors: Any) -> bool:
    """Return whether vectors are taken as twice as many real ones: complex vectors of a real engine."""
    return bool(vectors.dtype.kind == "c" and engine.dtype.kind != "c")


def begun(engine: Engine, vectors: Any, bounds: tuple[float, float]) -> Recursion:
    """Return the recurrence of given vectors, shape (N, R), which are copied: it takes over what it is given."""
    doubled = is_doubled(engine, vectors)
    dtype = np.result_type(engine.dtype, np.complex64) if doubled else engine.dtype
    block = operand("vectors", vectors, dtype, copy=True)
    return engine.start(block.view(engine.dtype) if doubled else block, *spectrum.scaling(bounds))


def in_range(engine: Engine, vectors: Any) -> tuple[Any, Array]:
    """Return vectors, shape (N, R), over powers of two where squares would leave the range of their type, and these."""
    kind = np.finfo(engine.dtype)
    largest = on_host(abs(vectors).max(axis=0)) if len(vectors) else np.zeros(vectors.shape[1])
    if getattr(engine, "own_vectors", False):
        largest = np.max(engine.comm.allgather(largest), axis=0)  # type: ignore[attr-defined]
    powers = np.frexp(largest)[1]
    powers = np.where(abs(powers) > -(kind.minexp + 2 * kind.nmant) // 2, powers, 0)
    return times_powers(vectors, -powers), powers


def times_powers(vectors: Any, powers: Array) -> Any:
    """Return vectors, shape (..., R), times powers of two, each of which may leave the range of their type."""
    if powers.any():
        for part in (powers // 2, powers - powers // 2):  # whose own range is half of it
            vectors = vectors * namespace(vectors).asarray(np.ldexp(np.ones(1, vectors.real.dtype), part))
    return vectors


def engine_for(H: Any, vectors: Any, backend: Backend, *, spread: bool = False) -> tuple[Engine, Any]:
    """Return the engine of H for vectors of this type, and the vectors where it works, shape (N, R).

    With `spread` they are a rank's own rows where H says so.

    Raises TypeError or ValueError if the vectors are no numbers, not finite, or not of N rows.
    """
    word("backend", backend, "auto", "cpu", "cuda")
    vectors = to_device(vectors, "vectors")[0] if on_device(vectors) else host_array("vectors", vectors)
    if backend == "auto" and lies_on_gpu(vectors) and not getattr(H, "on_gpu", False):
        backend = "cuda"
    engine = make_engine(H, backend, at_least=np.empty(0, _kind("vectors", vectors)).real.dtype)
    rows = rows_held(engine, H) if spread else engine.num_rows
    if rows == engine.num_rows:
        return engine, given_vectors("vectors", vectors, engine.xp, (rows, None))
    block = _here(engine, lambda: given_vectors("vectors", vectors, engine.xp, (rows, None)))
    shapes = engine.comm.allgather((block.shape[1], block.dtype.str, np.ndim(vectors)))  # type: ignore[attr-defined]
    if len(set(shapes)) > 1:
        raise ValueError(
            f"the ranks give {', '.join(f'{width} vectors of {kind}' for width, kind, _ in shapes)}: all must give as "
            "many, of one type"
        )
    return engine, block


def rows_held(engine: Engine, H: Any) -> int:
    """Return how many rows vectors have here, as the engine takes and gives them from now on: N, or a rank's own."""
    if not getattr(H, "own_vectors", False):
        return engine.num_rows
    engine.own_vectors = True  # type: ignore[attr-defined]
    return int(engine.last - engine.first)  # type: ignore[attr-defined]


def own_rows(engine: Engine, vectors: Any) -> Any:
    """Return of whole vectors the rows of this rank, with which alone its recurrences work from now on."""
    if hasattr(engine, "own_vectors"):
        engine.own_vectors = True
        return vectors[engine.first : engine.last]  # type: ignore[attr-defined]
    return vectors


def most_rows(engine: Engine) -> int:
    """Return the rows of vectors that :func:`own_rows` leaves the rank which has most: N where no rank has its own."""
    if not hasattr(engine, "own_vectors"):
        return engine.num_rows
    return int(np.diff(engine.matrix.edges).max())  # type: ignore[attr-defined]


def _here(engine: Engine, vectors: Callable[[], Any]) -> Any:
    """Return a caller's vectors; where each rank has its own, all raise what one does."""
    if not getattr(engine, "own_vectors", False):
        return vectors()
    return on_every_rank(engine.comm, vectors)  # type: ignore[attr-defined]


def over_ranks(engine: Engine, sums: Any) -> Any:
    """Return sums over rows of vectors, over those of all ranks where each holds its own."""
    if not getattr(engine, "own_vectors", False):
        return sums
    return np.sum(engine.comm.allgather(sums), axis=0)  # type: ignore[attr-defined]


def given_vectors(name: str, array: Any, xp: Any, shape: tuple[int | None, ...]) -> Any:
    """Return a caller's vectors as an array of the engine's module, shape (N, R), which may be the caller's own."""
    found = host_array(name, array) if xp is np else to_device(array, name)[0]
    dtype = _kind(name, found)
    if found.ndim == 1:
        found = found[:, None]
    wanted, columns = shape
    if found.ndim != 2 or found.shape[0] != wanted or found.shape[1] != (columns or max(1, found.shape[1])):
        raise ValueError(
            f"{name} have shape {tuple(array.shape) if hasattr(array, 'shape') else tuple(found.shape)}: give one row "
            f"for each of the {wanted} of H" + (f", and {columns} columns" if columns else ", and at least one column")
        )
    if not bool(xp.isfinite(found).all()):
        raise ValueError(f"{name} hold NaN or infinity: every entry must be a finite number")
    return found.astype(dtype) if dtype != found.dtype else found


def _kind(name: str, array: Any) -> Any:
    """Return the type in which vectors are computed with; TypeError where they are no numbers of a width it has."""
    dtype = array.dtype
    if dtype.kind not in "biufc" or dtype.char in "gG":
        raise TypeError(f"{name} are {dtype}: convert them to float32, float64, complex64 or complex128")
    return vector_dtype(dtype)


def within_bounds(
    engine: Engine, bounds: tuple[float, float] | None, work: Callable[[tuple[float, float]], Any], run: Run
) -> Any:
    """Return ``work(bounds)``; bounds that are found and turn out too narrow are widened, and the work begins again."""
    engine.check_hermitian()
    run.use(engine)
    # A file's bounds, found or widened, are gone on with.
    tried = spectrum.given_or_found(engine, bounds) if run.bounds is None or bounds is not None else run.bounds
    if run.bounds not in (None, tried):
        raise ValueError(f"{run.file} has bounds {run.bounds}, not {tried}: remove the file, or give the same")
    while True:
        try:
            return work(tried)
        except OutsideBoundsError:
            if bounds is not None:
                raise
            tried = spectrum.widened(tried, run.widenings)
            run.widenings += 1


def columns_at_once(engine: Engine, states: float) -> int:
    """Return how many vectors of a block to take at once where each needs the memory of so many states."""
    return max(1, min(MAX_BLOCK, int(engine.capacity() / states)))


def slices_of(count: int, width: int) -> list[slice]:
    """Return slices of at most `width` that cover `count` places."""
    return [slice(first, min(first + int(width), count)) for first in range(0, count, int(width))]


def random_source(engine: Engine, seed: int) -> Callable[[int, int], Any]:
    """Return ``source(first, stop)``: the random vectors of these numbers, made where the engine works."""

    def source(first: int, stop: int) -> Any:
        if engine.xp is np:
            return random_phases(seed, engine.num_rows, stop - first, first_vector=first, dtype=engine.dtype)
        block = engine.xp.empty((engine.num_rows, stop - first), engine.dtype)
        for some in slices_of(stop - first, MAX_BLOCK):
            recursion: Any = engine.random(seed, first + some.start, some.stop - some.start, 1.0, 0.0)
            block[:, some] = recursion.vectors(recursion.blocks())
        return block

    return source


def room_for_vectors(engine: Engine) -> int:
    """Return the bytes that vectors of N rows may take beside a recurrence, the same in every process of several."""
    ranks = getattr(getattr(engine, "comm", None), "size", 1)
    return int(engine.capacity()) * 2 * engine.num_rows * engine.dtype.itemsize // ranks
