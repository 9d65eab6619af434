"""The product by bitmap tiles on CUDA devices, on tensor cores."""
