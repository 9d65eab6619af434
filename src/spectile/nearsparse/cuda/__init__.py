"""SpAMM on one CUDA device."""
