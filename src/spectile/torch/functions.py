"""Functions of Hermitian tensors, with first and second derivatives that need no gap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spectile.autodiff import functions
from spectile.autodiff.functions import Scalar, inside, outside
from spectile.autodiff.spectra import hermitian
from spectile.core.device import Backend
from spectile.core.options import flag
from spectile.evd.arguments import require_square
from spectile.torch.arrays import batched, floating, refuse_two_tangents, require_dense
from spectile.torch.eigen import decompose, register_check

Function = str | Callable[[torch.Tensor], torch.Tensor]


@torch.library.custom_op("spectile::in_domain", mutates_args=())
def in_domain(w: torch.Tensor, name: str, smooth: bool) -> torch.Tensor:
    """Return eigenvalues, 0 where they are 0 to rounding; raise ValueError where the function, or its slope, is not."""
    w = functions.in_domain(torch, name, w)
    functions.require_domain(name, w, smooth)
    return w.clone()


@in_domain.register_fake
def _(w: torch.Tensor, name: str, smooth: bool) -> torch.Tensor:
    return torch.empty_like(w)


in_domain.register_vmap(batched(in_domain, 0))


@torch.library.custom_op("spectile::require_finite", mutates_args=())
def require_finite(w: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return 0, or raise ValueError where a function, or for a matrix of values its slope, is not finite."""
    functions.require_finite(torch, values, w)
    return w.new_zeros(())


register_check(require_finite)


def _scalar(f: Function) -> Scalar:
    if isinstance(f, str):
        return functions.named(torch, f)
    df = torch.func.grad(lambda w: f(w).sum())
    return Scalar(f, df, torch.func.grad(lambda w: df(w).sum()))


class Value(torch.autograd.Function):
    """f(A), for the eigenvalues w and the eigenvectors V of A, which have no derivative of their own here."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: torch.Tensor, w: torch.Tensor, v: torch.Tensor, f: Function) -> torch.Tensor:
        return (v * _scalar(f).f(w)[..., None, :]) @ v.mH

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.save_for_forward(*inputs[:3])
        ctx.f = inputs[3]

    @staticmethod
    def backward(ctx: Any, bar: Any) -> Any:
        a, w, v = ctx.saved_tensors
        return _first(a, w, v, bar, ctx.f), None, None, None


class ValueForward(Value):
    """The same with tangents."""

    @staticmethod
    def jvp(ctx: Any, a_dot: Any, *_: Any) -> Any:
        a, w, v = ctx.saved_tensors
        return _first(a, w, v, a_dot, ctx.f)


class First(torch.autograd.Function):
    """The derivative of f at A in the direction X."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: torch.Tensor, w: torch.Tensor, v: torch.Tensor, x: torch.Tensor, f: Function) -> torch.Tensor:
        slopes = functions.first_differences(torch, _scalar(f), w)
        return outside(v, slopes * inside(v, x)) + require_finite(w, slopes)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.save_for_forward(*inputs[:4])
        ctx.f = inputs[4]

    @staticmethod
    def backward(ctx: Any, bar: Any) -> Any:
        a, w, v, x = ctx.saved_tensors
        return Second.apply(a, w, v, x.mH, bar, ctx.f), None, None, _first(a, w, v, bar, ctx.f), None


class FirstForward(First):
    """The same with tangents."""

    @staticmethod
    def jvp(ctx: Any, a_dot: Any, w_dot: Any, v_dot: Any, x_dot: Any, _: Any) -> Any:
        a, w, v, x = ctx.saved_tensors
        parts = []
        if x_dot is not None:
            parts.append(_first(a, w, v, x_dot, ctx.f))
        if a_dot is not None:
            parts.append(Second.apply(a, w, v, x, a_dot, ctx.f))
        return sum(parts[1:], parts[0])


def _first(a: torch.Tensor, w: torch.Tensor, v: torch.Tensor, x: torch.Tensor, f: Function) -> torch.Tensor:
    if isinstance(f, str):
        with torch.no_grad():
            w = in_domain(w, f, True)
    return (First if torch.compiler.is_compiling() else FirstForward).apply(a, w, v, x, f)


