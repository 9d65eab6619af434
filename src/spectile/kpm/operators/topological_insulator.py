"""The KPM paper's Hamiltonian: a 3D topological insulator with a potential (paper, Eq. 1), stored or as a stencil.

The sample is periodic in x and y and open in z.  Rows are numbered ``((x * ny + y) * nz + z) * 4 + orbital``: one plane
of constant x is contiguous, so a sweep along x keeps few planes in cache when x is the longest side.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from spectile.core.options import numbers
from spectile.core.pointers import operand
from spectile.kpm.operators.protocol import namespace

# Γ¹ and Γ², Γ³, Γ⁴ of Schubert, Fehske, Fritz, Vojta, Phys. Rev. B 85, 201105 (2012): products of Pauli matrices.
_PAULI = {"1": np.eye(2), "x": np.array([[0, 1], [1, 0]]), "y": np.array([[0, -1j], [1j, 0]]), "z": np.diag([1, -1])}
GAMMA_1 = np.kron(_PAULI["1"], _PAULI["z"]).astype(complex)
GAMMA_HOP = (
    -np.kron(_PAULI["1"], _PAULI["y"]),
    np.kron(_PAULI["x"], _PAULI["x"]).astype(complex),
    np.kron(_PAULI["y"], _PAULI["x"]),
)
# The orbital that Γ^(j+1) couples to each orbital, for j = x, y, z.
PARTNER = tuple(tuple(int(p) for p in np.abs(gamma).argmax(axis=1)) for gamma in GAMMA_HOP)
MASS = 2.0
_NO_POTENTIAL = np.empty((0, 0, 0))
NUM_ORBITALS = 4
#: Stored entries of a row, but on the open faces.
ROW_ENTRIES = 13


@dataclass(frozen=True, eq=False)
class TopologicalInsulator:
    """Tight-binding Hamiltonian of a topological insulator: a stored matrix on demand, a stencil otherwise.

    Attributes
    ----------
    nx, ny, nz : int
        Size in lattice sites; x and y are periodic (at least 3 sites), z is open.
    potential : ndarray
        V_n, shape (nx, ny, nz), in units of t; zero if left out.
    hopping : float
        t, the unit of energy.

    Raises
    ------
    ValueError
        If a side is too short or the potential has another shape or is not finite.
    TypeError
        If the potential is not real.
    """

    nx: int
    ny: int
    nz: int
    potential: npt.NDArray[np.float64] = field(default_factory=lambda: _NO_POTENTIAL, repr=False)
    hopping: float = 1.0

    def __post_init__(self) -> None:
        if min(self.nx, self.ny) < 3 or self.nz < 1:
            raise ValueError(
                f"a {self.nx} x {self.ny} x {self.nz} sample is too small: x and y need 3 sites, z needs 1"
            )
        if self.potential is _NO_POTENTIAL:
            object.__setattr__(self, "potential", np.zeros((self.nx, self.ny, self.nz)))
        potential = operand("potential", numbers("potential", self.potential), np.float64)
        if potential.shape != (self.nx, self.ny, self.nz) or not np.isfinite(potential).all():
            raise ValueError(
                f"the potential must be finite numbers of shape {(self.nx, self.ny, self.nz)}, got {potential.shape}"
            )
        object.__setattr__(self, "potential", potential)

    @property
    def num_sites(self) -> int:
        """Number of lattice sites."""
        return self.nx * self.ny * self.nz

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (N, N) of the matrix, N = 4 nx ny nz."""
        return (NUM_ORBITALS * self.num_sites,) * 2

    @property
    def nnz(self) -> int:
        """Stored entries of :meth:`matrix`: 13 a row, 11 on the two open faces (9 if nz = 1)."""
        return NUM_ORBITALS * self.nx * self.ny * (13 * self.nz - 4)

    @property
    def dtype(self) -> np.dtype[Any]:
        """complex128; a narrower type is chosen where the moments are computed."""
        return np.dtype(np.complex128)

    def bounds(self) -> tuple[float, float]:
        """Return bounds of the spectrum by Gershgorin's circles, without storing the matrix."""
        reach = 6.0 * abs(self.hopping) if self.nz > 1 else 4.0 * abs(self.hopping)
        return float(self.potential.min()) - MASS - reach, float(self.potential.max()) + MASS + reach

    def moved(self, offset: float) -> TopologicalInsulator:
        """Return the sample whose energies are lower by `offset`."""
        return replace(self, potential=self.potential - offset) if offset else self

    def row(self, x: int, y: int, z: int, orbital: int = 0) -> int:
        """Return the row number of an orbital of a site; x and y wrap around."""
        return ((x % self.nx * self.ny + y % self.ny) * self.nz + z) * NUM_ORBITALS + orbital

    def matrix(self, dtype: npt.DTypeLike = np.complex128, xp: ModuleType = np) -> Any:
        """Return the stored matrix in CSR form.

        Parameters
        ----------
        dtype : dtype
            complex128 or complex64.
        xp : module
            numpy gives a ``scipy.sparse.csr_matrix``, cupy builds a ``cupyx.scipy.sparse.csr_matrix`` on the device.
        """
        index = np.int64 if self.nnz > np.iinfo(np.int32).max else np.int32
        site = xp.arange(self.num_sites, dtype=index).reshape(self.nx, self.ny, self.nz)
        # In this order the columns of a row ascend, except where x or y wraps around.
        shifts = ((0, 1), (1, 1), (2, 1), None, (2, -1), (1, -1), (0, -1))
        columns = xp.empty((self.num_sites, NUM_ORBITALS, 13), dtype=index)
        values = xp.empty((self.num_sites, NUM_ORBITALS, 13), dtype=dtype)
        stored = xp.ones((self.nx, self.ny, self.nz, 13), dtype=bool)
        slot = 0
        for shift in shifts:
            if shift is None:
                columns[:, :, slot] = site.reshape(-1, 1) * NUM_ORBITALS + xp.arange(NUM_ORBITALS, dtype=index)
                mass = xp.asarray(MASS * GAMMA_1.diagonal().real)
                values[:, :, slot] = xp.asarray(self.potential).reshape(-1, 1) + mass
                slot += 1
                continue
            axis, step = shift
            # Row n + e_j, column n holds −t(Γ¹ − iΓ^(j+1))/2; row n, column n + e_j its adjoint.
            block = -self.hopping * (GAMMA_1 - step * 1j * GAMMA_HOP[axis]) / 2
            neighbour = xp.roll(site, step, axis=axis).reshape(-1, 1) * NUM_ORBITALS
            if axis == 2:
                stored[:, :, 0 if step == 1 else -1, slot : slot + 2] = False
            pairs = [sorted((orbital, PARTNER[axis][orbital])) for orbital in range(NUM_ORBITALS)]
            for which in range(2):
                orbitals = [pair[which] for pair in pairs]
                columns[:, :, slot] = neighbour + xp.asarray(orbitals, dtype=index)
                values[:, :, slot] = xp.asarray(block[np.arange(NUM_ORBITALS), orbitals])
                slot += 1
        mask = xp.broadcast_to(stored.reshape(-1, 1, 13), columns.shape)
        indptr = xp.zeros(self.shape[0] + 1, dtype=index)
        xp.cumsum(mask.sum(axis=2, dtype=index).ravel(), out=indptr[1:])
        if xp is np:
            from scipy.sparse import csr_matrix
        else:
            from cupyx.scipy.sparse import csr_matrix
        matrix = csr_matrix((values[mask], columns[mask], indptr), shape=self.shape)
        matrix.sort_indices()
        return matrix

    def matmat(self, block: Any, out: Any) -> None:
        """Write H times `block`, shape (N, R), to `out`, without storing the matrix."""
        xp = namespace(block)
        v = block.reshape(self.nx, self.ny, self.nz, NUM_ORBITALS, -1)
        mass = xp.asarray(MASS * GAMMA_1.diagonal().real)
        image = (xp.asarray(self.potential)[..., None, None] + mass[:, None]) * v
        for axis in range(3):
            # Row n + e_j, column n holds −t(Γ¹ − iΓ^(j+1))/2; row n, column n + e_j its adjoint.
            hop = -self.hopping * (GAMMA_1 - 1j * GAMMA_HOP[axis]) / 2
            for step, factor in ((1, hop), (-1, hop.conj().T)):
                neighbour = xp.roll(v, step, axis=axis)
                if axis == 2:
                    neighbour[:, :, 0 if step == 1 else -1] = 0
                image += xp.matmul(xp.asarray(factor), neighbour)
        out[...] = image.reshape(out.shape)

    def memory_bytes(self, num_vectors: int) -> int:
        """Return the bytes of :meth:`matmat`'s neighbours and products."""
        return 3 * self.shape[0] * num_vectors * self.dtype.itemsize
