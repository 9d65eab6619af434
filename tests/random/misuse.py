"""Calls with one argument that is not what it should be: a result, or an error that a caller understands."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from spectile import evd, kpm, nearsparse, tsparse
from tests.random.calls import Refused, bits, call, holds
from tests.random.draw import Draw
from tests.random.memory import Place

#: What callers pass by mistake, by what a message may call it.
MISTAKES: dict[str, Callable[[Place], Any]] = {
    "None": lambda p: None,
    "a word": lambda p: "word",
    "bytes": lambda p: b"word",
    "NaN": lambda p: float("nan"),
    "infinity": lambda p: float("inf"),
    "-infinity": lambda p: -float("inf"),
    "-1": lambda p: -1,
    "0": lambda p: 0,
    "0.5": lambda p: 0.5,
    "2": lambda p: 2,
    "True": lambda p: True,
    "10**400": lambda p: 10**400,
    "2**63": lambda p: 2**63,
    "-2**31 - 1": lambda p: -(2**31) - 1,
    "complex": lambda p: 1 + 2j,
    "a fraction": lambda p: Fraction(1, 3),
    "an object": lambda p: object(),
    "a function": lambda p: len,
    "()": lambda p: (),
    "[]": lambda p: [],
    "[1, 2]": lambda p: [1, 2],
    "[1, [2, 3]]": lambda p: [1, [2, 3]],
    "{}": lambda p: {},
    "a set": lambda p: {1, 2},
    "a type": lambda p: float,
    "a NumPy number": lambda p: np.float32(0.25),
    "a NumPy integer": lambda p: np.int64(3),
    "an array of one number": lambda p: p.xp.array([0.5]),
    "an array without dimensions": lambda p: p.xp.array(0.5),
    "a vector": lambda p: p.xp.arange(4.0),
    "a wide matrix": lambda p: p.xp.ones((4, 7)),
    "a 5 x 5 matrix": lambda p: p.xp.eye(5),
    "three dimensions": lambda p: p.xp.ones((2, 4, 4)),
    "33 dimensions": lambda p: p.xp.ones((1,) * 33),
    "an empty matrix": lambda p: p.xp.ones((0, 0)),
    "an array of NaN": lambda p: p.xp.full((4, 4), np.nan),
    "an array of infinity": lambda p: p.xp.full((4, 4), np.inf),
    "words": lambda p: np.array(["a", "b"]),
    "objects": lambda p: np.array([[1, None], [object(), 2]], object),
    "dates": lambda p: np.zeros((4, 4), "datetime64[s]"),
    "a record": lambda p: np.zeros((4, 4), [("x", float), ("y", int)]),
    "complex numbers": lambda p: p.xp.ones((4, 4), complex),
    "float16": lambda p: p.xp.eye(4, dtype="float16"),
    "longdouble": lambda p: np.eye(4, dtype=np.longdouble),
    "swapped bytes": lambda p: np.eye(4, dtype=">f8"),
    "masked": lambda p: np.ma.masked_equal(np.eye(4), 1.0),
    "np.matrix": lambda p: np.asmatrix(np.eye(4)),
    "CSR": lambda p: p.sparse.csr_matrix(p.xp.eye(4)),
    "CSR of another shape": lambda p: p.sparse.csr_matrix(p.xp.ones((4, 6))),
    "CSR of NaN": lambda p: p.sparse.csr_matrix(p.xp.full((4, 4), np.nan)),
    "CSR of complex numbers": lambda p: p.sparse.csr_matrix(p.xp.eye(4, dtype=complex)),
    "CSR whose columns are out of range": lambda p: _broken(p, "indices", 9),
    "CSR whose columns are negative": lambda p: _broken(p, "indices", -1),
    "CSR whose row pointer falls": lambda p: _broken(p, "indptr", 3),
    "CSR whose row pointer is too long": lambda p: _broken(p, "indptr", 900),
    "a sparse array of one dimension": lambda p: __import__("scipy.sparse").sparse.coo_array(np.arange(4.0)),
    "CSR of no size": lambda p: p.sparse.csr_matrix((0, 0)),
    "CSC": lambda p: p.sparse.csc_matrix(p.xp.eye(4)),
    "a path": lambda p: Path("/nonexistent/folder/file"),
    "a folder": lambda p: Path(tempfile.gettempdir()),
}


def _broken(place: Place, part: str, value: int) -> Any:
    matrix = place.sparse.csr_matrix(place.xp.eye(4))
    getattr(matrix, part)[1] = value
    return matrix


def _dense(place: Place) -> Any:
    return place.xp.asarray(np.random.default_rng(1).standard_normal((4, 4)))


def _hermitian(place: Place) -> Any:
    return _dense(place) + _dense(place).T


def _sparse(place: Place) -> Any:
    return place.sparse.csr_matrix(place.xp.diag(place.xp.ones(3), 1) + place.xp.diag(place.xp.ones(3), -1))


def _calls(place: Place) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Return calls that are right, all arguments by name."""
    a, h, s, vector = _dense(place), _hermitian(place), _sparse(place), place.xp.ones(4)
    backend, out = {"backend": place.backend}, place.xp.empty((4, 4))

    def of_host(matrix: Any) -> Any:
        return matrix.get() if place.on_gpu else matrix

    pattern = tsparse.symbolic(s, s, **backend)
    density = kpm.SpectralDensity(s, 8, 2, rng=1, **backend)
    narrow = {"select": "i", "select_range": (0, 1), "check_finite": True, **backend}
    positional = {
        "multiply": lambda A, B, precision: pattern.multiply(A, B, precision=precision),
        "numeric": lambda data_a, data_b, out: pattern.numeric(data_a, data_b, out=out),
        "add_moments": lambda num_moments: kpm.SpectralDensity(s, 8, 2, rng=1, **backend).add_moments(num_moments),
        "add_vectors": lambda num_vectors: kpm.SpectralDensity(s, 8, 2, rng=1, **backend).add_vectors(num_vectors),
        "call": lambda energy: density(energy),
        "integrate": lambda f: density.integrate(f),
        "save": lambda path: density.save(path),
        "load": lambda path, H: kpm.SpectralDensity.load(path, H, **backend),
    }
    return {
        "spamm": (
            nearsparse.spamm,
            {
                "a": a,
                "b": a,
                "tau": 0.5,
                "block": 16,
                "alpha": 1.0,
                "beta": 1.0,
                "c": a,
                "out": out,
                "strict": False,
                "precision": None,
                "check_finite": None,
                "devices": None,
                "split": "rows",
                "method": "spamm",
                **backend,
            },
        ),
        "spamm ratio": (nearsparse.spamm, {"a": a, "b": a, "valid_ratio": 0.5, **backend}),
        "spamm rtol": (nearsparse.spamm, {"a": a, "b": a, "rtol_factors": 0.1, **backend}),
        "spamm_threshold": (
            nearsparse.spamm_threshold,
            {"a": a, "b": a, "rtol_factors": 0.1, "block": 16, "precision": None, **backend},
        ),
        "norm_map": (nearsparse.norm_map, {"a": a, "block": 16}),
        "tune_tau": (
            nearsparse.tune_tau,
            {"a": a, "b": a, "valid_ratio": 0.5, "iterations": 20, "tolerance": 0.01, "block": 16},
        ),
        "tune_tau of maps": (
            lambda norms, block: nearsparse.tune_tau(
                nearsparse.NormMap(norms, block), nearsparse.NormMap(norms, block), 0.5
            ),
            {"norms": abs(a), "block": 32},
        ),
        "spgemm": (
            tsparse.spgemm,
            {"A": s, "B": s, "precision": None, "memory_limit": None, **backend},
        ),
        "symbolic": (tsparse.symbolic, {"A": s, "B": s, "memory_limit": None, **backend}),
        "multiply": (positional["multiply"], {"A": s, "B": s, "precision": None}),
        "numeric": (positional["numeric"], {"data_a": s.data, "data_b": s.data, "out": place.xp.empty(pattern.nnz)}),
        "error_bound": (tsparse.error_bound, {"A": of_host(s), "B": of_host(s), "precision": None}),
        "eigh": (
            evd.eigh,
            {
                "a": h,
                "b": None,
                "lower": True,
                "eigvals_only": False,
                "overwrite_a": False,
                "overwrite_b": False,
                "type": 1,
                "check_finite": True,
                "subset_by_index": (0, 1),
                "driver": None,
                "UPLO": None,
                **backend,
            },
        ),
        "eigh of two": (evd.eigh, {"a": h, "b": place.xp.eye(4), "type": 2, "driver": "gvd", **backend}),
        "eigvalsh": (
            evd.eigvalsh,
            {"a": h, "b": None, "lower": True, "subset_by_value": (-1.0, 1.0), "UPLO": "L", **backend},
        ),
        "tridiagonalize": (
            evd.tridiagonalize,
            {"a": h, "lower": True, "calc_q": True, "overwrite_a": False, "check_finite": True, **backend},
        ),
        "eigh_tridiagonal": (
            evd.eigh_tridiagonal,
            {"d": vector, "e": vector[:3], "eigvals_only": False, "tol": 0.0, "lapack_driver": "auto", **narrow},
        ),
        "eigvalsh_tridiagonal": (evd.eigvalsh_tridiagonal, {"d": vector, "e": vector[:3], **narrow}),
        "eig_banded": (
            evd.eig_banded,
            {"a_band": a[:2], "lower": False, "eigvals_only": False, "overwrite_a_band": False, "max_ev": 0, **narrow},
        ),
        "eigvals_banded": (evd.eigvals_banded, {"a_band": a[:2], "lower": False, **narrow}),
        "kpm_dos": (
            kpm.kpm_dos,
            {
                "H": s,
                "num_moments": 8,
                "num_vectors": 2,
                "kernel": "jackson",
                "rng": 1,
                "bounds": (-3.0, 3.0),
                "checkpoint": None,
                "checkpoint_s": 600.0,
                **backend,
            },
        ),
        "ldos": (kpm.ldos, {"H": s, "rows": [0, 1], "num_moments": 8, "kernel": "jackson", "bounds": None, **backend}),
        "spectral_function": (
            kpm.spectral_function,
            {
                "H": s,
                "wavevectors": np.ones((1, 2)),
                "positions": np.ones((4, 2)),
                "orbitals": [0, 1, 0, 1],
                "weights": np.ones(4),
                "num_moments": 8,
                "kernel": "jackson",
                "bounds": None,
                **backend,
            },
        ),
        "add_moments": (positional["add_moments"], {"num_moments": 4}),
        "add_vectors": (positional["add_vectors"], {"num_vectors": 1}),
        "density(energy)": (positional["call"], {"energy": 0.5}),
        "integrate": (positional["integrate"], {"f": None}),
        "load": (positional["load"], {"path": Path("/nonexistent/state.npz"), "H": s}),
    }


