"""The paper's versions of the moments in NumPy, which others are compared with: naive, and all vectors at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.kpm.types import Array


def etas_naive(H: Any, start: Array, num_moments: int, a: float, b: float) -> Array:
    """Figure 3: one vector at a time, one library call an operation.

    Parameters
    ----------
    H : matrix, shape (N, N)
        Hermitian; anything with ``@``.
    start : ndarray, shape (N, R)
        Start vectors |ν₀⟩.
    num_moments : int
        M, even.
    a, b : float
        Scaling H̃ = a (H − b 1) whose spectrum lies in [−1, 1].

    Returns
    -------
    ndarray, shape (M, R)
        η_2m = ⟨ν_m|ν_m⟩ and η_2m+1 = ⟨ν_m+1|ν_m⟩.  The loop of the paper runs to m = M/2 and yields two more than M;
        the first application has no factor 2 (the paper's "initialization steps").
    """
    etas = np.empty((num_moments, start.shape[1]))
    for r in range(start.shape[1]):
        v = start[:, r].copy()
        w = a * (H @ v - b * v)
        etas[0, r] = np.vdot(v, v).real
        etas[1, r] = np.vdot(w, v).real
        for m in range(1, num_moments // 2):
            w, v = v, w
            u = H @ v  # spmv()
            u = u - b * v  # axpy()
            w = -w  # scal()
            w = w + 2 * a * u  # axpy()
            etas[2 * m, r] = np.vdot(v, v).real  # nrm2()
            etas[2 * m + 1, r] = np.vdot(w, v).real  # dot()
    return etas


def aug_spmmv(H: Any, V: Array, W: Array, a: float, b: float) -> tuple[Array, Array, Array]:
    """Figures 4 and 5, one step: W = 2a(H − b1)V − W, and the column-wise ⟨V|V⟩ and ⟨W|V⟩ of one or all vectors."""
    W = 2 * a * (H @ V - b * V) - W
    return W, np.sum(V.conj() * V, axis=0).real, np.sum(W.conj() * V, axis=0).real


def etas_blocked(H: Any, start: Array, num_moments: int, a: float, b: float) -> Array:
    """Figure 5: all R vectors at once.  Arguments and result as in :func:`etas_naive`."""
    etas = np.empty((num_moments, start.shape[1]))
    V = start
    W = a * (H @ V - b * V)
    etas[0] = np.sum(V.conj() * V, axis=0).real
    etas[1] = np.sum(W.conj() * V, axis=0).real
    for m in range(1, num_moments // 2):
        W, V = V, W
        W, etas[2 * m], etas[2 * m + 1] = aug_spmmv(H, V, W, a, b)
    return etas
