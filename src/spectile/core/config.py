"""What decides where and how fast spectile computes: versions, processor, BLAS, CUDA devices, caches."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
from typing import Any, Literal

from spectile.core.threads import cores
from spectile.core.version import __version__

_LIBRARIES = ("numpy", "scipy", "numba", "threadpoolctl", "cupy-cuda12x", "cupy-cuda13x")


def show_config(mode: Literal["stdout", "dicts"] = "stdout") -> dict[str, Any] | None:
    """Print the backend that ``"auto"`` takes, versions, processor, BLAS, CUDA devices and caches, as JSON.

    The eigensolvers' host arrays go to the device only where it is predicted to be faster: ``rates`` has what that
    rests on, in operations and bytes a second (None for float64 that stays on the host).

    Parameters
    ----------
    mode : {"stdout", "dicts"}
        Print, or return a dictionary, as in `numpy.show_config`.

    Returns
    -------
    dict or None
        With ``mode="dicts"``.

    Raises
    ------
    ValueError
        For another mode.

    Examples
    --------
    >>> import spectile
    >>> spectile.show_config(mode="dicts")["backend"] in ("cpu", "cuda")
    True
    """
    if mode not in ("stdout", "dicts"):
        raise ValueError(f"mode is {mode!r}; choose one of stdout, dicts")
    found = _configuration()
    if mode == "dicts":
        return found
    print(json.dumps(found, indent=1))
    return None


def _configuration() -> dict[str, Any]:
    import numpy  # noqa: F401 - brings its BLAS
    import threadpoolctl

    from spectile.core import device, placement

    refused = device.refusal()
    found = device.describe() if device.unavailable_reason() is None else None
    libraries = {}
    for name in _LIBRARIES:
        try:
            libraries[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    cuda: dict[str, Any] = {"unavailable": refused} if refused else {}
    if found is not None:
        cuda["device"] = dataclasses.asdict(found)
    caches: dict[str, Any] = {"numba": os.environ.get("NUMBA_CACHE_DIR", "beside the sources, or in the home folder")}
    if refused is None:
        from spectile.core.compile import cache_folders

        caches["cuda"] = [str(folder) for folder in cache_folders()]
    return {
        "spectile": __version__,
        "backend": "cpu" if refused else "cuda",
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": cores(),
        "libraries": libraries,
        "blas": [
            {key: info.get(key) for key in ("internal_api", "version", "num_threads")}
            for info in threadpoolctl.threadpool_info()
            if info.get("user_api") == "blas"
        ],
        "cuda": cuda,
        "rates": placement.rates(None if refused else found, cores()),
        "caches": caches,
    }
