"""What a SpAMM call returns, on every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spectile.core.pictures import draw_sizes, shown, shown_html
from spectile.core.pointers import read_only


class SpammResult:
    """A thresholded product and what was left out of it.

    Every number may be handed over as a value or as a callable without arguments, evaluated on first reading: a GPU
    backend reads nothing back, and synchronises nothing, before it is asked.  For a batch each number is an array of
    the leading shape.  `read`, where it is given, takes such a callable and returns its value, after what makes it.

    Attributes
    ----------
    c : array
        alpha A B + beta C over the executed tile products, of the same kind as the inputs: a list of its rows on
        several GPUs where those were lists.
    tau : float
        Threshold tau: the tile product A_ik B_kj is skipped iff ``||A_ik|| ||B_kj|| < tau``.
    valid_ratio : float
        Share of the tile products with ``||A_ik|| ||B_kj|| >= tau`` (1 when there are none).
    executed_ratio : float
        Share of the tile products that were multiplied; at least `valid_ratio`, equal to it with ``strict=True``.
    error_bound : float
        Guaranteed bound of ``||C_exact - c||_F``: skipped products and rounding; infinity where an entry of c may have
        overflowed, and infinity or NaN where the C that was added holds them.
    method : {"spamm", "dense"}
        What multiplied: "dense" where ``method="auto"`` found the dense product to be faster.  Nothing was left out
        then: tau is 0, both ratios are 1, and the bound is of rounding alone, computed when it is read, from a and b
        as they then are.
    norms : NormMap
        C and the norms of its tiles, an operand of another product which does not take them again; None of C on several
        devices, and of a batch.
    error_bound_rel : float
        `error_bound` relative to ``||c||_F`` (NaN when c is zero and the bound is too, infinity where the bound is).
    """

    __slots__ = ("_norms", "_numbers", "_read", "c", "method")

    def __init__(
        self,
        c: Any,
        *,
        tau: Any | Callable[[], Any],
        valid_ratio: Any | Callable[[], Any],
        executed_ratio: Any | Callable[[], Any],
        error_bound: Any | Callable[[], Any],
        norm_c: Any | Callable[[], Any],
        method: str = "spamm",
        read: Callable[[Callable[[], Any]], Any] | None = None,
    ) -> None:
        self.c, self.method, self._read = c, method, read
        self._norms: Any = None
        self._numbers: dict[str, Any] = {
            "tau": tau,
            "valid_ratio": valid_ratio,
            "executed_ratio": executed_ratio,
            "error_bound": error_bound,
            "norm_c": norm_c,
        }

    def __getstate__(self) -> tuple[Any, str, dict[str, Any], Any]:
        """Return what copies and pickles hold: C, the numbers, read now, and what makes the norms, or they."""
        return self.c, self.method, {name: self._number(name) for name in self._numbers}, self._norms

    def __setstate__(self, state: tuple[Any, str, dict[str, Any], Any]) -> None:
        (self.c, self.method, self._numbers, self._norms), self._read = state, None

    def _number(self, name: str) -> Any:
        value = self._numbers[name]
        if callable(value):
            value = self._numbers[name] = value() if self._read is None else self._read(value)
        return read_only(value)

    @property
    def norms(self) -> Any:
        """C and the norms of its tiles, a `NormMap`, as an operand of another product; taken when first read."""
        if isinstance(self._norms, tuple):
            take, block = self._norms
            self._norms = take(self.c, block) if getattr(self.c, "ndim", 0) == 2 else None
        return self._norms

    @property
    def tau(self) -> Any:
        """Threshold."""
        return self._number("tau")

    @property
    def valid_ratio(self) -> Any:
        """Share of the tile products that are not skipped by tau."""
        return self._number("valid_ratio")

    @property
    def executed_ratio(self) -> Any:
        """Share of the tile products that were multiplied."""
        return self._number("executed_ratio")

    @property
    def error_bound(self) -> Any:
        """Guaranteed bound of the Frobenius norm of the error."""
        bound = self._number("error_bound")
        part = self.c[0] if isinstance(self.c, list | tuple) else self.c
        if not str(part.dtype).endswith("float16"):
            return bound
        # The sums, which the bound is of, are in float32: entries may have overflowed when they were rounded.
        import numpy as np

        bound = np.where(np.isinf(self._number("norm_c")), np.inf, bound)
        return float(bound) if bound.ndim == 0 else bound

    @property
    def error_bound_rel(self) -> Any:
        """Error bound relative to the norm of c."""
        import numpy as np

        bound = self.error_bound
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(np.isinf(bound), np.inf, np.divide(bound, self._number("norm_c")))
        return float(ratio) if np.ndim(ratio) == 0 else ratio

    __repr__ = shown
    _repr_html_ = shown_html

    def plot(self, axes: Any = None, block: int = 32) -> Any:
        """Draw the norms of C's tiles; what lies on a GPU is copied to the host.

        Parameters
        ----------
        axes : matplotlib.axes.Axes, optional
            Where to draw; by default a new figure.
        block : int
            Rows and columns of a tile.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ImportError
            Without Matplotlib.
        ValueError
            If C is a batch or on several devices.
        """
        if isinstance(self.c, list | tuple) or self.c.ndim != 2:
            raise ValueError("C is no single matrix: draw one product of a batch, and gather what several devices hold")
        import numpy as np

        c = abs(np.asarray(self.c.get() if hasattr(self.c, "get") else self.c)).astype(np.float64)
        rows, columns = (np.arange(0, length, block) for length in c.shape)
        # Scaled, so that no square leaves the range.
        largest = float(c.max(initial=0.0)) or 1.0
        squares = np.add.reduceat(np.add.reduceat((c / largest) ** 2, rows, axis=0), columns, axis=1)
        return draw_sizes(largest * np.sqrt(squares), axes)

    def _told(self) -> list[str]:
        """Return what is known: to print a result computes nothing and waits for no device."""
        if isinstance(self.c, list | tuple):
            return [f"rows on {len(self.c)} devices"]
        shape = f"{'x'.join(map(str, self.c.shape))} {self.c.dtype}"
        if self.method == "dense":
            return [shape, "the dense product, which is faster here"]
        names = ("tau", "valid_ratio", "executed_ratio", "error_bound")
        known = [name for name in names if not callable(self._numbers[name])]
        if str(self.c.dtype).endswith("float16") and callable(self._numbers["norm_c"]):
            known = [name for name in known if name != "error_bound"]
        numbers = [f"{name}={_told(getattr(self, name))}" for name in known]
        unread = ["not read yet: " + ", ".join(name for name in names if name not in known)] * (known != list(names))
        return [shape, *numbers, *unread]


def _told(number: Any) -> str:
    """Return a number in six digits, or the least and the greatest of a batch."""
    if getattr(number, "ndim", 0) == 0:
        return f"{float(number):.6g}"
    return f"{float(number.min()):.6g} to {float(number.max()):.6g}" if number.size else "none"
