"""The two-stage eigensolver on one CUDA device."""
