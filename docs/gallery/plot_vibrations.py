"""
Vibrations of a string with a weight: a generalized problem
===========================================================

Finite elements give K u = ω² M u with a stiffness K and a mass M, neither of them the identity.  ``eigh(K, M)`` takes
both, and finds a part of the spectrum by index.
"""

import matplotlib.pyplot as plt
import numpy as np

import spectile

n = 400
h = 1 / (n + 1)
stiffness = (2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)) / h
mass = (4 * np.eye(n) + np.eye(n, k=1) + np.eye(n, k=-1)) * h / 6

x = np.arange(1, n + 1) * h
fig, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
for ax, weight in zip(axes, (0.0, 0.5), strict=True):
    heavier = mass.copy()
    heavier[n // 3, n // 3] += weight
    squares, modes = spectile.eigh(stiffness, heavier, subset_by_index=(0, 3))
    print(f"weight {weight}: ω/π =", np.round(np.sqrt(squares) / np.pi, 3))
    assert np.allclose(modes.T @ heavier @ modes, np.eye(4), atol=1e-10)
    ax.plot(x, modes)
    ax.set(xlabel="x", title=f"weight {weight:g}")
plt.show()
