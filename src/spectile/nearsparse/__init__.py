"""SpAMM: the product of near-sparse matrices, skipping tile products below a threshold (cuSpAMM)."""

from spectile.nearsparse.api import distribute, norm_map, spamm, tune_tau
from spectile.nearsparse.result import SpammResult

__all__ = ["SpammResult", "distribute", "norm_map", "spamm", "tune_tau"]
