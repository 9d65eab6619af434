"""The product on CPUs, in Numba over threads: the result is the same bits every time, whatever their number."""
