"""Results that show themselves: drawn with Matplotlib where it is installed, and as a small curve in a notebook."""

from __future__ import annotations

import html
from typing import Any

import numpy as np

from spectile.core.arrays import on_device


def axes_or_new(axes: Any) -> Any:
    """Return the axes to draw on, those of a new figure if None is given; raises ImportError without Matplotlib."""
    if axes is not None:
        return axes
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plot draws with Matplotlib, which is not installed: pip install matplotlib") from error
    return pyplot.subplots(layout="constrained")[1]


def shown(told: Any) -> str:
    """Return an object's line, of what its ``_told()`` lists: the ``__repr__`` of results."""
    return f"{type(told).__name__}({', '.join(told._told())})"


def shown_html(told: Any) -> str:
    """Return the same as a table, for notebooks: the ``_repr_html_`` of results."""
    return table_html(type(told).__name__, told._told())


def ends_told(name: str, numbers: Any) -> str:
    """Return how many numbers there are, and the least and the greatest unless they would be fetched from a GPU.

    >>> ends_told("eigenvalues", np.array([1.0, 2.5]))
    '2 eigenvalues from 1 to 2.5'
    """
    shape = " x ".join(f"{length:,}" for length in numbers.shape)
    if on_device(numbers) or 0 in numbers.shape:
        return f"{shape} {name}"
    return f"{shape} {name} from {float(numbers.min()):.6g} to {float(numbers.max()):.6g}"


def draw_sizes(sizes: np.ndarray, axes: Any) -> Any:
    """Draw the sizes of parts of a matrix, shape (rows, columns), by their decades; return the axes, given or new.

    Where there is nothing a size is 0, which stays blank.
    """
    axes = axes_or_new(axes)
    decades = np.log10(np.where(sizes > 0, sizes, np.nan))
    image = axes.imshow(decades, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, label="log10 of the norm of a tile")
    axes.set(xlabel="tile column", ylabel="tile row")
    return axes


def table_html(name: str, told: list[str]) -> str:
    """Return what is told of an object, a row each, under its name, as HTML that needs nothing else.

    >>> table_html("Matrix", ["2 x 2", "norm < 1"])
    '<table><caption>Matrix</caption><tr><td>2 x 2</td></tr><tr><td>norm &lt; 1</td></tr></table>'
    """
    rows = "".join(f"<tr><td>{html.escape(one)}</td></tr>" for one in told)
    return f"<table><caption>{html.escape(name)}</caption>{rows}</table>"


def curve_html(told: str, x: np.ndarray, y: np.ndarray, width: int = 320, height: int = 80) -> str:
    """Return what is told of a curve, with the curve, real and finite, as HTML that needs nothing else."""
    low, high = min(float(y.min()), 0.0), float(y.max())
    across = (x - x[0]) / ((x[-1] - x[0]) or 1.0) * width
    up = height - (y - low) / ((high - low) or 1.0) * height
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, up, strict=True))
    return (
        f'<div>{html.escape(told)}<br><svg width="{width}" height="{height + 2}" viewBox="0 -1 {width} {height + 2}">'
        f'<polyline points="{points}" fill="none" stroke="currentColor"/></svg></div>'
    )
