"""What `density_matrix` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from spectile.core.pictures import axes_or_new, curve_html, shown, shown_html
from spectile.tiles import TileMatrix


class Step(NamedTuple):
    """One step of the purification.

    Attributes
    ----------
    polynomial : tuple of float
        Its coefficients, the constant first.
    error : Error
        What the step is off by, at most.
    gap : float
        Between the images of the HOMO and the LUMO after the step, at least; 0 while nothing is known of it.
    idempotency : float
        Frobenius norm of X - X squared before the step, at most.
    fill : float
        Share of the tiles that are stored after the step.
    products : int
        Products of tiles that were added up in it.
    """

    polynomial: tuple[float, ...]
    error: Any
    gap: float
    idempotency: float
    fill: float
    products: int


@dataclass(frozen=True)
class DensityMatrix:
    """A density matrix and what is guaranteed of it.

    Attributes
    ----------
    matrix : TileMatrix
        P of one spin: the projector on the occupied states, or the Fermi function of F.  With an overlap, of
        ``P S P = P``.
    error : float
        Guaranteed bound of ``||matrix - P||_F``.
    energy, energy_error : float
        Trace of P F, in the unit of F, and a guaranteed bound of what it is off by.
    homo, lumo : tuple of float
        Intervals that hold the highest occupied and the lowest empty eigenvalue; None for a temperature.
    mu : float
        Chemical potential: the middle of the gap, or the one that was given.
    electrons : float
        Trace of P S: electrons of one spin.
    history : list of Step
        The steps of the purification.
    factor : TileMatrix or None
        Z with ``Z.H S Z = I``, where there was an overlap.
    edges : tuple of float or None
        HOMO and LUMO, likely but without a guarantee, as the steps were planned by; a `start` is used by these.
    """

    matrix: TileMatrix
    error: float
    energy: float
    energy_error: float
    homo: tuple[float, float] | None
    lumo: tuple[float, float] | None
    mu: float
    electrons: float
    history: list[Step]
    factor: TileMatrix | None = None
    edges: tuple[float, float] | None = None

    @property
    def gap(self) -> float:
        """What the gap is at least; 0 for a temperature."""
        return 0.0 if self.homo is None or self.lumo is None else self.lumo[0] - self.homo[1]

    @property
    def products(self) -> int:
        """Products of tiles that the steps took."""
        return sum(step.products for step in self.history)

    __repr__ = shown

    def _repr_html_(self) -> str:
        """Return the same as a table, for notebooks, with the stored share of tiles after each step."""
        told = shown_html(self)
        if len(self.history) < 2:
            return told
        fills = np.array([step.fill for step in self.history])
        return told + curve_html(
            f"tiles stored after each step, at most {fills.max():.3g}", np.arange(len(fills)), fills
        )

    def _told(self) -> list[str]:
        n = self.matrix.shape[0]
        return [
            f"{n} x {n} {self.matrix.dtype}",
            f"{self.matrix.fill:.3g} of all tiles stored",
            f"{self.electrons:g} electrons of one spin",
            f"error {self.error:.2g}",
            f"energy {self.energy:.10g} ± {self.energy_error:.1g}",
            *([f"gap at least {self.gap:.4g}"] if self.homo is not None else []),
            f"{len(self.history)} steps",
        ]

    def plot(self, axes: Any = None) -> Any:
        """Draw what each step was off by, the idempotency before it, the gap and the share of stored tiles.

        Parameters
        ----------
        axes : matplotlib.axes.Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ImportError
            Without Matplotlib.
        """
        axes = axes_or_new(axes)
        numbers = range(1, len(self.history) + 1)
        for label, values in (
            ("error of the step", [step.error.fro for step in self.history]),
            ("idempotency", [step.idempotency for step in self.history]),
            ("gap", [step.gap for step in self.history]),
            ("stored tiles", [step.fill for step in self.history]),
        ):
            axes.semilogy(numbers, values, marker=".", label=label)
        axes.set_xlabel("step")
        axes.legend()
        return axes
