"""Numba's compiler for the functions of the CPU: compiled code is kept on disk where that is possible.

Arithmetic is as strict as a function asks (``fastmath``), whatever was compiled before.  Numba itself keeps what it
compiles on the way, as the product of complex numbers, by types alone, and helpers take flags from their first caller.

Numba finds the folder and says what belongs to one compiled function; the files are written here, one for each function
and signature.  A file that was cut off or altered is noticed and compiled anew, what cannot be written costs time and
never a call, and no code is loaded from a folder of another user or one to which everybody may write.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.compiler import Compiler
from numba.core.dispatcher import Dispatcher
from numba.core.serialize import dumps

from spectile.core.atomic_file import atomic_write

_LOGGER = logging.getLogger("spectile.compile")


def njit(*, fastmath: set[str] | None = None, **options: Any) -> Callable[[Any], Any]:
    """Return the decorator ``numba.njit(...)`` with a cache on disk, or without where no folder for it can be written.

    `fastmath` are LLVM's flags of arithmetic; without any, every operation is rounded as it is written.  Warns once in
    a process where nothing can be kept, and once where a file of the cache is damaged.
    """

    def decorate(function: Any) -> Any:
        dispatcher = numba.njit(pipeline_class=_Compiler, fastmath=fastmath or False, **options)(function)
        try:
            dispatcher._cache = _Cache(function, sorted(fastmath or ()))
        except RuntimeError as error:
            if not str(error).startswith("cannot cache function"):
                raise
            _warn_that_nothing_is_kept("neither the folder of spectile nor the cache of the home folder can be written")
        return dispatcher

    return decorate


#: What Numba has compiled for functions of ours, by how these treat arithmetic and bounds.
_COMPILED_FOR: dict[object, dict[Any, Any]] = {}


class _Compiler(Compiler):
    """Numba's compiler, that gives a function nothing which was compiled for one of another arithmetic."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        flags = self.state.flags
        kind = frozenset(flags.fastmath.flags), bool(flags.boundscheck)
        # The context is this function's own copy, and hands the dictionary on to what is compiled for it.
        self.state.targetctx.cached_internal_func = _COMPILED_FOR.setdefault(kind, {})


class _Cache(FunctionCache):
    """Numba's cache of a function, in files of ours, for one kind of arithmetic."""

    def __init__(self, function: Any, fastmath: list[str]) -> None:
        super().__init__(function)
        source = Path(function.__code__.co_filename)
        base = ".".join((self._impl.filename_base, *fastmath))
        stamp = functools.cache(lambda: (numba.__version__, *_stamps({__file__, *_sources(function)})))
        self._cache_file = _Files(Path(self._cache_path), base, stamp, source)  # type: ignore[assignment]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function of a signature, or None where it is to be compiled."""
        try:
            found = super().load_overload(sig, target_context)
            if found is None:
                _LOGGER.info("compiling %s", self._impl.filename_base)
            return found
        except MemoryError:
            raise
        except Exception as error:  # of what a damaged file holds, pickle and LLVM say anything
            _warn_that_a_file_is_damaged(self._cache_path, str(error).partition("\n")[0])
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the compiled function of a signature, if that is possible."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _warn_that_nothing_is_kept(f"{self._cache_path} cannot be used ({error.strerror or error})")


class _Files:
    """Files of one function, each of a signature: a digest of what it belongs to, one of its content, and the content.

    Their names begin with `base`.  ``stamp()`` tells one version of the sources and the compiler from another, and is
    asked when all of them are there; who may write beside `source`, the function's file, runs code of his own here in
    any case.
    """

    def __init__(self, folder: Path, base: str, stamp: Callable[[], object], source: Path) -> None:
        self._folder, self._base, self._stamp, self._source = folder, base, stamp, source

    def save(self, key: object, data: object) -> None:
        """Write what belongs to a key."""
        if " at 0x" in repr(key):  # a function among the arguments, which no other process can know
            return
        _require_trusted(self._folder, self._source.parent)
        path, head, content = self._path(key), self._head(key), dumps(data)
        with atomic_write(path) as partial:
            partial.write_bytes(head + hashlib.sha256(content).digest() + content)

    def load(self, key: object) -> Any:
        """Return what belongs to a key, or None; raise ValueError where it is not what was written."""
        try:
            _require_trusted(self._folder, self._source.parent)
            held = memoryview(self._path(key).read_bytes())
        except OSError:
            return None
        head, seal, content = held[:32], held[32:64], held[64:]
        if len(held) > 64 and head != self._head(key):
            return None  # of another version of the source
        if seal != hashlib.sha256(content).digest():
            raise ValueError("its digest is another")
        return pickle.loads(content)

    def flush(self) -> None:
        """Remove all files of the function."""
        for path in self._folder.glob(f"{self._base}.*.nbc"):
            path.unlink(missing_ok=True)

    def _path(self, key: object) -> Path:
        return self._folder / f"{self._base}.{hashlib.sha256(_text(key)).hexdigest()[:20]}.nbc"

    def _head(self, key: object) -> bytes:
        return hashlib.sha256(_text((self._stamp(), key))).digest()


def _sources(function: Any, found: set[Any] | None = None) -> set[str]:
    """Return the files of a function and of all compiled ones that it calls, whose code becomes a part of its own."""
    found = {function} if found is None else found
    names, known = function.__code__.co_names, function.__globals__
    values = [known[name] for name in names if name in known] + [
        cell.cell_contents for cell in function.__closure__ or ()
    ]
    modules = [value for value in values if isinstance(value, ModuleType)]
    values += [getattr(module, name) for module in modules for name in names if hasattr(module, name)]
    files = {function.__code__.co_filename}
    for callee in (value.py_func for value in values if isinstance(value, Dispatcher)):
        if callee not in found:
            found.add(callee)
            files |= _sources(callee, found)
    return files


def _stamps(files: set[str]) -> list[tuple[str, int, int]]:
    known = ((file, os.stat(file)) for file in sorted(files))
    return [(Path(file).name, status.st_mtime_ns, status.st_size) for file, status in known]


def _require_trusted(folder: Path, sources: Path) -> None:
    """Raise PermissionError where somebody else may write to a folder who may not write to that of the sources.

    A group may: where the umask leaves it that, a group is the user alone or those whom the user works with.
    """
    kept, known = folder.stat(), sources.stat()
    if kept.st_uid not in (os.geteuid(), 0, known.st_uid):
        raise PermissionError(f"user {kept.st_uid} owns it")
    if kept.st_mode & 0o002 & ~known.st_mode:
        raise PermissionError("everybody may write to it")


def _text(key: object) -> bytes:
    return repr(key).encode()


#: Kinds of warnings that this process has given.
_SAID: set[str] = set()


def _warn_once(kind: str, message: str) -> None:
    if kind not in _SAID:
        _SAID.add(kind)
        warnings.warn(message, RuntimeWarning, stacklevel=4)


def _warn_that_nothing_is_kept(why: str) -> None:
    _warn_once(
        "kept",
        f"{why}, so every process compiles the functions of the CPU anew, which takes seconds: name a folder for them "
        "by the environment variable NUMBA_CACHE_DIR",
    )


def _warn_that_a_file_is_damaged(folder: str, why: str) -> None:
    _warn_once("damaged", f"a compiled function in {folder} is damaged ({why}): it is compiled anew and replaced")
