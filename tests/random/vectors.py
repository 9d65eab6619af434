"""KPM's functions of vectors and operators, held against eigenvectors of small matrices."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from spectile import kpm
from tests.random.calls import Refused, Unchanged, call, holds, must, same_bits
from tests.random.draw import Draw
from tests.random.kpm import Product, Spectrum, _beyond, _check_bounds, _real_eps, _tolerance, hamiltonian
from tests.random.memory import LAYOUTS, Laid, Place, host, lay

DTYPES = ("float64", "complex128", "float32", "complex64", "int32", ">f8", "float16", "bool", "longdouble")


class Given:
    """A Hamiltonian of a draw, its eigenpairs in the unit of its size, and what is expected of a result's digits."""

    def __init__(self, draw: Draw, place: Place) -> None:
        self.H, self.wide, self.laid = hamiltonian(draw, place)
        self.n, self.spectrum, self.eps = len(self.wide), Spectrum(self.wide), _real_eps(self.H, self.wide)
        self.w, self.v, self.unit = self.spectrum.w, self.spectrum.v, self.spectrum.scale
        self.size = max(float(np.abs(self.w).max()), 1e-300)
        self.width = max(float(self.w[-1] - self.w[0]), 1e-4 * self.size, 1e-300)

    def function(self, f: Any, vectors: np.ndarray) -> np.ndarray:
        """Return a function of the eigenvalues, in the unit of H's size, applied to vectors."""
        return (self.v * f(self.w)) @ (self.v.conj().T @ vectors)

    def usable(self) -> bool:
        """Return whether energies of this size can be told as ordinary numbers."""
        return abs(self.spectrum.exponent) < 200 and self.size > 1e-200

    def refused(self, result: Any, vectors: Laid | None = None) -> bool:
        """Return whether a call is refused for the range of H, or of its vectors, or for their dtype."""
        if isinstance(result, Refused) and vectors is not None:
            dtype = np.dtype(vectors.array.dtype)
            wide = host(vectors.array).astype(complex)
            top = np.abs(wide[wide != 0]).min(initial=1) > 1e-17 and np.abs(wide).max(initial=0) < 1e17
            if dtype == np.longdouble or not top:
                return True
        return _beyond(result, self.spectrum, self.eps)


def block(draw: Draw, name: str, given: Given, place: Place, most: int = 9) -> tuple[Laid, np.ndarray]:
    """Return vectors of any dtype and layout, and what they are."""
    rng, dtype = draw.rng(f"values of {name}"), np.dtype(draw(f"dtype of {name}", DTYPES))
    count = draw(f"columns of {name}", (None, 1, 2, 3, most, 0))
    values = rng.standard_normal((given.n,) if count is None else (given.n, count))
    values = values + 1j * rng.standard_normal(values.shape) if dtype.kind == "c" else values
    values = (3 * values).astype(dtype)
    if place.on_gpu:
        values = values.astype(dtype.newbyteorder("=") if dtype.char != "g" else "float64")
    laid = lay(values, draw(f"layout of {name}", LAYOUTS), place)
    return laid, host(laid.array).astype(np.complex128)


def _size(vectors: np.ndarray) -> Any:
    return np.linalg.norm(vectors, axis=0)


def _near(found: Any, exact: np.ndarray, size: Any, allowed: float, what: str) -> None:
    found = host(found)
    holds(found.shape == exact.shape, f"{what} has shape {found.shape}, not {exact.shape}")
    off = np.abs(found - exact)
    holds(
        np.isfinite(off).all() and (off <= allowed * size + 1e-300).all(),
        f"{what} is off by {(off / (size + 1e-300)).max(initial=0):.2g}, allowed {allowed:.2g}",
    )


def _again(draw: Draw, found: Any, function: Any, *arguments: Any, **options: Any) -> None:
    """The same call gives the same bits, and one that writes checkpoints the same numbers."""
    options["progress"] = draw("progress", [False, True])
    if not draw.rarely("checkpoint", 4):
        same_bits(found, function(*arguments, **options))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        other = must(call(draw, function, *arguments, checkpoint=path, checkpoint_s=0, **options))
    size = np.abs(host(found)).max(initial=0)
    holds(np.allclose(host(other), host(found), rtol=1e-5, atol=1e-5 * size), "a checkpoint gives other numbers")


