"""Products of sparse arrays of JAX on fixed patterns, with derivatives of any order with respect to stored entries."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import BCSR
from jax.interpreters import ad

from spectile.autodiff.contraction import Wanted
from spectile.autodiff.patterns import Pair, pair_of, pattern
from spectile.jax.primitives import linear_primitive


def _contract(x: Any, y: Any, *, wanted: Wanted, pair: Pair) -> list[Any]:
    """Return one of the three products of `contraction`, for entries that have the same leading dimensions."""
    shape = (*x.shape[:-1], pair.length(wanted))

    def compute(x: Any, y: Any) -> np.ndarray:
        # JAX gives an operand that it does not map a leading dimension of 1.
        x, y = (np.broadcast_to(z, (*np.broadcast_shapes(x.shape[:-1], y.shape[:-1]), z.shape[-1])) for z in (x, y))
        out = np.empty((*x.shape[:-1], shape[-1]), x.dtype)
        for place in np.ndindex(x.shape[:-1]):
            out[place] = pair.contract(wanted, np.ascontiguousarray(x[place]), np.ascontiguousarray(y[place]))
        return out

    return [jax.pure_callback(compute, jax.ShapeDtypeStruct(shape, x.dtype), x, y, vmap_method="expand_dims")]


def _jvp(primals: Any, tangents: Any, **of: Any) -> Any:
    (x, y), (x_dot, y_dot) = primals, tangents
    parts = [contract_p.bind(x_dot, y, **of)[0]] if type(x_dot) is not ad.Zero else []
    parts += [contract_p.bind(x, y_dot, **of)[0]] if type(y_dot) is not ad.Zero else []
    value = contract_p.bind(x, y, **of)
    return value, [sum(parts[1:], parts[0]) if parts else jnp.zeros_like(value[0])]


def _transpose(cotangents: Any, x: Any, y: Any, *, wanted: Wanted, pair: Pair) -> Any:
    """Return the cotangent of the factor that is linear: the form's derivative for the two others.

    JAX transposes without conjugates, and so does the form.
    """
    (bar,) = cotangents
    linear = [ad.is_undefined_primal(z) for z in (x, y)]
    if type(bar) is ad.Zero:
        return [None, None]
    names = sorted(set("abc") - {wanted})
    own = names[0] if linear[0] else names[1]
    given = {wanted: bar, names[1] if linear[0] else names[0]: y if linear[0] else x}
    first, second = (given[name] for name in sorted(given))
    found = contract_p.bind(first, second, wanted=own, pair=pair)[0]
    return [found, None] if linear[0] else [None, found]


def _shapes(x: Any, y: Any, *, wanted: Wanted, pair: Pair) -> Any:
    return [x.update(shape=(*x.shape[:-1], pair.length(wanted)))]


#: One of the three products of `contraction`, linear in each of two operands.
contract_p = linear_primitive("spectile_contract", _contract, _jvp, _transpose, _shapes)


class SymbolicProduct:
    """The pattern of a product of sparse arrays; made by :func:`symbolic`.

    Attributes
    ----------
    shape : tuple of int
    indptr, indices : array
        Row pointers and columns of the product.
    """

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.shape = tuple(int(n) for n in pair.product.shape)
        self.indptr, self.indices = jnp.asarray(pair.patterns.c_rows), jnp.asarray(pair.patterns.c_columns)

    def numeric(self, a: Any, b: Any) -> Any:
        """Return the stored entries of the product for those of A and B, differentiable, under `jit` and `vmap`.

        Parameters
        ----------
        a, b : array, shape (nnz,)
            Of one type: float32, float64, complex64 or complex128; float16 and bfloat16 become float32.

        Raises
        ------
        TypeError, ValueError
            If their type or length is another.
        """
        a, b = (jnp.asarray(x) for x in (a, b))
        a, b = (x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x for x in (a, b))
        self._pair.require_entries((str(a.dtype), str(b.dtype)), (a.shape, b.shape))
        return contract_p.bind(a, b, wanted="c", pair=self._pair)[0]


def symbolic(A: BCSR, B: BCSR) -> SymbolicProduct:
    """Analyse the patterns of two sparse arrays once, for products of other entries and their derivatives.

    Parameters
    ----------
    A, B : jax.experimental.sparse.BCSR
        As for :func:`spgemm`; their values are not used, and their patterns are known, not traced.

    Returns
    -------
    SymbolicProduct

    Raises
    ------
    TypeError, ValueError
        As for :func:`spgemm`.
    """
    return SymbolicProduct(pair_of(_pattern("A", A), _pattern("B", B)))


def spgemm(A: BCSR, B: BCSR) -> BCSR:
    """Multiply two sparse arrays, with derivatives of any order with respect to their stored entries.

    It is :func:`spectile.spgemm` on the host, in the precision of the arrays.  The gradients lie on the patterns of A
    and B: entries that are not stored have none.

    Parameters
    ----------
    A : jax.experimental.sparse.BCSR, shape (m, k)
        float32, float64, complex64 or complex128, columns of each row sorted without duplicates; float16 and bfloat16,
        which become float32.
    B : jax.experimental.sparse.BCSR, shape (k, n)
        Of the same dtype.

    Returns
    -------
    jax.experimental.sparse.BCSR, shape (m, n)
        Its pattern is structural, and found once for the last 16 pairs of patterns.

    Raises
    ------
    TypeError
        If a factor is no BCSR array, or the types differ.
    ValueError
        If the shapes do not fit, columns repeat or are not sorted, or a pattern is traced.

    Notes
    -----
    A derivative takes one thread and as many multiplications as the product: it is a product under the mask of the
    pattern.  Under `jax.jit` and `jax.vmap` take the stored entries apart: ``symbolic(A, B).numeric(a, b)``.

    Examples
    --------
    >>> import jax, spectile.jax
    >>> from jax.experimental.sparse import BCSR
    >>> a = BCSR.fromdense(jax.numpy.array([[1.0, 2.0], [0.0, 3.0]]))
    >>> product = spectile.jax.symbolic(a, a)
    >>> jax.grad(lambda x: product.numeric(x, x).sum())(a.data).tolist()
    [4.0, 4.0, 8.0]
    """
    product = symbolic(A, B)
    values = product.numeric(A.data, B.data)
    return BCSR((values, product.indices, product.indptr), shape=product.shape)


def _pattern(name: str, array: Any) -> Any:
    if not isinstance(array, BCSR):
        raise TypeError(f"{name} is no BCSR array of JAX: convert it with jax.experimental.sparse.BCSR.from_bcoo")
    if array.n_batch or array.n_dense or len(array.shape) != 2:
        raise ValueError(f"{name} has batch or dense dimensions: multiply its matrices one by one")
    if isinstance(array.indices, jax.core.Tracer) or isinstance(array.indptr, jax.core.Tracer):
        raise ValueError(f"the pattern of {name} is traced: call symbolic outside, and numeric within")
    return pattern(name, array.indptr, array.indices, array.shape, "sort the indices of its BCOO")
