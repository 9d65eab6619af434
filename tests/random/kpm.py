"""KPM's calls, held against moments by the eigenvectors of small matrices."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from spectile import kpm
from spectile.kpm import reference
from spectile.kpm.reference import seed_of
from spectile_study.cases.kpm import stages
from tests.random.calls import Fault, Refused, Unchanged, bits, call, holds, must, same_bits
from tests.random.draw import Draw
from tests.random.memory import Laid, Place, exponents, lay

SIZES = (1, 2, 3, 5, 8, 16, 17, 33, 64, 65, 100, 150)
DTYPES = ("float64", "float32", "complex128", "complex64", "float64", ">f8", "int32", "int8", "bool", "float16")
FORMATS = ("csr", "csr", "csr", "csc", "coo", "bsr", "dia", "lil", "dok", "dense", "operator")
VECTORS = ("C", "C", "gaps", "backwards", "shifted", "read-only", "odd address", "part")
STRUCTURES = ("random", "random", "chain", "ring", "diagonal", "zero", "hub", "full", "far from zero", "wide diagonal")


class Product:
    """An operator that has a product and nothing more."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix, self.shape, self.dtype = matrix, matrix.shape, matrix.dtype

    def __matmul__(self, x: Any) -> Any:
        return self.matrix @ x


def hamiltonian(draw: Draw, place: Place) -> tuple[Any, np.ndarray, dict[str, Laid]]:
    """Return H as it is given, what it is in double precision, and the memory it lies in."""
    import scipy.sparse as sp

    n, dtype = draw("n", SIZES), np.dtype(draw("dtype", DTYPES))
    structure, rng = draw("structure", STRUCTURES), draw.rng("pattern")
    real = np.dtype("float32") if dtype in (np.float32, np.complex64, np.float16) else np.dtype("float64")
    x = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if dtype.kind == "c" else 0)
    distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    if structure in ("chain", "ring"):
        x = -1.0 * (distance == 1)
        if structure == "ring" and n > 2:
            x[0, -1] = x[-1, 0] = -1
    elif structure == "random":
        x = x * (rng.random((n, n)) < 0.1)
    elif structure == "diagonal":
        x = x * (distance == 0)
    elif structure == "zero":
        x = x * 0
    elif structure == "hub":
        x = x * ((np.arange(n) == 0)[:, None] | (np.arange(n) == 0) | (distance == 0))
    elif structure == "far from zero":
        x = -1.0 * (distance == 1) + 1e4 * np.eye(n)
    elif structure == "wide diagonal":
        x = x * (rng.random((n, n)) < 0.1) + np.diag(50 * np.arange(n))
    a = (x + x.conj().T) / 2
    if dtype.kind in "biu":
        a = np.clip(np.rint(3 * a.real), *((0, 1) if dtype.kind == "b" else (-100, 100))).astype(dtype)
    else:
        exponent = draw("exponent", [0, 0, 0, 0, 0, *exponents(real)[4:-2]])
        wide = a.astype(np.clongdouble if dtype.kind == "c" else np.longdouble)
        largest = float(np.max(np.abs(a), initial=1))
        # The sums of a row stay within the range.
        exponent = min(exponent, np.finfo(real).maxexp - 12 - int(np.log2(largest * n)))
        exponent = min(exponent, 15 - int(np.ceil(np.log2(largest)))) if dtype == np.float16 else exponent
        with np.errstate(all="ignore"):
            parts = [np.ldexp(part, exponent) for part in (wide.real, wide.imag)]
            a = (parts[0] + 1j * parts[1] if dtype.kind == "c" else parts[0]).astype(dtype)
    form = draw("format", FORMATS if not place.on_gpu else ("csr", "csr", "csc", "coo", "dense"))
    laid: dict[str, Laid] = {}
    wide_a = a.astype(np.complex128 if dtype.kind == "c" else np.float64)
    if form == "dense":
        laid["H"] = lay(a, draw("layout", ("C", "F", "gaps", "backwards", "odd address", "read-only")), place)
        return laid["H"].array, wide_a, laid
    if form == "operator":
        return Product(wide_a), wide_a, laid
    if form not in ("csr", "csc", "coo"):
        native = a.astype("float64") if not dtype.isnative or dtype == np.float16 else a
        clean = sp.csr_array(native)
        if form == "bsr":
            return clean.tobsr((1, 1)), wide_a, laid
        return clean.asformat(form), wide_a, laid
    rows, columns = np.nonzero(a)
    if (place.on_gpu and dtype.kind in "iu") or dtype == np.float16:
        a = a.astype("float64")
    if place.on_gpu or form == "coo":
        a = a.astype(a.dtype.newbyteorder("="))
    order = np.lexsort((rng.random(len(rows)), rows)) if draw.rarely("unsorted", 4) else np.arange(len(rows))
    rows, columns = rows[order], columns[order]
    values = a[rows, columns]
    if len(values) and draw.rarely("duplicates", 4) and a.dtype.kind in "fc":
        # The diagonal in two halves, so that the sum is exact.
        half = np.where(rows == columns, values / 2, values).astype(a.dtype)
        exact = np.where(rows == columns, half + half == values, False)
        half = np.where(exact, half, values)
        rows, columns, values = (
            np.append(each, each2)
            for each, each2 in ((rows, rows[exact]), (columns, columns[exact]), (half, half[exact]))
        )
        values = values.astype(a.dtype)
        again = np.argsort(rows, kind="stable")
        rows, columns, values = rows[again], columns[again], values[again]
    wide = draw("indices", [np.int32, np.int32, np.int64])
    layout = draw("layout", VECTORS) if not place.on_gpu else "C"
    kind = draw("kind", ["array", "matrix"]) if not place.on_gpu else "matrix"

    def vector(what: str, array: np.ndarray) -> Any:
        if layout == "part" and array.dtype.kind == "f":
            # The real part of a complex array, as of H.real.
            whole = np.full(len(array), 7 - 3j, np.result_type(array.dtype, np.complex64))
            whole.real[:] = array
            laid[what] = Laid(whole.real, whole)
        else:
            laid[what] = lay(array, "C" if layout == "part" else layout, place)
        return laid[what].array

    if form == "coo":
        matrix = getattr(place.sparse, f"coo_{kind}")((n, n))
        pair = vector("rows", rows.astype(wide)), vector("columns", columns.astype(wide))
        if kind == "array":
            matrix.coords = pair
        else:
            matrix.row, matrix.col = pair
        matrix.data, matrix.has_canonical_format = vector("data", values), False
        return matrix, wide_a, laid
    if form == "csc":
        again = np.argsort(columns, kind="stable")
        rows, columns, values = columns[again], rows[again], values[again]
    matrix = getattr(place.sparse, f"{form}_{kind}")((n, n))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))]).astype(wide)
    matrix.data, matrix.indices, matrix.indptr = (
        vector("data", values),
        vector("indices", columns.astype(wide)),
        vector("indptr", indptr),
    )
    return matrix, wide_a, laid


