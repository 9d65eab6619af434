"""KPM on the CPU."""
