"""KPM on one CUDA device."""
