"""Long calls: files of their state, each array checked before it is used, signals that wait until it is whole."""

from __future__ import annotations

import contextlib
import hashlib
import os
import reprlib
import signal
import threading
import time
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from spectile.core.atomic_file import atomic_write, require_writable
from spectile.core.copies import Fixed
from spectile.core.options import flag, path
from spectile.core.pointers import operand
from spectile.core.progress import Progress
from spectile.kpm.operators.engine import lengthened
from spectile.kpm.operators.protocol import namespace, on_host
from spectile.kpm.operators.user import OperatorEngine
from spectile.kpm.reference import seed_of
from spectile.kpm.types import Array, Engine, Recursion

#: What files of each kind hold, and those of no other.
_MARKS = {"density": "kernel", "state of a call": "call", "iterator": "single"}


class SavedState:
    """The arrays of a file that :func:`write_arrays` wrote, read at once; `kind` is what it is to hold, for messages.

    Here and in all methods ValueError names the file, in one sentence, if it is no such file, not whole or damaged.
    """

    def __init__(self, file: str | os.PathLike[str], kind: str = "density") -> None:
        file = self.path = path("path", file)
        try:
            with file.open("rb") as opened, np.load(opened) as archive:
                self._arrays = {name: np.asarray(archive[name]) for name in archive.files}
            self._arrays.setdefault("widenings", np.array(-1))  # a file of an earlier version does not tell
        except (FileNotFoundError, PermissionError):
            raise
        except (OSError, ValueError, EOFError, KeyError, AttributeError, TypeError, SyntaxError, NotImplementedError,
                MemoryError, zipfile.BadZipFile, zlib.error) as error:  # fmt: skip
            raise ValueError(f"{file} holds no saved {kind}, or not all of it: remove it, and begin again") from error
        if not {"fingerprint", _MARKS.get(kind, "fingerprint")} <= self._arrays.keys():
            raise ValueError(f"{file} holds no saved {kind}: give a file that holds one")

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def damaged(self, what: str) -> ValueError:
        """Return the error of a file in which something is not as it was written."""
        return ValueError(f"{self.path} is damaged: {what}; remove it, and begin again")

    def array(self, name: str, dtype: Any, shape: tuple[int | None, ...]) -> Array:
        """Return an array of this dtype in any byte order, of this shape and finite, as kernels read it."""
        array = self._arrays.get(name)
        if array is None:
            raise self.damaged(f"{name} is missing")
        if array.dtype.newbyteorder("=") != np.dtype(dtype):
            raise self.damaged(f"{name} is {array.dtype}, not {np.dtype(dtype)}")
        if shape == () != array.shape:
            raise self.damaged(f"{name} is no single number")
        try:
            values: Array = operand(name, array, shape=shape)
        except ValueError as error:
            raise self.damaged(str(error)) from None
        if values.dtype.kind in "fc" and not np.isfinite(values).all():
            raise self.damaged(f"{name} holds NaN or infinity")
        return values

    def shape(self, name: str) -> tuple[int, int]:
        """Return the shape of an array of vectors."""
        array = self._arrays.get(name)
        if array is None or array.ndim != 2:
            raise self.damaged(f"{name} is missing or no block of vectors")
        return array.shape[0], array.shape[1]

    def like(self, name: str) -> tuple[np.dtype[Any], int]:
        """Return the type that an empty array stands for, and its last length."""
        array = self._arrays.get(name)
        if array is None or array.size or array.ndim < 1 or array.dtype.newbyteorder("=").char not in "fdFD":
            raise self.damaged(f"{name} is missing or of no type of vectors")
        return array.dtype.newbyteorder("="), array.shape[-1]

    def number(self, name: str, least: int) -> int:
        """Return a whole number of at least `least`."""
        number = int(self.array(name, np.int64, ()))
        if number < least:
            raise self.damaged(f"{name} is {number}")
        return number

    def text(self, name: str) -> str:
        """Return a word."""
        array = self._arrays.get(name)
        if array is None or array.dtype.kind != "U" or array.shape != ():
            raise self.damaged(f"{name} is no text")
        return str(array)

    def require_engine(self, engine: Engine, own: Array) -> None:
        """Raise ValueError where the file is of another backend or type, or of another matrix than a fingerprint's."""
        if self.text("backend") != engine.name:
            raise ValueError(f"{self.path} was written by the {self.text('backend')} backend: go on with that one")
        kept = self.array("fingerprint", np.float64, (None,))
        # A file of an earlier version does not tell.
        other = "dtype" in self and self.text("dtype") != engine.dtype.name
        if other and kept[:1].tolist() == own[:1].tolist():
            raise ValueError(
                f"{self.path} was written with an H of {self.text('dtype')}, and this one is {engine.dtype}: give H in "
                "the type with which it was written"
            )
        if not is_of(own, kept, engine.dtype):
            raise ValueError(f"{self.path} belongs to another matrix: give the H with which it was written")

    def etas(self, name: str, num_moments: int, num_rows: int) -> Array:
        """Return scalar products of at least M moments with random vectors of N rows, shape (2 * steps, R)."""
        etas = self.array(name, np.float64, (None, None))
        if len(etas) < num_moments or len(etas) % 2 or etas.shape[1] < 1:
            raise self.damaged(f"{name} has shape {etas.shape} for {num_moments} moments")
        # The vectors have N entries of size 1, and Chebyshev polynomials make no vector longer.
        if abs(etas[0] - num_rows).max() > 1e-3 * num_rows or abs(etas).max() > (1 + 3e-3) * num_rows:
            raise self.damaged(f"{name} are no scalar products of vectors with {num_rows} rows")
        return etas

    def recursion(self, block: Recursion, number: int, steps: int) -> dict[str, Array]:
        """Return what a recursion is to go on from after `steps` steps; `block` is one like it that has just begun."""
        state = {}
        for key, fresh in block.state().items():
            name = f"{key}_{number}"
            # A step that was done ahead waits, or none.
            shape = (None, *fresh.shape[1:]) if key == "pending" else fresh.shape
            state[key] = self.array(name, fresh.dtype, shape)
        ahead = state["pending"].size // (2 * block.num_vectors) if "pending" in state else 0
        if int(state["steps"]) != steps + ahead or ahead > 1:
            raise self.damaged(f"steps_{number} is {int(state['steps'])}, not {steps}")
        return state


