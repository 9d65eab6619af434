"""Eigendecompositions of tensors, with derivatives of any order."""

from __future__ import annotations

import warnings
from typing import Any, Literal, cast

import torch

from spectile import evd
from spectile.autodiff import spectra
from spectile.autodiff.spectra import GaugeWarning, adjoint, coincident, diagonal, hermitian, quotients
from spectile.core.device import Backend
from spectile.evd.arguments import definite_of, require_square, subset_of
from spectile.torch.arrays import arrays, differentiated, refuse_two_tangents, require_dense, tensor


@torch.library.custom_op("spectile::decompose", mutates_args=())
def decompose(a: torch.Tensor, backend: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all eigenvalues and eigenvectors, those of equal values in a generic basis; reads the lower triangle."""
    with arrays(a) as (matrix,):
        w, v = evd.eigh(matrix, backend=cast(Backend, backend))
        return tensor(w), tensor(spectra.generic_basis(w, v))


@decompose.register_fake
def _(a: torch.Tensor, backend: str) -> tuple[torch.Tensor, torch.Tensor]:
    return a.new_empty(a.shape[:-1], dtype=a.dtype.to_real()), torch.empty_like(a)


@decompose.register_vmap
def _(info: Any, in_dims: Any, a: torch.Tensor, backend: str) -> Any:
    return decompose(a.movedim(in_dims[0], 0), backend), (0, 0)


@torch.library.custom_op("spectile::require_gauge", mutates_args=())
def require_gauge(
    w: torch.Tensor, w_bar: torch.Tensor | None, s: torch.Tensor | None, block_bar: torch.Tensor | None
) -> torch.Tensor:
    """Return 0, or raise GaugeError where the cotangents depend on the gauge."""
    found = spectra.faults(torch, w, w_bar, s, block_bar)
    if found.any():
        spectra.require_no_fault(found.numpy(force=True), w.numpy(force=True))
    return w.new_zeros(())


@torch.library.custom_op("spectile::warn_gauge", mutates_args=())
def warn_gauge(w: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """Return 0, and warn where a perturbation splits a cluster, for a tangent cannot see what is done with it."""
    if spectra.split(torch, w, m).any():
        warnings.warn(spectra.SPLIT, GaugeWarning, stacklevel=2)
    return w.new_zeros(())


@torch.library.custom_op("spectile::require_resolved", mutates_args=())
def require_resolved(w: torch.Tensor, k: torch.Tensor, k_bar: torch.Tensor) -> torch.Tensor:
    """Return 0, or raise GaugeError where rounding of quotients ruins their derivative."""
    found = spectra.unresolved(torch, w, k, k_bar)
    if found.any():
        spectra.require_no_fault(found.numpy(force=True), w.numpy(force=True))
    return w.new_zeros(())


@torch.library.custom_op("spectile::divide_by_gaps", mutates_args=())
def divide_by_gaps(s: torch.Tensor, w: torch.Tensor, w_bar: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is between the products of the backward pass, and whether `require_gauge` is to look at it."""
    from spectile.evd.cuda import gradient

    n = w.shape[-1]
    flat = s.reshape(-1, n, n).contiguous(), w.reshape(-1, n).contiguous()
    cotangents = None if w_bar is None else w_bar.reshape(-1, n).contiguous()
    cluster, rounding, limits = spectra.clusters(torch, flat[1])
    sizes = (
        torch.linalg.vector_norm(flat[0], dim=(-2, -1)),
        torch.linalg.vector_norm(flat[1] if cotangents is None else cotangents, dim=-1),
    )
    given = (*flat, cluster.to(torch.int32), *sizes, rounding, *([] if cotangents is None else [cotangents]))
    with arrays(*given) as (product, values, numbers, *norms):
        inner, fault = gradient.divide_by_gaps(
            product, values, numbers, norms[3] if len(norms) > 3 else None, tuple(norms[:3]), limits
        )
        return tensor(inner).reshape(s.shape), tensor(fault)


def _zero(w: torch.Tensor, *_: Any) -> torch.Tensor:
    return w.new_empty(())


def _batched(check: Any) -> Any:
    def rule(info: Any, in_dims: Any, *inputs: torch.Tensor | None) -> Any:
        moved = (x if x is None or d is None else x.movedim(d, 0) for x, d in zip(inputs, in_dims, strict=True))
        return check(*moved), None

    return rule


for _check in (require_gauge, require_resolved, warn_gauge):
    _check.register_fake(_zero)
    _check.register_vmap(_batched(_check))


class Decompose(torch.autograd.Function):
    """A to w, V and the blocks D, whose value is not needed and given as 0."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: torch.Tensor, backend: str) -> Any:
        w, v = decompose(a, backend)
        return w, v, torch.zeros_like(v)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx: Any, w_bar: Any, v_bar: Any, block_bar: Any) -> Any:
        w, v, blocks = ctx.saved_tensors
        if w_bar is None and v_bar is None and block_bar is None:
            return None, None
        s = None if v_bar is None else adjoint(v) @ v_bar
        if s is not None and block_bar is None and _once(s):
            inner, fault = divide_by_gaps(s, w, w_bar)
            a_bar = v @ (inner @ adjoint(v))
            if not fault.any():
                return a_bar, None
        with torch.no_grad():
            zero = require_gauge(w, w_bar, s, block_bar)
        if s is None and block_bar is None:
            return ((v * w_bar[..., None, :].to(v.dtype)) @ adjoint(v)) + zero, None
        inner = zero
        if w_bar is not None:
            inner = inner + diagonal(torch, w_bar)
        if s is not None:
            inner = inner + _quotient(blocks, (s - adjoint(s)) / 2, w)
        if block_bar is not None:
            inner = inner + coincident(torch, w) * (block_bar + adjoint(block_bar)) / 2
        return v @ inner.to(v.dtype) @ adjoint(v), None


def _once(s: torch.Tensor) -> bool:
    """Return whether nobody differentiates a cotangent on a GPU again, nor maps over it."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or not s.is_cuda:
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(s)


class DecomposeForward(Decompose):
    """The same with tangents, which `torch.compile` does not trace through."""

    @staticmethod
    def jvp(ctx: Any, a_dot: Any, _: Any) -> Any:
        w, v, blocks = ctx.saved_tensors
        m = adjoint(v) @ a_dot @ v
        with torch.no_grad():
            zero = warn_gauge(w, m)
        return (
            m.diagonal(0, -2, -1).real + zero,
            v @ _quotient(blocks, m, w),
            coincident(torch, w) * m,
        )


class Quotient(torch.autograd.Function):
    """K with K D - D K = S off the blocks and 0 on them; w are the eigenvalues of D, and have no derivative here."""

    generate_vmap_rule = True

    @staticmethod
    def forward(blocks: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return quotients(torch, w) * s

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        blocks, _, w = inputs
        ctx.save_for_backward(blocks, output, w)
        ctx.save_for_forward(blocks, output, w)

    @staticmethod
    def backward(ctx: Any, k_bar: Any) -> Any:
        blocks, k, w = ctx.saved_tensors
        y = _quotient(blocks, k_bar, w)
        with torch.no_grad():
            zero = require_resolved(w, k, k_bar)
        return coincident(torch, w) * (y @ adjoint(k) - adjoint(k) @ y), y + zero, None


class QuotientForward(Quotient):
    """The same with tangents."""

    @staticmethod
    def jvp(ctx: Any, blocks_dot: Any, s_dot: Any, _: Any) -> Any:
        blocks, k, w = ctx.saved_tensors
        return _quotient(blocks, s_dot - (k @ blocks_dot - blocks_dot @ k), w)


def _quotient(blocks: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (Quotient if torch.compiler.is_compiling() else QuotientForward).apply(blocks, s, w)


def eigh(
    a: torch.Tensor,
    b: torch.Tensor | None = None,
    *,
    lower: bool = True,
    type: Literal[1, 2, 3] = 1,
    subset_by_index: tuple[int, int] | None = None,
    subset_by_value: tuple[float, float] | None = None,
    backend: Backend = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Solve the eigenproblem of Hermitian tensors, with derivatives of first and second order.

    It is :func:`spectile.eigh`, differentiable in forward and reverse mode, under `torch.func` with its `vmap`, and
    within functions that `torch.compile` compiles (reverse mode, eigenvectors included).

    Parameters
    ----------
    a : tensor, shape (..., n, n)
        float32, float64, complex64 or complex128, on the host or a GPU.  One triangle, and the real part of the
        diagonal, is read, and the gradient is with respect to what is read: it lies in that triangle.
    b : tensor, shape (..., n, n), optional
        Hermitian and positive definite, for a generalized problem.
    lower, type, subset_by_index, subset_by_value, backend
        As for :func:`spectile.eigh`.  A part that no derivative is asked of costs its part; the derivative of a part
        needs all eigenvectors, and costs what all cost.

    Returns
    -------
    w : tensor, shape (..., m)
        Eigenvalues, ascending.
    v : tensor, shape (..., n, m)
        Eigenvectors in columns.  Their gauge is arbitrary, but the same for the same input: complex vectors have a
        phase without meaning, real ones a sign, and of eigenvalues that coincide any orthonormal basis may come.

    Raises
    ------
    GaugeError
        In the backward pass, if the cost depends on the phase of complex vectors, or on what tells eigenvalues apart
        that coincide: those whose gap is below 1.5e-8 of the largest (3e-5 in single precision).  Sums over all
        vectors of a cluster, such as its projector, and symmetric functions of its eigenvalues are differentiated
        exactly.  The second derivative of a function of single eigenvalues that is not their sum, as of
        ``eigvalsh(a).exp().sum()``, is refused where they coincide: take the trace of a matrix function.
    ValueError, TypeError, numpy.linalg.LinAlgError
        As for :func:`spectile.eigh`.

    Warns
    -----
    GaugeWarning
        In forward mode, where the perturbation splits a cluster: a tangent does not see the cost.  Tangents of
        eigenvectors are orthogonal to them, and to their cluster.

    Examples
    --------
    >>> import torch, spectile.torch
    >>> a = torch.tensor([[2.0, 0.0], [0.0, 2.0]], dtype=torch.float64, requires_grad=True)
    >>> w, v = spectile.torch.eigh(a)
    >>> (w**2).sum().backward()
    >>> a.grad.round(decimals=6).tolist()
    [[4.0, 0.0], [0.0, 4.0]]
    """
    w, v = _solve(a, b, lower, type, subset_by_index, subset_by_value, backend, vectors=True)
    return w, v


def eigvalsh(
    a: torch.Tensor,
    b: torch.Tensor | None = None,
    *,
    lower: bool = True,
    type: Literal[1, 2, 3] = 1,
    subset_by_index: tuple[int, int] | None = None,
    subset_by_value: tuple[float, float] | None = None,
    backend: Backend = "auto",
) -> torch.Tensor:
    """Return the eigenvalues of Hermitian tensors, ascending, with derivatives of first and second order.

    Parameters
    ----------
    a, b, lower, type, subset_by_index, subset_by_value, backend
        As for :func:`eigh`.

    Returns
    -------
    w : tensor, shape (..., m)

    Raises
    ------
    GaugeError, ValueError, TypeError, numpy.linalg.LinAlgError
        As for :func:`eigh`.
    """
    return _solve(a, b, lower, type, subset_by_index, subset_by_value, backend, vectors=False)[0]


def _solve(
    a: torch.Tensor, b: Any, lower: bool, kind: Any, by_index: Any, by_value: Any, backend: Any, *, vectors: bool
) -> tuple[Any, Any]:
    require_dense(a=a, **({} if b is None else {"b": b}))
    if not differentiated(*(x for x in (a, b) if x is not None)):
        with arrays(*(x for x in (a, b) if x is not None)) as operands:
            found = evd.eigh(
                *operands, lower=lower, type=kind, subset_by_index=by_index, subset_by_value=by_value,
                eigvals_only=not vectors, backend=backend,
            )  # fmt: skip
            if not vectors:
                return tensor(found), None
            if b is None and by_index is None and by_value is None:
                found = found[0], spectra.generic_basis(*found)
            return tensor(found[0]), tensor(found[1])
    refuse_two_tangents()
    require_square(a)
    if by_index is not None or by_value is not None:
        subset_of(tuple(a.shape), by_index, by_value)
    a = hermitian(torch, a, lower)
    if b is not None:
        definite_of(tuple(a.shape), b, kind, False)
        factor = torch.linalg.cholesky(hermitian(torch, b, lower))
        if kind == 1:
            a = torch.linalg.solve_triangular(factor, a, upper=False)
            a = adjoint(torch.linalg.solve_triangular(factor, adjoint(a), upper=False))
        else:
            a = adjoint(factor) @ a @ factor
        a = (a + adjoint(a)) / 2
    function = Decompose if torch.compiler.is_compiling() else DecomposeForward
    w, v, _ = function.apply(a, backend)
    if b is not None and vectors:
        v = factor @ v if kind == 3 else torch.linalg.solve_triangular(adjoint(factor), v, upper=True)
    if by_index is not None:
        part = slice(by_index[0], by_index[1] + 1)
    elif by_value is not None:
        inside = (w.detach() > by_value[0]) & (w.detach() <= by_value[1])
        first = int((w.detach() <= by_value[0]).sum())
        part = slice(first, first + int(inside.sum()))
    else:
        return w, v
    return w[..., part], v[..., part]
