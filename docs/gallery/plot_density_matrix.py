"""
A density matrix with its certificate
=====================================

``density_matrix`` finds the projector on the occupied states of an insulator without diagonalizing it.  The error
that it reports is a guarantee.  Here a dense eigensolver confirms it.
"""

import matplotlib.pyplot as plt
import numpy as np

import spectile

n, rng = 400, np.random.default_rng(0)
apart = np.abs(np.arange(n)[:, None] - np.arange(n))
f = np.where(apart > 0, -0.25 * np.exp(1.0 - apart), 0.0)
f += np.diag(np.where(np.arange(n) % 2, 0.8, -0.8) + 0.1 * rng.normal(size=n))

p = spectile.density_matrix(f, electrons=n // 2, error=1e-6, method="sp2_accelerated")
values, vectors = np.linalg.eigh(f)
exact = vectors[:, : n // 2] @ vectors[:, : n // 2].T
true = np.linalg.norm(p.matrix.to_dense() - exact)
print(p)
print(f"true error {true:.1e}, guaranteed {p.error:.1e}")
assert true <= p.error <= 1e-6

# %%
# The density matrix decays with distance, and most of its tiles are not stored; beside it, the error of each step of
# the purification, and the gap that was known by then.

fig, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
size = np.log10(np.maximum(np.abs(p.matrix.to_dense()), 1e-12))
fig.colorbar(left.imshow(size, cmap="viridis"), ax=left, label="log10 of the entries")
p.plot(right)
plt.show()