class Spectrum:
    """Eigenvalues and vectors of H, divided by its size, which a square must not lose."""

    def __init__(self, wide: np.ndarray) -> None:
        largest = float(np.max(np.abs(wide), initial=0))
        self.exponent = int(np.frexp(largest)[1]) if largest > 0 else 0
        self.w, self.v = np.linalg.eigh(wide * 2.0 ** -min(max(self.exponent, -1000), 1000) if largest else wide)
        self.scale = 2.0 ** min(max(self.exponent, -1000), 1000) if largest else 1.0

    def moments(self, vectors: np.ndarray, count: int, curves: Any) -> np.ndarray:
        """Return the moments of start vectors, shape (count, R), in the scale of a result."""
        x = (self.w - curves.centre / self.scale) / (curves.scale / self.scale)
        weights = np.abs(self.v.conj().T @ vectors) ** 2
        return np.array([np.cos(m * np.arccos(np.clip(x, -1, 1))) @ weights for m in range(count)])


def _tolerance(engine_eps: float, count: int, n: int, spectrum: Spectrum, bounds: tuple[float, float]) -> float:
    """Return what rounding may change: of H − b beside its width, growing with the square of the order."""
    half = (bounds[1] - bounds[0]) / 2
    size = max(abs(bounds[0]), abs(bounds[1]), half)
    cond = size / half if half > 0 else 1e6
    return float(40 * engine_eps * count * (count + 20) * min(cond, 1e8) * 0.25 + 1e-13)


def _beyond(result: Any, spectrum: Spectrum, eps: float) -> bool:
    """Return whether H is refused because its size leaves the range that a and b need; others must not be refused."""
    most = 100 if eps > 1e-10 else 990
    if isinstance(result, Refused) and not -most < spectrum.exponent < most:
        return True
    must(result)
    return False


