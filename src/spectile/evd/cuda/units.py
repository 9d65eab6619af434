"""The CUDA units of the eigensolver: what is compiled for which dtype and bandwidth."""

from __future__ import annotations

from collections.abc import Mapping

from spectile.core.compile import PORTABLE, Unit
from spectile.evd.cuda.choose import (
    PANEL_THREADS,
    ROTATED_ORDER,
    STAGE_KEYS,
    chase_blocks,
    chase_threads,
    panel_width,
    rotation_threads,
    sturm_threads,
)
from spectile.evd.types import SCALARS, Scalar


def _unit(source: str, defines: Mapping[str, object]) -> Unit:
    return Unit(__package__, (source,), archs=PORTABLE, defines={name: str(value) for name, value in defines.items()})


def _scalar_defines(scalar: Scalar) -> dict[str, object]:
    real_bytes = scalar.itemsize // scalar.parts
    return {
        "REAL": "double" if real_bytes == 8 else "float",
        "REAL_BYTES": real_bytes,
        "COMPLEX": int(scalar.is_complex),
    }


def _widths(scalar: Scalar, bandwidth: int) -> dict[str, object]:
    return {**_scalar_defines(scalar), "B": bandwidth, "W": panel_width(scalar, bandwidth)}


def _panel_unit(scalar: Scalar, bandwidth: int, tall: bool) -> Unit:
    own = {"PANEL_THREADS": PANEL_THREADS, "TALL": int(tall)}
    return _unit("reduction/panel.cu", {**_widths(scalar, bandwidth), **own})


def _rotation_unit(scalar: Scalar) -> Unit:
    most = rotation_threads(ROTATED_ORDER[scalar.name])
    return _unit("small/rotations.cu", {**_scalar_defines(scalar), "MOST_THREADS": most})


def _chasing_unit(scalar: Scalar, bandwidth: int) -> Unit:
    sizes = {"CHASE_THREADS": chase_threads(bandwidth), "CHASE_BLOCKS": chase_blocks(scalar, bandwidth)}
    return _unit("chasing/chasing.cu", {**_scalar_defines(scalar), "B": bandwidth, **sizes})


def _sweep_unit(scalar: Scalar, bandwidth: int) -> Unit:
    """Back-transformation by the reflectors of the chasing: these are of type `scalar`, Z is in double precision."""
    own = _scalar_defines(scalar)
    return _unit("back/sweeps.cu", {**own, "REAL": "double", "REAL_BYTES": 8, "SOURCE": own["REAL"], "B": bandwidth})


ROTATIONS = {name: _rotation_unit(scalar) for name, scalar in SCALARS.items()}
TRIANGULAR = {name: _unit("triangular.cu", _scalar_defines(scalar)) for name, scalar in SCALARS.items()}
BATCH = {name: _unit("small/batch.cu", _scalar_defines(scalar)) for name, scalar in SCALARS.items()}
MATRIX = {name: _unit("matrix.cu", _scalar_defines(scalar)) for name, scalar in SCALARS.items()}
PANEL = {(name, b, tall): _panel_unit(SCALARS[name], b, tall) for name, b in STAGE_KEYS for tall in (False, True)}
PRODUCTS = {(name, b): _unit("reduction/products.cu", _widths(SCALARS[name], b)) for name, b in STAGE_KEYS}
CHASING = {(name, b): _chasing_unit(SCALARS[name], b) for name, b in STAGE_KEYS}
SWEEPS = {(name, b): _sweep_unit(SCALARS[name], b) for name, b in STAGE_KEYS}
BACK_PANELS = {(name, b): _unit("back/panels.cu", {**_scalar_defines(SCALARS[name]), "B": b}) for name, b in STAGE_KEYS}
STURM = {
    lanes: _unit("tridiagonal/sturm.cu", {"LANES": lanes, "STURM_THREADS": sturm_threads(lanes)})
    for lanes in (1, 4, 16, 32)
}
DIVIDE = _unit("tridiagonal/divide.cu", {})
#: By the order that a leaf has at most.
LEAVES = {most: _unit("tridiagonal/leaves.cu", {"MOST_LEAF": most}) for most in (32, 64)}
INVERSE = _unit("tridiagonal/inverse.cu", {})

UNITS = (
    *SWEEPS.values(),
    *PANEL.values(),
    *PRODUCTS.values(),
    *CHASING.values(),
    *BACK_PANELS.values(),
    *MATRIX.values(),
    *ROTATIONS.values(),
    *BATCH.values(),
    *TRIANGULAR.values(),
    *STURM.values(),
    DIVIDE,
    *LEAVES.values(),
    INVERSE,
)
