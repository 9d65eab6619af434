"""One case to measure, as the supervisor hands it to its worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: The last resort against a hanging case, beside each method's own limit.
DEFAULT_CALL_LIMIT_S = 900.0


@dataclass(frozen=True)
class Job:
    """One case to measure, with everything that its worker needs; travels as JSON.

    ``receipts`` holds the sha256 of each input that a rule of the workflow made, by name; ``study`` is the folder that
    holds ``config``, the working directory if empty; ``planned`` is the digest of all sources that the case may run, by
    which the workflow knows the record.
    """

    paper: str
    row: Mapping[str, Any]
    machine: str
    device: str
    out: str
    resources: str
    seed: int
    threads: int
    rounds: int
    warmup: int
    budget_s: float
    receipts: Mapping[str, str] = field(default_factory=dict)
    call_limit_s: float = DEFAULT_CALL_LIMIT_S
    study: str = ""
    planned: str = ""
