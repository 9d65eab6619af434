"""Options of every public function: what is no choice is refused in a sentence that names it."""

import inspect
import operator
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

import spectile
from spectile.core.options import numbers

N = 12
DENSE = np.exp(-abs(np.subtract.outer(np.arange(N), np.arange(N))) / 2.0)
SPARSE = sp.csr_array(np.where(DENSE > 0.1, DENSE, 0.0))
TILES = spectile.TileMatrix.from_dense(DENSE, 4, hermitian=True)
BAND = np.array([np.full(N, 2.0), np.ones(N)])
CALLS = {
    "spamm": ((DENSE, DENSE), {"tau": 0.1}),
    "spamm_threshold": ((DENSE, DENSE), {"rtol_factors": 0.1}),
    "tune_tau": ((DENSE, DENSE, 0.5), {}),
    "spgemm": ((SPARSE, SPARSE), {}),
    "eigh": ((DENSE,), {}),
    "eigvalsh": ((DENSE,), {}),
    "eigh_tridiagonal": ((BAND[0], BAND[1, 1:]), {}),
    "eigvalsh_tridiagonal": ((BAND[0], BAND[1, 1:]), {}),
    "eig_banded": ((BAND,), {"lower": True}),
    "eigvals_banded": ((BAND,), {"lower": True}),
    "tridiagonalize": ((DENSE,), {}),
    "matrix_function": (("exp", DENSE), {}),
    "matrix_function_frechet": (("exp", DENSE, DENSE), {}),
    "expm": ((DENSE,), {}),
    "logm": ((DENSE,), {}),
    "sqrtm": ((DENSE,), {}),
    "sign": ((DENSE,), {}),
    "polar": ((DENSE,), {}),
    "chebyshev": ((SPARSE, np.ones((N, 1)), 8), {}),
    "spectral_bounds": ((SPARSE,), {}),
    "evolve": ((SPARSE, np.ones(N), [1.0]), {}),
    "greens_function": ((SPARSE, 0, 1, 0.5, 0.5), {}),
    "filter_diagonalize": ((SPARSE, (0.5, 1.5)), {}),
    "correlator": ((SPARSE, SPARSE, SPARSE), {"num_moments": 8, "num_vectors": 2}),
    "conductivity": ((SPARSE, "x", "x", np.arange(N)), {"area": 1.0, "num_moments": 8, "num_vectors": 2}),
    "density_matrix": ((np.diag(np.arange(float(N))),), {"electrons": 6}),
    "kpm_dos": ((SPARSE,), {"num_moments": 8, "num_vectors": 2}),
    "ldos": ((SPARSE, [1]), {"num_moments": 8}),
    "spectral_function": ((SPARSE, [[0.5]], np.arange(N)[:, None]), {"num_moments": 8}),
    "density.fermi": ((TILES,), {"mu": 0.5, "beta": 1.0}),
    "density.exp": ((TILES,), {}),
    "density.polynomial": ((TILES, [1.0, 2.0]), {}),
    "density.sign": ((TILES,), {}),
    "density.inverse_factor": ((DENSE,), {}),
    "density.inverse_sqrt": ((DENSE,), {}),
    "density.polar": ((DENSE,), {}),
    "tsparse.symbolic": ((SPARSE, SPARSE), {}),
    "tsparse.galerkin": ((SPARSE, SPARSE, SPARSE), {}),
    "tsparse.error_bound": ((SPARSE, SPARSE), {}),
    "tsparse.spmm": ((SPARSE, DENSE), {}),
    "tsparse.row_blocks": ((SPARSE, SPARSE), {}),
    "nearsparse.norm_map": ((DENSE,), {}),
    "nearsparse.distribute": ((DENSE, DENSE, 0.1, 1), {}),
}
FLAGS = {
    "lower",
    "eigvals_only",
    "overwrite_a",
    "overwrite_b",
    "overwrite_a_band",
    "check_finite",
    "calc_q",
    "strict",
    "mean",
    "complement",
    "progress",
}
NUMBERS = {
    "tau",
    "valid_ratio",
    "atol",
    "rtol_factors",
    "rtol",
    "alpha",
    "beta",
    "block",
    "iterations",
    "tolerance",
    "type",
    "memory_limit",
}
NUMBERS |= {"num_moments", "num_vectors", "checkpoint_s", "area", "energy_resolution", "num_states", "prune", "top_n"}
NUMBERS |= {"electrons", "mu", "error", "tol"}
WORDS = {
    "backend",
    "precision",
    "split",
    "method",
    "driver",
    "UPLO",
    "kernel",
    "rng",
    "select",
    "lapack_driver",
    "formula",
    "semiring",
    "format",
}
PATHS = {"checkpoint"}
RESULTS = {"start"}
# Of arrays and of what is judged with them: their own tests.
OTHERS = {"b", "out", "c", "devices", "bounds", "subset_by_index", "subset_by_value", "select_range", "x0"}
OTHERS |= {"mask", "C", "s", "permutation", "df", "comm"}
OTHERS |= {"weights", "orbitals", "bra", "vectors", "operator", "periods"}
OTHERS |= {"max_ev"}  # SciPy leaves it to LAPACK, which is not asked
HOSTILE = {
    "several": np.array([1, 2]),
    "list": [1, 2],
    "dict": {},
    "object": object(),
    "complex": 3 + 4j,
    "nan": float("nan"),
    "huge": 10**400,
    "infinite": float("inf"),
    "word": "nonsense",
    "negative": -(10**30),
    "one": np.array([1.0]),
    "complex one": np.complex64(1),
    "text": "1",
    "bytes": b"1",
    "huge fraction": Fraction(10**400, 3),
    "huge decimal": Decimal("1e400"),
    "no decimal": Decimal("nan"),
    "signal": Decimal("sNaN"),
    "date": np.datetime64("2020-01-01"),
}


