"""SpAMM: the product of near-sparse matrices, skipping tile products below a threshold (cuSpAMM).

X. Liu et al., "Accelerating Sparse Approximate Matrix Multiplication on GPUs", 2021,
https://doi.org/10.48550/arXiv.2103.13042.
"""

from spectile.nearsparse.api import distribute, explain, norm_map, spamm, spamm_plan, spamm_threshold, tune_tau
from spectile.nearsparse.result import SpammResult
from spectile.nearsparse.types import NormMap, Threshold

__all__ = ["NormMap", "SpammResult", "Threshold", "distribute", "explain", "norm_map", "spamm", "spamm_plan"]
__all__ += ["spamm_threshold", "tune_tau"]