def _none(block: np.ndarray) -> bool:
    return block.ndim == 2 and block.shape[1] == 0


def _bounds(draw: Draw, given: Given) -> dict[str, Any]:
    if not draw.rarely("bounds", 3) or not given.usable():
        return {}
    margin = draw("margin", (0.01, 0.5)) * given.width
    return {
        "bounds": tuple(float(x) for x in ((given.w[0] - margin) * given.unit, (given.w[-1] + margin) * given.unit))
    }


def chebyshev(draw: Draw, place: Place) -> None:
    """The iterator's vectors, or products with others, one after the other; saved and gone on with."""
    given = Given(draw, place)
    laid, wide = block(draw, "vectors", given, place)
    count, options = draw("num_moments", (1, 2, 5, 40)), {"backend": place.backend} | _bounds(draw, given)
    other = None
    if draw("bra", [0, 0, 1]):
        shape = wide.shape if draw("shape of bra", [1, 1, 0]) else (given.n, 7)
        values = draw.rng("bra").standard_normal(shape).astype("float64")
        other = lay(values, "C", place)
        options["bra"] = other.array
    unchanged = Unchanged(**given.laid, vectors=laid, bra=other)
    terms = call(draw, kpm.chebyshev, given.H, laid.array, count, **options)
    unchanged.check()
    if _none(wide) or (other is not None and other.array.shape != laid.array.shape):
        holds(isinstance(terms, Refused), "vectors that do not fit are taken")
        return
    if given.refused(terms, laid):
        return
    made = call(draw, lambda: [np.array(host(one), copy=True) for one in terms])
    if given.refused(made, laid):
        return
    holds(len(made) == count, f"{len(made)} terms, not {count}")
    eps = max(given.eps, float(np.finfo(made[0].dtype).eps))
    allowed = _tolerance(eps, count, given.n, given.spectrum, terms.bounds)
    x = np.clip((given.w - terms.centre / given.unit) / (terms.scale / given.unit), -1, 1)
    for m, term in enumerate(made):
        exact = given.function(lambda _, m=m: np.cos(m * np.arccos(x)), wide)
        size = _size(wide)
        if other is not None:
            exact, size = (host(other.array).conj() * exact).sum(axis=0), size * _size(host(other.array))
        _near(term, exact, size, allowed, f"term {m}")
    again = kpm.chebyshev(given.H, laid.array, count, **options)
    same_bits([np.array(host(one), copy=True) for one in again], made)
    unchanged.check()


def evolve(draw: Draw, place: Place) -> None:
    """States at times of either sign."""
    given = Given(draw, place)
    if not given.usable():
        return
    laid, wide = block(draw, "psi", given, place)
    rng = draw.rng("times")
    times = draw("times", [0.0, rng.uniform(-5, 5, 3), [], rng.uniform(-1, 1, 20), 30.0, [0.0, 0.0, 1.0]])
    tolerance = draw("tolerance", (1e-12, 1e-6, 1e-3))
    when = np.asarray(times, float) / given.width
    given_times = draw(
        "kind of times", [np.asarray, lambda x: np.asarray(x).tolist(), lambda x: x[::-1][::-1] if x.ndim else x]
    )(when / given.unit)
    options = {"tolerance": tolerance, "backend": place.backend} | _bounds(draw, given)
    unchanged = Unchanged(**given.laid, psi=laid)
    states = call(draw, kpm.evolve, given.H, laid.array, given_times, **options)
    unchanged.check()
    if _none(wide):
        holds(isinstance(states, Refused), "no vectors are taken")
        return
    if given.refused(states, laid):
        return
    flat = when.ravel()
    exact = np.array([given.function(lambda w, t=t: np.exp(-1j * w * t), wide) for t in flat]).reshape(
        *when.shape, *wide.shape
    )
    eps = max(given.eps, float(np.finfo(host(states).dtype).eps))
    most = float(np.abs(flat).max(initial=0))
    # Of phases of energies far from zero the digits are lost that the energies have more.
    allowed = 2 * tolerance + 200 * eps * (1 + most * (given.size + 3 * given.width))
    _near(states, exact, _size(wide), allowed, "a state")
    _again(draw, states, kpm.evolve, given.H, laid.array, given_times, **options)


