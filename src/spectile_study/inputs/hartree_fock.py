"""Matrices of a converged Hartree-Fock calculation of a water cluster, by GPU4PySCF on a device or PySCF on a CPU.

A calculation gives the Fock matrix F in the basis of atomic orbitals; the others follow from F and the overlap S:

``fock_scf``            F
``density_scf``         D, twice the projector on the occupied orbitals: D S D = 2 D, tr(D S) = electrons
``fock_orthogonal``     F' = S^-1/2 F S^-1/2 (Löwdin)
``density_orthogonal``  D' = S^1/2 D S^1/2

F of a large cluster may also come packed, ``<resources>/water/fock_<molecules>.npz``, with the line of ``sha256sum``
beside it in ``fock_<molecules>.npz.sha256``: see `pack` and `unpack`.  Energies are in hartree.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import itertools
import lzma
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spectile.core.atomic_file import atomic_write
from spectile_study.inputs import water
from spectile_study.inputs.water import BASIS, OCCUPIED, Cluster

OPERATORS = {
    "fock_scf": "Fock matrix F (Hartree-Fock)",
    "density_scf": "density matrix D (Hartree-Fock)",
    "fock_orthogonal": "orthogonal Fock matrix F' (Hartree-Fock)",
    "density_orthogonal": "orthogonal density matrix D' (Hartree-Fock)",
}
#: Most molecules of a calculation on a CPU: 60 take some minutes, and the time grows with a power of two to three.
MOST_ON_CPU = 120
#: Changes of the energy and of the orbital gradient at which a calculation ends, for each molecule.
_ENERGY, _GRADIENT = 1e-10, 1e-5
#: Smallest gap above the occupied orbitals, and smallest eigenvalue of S, of a matrix that belongs to its cluster.
_GAP, _DEPENDENT = 1e-2, 1e-7
#: Least likeness of F and S: 0.7 to 0.8 where they belong together, below 0.4 where molecules are interchanged.
_ALIKE = 0.5
#: Bytes of a part of the packed file that is compressed by itself.
_PART = 1 << 21


class Fock(NamedTuple):
    """A Fock matrix and where it comes from.

    Attributes
    ----------
    matrix : ndarray, shape (n, n)
        F in PySCF's order of the basis functions, molecule by molecule, float64.
    source : str
        Program and version, or the packed file with its rounding.
    path : Path or None
        The file that holds it; None where it was not kept.
    """

    matrix: np.ndarray
    source: str
    path: Path | None


class Solution(NamedTuple):
    """A converged calculation: F as a NumPy array, its total energy, and the program with its version."""

    matrix: np.ndarray
    energy: float
    source: str


def solve(cluster: Cluster, basis: str = BASIS, on_gpu: bool = False) -> Solution:
    """Return the restricted Hartree-Fock solution of a cluster.

    Parameters
    ----------
    cluster : Cluster
        Water molecules.
    basis : str
        A basis that PySCF knows.
    on_gpu : bool
        Calculate by GPU4PySCF on the current device, else by PySCF.

    Raises
    ------
    ModuleNotFoundError
        If the program is not installed, or the cluster is too large for a CPU and nothing else is at hand; the message
        says what to install.
    RuntimeError
        If the calculation does not converge.
    """
    molecules = len(cluster.coordinates)
    if not on_gpu and molecules > MOST_ON_CPU:
        raise ModuleNotFoundError(
            f"the Hartree-Fock calculation of {molecules} molecules takes days on a CPU: make it on a GPU with "
            f"GPU4PySCF (pip install gpu4pyscf-cuda13x), or put a packed matrix at resources/water/fock_{molecules}.npz"
        )
    name = "gpu4pyscf" if on_gpu else "pyscf"
    if importlib.util.find_spec(name) is None:
        wanted = "gpu4pyscf-cuda13x, or -cuda12x" if on_gpu else "pyscf"
        raise ModuleNotFoundError(f"{name}, which calculates Fock matrices, is not installed: pip install {wanted}")
    if on_gpu:
        from gpu4pyscf import __version__, scf
    else:
        from pyscf import __version__, scf

    field = scf.RHF(water.molecule(cluster, basis))
    field.conv_tol, field.conv_tol_grad = _ENERGY * molecules, _GRADIENT * molecules**0.5
    field.chkfile = None
    energy = float(field.kernel())
    source = f"{'GPU4PySCF' if on_gpu else 'PySCF'} {__version__}"
    if not field.converged:
        raise RuntimeError(f"{source} found no Hartree-Fock solution of {molecules} molecules: give another geometry")
    # Built anew from the whole density: what the last steps added to F in differences carries their thresholds.
    fock = field.get_fock(dm=field.make_rdm1())
    fock = fock.get() if hasattr(fock, "get") else np.asarray(fock)
    return Solution(np.ascontiguousarray(0.5 * (fock + fock.T)), energy, source)


def available(resources: Path) -> str:
    """Return what decides whether and how F is made: the programs, and the packed matrices that are at hand."""
    programs = [name for name in ("pyscf", "gpu4pyscf") if importlib.util.find_spec(name) is not None]
    packed = sorted(path.name for path in (resources / "water").glob("fock_*.npz.sha256"))
    return " ".join([*programs, *packed])


def fock(cluster: Cluster, resources: Path | None = None, on_gpu: bool = False) -> Fock:
    """Return F of a cluster: the one that is kept, else a packed one, else a calculated one, which is then kept.

    Parameters
    ----------
    cluster : Cluster
        Water molecules.
    resources : Path, optional
        Folder of resources; without it nothing is looked for or kept.
    on_gpu : bool
        Calculate on the current device where GPU4PySCF is installed.

    Raises
    ------
    ValueError
        If a packed file is not what its sha256 says, is broken, or of another geometry.
    """
    if resources is None:
        found = solve(cluster, on_gpu=on_gpu and water.has_gpu_program())
        return Fock(found.matrix, found.source, None)
    molecules = len(cluster.coordinates)
    kept = resources / "water" / f"fock_{molecules}_{cluster.digest}.npz"
    packed = resources / "water" / f"fock_{molecules}.npz"
    if kept.exists():
        with np.load(kept) as file:
            return Fock(file["fock"], str(file["source"]), kept)
    if packed.exists():
        matrix, quantum = unpack(packed, cluster, resources)
        alike = likeness(matrix, water.water_matrix("overlap", cluster, resources), molecules)
        if alike < _ALIKE:
            raise ValueError(
                f"{packed} does not fit the overlap of the cluster ({cluster.origin}; likeness {alike:.2f} of "
                f"{_ALIKE} at least): it is of other molecules, or of another order of them"
            )
        return Fock(matrix, f"{packed.name}, rounded to multiples of {quantum:.1g}", packed)
    found = solve(cluster, on_gpu=on_gpu and water.has_gpu_program())
    with atomic_write(kept) as partial, partial.open("wb") as file:
        np.savez(file, fock=found.matrix, source=found.source, energy=found.energy)
    return Fock(found.matrix, found.source, kept)


def scf_matrix(operator: str, cluster: Cluster, resources: Path | None = None, on_gpu: bool = False) -> tuple[Any, str]:
    """Return the matrix of an operator, float64, and where its Fock matrix comes from.

    Parameters
    ----------
    operator : str
        A key of ``OPERATORS``.
    cluster : Cluster
        Water molecules.
    resources : Path, optional
        Folder of resources.
    on_gpu : bool
        Return a CuPy array, and compute on the device.

    Returns
    -------
    matrix : array, shape (n, n)
        NumPy or CuPy.
    source : str
        As of `Fock`.
    """
    if operator not in OPERATORS:
        raise ValueError(f"operator = {operator!r} is unknown: choose one of {', '.join(OPERATORS)}")
    found = fock(cluster, resources, on_gpu)
    f = water.place(found.matrix, on_gpu)
    if operator == "fock_scf":
        return f, found.source
    s = water.water_matrix("overlap", cluster, resources, on_gpu)
    return derived(operator, f, s, OCCUPIED * len(cluster.coordinates)), found.source


def derived(operator: str, f: Any, s: Any, occupied: int) -> Any:
    """Return F', D or D' of a Fock matrix.

    Parameters
    ----------
    operator : str
        ``fock_orthogonal``, ``density_scf`` or ``density_orthogonal``.
    f, s : array, shape (n, n)
        Fock and overlap matrix, float64, NumPy or CuPy.
    occupied : int
        Doubly occupied orbitals.

    Raises
    ------
    LinAlgError
        If S is not positive definite, or there is no gap above the occupied orbitals: F and S are then of different
        clusters, orders or bases.
    """
    eigh = water.namespace(f).linalg.eigh
    values, vectors = eigh(s)
    if float(values[0]) < _DEPENDENT:
        raise np.linalg.LinAlgError(f"S has the eigenvalue {float(values[0]):.1e}: the basis functions are dependent")
    root = (vectors * values**-0.5) @ vectors.T
    del vectors
    orthogonal = root @ f @ root
    orthogonal = 0.5 * (orthogonal + orthogonal.T)
    if operator == "fock_orthogonal":
        return orthogonal
    energies, orbitals = eigh(orthogonal)
    gap = float(energies[occupied] - energies[occupied - 1])
    if gap < _GAP:
        raise np.linalg.LinAlgError(
            f"the Fock matrix has a gap of {gap:.1e} above {occupied} orbitals: it is not of this cluster and basis"
        )
    orbitals = orbitals[:, :occupied] if operator == "density_orthogonal" else root @ orbitals[:, :occupied]
    return 2 * (orbitals @ orbitals.T)


def likeness(f: np.ndarray, s: np.ndarray, molecules: int) -> float:
    """Return the correlation of -F and S over pairs of different molecules, which bonding makes large; 1 without pairs.

    Wolfsberg and Helmholz's approximation says why: F_ij is about 1.75 (F_ii + F_jj) S_ij / 2, and F_ii is negative.
    """
    size = len(f) // molecules
    fs, ff, ss = (float(np.vdot(x, y)) for x, y in ((f, s), (f, f), (s, s)))
    for at in range(0, len(f), size):
        own_f, own_s = (x[at : at + size, at : at + size].ravel() for x in (f, s))
        fs, ff, ss = fs - own_f @ own_s, ff - own_f @ own_f, ss - own_s @ own_s
    return -fs / (ff * ss) ** 0.5 if molecules > 1 else 1.0


# --- A packed Fock matrix --------------------------------------------------------------------------------------------


def pack(matrix: np.ndarray, cluster: Cluster, path: Path, quantum: float = 8e-8) -> str:
    """Write F, rounded, and the line of ``sha256sum`` beside it; return the sha256.

    The blocks of pairs of molecules on and below the diagonal are kept, but those that round to zero: the entries as
    multiples of `quantum`, their sign in the lowest bit, the four bytes of all entries one after another, in parts
    that are compressed by LZMA.

    Parameters
    ----------
    matrix : ndarray, shape (n, n)
        Symmetric, its functions molecule by molecule in the order of the cluster.
    cluster : Cluster
        Its molecules; the file holds their coordinates.
    path : Path
        ``<resources>/water/fock_<molecules>.npz``, where `unpack` is asked for it.
    quantum : float
        Entries are rounded to multiples of it, in hartree.

    Raises
    ------
    ValueError
        If the matrix has not as many functions for each molecule, is not finite, or too large for the quantum.
    """
    molecules, n = len(cluster.coordinates), len(matrix)
    if matrix.shape != (n, n) or n % molecules or not np.isfinite(matrix).all():
        raise ValueError(f"a matrix of shape {matrix.shape} is no finite Fock matrix of {molecules} molecules")
    if 2 * abs(matrix).max() / quantum >= 2**31:
        raise ValueError(
            f"quantum = {quantum:g} is too small for entries of {abs(matrix).max():.3g}: give a larger one"
        )
    size = n // molecules
    blocks = np.rint(matrix / quantum).astype(np.int32).reshape(molecules, size, molecules, size).transpose(0, 2, 1, 3)
    keep = [(i, j) for i in range(molecules) for j in range(i + 1) if i == j or blocks[i, j].any()]
    values = blocks[tuple(np.array(keep).T)].ravel()
    unsigned = ((values << 1) ^ (values >> 31)).astype(np.uint32)
    planes = b"".join(((unsigned >> shift) & 255).astype(np.uint8).tobytes() for shift in (0, 8, 16, 24))
    parts = [lzma.compress(planes[at : at + _PART], preset=3) for at in range(0, len(planes), _PART)]
    held = {
        "q": quantum, "keep": np.array(keep, np.uint16), "sizes": np.array(list(map(len, parts))),
        "data": np.frombuffer(b"".join(parts), np.uint8), "coordinates": cluster.coordinates,
    }  # fmt: skip
    content = io.BytesIO()
    np.savez(content, **held)  # type: ignore[arg-type]
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    with atomic_write(path) as partial:
        partial.write_bytes(content.getvalue())
    with atomic_write(_checksum(path)) as partial:
        partial.write_text(f"{digest}  {path.name}\n")
    return digest


def unpack(path: Path, cluster: Cluster, resources: Path | None = None) -> tuple[np.ndarray, float]:
    """Read a packed F in the order of a cluster's molecules.

    Parameters
    ----------
    path : Path
        The file; ``<path>.sha256`` holds the line of ``sha256sum``.
    cluster : Cluster
        The molecules.  A file without coordinates is in the order of the xyz file that clusters come from.
    resources : Path, optional
        Folder of resources, of that xyz file.

    Returns
    -------
    matrix : ndarray, shape (n, n)
        F, float64, exactly symmetric.
    quantum : float
        Its entries are multiples of it.

    Raises
    ------
    FileNotFoundError
        If the sha256 is not beside the file.
    ValueError
        If the content has another sha256, is no packed Fock matrix, or is of other molecules.
    """
    if not _checksum(path).exists():
        raise FileNotFoundError(f"{path} has no {path.name}.sha256 beside it: write it with sha256sum, and compare it")
    content = path.read_bytes()
    digest, wanted = hashlib.sha256(content).hexdigest(), _checksum(path).read_text().split()[:1]
    if [digest] != wanted:
        raise ValueError(f"{path} has the sha256 {digest[:12]}, not that of {path.name}.sha256: fetch it again")
    try:
        with np.load(io.BytesIO(content)) as held:
            quantum, keep, sizes, data = float(held["q"]), held["keep"].astype(int), held["sizes"], held["data"]
            coordinates = held.get("coordinates")
        ends = np.append(0, np.cumsum(sizes))
        planes = b"".join(lzma.decompress(data[a:b].tobytes()) for a, b in itertools.pairwise(ends))
        if not quantum > 0 or ends[-1] != len(data):
            raise ValueError("its parts do not fill it")
        blocks = _blocks(planes, len(keep)) * quantum
        molecules = int(keep[:, 0].max()) + 1
        pairs = set(map(tuple, keep))
        whole = len(pairs) == len(keep) and all((i, i) in pairs for i in range(molecules))
        if not whole or (keep[:, 0] < keep[:, 1]).any() or (keep < 0).any():
            raise ValueError("its blocks are not those of pairs of molecules")
    except (KeyError, IndexError, OSError, EOFError, zipfile.BadZipFile, lzma.LZMAError, ValueError) as error:
        raise ValueError(f"{path} is no packed Fock matrix: {error}") from None
    place = _places(path, cluster, coordinates, molecules, resources)
    size = blocks.shape[1]
    matrix = np.zeros((molecules, molecules, size, size))
    rows, columns = place[keep[:, 0]], place[keep[:, 1]]
    matrix[columns, rows] = blocks.transpose(0, 2, 1)
    matrix[rows, columns] = blocks
    return matrix.transpose(0, 2, 1, 3).reshape(molecules * size, -1), quantum


def _checksum(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _blocks(planes: bytes, count: int) -> np.ndarray:
    """Return the signed blocks, shape (count, functions, functions), of the four bytes of their entries."""
    parts = np.frombuffer(planes, np.uint8).reshape(4, -1)
    unsigned = sum(parts[k].astype(np.uint32) << np.uint32(8 * k) for k in range(4))
    signed = (unsigned >> 1).astype(np.int32) ^ -(unsigned & 1).astype(np.int32)
    size = round((signed.size / max(count, 1)) ** 0.5)
    return signed.reshape(count, size, size)


def _places(
    path: Path, cluster: Cluster, coordinates: np.ndarray | None, molecules: int, resources: Path | None
) -> np.ndarray:
    """Return where in the cluster each molecule of the packed file stands."""
    if coordinates is None:
        source = water.xyz_file(resources)
        if source is None:
            raise ValueError(f"{path} holds no coordinates: put the xyz file in whose order it is beside it")
        coordinates = water.read_xyz(source)
    stands = {row.tobytes(): place for place, row in enumerate(np.ascontiguousarray(cluster.coordinates))}
    found = [stands.get(row.tobytes()) for row in np.ascontiguousarray(coordinates)]
    if molecules != len(cluster.coordinates) or len(found) != molecules or None in found:
        raise ValueError(f"{path} is of other molecules than the cluster ({cluster.origin}): remove one of the two")
    return np.array(found, dtype=np.intp)
