"""
A band structure: many small matrices in one call
=================================================

Leading dimensions of ``eigh`` and ``eigvalsh`` are batches.  Here each wave vector of a path through the Brillouin
zone of a strip of graphene is one matrix.
"""

import matplotlib.pyplot as plt
import numpy as np

import spectile

width = 24  # sites across the strip, with zigzag edges
k = np.linspace(0, 2 * np.pi, 201)
H = np.zeros((len(k), width, width))
for site in range(width - 1):
    # Bonds along the strip and across it take turns.
    H[:, site, site + 1] = H[:, site + 1, site] = -2 * np.cos(k / 2) if site % 2 == 0 else -1.0

bands = spectile.eigvalsh(H)
print(bands.shape)
assert np.allclose(bands, np.linalg.eigvalsh(H), atol=1e-12)

fig, ax = plt.subplots()
ax.plot(k / np.pi, bands, color="tab:blue", linewidth=0.8)
ax.plot(k / np.pi, bands[:, width // 2 - 1 : width // 2 + 1], color="tab:red")  # states at the edges
ax.set(xlabel="wave vector / π", ylabel="energy / hopping")
plt.show()
