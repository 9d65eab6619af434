"""What a system hands to the measurement of a draw, and where it is computed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from spectile_study.bench.case import Method, Skipped

Params = dict[str, Any]
#: Errors and residuals of large problems are taken of so many random vectors.
PROBES = 8
#: An error in the Frobenius norm by `PROBES` vectors of signs may be off by this factor: its square has a relative
#: standard deviation of at most sqrt(2 / PROBES).
PROBED = 2.0


class TooMuch(Exception):
    """A draw that this machine cannot measure within its limits; the message is one sentence."""


@dataclass(frozen=True)
class Rates:
    """What a device does in a second, roughly and rather less: products of dense and of sparse entries, bytes moved."""

    dense: float
    sparse: float
    bytes: float

    def of(self, count: int) -> Rates:
        """Return the rates of so many of them."""
        return Rates(self.dense * count, self.sparse * count, self.bytes * count)


#: Of a GPU for data centers, and of a core.
RATES = {"cuda": Rates(1e13, 1e10, 1e12), "cpu": Rates(1e10, 1e8, 4e9)}


@dataclass(frozen=True)
class Place:
    """Where draws are computed.

    Attributes
    ----------
    device : {"cpu", "cuda"}
    memory_bytes : int
        Memory that a draw may take.
    rates : Rates
        By which draws that would take too long are known.
    """

    device: Literal["cpu", "cuda"]
    memory_bytes: int
    rates: Rates

    @property
    def xp(self) -> Any:
        """NumPy or CuPy."""
        return importlib.import_module("cupy") if self.device == "cuda" else np

    @property
    def sparse(self) -> Any:
        """``scipy.sparse`` or ``cupyx.scipy.sparse``."""
        return importlib.import_module("cupyx.scipy.sparse" if self.device == "cuda" else "scipy.sparse")

    def rng(self, numbers: np.random.Generator) -> Any:
        """Return a generator of this place's arrays, its seed drawn from `numbers`."""
        return self.xp.random.default_rng(int(numbers.integers(2**31)))

    def wait(self, result: Any) -> Any:
        """Return `result` when the device has made it."""
        if self.device == "cuda":
            self.xp.cuda.get_current_stream().synchronize()
        return result

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
        """Return a call that is over when its result is there."""
        return lambda: self.wait(function(*args, **kwargs))

    def on_host(self, array: Any) -> Any:
        """Return an array, or a sparse matrix, in the host's memory."""
        return array.get() if hasattr(array, "get") else array


@dataclass(frozen=True)
class Cost:
    """About what a draw takes: bytes of memory; products of dense and of sparse entries, and bytes moved, of a call."""

    memory_bytes: float
    dense: float = 0.0
    sparse: float = 0.0
    bytes: float = 0.0

    def seconds(self, place: Place) -> float:
        """Return about how long one call takes."""
        rates = place.rates
        return self.dense / rates.dense + self.sparse / rates.sparse + self.bytes / rates.bytes


@dataclass
class Drawn:
    """One draw, ready to be measured.

    Attributes
    ----------
    call : str
        The public call, as a user writes it.
    function : callable
        The public function, which ``spectile.explain`` may know.
    arguments : tuple, dict
        Those of the call.
    ours : Method
    rivals : list of Method or Skipped
        The alternatives; what is not installed is skipped, with the reason.
    others : list of Method
        Further calls of ours, timed beside these: other ways, or a part of the call.
    asked : float
        The error that was asked for, or that is allowed: that of the check whose name is ``error``.
    check : {"exact", "probes", "residuals"}
        What the error is judged by.
    result_bytes : int
        Of what a call returns.
    allowed : callable or None
        ``allowed(seconds)`` returns the seconds that the work and the bytes of this draw allow, of median times by
        method, ``copy`` (bytes a second of the device's memory, read and written) among them.
    work : callable
        ``work()`` returns the columns ``w_<name>`` after the check: what the prediction for other devices is made of.
    taken : callable
        ``taken(result)`` returns the method that a result says was taken; "" where it says nothing.
    """

    call: str
    function: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    ours: Method
    rivals: list[Method | Skipped]
    asked: float
    check: str
    result_bytes: int
    others: list[Method] = field(default_factory=list)
    allowed: Callable[[Mapping[str, float]], float | None] | None = None
    work: Callable[[], Mapping[str, float]] = dict
    taken: Callable[[Any], str] = lambda result: ""


def method(name: str, run: Callable[[], Any], check: Callable[[Any], Mapping[str, float]], limit: float) -> Method:
    """Return a method whose error, the check's ``error``, is at most `limit`."""
    return Method(name, run, check, {"error": limit})


def version(library: str) -> str | None:
    """Return the version of an installed library, None where it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def absent(name: str, library: str) -> Skipped:
    """Return the rival of a library that is not installed."""
    return Skipped(name, f"{library} is not installed")


def size(*arrays: Any) -> int:
    """Return the bytes of arrays and sparse matrices."""
    parts = [part for x in arrays for part in ((x.data, x.indices, x.indptr) if hasattr(x, "indptr") else (x,))]
    return sum(int(part.nbytes) for part in parts)
