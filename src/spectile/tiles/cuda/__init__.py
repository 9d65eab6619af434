"""Kernels of tile matrices."""
