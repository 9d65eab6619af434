"""The product by rows on CUDA devices: the symbolic phase, the numeric phase and their kernels."""
