"""Near-sparse matrices as objects: tiles that are stored, their norms, and the error that the matrix carries."""

from spectile.tiles.matrix import TileMatrix
from spectile.tiles.order import hilbert_order, partition
from spectile.tiles.types import Error

__all__ = ["Error", "TileMatrix", "hilbert_order", "partition"]
