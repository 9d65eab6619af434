"""Random calls of every public function, each held against NumPy and SciPy in float64 or longdouble.

``python -m tests.random --minutes 60 --seed 1`` calls for an hour and prints a table of failures; each has one line
with which it is repeated.  ``--backend cuda`` gives CuPy's arrays to the GPU.  ``test_random.py`` runs a fixed few.
"""
