"""The two-stage eigensolver on the CPU."""
