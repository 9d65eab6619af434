"""
Ripples around an impurity, by a Green's function
=================================================

``greens_function`` gives entries of (E + iη − H)⁻¹ for many energies from one expansion.  Its diagonal is the local
density of states, which oscillates around an impurity in a plane.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp

import spectile

n = 81
ring = sp.diags_array([-np.ones(n - 1), -np.ones(n - 1), -np.ones(1), -np.ones(1)], offsets=[-1, 1, n - 1, 1 - n])
plane = sp.csr_array(sp.kron(ring, sp.eye_array(n)) + sp.kron(sp.eye_array(n), ring))
middle = n * n // 2
strength, energies, eta = 5.0, np.array([-3.2, -2.0]), 0.1

# %%
# One column of the clean plane's function is enough: an impurity on a site changes G by Dyson's equation.

column = spectile.greens_function(plane, None, [middle], energies, eta)[:, :, 0]
own = column[:, middle]
change = column**2 * (strength / (1 - strength * own))[:, None]
density = -(own[:, None] + change).imag / np.pi

fig, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for ax, energy, map_ in zip(axes, energies, density, strict=True):
    shown = (map_ - np.median(map_)).reshape(n, n)[20:61, 20:61]
    ax.imshow(shown, cmap="RdBu", vmin=-0.005, vmax=0.005)
    ax.set(xticks=[], yticks=[], title=f"local density of states, energy {energy:g}")
plt.show()

# %%
# A dense solution of a small plane confirms the entries.

small = sp.csr_array(plane[:200, :200])
G = spectile.greens_function(small, [0, 5], [0], energies, eta)
for number, energy in enumerate(energies):
    exact = np.linalg.inv((energy + 1j * eta) * np.eye(200) - small.toarray())
    assert np.allclose(G[number, :, 0], exact[[0, 5], 0], atol=1e-8)
