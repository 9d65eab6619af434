"""H as the densities see it, whatever its kind and wherever it lies: products, recursions, bounds, checks."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from spectile.core.device import choose_backend
from spectile.kpm import bounds as spectrum_bounds
from spectile.kpm import reference

Array = npt.NDArray[Any]
Backend = Literal["auto", "cpu", "cuda"]

# Steps between two looks at the norms: a spectrum outside the bounds shows within a few steps, and grows exponentially.
FIRST_STEPS = 8
LOOK_STEPS = 64

NOT_FINITE = "H holds NaN or infinity: every entry must be a finite number"


def make_engine(H: Any, backend: Backend = "auto", *, complex_vectors: bool = False) -> Any:
    """Return the backend's view of H: makes recursions and applies H to single vectors.

    Parameters
    ----------
    H : as in :func:`kpm_dos`
        The matrix.
    backend : {"auto", "cpu", "cuda"}
        Where to work.
    complex_vectors : bool
        Work with complex vectors even if H is real.

    Raises
    ------
    TypeError
        If H has an unusable type.
    ValueError
        If H is not square or empty, or the backend unknown.
    """
    if isinstance(H, list | tuple):
        H = np.asarray(H)
    shape = getattr(H, "shape", None)
    if (
        shape is None
        or getattr(H, "dtype", None) is None
        or (not hasattr(H, "__matmul__") and not hasattr(H, "gershgorin"))
    ):
        raise TypeError(
            f"H is a {type(H).__name__}: give a sparse matrix, an array or an operator with shape, dtype and @"
        )
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
        raise ValueError(f"H has shape {tuple(shape)}: a Hamiltonian is a square matrix")
    dtype = np.dtype(H.dtype)
    if dtype.kind not in "biufc" or dtype.char in "gG":
        raise TypeError(f"H has dtype {dtype}: convert it to float32, float64, complex64 or complex128")
    if dtype.kind in "biu" or dtype == np.float16:
        dtype = np.dtype(np.float64)
    if complex_vectors:
        dtype = np.result_type(dtype, np.complex64)
    if hasattr(H, "engine"):
        return H.engine(dtype)
    on_gpu = type(H).__module__.startswith("cupy")
    # A matrix on a GPU is copied for backend="cpu".
    if choose_backend(backend, on_gpu and backend != "cpu") == "cuda":
        from spectile.kpm.cuda.run import GpuEngine

        if GpuEngine.takes(H):
            return GpuEngine(H, dtype)
        if backend == "cuda":
            raise TypeError(f"H is a {type(H).__name__}: the GPU takes sparse matrices and TopologicalInsulator")
    if on_gpu:
        H = H.get()
    return CpuEngine(H, dtype)


class CpuEngine:
    """H on the CPU: compiled kernels for matrices and the topological insulator, NumPy for any other operator."""

    name = "cpu"
    xp = np

    def __init__(self, H: Any, dtype: np.dtype[Any]) -> None:
        import scipy.sparse as sp

        self.num_rows, self.dtype = int(H.shape[0]), dtype
        self.operator: Any = None
        if sp.issparse(H) or isinstance(H, np.ndarray):
            from spectile.kpm.cpu.recursion import CpuOperator

            matrix = sp.csr_array(H, dtype=dtype)
            if not matrix.has_canonical_format:
                matrix = matrix.copy()  # the arrays may be the caller's
                matrix.sum_duplicates()
            self.operator = CpuOperator.from_matrix(matrix)
        elif hasattr(H, "gershgorin"):
            from spectile.kpm.cpu.recursion import CpuOperator

            self.operator = CpuOperator.from_topological_insulator(H, dtype)
        self._H = H

    def capacity(self) -> int:
        """Return how many vectors' states fit into memory at once: the host's is not limited here."""
        return 2**31

    def vector(self, seed: int) -> Array:
        """Return one random vector, shape (N,)."""
        real = self.dtype.kind != "c"
        return reference.random_phases(seed, self.num_rows, 1, real=real, dtype=self.dtype)[:, 0]

    def apply(self, x: Array) -> Array:
        """Return H x of one vector."""
        if self.operator is None:
            image = np.asarray(self._H @ x.reshape(-1, 1))
            if image.shape != (x.size, 1):
                raise ValueError(
                    f"H @ x has shape {image.shape} for an x of shape {(x.size, 1)}: it must have the same"
                )
            return image[:, 0]
        v = self.operator.to_block(x.reshape(-1, 1))
        w = np.zeros_like(v)
        self.operator.update(v, w, 1.0, 0.0, 0.0, 1, self.operator.blocks())
        return (w[:, 0, 0] + 1j * w[:, 1, 0]) if self.operator.parts == 2 else w[:, 0, 0]

    def random(self, seed: int, first_vector: int, num_vectors: int, a: float, b: float) -> Any:
        """Return the recursion of a block of random vectors."""
        if self.operator is None:
            real = self.dtype.kind != "c"
            block = reference.random_phases(
                seed, self.num_rows, num_vectors, first_vector=first_vector, real=real, dtype=self.dtype
            )
            return reference.Recursion(self._H, a, b, block)
        from spectile.kpm.cpu.recursion import CpuRecursion

        return CpuRecursion(self.operator, a, b, self.operator.random_block(seed, first_vector, num_vectors))

    def start(self, vectors: Array, a: float, b: float) -> Any:
        """Return the recursion of given vectors, shape (N, R)."""
        if self.operator is None:
            return reference.Recursion(self._H, a, b, vectors)
        from spectile.kpm.cpu.recursion import CpuRecursion

        return CpuRecursion(self.operator, a, b, self.operator.to_block(vectors))


def advance_watched(recursion: Any, etas: Array, num_moments: int) -> tuple[Array, bool]:
    """Advance a recursion to `num_moments` moments; stop where a norm shows an eigenvalue outside [−1, 1].

    Parameters
    ----------
    recursion : Recursion
        Of any backend.
    etas : ndarray, shape (2 * steps, R)
        Scalar products so far.
    num_moments : int
        M.

    Returns
    -------
    ndarray, bool
        All scalar products, and whether the spectrum stayed inside.

    Raises
    ------
    ValueError
        If the numbers are no longer finite though they did not grow before: H holds NaN or infinity.
    """
    target = -(-num_moments // 2)
    while len(etas) < 2 * target:
        done = len(etas) // 2
        steps = min(FIRST_STEPS if done < FIRST_STEPS else LOOK_STEPS, target - done)
        with np.errstate(over="ignore", invalid="ignore"):
            etas = np.concatenate([etas, recursion.advance(steps)])
        # |T_m(x)| <= 1 inside, so no norm may exceed the first one by more than rounding.
        if not np.all(etas[2 * done :: 2] <= etas[0] * (1 + 1e-3)):
            if not np.isfinite(etas[:2]).all():
                raise ValueError(NOT_FINITE)
            return etas, False
    return etas, True


def find_bounds(engine: Any, H: Any, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """Return bounds of the spectrum: the given ones if they are usable, else those of Lanczos within Gershgorin's."""
    if bounds is not None:
        try:
            low, high = (float(bound) for bound in bounds)
        except (TypeError, ValueError):
            raise ValueError(f"bounds={bounds!r} are no two energies: give the lowest and the highest") from None
        spectrum_bounds.scaling((low, high))
        return low, high
    # A vector without the symmetries of H: phases alone can be orthogonal to the states that bound the spectrum.
    start = engine.vector(1)
    start *= engine.xp.linspace(1, 2, engine.num_rows).astype(start.real.dtype)
    low, high = spectrum_bounds.lanczos(engine.apply, start, xp=engine.xp)
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError(NOT_FINITE)
    if hasattr(H, "gershgorin"):
        certain = H.gershgorin()
    elif hasattr(H, "diagonal") and hasattr(H, "nnz"):
        certain = spectrum_bounds.gershgorin(H)
    else:
        return low, high
    # Lanczos is the closer one; where its residuals reach beyond the circles, the circles are right.
    return max(low, certain[0]), min(high, certain[1])


