"""
A wave packet in a disordered lattice
=====================================

``evolve`` sums Chebyshev polynomials until what is left is below the tolerance, so that no step of time has to be
chosen.  In a clean lattice the packet runs away, in a disordered one it stays.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp

import spectile

n, times = 61, np.linspace(0, 12, 5)
line = sp.diags_array([-np.ones(n - 1)] * 2, offsets=[-1, 1])
lattice = sp.csr_array(sp.kron(line, sp.eye_array(n)) + sp.kron(sp.eye_array(n), line))
x, y = np.divmod(np.arange(n * n), n)
packet = np.exp(-((x - n // 2) ** 2 + (y - n // 2) ** 2) / 8).astype(complex)
packet /= np.linalg.norm(packet)
energies = np.random.default_rng(1).uniform(-8, 8, n * n)

fig, axes = plt.subplots(2, len(times), figsize=(9, 3.8), layout="constrained")
for row, (name, H) in zip(axes, (("clean", lattice), ("disordered", lattice + sp.diags_array(energies))), strict=True):
    states = spectile.evolve(sp.csr_array(H), packet, times)
    assert np.allclose(np.linalg.norm(states, axis=1), 1, atol=1e-10)
    for ax, time, state in zip(row, times, states, strict=True):
        ax.imshow(np.abs(state.reshape(n, n)), cmap="magma", vmax=np.abs(packet).max() / 3)
        ax.set(xticks=[], yticks=[], title=f"t = {time:g}")
    row[0].set_ylabel(name)
plt.show()
