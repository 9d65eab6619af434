"""Water clusters and the near-sparse matrices of one electron in them (6-31G**, 24 functions a molecule).

Two operators in the basis of atomic orbitals:

``overlap``           S, by PySCF
``core_hamiltonian``  kinetic energy and nuclear attraction, by PySCF, or by GPU4PySCF on a device

Fock and density matrices are those of `inputs.hartree_fock` and `inputs.ergo`.  Energies are in hartree, coordinates
in ångström.
"""

from __future__ import annotations

import hashlib
import importlib.util
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
    "core_hamiltonian": "core Hamiltonian h (PySCF)",
}

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
    path = xyz_file(resources)
    if path is None:
        return generated_cluster(molecules, seed)
    positions = read_xyz(path)
    if len(positions) < molecules:
        raise ValueError(
            f"{path} holds {len(positions)} water molecules and {molecules} are asked for: give a larger file"
        )
    return Cluster(_nearest_in_order(positions, molecules), f"{path.name} sha256 {_file_digest(path)[:12]}")


def xyz_file(resources: Path | None = None) -> Path | None:
    """Return the file that clusters come from: the one that is named, or that of the resources; None without one."""
    if named := os.environ.get("SPECTILE_WATER_XYZ"):
        return Path(named)
    path = resources / "water" / "h2o_569.xyz" if resources is not None else None
    return path if path is not None and path.exists() else None


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
    return np.ascontiguousarray(kept[hilbert_order(kept[:, 0])])


def hilbert_order(points: np.ndarray, bits: int = 10) -> np.ndarray:
    """Return the order of points along a Hilbert curve: near points stand near each other, so norms decay.

    Parameters
    ----------
    points : ndarray, shape (count, d)
        Coordinates.
    bits : int
        The curve visits 2^bits places along each axis of the smallest cube that holds the points.

    Returns
    -------
    ndarray of int, shape (count,)
        Indices of the points; those at one place keep their order.

    References
    ----------
    J. Skilling, Programming the Hilbert curve, AIP Conf. Proc. 707, 381 (2004).
    """
    extent = float(np.ptp(points, axis=0).max())
    x = ((points - points.min(axis=0)) * ((2**bits - 1) / extent if extent else 0.0)).astype(np.int64).T.copy()
    axes = len(x)
    for level in range(bits - 1, 0, -1):  # from coordinates to the transposed index: undo the turns of each level
        bit = 1 << level
        for axis in range(axes):
            is_set = (x[axis] & bit) != 0
            swapped = np.where(is_set, 0, (x[0] ^ x[axis]) & (bit - 1))
            x[0] ^= np.where(is_set, bit - 1, swapped)
            x[axis] ^= swapped
    for axis in range(1, axes):  # Gray encode
        x[axis] ^= x[axis - 1]
    turn = np.zeros_like(x[0])
    for level in range(bits - 1, 0, -1):
        turn ^= np.where((x[-1] >> level) & 1, (1 << level) - 1, 0)
    x ^= turn
    index = np.zeros_like(x[0])
    for level in range(bits - 1, -1, -1):
        for axis in range(axes):
            index = (index << 1) | ((x[axis] >> level) & 1)
    return np.argsort(index, kind="stable")


def molecule(cluster: Cluster, basis: str = BASIS) -> Any:
    """Return PySCF's description of a cluster in a basis, with spherical d functions."""
    from pyscf import gto

    atoms = [
        (symbol, tuple(position))
        for molecule in cluster.coordinates
        for symbol, position in zip("OHH", molecule, strict=True)
    ]
    return gto.M(atom=atoms, basis=basis, cart=False, verbose=0)


def overlap(cluster: Cluster) -> np.ndarray:
    """Return the overlap matrix S of the atomic orbitals, float64, shape (24 molecules, 24 molecules)."""
    return np.ascontiguousarray(molecule(cluster).intor("int1e_ovlp", hermi=1))


def core_hamiltonian(cluster: Cluster, on_gpu: bool = False) -> np.ndarray:
    """Return kinetic energy and nuclear attraction in the atomic orbitals; the work grows as molecules squared."""
    described = molecule(cluster)
    if on_gpu:
        from gpu4pyscf.scf import hf

        return hf.get_hcore(described).get()
    hamiltonian = np.ascontiguousarray(described.intor("int1e_nuc", hermi=1))
    hamiltonian += described.intor("int1e_kin", hermi=1)
    return hamiltonian


def has_gpu_program() -> bool:
    """Return whether GPU4PySCF is installed."""
    return importlib.util.find_spec("gpu4pyscf") is not None


def namespace(array: Any) -> Any:
    """Return NumPy or CuPy, whichever `array` is of."""
    if isinstance(array, np.ndarray):
        return np
    import cupy

    return cupy


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
        Return a CuPy array, and compute on the GPU what GPU4PySCF can where it is installed.
    """
    if operator not in OPERATORS:
        raise ValueError(f"operator = {operator!r} is unknown: choose one of {', '.join(OPERATORS)}")
    return place(_kept(operator, cluster, resources, on_gpu and has_gpu_program()), on_gpu)


def place(array: np.ndarray, on_gpu: bool) -> Any:
    """Return `array`, on the current device where `on_gpu`."""
    if not on_gpu:
        return array
    import cupy

    return cupy.asarray(array)


# Below this number of molecules computing is as fast as reading.
_KEPT_FROM = 100


def _kept(operator: str, cluster: Cluster, resources: Path | None, on_gpu: bool) -> np.ndarray:
    def compute(cluster: Cluster) -> np.ndarray:
        return overlap(cluster) if operator == "overlap" else core_hamiltonian(cluster, on_gpu)

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