def fingerprint(engine: Engine) -> Array:
    """Return a few numbers that another matrix would not give; the first half, made of phases alone, may agree."""
    found: list[Any] = [[engine.num_rows]]
    for x in (engine.vector(4), lengthened(engine.vector(4), 4, engine.xp)):
        image = engine.apply(x)
        found += [on_host(image[:16]).real, [float(engine.xp.abs(image).sum())]]
    return np.concatenate(found)


def matrix_of(engine: Engine, fingerprint: Array) -> dict[str, Any]:
    """Return what a file tells of H, which :meth:`SavedState.require_engine` compares."""
    return {"backend": engine.name, "dtype": engine.dtype.name, "fingerprint": fingerprint}


def is_of(own: Array, kept: Array, dtype: Any) -> bool:
    """Return whether a kept fingerprint is of the same matrix, but for what two hosts round otherwise."""
    half = len(own) // 2
    # Files of earlier versions hold the first half.
    if len(kept) - 1 not in (half, 2 * half) or own[0] != kept[0]:
        return False
    theirs = kept[1:].reshape(-1, half)
    mine = own[1:].reshape(2, half)[: len(theirs)]
    sizes = np.maximum(abs(mine[:, :-1]).max(axis=1), mine[:, -1] / own[0])
    allowed = np.column_stack([*[sizes] * (half - 1), mine[:, -1]])
    return bool(np.all(abs(mine - theirs) <= 2**10 * float(np.finfo(dtype).eps) * allowed))


