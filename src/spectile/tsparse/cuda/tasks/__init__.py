"""The paper's method on CUDA devices: a sorted list of the products of bitmap tiles, multiplied on tensor cores."""
