"""Steps of a self-consistent field: a solution refined from the vectors of the step before, beside a full one.

The Hamiltonian is of an electron on a grid of points half a bohr apart, kinetic energy by the discrete variable
representation (D. T. Colbert, W. H. Miller, J. Chem. Phys. 96, 1992), in random Gaussian wells.  A step changes the
potential by other wells, up to a share of its depth.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from spectile.evd import eigh, refine
from spectile.evd.types import Options
from spectile_study.bench.case import Context, Method, Problem, Skipped, Value
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.evd.problems import PAIRS, Place, check_pairs

#: A step's change of the potential, in shares of its depth: 10 to the minus of these.
STEPS = (2, 3, 4, 5, 6)
SPACING = 0.5
#: Points for each well, and its width in bohr.
POINTS_A_WELL, WIDTH = 128, 1.0


def sequences(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of one row of the study ``sequences`` on the host."""
    return build(row, Place(context.seed))


def grid(n: int) -> tuple[int, int, int]:
    """Return points along each axis, powers of two as equal as they can be, n in all.

    Raises
    ------
    ValueError
        If n is no power of two.
    """
    bits = n.bit_length() - 1
    if n != 1 << bits:
        raise ValueError(f"a grid of {n} points is not offered: choose a power of two")
    x, y, z = (1 << (bits + side) // 3 for side in range(3))
    return x, y, z


def kinetic(shape: tuple[int, ...]) -> np.ndarray:
    """Return the kinetic energy on a grid, in hartree, shape (n, n)."""
    total = np.zeros((1, 1))
    for points in shape:
        distance = np.arange(points)[:, None] - np.arange(points)
        squares = np.where(distance == 0, 6 / np.pi**2, distance.astype(float) ** 2)
        along = (1 - 2 * (distance % 2)) / (squares * SPACING**2)
        lines, each = np.arange(len(total)), np.arange(points)
        wider = np.zeros((len(total), points) * 2)
        wider[:, each, :, each] += total
        wider[lines, :, lines, :] += along
        total = wider.reshape(len(lines) * points, -1)
    return total


def wells(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return the potential of random wells on a grid, its depth 1, shape (n,)."""
    rng = np.random.default_rng(seed)
    at = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1).reshape(-1, len(shape)) * SPACING
    total = np.zeros(len(at))
    for _ in range(max(1, len(at) // POINTS_A_WELL)):
        centre, depth = rng.uniform(0, SPACING * np.array(shape)), rng.uniform(0.5, 1.0)
        total -= depth * np.exp(-((at - centre) ** 2).sum(axis=1) / (2 * WIDTH**2))
    return total / np.abs(total).max()


def build(row: Mapping[str, Any], place: Place) -> Problem:
    """Return the problem of one row: a full solution by us and by the vendor, and refined ones."""
    n, xp = row["n"], place.xp
    shape = grid(n)
    host = kinetic(shape)
    potential, change = (wells(shape, place.seed + side) for side in range(2))
    h = xp.asarray(host + np.diag(potential))
    x0 = eigh(h, backend=place.backend).eigenvectors

    def stepped(step: int) -> Any:
        return h + xp.diag(xp.asarray(10.0**-step * change))

    def refined(step: int, after: Any) -> Method:
        def values(result: Any) -> dict[str, Value]:
            near = refine.eigh(after, x0, Options(vectors=True), None, place.backend)
            return {"change": 10.0**-step, "refined": near is not None}

        run = place.call(eigh, after, x0=x0)
        check = functools.partial(_check, xp, after)
        return Method(f"refined_{step}", run, check, PAIRS, values=values)

    last = stepped(STEPS[-1])
    check = functools.partial(_check, xp, last)
    methods: list[Method | Skipped] = [
        Method("spectile", place.call(eigh, last), check, PAIRS),
        Method("cupy" if place.backend == "cuda" else "numpy",
               lambda: place.wait(tuple(xp.linalg.eigh(last))), check, PAIRS),
        *(refined(step, stepped(step)) for step in STEPS),
    ]  # fmt: skip
    return Problem(methods, inputs={"kinetic": digest_array(host[:8]), "potential": digest_array(potential, change)})


def _check(xp: Any, a: Any, result: Any) -> dict[str, float]:
    return check_pairs(a, None, *map(xp.asarray, result))
