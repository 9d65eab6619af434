"""Everyday draws on a GPU: a checked row of each system beside every rival that is there."""

import numpy as np
import pytest

from spectile_study.bench.timing import Plan
from spectile_study.everyday import kpm, measure
from spectile_study.everyday.measure import Limits
from spectile_study.everyday.problem import RATES, Place

cupy = pytest.importorskip("cupy")

DEVICE = Place("cuda", 2**33, RATES["cuda"])
ONE_VECTOR = {"vectors": 1, "moments": 65}
DRAWS = [
    ("spamm", {"m": 300, "k": 500, "n": 700, "kind": "exponential", "dimensions": 2, "decay": 2.0, "rtol": 1e-2}),
    ("spamm", {"m": 512, "k": 512, "n": 512, "kind": "density matrix", "dimensions": 1, "decay": 1.0, "rtol": 1e-2}),
    ("tsparse", {"rows": 5000, "entries": 6.0, "kind": "hubs", "hubs": 2, "hub_share": 0.05, "product": "A A"}),
    ("tsparse", {"rows": 3000, "entries": 6.0, "kind": "stencil", "dimensions": 2, "product": "Galerkin"}),
    ("tsparse", {"rows": 3000, "entries": 6.0, "kind": "power law", "exponent": 1.5, "product": "A Aᵀ"}),
    ("evd", {"form": "vectors", "kind": "random", "n": 200, "with_vectors": True}),
    ("evd", {"form": "values", "kind": "clustered", "n": 1200, "with_vectors": False}),
    ("evd", {"form": "part", "kind": "random", "n": 700, "part": "lowest", "wanted": 20, "with_vectors": True}),
    ("evd", {"form": "part", "kind": "random", "n": 300, "part": "by value", "wanted": 20, "with_vectors": True}),
    ("evd", {"form": "generalized", "kind": "graded", "n": 150, "with_vectors": True}),
    ("evd", {"form": "batch", "kind": "random", "n": 30, "count": 40, "with_vectors": True}),
    ("kpm", {"rows": 20000, "entries": 9, "kind": "lattice", "dimensions": 2, "vectors": 10, "moments": 64}),
    ("kpm", {"rows": 9000, "entries": 9, "kind": "Wannier", "dimensions": 1, "orbitals": 4, **ONE_VECTOR}),
    ("kpm", {"rows": 20000, "entries": 9, "kind": "unequal", "exponent": 2.0, "vectors": 33, "moments": 64}),
]  # fmt: skip
DTYPES = {
    "spamm": ("float16", "float32", "float64"),
    "tsparse": ("float32", "float64", "bool"),
    "evd": ("float32", "complex128"),
    "kpm": ("float32", "float64", "complex64", "complex128"),
}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("system", "params"),
    [(system, {**params, "dtype": dtype}) for system, params in DRAWS for dtype in DTYPES[system]],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_a_draw_has_a_checked_row_beside_every_rival(system, params, monkeypatch):
    monkeypatch.setattr(measure.SYSTEMS[system], "draw", lambda strata: dict(params))
    row = measure.measure(system, 0, 7, DEVICE, Limits(60.0), plan=Plan(3, 1, 0.2))
    assert row["status"] == "ok", row["reason"]
    assert row["rival"] and row["ratio"] > 0
    wrong = [part for part in (row["missing"] or "").split("; ") if part and "cuSOLVER" not in part]
    assert not wrong, "a rival fails"
    assert row["device_share"] is None or 0 < row["device_share"] <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", kpm.DTYPES)
@pytest.mark.parametrize(("order", "width"), [("C", 1), ("C", 33), ("C", 64), ("F", 1), ("F", 33)])
def test_scalar_products_of_the_rival_are_those_of_its_columns(order, width, dtype):
    rng = np.random.default_rng(1)
    v, w = (rng.standard_normal((1000, width)).astype(dtype) for _ in range(2))
    if dtype.startswith("complex"):
        v, w = v + 1j * w.astype(dtype), w - 2j * v.astype(dtype)
    found = cupy.zeros((2, width))
    kpm.dots_of(*(cupy.asarray(x.astype(dtype), order=order) for x in (v, w)), found)
    v, w = (x.astype(np.complex128) for x in (v.astype(dtype), w.astype(dtype)))
    wanted = np.stack([(v.conj() * v).sum(axis=0).real, (w.conj() * v).sum(axis=0).real])
    assert np.abs(found.get() - wanted).max() < 1e-9