FUNCTIONS = {
    "exp": lambda x: np.exp(-x),
    "turn": lambda x: np.exp(2j * x),
    "square": lambda x: x * x,
    "one": lambda x: np.ones_like(x),
    "peak": lambda x: 1 / (1 + x * x),
}


def apply(draw: Draw, place: Place) -> None:
    """A smooth function of H on vectors."""
    given = Given(draw, place)
    if not given.usable():
        return
    laid, wide = block(draw, "psi", given, place)
    f = FUNCTIONS[draw("f", list(FUNCTIONS))]
    middle, half = (given.w[0] + given.w[-1]) / 2, given.width
    tolerance = draw("tolerance", (1e-10, 1e-5))
    options = {"tolerance": tolerance, "backend": place.backend} | _bounds(draw, given)
    options |= {"num_moments": 200} if draw.rarely("num_moments", 3) else {}

    def scaled(energy: Any) -> Any:
        return f((energy / given.unit - middle) / half)

    unchanged = Unchanged(**given.laid, psi=laid)
    found = call(draw, kpm.apply, scaled, given.H, laid.array, **options)
    unchanged.check()
    if _none(wide):
        holds(isinstance(found, Refused), "no vectors are taken")
        return
    if given.refused(found, laid):
        return
    exact = given.function(lambda w: f((w - middle) / half), wide)
    eps = max(given.eps, float(np.finfo(host(found).dtype).eps))
    allowed = 60 * tolerance + 1e4 * eps * (1 + given.size / given.width)
    _near(found, exact, _size(wide), allowed, "f(H) psi")
    _again(draw, found, kpm.apply, scaled, given.H, laid.array, **options)


def greens_function(draw: Draw, place: Place) -> None:
    """Entries or columns of the resolvent, retarded or advanced."""
    given = Given(draw, place)
    if not given.usable():
        return
    rng = draw.rng("places")
    i = draw("i", [0, [0], None, rng.integers(0, given.n, 5).tolist()])
    j = draw("j", [0, [0], rng.integers(0, given.n, 4).tolist()])
    eta = draw("eta", (0.3, 0.05, -0.3, 3.0)) * given.width
    energies = draw("energies", [0.5, [0.0, 1.0], rng.uniform(-1, 2, 20), []])
    at = given.w[0] + np.asarray(energies, float) * given.width
    options = {"tolerance": draw("tolerance", (1e-10, 1e-4)), "backend": place.backend} | _bounds(draw, given)
    unchanged = Unchanged(**given.laid)
    found = call(draw, kpm.greens_function, given.H, i, j, at * given.unit, eta * given.unit, **options)
    unchanged.check()
    if i is None and at.size == 0:
        holds(isinstance(found, Refused), "no energies are taken")
        return
    if given.refused(found):
        return
    rows, columns = np.arange(given.n) if i is None else np.atleast_1d(i), np.atleast_1d(j)
    left, right = given.v[rows], given.v[columns].conj()
    exact = np.array([(left / (E + 1j * eta - given.w)) @ right.T for E in at.ravel()]).reshape(
        *at.shape, len(rows), len(columns)
    )
    exact = exact[..., 0] if np.ndim(j) == 0 else exact
    if i is not None and np.ndim(i) == 0:
        exact = exact[..., 0] if np.ndim(j) == 0 else exact[..., 0, :]
    made, found = found, host(found) * given.unit
    cond = (given.size + given.width + np.abs(at).max(initial=0)) / abs(eta)
    allowed = 10 * options["tolerance"] + 300 * given.eps * (1 + cond) ** 1.5
    _near(found, exact, 1 / abs(eta), allowed, "G")
    places = at * given.unit, eta * given.unit
    _again(draw, made, kpm.greens_function, given.H, i, j, *places, **options)


