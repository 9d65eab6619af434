"""The device module on a machine without a GPU: it answers, and says why in one sentence."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from spectile.gpu import device


def test_importing_needs_no_cupy() -> None:
    code = "import sys, spectile.gpu.device; sys.exit('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_reason_and_error_agree() -> None:
    reason = device.unavailable_reason()
    assert device.available() == (reason is None)
    if reason is None:
        device.require_device()
    else:
        with pytest.raises(RuntimeError, match='backend="cpu"'):
            device.require_device()


def test_host_arrays_are_not_on_the_device() -> None:
    assert not device.on_device(np.zeros(3))
    assert not device.on_device([1.0])
