"""Gradients of the eigendecomposition: ours and PyTorch's own, beside the products that a backward pass needs.

The cost is sum(sin w) + sum(C V²), which no choice of signs changes: every method has one gradient, held against that
of the vendor's eigenpairs in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from spectile_study.bench.case import Clock, Context, Method, Problem, Skipped
from spectile_study.cases.evd.problems import Place

METHODS = ("products", "spectile_backward", "torch_backward", "spectile_total", "torch_total")
NO_TORCH = 'PyTorch is not installed: pip install "spectile[torch]"'
#: Rounding over the smallest gap of so large a random matrix, relative to the gradient.
LIMITS = {"error_fro_rel": 1e-6}


def gradients(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of the study ``gradients`` on the host."""
    return build(row, Place(context.seed), context.threads)


def build(row: Mapping[str, Any], place: Place, threads: int) -> Problem:
    """Return the problem of one row: three products, backward passes by the device's clock, and whole passes."""
    try:
        import torch
    except ImportError:
        return Problem([Skipped(name, NO_TORCH) for name in METHODS])
    import spectile.torch as ours

    torch.set_num_threads(threads)
    n, xp = row["n"], place.xp
    # Symmetric, and so the same by rows as by columns.
    matrix, weights = (place.hermitian(n, place.seed + side).T for side in range(2))
    a, c = torch.from_dlpack(matrix).requires_grad_(), torch.from_dlpack(weights)
    w, v = xp.linalg.eigh(matrix)
    gaps = w - w[:, None]
    xp.fill_diagonal(gaps, xp.inf)
    s = v.T @ (2 * v * weights)
    exact = v @ (xp.diag(xp.cos(w)) + (s - s.T) / (2 * gaps)) @ v.T
    del gaps, s

    def error(found: Any, wanted: Any) -> dict[str, float]:
        return {"error_fro_rel": float(xp.linalg.norm(found - wanted) / xp.linalg.norm(wanted))}

    def check(gradient: Any) -> dict[str, float]:
        found = xp.from_dlpack(gradient)
        return error((found + found.T) / 2, exact)  # ours is of the triangle that is read

    def bars(pair: Any) -> tuple[Any, Any]:
        w, v = (x.detach() for x in pair)
        return w.cos(), 2 * v * c

    def backward(pair: Any, cotangents: Any) -> Any:
        return torch.autograd.grad(pair, a, cotangents, retain_graph=True)[0]

    def whole(solve: Callable[[Any], Any]) -> Any:
        pair = tuple(solve(a))
        return place.wait(torch.autograd.grad(pair, a, bars(pair))[0])

    solvers = {"spectile": functools.partial(ours.eigh, backend=place.backend), "torch": torch.linalg.eigh}
    pairs = {name: tuple(solve(a)) for name, solve in solvers.items()}
    x, v_bar = pairs["spectile"][1].detach(), bars(pairs["spectile"])[1]

    def products() -> Any:
        return x.mT @ v_bar, x @ v_bar, v_bar @ x.mT

    def check_products(made: Any) -> dict[str, float]:
        left, right = xp.from_dlpack(x), xp.from_dlpack(v_bar)
        expected = left.T @ right, left @ right, right @ left.T
        errors = [error(xp.from_dlpack(one), wanted) for one, wanted in zip(made, expected, strict=True)]
        return {"error_fro_rel": max(each["error_fro_rel"] for each in errors)}

    clock: Clock = "events" if place.backend == "cuda" else "wall"
    methods: list[Method | Skipped] = [
        Method("products", products, check_products, {"error_fro_rel": 1e-12}, flops=6.0 * n**3, clock=clock)
    ]
    for name, pair in pairs.items():
        run = functools.partial(backward, pair, bars(pair))
        methods.append(Method(f"{name}_backward", run, check, LIMITS, clock=clock))
    methods += [
        Method(f"{name}_total", functools.partial(whole, solve), check, LIMITS) for name, solve in solvers.items()
    ]
    return Problem(methods)