def interior(draw: Draw, place: Place) -> None:
    """Pairs inside an interval, and how many there are."""
    given = Given(draw, place)
    bounds = call(draw, kpm.spectral_bounds, given.H, backend=place.backend)
    if _beyond(bounds, given.spectrum, given.eps):
        return
    _check_bounds(bounds, given.spectrum, given.eps, False)
    if not given.usable():
        return
    ends = np.sort(draw.rng("interval").uniform(-0.05, 1.05, 2))
    low, high = given.w[0] + ends * given.width
    interval = float(low * given.unit), float(high * given.unit)
    if not interval[0] < interval[1]:
        return
    seed = int(draw.rng("seed").integers(2**31))
    options = {"rng": seed, "backend": place.backend} | _bounds(draw, given)
    found = call(
        draw,
        kpm.count,
        given.H,
        interval,
        num_moments=draw("num_moments", (16, 100, 512)),
        num_vectors=draw("num_vectors", (16, 33)),
        **options,
    )
    if _beyond(found, given.spectrum, given.eps):
        return
    inside = int(((given.w >= low) & (given.w <= high)).sum())
    # A level at an end is half in, and the error is an estimate.
    holds(
        abs(found.value - inside) <= 8 * found.error + 0.5,
        f"{found.value:.3g} ± {found.error:.2g} levels are counted, not {inside}",
    )
    tolerance = draw("tolerance", (None, 1e-6, 1e-3))
    states = draw("num_states", (None, None, given.n))
    options |= {"num_states": states} if states else {}
    options |= {"num_moments": 60} if draw.rarely("few moments") else {}

    def pairs_or_sentence() -> Any:
        try:
            return kpm.filter_diagonalize(given.H, interval, tolerance=tolerance, **options)
        except RuntimeError as error:
            holds("are expected: give" in str(error), f"bare RuntimeError: {error}")
            return None

    draw.called.setdefault("filter_diagonalize", set()).update(("H", "interval", "tolerance", *options))
    pairs = call(draw, pairs_or_sentence)
    if pairs is None or _beyond(pairs, given.spectrum, given.eps):
        return
    w, x = pairs.eigenvalues / given.unit, host(pairs.eigenvectors)
    slack = (tolerance or max(1e-10, 64 * given.eps)) * 3 * given.width + 200 * given.eps * given.size
    sure = ((given.w > low + slack) & (given.w < high - slack)).sum()
    may = ((given.w > low - 2 * slack) & (given.w < high + 2 * slack)).sum()
    holds(sure <= len(w) <= may, f"{len(w)} pairs of {sure} to {may} in the interval")
    nearest = np.abs(given.w[:, None] - w).min(axis=0, initial=np.inf) if len(w) else np.zeros(0)
    holds((nearest <= slack).all() and (np.diff(w) >= 0).all(), f"an eigenvalue is off by {nearest.max(initial=0):.2g}")
    scaled = given.wide * (1 / given.unit)
    residual = np.linalg.norm(scaled @ x - x * w, axis=0)
    holds((residual <= slack).all(), f"a residual is {residual.max(initial=0):.2g}")
    gram = np.abs(x.conj().T @ x - np.eye(len(w))).max(initial=0)
    holds(gram <= 1e4 * given.eps + slack / given.width, f"vectors are not orthonormal by {gram:.2g}")


def _operator(draw: Draw, name: str, given: Given, place: Place) -> tuple[Any, np.ndarray]:
    """Return an operator as callers give it, and the matrix that it is."""
    import scipy.sparse as sp

    rng, n, kind = (
        draw.rng(name),
        given.n,
        draw(name, ("sparse", "none", "dense", "object", "function", "complex", "csc")),
    )
    if kind == "none":
        return None, np.eye(n)
    a = rng.standard_normal((n, n)) * (rng.random((n, n)) < 0.3)
    if kind == "complex":
        a = a + 1j * rng.standard_normal((n, n)) * (a != 0)
    if kind in ("object", "function"):  # are Hermitian
        a = (a + a.T) / 2
        on = place.xp.asarray(a)
        return (Product(on) if kind == "object" else lambda x: on @ x), a
    if kind == "dense":
        return place.xp.asarray(a), a
    matrix = sp.csr_matrix(a)
    if place.on_gpu:
        matrix = place.sparse.csr_matrix(matrix)
    return (matrix.tocsc() if kind == "csc" and not place.on_gpu else matrix), a


