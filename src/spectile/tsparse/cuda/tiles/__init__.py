"""The product by bitmap tiles on CUDA devices: a sorted list of their products, multiplied on tensor cores."""
