"""The cases by their names: one or more of every public function."""

from tests.random import evd, kpm, misuse, nearsparse, tsparse

CASES = {
    "spamm": nearsparse.spamm,
    "spamm_threshold": nearsparse.spamm_threshold,
    "norm_map": nearsparse.norm_map,
    "tune_tau": nearsparse.tune_tau,
    "spgemm": tsparse.spgemm,
    "symbolic": tsparse.symbolic,
    "large_product": tsparse.large_product,
    "eigh": evd.eigh,
    "generalized": evd.generalized,
    "tridiagonalize": evd.tridiagonalize,
    "narrow_tridiagonal": evd.narrow_tridiagonal,
    "narrow_banded": evd.narrow_banded,
    "kpm_dos": kpm.kpm_dos,
    "ldos": kpm.ldos,
    "spectral_function": kpm.spectral_function,
    "large_density": kpm.large_density,
    "misuse": misuse.misuse,
}
