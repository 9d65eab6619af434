"""
Your own matrix in the report
=============================

A file of your own joins the study as one row of a run sheet.  Here is the matrix before it is measured: what the file
holds, its square, and how much work that is.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import scipy.io
import scipy.sparse as sp

import spectile

# A truss of two chords and their braces stands for your matrix: each node is tied to its neighbours.
n = 400
bridge = sp.diags_array([4.0, -1.0, -1.0, -0.5, -0.5], offsets=[0, 1, -1, 20, -20], shape=(n, n))

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "bridge.mtx"
    scipy.io.mmwrite(file, bridge)
    matrix = sp.csr_array(scipy.io.mmread(file))

square = spectile.spgemm(matrix, matrix, backend="cpu")
products = np.diff(matrix.indptr)[matrix.indices].sum()
print(f"{matrix.nnz} entries, {products} products, {square.nnz} entries of its square")
assert np.allclose(square.toarray(), matrix.toarray() @ matrix.toarray())

# %%
# What the report's table of all matrices tells in numbers, products for each entry of the square, is seen here as a
# widening of the bands:

fig, axes = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
for ax, one, title in zip(axes, (matrix, square), ("the matrix", "its square"), strict=True):
    ax.spy(one, markersize=1)
    ax.set_title(f"{title}, {one.nnz} entries")
plt.show()

# %%
# In a checkout, the file goes into the folder ``own``, and a row of the sheet asks for it.  The report then has it in
# tSparse's table of all matrices and in the figures, beside SciPy's product or, on a GPU, the vendor's:
#
# .. code-block:: console
#
#    $ mkdir -p own && cp ~/bridge.mtx own/
#    $ printf 'bridge\tquick\tmatrices\t\t1\t1\town/bridge.mtx\town\t\t\n' >> config/tsparse.tsv
#    $ make
