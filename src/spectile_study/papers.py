"""The four papers: how they are called, and the library's package of each."""

from __future__ import annotations

from typing import NamedTuple


class Paper(NamedTuple):
    """One paper and its system.

    Attributes
    ----------
    package : str
        Package of the library, below ``spectile``.
    name : str
        What the system is called.
    category : str
        Heading of its tables and figures in the report.
    as_called : tuple of str
        Patterns of the ``study/method`` whose recorded time is that of a call, the host's work included; that of the
        others is the device's (``docs/records.md``).
    """

    package: str
    name: str
    category: str
    as_called: tuple[str, ...]


_SOLVERS = ("spectile", "spectile_two_stage", "cu*", "magma", "lapack*")

PAPERS = {
    "spamm": Paper(
        "nearsparse",
        "SpAMM",
        "1 SpAMM: near-sparse products (cuSpAMM)",
        ("*/called*", "*/latency_*", "truncation/cusparse"),
    ),
    "tsparse": Paper(
        "tsparse",
        "tSparse",
        "2 tSparse: sparse products on tensor cores",
        ("/spectile_*", "/*_csr_*", "/cusparse_float*", "/scipy_*", "/*_as_called", "/*_throughput"),
    ),
    "evd": Paper(
        "evd",
        "EVD",
        "3 EVD: two-stage symmetric eigensolver",
        # All but spectile_device.
        (
            *(f"{study}/{method}" for study in ("evd", "tridiagonal") for method in _SOLVERS),
            *("problems/*", "drivers/*", "devices/*", "gradients/*_total", "sequences/*"),
        ),
    ),
    "kpm": Paper("kpm", "KPM", "4 KPM: spectral densities", ("dos/*", "host_dos/*", "surface/*", "*/as_called*")),
}
