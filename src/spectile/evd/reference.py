"""The two-stage symmetric eigensolver as its paper states it, in plain NumPy.

Notation of the paper: A is n x n Hermitian; detached band reduction (Algorithm 1) brings it to bandwidth b
with trailing updates of depth nb (`block`); bulge chasing (Algorithm 2) brings the band to tridiagonal form T.
Here A = Q1 B Q1ᴴ, B = Q2 T Q2ᴴ, T = S Λ Sᴴ, so the eigenvectors are Q1 Q2 S.

A reflector is H = I − τ v vᴴ with v[0] = 1, and is made so that Hᴴ x = (β, 0, ..., 0)ᵀ with β real.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Panel:
    """The reflectors of one panel: Q = I − Y T Yᴴ acts on rows `start` and below."""

    start: int
    y: Array
    t: Array


@dataclass(frozen=True)
class ChasingReflector:
    """One reflector of bulge chasing: sweep `sweep`, acting on rows ``start`` to ``start + len(v)``."""

    sweep: int
    start: int
    v: Array
    tau: Any


def reflector(x: Array) -> tuple[Array, Any, float]:
    """Return v, τ and β with (I − τ v vᴴ)ᴴ x = β e1, v[0] = 1 and β real (LAPACK's larfg)."""
    v = np.zeros_like(x)
    v[0] = 1
    tail = np.linalg.norm(x[1:])
    if tail == 0 and x[0].imag == 0:
        return v, x.dtype.type(0), float(x[0].real)
    beta = -np.copysign(np.hypot(abs(x[0]), tail), x[0].real)
    v[1:] = x[1:] / (x[0] - beta)
    return v, (beta - x[0]) / beta, float(beta)


def panel_qr(panel: Array) -> tuple[Array, Array, Array]:
    """Factor a tall panel by Householder reflectors in compact WY form.

    Parameters
    ----------
    panel : array, shape (m, k)
        Any rank.

    Returns
    -------
    y : array, shape (m, min(m, k))
        Unit lower trapezoidal.
    t : array, shape (min(m, k), min(m, k))
        Upper triangular; Q = I − Y T Yᴴ.
    r : array, shape (m, k)
        Qᴴ times the panel: upper triangular, zero below.
    """
    r = panel.copy()
    m, columns = r.shape
    k = min(m, columns)
    y = np.zeros((m, k), r.dtype)
    t = np.zeros((k, k), r.dtype)
    for j in range(k):
        v, tau, beta = reflector(r[j:, j])
        y[j:, j] = v
        r[j:, j + 1 :] -= np.conj(tau) * np.outer(v, v.conj() @ r[j:, j + 1 :])
        r[j, j] = beta
        r[j + 1 :, j] = 0
        t[:j, j] = -tau * (t[:j, :j] @ (y[:, :j].conj().T @ y[:, j]))
        t[j, j] = tau
    return y, t, r


def syr2k_recursive(c: Array, a: Array, b: Array, *, block: int, alpha: float = 1.0) -> None:
    """Add alpha (A Bᴴ + B Aᴴ) to the lower triangle of C in place, by growing square products (Algorithm 3).

    The first pass is one batch of `block` x `block` diagonal blocks; pass i is a batch of square blocks below the
    diagonal, of twice the size of the pass before.  Above the diagonal only the diagonal blocks are written.
    (The paper's listing concatenates the passes; adding in place is what its Figure 7 shows.)

    Parameters
    ----------
    c : array, shape (n, n)
        Overwritten.
    a, b : array, shape (n, k)
    block : int
        Size of the diagonal blocks (the paper's nb of Algorithm 3).
    alpha : float
    """
    n = c.shape[0]

    def add(rows: slice, columns: slice) -> None:
        c[rows, columns] += alpha * (a[rows] @ b[columns].conj().T + b[rows] @ a[columns].conj().T)

    for start in range(0, n, block):
        diagonal = slice(start, min(start + block, n))
        add(diagonal, diagonal)
    size = block
    while size < n:
        for start in range(0, n - size, 2 * size):
            add(slice(start + size, min(start + 2 * size, n)), slice(start, start + size))
        size *= 2


def band_reduction(a: Array, *, bandwidth: int, block: int) -> tuple[Array, list[Panel]]:
    """Reduce a Hermitian matrix to a band by detached band reduction (Algorithm 1).

    Inside a block of nb columns the matrix is not updated: each panel's Z takes the pending updates into account
    (Z = A W − Z_p Y_pᴴ W − Y_p Z_pᴴ W − ½ Y Wᴴ A W), and one update of depth nb follows the block.
    ``block == bandwidth`` is the conventional successive band reduction (SBR).

    Parameters
    ----------
    a : array, shape (n, n)
        Hermitian.
    bandwidth : int
        Number b of subdiagonals that stay.
    block : int
        Depth nb of the trailing update, a multiple of b.

    Returns
    -------
    band : array, shape (n, n)
        Hermitian, zero outside the band.
    panels : list of Panel
        Q1 is their product, in order.
    """
    a = a.copy()
    n = a.shape[0]
    b = bandwidth
    panels: list[Panel] = []
    for i in range(0, n - 1, block):
        ys: list[Array] = []  # the detached panels' Y and Z, whose updates are pending
        zs: list[Array] = []
        for j in range(i, min(i + block, n), b):
            columns = slice(j, min(j + b, n))
            for y, z in zip(ys, zs, strict=True):
                a[j:, columns] -= y[j:] @ z[columns].conj().T + z[j:] @ y[columns].conj().T
            a[columns, j:] = a[j:, columns].conj().T
            top = j + b
            if top >= n:
                continue
            y_part, t, r = panel_qr(a[top:, columns])
            a[top:, columns] = r
            a[columns, top:] = r.conj().T
            panels.append(Panel(top, y_part, t))
            y = np.zeros((n, y_part.shape[1]), a.dtype)
            y[top:] = y_part
            w = y @ t
            p = a @ w
            for y_p, z_p in zip(ys, zs, strict=True):
                p -= z_p @ (y_p.conj().T @ w) + y_p @ (z_p.conj().T @ w)
            z = p - 0.5 * y @ (w.conj().T @ p)
            z[:top] = 0
            ys.append(y)
            zs.append(z)
        rest = slice(min(i + block, n), n)
        if ys and rest.start < n:
            syr2k_recursive(a[rest, rest], np.hstack(ys)[rest], np.hstack(zs)[rest], block=block, alpha=-1.0)
            a[rest, rest] = np.tril(a[rest, rest]) + np.tril(a[rest, rest], -1).conj().T
    return a, panels


def bulge_chasing(band: Array, *, bandwidth: int) -> tuple[Array, Array, list[ChasingReflector]]:
    """Reduce a Hermitian band matrix to a real tridiagonal one, sweep by sweep (Algorithm 2, run in order).

    Sweep s brings column s to tridiagonal form and chases the bulge to the end of the matrix in tasks t = 0, 1, ...,
    each a reflector on rows s + 1 + t b to s + (t + 1) b.  Task t of a sweep may run once task t + 1 of the sweep
    before is done: its frontier is then 3 b columns ahead (the paper's listing prints 2 b).

    Parameters
    ----------
    band : array, shape (n, n)
        Hermitian, zero outside the band.
    bandwidth : int
        Number b of subdiagonals.

    Returns
    -------
    d, e : array, shape (n,), (n - 1,)
        Diagonal and subdiagonal of T, real.
    reflectors : list of ChasingReflector
        Q2 is their product, in order.
    """
    a = band.copy()
    n = a.shape[0]
    reflectors: list[ChasingReflector] = []
    for sweep in range(n - 1):
        column = sweep
        for start in range(sweep + 1, n, bandwidth):
            rows = slice(start, min(start + bandwidth, n))
            v, tau, _ = reflector(a[rows, column])
            reach = slice(column, min(start + 2 * bandwidth, n))
            a[rows, reach] -= np.conj(tau) * np.outer(v, v.conj() @ a[rows, reach])
            a[reach, rows] -= tau * np.outer(a[reach, rows] @ v, v.conj())
            reflectors.append(ChasingReflector(sweep, start, v, tau))
            column = start
    return np.diag(a).real.copy(), np.diag(a, -1).real.copy(), reflectors


def apply_chasing(reflectors: list[ChasingReflector], z: Array) -> Array:
    """Return Q2 Z: the chasing reflectors applied from the last to the first."""
    z = z.copy()
    for h in reversed(reflectors):
        rows = slice(h.start, h.start + len(h.v))
        z[rows] -= h.tau * np.outer(h.v, h.v.conj() @ z[rows])
    return z


def apply_panels(panels: list[Panel], z: Array) -> Array:
    """Return Q1 Z: the panels' block reflectors applied from the last to the first."""
    z = z.copy()
    for panel in reversed(panels):
        z[panel.start :] -= panel.y @ (panel.t @ (panel.y.conj().T @ z[panel.start :]))
    return z


def tridiagonalize(a: Array, *, bandwidth: int = 4, block: int = 8) -> tuple[Array, Array, Array]:
    """Return d, e and Q with A = Q T Qᴴ, T real tridiagonal with diagonal d and subdiagonal e.

    Parameters
    ----------
    a : array, shape (n, n)
        Hermitian.
    bandwidth, block : int
        b and nb of the detached band reduction.
    """
    band, panels = band_reduction(a, bandwidth=bandwidth, block=block)
    d, e, reflectors = bulge_chasing(band, bandwidth=bandwidth)
    return d, e, apply_panels(panels, apply_chasing(reflectors, np.eye(a.shape[0], dtype=a.dtype)))


def eigh(a: Array, *, bandwidth: int = 4, block: int = 8) -> tuple[Array, Array]:
    """Return eigenvalues (ascending) and eigenvectors of a Hermitian matrix by the two stages and back.

    Parameters
    ----------
    a : array, shape (n, n)
        Hermitian.
    bandwidth, block : int
        b and nb of the detached band reduction.
    """
    band, panels = band_reduction(a, bandwidth=bandwidth, block=block)
    d, e, reflectors = bulge_chasing(band, bandwidth=bandwidth)
    w, s = np.linalg.eigh(np.diag(d) + np.diag(e, -1) + np.diag(e, 1))
    return w, apply_panels(panels, apply_chasing(reflectors, s.astype(a.dtype)))
