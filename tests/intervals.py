"""Intervals of eigenvalues whose ends are eigenvalues, simple and multiple, for the CPU and a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spectile import evd
from spectile_study.inputs.spectra import with_spectrum

INSIDE, FIRST, LAST = 10, 3, 13


def check_ends(
    copies: int,
    dtype: Any,
    *,
    backend: str,
    given: Callable[[Any], Any] = np.asarray,
    orders: int = 30,
    **keywords: Any,
) -> None:  # fmt: skip
    """Ask for (w[3], w[13]] of `copies` copies of a spectrum, mixed: of each eigenvalue all copies or none."""
    rng = np.random.default_rng([copies, orders])
    values = np.sort(rng.standard_normal(orders))
    values[INSIDE] = 0
    values.sort()
    a = with_spectrum(np.repeat(values, copies), rng, dtype)
    ends = float(values[FIRST]), float(values[LAST])
    w = evd.eigvalsh(given(a), subset_by_value=ends, backend=backend, **keywords)
    assert w.shape == (INSIDE * copies,)
    w, v = evd.eigh(given(a), subset_by_value=ends, backend=backend, **keywords)
    assert w.shape == (INSIDE * copies,) and v.shape == (orders * copies, INSIDE * copies)
    # What one interval leaves out belongs to its neighbours.
    for own, wanted in (((-np.inf, ends[0]), FIRST + 1), ((ends[1], np.inf), orders - 1 - LAST)):
        assert evd.eigvalsh(given(a), subset_by_value=own, backend=backend, **keywords).shape == (wanted * copies,)


def check_batches(n: int, dtype: Any, *, backend: str, given: Callable[[Any], Any] = np.asarray) -> None:
    """Batches whose matrices have equally many eigenvalues in an interval, and others."""
    rng = np.random.default_rng(n)
    values = np.linspace(-1, 1, n)
    batch = np.stack([with_spectrum(values + shift, rng, dtype) for shift in (0.0, 0.1 / n)])
    ends = (-0.5 / n, 0.51)
    w, v = evd.eigh(given(batch), subset_by_value=ends, backend=backend)
    expected = [evd.eigvalsh(a, subset_by_value=ends, backend="cpu") for a in batch]
    assert v.shape == (2, n, len(expected[0]))
    tolerance = 100 * n * float(np.finfo(dtype).eps)
    for own, wanted in zip(w.tolist(), expected, strict=True):
        np.testing.assert_allclose(own, wanted, rtol=0, atol=tolerance)
    other = np.stack([batch[0], batch[0] * np.asarray(0, dtype)])
    try:
        evd.eigh(given(other), subset_by_value=(0.1, 0.9), backend=backend)
    except ValueError as error:
        assert "loop over the matrices" in str(error)
    else:
        raise AssertionError("spectra that are not alike")
