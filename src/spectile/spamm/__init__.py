"""SpAMM: the product of near-sparse matrices, skipping tile products below a threshold (cuSpAMM).

``spamm(a, b, tau=...)`` multiplies only the tile pairs whose Frobenius norms multiply to at least tau.  The package
carries its main function's name, so it can be called itself: ``spectile.spamm(a, b, tau=...)`` is
``spectile.spamm.spamm(a, b, tau=...)``, in whatever order the two were imported.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import distribute, norm_map, spamm, tune_tau
    from .result import SpammResult

__all__ = ["SpammResult", "distribute", "norm_map", "spamm", "tune_tau"]


def __getattr__(name: str) -> Any:
    if name == "SpammResult":
        from .result import SpammResult

        return SpammResult
    if name in __all__:
        from . import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> SpammResult:
        from .api import spamm

        return spamm(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
