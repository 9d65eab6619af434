"""Products of sparse tensors on fixed patterns, with derivatives of any order with respect to stored entries."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from spectile import tsparse
from spectile.autodiff.contraction import Patterns, Wanted, contract

#: Patterns whose products are kept.
KEPT = 16


class _Key:
    """Two patterns and the shapes of their matrices, compared by what they hold."""

    def __init__(self, left: Any, right: Any) -> None:
        self.left, self.right = left, right
        parts = [left.shape, right.shape, *(x.tobytes() for m in (left, right) for x in (m.indptr, m.indices))]
        self._parts = tuple(parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self._parts)


@functools.lru_cache(KEPT)
def _patterns(key: _Key) -> tuple[Patterns, Any]:
    product = tsparse.symbolic(key.left, key.right, backend="cpu")
    arrays = [key.left.indptr, key.left.indices, key.right.indptr, key.right.indices, product.indptr, product.indices]
    a, i, b, j, c, k = (np.asarray(x, np.int64) for x in arrays)
    return Patterns(a, i, b, j, c, k, key.right.shape[1]), product


class Contraction(torch.autograd.Function):
    """One of the three products of `contraction`; the derivatives of each are the other two."""

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor, wanted: Wanted, patterns: Patterns, product: Any) -> torch.Tensor:
        operands = [value.detach().contiguous().numpy() for value in (x, y)]
        found = product.numeric(*operands) if wanted == "c" else contract(patterns, wanted, *operands)
        return torch.from_numpy(found)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])
        ctx.rest = inputs[2:]

    @staticmethod
    def backward(ctx: Any, bar: Any) -> Any:
        wanted, patterns, product = ctx.rest
        first, second = sorted(set("abc") - {wanted})
        x, y = ctx.saved_tensors

        def one(name: str, given: dict[str, torch.Tensor]) -> torch.Tensor:
            return Contraction.apply(*(given[key] for key in sorted(given)), name, patterns, product)

        return one(first, {wanted: bar, second: y}), one(second, {wanted: bar, first: x}), None, None, None

    @staticmethod
    def jvp(ctx: Any, x_dot: Any, y_dot: Any, *_: Any) -> Any:
        x, y = ctx.saved_tensors
        parts = [] if x_dot is None else [Contraction.apply(x_dot, y, *ctx.rest)]
        parts += [] if y_dot is None else [Contraction.apply(x, y_dot, *ctx.rest)]
        return sum(parts[1:], parts[0])

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any, y: Any, *rest: Any) -> Any:
        pairs = (
            tuple(value if d is None else value.select(d, i) for value, d in zip((x, y), in_dims[:2], strict=True))
            for i in range(info.batch_size)
        )
        return torch.stack([Contraction.apply(*pair, *rest) for pair in pairs]), 0


def spgemm(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Multiply two sparse tensors, with derivatives of any order with respect to their stored entries.

    It is :func:`spectile.spgemm` in the precision of the tensors.  The gradients lie on the patterns of A and B:
    entries that are not stored have none.

    Parameters
    ----------
    A : torch.sparse_csr tensor, shape (m, k)
        float32 or float64 on the host, columns of each row sorted without duplicates.
    B : torch.sparse_csr tensor, shape (k, n)
        Of the same dtype.

    Returns
    -------
    torch.sparse_csr tensor, shape (m, n)
        Its pattern is structural, and found once for the last 16 pairs of patterns.

    Raises
    ------
    TypeError
        If a factor is no CSR tensor, is complex, or lies on a GPU.
    ValueError
        If the shapes do not fit, or columns repeat or are not sorted.

    Notes
    -----
    A derivative takes one thread and as many multiplications as the product.  `torch.func` takes the stored entries
    apart: ``symbolic(A, B).numeric(a, b)``.

    Examples
    --------
    >>> import torch, spectile.torch
    >>> a = torch.tensor([[1.0, 2.0], [0.0, 3.0]], dtype=torch.float64).to_sparse_csr().requires_grad_()
    >>> spectile.torch.spgemm(a, a).to_dense().sum().backward()
    >>> a.grad.to_dense().tolist()
    [[4.0, 4.0], [0.0, 8.0]]
    """
    product = symbolic(A, B)
    values = product.numeric(A.values(), B.values())
    return torch.sparse_csr_tensor(product.crow_indices, product.col_indices, values, product.shape)


class SymbolicProduct:
    """The pattern of a product of sparse tensors; made by :func:`symbolic`.

    Attributes
    ----------
    shape : tuple of int
    crow_indices, col_indices : tensor
        Row pointers and columns of the product, int64.
    """

    def __init__(self, patterns: Patterns, product: Any) -> None:
        self._patterns, self._product = patterns, product
        self.shape = tuple(product.shape)
        self.crow_indices = torch.from_numpy(patterns.c_rows.copy())
        self.col_indices = torch.from_numpy(patterns.c_columns.copy())

    def numeric(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return the stored entries of the product for those of A and B, differentiable and under `torch.func`.

        Parameters
        ----------
        a, b : tensor, shape (nnz,)
            Both float32 or both float64, on the host.

        Raises
        ------
        TypeError, ValueError
            If their type, place or length is another.
        """
        if a.is_complex() or b.is_complex():
            raise TypeError("the sparse product has no complex numbers yet: multiply real and imaginary parts")
        if a.is_cuda or b.is_cuda:
            raise TypeError("derivatives of sparse products are computed on the host: pass the entries' .cpu()")
        if a.dtype != b.dtype or a.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"the entries are {a.dtype} and {b.dtype}, and both must be float32 or both float64")
        for name, entries, columns in (("a", a, self._patterns.a_columns), ("b", b, self._patterns.b_columns)):
            if tuple(entries.shape) != columns.shape:
                raise ValueError(f"{name} has shape {tuple(entries.shape)}, and the pattern has {len(columns)} entries")
        found: torch.Tensor = Contraction.apply(a, b, "c", self._patterns, self._product)
        return found


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
    for name, tensor in (("A", A), ("B", B)):
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.sparse_csr:
            raise TypeError(f"{name} is no torch.sparse_csr tensor: convert it with {name}.to_sparse_csr()")
        if tensor.is_cuda:
            raise TypeError(f"derivatives of sparse products are computed on the host: pass {name}.cpu()")
        if tensor.dim() != 2:
            raise ValueError(f"{name} is a batch of shape {tuple(tensor.shape)}: multiply its matrices one by one")
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"matrices of shapes {tuple(A.shape)} and {tuple(B.shape)} cannot be multiplied")
    return SymbolicProduct(*_patterns(_Key(_pattern("A", A), _pattern("B", B))))


def _pattern(name: str, tensor: torch.Tensor) -> Any:
    rows, columns = tensor.crow_indices().numpy(), tensor.col_indices().numpy()
    matrix = sp.csr_array((np.ones(len(columns)), columns, rows), shape=tuple(tensor.shape))
    if not matrix.has_canonical_format:
        raise ValueError(f"{name} has rows whose columns repeat or are not sorted: coalesce its COO form first")
    return matrix
