"""SpAMM where the operands lie on their GPUs: rows of A and all of B on each, or all of A and columns of B."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from spectile.core.tiling import ceil_div
from spectile.nearsparse.cuda import norms as cuda_norms
from spectile.nearsparse.cuda import product as cuda_product
from spectile.nearsparse.cuda.choose import Problem
from spectile.nearsparse.cuda.norms import empty_map
from spectile.nearsparse.multi import partition
from spectile.nearsparse.multi.plan import Plan
from spectile.nearsparse.multi.streams import Stream
from spectile.nearsparse.types import Request, Split

# From this size of the operand on that every GPU holds, they share the norm pass over their copies: exchanging the maps
# costs 0.2 ms.
SHARED_NORM_BYTES = 1 << 30


class Resident(Plan):
    """The product where every GPU holds its rows of A and all of B, or all of A and its columns of B.

    Its rows or columns of C stay there.  Columns are for products of few rows, as of a network's layers: units of 128
    rows would not go round.

    Parameters
    ----------
    a, b : sequence of cupy.ndarray, shapes (m_p, k), (k, n) or (m, k), (k, n_p)
        Parts in order, cut as by :func:`spectile.nearsparse.distribute`, and copies, one of each a device.
    out : sequence of cupy.ndarray, shapes (m_p, n) or (m, n_p), optional
        Receive the parts of C; made here by default.
    request : Request
        Norms are measured, and tau is searched, when the plan is made if they are asked for.
    c : sequence of cupy.ndarray, optional
        What beta multiplies, cut as C is; may be `out`.
    split : {"rows", "columns"}
        What each GPU has of C.
    """

    def __init__(
        self,
        a: Sequence[Any],
        b: Sequence[Any],
        out: Sequence[Any] | None,
        request: Request,
        c: Sequence[Any] | None = None,
        split: Split = "rows",
    ) -> None:
        import cupy

        self._by_rows = split == "rows"
        devices = [part.device.id for part in a]
        if self._by_rows:
            shape = (sum(part.shape[0] for part in a), *b[0].shape)
        else:
            shape = (*a[0].shape, sum(part.shape[1] for part in b))
        problem = Problem.of_parts(shape, a, b, request.block, request.real.precision, request.strict)
        super().__init__(devices, problem, request)
        copies, size = (b, shape[2]) if self._by_rows else (a, shape[0])
        self._shared = copies[0].nbytes >= SHARED_NORM_BYTES and len(a) > 1
        panels = partition.panels(size, len(a)) if self._shared else [(0, size)] * len(a)
        panels += [(0, 0)] * (len(a) - len(panels))
        self.out: list[Any] = []
        self._norms: list[_Norms] = []
        for number, (index, panel) in enumerate(zip(devices, panels, strict=True)):
            with cupy.cuda.Device(index):
                mine, other = a[number], b[number]
                size_c = mine.shape[0], other.shape[1]
                self.out.append(cupy.empty(size_c, self.arithmetic.output) if out is None else out[number])
                self._norms.append(self._norms_of(mine, other, panel, self.stream(index)))
        if c is not None:
            self.add(c, self.out)
        if request.norms_first:
            self._run(self._measure)
            self.check_finite(*((a, b[0]) if self._by_rows else (a[0], b)))
            with cupy.cuda.Device(devices[0]):
                self.tau = self.threshold(self.maps())
        self._products: list[tuple[Stream, cuda_product.Product]] = []
        for number, (norms, target) in enumerate(zip(self._norms, self.out, strict=True)):
            if target.size:
                with cupy.cuda.Device(devices[number]):
                    added = None if c is None else c[number]
                    product = self.product(a[number], b[number], target, norms.both, added)
                    self._products.append((norms.stream, product))

    def _norms_of(self, a: Any, b: Any, panel: tuple[int, int], stream: Stream) -> _Norms:
        request, (first, last) = self.request, panel
        block = request.block
        norms_a, norms_b = (empty_map(size, self.shape[1], request) for size in (a.shape[0], b.shape[1]))
        blocks = slice(first // block, ceil_div(last, block))
        if self._by_rows:
            maps = self.norm_maps(a, b[:, first:last], (norms_a, norms_b[blocks]))
        else:
            maps = self.norm_maps(a[first:last], b, (norms_a[blocks], norms_b))
        cut, copy = (norms_a, norms_b) if self._by_rows else (norms_b, norms_a)
        return _Norms(stream, maps, cuda_norms.Norms(norms_a, norms_b, block, maps.counter), cut, copy, blocks)

    def _enqueue(self) -> None:
        self._measure()
        for stream, product in self._products:
            with stream.current():
                product()

    def _measure(self) -> None:
        """Take the norms; the first device collects the map of the copies from the panels, for the others."""
        for norms in self._norms:
            with norms.stream.current():
                norms.take()
        if self._shared:
            main, *others = self._norms
            for norms in others:
                norms.stream.copy(main.copy[norms.panel], norms.copy[norms.panel])
                main.stream.wait(norms.stream.mark())
            complete = main.stream.mark()
            for norms in others:
                norms.stream.wait(complete)
                norms.stream.copy(norms.copy, main.copy)

    def maps(self) -> Any:
        """Return both whole norm maps on the first device."""
        whole, copy = self.joined([norms.cut for norms in self._norms]), self._norms[0].copy
        return cuda_norms.Norms(*((whole, copy) if self._by_rows else (copy, whole)), self.request.block)

    def outputs(self) -> list[Any]:
        """Return the parts of C, to sum over."""
        return self.out

    def release(self) -> None:
        """Do nothing: the operands are the caller's."""


class _Norms(NamedTuple):
    """What takes norms on a device, and the maps of the operands that lie there."""

    stream: Stream
    take: cuda_norms.NormMaps
    both: cuda_norms.Norms
    #: The maps of the part and of the copy that this device holds, and what of the copy's it measures.
    cut: Any
    copy: Any
    panel: slice
