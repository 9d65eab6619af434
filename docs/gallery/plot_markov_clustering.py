"""
Markov clustering of a graph
============================

A random walk on a graph is squared and sharpened until each walker stays in its cluster (van Dongen, 2000).
``spgemm`` drops what is small while it multiplies, so that the walk stays sparse.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp

from spectile import spgemm

rng = np.random.default_rng(1)
group = rng.integers(0, 4, 400)
linked = rng.random((400, 400)) < np.where(group[:, None] == group, 0.3, 0.005)
links = sp.csr_array((linked | linked.T | np.eye(400, dtype=bool)).astype(float))
walk, entries = links, []
for _ in range(20):
    walk = spgemm(walk, walk, prune=1e-4, top_n=100, backend="cpu")
    walk = walk.power(2)
    walk = sp.csr_array(sp.diags_array(1 / walk.sum(axis=1)) @ walk)
    entries.append(walk.nnz)
count, cluster = sp.csgraph.connected_components(walk)
print(f"{count} clusters")
assert len(set(zip(group.tolist(), cluster.tolist(), strict=True))) == count == 4

# %%
# The graph in its original order, and with its vertices in the order of their clusters:

order = np.argsort(cluster)
fig, axes = plt.subplots(1, 3, figsize=(9.5, 3.2), layout="constrained")
axes[0].spy(links, markersize=0.4)
axes[0].set_title("as it came", pad=18)
axes[1].spy(links[order][:, order], markersize=0.4)
axes[1].set_title("by cluster", pad=18)
axes[2].semilogy(entries)
axes[2].set(xlabel="step", ylabel="entries of the walk")
plt.show()
