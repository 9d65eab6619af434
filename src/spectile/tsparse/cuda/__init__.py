"""Sparse products on one CUDA device."""