# What some options take of these: entropy of any size, a limit that limits nothing, a tolerance that is always met.
TAKEN = {
    "rng": {"several", "list", "huge"},
    "memory_limit": {"huge", "infinite", "huge decimal"},
    "tolerance": {"infinite"},
    "checkpoint": {"word", "text", "bytes"},
    "checkpoint_s": {"huge", "infinite", "negative", "huge fraction"},
    "alpha": {"negative", "complex one"},
    "beta": {"complex one"},
    "top_n": {"huge"},
    "tau": {"infinite"},
    "mu": {"negative"},
    "tol": {"infinite", "negative"},  # as LAPACK takes them
    "type": {"complex one"},
}


def options():
    for name, (given, words) in CALLS.items():
        signature = inspect.signature(operator.attrgetter(name)(spectile))
        taken = signature.bind_partial(*given).arguments
        for option, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                continue
            if option not in taken and option not in words.keys() & {"tau", "rtol_factors"} | OTHERS:
                yield name, option


def test_each_option_is_known_here():
    assert {option for _, option in options()} <= FLAGS | NUMBERS | WORDS | PATHS | RESULTS
    own = [(name, getattr(spectile, name)) for name in spectile.__all__]
    for part in ("density", "nearsparse", "tsparse"):
        module = getattr(spectile, part)
        found = ((f"{part}.{name}", getattr(module, name)) for name in module.__all__)
        own += [(name, thing) for name, thing in found if thing not in dict(own).values()]
    assert set(CALLS) == {name for name, thing in own if inspect.isfunction(thing)} - {
        "spamm_plan",  # for a GPU alone
        "explain",  # takes another function's
        "nearsparse.explain",
        "tsparse.explain",
        "show_config",
    }


@pytest.mark.parametrize(("name", "option"), list(options()))
def test_what_is_no_choice_is_refused_by_name(name, option, tmp_path):
    given, words = CALLS[name]
    if option in ("overwrite_b", "type"):
        words = words | {"b": np.eye(N)}
    if option == "checkpoint_s":
        words = words | {"checkpoint": tmp_path / "state"}
    for kind, value in HOSTILE.items():
        if kind in TAKEN.get(option, ()) or (option in FLAGS and kind not in ("several", "word")):
            continue  # of the others each has a truth value
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises((ValueError, TypeError, MemoryError)) as refused:
                operator.attrgetter(name)(spectile)(*given, **words | {option: value})
        message = str(refused.value)
        named = isinstance(refused.value, MemoryError) or option.lower() in message.lower()
        assert len(message) < 400 and named, (kind, message)


