"""Products of sparse tensors on fixed patterns, with derivatives of any order with respect to stored entries."""

from __future__ import annotations

from typing import Any, cast

import torch

from spectile.autodiff.contraction import Wanted
from spectile.autodiff.patterns import PAIRS, Pair, pair_of, pattern
from spectile.torch.arrays import dtype_name, require_dense


def _contract(x: torch.Tensor, y: torch.Tensor, wanted: str, pair: int) -> torch.Tensor:
    """Return one of the three products of `contraction`; the derivatives of each are the other two."""
    operands = (value.detach().resolve_conj().contiguous().numpy() for value in (x, y))
    return torch.from_numpy(PAIRS[pair].contract(cast(Wanted, wanted), *operands))


#: For `torch.compile`; calls of an operator take longer than small products.
contract = torch.library.custom_op("spectile::contract", _contract, mutates_args=())


@contract.register_fake
def _(x: torch.Tensor, y: torch.Tensor, wanted: str, pair: int) -> torch.Tensor:
    return x.new_empty(PAIRS[pair].length(wanted))


def _mapped(call: Any, info: Any, in_dims: Any, x: torch.Tensor, y: torch.Tensor, *rest: Any) -> Any:
    pairs = (
        tuple(value if d is None else value.select(d, i) for value, d in zip((x, y), in_dims[:2], strict=True))
        for i in range(info.batch_size)
    )
    return torch.stack([call(*pair, *rest) for pair in pairs]), 0


contract.register_vmap(lambda *arguments: _mapped(contract, *arguments))


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.rest = inputs[2:]


def _backward(ctx: Any, bar: Any) -> Any:
    wanted, pair = ctx.rest
    first, second = sorted(set("abc") - {wanted})
    x, y = ctx.saved_tensors

    def one(name: str, given: dict[str, torch.Tensor]) -> torch.Tensor:
        return _contracted(*(given[key] for key in sorted(given)), name, pair)

    # PyTorch's gradients of complex numbers are those of the conjugate.
    x_bar, y_bar = one(first, {wanted: bar, second: y.conj()}), one(second, {wanted: bar, first: x.conj()})
    return x_bar, y_bar, None, None


# For `torch.compile`, which traces through no function with tangents.
contract.register_autograd(_backward, setup_context=_save)


class Contraction(torch.autograd.Function):
    """`contract` with derivatives of any order and in both modes."""

    @staticmethod
    def vmap(*arguments: Any) -> Any:
        return _mapped(Contraction.apply, *arguments)

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor, *rest: Any) -> torch.Tensor:
        return _contract(x, y, *rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _save(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:2])
        ctx.pair = PAIRS[inputs[3]]  # lives until the derivative is asked for

    backward = staticmethod(_backward)

    @staticmethod
    def jvp(ctx: Any, x_dot: Any, y_dot: Any, *_: Any) -> Any:
        x, y = ctx.saved_tensors
        parts = [] if x_dot is None else [Contraction.apply(x_dot, y, *ctx.rest)]
        parts += [] if y_dot is None else [Contraction.apply(x, y_dot, *ctx.rest)]
        return sum(parts[1:], parts[0])


def _contracted(*arguments: Any) -> torch.Tensor:
    found: torch.Tensor = (contract if torch.compiler.is_compiling() else Contraction.apply)(*arguments)
    return found


