"""SpAMM on the CPU."""
