"""The product on groups of rows on tensor cores, V through shared memory by boxes."""