def misuse(draw: Draw, place: Place) -> None:
    """One argument of a call that is otherwise right is replaced by a mistake."""
    calls = _calls(place)
    name = draw("function", list(calls))
    function, keywords = calls[name]
    which = draw("argument", list(keywords))
    mistake = draw("mistake", list(MISTAKES))
    if "whose" in mistake and which not in ("A", "B", "H"):
        return  # SciPy itself writes past the end where such a matrix is printed
    if mistake == "np.matrix" and which == "rng":
        return  # NumPy's own generator never ends at one
    right = call(draw, function, **keywords) if name not in ("load", "integrate") else None
    holds(not isinstance(right, Refused), f"{name}: a valid call is refused: {right}")
    before = bits(_numbers(right))

    def tried(**given: Any) -> Any:
        try:
            return function(**given)
        except OSError as error:  # as Python says what is wrong with a file
            if name == "load" or which == "checkpoint":
                return None
            raise error

    call(draw, tried, **(keywords | {which: MISTAKES[mistake](place)}))
    if name not in ("load", "integrate"):
        function, keywords = _calls(place)[name]  # what may be overwritten is made anew
        again = call(draw, function, **keywords)
        holds(bits(_numbers(again)) == before, f"{name} gives another result after a mistake")


def _numbers(result: Any) -> Any:
    """Return what of a result can be compared bit for bit."""
    for attribute in ("c", "moments", "norms", "indices", "tau"):
        if hasattr(result, attribute) and not hasattr(result, "indptr"):
            return getattr(result, attribute)
    return result
