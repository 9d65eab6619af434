"""What a caller gives as H, as an operator."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectile.core.arrays import host_array
from spectile.core.host import refuse_masked
from spectile.core.options import kind_of
from spectile.kpm.bounds import gershgorin
from spectile.kpm.operators.frame import Frame
from spectile.kpm.operators.protocol import Operator, PartitionedOperator, lies_on_gpu
from spectile.kpm.operators.stored import StoredMatrix
from spectile.kpm.operators.topological_insulator import TopologicalInsulator
from spectile.kpm.operators.user import ProductOperator


def as_operator(H: Any) -> StoredMatrix | TopologicalInsulator | PartitionedOperator | ProductOperator | Operator:
    """Return H as an operator.

    Raises TypeError if H has an unusable type, and ValueError if H is not square or empty.
    """
    if isinstance(H, list | tuple):
        H = np.asarray(H)
    refuse_masked("H", H)
    own = isinstance(H, StoredMatrix | TopologicalInsulator | PartitionedOperator | Operator)
    if not (own or lies_on_gpu(H)) and hasattr(H, "__dlpack__"):
        H = host_array("H", H)
    shape, dtype = getattr(H, "shape", None), getattr(H, "dtype", None)
    if shape is None or dtype is None or not (own or hasattr(H, "__matmul__")):
        raise TypeError(f"H is {kind_of(H)}: give a sparse matrix, an array or an operator with shape, dtype and @")
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
        raise ValueError(f"H has shape {tuple(shape)}: a Hamiltonian is a square matrix")
    dtype = np.dtype(dtype)
    if dtype.kind not in "biufc" or dtype.char in "gG":
        raise TypeError(f"H has dtype {dtype}: convert it to float32, float64, complex64 or complex128")
    if own:
        return H
    return StoredMatrix(H) if _is_stored(H) else ProductOperator(H)


def _is_stored(H: Any) -> bool:
    import scipy.sparse

    if isinstance(H, np.ndarray) or scipy.sparse.issparse(H):
        return True
    if not lies_on_gpu(H):
        return False
    import cupy
    from cupyx.scipy import sparse

    return isinstance(H, cupy.ndarray) or bool(sparse.issparse(H))


def framed(H: Any, dtype: np.dtype[Any]) -> tuple[Frame, Any]:
    """Return the frame in which engines hold H, and H in it: a sample, or a canonical CSR matrix on the host."""
    if isinstance(H, TopologicalInsulator):
        frame = Frame(Frame.around(H.bounds(), dtype).offset)
        return frame, H.moved(frame.offset)
    matrix = StoredMatrix(H).on_host().csr(dtype)
    frame = Frame.around(gershgorin(matrix), dtype)
    return frame, frame.inside(matrix, unlike=True)


def vector_dtype(dtype: Any, complex_vectors: bool = False) -> np.dtype[Any]:
    """Return the type of the vectors for an operator's: float64 for whole numbers and half precision."""
    dtype = np.dtype(dtype).newbyteorder("=")
    if dtype.kind in "biu" or dtype == np.float16:
        dtype = np.dtype(np.float64)
    return np.result_type(dtype, np.complex64) if complex_vectors else dtype


def whole_csr(H: Any) -> Any:
    """Return a stored matrix or a sample as a canonical CSR matrix on the host, of a type that vectors have."""
    stored = StoredMatrix(H.matrix() if isinstance(H, TopologicalInsulator) else H).on_host()
    return stored.csr(vector_dtype(stored.dtype))
