"""Run sheets and configuration: read, typed and checked by their schemas, with worded errors.

A sheet (``config/<paper>.tsv``) has one row for each case.  Cells are typed by the sheet's JSON schema; an empty cell
takes the schema's default, or null.
"""

from __future__ import annotations

import csv
import difflib
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class SheetError(ValueError):
    """A configuration or sheet that cannot be used; the message names the place and what to do."""


@functools.cache
def load_schema(path: Path) -> dict[str, Any]:
    """Read a JSON schema written as YAML; a file that holds none raises :class:`SheetError`."""
    import yaml

    try:
        schema: Any = yaml.safe_load(Path(path).read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SheetError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise SheetError(f"{path} is no schema of a sheet: it names no properties of its rows")
    return schema


def validate(data: Any, schema: Mapping[str, Any], what: str) -> None:
    """Raise :class:`SheetError` with one worded sentence if `data` breaks `schema`.

    Parameters
    ----------
    data : object
        Parsed JSON, YAML or sheet row.
    schema : mapping
        JSON schema.
    what : str
        How the message calls the data, for example ``"config/config.yaml"``.
    """
    import jsonschema

    validator = jsonschema.validators.validator_for(schema)(schema)
    error = jsonschema.exceptions.best_match(validator.iter_errors(data))
    if error is None:
        return
    place = ".".join(str(part) for part in error.absolute_path) or "its top level"
    if error.validator == "additionalProperties":
        allowed = sorted(error.schema.get("properties", {}))
        unknown = [key for key in error.instance if key not in allowed]
        near = difflib.get_close_matches(str(unknown[0]), allowed, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(allowed)}"
        raise SheetError(f"{what}: unknown key {unknown[0]!r} at {place}; {hint}")
    if error.validator == "type" and error.validator_value == "array" and isinstance(error.instance, str):
        raise SheetError(f"{what}: {place} is a list: write {place}=[{error.instance}]")
    if error.validator == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        where = f"{what}: {place}" if error.absolute_path else what
        raise SheetError(f"{where} lacks {', '.join(repr(key) for key in missing)}; add it")
    expected = error.schema.get("description", "")
    hint = f"; it is: {expected}" if expected else ""
    if error.validator == "pattern" and expected:  # which is for machines to read
        raise SheetError(f"{what}: {place} = {error.instance!r} cannot be used{hint}")
    raise SheetError(f"{what}: {place} = {error.instance!r}: {error.message}{hint}")


@functools.cache
def _read(path: Path, schema_path: Path) -> tuple[Row, ...]:
    schema = load_schema(schema_path)
    properties = schema["properties"]
    filled = _lines(path)
    cells_of = csv.DictReader((line for _, line in filled), delimiter="\t")
    rows: list[Row] = []
    for (number, _), cells in zip(filled[1:], cells_of, strict=False):
        if None in cells or None in cells.values():
            raise SheetError(f"{path}: line {number} has more or fewer cells than the header: check its tabs")
        row: Row = {}
        for key, text in cells.items():
            row[key] = _typed(text.strip(), properties.get(key, {}), f"{path}: line {number}, column {key!r}")
        row = {key: value for key, value in row.items() if value is not None}
        validate(row, schema, f"{path}: line {number}")
        rows.append({key: row.get(key, item.get("default")) for key, item in properties.items()})
    if not rows:
        raise SheetError(f"{path} holds no case: take it from the repository, or leave its paper out of papers=[...]")
    names = [row["case"] for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise SheetError(f"{path}: the case {twice[0]!r} stands twice: give each row its own name")
    return tuple(rows)


def _lines(path: Path) -> list[tuple[int, str]]:
    """Return the lines of a sheet with their numbers, comments and empty lines left out."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets mark UTF-8 by a first character
    except FileNotFoundError:
        raise SheetError(f"there is no sheet {path}: take it from the repository") from None
    except UnicodeDecodeError as error:
        raise SheetError(f"{path} is not text in UTF-8 ({error}): save it as tab-separated UTF-8") from None
    lines = enumerate(text.split("\n"), start=1)
    return [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]


def read_sheet(path: str | Path, schema_path: str | Path, run: str | None = None) -> dict[str, Row]:
    """Read a run sheet; return its rows by case, only those of `run` (``"quick"`` or ``"paper"``) if given.

    Raises
    ------
    SheetError
        If there is no such sheet or no case in it, a column is unknown, a cell has the wrong type or a case stands
        twice.
    """
    rows = _read(Path(path), Path(schema_path))
    return {row["case"]: dict(row) for row in rows if run is None or run in row["run"].split(",")}


def _typed(text: str, schema: Mapping[str, Any], what: str) -> Any:
    if text == "":
        return schema.get("default")
    kind = schema.get("type", "string")
    kinds = [kind] if isinstance(kind, str) else list(kind)
    try:
        if "integer" in kinds:
            return int(text)
        if "number" in kinds:
            return float(text)
    except ValueError:
        raise SheetError(f"{what}: {text!r} is not a number; {schema.get('description', 'write a number')}") from None
    if "boolean" in kinds:
        if text.lower() not in {"true", "false"}:
            raise SheetError(f"{what}: {text!r} is neither true nor false")
        return text.lower() == "true"
    return text


def row_digest(row: Mapping[str, Any]) -> str:
    """Return a short digest of a case's parameters: editing a row re-measures that case alone."""
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:16]


def gres(wildcards: Any, kind: str) -> str:
    """Return the generic resource that a case asks Slurm for, one GPU at least; profiles/slurm-gres calls this.

    Parameters
    ----------
    wildcards : object
        With the attributes ``paper`` and ``case``.
    kind : str
        The cluster's name of its GPUs, for example ``"gpu:h200"``.
    """
    paper, study = wildcards.paper, Path(__file__).parents[3]
    sheet, schema = study / f"config/{paper}.tsv", study / f"workflow/schemas/{paper}.schema.yaml"
    row = read_sheet(sheet, schema)[wildcards.case]
    return f"{kind}:{row.get('gpus') or 1}"
