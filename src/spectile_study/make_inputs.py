"""Inputs that rules of the workflow make: each kind, the receipt of what was made, and that it is still the same.

A receipt, ``resources/inputs/<kind>/<name>.json``, says what an input is and its sha256, or why it is absent.  Operands
that a device makes faster than a disk reads them (decay matrices, lattices, random matrices) are described by their
parameters and the sha256 of a sample; the others are kept as files.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spectile.core.atomic_file import atomic_write
from spectile_study.bench.provenance import digest_array

Facts = dict[str, Any]
#: Kinds of which a description is kept, and checked by its sample.
DESCRIBED = ("decay", "lattice", "hamiltonian", "hermitian", "dense")
#: Rows of a stored Hamiltonian and of a decay matrix, sites of a lattice along each side: their sha256 stands for all.
SAMPLE_HAMILTONIAN = 500
SAMPLE_ROWS, SAMPLE_SITES = 32, (6, 6, 4)


class InputChanged(ValueError):
    """An input is not what its receipt says; the message names the mend."""


def make(kind: str, name: str, resources: Path, seed: int) -> Facts:
    """Make an input and return its receipt.

    Parameters
    ----------
    kind : str
        A key of ``KINDS``.
    name : str
        Which one: ``16384`` of decay matrices, ``overlap_60`` of water operators.
    resources : Path
        Folder of resources.
    seed : int
        Seed of what is random.

    Returns
    -------
    dict
        ``kind, name, seed, status``; with status ``ok`` what the kind found, with ``absent`` the reason.

    Raises
    ------
    ValueError
        If no input of the kind has such a name.
    """
    pattern, example = NAMES.get(kind, (".*", ""))
    if not re.fullmatch(pattern, name, flags=re.DOTALL | re.ASCII):
        raise ValueError(f"{reprlib.repr(name)} names no input of the kind {kind}: a name looks like {example}")
    facts: Facts = {"kind": kind, "name": name, "seed": seed}
    try:
        return facts | {"status": "ok"} | KINDS[kind](name, resources, seed)
    except (FileNotFoundError, ModuleNotFoundError) as error:  # a result, which cases report
        return facts | {"status": "absent", "reason": str(error)}


def write(receipt: Mapping[str, Any], path: Path) -> None:
    """Write a receipt; its file appears when it is whole."""
    with atomic_write(path) as partial:
        partial.write_text(json.dumps(dict(receipt), indent=1, sort_keys=True) + "\n")


def said(receipt: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the name under which records keep the input of a receipt, and its sha256; None where it is absent."""
    return f"{receipt['kind']}_{receipt['name']}", receipt["sha256"] if receipt["status"] == "ok" else None


def checked(path: Path, resources: Path) -> tuple[str, str] | None:
    """Return name and sha256 of the input of a receipt, None where it is absent.

    Raises
    ------
    InputChanged
        If the file that it names is another one now, or the sample of a described input comes out otherwise.
    """
    receipt = json.loads(path.read_text())
    if receipt["status"] != "ok" or "kind" not in receipt:  # receipts of matrices once had none
        return None
    kind, name = receipt["kind"], receipt["name"]
    label, _ = said(receipt)
    found = receipt["sha256"]
    if kind == "matrix":  # the content of a matrix of the collection is checked where it is read, and mended
        return label, receipt["sha256"]
    if "file" in receipt:
        kept = resources / receipt["file"]
        found = hashlib.sha256(kept.read_bytes()).hexdigest() if kept.is_file() else "nothing"
    elif kind in DESCRIBED:
        found = KINDS[kind](name, resources, receipt["seed"])["sha256"]
    if found != receipt["sha256"]:
        raise InputChanged(
            f"the input {kind} {name} is not what {path} says (sha256 {found[:12]}, not {receipt['sha256'][:12]}): "
            f"remove {path} and run the workflow again, which makes it anew"
        )
    return label, receipt["sha256"]


def available(kind: str, resources: Path = Path("resources")) -> str:
    """Return what decides whether the inputs of a kind can be made: a change of it makes them anew."""
    if kind == "water":
        return f"pyscf: {importlib.util.find_spec('pyscf') is not None}"
    if kind == "scf":
        from spectile_study.inputs.hartree_fock import available as programs

        return programs(resources)
    if kind == "ergo":
        from spectile_study.inputs.ergo import program

        return f"ergo: {program()}"
    if kind == "network":
        from spectile_study.inputs.mnist import mnist_folder

        installed = [name for name in ("sklearn", "torch") if importlib.util.find_spec(name) is not None]
        return f"{' '.join(installed)}; MNIST: {mnist_folder(resources).is_dir()}"
    return ""


def _decay(name: str, resources: Path, seed: int) -> Facts:
    """Describe the decay matrix of an order, or ``exponential_3d_8192``; any rows of it can be made alone."""
    from spectile_study.inputs import decay

    of_distance, _, order = name.rpartition("_")
    n = int(order)
    if of_distance:
        sample = decay.by_distance(of_distance, n, rows=SAMPLE_ROWS)
        parameters = {"n": n, "matrix": decay.label(of_distance)}
        return {"parameters": parameters, "sample_rows": len(sample), "sha256": digest_array(sample)}
    sample = decay.algebraic(min(n, SAMPLE_ROWS), n)
    return {"parameters": {"n": n, "c": 0.1, "lam": 0.1}, "sample_rows": len(sample), "sha256": digest_array(sample)}


