"""
The quantized Hall conductivity of Haldane's model
==================================================

One set of Chebyshev moments gives the Hall conductivity at every Fermi energy.  Within the gap it is a whole number
of e²/h where the insulator is topological, and zero where it is not.
"""

import matplotlib.pyplot as plt
import numpy as np

import spectile


def haldane(mass, hopping=0.2):
    """Return graphene with complex second neighbours as a model of a crystal."""
    phase = 1j * hopping
    cells = {(0, 0): np.array([[mass, -1], [-1, -mass]], dtype=complex)}
    for cell in ((1, 0), (0, -1), (-1, 1)):
        cells[cell] = np.diag([phase, -phase])
        cells[tuple(-np.array(cell))] = np.diag([-phase, phase])
    for cell in ((1, 0), (0, 1)):  # the other two neighbours of each site
        cells[cell] = cells.get(cell, np.zeros((2, 2), complex)) + np.array([[0, 0], [-1, 0]])
        back = tuple(-np.array(cell))
        cells[back] = cells.get(back, np.zeros((2, 2), complex)) + np.array([[0, -1], [0, 0]])
    lattice = np.array([[1.0, 0.0], [0.5, np.sqrt(3) / 2]])
    return spectile.kpm.LatticeModel(lattice, [np.zeros(2), lattice.sum(axis=0) / 3], cells)


fig, ax = plt.subplots()
mu = np.linspace(-4, 4, 401)
for mass, label in ((0.0, "topological"), (2.0, "trivial")):
    sample = haldane(mass).sample([16, 16])
    cell = np.eye(sample.H.shape[0])[:, :2]  # in a clean sample one cell stands for all
    sigma = spectile.conductivity(
        sample.H, "x", "y", sample.positions, periods=sample.periods, num_moments=128, vectors=cell
    )
    print(f"{label}: {sigma(0.0):+.3f} e²/h in the gap")
    ax.plot(mu, sigma(mu), label=label)
ax.axhline(0, color="black", linewidth=0.5)
ax.set(xlabel="Fermi energy / hopping", ylabel="Hall conductivity / (e²/h)")
ax.legend()
plt.show()
