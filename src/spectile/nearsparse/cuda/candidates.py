"""The products that a call may take on a GPU, and what each is predicted to take."""

from __future__ import annotations

from spectile.core.choice import Candidate
from spectile.core.devices import Device
from spectile.nearsparse.cuda import choose
from spectile.nearsparse.cuda.choose import Problem
from spectile.nearsparse.cuda.dense import Costs
from spectile.nearsparse.types import Request


def candidates(
    problem: Problem, device: Device, request: Request, auto: bool, share: float | None = None
) -> list[Candidate]:
    """Return the kernels, of which the cheapest is taken, and the dense product if `auto` says that it may be.

    The device need not be there.  A search for what the request wants takes its time; the valid ratio is that of the
    request where no `share` is known.
    """
    share = request.valid_ratio if share is None else share
    parts = request.arithmetic.parts
    costs = Costs.of((problem.m, problem.k // parts, problem.n // parts), request, device)
    part, fixed = 1.0 if share is None else costs.part(share), problem.batches * costs.fixed
    told = "if every tile product is valid" if share is None else f"{share:.2%} of the tile products"
    listed = [
        one if one.seconds is None else one._replace(seconds=fixed + part * one.seconds, why=told)
        for one in choose.candidates(problem, device)
    ]
    if not auto:
        return [*listed, Candidate("dense", None, 'taken with method="auto" alone')]
    verdict = costs.verdict(share)
    why = "the valid products are counted first" if verdict == "count" else f"{verdict} is taken"
    return [*listed, Candidate("dense", costs.dense, f"faster from a share of {max(0.0, costs.limit):.2%} on; {why}")]
