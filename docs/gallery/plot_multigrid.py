"""
Algebraic multigrid: set up by Galerkin products, solved by V-cycles
====================================================================

``galerkin(R, A, P)`` is the coarse operator R A P, made without an intermediate product in memory.  Five levels of
smoothed aggregation solve Poisson's equation.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp

from spectile import spgemm
from spectile.tsparse import galerkin

n = 48
line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
fine = sp.csr_array(sp.kron(line, sp.eye_array(n)) + sp.kron(sp.eye_array(n), line))
levels, width = [(fine, None)], n
while width > 3:
    A = levels[-1][0]
    place = np.arange(width) // 2
    number = (place[:, None] * (width // 2) + place).ravel()
    plain = sp.csr_array((np.ones(width**2), (np.arange(width**2), number)))
    smooth = sp.csr_array(sp.diags_array(-2 / 3 / A.diagonal()) @ A)
    P = spgemm(smooth, plain, beta=1, C=plain, backend="cpu")
    levels.append((galerkin(P.T, A, P).C, P))
    width //= 2
print("unknowns by level:", [A.shape[0] for A, _ in levels])


def cycle(depth, b):
    """Return a V-cycle's approximation of A x = b."""
    A = levels[depth][0]
    if depth + 1 == len(levels):
        return np.linalg.solve(A.toarray(), b)
    P = levels[depth + 1][1]
    x = 2 / 3 * b / A.diagonal()
    x = x + P @ cycle(depth + 1, P.T @ (b - A @ x))
    return x + 2 / 3 * (b - A @ x) / A.diagonal()


# %%
# Multigrid beside Jacobi's iteration alone:

b = np.random.default_rng(1).standard_normal(n * n)
residuals = {"V-cycles": [], "Jacobi": []}
for name, step in (("V-cycles", lambda r: cycle(0, r)), ("Jacobi", lambda r: 2 / 3 * r / fine.diagonal())):
    x = np.zeros(n * n)
    for _ in range(25):
        x = x + step(b - fine @ x)
        residuals[name].append(np.linalg.norm(b - fine @ x) / np.linalg.norm(b))
assert residuals["V-cycles"][-1] < 1e-6

fig, ax = plt.subplots()
for name, values in residuals.items():
    ax.semilogy(values, label=name)
ax.set(xlabel="step", ylabel="residual")
ax.legend()
plt.show()
