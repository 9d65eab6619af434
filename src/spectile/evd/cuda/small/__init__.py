"""Matrices of an order that one thread block holds."""
