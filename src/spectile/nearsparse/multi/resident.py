"""SpAMM where the operands lie on their GPUs: rows of A and all of B on each, or all of A and columns of B."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from spectile.core.tiling import ceil_div
from spectile.nearsparse.cuda import norms as cuda_norms
from spectile.nearsparse.cuda.choose import Problem
from spectile.nearsparse.cuda.norms import empty_map
from spectile.nearsparse.multi import partition
from spectile.nearsparse.multi.plan import Part, Piece, Plan, Step
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
                self._norms.append(self._norms_of(mine, other, panel))
                self.parts.append(Part(self.stream(index)))
        self.steps = [*(Step("a", number) for number in range(len(a))), Step("b", 0)]
        if c is not None:
            self.add(c, self.out)
        if request.norms_first:
            self._run(self._enqueue)  # nothing is multiplied yet
            self.check_finite(*((a, b[0]) if self._by_rows else (a[0], b)))
            with cupy.cuda.Device(devices[0]):
                self.tau = self.threshold(self.maps())
        for number, (part, norms, target) in enumerate(zip(self.parts, self._norms, self.out, strict=True)):
            if target.size:
                with cupy.cuda.Device(devices[number]):
                    added = None if c is None else c[number]
                    product = self.product(a[number], b[number], target, norms.both, added)
                    part.pieces.append(Piece(0, 0, product))

    def _norms_of(self, a: Any, b: Any, panel: tuple[int, int]) -> _Norms:
        request, (first, last) = self.request, panel
        block = request.block
        norms_a, norms_b = (empty_map(size, self.shape[1], request) for size in (a.shape[0], b.shape[1]))
        blocks = slice(first // block, ceil_div(last, block))
        if self._by_rows:
            maps = self.norm_maps(a, b[:, first:last], (norms_a, norms_b[blocks]))
        else:
            maps = self.norm_maps(a[first:last], b, (norms_a[blocks], norms_b))
        cut, copy = (norms_a, norms_b) if self._by_rows else (norms_b, norms_a)
        return _Norms(maps, cuda_norms.Norms(norms_a, norms_b, block, maps.counter), cut, copy, blocks)

    def fetch_a(self, number: int, block: int) -> None:
        """Take the norms of what lies there."""
        with self.parts[number].streams[0].current():
            self._norms[number].take()

    def fetch_b(self, panel: int) -> None:
        """Let the first device collect the map of the copies from the panels, and hand it to the others."""
        if self._shared:
            main, *others = ((part.streams[0], norms) for part, norms in zip(self.parts, self._norms, strict=True))
            for stream, norms in others:
                stream.copy(main[1].copy[norms.panel], norms.copy[norms.panel])
                main[0].wait(stream.mark())
            complete = main[0].mark()
            for stream, norms in others:
                stream.wait(complete)
                stream.copy(norms.copy, main[1].copy)
        for part in self.parts:
            part.panels[panel] = None

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

    take: cuda_norms.NormMaps
    both: cuda_norms.Norms
    #: The maps of the part and of the copy that this device holds, and what of the copy's it measures.
    cut: Any
    copy: Any
    panel: slice
