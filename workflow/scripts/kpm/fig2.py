"""Figure 2 of KPM: local density of states on the surface, and the spectral function A(k, E)."""

import numpy as np
import pandas

from spectile_study.bench.rows import at
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.kpm import drawn_by, missing


def draw(frame: pandas.DataFrame) -> Drawing:
    rows = drawn_by(frame, "fig2")
    drawing = Drawing("Figure 2: quantum dots on a topological insulator", columns=2, size=(9.0, 3.8))
    local, momentum = drawing.axes[0]
    maps, images = (at(rows, method=name) for name in ("ldos", "spectral_function"))
    if len(maps):
        row = maps.sort_values("v_rows").iloc[-1]
        shape, stride = _map_of(row)
        extent = (0, shape[1] * stride, 0, shape[0] * stride)
        shown = drawing.image(local, row, "v_map", shape, origin="lower", aspect="equal", extent=extent)
        drawing.figure.colorbar(shown, ax=local, label="states per t and site")
        local.set_title(f"local density, z = 0, E = {row['v_map_energy']:.3g} t")
        local.set_xlabel("y")
        local.set_ylabel("x")
    else:
        drawing.empty(local, missing(frame, "fig2", "a local density"))
    if len(images):
        row = images.sort_values("v_rows").iloc[-1]
        k, energies = row["v_wavevectors"], row["v_image_energies"]
        extent = (k[0], k[-1], energies[0], energies[-1])
        shape = len(energies), len(k)
        shown = drawing.image(momentum, row, "v_image", shape, origin="lower", aspect="auto", extent=extent)
        drawing.figure.colorbar(shown, ax=momentum, label="A(k, E), per t")
        momentum.set_title("spectral function of surface waves, k = (k, 0)")
        momentum.set_xlabel("k")
        momentum.set_ylabel("energy E / t")
        drawing.note(
            f"Sample {int(row['p_nx'])} x {int(row['p_ny'])} x {int(row['p_nz'])}, {len(k)} wave vectors, "
            f"{int(row['p_num_moments'])} moments; the map shows a part of its superlattice."
        )
    else:
        drawing.empty(momentum, missing(frame, "fig2", "a spectral function"))
    return drawing


def _map_of(row: pandas.Series) -> tuple[tuple[int, int], int]:
    """Return pixels along x and y, and the sites between two of them; older records hold every site."""
    shape = row.get("v_map_shape")
    if shape is None or np.ndim(shape) == 0:
        return (int(row["p_nx"]), int(row["p_ny"])), 1
    return (int(shape[0]), int(shape[1])), int(row["v_map_stride"])
