"""SpAMM: the product of near-sparse matrices, skipping tile products below a threshold (cuSpAMM)."""

from spectile.nearsparse.api import distribute, explain, norm_map, spamm, spamm_plan, spamm_threshold, tune_tau
from spectile.nearsparse.result import SpammResult
from spectile.nearsparse.types import NormMap, Threshold

__all__ = ["NormMap", "SpammResult", "Threshold", "distribute", "explain", "norm_map", "spamm", "spamm_plan"]
__all__ += ["spamm_threshold", "tune_tau"]
