"""Sparse products on the CPU."""
