"""KPM's CUDA C++: a recurrence step on rows, staged rows or a stencil, and what comes before it."""
