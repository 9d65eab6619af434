"""Density matrices and other functions of near-sparse Hermitian matrices, with an error that is known at the end."""

from spectile.density.api import density_matrix
from spectile.density.factor import inverse_factor, inverse_sqrt, polar
from spectile.density.functions import exp, fermi, polynomial, sign
from spectile.density.result import DensityMatrix, Step

__all__ = [
    "DensityMatrix", "Step", "density_matrix", "exp", "fermi", "inverse_factor", "inverse_sqrt", "polar", "polynomial",
    "sign",
]  # fmt: skip
