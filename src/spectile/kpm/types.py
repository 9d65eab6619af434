"""What the parts of KPM hand to one another: names of choices, an engine, a recursion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
#: Vectors that go together at most.
MAX_BLOCK = 64
Named = Literal["jackson", "lorentz", "none"]
Kernel = Named | Callable[[int], npt.ArrayLike]

NOT_FINITE = "H holds NaN or infinity: every entry must be a finite number"
OUT_OF_RANGE = (
    "H times a vector is not finite: an entry is NaN or infinity, or so large that sums leave the range of H's dtype "
    "(then take a larger unit of energy, or scale vectors and operators that you gave)"
)


class Recursion(Protocol):
    """The Chebyshev recurrence of a block of vectors: |ν_m⟩ and |ν_m−1⟩, advanced in place."""

    @property
    def num_vectors(self) -> int:
        """R."""

    def advance(self, steps: int) -> Array:
        """Apply H̃ `steps` times and return the scalar products, shape (2 * steps, R)."""

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint must hold."""

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from :meth:`state`."""


class ReadableRecursion(Recursion, Protocol):
    """A recursion whose vectors can be read between its steps."""

    def blocks(self) -> list[Any]:
        """Return |ν_m⟩ of the last step, |ν₀⟩ before the first, as arrays of this recursion's own layout.

        The layout is linear over the real numbers: sums of such arrays are arrays of the sums.  The next steps write
        into them.
        """

    def vectors(self, blocks: Sequence[Any], rows: Any = None) -> Any:
        """Return arrays like those of :meth:`blocks` as vectors, shape (N, R), or as these rows of them.

        They share memory where the layouts agree.
        """


class Engine(Protocol):
    """A Hamiltonian on a backend, ready to be applied to N = `num_rows` numbers of a type: what moments work with."""

    num_rows: int
    dtype: np.dtype[Any]
    #: A :class:`~spectile.kpm.operators.frame.Frame`: the zero and the unit of energy in which H is held.
    frame: Any
    #: Whether H is the caller's own, who may write to it after a call that does not copy it.
    lent: bool

    @property
    def name(self) -> str:
        """Backend, as checkpoints name it."""

    @property
    def xp(self) -> Any:
        """The module of single vectors: numpy or cupy."""

    def capacity(self) -> int:
        """Return how many vectors' states fit into memory at once, with a reserve."""

    def bounds(self) -> tuple[float, float] | None:
        """Return bounds of the spectrum that hold for certain, or None where none are known."""

    def check_hermitian(self) -> None:
        """Raise ValueError, in one sentence, where H is not Hermitian or not finite."""

    def tridiagonalize(self, steps: int) -> tuple[Array, Array]:
        """Return the numbers of Lanczos steps: the diagonal, and the norms beside it.

        They start from a vector without the symmetries of H, random phases of lengths from 1 to 2: phases alone can be
        orthogonal to the states that bound the spectrum.
        """

    def vector(self, seed: int) -> Any:
        """Return one random vector, shape (N,)."""

    def apply(self, x: Any) -> Any:
        """Return H x of one vector."""

    def random(self, seed: int, first_vector: int, num_vectors: int, a: float, b: float) -> Recursion:
        """Return the recursion of a block of random vectors, with H̃ = a (H − b)."""

    def start(self, vectors: Array, a: float, b: float) -> Recursion:
        """Return the recursion of given vectors, shape (N, R)."""
