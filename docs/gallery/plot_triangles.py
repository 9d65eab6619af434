"""
Triangles of a graph
====================

The product of the upper triangle of an adjacency matrix with itself counts paths; with a mask only those are made
that an edge closes.  networkx agrees.
"""

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import scipy.sparse as sp

import spectile

graph = nx.powerlaw_cluster_graph(1500, 4, 0.4, seed=1)
upper = sp.triu(nx.to_scipy_sparse_array(graph, dtype=np.int64), 1, format="csr")
closed = spectile.spgemm(upper, upper, semiring="plus_pair", mask=upper, backend="cpu")
print(f"{closed.sum()} triangles")
assert closed.sum() == sum(nx.triangles(graph).values()) // 3

# %%
# Triangles by edge: few edges are part of many.

fig, ax = plt.subplots()
counts = np.bincount(closed.data)
ax.semilogy(counts, marker="o", linestyle="none")
ax.set(xlabel="triangles that an edge closes", ylabel="edges")
plt.show()
