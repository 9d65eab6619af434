"""The products that a call may take on a GPU, and what each is predicted to take."""

from __future__ import annotations

from typing import get_args

from spectile.core.choice import Candidate
from spectile.core.devices import Device
from spectile.nearsparse.cuda.choose import Problem, choose_kernel
from spectile.nearsparse.cuda.dense import Costs
from spectile.nearsparse.cuda.tuning import Kernel


def candidates(problem: Problem, device: Device, share: float | None, auto: bool) -> list[Candidate]:
    """Return the kernels, of which one applies to a problem, and the dense product.

    Parameters
    ----------
    problem : Problem
        Sizes and layout.
    device : Device
        Need not be there.
    share : float or None
        The valid ratio, where it is known.
    auto : bool
        Whether the dense product may be taken.
    """
    costs = Costs.of(problem.m, problem.k, problem.n, problem.precision, device)
    chosen, batch = choose_kernel(problem, device), problem.batches
    seconds = batch * (costs.fixed + costs.whole * (1.0 if share is None else share))
    told = "if every tile product is valid" if share is None else f"{share:.2%} of the tile products"
    listed = [
        Candidate(
            name, seconds if name == chosen else None, told if name == chosen else f"{chosen} is taken for this one"
        )
        for name in get_args(Kernel)
    ]
    if not auto:
        return [*listed, Candidate("dense", None, 'taken with method="auto" alone')]
    verdict = costs.verdict(share)
    why = "the valid products are counted first" if verdict == "count" else f"{verdict} is taken"
    return [*listed, Candidate("dense", costs.dense, f"faster from a share of {max(0.0, costs.limit):.2%} on; {why}")]
