"""Hermitian matrices of dense blocks of adjacent rows, for tests of kernels that take such rows together."""

from typing import Any

import numpy as np
import scipy.sparse as sp


def block_matrix(cells: int, largest: int, neighbours: int, dtype: Any, rng: np.random.Generator) -> sp.csr_matrix:
    """Return a Hermitian matrix of cells of 1 to `largest` rows, dense blocks where two cells are coupled.

    A cell is coupled to itself and to some 2 `neighbours` others, but for one or two, whose rows are empty.
    """
    sizes = rng.integers(1, largest + 1, cells)
    graph = sp.random(cells, cells, min(1, neighbours / cells), random_state=rng) + sp.eye(cells)
    graph = (graph + graph.T).toarray() != 0
    lonely = rng.integers(0, cells, 2)
    graph[lonely] = graph[:, lonely] = False
    of_row = np.repeat(np.arange(cells), sizes)
    row, column = np.nonzero(graph[of_row][:, of_row])
    values = rng.normal(size=(2, row.size))
    dense = np.zeros((of_row.size,) * 2, np.complex128)
    dense[row, column] = values[0] + 1j * values[1]
    dense = (dense + dense.conj().T) / 40
    matrix = sp.csr_matrix((dense[row, column], (row, column)), shape=dense.shape)
    return (matrix if np.dtype(dtype).kind == "c" else matrix.real).astype(dtype)