PAIRS = {
    "bounds": (-9.0, 9.0),
    "subset_by_index": (0, 1),
    "subset_by_value": (0.5, 1.5),
    "select_range": (0.5, 1.5),
}


@pytest.mark.parametrize("name", [name for name in CALLS if "." not in name])
def test_ends_that_are_no_numbers_are_refused_by_name(name):
    given, words = CALLS[name]
    for option in PAIRS.keys() & inspect.signature(getattr(spectile, name)).parameters.keys():
        chosen = words | ({"select": "v"} if option == "select_range" else {})
        getattr(spectile, name)(*given, **chosen, **{option: PAIRS[option]})
        for kind in HOSTILE.keys() - {"infinite", "negative"}:
            for ends in ((PAIRS[option][0], HOSTILE[kind]), (HOSTILE[kind], PAIRS[option][1])):
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    with pytest.raises((ValueError, TypeError)) as refused:
                        getattr(spectile, name)(*given, **chosen, **{option: ends})
                message = str(refused.value)
                assert len(message) < 400 and option in message, (kind, ends, message)


# Whose arithmetic with others wraps, or is refused by Python.
KINDS = (np.int8(120), np.uint64(2), Decimal(2), Fraction(2))


@pytest.mark.parametrize(("name", "option"), [pair for pair in options() if pair[1] in NUMBERS])
def test_numbers_of_any_kind_are_taken_or_refused_by_name(name, option):
    if name == "nearsparse.distribute":  # to GPUs
        return
    given, words = CALLS[name]
    if option in ("overwrite_b", "type"):
        words = words | {"b": np.eye(N)}
    if option in ("atol", "rtol_factors", "rtol"):
        words = {key: value for key, value in words.items() if key not in ("tau", "rtol_factors")}
    for value in KINDS:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            try:
                operator.attrgetter(name)(spectile)(*given, **words | {option: value})
            except (ValueError, TypeError, MemoryError, RuntimeError) as refused:
                message = str(refused)
                named = isinstance(refused, MemoryError) or option.lower() in message.lower()
                assert len(message) < 400 and named, (value, message)


def test_numbers_of_python_are_read_whatever_their_size():
    assert numbers("mu", [10**25, Fraction(1, 2)]).tolist() == [1e25, 0.5]
    with pytest.raises(TypeError, match="mu must be real numbers"):
        numbers("mu", np.array([10**25, "1"], object))


BATCHES = {
    "spamm": lambda x, y: spectile.spamm(x, y, tau=0.1),
    "spamm within an error of the product": lambda x, y: spectile.spamm(x, y, rtol=0.1),
    "eigh": spectile.eigh,
    "eigvalsh": spectile.eigvalsh,
    "eigh from a start": lambda x, y: spectile.eigh(x, x0=y),
    "matrix_function_frechet": lambda x, y: spectile.matrix_function_frechet("exp", x, y),
    "eigh_tridiagonal": lambda x, y: spectile.eigh_tridiagonal(x[..., 0], y[..., 1:, 0]),
    "eigvalsh_tridiagonal": lambda x, y: spectile.eigvalsh_tridiagonal(x[..., 0], y[..., 1:, 0]),
}


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("n", [1, 3])
def test_batches_that_do_not_go_together_are_refused_in_a_sentence(name, n):
    """Also those of matrices of one row, whose last dimensions broadcast."""
    for one, two in (((2,), (3,)), ((3,), (0,)), ((2, 3), (2, 2)), ((2, 1, 3), (2,)), ((4, 1), (2, 3))):
        with pytest.raises(ValueError) as refused:
            BATCHES[name](np.ones((*one, n, n)), np.ones((*two, n, n)))
        assert any(word in str(refused.value) for word in (": give", "pass one")), refused.value