def spgemm(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Multiply two sparse tensors, with derivatives of any order with respect to their stored entries.

    It is :func:`spectile.spgemm` in the precision of the tensors.  The gradients lie on the patterns of A and B:
    entries that are not stored have none.

    Parameters
    ----------
    A : torch.sparse_csr tensor, shape (m, k)
        float32, float64, complex64 or complex128 on the host, columns of each row sorted without duplicates; float16
        and bfloat16, which become float32.
    B : torch.sparse_csr tensor, shape (k, n)
        Of the same dtype.

    Returns
    -------
    torch.sparse_csr tensor, shape (m, n)
        Its pattern is structural, and found once for the last 16 pairs of patterns.

    Raises
    ------
    TypeError
        If a factor is no CSR tensor, or lies on a GPU, or the types differ, or derivatives of a complex
        one are asked for, which PyTorch has for its stored entries alone.
    ValueError
        If the shapes do not fit, or columns repeat or are not sorted.

    Notes
    -----
    A derivative takes one thread and as many multiplications as the product.  `torch.func` and `torch.compile` take the
    stored entries apart: ``symbolic(A, B).numeric(a, b)``, of which `symbolic` is called outside.

    Examples
    --------
    >>> import torch, spectile.torch
    >>> a = torch.tensor([[1.0, 2.0], [0.0, 3.0]], dtype=torch.float64).to_sparse_csr().requires_grad_()
    >>> spectile.torch.spgemm(a, a).to_dense().sum().backward()
    >>> a.grad.to_dense().tolist()
    [[4.0, 4.0], [0.0, 8.0]]
    """
    product = symbolic(A, B)
    # Where this is compiled, PyTorch fails on views of sparse tensors.
    values = product.numeric(A.values().clone(), B.values().clone())
    if values.is_complex() and values.requires_grad:
        raise TypeError(
            "PyTorch differentiates no complex CSR tensor: take the entries apart, symbolic(A, B).numeric(a, b)"
        )
    # The pattern is valid as it is made; where that is left open, PyTorch warns of memory errors.
    parts = product.crow_indices, product.col_indices, values, product.shape
    return torch.sparse_csr_tensor(*parts, check_invariants=False)


class SymbolicProduct:
    """The pattern of a product of sparse tensors; made by :func:`symbolic`.

    Attributes
    ----------
    shape : tuple of int
    crow_indices, col_indices : tensor
        Row pointers and columns of the product, int64.
    """

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.shape = tuple(pair.product.shape)
        self.crow_indices = torch.from_numpy(pair.patterns.c_rows.copy())
        self.col_indices = torch.from_numpy(pair.patterns.c_columns.copy())

    def numeric(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return the stored entries of the product for those of A and B, differentiable and under `torch.func`.

        Parameters
        ----------
        a, b : tensor, shape (nnz,)
            Of one type, float32, float64, complex64 or complex128, on the host; float16 and bfloat16 become float32.

        Raises
        ------
        TypeError, ValueError
            If their type, place or length is another.
        """
        require_dense(a=a, b=b)
        a, b = (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in (a, b))
        if a.is_cuda or b.is_cuda:
            raise TypeError("derivatives of sparse products are computed on the host: pass the entries' .cpu()")
        self._pair.require_entries((dtype_name(a), dtype_name(b)), (a.shape, b.shape))
        return _contracted(a, b, "c", self._pair.number)


def symbolic(A: torch.Tensor, B: torch.Tensor) -> SymbolicProduct:
    """Analyse the patterns of two sparse tensors once, for products of other entries and their derivatives.

    Parameters
    ----------
    A, B : torch.sparse_csr tensor
        As for :func:`spgemm`; their values are not used.

    Returns
    -------
    SymbolicProduct

    Raises
    ------
    TypeError, ValueError
        As for :func:`spgemm`.
    """
    if torch.compiler.is_compiling():
        raise ValueError("the patterns are compiled: call symbolic outside of torch.compile, and numeric within")
    for name, tensor in (("A", A), ("B", B)):
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.sparse_csr:
            raise TypeError(f"{name} is no torch.sparse_csr tensor: convert it with {name}.to_sparse_csr()")
        if tensor.is_cuda:
            raise TypeError(f"derivatives of sparse products are computed on the host: pass {name}.cpu()")
        if tensor.dim() != 2:
            raise ValueError(f"{name} is a batch of shape {tuple(tensor.shape)}: multiply its matrices one by one")
    return SymbolicProduct(pair_of(_pattern("A", A), _pattern("B", B)))


def _pattern(name: str, tensor: torch.Tensor) -> Any:
    return pattern(name, tensor.crow_indices(), tensor.col_indices(), tensor.shape, "coalesce its COO form")