def fingerprint_if_lent(engine: Engine) -> Array | None:
    """Return the fingerprint of an H that its owner may change meanwhile, None of any other."""
    return fingerprint(engine) if engine.lent else None


class Continued(Fixed, ABC):
    """A result that goes on with H: a copy does so by itself, with the same H, and a pickle holds the numbers alone."""

    _engine: Any  # None in what comes from a pickle
    _blocks: list[Any]

    @abstractmethod
    def _own_blocks(self) -> list[Any]:
        """Return the blocks of a copy, which stand where these do."""

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        for name, value in self.__dict__.items():
            setattr(made, name, value.copy() if isinstance(value, np.ndarray | list) else value)
        made._blocks = self._own_blocks()
        return made

    def __deepcopy__(self, memo: Any) -> Self:
        return self.__copy__()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_engine": None, "_blocks": []}


def require_unchanged(engine: Engine | None, kept: Array | None) -> None:
    """Raise ValueError where H is no longer that of a fingerprint, or a pickle has left it out."""
    if engine is None:
        raise ValueError("this comes from a pickle, which holds no H: go on with what was pickled, or make it anew")
    if kept is None:
        return
    own = fingerprint(engine)
    # Our kernels give the same bits again, a caller's product need not.
    if not (is_of(own, kept, engine.dtype) if isinstance(engine, OperatorEngine) else np.array_equal(own, kept)):
        raise ValueError("H has changed since the first moments and was not copied: begin anew, or give a copy of H")


