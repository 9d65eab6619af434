"""What the cases compare results with: float64 products over the valid set, on sampled tile rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spectile_study.cases.spamm import reference
from spectile_study.cases.spamm.thresholds import BLOCK

# Largest relative Frobenius error allowed against the float64 product over the valid set.
ERROR_LIMIT = {"fp16": 1e-5, "fp16c16": 2e-3, "fp32": 1e-5, "tf32x3": 1e-5, "fp64": 1e-13}


def sampled_rows(n: int, seed: int) -> list[int]:
    """Return the tile rows of C that a check recomputes: the first, the last, the middle and one at random."""
    last = -(-n // BLOCK) - 1
    return sorted({0, last // 2, int(np.random.default_rng(seed).integers(0, last + 1)), last})


def product_over_valid_set(a: Any, b: Any, tau: float, tile_rows: Sequence[int]) -> tuple[Any, int]:
    """Return these tile rows of SpAMM(A, B, tau) in float64, stacked, and how many tile products they hold."""
    norms_a, norms_b = reference.norm_map(a, BLOCK), reference.norm_map(b, BLOCK)
    strips, count = [], 0
    for i in tile_rows:
        rows = a[i * BLOCK : (i + 1) * BLOCK].astype(np.float64)
        strip = np.zeros((rows.shape[0], b.shape[1]))
        for k in range(norms_a.shape[1]):
            valid = ~(norms_a[i, k] * norms_b[k] < tau)
            if valid.any():
                count += int(valid.sum())
                columns = np.flatnonzero(np.repeat(valid, BLOCK)[: b.shape[1]])
                inner = slice(k * BLOCK, (k + 1) * BLOCK)
                strip[:, columns] += rows[:, inner] @ b[inner, columns].astype(np.float64)
        strips.append(strip)
    return np.concatenate(strips), count


def strips(c: Any, tile_rows: Sequence[int]) -> Any:
    """Return these tile rows of C, stacked, in float64."""
    return np.concatenate([c[i * BLOCK : (i + 1) * BLOCK] for i in tile_rows]).astype(np.float64)


def relative_error(computed: Any, expected: Any) -> float:
    """Return the Frobenius error relative to the expected matrix (0 where both are zero)."""
    error, norm = float(np.linalg.norm(computed - expected)), float(np.linalg.norm(expected))
    return error / norm if norm else error
