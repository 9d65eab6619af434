"""Counts of a product of tiles: what the tiles of dense factors say."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile_study.cases.tsparse.tiles import reference
from spectile_study.cases.tsparse.tiles.counts import tile_counts


@pytest.mark.parametrize(
    ("seed", "shape", "density"), [(1, (40, 70, 33), 0.02), (2, (64, 64, 64), 0.3), (3, (9, 17, 90), 0.1)]
)
def test_tiles_products_and_entries(seed, shape, density):
    rng = np.random.default_rng(seed)
    (m, k, n), width = shape, -(-shape[2] // 8)
    a, b = (rng.random(size) < density for size in ((m, k), (k, n)))

    def factor(x):
        tiles = reference.to_bitmap(sp.csr_array(x.astype(float)))
        start = np.searchsorted(tiles.tile_rows, np.arange(-(-len(x) // 8) + 1))
        return start, tiles.tile_columns, tiles.bitmaps

    found = tile_counts(factor(a), factor(b), width)

    def tiled(x):
        rows, columns = (-(-length // 8) for length in x.shape)
        padded = np.pad(x, ((0, 8 * rows - x.shape[0]), (0, 8 * columns - x.shape[1])))
        return padded.reshape(rows, 8, columns, 8).swapaxes(1, 2).astype(int)

    products = np.einsum("ikab,kjbc->ikjac", tiled(a), tiled(b)) > 0
    met = products.any(axis=(3, 4))
    assert found == (met.any(axis=1).sum(), met.sum(), products.any(axis=1).sum())
