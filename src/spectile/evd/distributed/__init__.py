"""Eigenproblems of several hosts, on an engine that exists: ScaLAPACK."""

from spectile.evd.distributed.matrix import BlockCyclicMatrix

__all__ = ["BlockCyclicMatrix"]
