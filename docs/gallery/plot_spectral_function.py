"""
What a photoemission experiment sees: a spectral function
=========================================================

``spectral_function`` resolves the density of states by wave vector, also where disorder leaves no band structure.
"""

import matplotlib.pyplot as plt
import numpy as np

import spectile

model = spectile.kpm.LatticeModel([[1.0]], [[0.0]], {(1,): [[-1.0]], (-1,): [[-1.0]]})
sample = model.sample([2000])
k = np.linspace(-np.pi, np.pi, 121)

fig, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
energies = np.linspace(-3.5, 3.5, 401)
for ax, disorder in zip(axes, (0.0, 2.0), strict=True):
    H = sample.H.copy().tocsr()
    H.setdiag(np.random.default_rng(1).uniform(-disorder / 2, disorder / 2, H.shape[0]))
    curves = spectile.spectral_function(H, k[:, None], sample.positions, num_moments=128, bounds=(-3.6, 3.6))
    assert np.allclose(curves.integrate(), 1)
    ax.pcolormesh(k / np.pi, energies, curves(energies), shading="nearest", cmap="magma")
    ax.set(xlabel="wave vector / π", title=f"disorder {disorder:g}")
axes[0].set_ylabel("energy / hopping")
plt.show()
