"""SpAMM where the operands lie on their GPUs: rows of A and all of B on each, or all of A and columns of B."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spectile.nearsparse.cuda import norms as cuda_norms
from spectile.nearsparse.cuda import product as cuda_product
from spectile.nearsparse.cuda.choose import Problem
from spectile.nearsparse.multi.plan import Plan
from spectile.nearsparse.multi.streams import Stream
from spectile.nearsparse.types import Request, Split


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
        self._streams = [self.stream(index) for index in devices]
        self.out: list[Any] = []
        self._norms: list[cuda_norms.NormMaps] = []
        for number, index in enumerate(devices):
            with cupy.cuda.Device(index):
                size_c = a[number].shape[0], b[number].shape[1]
                self.out.append(cupy.empty(size_c, self.arithmetic.output) if out is None else out[number])
                self._norms.append(self.norm_maps(a[number], b[number]))
        if c is not None:
            self.add(c, self.out)
        if request.norms_first:
            self._run(self._measure)
            self.check_finite(*((a, b[0]) if self._by_rows else (a[0], b)))
            with cupy.cuda.Device(devices[0]):
                self.tau = self.threshold(self.maps())
        self._products: list[tuple[Stream, cuda_product.Product]] = []
        for number, (stream, norms, target) in enumerate(zip(self._streams, self._norms, self.out, strict=True)):
            if target.size:
                with cupy.cuda.Device(devices[number]):
                    added = None if c is None else c[number]
                    self._products.append((stream, self.product(a[number], b[number], target, norms, added)))

    def _enqueue(self) -> None:
        self._measure()
        for stream, product in self._products:
            with stream.current():
                product()

    def _measure(self) -> None:
        for stream, norms in zip(self._streams, self._norms, strict=True):
            with stream.current():
                norms()

    def maps(self) -> Any:
        """Return both whole norm maps on the first device."""
        first = self._norms[0]
        if self._by_rows:
            return cuda_norms.Norms(self.joined([norms.a for norms in self._norms]), first.b, self.request.block)
        return cuda_norms.Norms(first.a, self.joined([norms.b for norms in self._norms]), self.request.block)

    def outputs(self) -> list[Any]:
        """Return the parts of C, to sum over."""
        return self.out

    def release(self) -> None:
        """Do nothing: the operands are the caller's."""