def _lattice(name: str, resources: Path, seed: int) -> Facts:
    """Describe a topological insulator by its sides; a small one of the same model is the sample."""
    from spectile.kpm.operators.topological_insulator import TopologicalInsulator
    from spectile_study.inputs.quantum_dots import quantum_dots

    sides = [int(side) for side in name.split("x")]
    nx, ny, nz = small = [min(side, most) for side, most in zip(sides, SAMPLE_SITES, strict=True)]
    sample = TopologicalInsulator(nx, ny, nz, quantum_dots(nx, ny, nz)).matrix()
    digest = digest_array(sample.indptr, sample.indices, sample.data)
    return {"parameters": {"sides": sides, "model": "quantum dots"}, "sample_sides": small, "sha256": digest}


def _hermitian(name: str, resources: Path, seed: int) -> Facts:
    """Describe a Hermitian matrix of counted random entries by its order and type; its first rows are the sample."""
    import numpy as np

    from spectile_study.inputs import counted

    order, _, precision = name.partition("_")
    n = int(order)
    rows = min(n, counted.SAMPLE_ROWS)
    sample = counted.hermitian(np.arange(rows)[:, None], np.arange(n), seed, precision)
    parameters = {"n": n, "precision": precision, "entries": "counted, uniform in [-1, 1)"}
    return {"parameters": parameters, "sample_rows": rows, "sha256": digest_array(sample)}


def _dense(name: str, resources: Path, seed: int) -> Facts:
    """Describe two n x k matrices of counted random entries, of the seed and the next; first rows are the sample."""
    import numpy as np

    from spectile_study.inputs import counted

    n, k = map(int, name.split("x"))
    i, j = np.arange(min(n, counted.SAMPLE_ROWS))[:, None], np.arange(k)
    sample = [counted.dense(i, j, seed + side) for side in range(2)]
    parameters = {"n": n, "k": k, "entries": "counted, uniform in [-1, 1)"}
    return {"parameters": parameters, "sample_rows": len(i), "sha256": digest_array(*sample)}


def _hamiltonian(name: str, resources: Path, seed: int) -> Facts:
    """Describe a stored Hamiltonian by its model, rows and type; a small one of the same model is the sample."""
    from spectile_study.inputs.hamiltonians import hamiltonian

    model, rows, dtype = name.split("_")
    sample = hamiltonian(model, SAMPLE_HAMILTONIAN, dtype)
    parameters = {"model": model, "rows": int(rows), "dtype": dtype}
    digest = digest_array(sample.indptr, sample.indices, sample.data)
    return {"parameters": parameters, "sample_rows": sample.shape[0], "sha256": digest}


def _family(name: str, resources: Path, seed: int) -> Facts:
    """Generate a matrix of a family and keep it in canonical form."""
    from spectile_study.inputs import families
    from spectile_study.inputs.suitesparse.content import canonical, write_kept

    matrix = canonical(families.generate(name))
    path = resources / "families" / f"{name}.npz"
    write_kept(path, matrix)
    return {"parameters": {"rows": matrix.shape[0], "nnz": int(matrix.nnz)}} | _kept(path, resources)


def _own(name: str, resources: Path, seed: int) -> Facts:
    """Read a matrix of the user's own, or call the function that makes it, and keep it in canonical form."""
    from spectile_study.inputs import own
    from spectile_study.inputs.suitesparse.content import canonical, write_kept

    source = Path(own.PREFIX) / name
    matrix = canonical(own.read(source))
    path = resources / "own" / f"{name}.npz"
    write_kept(path, matrix)
    parameters = {"rows": matrix.shape[0], "columns": matrix.shape[1], "nnz": int(matrix.nnz)}
    return {"parameters": parameters, "source_sha256": hashlib.sha256(source.read_bytes()).hexdigest()} | _kept(
        path, resources
    )


def _water(name: str, resources: Path, seed: int) -> Facts:
    """Compute an operator of a water cluster with PySCF; a large one is kept."""
    from spectile_study.inputs import water

    operator, _, molecules = name.rpartition("_")
    if importlib.util.find_spec("pyscf") is None:
        raise ModuleNotFoundError("PySCF, which computes the operators of water, is not installed: pip install pyscf")
    cluster = water.water_cluster(int(molecules), resources, seed)
    matrix = water.water_matrix(operator, cluster, resources)
    parameters = {"cluster": cluster.origin, "rows": len(matrix)}
    path = resources / "water" / f"{operator}_{molecules}_{cluster.digest}.npz"
    kept = _kept(path, resources) if path.exists() else {"sha256": digest_array(matrix)}
    return {"parameters": parameters} | kept


