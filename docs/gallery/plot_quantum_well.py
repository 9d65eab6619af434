"""
States of a quantum well: tridiagonal and banded matrices
=========================================================

Schrödinger's equation on a grid is a tridiagonal matrix, or one of five diagonals by a formula of higher order.
``eigh_tridiagonal`` and ``eig_banded`` compute the lowest states of each, without a dense matrix.
"""

import matplotlib.pyplot as plt
import numpy as np

import spectile

x = np.linspace(-8, 8, 801)
h = x[1] - x[0]
well = x**2 / 2  # the states lie at 1/2, 3/2, ...

w, v = spectile.eigh_tridiagonal(1 / h**2 + well, np.full(x.size - 1, -0.5 / h**2), select="i", select_range=(0, 4))
bands = np.zeros((3, x.size))  # the diagonal and two below it
bands[0] = 30 / (24 * h**2) + well
bands[1] = -16 / (24 * h**2)
bands[2] = 1 / (24 * h**2)
better = spectile.eig_banded(bands, lower=True, eigvals_only=True, select="i", select_range=(0, 4))
print("three diagonals:", np.abs(w - np.arange(5) - 0.5).max())
print("five diagonals: ", np.abs(better - np.arange(5) - 0.5).max())
assert np.abs(better - np.arange(5) - 0.5).max() < 1e-5

fig, ax = plt.subplots()
ax.plot(x, well, color="black")
for energy, state in zip(w, v.T, strict=True):
    ax.plot(x, energy + state / np.abs(state).max() * 0.4)
ax.set(xlim=(-5, 5), ylim=(0, 6), xlabel="x", ylabel="energy")
plt.show()
