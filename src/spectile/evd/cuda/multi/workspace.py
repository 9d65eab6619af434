"""How much memory the devices of a team need."""

from __future__ import annotations

from spectile.core import memory
from spectile.core.device import describe
from spectile.evd.cuda.multi.partition import Cyclic, pieces
from spectile.evd.cuda.multi.team import Team
from spectile.evd.cuda.workspace import back_columns, padded_order, tile_bytes, workspace_bytes
from spectile.evd.types import Scalar

#: Columns of the rank-one eigenvectors that a device makes at a time.
CHUNK = 1024


def share_bytes(n: int, scalar: Scalar, bandwidth: int, block: int, parts: int) -> int:
    """Return the bytes that a device other than home needs for its share of a band reduction."""
    columns = Cyclic(n, block, parts).count(0)
    return scalar.itemsize * n * (columns + 4 * block + bandwidth)


def in_place(scalar: Scalar, n: int, columns: int) -> bool:
    """Return whether so many eigenvectors have room in Q beside those of both halves."""
    return not scalar.is_complex and columns <= padded_order(n)[1] // 2


def piece_bytes(n: int, scalar: Scalar, columns: int) -> int:
    """Return the bytes that a device other than home needs for a piece of so many eigenvectors."""
    order, piece = padded_order(n)[1], n * columns
    reflectors, width = back_columns(n)
    merging = 8 * order * (order // 2 + min(CHUNK, columns)) + (8 * piece if scalar.is_complex else 0)
    back = max(tile_bytes(n), scalar.itemsize * reflectors * (n + 2 * min(n, width)))
    narrow = 0 if scalar.itemsize == scalar.wide_bytes else scalar.itemsize * piece
    # The quarters of Q that a device multiplies lie where its piece comes.
    return scalar.itemsize * n * n + max(scalar.wide_bytes * piece, 2 * order**2) + max(merging, back + narrow)


def require_free(
    n: int,
    scalar: Scalar,
    columns: int,
    team: Team,
    *,
    bandwidth: int,
    block: int,
    share_reduction: bool,
    overwrite: bool,
    to_host: bool = False,
) -> None:
    """Raise MemoryError, with the bytes, if a device of a team has too few for a problem; home is the current one.

    So many columns of eigenvectors are wanted, 0 for eigenvalues alone.  With `share_reduction` all devices take part
    in the band reduction, too; with `overwrite` home works in the memory of the matrix; with `to_host` eigenvectors go
    to the host, and home's piece of them lies in Q.
    """
    parts = len(team.members)
    most = max(piece.stop - piece.start for piece in pieces(columns, parts))
    share = share_bytes(n, scalar, bandwidth, block, parts) if share_reduction else 0
    piece = piece_bytes(n, scalar, most) if columns else 0
    what = f"the eigenproblem of order {n:,} on {parts} devices"
    home = workspace_bytes(n, scalar, describe(), vectors=columns > 0, overwrite=overwrite)
    order, result = padded_order(n)[1], 0 if to_host else scalar.itemsize * n * columns
    # The result may have the place of Q, where it is no larger.
    merging = 16 * order * min(CHUNK, most) + (result if result > 8 * order**2 else 0)
    own = 0 if to_host and in_place(scalar, n, most) else scalar.wide_bytes * n * most
    memory.require_free(home + max(share, own + merging), what)
    for member in team.others:
        with member.current():
            memory.require_free(max(share, piece), what)
