"""Tridiagonal and banded problems on the CPU: LAPACK's drivers, as SciPy calls them."""

from __future__ import annotations

from typing import Any


def eigh_tridiagonal(d: Any, e: Any, *, eigvals_only: bool, **keywords: Any) -> Any:
    """`narrow.eigh_tridiagonal` on the CPU."""
    from scipy import linalg

    return linalg.eigh_tridiagonal(d, e, eigvals_only=eigvals_only, **keywords)


def eig_banded(a_band: Any, *, eigvals_only: bool, **keywords: Any) -> Any:
    """`narrow.eig_banded` on the CPU."""
    from scipy import linalg

    return linalg.eig_banded(a_band, eigvals_only=eigvals_only, **keywords)
