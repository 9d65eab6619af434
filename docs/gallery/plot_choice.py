"""
What a call would do, and on which machine
==========================================

``spectile.explain`` lists the ways in which a call may be computed, with predicted times, and which one is taken.
``show_config`` tells what the machine has.
"""

import matplotlib.pyplot as plt
import scipy.sparse as sp

import spectile

spectile.show_config()

# %%
# For a sparse product:

A = sp.random_array((3000, 3000), density=0.004, format="csr", rng=1)
for candidate in spectile.tsparse.explain(A, A):
    print(candidate)

# %%
# The pattern of the product is known before any value is computed:

pattern = spectile.tsparse.symbolic(A, A, backend="cpu")
print(pattern)
C = pattern.multiply(A, A)

fig, axes = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
axes[0].spy(A, markersize=0.2)
axes[0].set_title(f"A: {A.nnz:,} entries", pad=20)
axes[1].spy(C[:500, :500], markersize=0.2)
axes[1].set_title("a corner of A A", pad=20)
plt.show()
