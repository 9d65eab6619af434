"""Operations that are linear in some operands, with derivatives of their own.

They are primitives because JAX looks into a function with a derivative of its own where that is transposed, and there
finds eigenvalues and eigenvectors, which are constant here and whose change the derivative accounts for.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


def linear_primitive(name: str, implementation: Any, jvp: Any, transpose: Any, outputs: Any) -> Primitive:
    """Return a primitive of JAX whose matrices may have leading dimensions.

    The implementation takes the operands, and as keywords what is no array, and returns a list of arrays; the others
    are JAX's rules, of which the last is that of shapes.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    def batch(operands: Any, dims: Any, **constants: Any) -> Any:
        size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
        moved = [
            jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
            for x, d in zip(operands, dims, strict=True)
        ]
        found = primitive.bind(*moved, **constants)
        return found, [0] * len(found)

    primitive.def_impl(implementation)
    primitive.def_abstract_eval(outputs)
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, mlir.lower_fun(implementation, multiple_results=True))
    return primitive


def tangent_of(primal: Any, tangent: Any) -> Any:
    """Return a tangent, as zeros where JAX knows that it is zero."""
    return jnp.zeros(primal.shape, primal.dtype) if type(tangent) is ad.Zero else tangent
