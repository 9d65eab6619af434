"""CUDA kernels of spectile, compiled for Hopper."""