def _check_bounds(bounds: tuple[float, float], spectrum: Spectrum, eps: float, given: bool) -> None:
    low, high = bounds[0] / spectrum.scale, bounds[1] / spectrum.scale
    w = spectrum.w
    size = max(np.abs(w).max(), 1e-300)
    # FILL leaves a hundredth of the width for what Lanczos misses.
    width = max(high - low, 0.0)
    slack = 0.006 * width + 100 * eps * size
    holds(
        low - slack <= w[0] and w[-1] <= high + slack,
        f"the spectrum {w[0]:.6g} to {w[-1]:.6g} leaves the bounds {low:.6g} to {high:.6g}",
    )
    if not given:
        allowed = 3 * (w[-1] - w[0]) + 4e4 * eps * size
        holds(
            width <= allowed or size < 1e-290,
            f"bounds of {width:.3g} of the size of H, the spectrum is {w[-1] - w[0]:.3g} wide",
        )


def _real_eps(H: Any, a: np.ndarray) -> float:
    dtype = np.dtype(H.dtype)
    return float(np.finfo("float32" if dtype in (np.float32, np.complex64) else "float64").eps)


def kpm_dos(draw: Draw, place: Place) -> None:
    """A density of states: bounds, moments, integral; continued, saved and loaded."""
    H, wide, laid = hamiltonian(draw, place)
    n, spectrum, eps = len(wide), Spectrum(wide), _real_eps(H, wide)
    moments, vectors = draw("num_moments", (2, 3, 16, 33, 64, 100)), draw("num_vectors", (1, 2, 3, 5, 8, 17, 65))
    seed = int(draw.rng("seed").integers(2**31))
    keywords: dict[str, Any] = {"rng": seed, "backend": place.backend}
    kernel = draw("kernel", ["jackson", "jackson", "lorentz"])
    keywords |= {"kernel": kernel} if kernel != "jackson" else {}
    given = draw.rarely("bounds", 4)
    if given:
        margin = draw("margin", (0.01, 0.5, 3.0)) * max(
            spectrum.w[-1] - spectrum.w[0], 1e-3 * np.abs(spectrum.w).max(), 1e-3
        )
        ends = (spectrum.w[0] - margin) * spectrum.scale, (spectrum.w[-1] + margin) * spectrum.scale
        if not np.isfinite(ends).all() or not ends[0] < ends[1]:
            return
        keywords["bounds"] = tuple(map(float, ends))
    unchanged = Unchanged(**laid)
    density = call(draw, kpm.kpm_dos, H, moments, vectors, **keywords)
    unchanged.check()
    if _beyond(density, spectrum, eps):
        return
    _check_bounds(density.bounds, spectrum, eps, given)
    start = reference.random_phases(seed_of(seed), n, vectors, real=np.dtype(H.dtype).kind != "c")
    expected = spectrum.moments(start, moments, density).mean(axis=1)
    off = np.abs(density.moments - expected).max() / n
    allowed = _tolerance(eps, moments, n, spectrum, density.bounds)
    holds(off <= allowed, f"moments are off by {off:.2g}, allowed {allowed:.2g}")
    holds(abs(density.integrate() - n) <= 1e-6 * n, f"the integral is {density.integrate()}, not {n}")
    holds(density.energies.shape == density.densities.shape == density.errors.shape == (2 * moments,), "another shape")
    holds(
        np.isfinite(density.densities).all() and (np.diff(density.energies) > 0).all(),
        "densities are not finite or energies not in order",
    )
    holds(np.isnan(density.errors).all() if vectors == 1 else np.isfinite(density.errors).all(), "errors are wrong")
    at = density(density.energies[::3])
    size = np.abs(density.densities).max()
    # Cancellation is of the size of the largest density; energies far from zero lose digits, most of all at the ends.
    slope = moments / np.sin(np.pi * (np.arange(2 * moments) + 0.5) / (2 * moments))[::3]
    lost = 1e-9 + 1e-14 * slope * abs(density.centre) / density.scale
    same = np.abs(at - density.densities[::3]) <= lost * size + 1e-300
    holds((same | (lost > 1e-3)).all(), "density(energies) are not densities")
    _state(draw, place, density, H, moments, vectors, keywords)