def _polynomials(given: Given, curves: Any, count: int) -> np.ndarray:
    """Return T_m of H, shape (count, N, N)."""
    x = np.clip((given.w - curves.centre / given.unit) / (curves.scale / given.unit), -1, 1)
    return np.array([(given.v * np.cos(m * np.arccos(x))) @ given.v.conj().T for m in range(count)])


def correlator(draw: Draw, place: Place) -> None:
    """Moments of two operators over given vectors or random ones."""
    given = Given(draw, place)
    if given.n > 70:
        return
    (A, a), (B, b) = _operator(draw, "A", given, place), _operator(draw, "B", given, place)
    count = draw("num_moments", (2, 3, 8, 20))
    laid, wide = block(draw, "vectors", given, place)
    options: dict[str, Any] = {"num_moments": count, "backend": place.backend} | _bounds(draw, given)
    random = draw("random vectors", [0, 0, 1])
    options |= {"num_vectors": draw("num_vectors", (1, 2, 5)), "rng": 3} if random else {"vectors": laid.array}
    options |= {"memory_limit": draw("memory_limit", (10**8, 3000, 1))} if draw.rarely("limit", 3) else {}
    options |= {"kernel": "lorentz"} if draw.rarely("kernel") else {}
    unchanged = Unchanged(**given.laid, vectors=laid)
    found = call(draw, kpm.correlator, given.H, A, B, **options)
    unchanged.check()
    if not random and (_none(wide) or (wide.size and not np.abs(wide).sum(axis=0).all())):
        holds(isinstance(found, Refused), "vectors of nothing are taken")
        return
    if given.refused(found, None if random else laid):
        return

    def moments(*arguments: Any, **words: Any) -> Any:
        made = call(draw, kpm.correlator, *arguments, **words)
        return made if isinstance(made, Refused) else made.moments_by_vector

    _again(draw, found.moments_by_vector, moments, given.H, A, B, **options)
    energies = np.linspace(*found.bounds, 5)
    values = must(call(draw, found, energies, energies[::-1]))
    holds(np.isfinite(values).all() or not given.usable(), "j is not finite")
    if random:
        return
    columns = wide if wide.ndim == 2 else wide[:, None]
    columns = columns * (math.sqrt(given.n) / np.linalg.norm(columns, axis=0))
    T = _polynomials(given, found, count)
    left = np.array([a @ t for t in T])
    right = np.array([b @ (t @ columns) for t in T])
    exact = np.einsum("ir,mij,njr->rmn", columns.conj(), left, right, optimize=True)
    size = given.n * max(1.0, np.linalg.norm(a, 2)) * max(1.0, np.linalg.norm(b, 2))
    eps = (
        max(given.eps, float(np.finfo(np.result_type(laid.array.dtype, "float32")).eps))
        if laid.array.dtype.kind in "fc"
        else given.eps
    )
    allowed = 4 * _tolerance(eps, count, given.n, given.spectrum, found.bounds)
    _near(found.moments_by_vector, exact, size, allowed, "a moment")