def _scf(name: str, resources: Path, seed: int) -> Facts:
    """Find the Fock matrix of a cluster of so many molecules, or calculate it; its other operators follow from it."""
    from spectile.core import device
    from spectile_study.inputs import hartree_fock, water

    cluster = water.water_cluster(int(name), resources, seed)
    found = hartree_fock.fock(cluster, resources, device.available())
    assert found.path is not None
    parameters = {"cluster": cluster.origin, "source": found.source, "rows": len(found.matrix)}
    return {"parameters": parameters} | _kept(found.path, resources)


def _ergo(name: str, resources: Path, seed: int) -> Facts:
    """Compute an operator of a water cluster with ergo, which keeps all four of its run."""
    from spectile_study.inputs import ergo, water

    operator, _, molecules = name.rpartition("_")
    if ergo.program() is None:
        raise FileNotFoundError("ergo is not installed: apt-get install ergo, or name it by SPECTILE_ERGO")
    cluster = water.water_cluster(int(molecules), resources, seed)
    ergo.ergo_matrix(operator, cluster, resources)
    path = resources / "water" / f"{operator}_{molecules}_{cluster.digest}.npz"
    return {"parameters": {"cluster": cluster.origin}} | _kept(path, resources)


def _network(name: str, resources: Path, seed: int) -> Facts:
    """Train the network of the digits or VGG13 and keep its parameters."""
    if name == "digits":
        from spectile_study.cases.spamm.networks import digits

        digits.trained_network(seed, resources)
        return _kept(resources / "digits" / f"network_{seed}.npz", resources)
    from spectile.core import device
    from spectile_study.cases.spamm.networks import vgg
    from spectile_study.inputs.mnist import load_mnist, mnist_folder

    split = load_mnist(mnist_folder(resources), seed)
    vgg.trained_network(resources, split, seed, "cuda" if device.available() else "cpu")
    return _kept(resources / "vgg13" / f"weights_{seed}.npz", resources)


def _kept(path: Path, resources: Path) -> Facts:
    return {
        "file": path.relative_to(resources).as_posix(),
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


KINDS: Mapping[str, Callable[[str, Path, int], Facts]] = {
    "decay": _decay,
    "lattice": _lattice,
    "hermitian": _hermitian,
    "dense": _dense,
    "hamiltonian": _hamiltonian,
    "family": _family,
    "own": _own,
    "water": _water,
    "scf": _scf,
    "ergo": _ergo,
    "network": _network,
}


#: What names look like, and one of each kind whose names have parts.
NAMES = {
    "decay": (r"(.+_)?\d+", "16384 or exponential_3d_8192"),
    "lattice": (r"\d+x\d+x\d+", "100x100x40"),
    "hermitian": (r"\d+(_\w+)?", "4096_float64"),
    "dense": (r"\d+x\d+", "4096x64"),
    "hamiltonian": (r"[^_]+_\d+_[^_]+", "graphene_1000000_float64"),
    "water": (r".+_\d+", "overlap_60"),
    "scf": (r"\d+", "60"),
    "ergo": (r".+_\d+", "fock_60"),
}


def is_model(paper: str, row: Mapping[str, Any]) -> bool:
    """Return whether the matrix of a case is a model's, made where it is used, and none of the collection."""
    return paper == "kpm" and row.get("study") in ("matrix", "evolution")


def of_case(paper: str, row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return kind and name of each input that a case needs, matrices of the collection excepted."""
    from spectile_study.inputs import ergo, hartree_fock, own
    from spectile_study.inputs.families import is_family

    study = row.get("study")
    if paper == "tsparse":
        name = row.get("matrix") or ""
        if own.is_own(name):
            return [("own", name.removeprefix(own.PREFIX))]
        return [("family", name)] if is_family(name) else []
    if is_model(paper, row):
        return [("hamiltonian", f"{row['matrix']}_{row['rows']}_{row['precision']}")]
    if paper == "kpm":
        return [("lattice", f"{row['nx']}x{row['ny']}x{row['nz']}")] if row.get("nx") else []
    if paper == "evd":
        return [] if study == "sequences" else [_of_eigensolver(row)]  # its grid is made where it is solved
    if paper == "spamm" and study == "water":
        if row["operator"] in hartree_fock.OPERATORS:
            return [("scf", str(row["molecules"]))]
        kind = "ergo" if row["operator"] in ergo.OPERATORS else "water"
        return [(kind, f"{row['operator']}_{row['molecules']}")]
    if paper == "spamm" and study == "accuracy":
        return [("decay", f"{row['operator']}_{row['n']}")]
    if paper == "spamm" and study in ("vgg", "digits"):
        return [("network", "digits" if study == "digits" else "vgg13")]
    return [("decay", str(row["n"]))] if paper == "spamm" and row.get("n") else []


def _of_eigensolver(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the input of a case of the eigensolver: a Hermitian matrix, or the operands of a product."""
    if row["study"] in ("syr2k", "roofline") or (row["study"] == "int8" and not row["block"]):
        return "dense", f"{row['n']}x{row['k'] or row['bandwidth'] or row['n']}"
    if row["problem"] == "tridiagonal":  # diagonal and subdiagonal
        return "dense", f"{row['n']}x2"
    return "hermitian", f"{row['n']}_{row['precision']}"
