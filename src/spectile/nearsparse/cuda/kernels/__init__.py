"""CUDA C++ of SpAMM: sources that a unit names, and the headers that they include."""
