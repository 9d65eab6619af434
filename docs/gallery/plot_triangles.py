"""
Triangles of a graph
====================

The product of the upper triangle of an adjacency matrix with itself counts paths; with a mask only those paths
are counted that an edge closes.  networkx agrees.
"""

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np

import spectile

graph = nx.powerlaw_cluster_graph(1500, 4, 0.4, seed=1)
links = nx.to_scipy_sparse_array(graph, dtype=np.int64, format="csr")
closed = spectile.spgemm(links, links, semiring="plus_pair", mask=links, backend="cpu")
triangles = closed.sum(axis=1) // 2  # each of a vertex is seen along two of its edges
print(f"{triangles.sum() // 3} triangles")
assert triangles.tolist() == list(nx.triangles(graph).values())

# %%
# Triangles of each vertex, by the number of its edges:

fig, ax = plt.subplots()
ax.loglog(np.diff(links.indptr), np.maximum(triangles, 0.5), marker="o", markersize=3, linestyle="none")
ax.set(xlabel="edges of a vertex", ylabel="triangles that it is a corner of")
plt.show()
