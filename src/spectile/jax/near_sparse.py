"""Products of near-sparse arrays of JAX, with derivatives of any order."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from spectile.autodiff import near_sparse
from spectile.autodiff.near_sparse import Choices, NearSparseProduct, choices
from spectile.core.device import Backend
from spectile.jax.eigen import dense
from spectile.jax.primitives import linear_primitive


def _multiply(a: Any, b: Any, *, how: Choices, check: bool) -> list[Any]:
    """Return A B and the bound of its error, for operands of the same leading dimensions."""
    real = jnp.zeros((), float).dtype  # double precision where JAX has it

    def compute(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
        c, bound = near_sparse.multiply(np.asarray(a), np.asarray(b), how, None if check else False)
        rounded = bound.astype(real)
        up = np.nextafter(rounded, np.array(np.inf, real))
        return np.ascontiguousarray(c), np.where(rounded < bound, up, rounded).astype(real)

    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shapes = (jax.ShapeDtypeStruct((*batch, a.shape[-2], b.shape[-1]), a.dtype), jax.ShapeDtypeStruct(batch, real))
    return list(jax.pure_callback(compute, shapes, a, b, vmap_method="expand_dims"))


def _jvp(primals: Any, tangents: Any, *, how: Choices, check: bool) -> Any:
    (a, b), (a_dot, b_dot) = primals, tangents
    of = {"how": how.of_derivatives, "check": False}
    parts = [product_p.bind(a_dot, b, **of)[0]] if type(a_dot) is not ad.Zero else []
    parts += [product_p.bind(a, b_dot, **of)[0]] if type(b_dot) is not ad.Zero else []
    c, bound = product_p.bind(a, b, how=how, check=check)
    return [c, bound], [sum(parts[1:], parts[0]) if parts else jnp.zeros_like(c), jnp.zeros_like(bound)]


def _transpose(cotangents: Any, a: Any, b: Any, *, how: Choices, check: bool) -> Any:
    """Return the cotangent of the factor that is linear; JAX transposes without conjugates."""
    bar, _ = cotangents
    if type(bar) is ad.Zero:
        return [None, None]
    if ad.is_undefined_primal(a):
        return [product_p.bind(bar, b.mT, how=how, check=check)[0], None]
    return [None, product_p.bind(a.mT, bar, how=how, check=check)[0]]


def _shapes(a: Any, b: Any, **_: Any) -> Any:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return [a.update(shape=(*batch, a.shape[-2], b.shape[-1])), a.update(shape=batch, dtype=jnp.zeros((), float).dtype)]


#: A B, linear in each of two operands, and the bound of its error, which is constant.
product_p = linear_primitive("spectile_near_sparse", _multiply, _jvp, _transpose, _shapes)


def spamm(
    a: Any,
    b: Any,
    *,
    tau: float | None = None,
    valid_ratio: float | None = None,
    atol: float | None = None,
    rtol_factors: float | None = None,
    backward_rtol_factors: float | None = None,
    block: int = 32,
    backend: Backend = "auto",
) -> NearSparseProduct:
    """Multiply near-sparse arrays, skipping what is negligible, with derivatives of any order.

    It is :func:`spectile.spamm`, differentiable in forward and reverse mode, under `jax.jit` and `jax.vmap`; arrays
    pass through the host.  The gradients are those of the product A B itself, not of its thresholded form, and
    near-sparse products with an error of their own: with the cotangent G of C,
    ``||dA - G Bᵀ||_F <= backward_rtol_factors ||G||_F ||B||_F`` and
    ``||dB - Aᵀ G||_F <= backward_rtol_factors ||A||_F ||G||_F``, for each product of a batch.

    Parameters
    ----------
    a : array, shape (..., m, k)
        float32, float64, complex64 or complex128.
    b : array, shape (..., k, n)
        Of the same dtype.  Leading dimensions broadcast.
    tau, valid_ratio, atol, rtol_factors, block, backend
        As for :func:`spectile.spamm`; one of the first four.  None of them may be traced.
    backward_rtol_factors : float, optional
        Error of each product that a derivative is made of, rounding included; 0 multiplies everything.  By default
        `rtol_factors` where that is given, and 0 otherwise.

    Returns
    -------
    NearSparseProduct
        ``c`` and ``error_bound``, of each product of a batch.

    Raises
    ------
    TypeError, ValueError
        As for :func:`spectile.spamm`; what only values show is raised by JAX's runtime, when they are known, and so is
        a `backward_rtol_factors` below what rounding allows: the inner dimensions of gradients are n and m.

    Notes
    -----
    With ``backward_rtol_factors=0`` NaN in a cotangent propagates as in a dense product.

    Examples
    --------
    >>> import jax, spectile.jax
    >>> i = jax.numpy.arange(256.0)
    >>> a = jax.numpy.exp(-abs(i[:, None] - i) / 10)
    >>> bool(jax.numpy.linalg.norm(spectile.jax.spamm(a, a, rtol_factors=1e-3).c - a @ a) <= 1e-3 * 2560)
    True
    >>> gradient = jax.grad(lambda x: spectile.jax.spamm(x, x, rtol_factors=1e-3).c.trace())(a)
    >>> bool(jax.numpy.linalg.norm(gradient - 2 * a.T) <= 2e-3 * 16 * jax.numpy.linalg.norm(a))
    True
    """
    a, b = dense("a", a), dense("b", b)
    asked = tau, valid_ratio, atol, rtol_factors
    how = choices((a.shape, b.shape), (str(a.dtype), str(b.dtype)), asked, backward_rtol_factors, block, backend)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    return NearSparseProduct(*product_p.bind(a, b, how=how, check=True))
