"""Eigendecompositions of tensors, with derivatives of any order."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, cast

import numpy as np
import torch

from spectile import evd
from spectile.autodiff import spectra
from spectile.autodiff.spectra import GaugeWarning, adjoint, coincident, diagonal, hermitian, of_triangle, quotients
from spectile.core.device import Backend
from spectile.core.options import flag
from spectile.core.pointers import address_of_tensor as address
from spectile.evd.arguments import definite_of, require_square, subset_of
from spectile.evd.types import not_definite
from spectile.torch.arrays import (
    arrays,
    batched,
    differentiated,
    dtype_name,
    floating,
    refuse_two_tangents,
    require_dense,
)


def _decomposed(a: torch.Tensor, lower: bool, backend: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all eigenvalues and eigenvectors, those of equal values in a generic basis; reads one triangle."""
    with arrays(a) as (matrix,):
        w, v = evd.eigh(matrix, lower=lower, backend=cast(Backend, backend))
        return torch.from_dlpack(w), torch.from_dlpack(spectra.generic_basis(w, v)).contiguous()


#: The same as an operation, for what traces or maps.
decompose = torch.library.custom_op("spectile::decompose", _decomposed, mutates_args=())


@decompose.register_fake
def _(a: torch.Tensor, lower: bool, backend: str) -> tuple[torch.Tensor, torch.Tensor]:
    return a.new_empty(a.shape[:-1], dtype=a.dtype.to_real()), a.new_empty(a.shape)


decompose.register_vmap(batched(decompose, (0, 0)))


@torch.library.custom_op("spectile::require_gauge", mutates_args=())
def require_gauge(
    w: torch.Tensor, w_bar: torch.Tensor | None, s: torch.Tensor | None, block_bar: torch.Tensor | None
) -> torch.Tensor:
    """Return 0, or raise GaugeError where the cotangents depend on the gauge."""
    return _judged(spectra.faults(torch, w, w_bar, s, block_bar), w)