class Second(torch.autograd.Function):
    """The second derivative of f at A in the directions X and Y, of which there is no further one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        a: torch.Tensor, w: torch.Tensor, v: torch.Tensor, x: torch.Tensor, y: torch.Tensor, f: Function
    ) -> torch.Tensor:
        return outside(v, functions.second_derivative(torch, _scalar(f), w, inside(v, x), inside(v, y)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, bar: Any) -> Any:
        raise NotImplementedError(functions.THIRD)


def matrix_function(f: Function, a: torch.Tensor, *, lower: bool = True, backend: Backend = "auto") -> torch.Tensor:
    """Return a function of Hermitian tensors, with derivatives of first and second order.

    They are made of divided differences of f, which need no gap: they are as right where eigenvalues coincide as
    elsewhere, and so is all that is a function of the matrix, such as a trace.

    Parameters
    ----------
    f : {"exp", "log", "sqrt", "sign", "abs"} or callable
        A callable takes a tensor of real eigenvalues, entry by entry, by operations of PyTorch, which differentiates it
        twice, and gives real or complex ones; it is smooth between any two eigenvalues that are close.
    a : tensor, shape (..., n, n)
        float32, float64, complex64 or complex128; one triangle, and the real part of the diagonal, is read.
    lower, backend
        As for :func:`eigh`.

    Returns
    -------
    tensor, shape (..., n, n)

    Raises
    ------
    ValueError
        If the function, or for a derivative its slope, is not defined, or not finite, at an eigenvalue.
    TypeError
        If `f` is neither a name nor a callable, or gives no numbers.
    NotImplementedError
        For a third derivative, or one in forward mode of one in forward mode.

    Notes
    -----
    Source: Higham, Functions of Matrices (2008), sections 3.2 and 3.3.

    Examples
    --------
    >>> import torch, spectile.torch
    >>> a = torch.eye(2, dtype=torch.float64, requires_grad=True)
    >>> spectile.torch.matrix_function(lambda w: w**3, a).trace().backward()
    >>> a.grad.round(decimals=6).tolist()
    [[3.0, 0.0], [0.0, 3.0]]
    """
    require_dense(a=a)
    require_square(a)
    refuse_two_tangents()
    functions.require_function(torch, f)
    a = hermitian(torch, floating(a), flag("lower", lower))
    with torch.no_grad():
        w, v = decompose(a, True, backend)
        if isinstance(f, str):
            w = in_domain(w, f, False)
        evaluate = _scalar(f).f
        values = evaluate(w)
        numbers = isinstance(values, torch.Tensor) and (values.is_floating_point() or values.is_complex())
        functions.require_numbers("f", values, numbers, w)
        w = w + require_finite(w, values)
    value = (Value if torch.compiler.is_compiling() else ValueForward).apply
    if not values.is_complex():
        return value(a, w, v, f)
    return value(a, w, v, lambda w: evaluate(w).real) + 1j * value(a, w, v, lambda w: evaluate(w).imag)


def expm(a: torch.Tensor, *, lower: bool = True, backend: Backend = "auto") -> torch.Tensor:
    """Return the exponential of Hermitian tensors; see :func:`matrix_function`."""
    return matrix_function("exp", a, lower=lower, backend=backend)


def logm(a: torch.Tensor, *, lower: bool = True, backend: Backend = "auto") -> torch.Tensor:
    """Return the logarithm of positive definite tensors; see :func:`matrix_function`."""
    return matrix_function("log", a, lower=lower, backend=backend)


def sqrtm(a: torch.Tensor, *, lower: bool = True, backend: Backend = "auto") -> torch.Tensor:
    """Return the square root of positive semidefinite tensors; see :func:`matrix_function`."""
    return matrix_function("sqrt", a, lower=lower, backend=backend)


def sign(a: torch.Tensor, *, lower: bool = True, backend: Backend = "auto") -> torch.Tensor:
    """Return the sign of Hermitian tensors that are not singular; see :func:`matrix_function`."""
    return matrix_function("sign", a, lower=lower, backend=backend)


def polar(a: torch.Tensor, *, lower: bool = True, backend: Backend = "auto") -> tuple[torch.Tensor, torch.Tensor]:
    """Return the polar factors U and P of Hermitian tensors that are not singular, A = U P.

    See :func:`matrix_function`.
    """
    u, p = (matrix_function(f, a, lower=lower, backend=backend) for f in ("sign", "abs"))
    return u, p
