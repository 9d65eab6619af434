"""The CUDA units that several devices need beside those of one."""

from __future__ import annotations

from dataclasses import replace

from spectile.evd.cuda.units import MATRIX

EXCHANGE = {name: replace(unit, sources=("multi/exchange.cu",)) for name, unit in MATRIX.items()}
UNITS = tuple(EXCHANGE.values())
