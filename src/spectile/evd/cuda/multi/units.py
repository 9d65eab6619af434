"""The CUDA units that several devices need beside those of one."""

from __future__ import annotations

from dataclasses import replace

from spectile.evd.cuda.units import CHASING, MATRIX

EXCHANGE = {name: replace(unit, sources=("multi/exchange.cu",)) for name, unit in MATRIX.items()}
CHASING_BY_TURNS = {key: replace(unit, defines={**unit.defines, "TURNS": "1"}) for key, unit in CHASING.items()}
UNITS = (*EXCHANGE.values(), *CHASING_BY_TURNS.values())
