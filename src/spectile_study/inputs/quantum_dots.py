"""The superlattice of quantum dots on the surface of the KPM paper's sample (paper, Section VI and Figure 1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def quantum_dots(
    nx: int, ny: int, nz: int, *, period: int = 20, radius: float = 6.0, depth: float = 0.153
) -> npt.NDArray[np.float64]:
    """Return the potential V of a square superlattice of disc-shaped dots on the surface z = 0.

    Parameters
    ----------
    nx, ny, nz : int
        Size of the sample in lattice sites.
    period, radius : int, float
        Distance of neighbouring dots and radius of a dot, in lattice sites.
    depth : float
        Potential inside a dot, in units of the hopping t.

    Returns
    -------
    ndarray, shape (nx, ny, nz)
        V_n in units of the hopping.

    Raises
    ------
    ValueError
        If `period` is not positive.
    """
    if period < 1:
        raise ValueError(f"period={period} is no distance between dots: give a positive number of sites")
    x = (np.arange(nx) + 0.5) % period - period / 2
    y = (np.arange(ny) + 0.5) % period - period / 2
    potential = np.zeros((nx, ny, nz))
    potential[..., 0] = np.where(x[:, None] ** 2 + y[None, :] ** 2 <= radius**2, depth, 0.0)
    return potential
