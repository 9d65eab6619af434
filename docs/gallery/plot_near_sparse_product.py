"""
Which tiles of a near-sparse product are left out
=================================================

A matrix whose entries decay is cut into tiles.  ``spamm`` multiplies two tiles only where the product of their norms
is large enough for the error that you ask for, and its bound holds for what is left out and for rounding.
"""

import matplotlib.pyplot as plt
import numpy as np

import spectile

rng = np.random.default_rng(1)
place = np.sort(rng.uniform(0, 300, 2048))  # of orbitals along a line
apart = np.abs(place[:, None] - place)
a = np.exp(-apart / 4) * rng.uniform(0.5, 1, apart.shape)

result = spectile.spamm(a, a, rtol_factors=1e-6)
error = np.linalg.norm(result.c - a @ a) / np.linalg.norm(a) ** 2
print(f"{result.valid_ratio:.1%} of the products of tiles, error {error:.1e} of ‖A‖‖A‖")
assert error <= 1e-6

# %%
# Left the norms of the tiles; right the share of the products of each tile of C that is computed.

norms = spectile.nearsparse.norm_map(a).norms
valid = norms[:, :, None] * norms[None, :, :] >= result.tau

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
image = left.imshow(np.log10(norms), cmap="viridis")
left.set_title("norms of the tiles of A")
fig.colorbar(image, ax=left, label="log10 of the norm")
image = right.imshow(valid.mean(axis=1), cmap="magma")
right.set_title("share of the products for a tile of C")
fig.colorbar(image, ax=right)
plt.show()
