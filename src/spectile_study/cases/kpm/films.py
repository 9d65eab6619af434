"""The studies of response: a magnetized film of the paper's topological insulator, and a wave packet on its surface.

Both samples repeat from site to site of a layer, so that their states are exact: blocks of a few numbers, one for each
wave vector.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from spectile.kpm import conductivity, evolve
from spectile.kpm.operators.topological_insulator import GAMMA_HOP, NUM_ORBITALS, TopologicalInsulator
from spectile_study.bench.case import Context, Method, Problem, Skipped, Value
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.kpm.shared import case_values

#: Exchange field along z in units of t: it opens the gap of the states on both faces, half a quantum of σ_xy each.
EXCHANGE = 0.5
LEVELS = np.linspace(-2.5, 2.5, 201)
TIMES = 24
#: Width of the disorder's uniform potential in units of t.
DISORDER = 4.0
#: Largest distance of σ_xy in the gap from its quantum, in e²/h, and of the packet from its exact state.
PLATEAU, STATE = 0.01, 1e-10


def film_problem(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of a magnetized film: σ_xy and σ_xx over the Fermi energy, beside the exact σ_xy."""
    sample, moments = TopologicalInsulator(row["nx"], row["ny"], row["nz"]), int(row["num_moments"])
    spin = sp.csr_array(1j * GAMMA_HOP[0] @ GAMMA_HOP[1])
    H = sp.csr_array(sample.matrix() + EXCHANGE * sp.kron(sp.eye_array(sample.num_sites), spin))
    across = {"positions": _places(sample), "periods": np.diag([sample.nx, sample.ny]).astype(float)}
    cell = np.eye(H.shape[0], NUM_ORBITALS * sample.nz)

    @functools.cache
    def exact() -> Any:
        return hall_of(H, sample, LEVELS)

    def run(beta: str) -> Any:
        return conductivity(
            H, "x", beta, **across, num_moments=moments, vectors=cell, backend=context.device, progress=False
        )

    def plateau(sigma: Any) -> dict[str, float]:
        return {"error_hall": abs(abs(float(sigma(0.0))) - 1)}

    def positive(sigma: Any) -> dict[str, float]:
        # Kubo and Greenwood's is a square; in the gap nothing but tails of the kernel conducts.
        values = sigma(LEVELS)
        return {"error_gap": float(sigma(0.0) / values.max()), "error_sign": float(max(0.0, -values.min()))}

    methods: list[Method | Skipped] = [
        Method(
            "hall", functools.partial(run, "y"), plateau, {"error_hall": PLATEAU}, once=True,
            values=lambda sigma: {"levels": LEVELS.tolist(), "hall": sigma(LEVELS).tolist(), "exact": exact().tolist()},
        ),
        Method(
            "longitudinal", functools.partial(run, "x"), positive, {"error_gap": 0.05, "error_sign": 1e-9}, once=True,
            values=lambda sigma: {"levels": LEVELS.tolist(), "along": sigma(LEVELS).tolist()},
        ),
    ]  # fmt: skip
    return Problem(methods, inputs={"matrix": digest_array(H.data)}, values=case_values(sample))