def conductivity(draw: Draw, place: Place) -> None:
    """Conductivities by given or made velocities, whose moments are those of the matrices."""
    given = Given(draw, place)
    if given.n > 40 or not given.usable():
        return
    rng, d = draw.rng("positions"), draw("d", (1, 2, 3))
    positions = rng.uniform(0, 5, (given.n, d))
    periods = 12.0 * np.eye(d) if draw("periods", [0, 1]) else None
    pair = draw("directions", [("x", "x"), ("x", "y"), ("y", "x")]) if d > 1 else ("x", "x")
    kept = given.H
    options: dict[str, Any] = {"num_moments": draw("num_moments", (4, 9, 16)), "backend": place.backend, "area": 2.5}
    options |= {"vectors": place.xp.eye(given.n)}
    options |= (
        {"formula": draw("formula", ("bastin", "greenwood" if pair[0] == pair[1] else "bastin"))}
        if draw("name it", [0, 1])
        else {}
    )
    unchanged = Unchanged(**given.laid)
    sigma = call(draw, kpm.conductivity, kept, *pair, positions, periods=periods, **options)
    unchanged.check()
    if isinstance(sigma, Refused) and isinstance(kept, Product):
        return  # has no entries
    if _beyond(sigma, given.spectrum, given.eps):
        return
    velocities = []
    for axis in pair:
        found = call(draw, kpm.velocity, kept, axis, positions, periods=periods)
        made = must(found)
        made = made.get() if hasattr(made, "get") else made
        velocities.append((made.toarray() if hasattr(made, "toarray") else np.asarray(made)) / given.unit)
        k = "xyz".index(axis)
        hop = positions[None, :, k] - positions[:, None, k]
        exact = 1j * (given.wide / given.unit) * (hop if periods is None else hop - 12.0 * np.rint(hop / 12.0))
        _near(velocities[-1], exact, given.size, 40 * given.eps * 12, "a velocity")
    count, T = options["num_moments"], _polynomials(given, sigma.correlator, options["num_moments"])
    exact = np.array([[np.trace(velocities[0] @ one @ velocities[1] @ two) for two in T] for one in T])
    size = given.n * max(np.linalg.norm(velocities[0], 2) * np.linalg.norm(velocities[1], 2), 1e-300)
    allowed = 8 * _tolerance(given.eps, count, given.n, given.spectrum, sigma.correlator.bounds)
    _near(sigma.correlator.moments / given.unit**2, exact, size, allowed, "a moment")
    levels = np.linspace(-0.2, 1.2, 7) * (given.w[-1] - given.w[0]) + given.w[0]
    for temperature in (0.0, 0.1 * given.width * given.unit):
        values, errors = sigma(levels * given.unit, temperature), sigma.error(levels * given.unit, temperature)
        holds(
            np.isfinite(values).all() and values.shape == errors.shape == levels.shape, "conductivities are not finite"
        )


def expectation(draw: Draw, place: Place) -> None:
    """Densities, local ones and spectral functions of an operator, or of given vectors, or of each vector."""
    given = Given(draw, place)
    if given.n > 100:
        return
    A, a = _operator(draw, "operator", given, place)
    count = draw("num_moments", (2, 3, 8, 33))
    options: dict[str, Any] = {"num_moments": count, "backend": place.backend} | _bounds(draw, given)
    options |= {"operator": A} if A is not None else {}
    if given.usable() and draw.rarely("energy_resolution"):
        options["energy_resolution"] = 0.5 * given.width * given.unit
    function = draw("function", ("kpm_dos", "ldos", "spectral_function"))
    laid, wide = block(draw, "vectors", given, place)
    unchanged = Unchanged(**given.laid, vectors=laid)
    mean = draw("mean", [True, True, False])
    if function == "kpm_dos":
        options |= {"vectors": laid.array} | ({} if mean else {"mean": False})
        found = call(draw, kpm.kpm_dos, given.H, **options)
        columns = wide if wide.ndim == 2 else wide[:, None]
    elif function == "ldos":
        rows = draw.rng("rows").integers(0, given.n, draw("num_rows", (1, 3, 20)))
        found, columns, mean = call(draw, kpm.ldos, given.H, rows, **options), np.eye(given.n)[:, rows], False
    else:
        k, r = draw.rng("k").uniform(-3, 3, (draw("K", (1, 3)), 2)), draw.rng("r").integers(-3, 4, (given.n, 2)) * 1.0
        found, mean = call(draw, kpm.spectral_function, given.H, k, r, **options), False
        columns = np.exp(1j * r @ k.T) / math.sqrt(given.n)
    unchanged.check()
    if function == "kpm_dos" and _none(wide):
        holds(isinstance(found, Refused), "no vectors are taken")
        return
    if given.refused(found, laid if function == "kpm_dos" else None):
        return
    count = len(found.moments)
    T = _polynomials(given, found, count)
    exact = np.array([((a.conj().T @ columns).conj() * (t @ columns)).sum(axis=0) for t in T])
    size = np.maximum(_size(columns) ** 2 * max(1.0, np.linalg.norm(a, 2)), 1e-300)
    exact, size = (exact.mean(axis=1), size.mean()) if mean else (exact, size)
    eps = max(
        given.eps,
        float(np.finfo(laid.array.dtype).eps) if laid.array.dtype.kind in "fc" and function == "kpm_dos" else 0.0,
    )
    allowed = 4 * _tolerance(min(eps, 1.2e-7), count, given.n, given.spectrum, found.bounds)
    moments = np.asarray(found.moments)
    moments = moments[:, 0] if moments.ndim == 2 and exact.ndim == 1 else moments
    _near(moments, exact, size, allowed, f"a moment of {function}")


