"""Products of near-sparse tensors, with derivatives of any order."""

from __future__ import annotations

from typing import Any

import torch

from spectile.autodiff import near_sparse
from spectile.autodiff.near_sparse import Choices, NearSparseProduct, choices
from spectile.autodiff.spectra import adjoint
from spectile.core.device import Backend
from spectile.torch.arrays import arrays, batched, dtype_name, refuse_two_tangents, require_dense


@torch.library.custom_op("spectile::near_sparse", mutates_args=())
def multiply(
    a: torch.Tensor, b: torch.Tensor, kind: str, value: float, derived: float, block: int, backend: str, check: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the product and the bound of its error; NaN is refused where that is to be checked."""
    # On a GPU rows are contiguous: the product copies nothing there.
    given = (a.contiguous(), b.contiguous()) if a.is_cuda else (a, b)
    with arrays(*given) as (one, two):
        how = Choices(kind, value, derived, block, backend)
        c, bound = near_sparse.multiply(one, two, how, None if check else False)
        return torch.from_dlpack(c).contiguous(), torch.tensor(bound, device=a.device)


@multiply.register_fake
def _(a: torch.Tensor, b: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*batch, a.shape[-2], b.shape[-1])), a.new_empty(batch, dtype=torch.float64)


multiply.register_vmap(batched(multiply, (0, 0)))


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2], output[1])
    ctx.how = inputs[2:-1]


def _backward(ctx: Any, bar: Any, _: Any) -> Any:
    a, b, _ = ctx.saved_tensors
    a_bar = _derived(bar, adjoint(b), ctx.how)[0] if ctx.needs_input_grad[0] else None
    b_bar = _derived(adjoint(a), bar, ctx.how)[0] if ctx.needs_input_grad[1] else None
    return a_bar, b_bar, *(None,) * 6


# For `torch.compile`, which traces through no function with tangents.
multiply.register_autograd(_backward, setup_context=_save)


class Product(torch.autograd.Function):
    """A B and the bound of its error, for operands of the same leading dimensions; the bound counts as constant."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: torch.Tensor, b: torch.Tensor, *how: Any) -> Any:
        return multiply(a, b, *how)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _save(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:2], output[1])

    backward = staticmethod(_backward)

    @staticmethod
    def jvp(ctx: Any, a_dot: Any, b_dot: Any, *_: Any) -> Any:
        a, b, bound = ctx.saved_tensors
        parts = [] if a_dot is None else [_derived(a_dot, b, ctx.how)[0]]
        parts += [] if b_dot is None else [_derived(a, b_dot, ctx.how)[0]]
        return sum(parts[1:], parts[0]), torch.zeros_like(bound)


def _product(a: torch.Tensor, b: torch.Tensor, how: tuple[Any, ...], check: bool) -> Any:
    return (multiply if torch.compiler.is_compiling() else Product.apply)(a, b, *how, check)


def _derived(a: torch.Tensor, b: torch.Tensor, how: tuple[Any, ...]) -> Any:
    """Return a product that a derivative is made of, with the error that is asked of these."""
    return _product(a, b, Choices(*how).of_derivatives, False)


def spamm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    tau: float | None = None,
    valid_ratio: float | None = None,
    atol: float | None = None,
    rtol_factors: float | None = None,
    backward_rtol_factors: float | None = None,
    block: int = 32,
    backend: Backend = "auto",
) -> NearSparseProduct:
    """Multiply near-sparse tensors, skipping what is negligible, with derivatives of any order.

    It is :func:`spectile.spamm`, differentiable in forward and reverse mode, under `torch.func` with its `vmap`.  The
    gradients are those of the product A B itself, not of its thresholded form, and near-sparse products with an error
    of their own: with the cotangent G of C, ``||dA - G Bᴴ||_F <= backward_rtol_factors ||G||_F ||B||_F`` and
    ``||dB - Aᴴ G||_F <= backward_rtol_factors ||A||_F ||G||_F``, for each product of a batch.

    Parameters
    ----------
    a : tensor, shape (..., m, k)
        float32, float64, complex64 or complex128.
    b : tensor, shape (..., k, n)
        Of the same dtype.  Leading dimensions broadcast.
    tau, valid_ratio, atol, rtol_factors, block, backend
        As for :func:`spectile.spamm`; one of the first four.
    backward_rtol_factors : float, optional
        Error of each product that a derivative is made of, rounding included; 0 multiplies everything.  By default
        `rtol_factors` where that is given, and 0 otherwise.

    Returns
    -------
    NearSparseProduct
        ``c`` and ``error_bound`` (float64, of each product of a batch), which on a GPU is read back.

    Raises
    ------
    TypeError, ValueError
        As for :func:`spectile.spamm`; ValueError in the backward pass, too, for a `backward_rtol_factors` below what
        rounding allows: the inner dimensions there are n and m.

    Notes
    -----
    With ``backward_rtol_factors=0`` NaN in a cotangent propagates as in a dense product.

    Examples
    --------
    >>> import torch, spectile.torch
    >>> i = torch.arange(256.0, dtype=torch.float64)
    >>> a = torch.exp(-abs(i[:, None] - i) / 10).requires_grad_()
    >>> product = spectile.torch.spamm(a, a, rtol_factors=1e-6)
    >>> bool((product.c - a @ a).norm() <= product.error_bound)
    True
    >>> product.c.trace().backward()
    >>> bool((a.grad - 2 * a.detach().mT).norm() <= 1e-4 * a.detach().norm())
    True
    """
    require_dense(a=a, b=b)
    asked = tau, valid_ratio, atol, rtol_factors
    how = choices((a.shape, b.shape), (dtype_name(a), dtype_name(b)), asked, backward_rtol_factors, block, backend)
    refuse_two_tangents()
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (x.expand(*batch, *x.shape[-2:]) for x in (a, b))
    c, bound = _product(a, b, how, True)
    return NearSparseProduct(c, bound.detach())
