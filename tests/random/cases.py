"""The cases by their names, and which public functions each calls: all of the library are called by one or more."""

from tests.random import evd, functions, kpm, misuse, nearsparse, products, tiles, tsparse, vectors

CASES = {
    "spamm": nearsparse.spamm,
    "spamm_threshold": nearsparse.spamm_threshold,
    "norm_map": nearsparse.norm_map,
    "tune_tau": nearsparse.tune_tau,
    "devices": functions.devices,
    "spgemm": tsparse.spgemm,
    "symbolic": tsparse.symbolic,
    "large_product": tsparse.large_product,
    "spgemm_options": products.spgemm_options,
    "spmm": products.spmm,
    "galerkin": products.galerkin,
    "wide_product": products.wide_product,
    "eigh": evd.eigh,
    "generalized": evd.generalized,
    "refined": functions.refined,
    "tridiagonalize": evd.tridiagonalize,
    "narrow_tridiagonal": evd.narrow_tridiagonal,
    "narrow_banded": evd.narrow_banded,
    "matrix_functions": functions.matrix_functions,
    "kpm_dos": kpm.kpm_dos,
    "ldos": kpm.ldos,
    "spectral_function": kpm.spectral_function,
    "large_density": kpm.large_density,
    "chebyshev": vectors.chebyshev,
    "evolve": vectors.evolve,
    "apply": vectors.apply,
    "greens_function": vectors.greens_function,
    "interior": vectors.interior,
    "correlator": vectors.correlator,
    "conductivity": vectors.conductivity,
    "expectation": vectors.expectation,
    "realizations": vectors.realizations,
    "tile_matrix": tiles.tile_matrix,
    "orders": tiles.orders,
    "density_matrix": tiles.density_matrix,
    "tile_functions": tiles.tile_functions,
    "told": functions.told,
    "misuse": misuse.misuse,
}

#: Public functions by the case that calls them.
DRAWS = {
    "spamm": ("spamm",),
    "spamm_threshold": ("spamm_threshold",),
    "norm_map": ("nearsparse.norm_map",),
    "tune_tau": ("tune_tau",),
    "devices": ("spamm_plan",),
    "spgemm_options": ("spgemm", "tsparse.row_blocks"),
    "spgemm": ("tsparse.error_bound",),
    "symbolic": ("tsparse.symbolic",),
    "spmm": ("tsparse.spmm",),
    "galerkin": ("tsparse.galerkin",),
    "eigh": ("eigh", "eigvalsh"),
    "tridiagonalize": ("tridiagonalize",),
    "narrow_tridiagonal": ("eigh_tridiagonal", "eigvalsh_tridiagonal"),
    "narrow_banded": ("eig_banded", "eigvals_banded"),
    "matrix_functions": ("expm", "logm", "matrix_function", "matrix_function_frechet", "polar", "sign", "sqrtm"),
    "kpm_dos": ("kpm_dos",),
    "ldos": ("ldos",),
    "spectral_function": ("spectral_function",),
    "chebyshev": ("chebyshev",),
    "evolve": ("evolve",),
    "apply": ("kpm.apply",),
    "greens_function": ("greens_function",),
    "interior": ("filter_diagonalize", "kpm.count", "spectral_bounds"),
    "correlator": ("correlator",),
    "conductivity": ("conductivity", "kpm.velocity"),
    "realizations": ("kpm.average", "kpm.read_wannier90"),
    "tile_matrix": tuple(
        f"TileMatrix.{name}"
        for name in (
            *("from_dense", "from_sparse", "from_tiles", "identity", "norm", "trace", "diagonal", "dot", "to_dense"),
            *("eigenvalue_bounds", "to_csr", "to_host", "astype", "whole", "hermitian_part", "permuted", "shifted"),
            *("multiply", "square", "truncate"),
        )
    ),
    "orders": ("tiles.hilbert_order", "tiles.partition"),
    "density_matrix": ("density_matrix",),
    "tile_functions": tuple(
        f"density.{name}" for name in ("exp", "fermi", "inverse_factor", "inverse_sqrt", "polar", "polynomial", "sign")
    ),
    "told": ("explain", "show_config", "nearsparse.explain", "tsparse.explain", "evd.explain", "kpm.explain"),
}

#: Public functions that no case calls on a CPU, and why.
LEFT_OUT = {
    "nearsparse.distribute": "devices calls it on a GPU",
    "TileMatrix.to_device": "tile_matrix calls it on a GPU",
    "TileMatrix.to_devices": "it needs a GPU; tests/cpu/tiles/test_spread.py does the same on the host",
    "TileMatrix.plot": "a picture",
    "kpm.from_kwant": "of a library that is no dependency",
    "kpm.from_pybinding": "of a library that is no dependency",
    "kpm.from_pythtb": "of a library that is no dependency",
}