@torch.library.custom_op("spectile::warn_gauge", mutates_args=())
def warn_gauge(w: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """Return 0, and warn where a perturbation splits a cluster, for a tangent cannot see what is done with it."""
    if spectra.split(torch, w, m).any():
        warnings.warn(spectra.SPLIT, GaugeWarning, stacklevel=2)
    return w.new_zeros(())


@torch.library.custom_op("spectile::require_resolved", mutates_args=())
def require_resolved(w: torch.Tensor, k: torch.Tensor, k_bar: torch.Tensor) -> torch.Tensor:
    """Return 0, or raise GaugeError where rounding of quotients ruins their derivative."""
    return _judged(spectra.unresolved(torch, w, k, k_bar), w)


@torch.library.custom_op("spectile::require_definite", mutates_args=())
def require_definite(minor: torch.Tensor) -> torch.Tensor:
    """Return 0, or raise LinAlgError with the order of the first leading minor that is not positive definite."""
    if minor.any():
        raise not_definite(int(minor[minor > 0].min()))
    return minor.new_zeros(())


def _judged(found: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    if found.any():
        spectra.require_no_fault(found.numpy(force=True), w.numpy(force=True))
    return w.new_zeros(())


def register_check(check: Any) -> None:
    """Let an operation that gives 0 stand where PyTorch compiles or maps."""
    check.register_fake(lambda w, *_: w.new_empty(()))
    check.register_vmap(batched(check, None))


for _check in (require_definite, require_gauge, require_resolved, warn_gauge):
    register_check(_check)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output)
    ctx.lower = inputs[1]


def _backward(ctx: Any, w_bar: Any, v_bar: Any, block_bar: Any = None) -> Any:
    w, v, *blocks = ctx.saved_tensors
    if w_bar is None and v_bar is None and block_bar is None:
        return None, None, None
    once = block_bar is None and _once(w_bar, v_bar)
    if once and w.is_cuda:
        a_bar = _gradient_on_device(w, v, w_bar, v_bar, ctx.lower)
        if a_bar is not None:
            return a_bar, None, None
    s = None if v_bar is None else adjoint(v) @ v_bar
    if once and not w.is_cuda:
        a_bar = _gradient_on_host(w, v, w_bar, s, ctx.lower)
        if a_bar is not None:
            return a_bar, None, None
    with torch.no_grad():
        zero = require_gauge(w, w_bar, s, block_bar)
    if s is None and block_bar is None:
        a_bar = (v * w_bar[..., None, :]) @ adjoint(v) + zero
    else:
        inner = zero
        if w_bar is not None:
            inner = inner + diagonal(torch, w_bar)
        if s is not None:
            inner = inner + _quotient(blocks, (s - adjoint(s)) / 2, w)
        if block_bar is not None:
            inner = inner + coincident(torch, w) * (block_bar + adjoint(block_bar)) / 2
        a_bar = v @ inner.to(v.dtype) @ adjoint(v)
    return of_triangle(torch, a_bar, ctx.lower), None, None


# For `torch.compile`, which traces through no function with tangents, and differentiates once.
decompose.register_autograd(_backward, setup_context=_save)


class Decompose(torch.autograd.Function):
    """A to w, V and the blocks D, whose value is not needed and given as 0."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: torch.Tensor, lower: bool, backend: str) -> Any:
        w, v = (_decomposed if _once(a) else decompose)(a, lower, backend)
        return w, v, torch.zeros_like(v)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _save(ctx, inputs, output)
        ctx.save_for_forward(*output)

    backward = staticmethod(_backward)

    @staticmethod
    def jvp(ctx: Any, a_dot: Any, *_: Any) -> Any:
        w, v, blocks = ctx.saved_tensors
        m = adjoint(v) @ hermitian(torch, a_dot, ctx.lower) @ v
        with torch.no_grad():
            zero = warn_gauge(w, m)
        return (m.diagonal(0, -2, -1).real + zero, v @ _quotient([blocks], m, w), coincident(torch, w) * m)


def _once(*tensors: torch.Tensor | None) -> bool:
    """Return whether nobody differentiates tensors again, nor maps over them."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return False
    return all([x is None or _plain(x) for x in tensors])


def _plain(x: torch.Tensor) -> bool:
    keys, kinds = torch._C._dispatch_keys(x), torch._C.DispatchKey
    return (
        (keys.has(kinds.CUDA) or keys.has(kinds.CPU))
        and not keys.has(kinds.ZeroTensor)
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def _gradient_on_device(
    w: torch.Tensor, v: torch.Tensor, w_bar: torch.Tensor | None, v_bar: torch.Tensor | None, lower: bool
) -> torch.Tensor | None:
    """Return a gradient that nobody differentiates, in few launches, or None where the cotangents are at fault.

    The host waits for that as soon as all is on its way, and while the device has two products to make.
    """
    from spectile.evd.cuda import gradient

    if not v.numel():
        return torch.empty_like(v)
    w, v = w.contiguous(), v.contiguous()
    w_bar, v_bar = (x if x is None else x.resolve_conj().resolve_neg().contiguous() for x in (w_bar, v_bar))
    left = v * (2 * cast(torch.Tensor, w_bar))[..., None, :] if v_bar is None else torch.empty_like(v)
    a_bar, n = torch.empty_like(v), w.shape[-1]
    solved = gradient.Solved(dtype_name(v), n, math.prod(w.shape[:-1]), address(w), address(v))
    with torch.cuda.device(w.get_device()):
        well = solved.pull_back(
            *(address(w_bar), address(v_bar), address(left), address(a_bar), spectra.limits(n, dtype_name(w))),
            lower=lower,
            stream=torch._C._cuda_getCurrentRawStream(w.get_device()),
        )
    return a_bar if well else None


def _gradient_on_host(
    w: torch.Tensor, v: torch.Tensor, w_bar: torch.Tensor | None, s: torch.Tensor | None, lower: bool
) -> torch.Tensor | None:
    """Return a gradient that nobody differentiates, in few passes over memory, or None.

    None where the cotangents are at fault, or where it takes another look to say that they are not.
    """
    judged: Any = [None if x is None else x.numpy(force=True) for x in (w, w_bar, s)]
    pairs = spectra.close_pairs(lambda: torch.linalg.vector_norm(s, dim=(-2, -1)).numpy(force=True), *judged)
    if pairs is None:
        return None
    if s is None:
        return _triangle(v * (2 * cast(torch.Tensor, w_bar))[..., None, :], v, lower)
    gaps = spectra.differences(w)
    gaps.diagonal(0, -2, -1).fill_(torch.inf)
    for distance, together in pairs:
        for side in (distance, -distance):
            gaps.diagonal(side, -2, -1).masked_fill_(torch.from_numpy(together), torch.inf)
    inner = (s - adjoint(s)).div_(gaps)
    if w_bar is not None:
        inner.diagonal(0, -2, -1).add_(w_bar, alpha=2)
    return _triangle(v @ inner, v, lower)


def _triangle(x: torch.Tensor, v: torch.Tensor, lower: bool) -> torch.Tensor:
    """Return a triangle of the Hermitian X Vᴴ, with half of the diagonal, by little more than half of the product."""
    n = v.shape[-1]
    out, step = torch.zeros_like(v), max(128, -(-n // 8))
    # PyTorch's tril takes threads for the least of matrices, and a busy host takes milliseconds to give them.
    i = torch.arange(min(step, n))
    other = i[:, None] < i if lower else i[:, None] > i
    for first in range(0, n, step):
        last = min(first + step, n)
        columns = slice(0, last) if lower else slice(first, n)
        out[..., first:last, columns] = x[..., first:last, :] @ adjoint(v[..., columns, :])
        out[..., first:last, first:last].masked_fill_(other[: last - first, : last - first], 0)
    own = out.diagonal(0, -2, -1)
    own.copy_(own.real / 2)
    return out


@torch.library.custom_op("spectile::divide", mutates_args=())
def divide(s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the quotients of S by the gaps of w, 0 where two coincide, for functions that are differentiated once."""
    return quotients(torch, w) * s


def _no_second(ctx: Any, bar: Any) -> Any:
    raise NotImplementedError(
        "second derivatives of eigenvectors are not compiled: differentiate outside of torch.compile"
    )


divide.register_fake(lambda s, w: torch.empty_like(s, memory_format=torch.contiguous_format))
divide.register_vmap(batched(divide, 0))
divide.register_autograd(_no_second)


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
        y = Quotient.apply(blocks, k_bar, w)
        with torch.no_grad():
            zero = require_resolved(w, k, k_bar)
        return coincident(torch, w) * (y @ adjoint(k) - adjoint(k) @ y), y + zero, None

    @staticmethod
    def jvp(ctx: Any, blocks_dot: Any, s_dot: Any, _: Any) -> Any:
        blocks, k, w = ctx.saved_tensors
        change = k @ blocks_dot - blocks_dot @ k
        with torch.no_grad():
            zero = require_resolved(w, k, spectra.growth(torch, k, change))
        return Quotient.apply(blocks, s_dot - change, w) + zero


def _quotient(blocks: list[torch.Tensor], s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return Quotient.apply(*blocks, s, w) if blocks else divide(s.contiguous(), w)


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
    a, b = floating(a), None if b is None else floating(b)
    if not differentiated(*(x for x in (a, b) if x is not None)):
        with arrays(*(x for x in (a, b) if x is not None)) as operands:
            found = evd.eigh(
                *operands, lower=lower, type=kind, subset_by_index=by_index, subset_by_value=by_value,
                eigvals_only=not vectors, backend=backend,
            )  # fmt: skip
            if not vectors:
                return torch.from_dlpack(found), None
            if b is None and by_index is None and by_value is None:
                found = found[0], spectra.generic_basis(*found)
            return torch.from_dlpack(found[0]), torch.from_dlpack(found[1])
    refuse_two_tangents()
    require_square(a)
    lower = flag("lower", lower)
    subset = None
    if by_index is not None or by_value is not None:
        subset = subset_of(tuple(a.shape), by_index, by_value)
    if b is not None:
        definite_of(tuple(a.shape), b, kind, False)
        a, b = (hermitian(torch, x.to(torch.promote_types(a.dtype, b.dtype)), lower) for x in (a, b))
        factor, minor = torch.linalg.cholesky_ex(b)
        with torch.no_grad():
            zero = require_definite(minor)
        factor = factor + zero
        if kind == 1:
            a = torch.linalg.solve_triangular(factor, a, upper=False)
            a = adjoint(torch.linalg.solve_triangular(factor, adjoint(a), upper=False))
        else:
            a = adjoint(factor) @ a @ factor
        lower = True  # both triangles are there
    if torch.compiler.is_compiling():
        w, v = decompose(a, lower, backend)
    else:
        w, v, _ = Decompose.apply(a, lower, backend)
    if b is not None and vectors:
        v = factor @ v if kind == 3 else torch.linalg.solve_triangular(adjoint(factor), v, upper=True)

    def known() -> np.ndarray | None:
        try:
            return np.array(w.detach().tolist(), dtype_name(w)).reshape(w.shape)
        except RuntimeError:
            return None

    return spectra.cut(w, v, subset, known)