class Signals:
    """Ctrl-C and SIGTERM that wait: see :func:`signals_deferred`."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Any]] = []
        self._before: dict[int, Any] = {}

    @property
    def waiting(self) -> bool:
        """Whether a signal has come."""
        return bool(self._waiting)

    def deliver(self) -> None:
        """Let the signals that wait do what they would have done.

        Raises KeyboardInterrupt, or SystemExit with the status that shells expect, where no handler of the caller's
        says otherwise.
        """
        while self._waiting:
            number, frame = self._waiting.pop(0)
            before = self._before[number]
            if callable(before):
                before(number, frame)
            elif number == signal.SIGINT:
                raise KeyboardInterrupt
            else:
                raise SystemExit(128 + number)

    def _note(self, number: int, frame: Any) -> None:
        impatient = self.waiting
        self._waiting.append((number, frame))
        if impatient:
            self.deliver()


@contextlib.contextmanager
def signals_deferred() -> Iterator[Signals]:
    """Let Ctrl-C and SIGTERM wait until the block asks for them or ends; a second one does not wait.

    A state may be saved between two calls but not within one: a step that is broken off leaves half of a vector.
    Outside the main thread, which alone hears signals, nothing waits.
    """
    signals = Signals()
    hears = threading.current_thread() is threading.main_thread()
    for number in (signal.SIGINT, signal.SIGTERM) if hears else ():
        before = signal.getsignal(number)
        if before not in (None, signal.SIG_IGN):
            signals._before[number] = before
            signal.signal(number, signals._note)
    try:
        yield signals
    finally:
        for heard, before in signals._before.items():
            signal.signal(heard, before)
    signals.deliver()


def seconds_between(value: Any) -> Any:
    """Return the seconds between two checkpoints: any real number; raises ValueError if it is none."""
    if not isinstance(value, Real) or value != value:
        raise ValueError(f"checkpoint_s = {reprlib.repr(value)} is no time: give the seconds between checkpoints")
    return value


#: What progress counts.
PRODUCTS = "products H|v⟩"


class Run:
    """A long call: what is shown of it, and the file in which it is kept and from which it goes on.

    The work is a sequence of stages that follows from the call's arguments.  The file holds the arrays that stages fill
    in, how many are done, and where the one at hand stands.

    Parameters
    ----------
    what : str
        Name of the function.
    H : as in :func:`kpm_dos`
        Of several ranks' each has a file of its own, whose name ends with its number.
    progress : bool
        Whether anything is shown.
    checkpoint : path-like or None
        The file.
    checkpoint_s : float
        Seconds between two writings.

    Attributes
    ----------
    progress : Progress
        What counts the products of H with a vector.
    file : Path or None
        The file of this rank.
    bounds : (float, float) or None
        Those of the expansion, or of the file's before it begins.
    widenings : int
        How often bounds turned out too narrow.

    Raises
    ------
    TypeError, ValueError, OSError
        If an option is none, or the file cannot be written or is damaged.
    """

    def __init__(
        self,
        what: str,
        H: Any = None,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_s: float = 600.0,
    ) -> None:
        self._what, self._seconds = what, seconds_between(checkpoint_s)
        self.progress = Progress(what, shown=flag("progress", progress), unit=PRODUCTS)
        self.bounds: tuple[float, float] | None = None
        self._comm = comm_of(H)
        self.file = None if checkpoint is None else ranked(path("checkpoint", checkpoint), self._comm)
        self._state: SavedState | None = None
        self._seed: int | None = None
        self._stage = self._done = self._pauses = self.widenings = 0
        self._kept: dict[str, Any] = {}
        self._identity = ""
        self._signals, self._exits = Signals(), contextlib.ExitStack()
        self._written: float | None = None
        if self.file is not None:
            require_writable(self.file)
            if require_alike(self._comm, self.file, "pauses"):
                self._state = SavedState(self.file, "state of a call")
                self._pauses = self._state.number("pauses", 1)
                if "seed" in self._state:
                    self._seed = self._state.number("seed", 0)

    def use(self, engine: Engine) -> None:
        """Take the engine of H; raises ValueError if the file is of another function, matrix or backend."""
        if self.file is None:
            return
        self._matrix, state = matrix_of(engine, fingerprint(engine)), self._state
        if state is None:
            return
        if state.text("call") != self._what:
            raise ValueError(f"{self.file} belongs to {state.text('call')}, not {self._what}: name another file")
        state.require_engine(engine, self._matrix["fingerprint"])
        low, high = state.array("bounds", np.float64, (2,)).tolist()
        self.bounds, self.widenings = (low, high), state.number("widenings", -1)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.progress.close()
        if self._written is not None and kind is None:
            assert self.file is not None
            if self._signals.waiting:
                self._write({})  # the signal ends the call, whose result is then lost
            else:
                self.file.unlink(missing_ok=True)
        self._exits.__exit__(kind, error, where)

    def seed(self, rng: int | np.random.Generator | None) -> int:
        """Return the seed of the random vectors: the file's where there is one.

        Raises ValueError if `rng` gives another.
        """
        if self._seed is None:
            self._seed = seed_of(rng)
        elif rng is not None and self._seed != seed_of(rng):
            raise ValueError(f"{self.file} belongs to another rng: remove the file, or give the same rng, or None")
        return self._seed

    def begin(self, bounds: tuple[float, float], arguments: Iterable[Any], widths: Array, **kept: Any) -> None:
        """Begin the stages of an expansion, or go on with those of the file.

        Parameters
        ----------
        bounds : (float, float)
            Of the expansion.
        arguments : iterable of arrays, numbers, texts or None
            What the work follows from, beside H: a file of others is refused.
        widths : array of int
            What divides the work into stages and follows from free memory: a file's are copied into them, as the stages
            that it has done are of those.
        kept : arrays
            What stages fill in, zeros or what is to be written; the file's numbers are copied into them.
        """
        self._stage = self._done = 0
        same, self._kept, self.bounds = self.bounds == bounds, kept | {"widths": widths}, bounds
        if self.file is None:
            return
        if self._written is None:
            # What comes before is short, or begins anew.
            self._signals, self._written = self._exits.enter_context(signals_deferred()), time.monotonic()
        self._identity = _digest(arguments)
        if not same:
            self._state = None  # it is of bounds that proved too narrow
        state = self._state
        if state is None:
            return
        if state.text("identity") != self._identity:
            raise ValueError(
                f"{self.file} belongs to a call of {self._what} with other arguments: remove the file, or give the same"
            )
        for name, array in self._kept.items():
            array[...] = namespace(array).asarray(state.array(f"kept_{name}", array.dtype, array.shape))
        if widths.min(initial=1) < 1:
            raise state.damaged(f"kept_widths holds {widths.min()}")
        self._done = state.number("stage", 0)
        if "order" not in state:
            self._state = None

    def length(self, name: str, usual: int) -> int:
        """Return the second length of a kept array of the file, or what is usual where there is none."""
        return usual if self._state is None else self._state.shape(f"kept_{name}")[1]

    def each(self, stages: Iterable[Any], cost: Callable[[Any], int] = lambda stage: 0) -> Iterator[Any]:
        """Yield the stages that the file has not done, each of which is done when the next one is asked for."""
        for stage in stages:
            if self.past(1):
                self.progress.add(cost(stage))
                continue
            yield stage
            self._stage += 1
            self._state = None
            self.pause(dict)

    def past(self, count: int) -> bool:
        """Return whether the file has done the next `count` stages; they are then behind."""
        if self._stage + count > self._done:
            return False
        self._stage += count
        return True

    def pause(self, state: Callable[[], dict[str, Any]]) -> None:
        """Write the file if it is time or a signal waits; `state` returns where the stage at hand stands."""
        if self.file is None:
            return
        assert self._written is not None
        if on_any_rank(self._comm, self._signals.waiting or time.monotonic() - self._written > self._seconds):
            self._write(state())
            self._written = time.monotonic()
            self._signals.deliver()

    def resumed(self) -> SavedState | None:
        """Return the file where it stands within the stage at hand; it is then done with."""
        state, self._state = self._state, None
        return state if state is not None and self._stage == self._done and "order" in state else None

    def _write(self, inner: dict[str, Any]) -> None:
        assert self.file is not None
        self._pauses += 1
        arrays: dict[str, Any] = {
            "call": self._what, "bounds": self.bounds, **self._matrix,
            "identity": self._identity, "stage": self._stage, "pauses": self._pauses,
            "widenings": self.widenings,
        }  # fmt: skip
        if self._seed is not None:
            arrays["seed"] = self._seed
        arrays |= {f"kept_{name}": on_host(array) for name, array in self._kept.items()}
        write_arrays(self.file, arrays | inner)


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write a file that :class:`SavedState` reads; it is replaced only when the new one is complete."""
    require_writable(path)
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)


