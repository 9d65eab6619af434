"""
A first look: four systems in four pictures
===========================================

What each of the chief functions is for.  The other programs of the gallery take them one by one.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp

import spectile
from spectile.kpm.operators.lattices import graphene
from spectile.tiles import hilbert_order

rng = np.random.default_rng(1)

# %%
# Orbitals in a plane, ordered so that neighbours are near each other: most tiles of the product are negligible.

places = rng.uniform(0, 100, (2048, 2))
places = places[hilbert_order(places)]
a = np.exp(-np.linalg.norm(places[:, None] - places, axis=2))
product = spectile.spamm(a, a, rtol_factors=1e-6)
norms = spectile.nearsparse.norm_map(a).norms
kept = (norms[:, :, None] * norms[None] >= product.tau).mean(axis=1)

# %%
# Four planted groups of a graph, found by Markov clustering: sparse products that drop what is small.

group = rng.integers(0, 4, 400)
linked = rng.random((400, 400)) < np.where(group[:, None] == group, 0.3, 0.005)
links = walk = sp.csr_array((linked | linked.T | np.eye(400, dtype=bool)).astype(float))
for _ in range(20):
    walk = spectile.spgemm(walk, walk, prune=1e-4, top_n=100, backend="cpu").power(2)
    walk = sp.csr_array(sp.diags_array(1 / walk.sum(axis=1)) @ walk)
count, cluster = sp.csgraph.connected_components(walk)
assert count == 4
order = np.argsort(cluster)

# %%
# Bands of a strip of graphene: 201 matrices in one call.

k, width = np.linspace(0, 2 * np.pi, 201), 24
H = np.zeros((len(k), width, width))
for site in range(width - 1):
    H[:, site, site + 1] = H[:, site + 1, site] = -2 * np.cos(k / 2) if site % 2 == 0 else -1.0
bands = spectile.eigvalsh(H)

# %%
# The density of states of 28,800 sites of graphene, with its standard errors.

sites = graphene(120, 120)
density = spectile.kpm_dos(sites, num_moments=256, num_vectors=8, rng=1)
middle, error = (each / sites.shape[0] for each in (density.densities, density.errors))

# %%
# All four:

plt.rcParams["font.size"] = 11
fig, ((spamm, spgemm), (eigh, kpm)) = plt.subplots(2, 2, figsize=(8, 7), layout="constrained")
spamm.imshow(np.where(kept > 0, kept, np.nan), cmap="viridis_r")
spamm.set(
    title=f"spamm: {product.valid_ratio:.0%} of the tile products\nfor an error of 1e-6", xlabel="tiles of the product"
)
spgemm.spy(links[order][:, order], markersize=0.5)
spgemm.set(title=f"spgemm: {count} clusters of a graph\nby sparse products", xlabel="vertices, by cluster", xticks=[])
eigh.plot(k / np.pi, bands, color="tab:blue", linewidth=0.8)
eigh.set(title="eigvalsh: bands of a strip,\n201 matrices in one call", xlabel="wave vector / π", ylabel="energy")
kpm.fill_between(density.energies, middle - 2 * error, middle + 2 * error, alpha=0.4)
kpm.plot(density.energies, middle, linewidth=1)
kpm.set(title="kpm_dos: states of a crystal\nwith error bars", xlabel="energy", xlim=(-3.1, 3.1), ylim=(0, None))
plt.show()
