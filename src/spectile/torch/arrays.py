"""Tensors of PyTorch as arrays of NumPy or CuPy and back, without a copy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def arrays(*tensors: torch.Tensor) -> Iterator[tuple[Any, ...]]:
    """Give tensors as arrays; on a GPU, CuPy's current device and stream are PyTorch's within."""
    detached = tuple(tensor.detach().resolve_conj().resolve_neg() for tensor in tensors)
    if not detached[0].is_cuda:
        yield tuple(tensor.numpy() for tensor in detached)
        return
    import cupy

    index = detached[0].get_device()
    stream = torch._C._cuda_getCurrentRawStream(index)
    with contextlib.ExitStack() as entered:
        if cupy.cuda.runtime.getDevice() != index or cupy.cuda.get_current_stream().ptr != stream:
            entered.enter_context(cupy.cuda.Device(index))
            entered.enter_context(cupy.cuda.ExternalStream(stream, index))
        yield tuple(cupy.from_dlpack(tensor) for tensor in detached)


def batched(function: Any, out_dims: Any) -> Any:
    """Return the rule by which PyTorch maps over an operation whose tensors may have leading dimensions."""

    def rule(info: Any, in_dims: Any, *inputs: Any) -> Any:
        pairs = zip(inputs, in_dims, strict=True)
        moved = (x.movedim(d, 0) if d is not None else x[None] if isinstance(x, torch.Tensor) else x for x, d in pairs)
        return function(*moved), out_dims

    return rule


def require_dense(**tensors: Any) -> None:
    """Raise TypeError where one of the arguments is no dense tensor."""
    for name, one in tensors.items():
        if not isinstance(one, torch.Tensor) or one.layout != torch.strided:
            raise TypeError(
                f"{name} is no dense tensor of PyTorch: convert it with torch.as_tensor, a sparse one with .to_dense()"
            )


def floating(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the least type that a matrix of this one is solved in."""
    if x.dtype in (torch.float16, torch.bfloat16):
        return x.float()
    if x.dtype == torch.complex32:
        return x.to(torch.complex64)
    return x if x.is_floating_point() or x.is_complex() else x.double()


def dtype_name(x: torch.Tensor) -> str:
    """Return the name that NumPy has for the type of a tensor."""
    return str(x.dtype).removeprefix("torch.")


def differentiated(*tensors: torch.Tensor) -> bool:
    """Return whether a derivative with respect to one of the tensors may be asked for."""
    if torch.compiler.is_compiling():
        return True
    return any(
        (torch.is_grad_enabled() and one.requires_grad)
        or torch._C._functorch.is_functorch_wrapped_tensor(one)
        or torch.autograd.forward_ad.unpack_dual(one).tangent is not None
        for one in tensors
    )


def refuse_two_tangents() -> None:
    """Raise where forward mode is nested in forward mode, in which PyTorch loses a term of the second derivative."""
    if torch.compiler.is_compiling():
        return
    levels = torch._C._functorch.get_interpreter_stack() or ()
    if sum(level.key() == torch._C._functorch.TransformType.Jvp for level in levels) > 1:
        raise NotImplementedError(
            "PyTorch nests no forward mode in forward mode through functions with derivatives of their own: use "
            "torch.func.hessian, or jacrev in place of one jacfwd"
        )
