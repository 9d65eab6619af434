"""The CUDA units of the eigensolver: what is compiled for which dtype and bandwidth."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from spectile.core.compile import PORTABLE, Unit
from spectile.evd.cuda.choose import (
    BATCHED_ORDER,
    CLUSTER_BLOCKS,
    DIRECT_SIZES,
    LEAF,
    PAIR_ORDER,
    PANEL_KERNELS,
    PANEL_THREADS,
    STAGE_KEYS,
    chase_blocks,
    chase_threads,
    panel_width,
    rotation_threads,
    sturm_threads,
)
from spectile.evd.types import SCALARS, Scalar

#: Those whose blocks form clusters of 16.
CLUSTER_ARCHS = ("sm_90a", "sm_100", "sm_103")


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


def _panel_unit(scalar: Scalar, bandwidth: int, name: str) -> Unit:
    near = name == "cluster_panel_qr"
    own = {"PANEL_THREADS": PANEL_THREADS, "TALL": int(name == "tall_panel_qr"), "CLUSTER": CLUSTER_BLOCKS * near}
    unit = _unit("reduction/panel.cu", {**_widths(scalar, bandwidth), **own})
    return dataclasses.replace(unit, archs=CLUSTER_ARCHS) if near else unit


def _direct_unit(scalar: Scalar, threads: int, rows: int) -> Unit:
    return _unit("reduction/direct.cu", {**_scalar_defines(scalar), "DIRECT_THREADS": threads, "ROWS": rows})


def _rotation_unit(scalar: Scalar, source: str, order: Mapping[str, int]) -> Unit:
    most = rotation_threads(order[scalar.name])
    return _unit(f"small/{source}.cu", {**_scalar_defines(scalar), "MOST_THREADS": most})


def _chasing_unit(scalar: Scalar, bandwidth: int) -> Unit:
    sizes = {"CHASE_THREADS": chase_threads(bandwidth), "CHASE_BLOCKS": chase_blocks(scalar, bandwidth), "TURNS": 0}
    return _unit("chasing/chasing.cu", {**_scalar_defines(scalar), "B": bandwidth, **sizes})


def _tile_unit(scalar: Scalar, bandwidth: int) -> Unit:
    """Tiles for the back-transformation from the reflectors of the chasing, which are of type `scalar`."""
    own = _scalar_defines(scalar)
    return _unit("back/tiles.cu", {**own, "REAL": "double", "REAL_BYTES": 8, "SOURCE": own["REAL"], "B": bandwidth})


def _sweep_unit(is_complex: bool, bandwidth: int, together: bool) -> Unit:
    """Back-transformation of Z, in double precision, a group of sweeps a launch or several `together`."""
    own = {"REAL": "double", "REAL_BYTES": 8, "COMPLEX": int(is_complex), "B": bandwidth}
    return _unit("back/sweeps.cu", {**own, "TOGETHER": int(together)})


ROTATIONS = {name: _rotation_unit(scalar, "rotations", BATCHED_ORDER) for name, scalar in SCALARS.items()}
PAIRS = {name: _rotation_unit(scalar, "pairs", PAIR_ORDER) for name, scalar in SCALARS.items()}
TRIANGULAR = {name: _unit("triangular.cu", _scalar_defines(scalar)) for name, scalar in SCALARS.items()}
GRADIENT = {name: _unit("gradient.cu", _scalar_defines(scalar)) for name, scalar in SCALARS.items()}
REFINE = {name: _unit("refine.cu", _scalar_defines(scalar)) for name, scalar in SCALARS.items()}
BATCH = {name: _unit("small/batch.cu", _scalar_defines(scalar)) for name, scalar in SCALARS.items()}
MATRIX = {name: _unit("matrix.cu", _scalar_defines(scalar)) for name, scalar in SCALARS.items()}
PANEL = {(name, b, kind): _panel_unit(SCALARS[name], b, kind) for name, b in STAGE_KEYS for kind in PANEL_KERNELS}
DIRECT = {(name, *size): _direct_unit(scalar, *size) for name, scalar in SCALARS.items() for size in DIRECT_SIZES}
PRODUCTS = {(name, b): _unit("reduction/products.cu", _widths(SCALARS[name], b)) for name, b in STAGE_KEYS}
CHASING = {(name, b): _chasing_unit(SCALARS[name], b) for name, b in STAGE_KEYS}
SWEEP_TILES = {(name, b): _tile_unit(SCALARS[name], b) for name, b in STAGE_KEYS}
#: By whether Z is complex, bandwidth, and whether groups of sweeps follow one another in a launch.
SWEEPS = {
    (is_complex, b, together): _sweep_unit(is_complex, b, together)
    for is_complex, b in dict.fromkeys((SCALARS[name].is_complex, b) for name, b in STAGE_KEYS)
    for together in (False, True)
}
#: Reflectors come in panels, or each by itself.
BACK_PANELS = {
    (name, b): _unit("back/panels.cu", {**_scalar_defines(SCALARS[name]), "B": b})
    for name, b in (*STAGE_KEYS, *((name, 1) for name in SCALARS))
}
STURM = {
    lanes: _unit("tridiagonal/sturm.cu", {"LANES": lanes, "STURM_THREADS": sturm_threads(lanes)})
    for lanes in (1, 4, 16, 32)
}
#: Divide and conquer: order, deflation and ranks of a merge, its roots, its eigenvectors.
DIVIDE, ROOTS, VECTORS = (_unit(f"tridiagonal/{name}.cu", {}) for name in ("divide", "roots", "vectors"))
LEAVES = _unit("tridiagonal/leaves.cu", {**_scalar_defines(SCALARS["float64"]), "MOST_THREADS": rotation_threads(LEAF)})
INVERSE = _unit("tridiagonal/inverse.cu", {})

UNITS = (
    *SWEEPS.values(),
    *SWEEP_TILES.values(),
    *PANEL.values(),
    *DIRECT.values(),
    *PRODUCTS.values(),
    *CHASING.values(),
    *BACK_PANELS.values(),
    *MATRIX.values(),
    *ROTATIONS.values(),
    *PAIRS.values(),
    *BATCH.values(),
    *GRADIENT.values(),
    *REFINE.values(),
    *TRIANGULAR.values(),
    *STURM.values(),
    DIVIDE,
    ROOTS,
    VECTORS,
    LEAVES,
    INVERSE,
)