def comm_of(H: Any) -> Any:
    """Return the communicator of the ranks over which H is spread; None where a process works alone."""
    comm = getattr(H, "comm", None)
    return comm if getattr(comm, "size", 1) > 1 else None


def ranked(path: Path, comm: Any) -> Path:
    """Return the file of this rank."""
    return path if comm is None else path.with_name(f"{path.name}.{comm.rank}")


def on_any_rank(comm: Any, flagged: bool) -> bool:
    """Return, on all ranks alike, whether one of them is flagged."""
    return flagged if comm is None else any(comm.allgather(flagged))


def require_alike(comm: Any, path: Path, *names: str) -> bool:
    """Return whether there is a file to go on from.

    Raises ValueError on every rank, if the files of the ranks are not of one time, by some numbers in them.
    """
    there = path.exists()
    if comm is not None:
        number = None
        with contextlib.suppress(ValueError, OSError):
            number = [SavedState(path, "state").number(name, 0) for name in names] if there else None
        if any(each != number for each in comm.allgather(number)):
            raise ValueError(f"{path} is not of the same time as the files of other ranks: remove them all")
    return there


def _digest(arguments: Iterable[Any]) -> str:
    """Return a digest of numbers, texts and arrays; of an array on a GPU that of its copy."""
    found = hashlib.sha256()
    for value in arguments:
        array = on_host(value) if hasattr(value, "get") else np.asarray("None" if value is None else value)
        found.update(f"{array.dtype.str} {array.shape};".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()
