"""
States in the middle of a spectrum
==================================

``filter_diagonalize`` finds all states of an interval, wherever it lies, and knows how many there should be.  In a
strongly disordered crystal they are localized.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp

import spectile

n = 40
line = sp.diags_array([-np.ones(n - 1)] * 2, offsets=[-1, 1])
energies = np.random.default_rng(2).uniform(-4, 4, n * n)
H = sp.csr_array(sp.kron(line, sp.eye_array(n)) + sp.kron(sp.eye_array(n), line) + sp.diags_array(energies))

pairs = spectile.filter_diagonalize(H, (0.0, 0.05), rng=1)
found = len(pairs.eigenvalues)
print(f"{found} states, estimated {pairs.estimate.value:.1f} ± {pairs.estimate.error:.1f}")
exact = np.linalg.eigvalsh(H.toarray())
assert found == np.count_nonzero((exact > 0) & (exact < 0.05))

fig, axes = plt.subplots(1, 3, figsize=(9, 3.3), layout="constrained")
for ax, energy, state in zip(axes, pairs.eigenvalues, pairs.eigenvectors.T, strict=False):
    ax.imshow(np.abs(state.reshape(n, n)), cmap="magma")
    ax.set(xticks=[], yticks=[], title=f"energy {energy:.4f}")
plt.show()