def realizations(draw: Draw, place: Place) -> None:
    """Means over realizations, whose numbers do not depend on how many there are; what a model file holds."""
    shape, count, seed = (
        draw("shape", ((), (3,), (2, 2))),
        draw("count", (1, 2, 5)),
        int(draw.rng("seed").integers(2**31)),
    )
    seen: list[np.ndarray] = []

    def observe(rng: np.random.Generator) -> np.ndarray:
        seen.append(rng.standard_normal(shape))
        return seen[-1]

    mean, error = must(call(draw, kpm.average, observe, count, seed))
    values = np.array(seen)
    holds(np.allclose(mean, values.mean(axis=0)) and mean.shape == shape, "the mean is wrong")
    expected = np.full(shape, np.nan) if count == 1 else values.std(axis=0, ddof=1) / math.sqrt(count)
    holds(np.allclose(error, expected, equal_nan=True), "the error is wrong")
    first = list(seen)
    seen.clear()
    kpm.average(observe, count + 1, seed)
    holds(all(np.array_equal(x, y) for x, y in zip(first, seen, strict=False)), "realizations depend on their number")
    _model(draw)


def _model(draw: Draw) -> None:
    """A file of Wannier90 with random hops: the Bloch Hamiltonian is their sum."""
    rng, orbitals = draw.rng("hops"), draw("orbitals", (1, 2, 5))
    cells = [(0, 0, 0), (1, 0, 0), (-1, 0, 0), (0, 2, -1), (0, -2, 1)][: draw("cells", (1, 3, 5))]
    hops = {
        cell: rng.standard_normal((orbitals, orbitals)) + 1j * rng.standard_normal((orbitals, orbitals))
        for cell in cells
    }
    for cell in cells:
        opposite = tuple(-x for x in cell)
        hops[opposite] = (hops[cell].conj().T + hops[cell]) / 2 if cell == opposite else hops[cell].conj().T
    weights = rng.integers(1, 3, len(cells))
    weights[1:] = np.repeat(weights[1::2], 2)[: len(cells) - 1] if len(cells) > 1 else weights[1:]
    lines = ["random", f"{orbitals}", f"{len(cells)}", " ".join(map(str, weights))]
    for cell in cells:
        for j, i in np.ndindex(orbitals, orbitals):
            value = hops[cell][i, j]
            lines.append(
                f"{cell[0]:5d}{cell[1]:5d}{cell[2]:5d}{i + 1:5d}{j + 1:5d} {value.real:.12f} {value.imag:.12f}"
            )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model_hr.dat"
        path.write_text("\n".join(lines) + "\n")
        model = must(call(draw, kpm.read_wannier90, path if draw("kind of path", [0, 1]) else str(path)))
    k = draw.rng("k").uniform(-1, 1, 3)
    found = host(model.bloch(k))
    exact = sum(hops[cell] / w * np.exp(1j * np.dot(k, cell)) for cell, w in zip(cells, weights, strict=True))
    _near(found, np.asarray(exact), 10.0, 1e-10, "H(k)")