def packet_problem(row: Mapping[str, Any], context: Context) -> Problem:
    """Return the problem of a state that begins on one site of the surface: how far it is after a time.

    Without disorder its last state is compared with the exact one; with it its norms are with 1.
    """
    clean = TopologicalInsulator(row["nx"], row["ny"], row["nz"])
    potential = np.random.default_rng(context.seed).uniform(-DISORDER / 2, DISORDER / 2, clean.potential.shape)
    rough = TopologicalInsulator(clean.nx, clean.ny, clean.nz, potential)
    middle = clean.row(clean.nx // 2, clean.ny // 2, 0)
    start = np.zeros(clean.shape[0], complex)
    start[middle] = 1
    # Nothing is faster than one site in 1/t: until then the packet has not met itself around the sample.
    times = np.linspace(0, 0.4 * min(clean.nx, clean.ny), TIMES)
    far = ((_places(clean) - [clean.nx // 2, clean.ny // 2]) ** 2).sum(axis=1)

    def run(sample: TopologicalInsulator) -> Any:
        return evolve(sample, start, times, backend=context.device, progress=False)

    def host(states: Any) -> Any:
        return states if isinstance(states, np.ndarray) else states.get()

    def against_exact(states: Any) -> dict[str, float]:
        return {"error_fro_rel": float(np.linalg.norm(host(states)[-1] - evolved(clean, start, times[-1])))}

    def norms(states: Any) -> dict[str, float]:
        return {"error_fro_rel": float(abs(np.linalg.norm(host(states), axis=1) - 1).max())}

    def values(states: Any) -> dict[str, Value]:
        return {"times": times.tolist(), "spread": np.sqrt(abs(host(states)) ** 2 @ far).tolist()}

    limits = {"error_fro_rel": STATE}
    methods: list[Method | Skipped] = [
        Method("packet", functools.partial(run, clean), against_exact, limits, once=True, values=values),
        Method("packet_disorder", functools.partial(run, rough), norms, limits, once=True, values=values),
    ]
    return Problem(methods, inputs={"potential": digest_array(potential)}, values=case_values(clean))


def _places(sample: TopologicalInsulator) -> Any:
    """Return x and y of each row's site, shape (N, 2)."""
    site = np.arange(sample.shape[0]) // NUM_ORBITALS
    return np.stack([site // (sample.ny * sample.nz), site // sample.nz % sample.ny], axis=1).astype(float)


def blocks_of(H: Any, sample: TopologicalInsulator) -> Iterator[tuple[Any, Any, Any]]:
    """Yield H(k), ∂H/∂k_x and ∂H/∂k_y of each wave vector of a sample that repeats, in a Fourier transform's order."""
    width = NUM_ORBITALS * sample.nz
    columns = np.asarray(sp.csr_array(H)[:, :width].toarray()).reshape(sample.nx, sample.ny, width, width)
    near = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    for p in 2 * np.pi * np.fft.fftfreq(sample.nx):
        for q in 2 * np.pi * np.fft.fftfreq(sample.ny):
            waves = [np.exp(-1j * (i * p + j * q)) * columns[i, j] for i, j in near]
            yield (
                sum(waves), sum(-1j * i * wave for (i, _), wave in zip(near, waves, strict=True)),
                sum(-1j * j * wave for (_, j), wave in zip(near, waves, strict=True)),
            )  # fmt: skip


def hall_of(H: Any, sample: TopologicalInsulator, levels: Any) -> Any:
    """Return σ_xy over Fermi energies in e²/h, at a temperature of zero, from all states."""
    total = np.zeros(len(levels))
    for block, along, across in blocks_of(H, sample):
        energies, states = np.linalg.eigh(block)
        v, w = (states.conj().T @ each @ states for each in (along, across))
        apart = energies[:, None] - energies
        apart[abs(apart) < 1e-9] = np.inf
        curvature = (1j * (v * w.T - v.T * w) / apart**2).real  # of state n by state m, antisymmetric
        total += [curvature[np.ix_(energies < level, energies >= level)].sum() for level in levels]
    return 2 * np.pi * total / (sample.nx * sample.ny)


def evolved(sample: TopologicalInsulator, start: Any, time: float) -> Any:
    """Return exp(−iHt) of a state of a sample without a potential, from all states."""
    width = NUM_ORBITALS * sample.nz
    waves = np.fft.fft2(start.reshape(sample.nx, sample.ny, width), axes=(0, 1)).reshape(-1, width)
    for number, (block, _, _) in enumerate(blocks_of(sample.matrix(), sample)):
        energies, states = np.linalg.eigh(block)
        waves[number] = states @ (np.exp(-1j * energies * time) * (states.conj().T @ waves[number]))
    return np.fft.ifft2(waves.reshape(sample.nx, sample.ny, width), axes=(0, 1)).ravel()