def _state(
    draw: Draw, place: Place, density: Any, H: Any, moments: int, vectors: int, keywords: dict[str, Any]
) -> None:
    """Continue, save and load: the same bits as in one go."""

    def everything(one: Any) -> Any:
        return bits((one.moments, one.densities, one.errors, one.bounds))

    again = kpm.kpm_dos(H, moments, vectors, **keywords)
    same_bits(
        (density.moments, density.densities, density.errors, density.bounds),
        (again.moments, again.densities, again.errors, again.bounds),
    )
    way = draw("continued", ["", "moments", "vectors", "file", "checkpoint"])
    if not way or moments < 3:
        return
    half = kpm.SpectralDensity(H, moments // 2 + 1 if way in ("moments", "file") else moments, vectors, **keywords)
    if way == "moments":
        half.add_moments(moments - half.num_moments)
        if everything(half) != everything(density):
            raise Fault("moments that are added give other bits")
    elif way == "vectors":
        if vectors < 2:
            return
        half = kpm.SpectralDensity(H, moments, vectors // 2, **keywords)
        half.add_vectors(vectors - vectors // 2)
        holds(
            np.allclose(half.moments, density.moments, rtol=1e-5, atol=1e-5 * len(density.moments) * half.shape[0]),
            "vectors that are added give other moments",
        )
    elif way == "file":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.npz"
            half.save(path)
            loaded = kpm.SpectralDensity.load(path, H, backend=place.backend)
            if everything(loaded) != everything(half):
                raise Fault("a density that is loaded has other bits")
            if loaded.num_moments < moments:
                loaded.add_moments(moments - loaded.num_moments)
            if everything(loaded) != everything(density):
                raise Fault("a density that is loaded and continued has other bits")
            _damaged(draw, place, path, H)
    else:
        with tempfile.TemporaryDirectory() as folder:
            other = kpm.kpm_dos(H, moments, vectors, checkpoint=Path(folder) / "state.npz", checkpoint_s=0, **keywords)
            holds(
                np.allclose(other.moments, density.moments, rtol=1e-4, atol=1e-4 * half.shape[0]),
                "a checkpoint gives other moments",
            )


def _damaged(draw: Draw, place: Place, path: Path, H: Any) -> None:
    """A file that is not what was saved is refused."""
    with np.load(path) as state:
        arrays = dict(state)
    name = draw("array", sorted(arrays))
    change = draw("damage", ["missing", "fewer", "Fortran", "NaN", "text", "scalar"])
    array = arrays[name]
    if change == "missing":
        del arrays[name]
    elif change == "fewer" and array.ndim and len(array) > 1:
        arrays[name] = array[:-1]
    elif change == "NaN" and array.dtype.kind in "fc" and array.size:
        arrays[name] = np.full_like(array, np.nan)
    elif change == "text":
        arrays[name] = np.array("nothing")
    elif change == "scalar":
        arrays[name] = np.array(3.7)
    elif change == "Fortran" and array.ndim > 1:
        arrays[name] = np.asfortranarray(array)
    else:
        return
    np.savez(path, **arrays)
    loaded = call(draw, kpm.SpectralDensity.load, path, H, backend=place.backend)
    if isinstance(loaded, Refused) or change == "Fortran" or (name, change) == ("widenings", "missing"):
        return  # files of an earlier version do not tell how often bounds were widened
    if change == "scalar" and array.ndim == 0:
        return
    raise Fault(f"a file is loaded whose {name} is: {change}")


def _moments_of(curves: Any, expected: np.ndarray, allowed: float, count: int) -> None:
    off = np.abs(curves.moments - expected).max()
    holds(curves.moments.shape == expected.shape, f"moments have shape {curves.moments.shape}, not {expected.shape}")
    holds(off <= allowed * count, f"moments are off by {off:.2g}, allowed {allowed * count:.2g}")


def ldos(draw: Draw, place: Place) -> None:
    """Local densities of states, whose moments are exact."""
    H, wide, laid = hamiltonian(draw, place)
    n, spectrum, eps = len(wide), Spectrum(wide), _real_eps(H, wide)
    moments = draw("num_moments", (2, 3, 16, 33, 64))
    rows = draw.rng("rows").integers(0, n, draw("num_rows", (1, 2, 5, 70)))
    rows = draw("kind of rows", [list, np.asarray, tuple, lambda r: r.astype(np.uint8), lambda r: r[::-1]])(rows)
    unchanged = Unchanged(**laid)
    curves = call(draw, kpm.ldos, H, rows, moments, backend=place.backend)
    unchanged.check()
    if _beyond(curves, spectrum, eps):
        return
    _check_bounds(curves.bounds, spectrum, eps, False)
    expected = spectrum.moments(np.eye(n)[:, np.asarray(rows)], moments, curves)
    _moments_of(curves, expected, _tolerance(eps, moments, n, spectrum, curves.bounds), 1)
    holds(np.allclose(curves.integrate(), 1, atol=1e-5), f"a curve integrates to {curves.integrate()[:1]}")
    same_bits(
        (curves.moments, curves.densities),
        [getattr(kpm.ldos(H, rows, moments, backend=place.backend), x) for x in ("moments", "densities")],
    )


def spectral_function(draw: Draw, place: Place) -> None:
    """Momentum-resolved curves, whose moments are exact."""
    H, wide, laid = hamiltonian(draw, place)
    n, spectrum, eps = len(wide), Spectrum(wide), _real_eps(H, wide)
    rng, moments, d = draw.rng("waves"), draw("num_moments", (2, 3, 16, 33)), draw("d", (1, 2, 3))
    k, r = rng.uniform(-3, 3, (draw("K", (1, 2, 5)), d)), rng.integers(-4, 5, (n, d)).astype(float)
    kinds = draw("orbitals", (1, 2, 3))
    orbitals = rng.integers(0, kinds, n) if kinds > 1 else None
    weights = rng.uniform(0.5, 2, n) if draw("weights", [False, True]) else None
    given = {
        "k": lay(k, draw("layout of k", ("C", "F", "gaps", "backwards")), Place()),
        "r": lay(r, draw("layout of r", ("C", "F", "gaps", "backwards")), Place()),
    }
    unchanged = Unchanged(**laid, **given)
    curves = call(
        draw,
        kpm.spectral_function,
        H,
        given["k"].array,
        given["r"].array,
        orbitals,
        weights,
        moments,
        backend=place.backend,
    )
    unchanged.check()
    if _beyond(curves, spectrum, eps):
        return
    _check_bounds(curves.bounds, spectrum, eps, False)
    label = np.zeros(n, int) if orbitals is None else orbitals
    weight = np.ones(n) if weights is None else weights
    expected = np.zeros((moments, len(k)))
    for kind in np.unique(label):
        here = np.where(label == kind, weight, 0)
        waves = here[:, None] * np.exp(1j * r @ k.T) / np.sqrt(np.sum(here**2))
        expected += spectrum.moments(waves, moments, curves)
    _moments_of(curves, expected, _tolerance(eps, moments, n, spectrum, curves.bounds), len(np.unique(label)))
    holds(np.allclose(curves.integrate(), len(np.unique(label)), atol=1e-4), "a curve has another integral")


def large_density(draw: Draw, place: Place) -> None:
    """Lattices of so many rows that threads share them: the bits of one thread, and moments by SciPy's products."""
    from spectile.kpm.operators.lattices import anderson, graphene
    from spectile.kpm.operators.topological_insulator import TopologicalInsulator

    kind = draw("lattice", ("graphene", "anderson", "insulator", "stored insulator"))
    sample = TopologicalInsulator(12, 9, 10, hopping=0.7)
    H = {
        "graphene": lambda: graphene(60, 40),
        "anderson": lambda: anderson(15, disorder=5.0, rng=1),
        "insulator": lambda: sample,
        "stored insulator": sample.matrix,
    }[kind]()
    dtype = draw("dtype", ("own", "single"))
    matrix = sample.matrix() if H is sample else H
    if dtype == "single" and H is not sample:
        H = matrix = H.astype("complex64" if np.dtype(H.dtype).kind == "c" else "float32")
    given = (
        H
        if not place.on_gpu or H is sample
        else place.sparse.csr_matrix(__import__("scipy.sparse").sparse.csr_matrix(H))
    )
    vectors, moments = draw("num_vectors", (1, 3, 8, 33)), 40
    density = must(call(draw, kpm.kpm_dos, given, moments, vectors, rng=7, backend=place.backend))
    real = np.dtype(matrix.dtype).kind != "c"
    start = reference.random_phases(seed_of(7), matrix.shape[0], vectors, real=real)
    a, b = 1 / density.scale, density.centre
    wide = matrix.astype(np.float64 if real else np.complex128)
    expected = reference.moments_from_etas(stages.etas_blocked(wide, start, moments, a, b)).mean(axis=1)
    eps = 2.0**-23 if dtype == "single" and H is not sample else 2.0**-52
    off = np.abs(density.moments - expected).max() / matrix.shape[0]
    holds(off <= 400 * eps * moments, f"moments are off by {off:.2g}, allowed {400 * eps * moments:.2g}")
    if place.on_gpu:
        return
    from spectile.kpm.cpu import operator

    before = operator.num_threads
    try:
        for number in (1, 2, 5):
            operator.num_threads = lambda number=number: number
            same_bits(
                density.moments, kpm.kpm_dos(given, moments, vectors, rng=7, backend="cpu").moments, f"{number} threads"
            )
    finally:
        operator.num_threads = before
