"""Eigendecompositions of arrays of JAX, with derivatives of any order."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import JAXSparse
from jax.interpreters import ad

from spectile import evd
from spectile.autodiff import spectra
from spectile.autodiff.spectra import GaugeWarning, adjoint, coincident, hermitian, quotients
from spectile.core.device import Backend
from spectile.core.options import flag
from spectile.evd.arguments import definite_of, require_square, subset_of
from spectile.evd.types import not_definite
from spectile.jax.primitives import linear_primitive, tangent_of

#: Outside of `jax.jit` JAX sends operations one by one, each at tens of microseconds.
_hermitian = jax.jit(functools.partial(hermitian, jnp), static_argnums=1)
_coincident, _quotients = (jax.jit(functools.partial(f, jnp)) for f in (coincident, quotients))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def decompose(a: Any, backend: str) -> tuple[Any, Any, Any]:
    """Return w, V and the blocks D of `spectra`, whose value is not needed and given as 0."""
    real = jnp.finfo(a.dtype).dtype
    shapes = jax.ShapeDtypeStruct(a.shape[:-1], real), jax.ShapeDtypeStruct(a.shape, a.dtype)

    def solve(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
        w, v = evd.eigh(np.asarray(matrix), backend=cast(Backend, backend))
        return w, spectra.generic_basis(w, v)

    if isinstance(a, jax.core.Tracer):
        w, v = jax.pure_callback(solve, shapes, a, vmap_method="expand_dims")
    else:
        w, v = map(jnp.asarray, solve(a))  # errors come as they are
    return w, v, jnp.zeros_like(a)


@decompose.defjvp
def _(backend: str, primals: Any, tangents: Any) -> Any:
    (a,), (a_dot,) = primals, tangents
    w, v, blocks = decompose(a, backend)
    m = adjoint(v) @ a_dot @ v
    constant = jax.lax.stop_gradient(w)
    known = not any(isinstance(x, jax.core.Tracer) for x in (w, m))
    if known and spectra.split(np, np.asarray(w), np.asarray(m)).any():
        warnings.warn(spectra.SPLIT, GaugeWarning, stacklevel=1)
    w_dot = m.diagonal(0, -2, -1).real
    k = quotient(constant, blocks, m)
    v_dot = v @ ((k - adjoint(k)) / 2)  # so that the transpose is of the part of a cotangent that counts
    blocks_dot = _coincident(constant) * m
    tangents = gate_p.bind(w_dot, v_dot, blocks_dot, constant, jax.lax.stop_gradient(v))
    return (w, v, blocks), tuple(tangents)


def _quotient(w: Any, blocks: Any, s: Any) -> list[Any]:
    return [_quotients(w) * s]


def _quotient_jvp(primals: Any, tangents: Any) -> Any:
    w, blocks, _ = primals
    _, blocks_dot, s_dot = (tangent_of(x, t) for x, t in zip(primals, tangents, strict=True))
    k = quotient(*primals)
    change = resolved_p.bind(k @ blocks_dot - blocks_dot @ k, jax.lax.stop_gradient(k), w)[0]
    return [k], [quotient(w, blocks, s_dot - change)]


def _quotient_transpose(cotangents: Any, w: Any, blocks: Any, s: Any) -> Any:
    (k_bar,) = cotangents
    # Of the equation's transpose: Z Dᵀ - Dᵀ Z = the cotangent.
    return [None, None, None if type(k_bar) is ad.Zero else -quotient(w, blocks, k_bar.mT).mT]


#: K with K D - D K = S off the blocks and 0 on them, for the eigenvalues w of D, which are constant here: linear in S.
#: It is a primitive because JAX would look into a function with a derivative of its own where it is transposed.
quotient_p = linear_primitive("spectile_quotient", _quotient, _quotient_jvp, _quotient_transpose, lambda w, d, s: [s])


def quotient(w: Any, blocks: Any, s: Any) -> Any:
    """Return what `quotient_p` defines."""
    return quotient_p.bind(w, blocks, s)[0]


def _resolved(change: Any, k: Any, w: Any) -> list[Any]:
    return [_unless(spectra.unresolved(jnp, w, k, spectra.growth(jnp, k, change)), w, change)]


def _resolved_jvp(primals: Any, tangents: Any) -> Any:
    return resolved_p.bind(*primals), resolved_p.bind(tangent_of(primals[0], tangents[0]), *primals[1:])


def _resolved_transpose(cotangents: Any, change: Any, k: Any, w: Any) -> Any:
    (bar,) = cotangents
    if type(bar) is ad.Zero:
        return [None, None, None]
    return [_unless(spectra.unresolved(jnp, w, k, jnp.abs(bar * spectra.differences(w))), w, bar), None, None]


def _unless(found: Any, w: Any, x: Any) -> Any:
    """Return x, or NaN for matrices in which a fault was found, which is raised where values are known."""
    if not isinstance(found, jax.core.Tracer):
        spectra.require_no_fault(np.asarray(found), np.asarray(w))
    faulty = found.any((-2, -1))
    return jnp.where(faulty.reshape(faulty.shape + (1,) * (x.ndim - faulty.ndim)), jnp.nan, x)


#: The identity on K D' - D' K with the tangent D' of the blocks, beside K and w: NaN where rounding ruins it.
resolved_p = linear_primitive("spectile_resolved", _resolved, _resolved_jvp, _resolved_transpose, lambda x, k, w: [x])


def _gate(w_dot: Any, v_dot: Any, blocks_dot: Any, w: Any, v: Any) -> list[Any]:
    return [w_dot, v_dot, blocks_dot]


def _gate_jvp(primals: Any, tangents: Any) -> Any:
    given = [tangent_of(x, t) for x, t in zip(primals[:3], tangents[:3], strict=True)]
    return gate_p.bind(*primals), gate_p.bind(*given, *primals[3:])


def _gate_transpose(cotangents: Any, *operands: Any) -> Any:
    w, v = operands[3:]
    w_bar, v_bar, blocks_bar = (None if type(x) is ad.Zero else x for x in cotangents)
    s = None if v_bar is None else adjoint(v) @ v_bar.conj()
    given: Any = w, w_bar, s, None if blocks_bar is None else blocks_bar.conj()
    xp: Any = jnp if any(isinstance(x, jax.core.Tracer) for x in given) else np
    with np.errstate(all="ignore"):
        found = spectra.faults(xp, *(x if x is None else xp.asarray(x) for x in given))
    out = [None if x is None else _unless(found, w, x) for x in (w_bar, v_bar, blocks_bar)]
    return [*out, None, None]


#: The identity on the tangents of w, V and D, beside w and V: its transpose judges their cotangents.
gate_p = linear_primitive("spectile_gauge", _gate, _gate_jvp, _gate_transpose, _gate)


def eigh(
    a: Any,
    b: Any = None,
    *,
    lower: bool = True,
    type: Literal[1, 2, 3] = 1,
    subset_by_index: tuple[int, int] | None = None,
    subset_by_value: tuple[float, float] | None = None,
    backend: Backend = "auto",
) -> tuple[Any, Any]:
    """Solve the eigenproblem of Hermitian arrays, with derivatives of first and second order.

    It is :func:`spectile.eigh`, differentiable in forward and reverse mode, and works under `jax.jit` and `jax.vmap`.
    It runs on the host: arrays on another device are copied there and back.

    Parameters
    ----------
    a : array, shape (..., n, n)
        float32, float64, complex64 or complex128.  One triangle, and the real part of the diagonal, is read, and the
        gradient is with respect to what is read: it lies in that triangle.
    b : array, shape (..., n, n), optional
        Hermitian and positive definite, for a generalized problem.
    lower, type, subset_by_index, subset_by_value, backend
        As for :func:`spectile.eigh`.  All eigenvectors are found, because the derivative of a part needs them;
        `subset_by_value`, whose result has a shape that depends on values, cannot be used under `jax.jit`.

    Returns
    -------
    w : array, shape (..., m)
        Eigenvalues, ascending.
    v : array, shape (..., n, m)
        Eigenvectors in columns, in the gauge of :func:`spectile.torch.eigh`.

    Raises
    ------
    GaugeError
        As :func:`spectile.torch.eigh`, by `jax.grad` and `jax.vjp` outside of transformations.  Under `jax.jit` and
        `jax.vmap` and in second derivatives, where values are not known when the function is traced, the gradient is
        NaN instead.
    ValueError, TypeError
        As for :func:`spectile.eigh`.

    Warns
    -----
    GaugeWarning
        As :func:`spectile.torch.eigh`, outside of `jax.jit`.

    Examples
    --------
    >>> import jax, spectile.jax
    >>> a = jax.numpy.array([[2.0, 0.0], [0.0, 2.0]])
    >>> jax.grad(lambda a: (spectile.jax.eigh(a)[0] ** 2).sum())(a).round(3).tolist()
    [[4.0, 0.0], [0.0, 4.0]]
    """
    a, factor, subset = floating("a", a), None, None
    lower = flag("lower", lower)
    require_square(a)
    if subset_by_index is not None or subset_by_value is not None:
        subset = subset_of(a.shape, subset_by_index, subset_by_value)
    a = _hermitian(a, lower)
    if b is not None:
        b = floating("b", b)
        definite_of(a.shape, b, type, False)
        factor = _cholesky(_hermitian(b, lower))
        wider = jnp.promote_types(a.dtype, factor.dtype)
        a, factor = (x.astype(wider) for x in jnp.broadcast_arrays(a, factor))
        if type == 1:
            half = _solve_triangular(factor, a)
            a = adjoint(_solve_triangular(factor, adjoint(half)))
        else:
            a = adjoint(factor) @ a @ factor
        a = (a + adjoint(a)) / 2
    w, v, _ = decompose(a, backend)
    if factor is not None:
        v = factor @ v if type == 3 else _solve_triangular(factor, v, adjoint=True)
    known = jax.lax.stop_gradient(w)
    return spectra.cut(w, v, subset, lambda: None if isinstance(known, jax.core.Tracer) else np.asarray(known))


def _cholesky(b: Any) -> Any:
    """Return the factor, NaN where values are traced and a matrix is not positive definite."""
    factor = jnp.linalg.cholesky(b)
    known = jax.lax.stop_gradient(factor)
    if not isinstance(known, jax.core.Tracer) and bool(jnp.isnan(known).any()):
        wrong = np.isnan(np.asarray(known).diagonal(0, -2, -1)).reshape(-1, b.shape[-1])
        raise not_definite(int(wrong.argmax(-1)[wrong.any(-1)].min()) + 1)
    return factor


def dense(name: str, a: Any) -> Any:
    """Return an argument as an array of JAX; raises TypeError where it is sparse, or no array of numbers."""
    try:
        if isinstance(a, JAXSparse):
            raise TypeError
        return jnp.asarray(a)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} is no dense array of JAX: convert it with jax.numpy.asarray, a sparse one with .todense()"
        ) from None


def floating(name: str, a: Any) -> Any:
    """Return an argument as an array of JAX of the least type that such a matrix is solved in."""
    a = dense(name, a)
    if jnp.issubdtype(a.dtype, jnp.inexact) and a.dtype.itemsize >= 4:
        return a
    return a.astype(jnp.float32 if a.dtype.itemsize < 4 else jnp.zeros(0).dtype)


def _solve_triangular(factor: Any, x: Any, adjoint: bool = False) -> Any:
    return jax.lax.linalg.triangular_solve(
        factor, x, left_side=True, lower=True, transpose_a=adjoint, conjugate_a=adjoint
    )


def eigvalsh(
    a: Any,
    b: Any = None,
    *,
    lower: bool = True,
    type: Literal[1, 2, 3] = 1,
    subset_by_index: tuple[int, int] | None = None,
    subset_by_value: tuple[float, float] | None = None,
    backend: Backend = "auto",
) -> Any:
    """Return the eigenvalues of Hermitian arrays, ascending, with derivatives of first and second order.

    Parameters
    ----------
    a, b, lower, type, subset_by_index, subset_by_value, backend
        As for :func:`eigh`.

    Returns
    -------
    w : array, shape (..., m)

    Raises
    ------
    GaugeError, ValueError, TypeError
        As for :func:`eigh`.
    """
    keywords: Any = {"subset_by_index": subset_by_index, "subset_by_value": subset_by_value}
    return eigh(a, b, lower=lower, type=type, backend=backend, **keywords)[0]
