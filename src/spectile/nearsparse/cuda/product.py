"""The product on one GPU: the parameters of its kernel, encoded once, and its launches."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core import device, launch
from spectile.core.compile import Unit, prepare
from spectile.core.pointers import address
from spectile.core.tiling import ceil_div
from spectile.nearsparse.cuda.choose import Choice, Problem, Way, choose
from spectile.nearsparse.cuda.geometry import fill, layout, log2, pitch, record, stride
from spectile.nearsparse.cuda.norms import Norms
from spectile.nearsparse.cuda.tuning import WGMMA, Kernel
from spectile.nearsparse.cuda.units import NORM_UNITS, SEARCH_UNITS, SURVEY_UNITS
from spectile.nearsparse.types import Grain, Request

PRODUCT = layout(
    "a:p b:p c:p out:p norms_a:p norms_b:p tau_device:p tau:d alpha:d beta:d lda:l ldb:l ldc:l ldo:l stride_a:l "
    "stride_b:l stride_c:l stride_o:l stride_norms_a:l stride_norms_b:l m:i n:i k:i norm_k:i log2_block:i tiles_m:i "
    "tiles_n:i cancelled:p parts:p"
)
WGMMA_FIELDS = layout(
    "c:p out:p norms_a:p norms_b:p tau_device:p counter:p cancelled:p tau:d alpha:d beta:d ldc:l ldo:l "
    "stride_c:l stride_o:l stride_norms_a:l stride_norms_b:l m:i n:i k:i norm_k:i log2_block:i tiles_m:i tiles_n:i "
    "batches:i batch_a:i batch_b:i"
)
WGMMA_PRODUCT = np.dtype(
    {
        "names": ["map_a", "map_b", "map_c", "fields"],
        "formats": ["V128", "V128", "V128", WGMMA_FIELDS],
        "offsets": [0, 128, 256, 384],
        "itemsize": ceil_div(384 + WGMMA_FIELDS.itemsize, 64) * 64,
    }
)


def prepared_choice(a: Any, b: Any, out: Any, request: Request, *, counts: bool, way: Way | None = None) -> Choice:
    """Return how a request is computed, and begin to compile side by side the kernels of its call.

    The operands are as :class:`Product` takes them; `counts` says whether the valid products are counted first, and
    `way` may be that of a larger product of which this is a part.
    """
    problem = Problem.of(a, b, out, request.block, request.precision, request.strict, request.beta != 0)
    choice, row = choose(problem, device.describe(), way), request.arithmetic
    # The product first: it takes longest.
    units = [choice.unit, NORM_UNITS[row.dtype]]
    if request.tau is None:
        units.append(SEARCH_UNITS["error" if request.within_error else "ratio", row.norm])
    if counts:
        units.append(SURVEY_UNITS[row.norm])
    # Hashing a unit takes longer than a launch; the units are kept, so that their ids stay theirs.
    key = (device.describe().name, *map(id, units))
    if key not in _PREPARED:
        prepare(*units)
        _PREPARED[key] = units
    return choice


_PREPARED: dict[tuple[Any, ...], list[Unit]] = {}


class Product:
    """C = alpha A B + beta C over the valid tile products, prepared once and launched as often as wanted.

    Parameters
    ----------
    a, b, out : cupy.ndarray
        Shapes ([batch,] m, k), ([batch,] k, n), ([batch,] m, n); a two-dimensional operand is shared by the batch.
        Unit stride along the last axis.
    maps : Norms
        Of `a` and `b`.
    tau : float or cupy.ndarray
        Threshold, or one float64 on the device for each item of the batch.
    precision : str
        A key of ``PRECISIONS``.
    alpha, beta, c : float, float, cupy.ndarray
        `c` is read where `beta` is not 0; it may be `out`.
    strict : bool
        Multiply exactly the valid products.
    way : Way, optional
        As :func:`spectile.nearsparse.cuda.choose.choose` takes it.
    choice : Choice, optional
        Made before, in place of `strict` and `way`.
    scratch : int, optional
        Address of ``choice.scratch_bytes`` bytes, which the parameters may be given later; by default its own, which
        live as long as it does, since a graph that was captured writes to them.
    """

    def __init__(
        self,
        a: Any,
        b: Any,
        out: Any,
        maps: Norms,
        tau: Any,
        *,
        precision: str,
        alpha: float = 1.0,
        beta: float = 0.0,
        c: Any = None,
        strict: bool = False,
        way: Way | None = None,
        choice: Choice | None = None,
        scratch: int | None = None,
    ) -> None:
        import cupy

        problem = Problem.of(a, b, out, maps.block, precision, strict, beta != 0)
        self.choice = choice or choose(problem, device.describe(), way)
        self.maps, self.shape, self.batches = maps, (problem.m, problem.k, problem.n), problem.batches
        own: Any = cupy.empty(self.choice.scratch_bytes, np.uint8) if scratch is None else None
        self._keep = a, b, c, out, tau, own
        fields = self._common(out, tau, alpha, beta, c)
        if self.kernel in WGMMA:
            self.parameters = self._hopper_parameters(a, b, out, fields)
        else:
            strides = {"lda": pitch(a), "ldb": pitch(b), "stride_a": stride(a), "stride_b": stride(b)}
            places = {"a": address(a), "b": address(b), "parts": address(own) if scratch is None else scratch}
            self.parameters = fill(np.zeros((), PRODUCT), fields | strides | places)
        join = self.choice.join
        #: To be repeated, with parameters that may be changed in place.
        self.launches = [self._bind(self.choice.function, self.choice.launch)]
        if join is not None:
            self.launches.append(self._bind("join_parts", join, np.int32(self.choice.way.splits)))

    @property
    def kernel(self) -> Kernel:
        """The kernel that multiplies."""
        return self.choice.kernel

    @property
    def grain(self) -> Grain:
        """Rows, columns and depth, in tiles of the norm map, that are multiplied together when one is valid."""
        return self.choice.grain

    def _bind(self, function: str, shape: launch.Shape, *more: Any) -> launch.BoundLaunch:
        return launch.kernel(self.choice.unit, function).bind(shape, self.parameters, *more)

    def _common(self, out: Any, tau: Any, alpha: float, beta: float, c: Any) -> dict[str, Any]:
        """Return the fields that the kernels share."""
        maps, (m, k, n), tile = self.maps, self.shape, self.choice.tile
        return {
            "c": address(c) if c is not None else 0,
            "out": address(out),
            "norms_a": address(maps.a),
            "norms_b": address(maps.b),
            "tau_device": 0 if isinstance(tau, float) else address(tau),
            "tau": tau if isinstance(tau, float) else 0.0,
            "alpha": alpha,
            "beta": beta,
            "ldc": pitch(c) if c is not None else 0,
            "ldo": pitch(out),
            "stride_c": stride(c) if c is not None else 0,
            "stride_o": stride(out),
            "stride_norms_a": stride(maps.a),
            "stride_norms_b": stride(maps.b),
            "m": m,
            "k": k,
            "n": n,
            "norm_k": maps.k_blocks,
            "log2_block": log2(maps.block),
            "tiles_m": ceil_div(m, tile[0]),
            "tiles_n": ceil_div(n, tile[1]),
        }

    def _hopper_parameters(self, a: Any, b: Any, out: Any, fields: dict[str, Any]) -> Any:
        from spectile.core.tensor_map import encode

        shape = WGMMA[self.kernel]
        parameters = record(WGMMA_PRODUCT)
        boxes = [("map_a", a, shape.box_a, shape.swizzle_a), ("map_b", b, shape.box_b, 128)]
        if self.choice.copies:
            boxes.append(("map_c", out, (1, 64, 128 // out.itemsize), 128))
        for name, array, box, swizzle in boxes:
            # One matrix for all items is a batch of one.
            batch = array.reshape(1, *array.shape) if array.ndim == 2 else array if stride(array) else array[:1]
            parameters[name] = np.void(encode(batch, box, swizzle))
        own = {
            "counter": address(self.maps.counter),
            "batches": self.batches,
            "batch_a": int(stride(a) > 0),
            "batch_b": int(stride(b) > 0),
        }
        fill(parameters["fields"], fields | own)
        return parameters

    def __call__(self) -> None:
        """Multiply on the current stream; the norm maps must be there.

        The norm kernel also resets the counter of the persistent product, so each call follows a call of `maps`.
        """
        for one in self.launches:
            one()

    def addresses(self) -> tuple[int, int, int]:
        """Return where A, B and C begin."""
        a, b, _, out, *_ = self._keep
        return address(a), address(b), address(out)
