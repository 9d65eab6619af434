"""The studies of densities: the sample's (Figure 1), beside Kwant's, and on the surface (Figure 2)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spectile.kpm import api, reference
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile_study.bench.case import Context, Method, Problem, Skipped, Value
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.kpm import model, stages
from spectile_study.cases.kpm.processes import kwant_calls
from spectile_study.cases.kpm.shared import case_values, host_matrix, sample_of, scaling


def dos_problem(row: Mapping[str, Any], context: Context, backend: Any) -> Problem:
    """Return the problem of a density of states, from the Hamiltonian to the curve with error bars."""
    sample, moments, vectors = sample_of(row), int(row["num_moments"]), int(row["num_vectors"])

    def check(density: Any) -> dict[str, float]:
        n = sample.shape[0]
        # Exact: the number of states, and the mean energy, which is the mean potential (Γ¹ has no trace).
        spread = float(np.sqrt(density.integrate(lambda energy: energy**2) / n))
        mean = density.integrate(lambda energy: energy) / n - float(sample.potential.mean())
        return {
            "error_states_rel": abs(density.integrate() / n - 1),
            "error_mean_sigma": abs(mean) / (spread / np.sqrt(n * vectors)) / 5,
        }

    def values(density: Any) -> dict[str, Value]:
        low, high = density.bounds
        energies = np.linspace(low, high, 1500)
        near = np.searchsorted(density.energies, energies).clip(0, len(density.energies) - 1)
        return {
            "energies": energies.tolist(),
            "densities": density(energies).tolist(),
            "errors": density.errors[near].tolist(),
        }

    def run() -> Any:
        return api.SpectralDensity(sample, moments, vectors, rng=context.seed, backend=backend)

    size = (sample.shape[0], sample.nnz, vectors)
    method = Method(
        "spectile", run, check, {"error_states_rel": 1e-10, "error_mean_sigma": 1.0},
        flops=moments / 2 * model.step_flops(*size), bytes=moments / 2 * model.step_bytes("stencil", *size),
        values=values
    )  # fmt: skip
    return Problem([method], inputs={"potential": digest_array(sample.potential)}, values=case_values(sample))


def host_dos(row: Mapping[str, Any], context: Context) -> Problem:
    """Compare a density of the stored matrix with Kwant's: the same vectors, bounds and moments, on the CPU."""
    sample, moments, vectors = sample_of(row), int(row["num_moments"]), int(row["num_vectors"])
    matrix, limits = host_matrix(sample.nx, sample.ny, sample.nz), sample.bounds()
    energies = np.linspace(*limits, 201)[10:-10]

    @functools.cache
    def expected() -> Any:
        # The chain of library calls, on the vectors that the density takes.
        start = _vectors_of(context.seed, sample.shape[0], vectors)
        a, b = scaling(sample)
        moment = reference.moments_from_etas(stages.etas_blocked(matrix, start, moments, a, b)).mean(axis=1)
        return a * reference.chebyshev_density(moment * reference.jackson_kernel(moments), a * (energies - b))

    def check(densities: Any) -> dict[str, float]:
        wanted = expected()
        return {"error_fro_rel": float(np.linalg.norm(densities - wanted) / np.linalg.norm(wanted))}

    def run() -> Any:
        return api.SpectralDensity(matrix, moments, vectors, rng=context.seed, bounds=limits, backend="cpu")

    size = (sample.shape[0], sample.nnz, vectors)
    shared = dict[str, Any](
        limits={"error_fro_rel": 1e-9}, flops=moments / 2 * model.step_flops(*size),
        bytes=moments / 2 * model.step_bytes("aug_spmmv", *size)
    )  # fmt: skip
    methods: list[Method | Skipped] = [
        Method("spectile", run, lambda density: check(density(energies)), **shared),
        _kwant(sample, moments, vectors, energies, context, check, shared),
    ]
    return Problem(methods, inputs={"potential": digest_array(sample.potential)}, values=case_values(sample))


def _vectors_of(seed: int, rows: int, count: int) -> Any:
    """Return the start vectors, shape (rows, count), of a density whose `rng` is `seed`."""
    return reference.random_phases(int(np.random.default_rng(seed).integers(2**62)), rows, count)


def _kwant(
    sample: TopologicalInsulator, moments: int, vectors: int, energies: Any, context: Context,
    check: Callable[[Any], dict[str, float]], shared: Mapping[str, Any]
) -> Method | Skipped:  # fmt: skip
    if not kwant_calls.is_named():
        return Skipped("kwant", kwant_calls.ABSENT)

    def run() -> Any:
        matrix = host_matrix(sample.nx, sample.ny, sample.nz)
        start = _vectors_of(context.seed, matrix.shape[0], vectors).T
        return kwant_calls.call(matrix, start, moments, sample.bounds(), energies=energies)

    return Method("kwant", run, check, clock="external", **shared)


#: Sites along x of the map of the local density, and the most of its pixels along each side.
MAP_SITES, MAP_PIXELS = 60, 30


def surface_problem(row: Mapping[str, Any], context: Context, backend: Any) -> Problem:
    """Return the problem of Figure 2: the local density on the surface, and A(k, E) of surface waves.

    The map shows some of the dots, every second site of a large sample: each pixel is four exact densities.
    """
    sample, moments = sample_of(row), int(row["num_moments"])
    limits = (-1.0, 1.0)
    shown = min(sample.nx, MAP_SITES)
    stride = -(-max(shown, sample.ny) // MAP_PIXELS)
    x, y = np.meshgrid(np.arange(0, shown, stride), np.arange(0, sample.ny, stride), indexing="ij")
    sites = np.array([sample.row(int(i), int(j), 0) for i, j in zip(x.ravel(), y.ravel(), strict=True)])
    rows = (sites[:, None] + np.arange(4)).ravel()
    k = 2 * np.pi * np.arange(-(sample.nx // 2), sample.nx // 2 + 1) / sample.nx
    row_numbers = np.arange(sample.shape[0])
    site = row_numbers // 4
    positions = np.stack([site // (sample.ny * sample.nz), site // sample.nz % sample.ny], axis=1)
    surface = (site % sample.nz == 0).astype(float)

    def local() -> Any:
        return api.ldos(sample, rows, moments, bounds=sample.bounds(), backend=backend)

    def momentum() -> Any:
        return api.spectral_function(
            sample, np.stack([k, 0 * k], axis=1), positions, row_numbers % 4, surface, moments,
            bounds=sample.bounds(), backend=backend
        )  # fmt: skip

    def local_values(curves: Any) -> dict[str, Value]:
        at = float(sample.potential.max()) / 2
        image = curves(at).reshape(-1, 4).sum(axis=1)
        return {"map": image.tolist(), "map_energy": at, "map_shape": list(x.shape), "map_stride": stride}

    def momentum_values(curves: Any) -> dict[str, Value]:
        energies = np.linspace(*limits, max(2, min(96, 4096 // len(k))))
        return {
            "image": curves(energies).ravel().tolist(), "wavevectors": k.tolist(), "image_energies": energies.tolist()
        }  # fmt: skip

    def check(expected: float) -> Callable[[Any], dict[str, float]]:
        return lambda curves: {"error_states_rel": float(np.abs(curves.integrate() / expected - 1).max())}

    methods: list[Method | Skipped] = [
        Method("ldos", local, check(1.0), {"error_states_rel": 1e-10}, values=local_values),
        Method("spectral_function", momentum, check(4.0), {"error_states_rel": 1e-10}, values=momentum_values),
    ]
    return Problem(methods, inputs={"potential": digest_array(sample.potential)}, values=case_values(sample))
