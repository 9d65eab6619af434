"""Archive a finished run as a Workflow Run RO-Crate: sources, configuration, records and drawings, linked and hashed.

The crate follows the profile *Workflow Run Crate* (https://w3id.org/ro/wfrun/workflow): one action says which workflow
made which files from which inputs, when and on which device.  Written with the rocrate library (extra ``crate``).
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from spectile_study.bench import archive
from spectile_study.papers import PAPERS

PROFILES = (
    ("https://w3id.org/ro/wfrun/process/0.5", "Process Run Crate", "0.5"),
    ("https://w3id.org/ro/wfrun/workflow/0.5", "Workflow Run Crate", "0.5"),
    ("https://w3id.org/workflowhub/workflow-ro-crate/1.0", "Workflow RO-Crate", "1.0"),
)
_CONTEXT = "https://w3id.org/ro/terms/workflow-run/context"
_LICENSE = "https://spdx.org/licenses/BSD-3-Clause"
#: Sources beside the Snakefile: with them an archive needs no repository.
_ROOT_FILES = ("README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md", "Makefile", "pyproject.toml")
_FORMATS = {".tsv": "text/tab-separated-values", ".parquet": "application/vnd.apache.parquet", ".yaml": "text/yaml"}


def export(repository: Path, machine: str, out: Path, recorded: bool = False) -> Path:
    """Write the finished run of `machine`, or its reviewed measurements, as a crate.

    What the crate says of records comes from the zip of each paper, which lies beside its frame.

    Parameters
    ----------
    repository : Path
        Folder of the Snakefile, with ``results/<machine>`` below it.
    machine : str
        Name of the machine in ``results``.
    out : Path
        New folder, or a file that ends in ``.zip``.
    recorded : bool
        Export ``results/recorded/<machine>`` in place of ``results/<machine>``.

    Returns
    -------
    Path
        `out`.

    Raises
    ------
    ValueError
        If the run is not finished or nothing is recorded, or `out` is there already.
    ModuleNotFoundError
        If the rocrate library is not installed; the message names the extra.
    """
    results = repository / "results" / ("recorded" if recorded else "") / machine
    zips = sorted(results.glob("*.zip"))
    zips = [path for path in zips if path.stem in PAPERS]
    if recorded and not zips:
        raise ValueError(f"{results} holds no zip of records: choose another --machine of results/recorded")
    missing = [name for name in ("config.yaml", "claims.html") if not (recorded or (results / name).exists())]
    if missing:
        raise ValueError(
            f"{results} holds no finished run ({missing[0]} is absent): "
            f"finish it with snakemake --cores all --config machine={machine}"
        )
    if out.exists():
        raise ValueError(f"{out} is there already: give --out another name, or remove it")
    try:
        from rocrate.model.contextentity import ContextEntity
        from rocrate.rocrate import ROCrate
    except ModuleNotFoundError:
        raise ModuleNotFoundError("the rocrate library is not installed: pip install rocrate") from None

    kept = {path: archive.load(path) for path in zips}
    records = [stored for cases in kept.values() for stored in cases.values()]
    crate = ROCrate(version="1.1")  # the specification that the profiles build on; validators refuse a newer one
    crate.metadata.extra_contexts.append(_CONTEXT)
    crate.name = f"spectile on {machine}"
    what = "Reviewed measurements" if recorded else "A finished run"
    crate.description = f"{what} of the spectile workflow on {_devices(records)}: {len(records)} records."
    crate.license = _LICENSE
    profiles = [
        crate.add(ContextEntity(crate, url, {"@type": "CreativeWork", "name": name, "version": version}))
        for url, name, version in PROFILES
    ]
    crate.root_dataset["conformsTo"] = profiles

    workflow = crate.add_workflow(repository / "Snakefile", "Snakefile", main=True, lang="snakemake")
    workflow["name"] = "spectile"
    workflow["version"] = ", ".join(sorted({stored["provenance"]["commit"] for stored in records})) or "unknown"
    sources = [path for folder in ("workflow", "src", "envs", "profiles") for path in _files(repository, folder)]
    sources += [repository / name for name in _ROOT_FILES if (repository / name).is_file()]
    workflow["hasPart"] = [_add(crate, repository, path) for path in sources]
    inputs = [_add(crate, repository, path) for path in _files(repository, "config")]
    files = list(_files(repository, results.relative_to(repository).as_posix()))
    inputs += [_add(crate, repository, path) for path in files if path.name == "config.yaml"]
    made = {path: _add(crate, repository, path) for path in files if path.name != "config.yaml"}
    for path, cases in kept.items():
        made[path]["description"] = f"Records of {path.stem} on {_devices(cases.values())}: {len(cases)} cases"
        for case, stored in cases.items():
            alone = made.get(results / "records" / path.stem / f"{case}.json")
            if alone is not None:
                alone["description"] = f"{path.stem}/{case} on {stored['device']}: {stored['status']}"
    run = crate.add(ContextEntity(crate, "#run", _action(machine, records)))
    run["instrument"], run["object"], run["result"] = workflow, inputs, list(made.values())
    crate.root_dataset["mentions"] = [run]

    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".zip":
        crate.write_zip(out)
    else:
        crate.write(out)
    return out


def _action(machine: str, records: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the properties of the one action: what ran, where, and when its first and last record were written."""
    times = sorted(stored["measured_at"] for stored in records)
    return {
        "@type": "CreateAction",
        "name": f"Run of spectile on {machine}",
        "description": f"Measured on {_devices(records)}",
        "actionStatus": "http://schema.org/CompletedActionStatus",
    } | ({"startTime": times[0], "endTime": times[-1]} if times else {})


def _devices(records: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(sorted({stored["device"] for stored in records})) or "no device"


def _files(repository: Path, folder: str) -> Iterator[Path]:
    for path in sorted((repository / folder).rglob("*")):
        hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(repository).parts)
        if path.is_file() and not hidden:
            yield path


def _add(crate: Any, repository: Path, path: Path) -> Any:
    """Add a file under its place in the repository, with its size and digest."""
    place = path.relative_to(repository).as_posix()
    properties = {
        "contentSize": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "encodingFormat": _FORMATS.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain",
    }
    return crate.add_file(path, place, properties=properties)
