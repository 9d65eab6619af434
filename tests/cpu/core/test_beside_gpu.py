"""What is no array beside one on a GPU: refused in a sentence before anything of it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spectile import evd, nearsparse
from spectile.core import device
from spectile.nearsparse import NormMap
from tests.random.memory import Place
from tests.random.misuse import MISTAKES


class OnGpu:
    """What says of itself that it lies on a GPU."""

    shape, dtype, ndim, strides, size, itemsize = (4, 4), np.dtype("f8"), 2, (32, 8), 16, 8

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (4, 4), "typestr": "<f8", "data": (1 << 20, False), "version": 3}


#: Calls of two operands, of which either may be the mistake.
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "spamm": lambda a, b: nearsparse.spamm(a, b, tau=0.0),
    "spamm of a sum": lambda a, c: nearsparse.spamm(a, a, tau=0.0, beta=1.0, c=c),
    "spamm into": lambda a, out: nearsparse.spamm(a, a, tau=0.0, out=out),
    "parts": lambda a, b: nearsparse.spamm([a, a], [b, b], tau=0.0, devices=2),
    "threshold": lambda a, b: nearsparse.spamm_threshold(a, b, rtol_factors=0.1),
    "explain": lambda a, b: nearsparse.explain(a, b, tau=0.0),
    "tune_tau": lambda a, b: nearsparse.tune_tau(NormMap(a), NormMap(b), 0.5),
    "eigh": lambda a, b: evd.eigh(a, b),
    "eigh_tridiagonal": lambda d, e: evd.eigh_tridiagonal(d, e),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_array_is_refused_beside_one_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed: install the extra cuda12 or cuda13")
    if device.unavailable_reason() is None:
        pytest.skip("the address is of nothing: with a GPU, python -m tests.random --backend cuda --only misuse")
    # As where a device is: beyond the checks, CuPy finds none.
    monkeypatch.setattr(device, "refusal", lambda: None)
    known = ValueError, TypeError, cupy.cuda.runtime.CUDARuntimeError
    for mistake, make in MISTAKES.items():
        for operands in ((OnGpu(), make(Place())), (make(Place()), OnGpu())):
            with pytest.raises(known) as refused:
                CALLS[name](*operands)
            assert len(str(refused.value).split()) > 2, mistake
