"""Water clusters and their near-sparse matrices of electronic structure (6-31G**, 24 functions a molecule).

Four operators in the basis of atomic orbitals, each labelled as what it is:

``overlap``           S, by PySCF
``core_hamiltonian``  kinetic energy and nuclear attraction, by PySCF
``fock_wh``           a Fock-like matrix: Wolfsberg-Helmholz from S and extended-Hückel orbital energies
``density_wh``        the projector on the occupied orbitals of ``fock_wh`` in the metric of S

The true Fock and density matrices of a converged calculation are those of `inputs.ergo`.  Energies are in
hartree, coordinates in ångström.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spectile.core.atomic_file import atomic_write

BASIS = "6-31g**"
#: Basis functions of one molecule: 14 on oxygen, 5 on each hydrogen (six d functions less their s combination).
FUNCTIONS = 24
#: Occupied orbitals of one molecule.
OCCUPIED = 5

OPERATORS = {
    "overlap": "overlap S (PySCF)",
    "core_hamiltonian": "core Hamiltonian (PySCF)",
    "fock_wh": "Fock-like matrix (Wolfsberg-Helmholz)",
    "density_wh": "density of the Fock-like matrix",
}

# Orbital energies of the extended Hückel method: oxygen 2s, 2p and hydrogen 1s by Hoffmann (J. Chem. Phys. 39, 1397);
# oxygen 1s the Hartree-Fock orbital energy.  Inner and outer functions of a split shell share a value.  Polarisation
# functions have no such energy: -0.1 keeps them above the occupied orbitals, and any negative value opens the gap.
_ORBITAL_ENERGIES = {"O1s": -20.56, "Os": -1.187, "Op": -0.544, "Od": -0.1, "Hs": -0.5, "Hp": -0.1}

# An O-H bond, and the angle between the two, of the rigid molecule (gas phase).
_BOND, _ANGLE = 0.9572, np.deg2rad(104.52)
# Spacing of the lattice of generated molecules: 33.4 molecules a cubic nanometre, the density of the liquid.
_SPACING = 3.105


class Cluster(NamedTuple):
    """Water molecules in an order in which neighbours stand near each other, and where they come from.

    Attributes
    ----------
    coordinates : array, shape (molecules, 3, 3)
        Oxygen, hydrogen, hydrogen of each molecule, in ångström.
    origin : str
        Name and digest of the file, or "generated" with its seed.
    """

    coordinates: np.ndarray
    origin: str

    @property
    def digest(self) -> str:
        """First twelve digits of the sha256 of the coordinates."""
        return hashlib.sha256(np.ascontiguousarray(self.coordinates).tobytes()).hexdigest()[:12]


def water_cluster(molecules: int, resources: Path | None = None, seed: int = 1) -> Cluster:
    """Return a cluster: from the file of a simulated liquid where there is one, else generated.

    The file is ``SPECTILE_WATER_XYZ`` or ``<resources>/water/h2o_569.xyz``; the molecules nearest its centre are taken.

    Parameters
    ----------
    molecules : int
        Number of molecules; the paper's matrices of 13,656 rows have 569.
    resources : Path, optional
        Folder of resources.
    seed : int
        Seed of the generated cluster.

    Raises
    ------
    ValueError
        If the file holds fewer molecules.
    """
    named = os.environ.get("SPECTILE_WATER_XYZ")
    path = Path(named) if named else (resources / "water" / "h2o_569.xyz" if resources is not None else None)
    if path is None or (named is None and not path.exists()):
        return generated_cluster(molecules, seed)
    positions = read_xyz(path)
    if len(positions) < molecules:
        raise ValueError(
            f"{path} holds {len(positions)} water molecules and {molecules} are asked for: give a larger file"
        )
    return Cluster(_nearest_in_order(positions, molecules), f"{path.name} sha256 {_file_digest(path)[:12]}")


def generated_cluster(molecules: int, seed: int = 1) -> Cluster:
    """Return a generated cluster: rigid molecules of random orientation on a disturbed cubic lattice at liquid density.

    Not a simulated liquid: distances and decay are like one, hydrogen bonds are not.
    """
    if molecules < 1:
        raise ValueError(f"molecules = {molecules} is no cluster: give a positive number")
    rng = np.random.default_rng(seed)
    side = int(np.ceil(molecules ** (1 / 3))) + 1
    lattice = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), axis=-1).reshape(-1, 3).astype(np.float64)
    oxygens = _SPACING * lattice + rng.uniform(-0.05, 0.05, lattice.shape)
    u = rng.standard_normal(lattice.shape)
    v = np.cross(u, rng.standard_normal(lattice.shape))
    u, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (u, v))
    bonds = [_BOND * (np.cos(_ANGLE / 2) * u + sign * np.sin(_ANGLE / 2) * v) for sign in (1, -1)]
    positions = np.stack([oxygens, oxygens + bonds[0], oxygens + bonds[1]], axis=1)
    return Cluster(_nearest_in_order(positions, molecules), f"generated, seed {seed}")


def read_xyz(path: Path) -> np.ndarray:
    """Read water molecules, written as O H H each, from an xyz file; shape (molecules, 3, 3), in ångström.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not an xyz file of whole water molecules.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: let SPECTILE_WATER_XYZ name an xyz file of water, or leave it unset"
        )
    lines = path.read_text().splitlines()
    try:
        count = int(lines[0])
        words = [line.split() for line in lines[2 : 2 + count]]
        symbols = [word[0] for word in words]
        coordinates = np.array([[float(x) for x in word[1:4]] for word in words])
    except (IndexError, ValueError) as error:
        raise ValueError(
            f"{path} is not an xyz file: a count, a comment, then one atom on each line ({error})"
        ) from None
    if len(words) != count or symbols != ["O", "H", "H"] * (count // 3) or coordinates.shape != (count, 3):
        raise ValueError(f"{path} does not hold {count} atoms as water molecules, each written O, H, H")
    positions = coordinates.reshape(-1, 3, 3)
    longest = np.linalg.norm(positions[:, 1:] - positions[:, :1], axis=2).max()
    if longest > 1.5:
        raise ValueError(
            f"{path} has an O-H distance of {longest:.2f} ångström: unwrap molecules cut by a periodic box"
        )
    return positions


def write_xyz(cluster: Cluster, path: Path) -> None:
    """Write a cluster as an xyz file."""
    lines = [str(3 * len(cluster.coordinates)), cluster.origin]
    for molecule in cluster.coordinates:
        lines += [f"{symbol} {x:.8f} {y:.8f} {z:.8f}" for symbol, (x, y, z) in zip("OHH", molecule, strict=True)]
    path.write_text("\n".join(lines) + "\n")


def _nearest_in_order(positions: np.ndarray, molecules: int) -> np.ndarray:
    oxygens = positions[:, 0]
    distance = np.linalg.norm(oxygens - oxygens.mean(axis=0), axis=1)
    kept = positions[np.argsort(distance, kind="stable")[:molecules]]
    return np.ascontiguousarray(kept[_bisection_order(kept[:, 0])])


def _bisection_order(points: np.ndarray) -> np.ndarray:
    """Return the order of recursive coordinate bisection: near points stand near each other, so norms decay."""
    order: list[int] = []
    stack = [np.arange(len(points))]
    while stack:
        group = stack.pop()
        if len(group) == 1:
            order.append(int(group[0]))
            continue
        axis = int(np.ptp(points[group], axis=0).argmax())
        group = group[np.argsort(points[group, axis], kind="stable")]
        stack += [group[len(group) // 2 :], group[: len(group) // 2]]
    return np.array(order, dtype=np.intp)


def _molecule(cluster: Cluster) -> Any:
    from pyscf import gto

    atoms = [
        (symbol, tuple(position))
        for molecule in cluster.coordinates
        for symbol, position in zip("OHH", molecule, strict=True)
    ]
    return gto.M(atom=atoms, basis=BASIS, cart=False, verbose=0)


def overlap(cluster: Cluster) -> np.ndarray:
    """Return the overlap matrix S of the atomic orbitals, float64, shape (24 molecules, 24 molecules)."""
    return np.ascontiguousarray(_molecule(cluster).intor("int1e_ovlp"))


def core_hamiltonian(cluster: Cluster) -> np.ndarray:
    """Return kinetic energy and nuclear attraction in the atomic orbitals; the work grows as molecules squared."""
    molecule = _molecule(cluster)
    hamiltonian = np.ascontiguousarray(molecule.intor("int1e_nuc"))
    hamiltonian += molecule.intor("int1e_kin")
    return hamiltonian


def orbital_energies(molecules: int) -> np.ndarray:
    """Return the extended-Hückel energy of each basis function, in PySCF's order of them."""
    e = _ORBITAL_ENERGIES
    oxygen = [e["O1s"], e["Os"], e["Os"], *[e["Op"]] * 6, *[e["Od"]] * 5]
    hydrogen = [e["Hs"]] * 2 + [e["Hp"]] * 3
    return np.tile(np.array(oxygen + hydrogen + hydrogen), molecules)


def wolfsberg_helmholz(s: Any, energies: Any, k: float = 1.75) -> Any:
    """Return the Fock-like matrix F_ij = k (h_i + h_j) S_ij / 2, F_ii = h_i.

    Parameters
    ----------
    s : array, shape (n, n)
        Overlap matrix S, NumPy or CuPy.
    energies : array, shape (n,)
        Orbital energies h of the same kind.
    k : float
        Wolfsberg and Helmholz's constant (J. Chem. Phys. 20, 837), 1.75 after Hoffmann.
    """
    f = (0.5 * k) * s
    f *= energies[:, None] + energies[None, :]
    diagonal = _namespace(s).arange(len(energies))
    f[diagonal, diagonal] = energies
    return f


def _namespace(array: Any) -> Any:
    if isinstance(array, np.ndarray):
        return np
    import cupy

    return cupy


def density_projector(f: Any, s: Any, occupied: int) -> Any:
    """Return the projector D on the lowest eigenvectors of F x = e S x: D S D = D, tr(D S) = `occupied`.

    By second-order spectral projection (SP2: Niklasson, Phys. Rev. B 66, 155115) in the orthonormal basis of S's
    Cholesky factor, so that the work is matrix products: a GPU does n = 13,656 in seconds.

    Parameters
    ----------
    f, s : array, shape (n, n)
        Symmetric, S positive definite; NumPy or CuPy, float64.
    occupied : int
        Number of occupied orbitals.

    Raises
    ------
    LinAlgError
        If there is no gap above the occupied orbitals.
    """
    xp = _namespace(f)
    if xp is np:
        from scipy.linalg import solve_triangular
    else:
        from cupyx.scipy.linalg import solve_triangular

    factor = xp.linalg.cholesky(s)
    half = solve_triangular(factor, f, lower=True)
    x = solve_triangular(factor, xp.ascontiguousarray(half.T), lower=True)
    del half
    radius = abs(x).sum(axis=1) - abs(x.diagonal())
    low, high = float((x.diagonal() - radius).min()), float((x.diagonal() + radius).max())
    x *= -1 / (high - low)
    diagonal = xp.arange(len(x))
    x[diagonal, diagonal] += high / (high - low)
    for _ in range(100):
        square = x @ x
        trace, trace_square = float(xp.trace(x)), float(xp.trace(square))
        # The sum of x (1 - x) over the eigenvalues: convergence is quadratic, so McWeeny's step below ends it.
        if trace - trace_square < 1e-9 * max(occupied, 1):
            break
        x = square if abs(trace_square - occupied) < abs(2 * trace - trace_square - occupied) else 2 * x - square
    if abs(trace - occupied) > 1e-3 or trace - trace_square > 1e-6 * max(occupied, 1):
        raise np.linalg.LinAlgError(
            f"no projector on {occupied} orbitals was found: the matrix has no gap above the lowest {occupied}"
        )
    x = 3 * square - 2 * (square @ x)
    del square
    upper = xp.ascontiguousarray(factor.T)
    half = solve_triangular(upper, x, lower=False)
    d = solve_triangular(upper, xp.ascontiguousarray(half.T), lower=False)
    return 0.5 * (d + d.T)


def water_matrix(operator: str, cluster: Cluster, resources: Path | None = None, on_gpu: bool = False) -> Any:
    """Return the matrix of an operator in a cluster, float64, shape (n, n).

    What PySCF computed of a large cluster is kept under ``<resources>/water`` as its upper triangle without zeros.

    Parameters
    ----------
    operator : str
        A key of ``OPERATORS``.
    cluster : Cluster
        Molecules.
    resources : Path, optional
        Folder of resources; without it nothing is kept.
    on_gpu : bool
        Return a CuPy array, and compute the density on the GPU.
    """
    if operator not in OPERATORS:
        raise ValueError(f"operator = {operator!r} is unknown: choose one of {', '.join(OPERATORS)}")
    if operator == "core_hamiltonian":
        return _place(_kept("core_hamiltonian", cluster, resources), on_gpu)
    s = _place(_kept("overlap", cluster, resources), on_gpu)
    if operator == "overlap":
        return s
    molecules = len(cluster.coordinates)
    f = wolfsberg_helmholz(s, _place(orbital_energies(molecules), on_gpu))
    return f if operator == "fock_wh" else density_projector(f, s, OCCUPIED * molecules)


def _place(array: np.ndarray, on_gpu: bool) -> Any:
    if not on_gpu:
        return array
    import cupy

    return cupy.asarray(array)


# Below this number of molecules computing is as fast as reading.
_KEPT_FROM = 100


def _kept(operator: str, cluster: Cluster, resources: Path | None) -> np.ndarray:
    compute = overlap if operator == "overlap" else core_hamiltonian
    if resources is None or len(cluster.coordinates) < _KEPT_FROM:
        return compute(cluster)
    path = resources / "water" / f"{operator}_{len(cluster.coordinates)}_{cluster.digest}.npz"
    if not path.exists():
        save_symmetric(path, compute(cluster))
    return load_symmetric(path)


def save_symmetric(path: Path, matrix: np.ndarray) -> None:
    """Keep the nonzero entries of a symmetric matrix's upper triangle; the file appears when it is whole."""
    n = len(matrix)
    counts, columns, values = np.empty(n, np.int32), [], []
    for row in range(n):
        nonzero = np.flatnonzero(matrix[row, row:])
        counts[row] = nonzero.size
        columns.append((nonzero + row).astype(np.int32))
        values.append(matrix[row, nonzero + row])
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, counts=counts, columns=np.concatenate(columns), values=np.concatenate(values))


def load_symmetric(path: Path) -> np.ndarray:
    """Read what `save_symmetric` wrote as a dense matrix."""
    with np.load(path) as kept:
        counts, columns, values = kept["counts"], kept["columns"], kept["values"]
    n = len(counts)
    rows = np.repeat(np.arange(n), counts)
    matrix = np.zeros((n, n))
    matrix[rows, columns] = values
    matrix[columns, rows] = values
    return matrix


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
