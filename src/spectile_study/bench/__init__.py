"""Measuring: the contract between a system's cases and the workflow, timing, statistics, provenance, records.

``bench`` knows nothing of the four systems; they hand it :class:`~spectile_study.bench.case.Problem` objects.
"""