def check_hermitian(engine: Any) -> None:
    """Compare ⟨y|Hx⟩ with ⟨Hy|x⟩ for two random vectors: two products with H, no transpose."""
    xp = engine.xp
    x, y = engine.vector(2), engine.vector(3)
    # Unequal lengths, so that no symmetry of the phases can hide an error.
    x *= xp.linspace(1, 2, engine.num_rows).astype(x.real.dtype)
    y *= xp.linspace(1, 3, engine.num_rows).astype(x.real.dtype)
    hx, hy = engine.apply(x), engine.apply(y)
    one, two = complex(xp.vdot(y, hx)), complex(xp.vdot(hy, x))
    size = float(xp.linalg.norm(y) * xp.linalg.norm(hx) + xp.linalg.norm(hy) * xp.linalg.norm(x))
    if not np.isfinite(size):
        raise ValueError(NOT_FINITE)
    tolerance = 1e-10 if engine.dtype.itemsize // (2 if engine.dtype.kind == "c" else 1) == 8 else 1e-4
    imaginary = max(abs(complex(xp.vdot(x, hx)).imag), abs(complex(xp.vdot(y, hy)).imag))
    if max(abs(one - two), imaginary) > tolerance * size:
        raise ValueError(
            f"H is not Hermitian: ⟨y|Hx⟩ and ⟨Hy|x⟩ differ by {abs(one - two) / size:.1e} of their size; "
            "symmetrize it with (H + H.conj().T) / 2 if that is what you mean"
        )


def fingerprint(engine: Any) -> Array:
    """Return a few numbers that another matrix would not give."""
    image = engine.apply(engine.vector(4))
    first = image[:16].get() if hasattr(image, "get") else image[:16]
    return np.concatenate([[engine.num_rows], first.real, [float(engine.xp.abs(image).sum())]])
