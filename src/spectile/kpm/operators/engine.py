"""What engines and recurrences have in common, where a backend knows nothing faster."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spectile.kpm.bounds import norm, tridiagonalize
from spectile.kpm.operators.frame import Frame
from spectile.kpm.operators.protocol import namespace, on_host
from spectile.kpm.reference import phase_bits, random_phases
from spectile.kpm.types import OUT_OF_RANGE, Array


class ProductEngine(abc.ABC):
    """An :class:`~spectile.kpm.types.Engine` without kernels for what comes before the recurrence."""

    xp: Any
    num_rows: int
    dtype: np.dtype[Any]
    frame = Frame()
    lent = False

    def vector(self, seed: int) -> Any:
        """Return one random vector, shape (N,)."""
        return self.xp.asarray(random_phases(seed, self.num_rows, 1, dtype=self.dtype)[:, 0])

    @abc.abstractmethod
    def apply(self, x: Any) -> Any:
        """Return H x of one vector."""

    def framed(self, x: Any) -> Any:
        """Return H' x of one vector, in the frame."""
        return self.apply(x)

    def tridiagonalize(self, steps: int) -> tuple[Array, Array]:
        """Return the numbers of Lanczos steps."""
        start = lengthened(self.vector(1), 1, self.xp)
        return self.frame.energies(*tridiagonalize(self.framed, start, steps, self.xp))

    def check_hermitian(self) -> None:
        """Compare ⟨y|Hx⟩ with ⟨Hy|x⟩ for two random vectors: two products with H, no transpose."""
        unit, difference = asymmetry("H @ x", self.apply, self, 2)
        if not np.isfinite(unit):
            raise ValueError(OUT_OF_RANGE)
        if 0 < unit < 1e3 * float(np.finfo(self.dtype).tiny):
            raise ValueError(
                f"H times a vector is about {unit:.1e}, of which {self.dtype} holds few digits: take a smaller unit of "
                "energy"
            )
        if difference > (1e-10 if self.dtype.itemsize // (2 if self.dtype.kind == "c" else 1) == 8 else 1e-4):
            raise ValueError(
                f"H is not Hermitian: ⟨y|Hx⟩ and ⟨Hy|x⟩ differ by {difference:.1e} of their size; "
                "symmetrize it with (H + H.conj().T) / 2 if that is what you mean"
            )


class Pair:
    """|ν_m⟩ and |ν_m−1⟩ of a block of vectors, two arrays of NumPy or CuPy whose last axis is that of the vectors."""

    v: Any
    w: Any
    steps: int

    @property
    def num_vectors(self) -> int:
        """R."""
        return int(self.v.shape[-1])

    def blocks(self) -> list[Any]:
        """Return |ν_m⟩ of the last step."""
        return [self.w if self.steps else self.v]

    def vectors(self, blocks: Sequence[Any], rows: Any = None) -> Any:
        """Return such a block as vectors of shape (N, R), or as these rows of them."""
        return blocks[0] if rows is None else blocks[0][rows]

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint must hold."""
        return {"v": on_host(self.v), "w": on_host(self.w), "steps": np.array(self.steps)}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from :meth:`state`."""
        xp = namespace(self.v)
        self.v, self.w, self.steps = xp.asarray(state["v"]), xp.asarray(state["w"]), int(state["steps"])


def lengthened(vector: Any, seed: int, xp: Any) -> Any:
    """Return random vector number 0 of `seed`, overwritten, each entry times a random factor from 1 to 2.

    Random phases alone may be orthogonal to states with integer entries, and lengths that follow an order nearly so to
    states of two neighbouring sites.
    """
    for first in range(0, len(vector), 1 << 20):  # the bits take more memory than the vector
        part = vector[first : first + (1 << 20)]
        row = xp.arange(first, first + len(part), dtype=np.uint64)
        with np.errstate(over="ignore"):
            bits = phase_bits(np.uint64(seed), row, np.uint64(0))
        part *= (1 + 2.0**-32 * bits.astype(np.uint32)).astype(part.real.dtype)
    return vector


def asymmetry(name: str, apply: Callable[[Any], Any], engine: Any, seed: int) -> tuple[float, float]:
    """Return the larger |A x| of two random vectors, and by how much ⟨y|A x⟩ and ⟨A y|x⟩ differ, over their size.

    Raises ValueError if `apply` writes into x; `name` is what it is called there.
    """
    xp = engine.xp
    # Unequal lengths, so that no symmetry of the phases can hide an error.
    x, y = (lengthened(engine.vector(each), each, xp) for each in (seed, seed + 1))
    before = x.copy()
    ax, ay = xp.array(apply(x)), apply(y)  # a caller's function may return one array each time
    if not bool((x == before).all()):
        raise ValueError(f"{name} writes into its input: let that be as it is, and return another array")
    # In double precision: squares of a float32 Hamiltonian in joules underflow.
    x, y, ax, ay = (each.astype(np.result_type(each.dtype, np.float64)) for each in (x, y, ax, ay))
    unit = max(norm(ax, xp), norm(ay, xp))
    if not 0 < unit < np.inf:
        return unit, 0.0
    ax, ay = ax / unit, ay / unit
    apart = abs(complex(xp.vdot(y, ax)) - complex(xp.vdot(ay, x)))
    imaginary = max(abs(complex(xp.vdot(one, image)).imag) for one, image in ((x, ax), (y, ay)))
    return unit, max(apart, imaginary) / (norm(y, xp) * norm(ax, xp) + norm(ay, xp) * norm(x, xp))
