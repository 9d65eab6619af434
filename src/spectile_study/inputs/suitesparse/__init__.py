"""Matrices of the SuiteSparse collection: found, downloaded, checked and kept.

A matrix is known by its *canonical content*: shape, and the CSR form with sorted columns, summed duplicates and float64
values, symmetric halves expanded and patterns given the value 1.  Stored zeros are left out: the collection counts them
apart from the nonzeros (its counts are those of tSparse's Table 1), and copies of the same matrix differ in them.
``config/matrices.tsv`` pins the digest of this content, which every mirror shares, not that of an archive.

Under the folder of resources::

    suitesparse/<group>/<name>.npz      canonical content and its digest (NumPy, no pickle)
    suitesparse/<group>/<name>.tar.gz   the archive (in another folder, if one is given as cache)
    suitesparse/index/<mirror>.csv      the collection's index, as each mirror serves it; beside it ssgetpy's own copy

Files appear under these names only when whole; unfinished ones end in ``.part`` or begin with a dot, and are continued
or removed.
"""

from spectile_study.inputs.suitesparse.collection import fetch, fetch_main, load, matrix
from spectile_study.inputs.suitesparse.content import canonical, digest
from spectile_study.inputs.suitesparse.index import SUITESPARSE_URL, Entry, MissingMatrix
from spectile_study.inputs.suitesparse.table import Pinned, Table, read_table

__all__ = [
    "SUITESPARSE_URL", "Entry", "MissingMatrix", "Pinned", "Table", "canonical", "digest", "fetch", "fetch_main",
    "load", "matrix", "read_table",
]  # fmt: skip
