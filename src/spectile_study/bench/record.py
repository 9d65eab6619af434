"""Records: a JSON file of each case, checked when written and read; frames: a row for each method and case.

Nothing is derived in a record: it holds raw samples, errors, work and provenance.  ``frame`` derives medians and
intervals (:mod:`spectile_study.bench.stats`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spectile.core.atomic_file import atomic_write
from spectile_study.bench.judge import contradiction
from spectile_study.bench.stats import PASSED, median_interval

if TYPE_CHECKING:
    import pandas

#: A reason of methods that somebody else's program would have to be installed for.
NOT_INSTALLED = r"is not (?:built|installed|rebuilt)\b|\bhas no (?:two-stage syevd|Xstedc)\b"
#: How the reason of a row begins that stays from an earlier record.
RECORDED = "not installed in the latest run; recorded on"
LEADING_COLUMNS = (
    "paper", "case", "record", "method", "device", "machine", "status", "reason",
    "time_s", "time_s_lo", "time_s_hi", "samples_s", "clock", "error_fro_rel", "flops", "bytes", "memory_bytes",
    "commit", "dirty", "digest",
)  # fmt: skip
#: What of a record's provenance stands in the frame, as ``run_<name>``: of the process, and of its GPU.
RUN_FACTS = ("seed", "threads", "rounds", "warmup", "budget_s", "cases_before", "host", "cpu", "python", "system")
RUN_GPU_FACTS = (
    "driver", "driver_cuda", "runtime_cuda", "cupy", "cublas", "cusolver", "cusparse", "nvrtc", "sm_clock_mhz",
    "memory_clock_mhz", "power_limit_w", "throttle_bits",
)  # fmt: skip
LEADING_NUMBERS = ("time_s", "time_s_lo", "time_s_hi", "error_fro_rel", "flops", "bytes", "memory_bytes")


class RecordError(ValueError):
    """A record that is truncated, foreign or breaks the schema; the message names the file and what to do."""


@functools.cache
def _validator() -> Any:
    import jsonschema
    import yaml

    schema = yaml.safe_load(resources.files("spectile_study.bench").joinpath("record.schema.yaml").read_text())
    return jsonschema.validators.validator_for(schema)(schema)


def check(record: Mapping[str, Any], what: str) -> None:
    """Raise :class:`RecordError`, which calls the record `what`, if it breaks the schema or contradicts itself."""
    import jsonschema

    error = jsonschema.exceptions.best_match(_validator().iter_errors(record))
    if error is not None:
        place = "/".join(str(part) for part in error.absolute_path) or "its top level"
        raise RecordError(
            f"{what} breaks the record schema at {place}: {error.message}; remove it and measure the case again"
        )
    why = contradiction(record)
    if why:
        raise RecordError(f"{what} contradicts itself: {why}; remove it and measure the case again")


def write(record: Mapping[str, Any], path: str | Path) -> None:
    """Write `record` to `path`, checked and atomically: readers see the whole file or none."""
    clean = _plain(record)
    check(clean, str(path))
    with atomic_write(path) as partial:
        partial.write_text(json.dumps(clean, indent=1, allow_nan=False) + "\n")


def parse(content: bytes, what: str) -> dict[str, Any]:
    """Return the record in a file's `content`, checked; `what` names the file in the message.

    Raises
    ------
    RecordError
        If the content is truncated, holds a key twice or a number that JSON lacks, breaks the schema or contradicts
        itself.
    """
    try:
        record = json.loads(content, object_pairs_hook=_once, parse_float=_finite, parse_constant=_finite)
    except ValueError as error:
        raise RecordError(f"{what} is not a whole record ({error}): remove it and measure the case again") from None
    check(record, what)
    return record


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    twice = [key for key in keys if keys.count(key) > 1] if len(set(keys)) < len(keys) else []
    if twice:
        raise ValueError(f"the key {twice[0]!r} stands twice")
    return dict(pairs)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def read(path: str | Path) -> dict[str, Any]:
    """Read and check a record, whose file may have any name.

    Raises
    ------
    RecordError
        As :func:`parse`.
    """
    return parse(Path(path).read_bytes(), str(path))


def named(record: Mapping[str, Any], path: str | Path, what: str) -> None:
    """Raise :class:`RecordError` if the name of a kept record, ``<paper>/<case>.json``, is not that of its content.

    A folder that is not called as a paper is not judged.
    """
    from spectile_study.papers import PAPERS

    path = Path(path)
    said = {"case": path.stem} | ({"paper": path.parent.name} if path.parent.name in PAPERS else {})
    for key, name in said.items():
        if record[key] != name:
            raise RecordError(
                f"{what} holds the {key} {record[key]!r}, which is not its name: give it its name back, "
                "or remove it and measure the case again"
            )


def files(place: Path) -> list[Path]:
    """Return the record files that `place` names: itself, or those in and below a folder.

    Raises
    ------
    FileNotFoundError
        If there is no such file or folder, or none in the folder.
    """
    paths = sorted(path for path in place.rglob("*.json") if path.name != "machine.json") if place.is_dir() else [place]
    if not paths or not paths[0].exists():
        raise FileNotFoundError(f"{place} holds no record: name a record, or a folder such as results/this/records/kpm")
    return paths


def record_id(record: Mapping[str, Any]) -> str:
    """Return the identity of a record's content: twelve hexadecimal digits."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:12]


def _plain(value: Any) -> Any:
    """Turn NumPy scalars, arrays and tuples into JSON types; non-finite numbers become text, which JSON lacks."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def made_by(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what made a record, as far as it says: the columns ``run_<name>`` of its frame."""
    facts = dict(record["provenance"])
    gpu = facts.get("gpu") or {}
    inputs = " ".join(f"{name}={digest}" for name, digest in sorted((record.get("inputs") or {}).items()))
    made: dict[str, Any] = {name: facts.get(name) for name in RUN_FACTS}
    made |= {name: gpu.get(name) for name in RUN_GPU_FACTS}
    made |= {"inputs": inputs or None, "measured_at": record.get("measured_at")}
    return {name: value for name, value in made.items() if value is not None}


@functools.cache
def columns(paper: str | None = None) -> dict[str, str]:
    """Return the kind of every column beside the leading ones that the frame of `paper` (default: of any) has.

    Kinds are ``number``, ``text``, ``flag`` and ``list``; they stand in ``columns.yaml``.
    """
    import yaml

    listed = yaml.safe_load(resources.files("spectile_study.bench").joinpath("columns.yaml").read_text())
    run = listed.pop("run")
    papers = [run, *(listed.values() if paper is None else [listed[paper]])]
    return {name: kind for kinds in papers for kind, names in kinds.items() for name in names}


def frame(records: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return the frame of `records`: one row for each method of a case, derived columns included.

    A case that could not be built (its input is absent, say) has a row whose method is ``"-"``, beside those of methods
    that went without.  The frame has every column of its paper, and without any record the columns of all papers.
    """
    import pandas

    rows: list[dict[str, Any]] = []
    for record in records:
        shared = {
            "paper": record["paper"],
            "case": record["case"],
            "record": record_id(record),
            "device": record["device"],
            "machine": record["machine"],
            "commit": record["provenance"]["commit"],
            "dirty": record["provenance"]["dirty"],
            "digest": record["provenance"]["digest"],
        }
        shared |= {f"run_{name}": value for name, value in made_by(record).items()}
        shared |= {f"p_{key}": value for key, value in record["params"].items()}
        shared |= {f"v_{key}": value for key, value in record["values"].items()}
        methods = list(record["methods"])
        if record["status"] != "ok" or not methods:
            methods.append({"method": "-", "status": record["status"], "reason": record["reason"]})
        rows += [shared | _method_row(method) for method in methods]
    return _complete(pandas.DataFrame(rows))


def _complete(table: pandas.DataFrame) -> pandas.DataFrame:
    """Return `table` with every column of its paper: the leading ones, then the others by name."""
    import pandas

    # Arrow's strings are slow where selections take columns one by one, and what is mapped from them stays text.
    texts = [name for name in table if isinstance(table[name].dtype, pandas.StringDtype)]
    table = table.astype(dict.fromkeys(texts, object))
    papers = set(table["paper"]) if "paper" in table else set()
    kinds = columns(papers.pop() if len(papers) == 1 else None)
    table = _filled(table)
    leading = dict.fromkeys(LEADING_COLUMNS, "text") | dict.fromkeys(LEADING_NUMBERS, "number")
    missing = {name: kind for name, kind in (leading | kinds).items() if name not in table}
    empty = {
        name: np.full(len(table), np.nan) if kind == "number" else np.full(len(table), None, dtype=object)
        for name, kind in missing.items()
    }
    whole = pandas.concat([table, pandas.DataFrame(empty, index=table.index)], axis="columns")
    whole = whole[[*LEADING_COLUMNS, *sorted(set(whole.columns) - set(LEADING_COLUMNS))]]
    # Drawings select rows thousands of times: pandas copies a block for each kind of column, not for each column.
    whole.columns = whole.columns.astype(object)
    return whole.copy()


def _filled(table: pandas.DataFrame) -> pandas.DataFrame:
    """Return `table` without the columns that hold nothing."""
    return table[[name for name in table if table[name].notna().any()]]


def join(earlier: pandas.DataFrame, later: pandas.DataFrame) -> pandas.DataFrame:
    """Return `later` and those cases of `earlier` that it does not hold, row by row as they stand.

    A method that `later` skipped because it is not installed keeps its row of `earlier`, and the other methods that
    passed in that record stay with it under the status ``beside``: ratios are of one run, and so of these two
    (:func:`~spectile_study.bench.stats.speedups`); nothing else is made of rows that stand beside.

    Raises
    ------
    ValueError
        The frames come from different machines or papers, whose rows must not stand in one frame.
    """
    import pandas

    for column in ("paper", "machine"):
        values = set(earlier[column]) | set(later[column])
        if len(values) > 1:
            raise ValueError(
                f"frames of {column} {' and '.join(sorted(values))} cannot be joined: gather them into two files"
            )
    earlier = earlier.map(lambda value: value.tolist() if isinstance(value, np.ndarray) else value)  # as parquet reads
    dated, replaced = _dated(earlier, later)
    parts = [earlier[~earlier["case"].isin(later["case"])], later[~replaced], dated]
    both = pandas.concat([part.dropna(axis="columns", how="all") for part in parts if len(part)] or [later])
    return _complete(both.sort_values("case", kind="stable").reset_index(drop=True))


def _dated(earlier: pandas.DataFrame, later: pandas.DataFrame) -> tuple[pandas.DataFrame, np.ndarray]:
    """Return the rows of `earlier` that stay for what is not installed now, and which rows of `later` they replace.

    Of several earlier records of a case, the one that holds most of its methods stays.
    """
    absent = (later["status"] == "skipped") & later["reason"].astype(str).str.contains(NOT_INSTALLED)
    asked = set(zip(later.loc[absent, "case"], later.loc[absent, "method"], strict=True))
    keys = list(zip(earlier["case"], earlier["method"], strict=True))
    had = earlier[np.array([key in asked for key in keys], dtype=bool) & earlier["status"].isin(["ok", "failed"])]
    stays = {case: rows["record"].value_counts(sort=True).idxmax() for case, rows in had.groupby("case")}
    had = had[had["record"] == had["case"].map(stays)]
    passed = earlier["status"].isin(PASSED) & (earlier["record"] == earlier["case"].map(stays))
    rows = earlier[passed | earlier.index.isin(had.index)].copy()
    date, commit = rows["run_measured_at"].astype(str).str[:10], rows["commit"].astype(str).str[:7]
    rows["reason"] = rows["reason"].where(rows["status"] == "failed", f"{RECORDED} " + date + " at " + commit)
    rows.loc[~rows.index.isin(had.index), "status"] = "beside"
    kept = set(zip(had["case"], had["method"], strict=True))
    replaced = [key in kept for key in zip(later["case"], later["method"], strict=True)]
    return rows, absent.to_numpy() & np.array(replaced, dtype=bool)


def dates(rows: pandas.DataFrame) -> list[str]:
    """Return when, and at which commits, those of the `rows` were recorded that stay for what is not installed now."""
    if not {"status", "reason"} <= set(rows):
        return []
    told = {reason for status, reason in zip(rows["status"], rows["reason"], strict=True) if status in PASSED}
    return sorted(each.removeprefix(RECORDED).strip() for each in told if str(each).startswith(RECORDED))


def _method_row(method: Mapping[str, Any]) -> dict[str, Any]:
    row = {key: method.get(key) for key in ("method", "status", "reason", "clock", "flops", "bytes", "memory_bytes")}
    samples = method.get("samples_s") or []
    row["samples_s"] = samples
    if samples and method["status"] == "ok":
        row["time_s"], row["time_s_lo"], row["time_s_hi"] = median_interval(samples)
    row |= {name: float(value) for name, value in (method.get("errors") or {}).items()}
    row |= {f"v_{name}": value for name, value in (method.get("values") or {}).items()}
    return row


def write_frame(table: pandas.DataFrame, path: str | Path) -> None:
    """Write a frame as parquet, atomically, without columns that hold nothing; those that mix types become text."""
    import pandas

    leading = table[[name for name in LEADING_COLUMNS if name in table]]
    others = _filled(table.drop(columns=leading.columns))
    table = pandas.concat([leading, others], axis="columns")
    for column in table.columns:
        if table[column].dtype == object and _mixes_types(table[column]):
            table[column] = table[column].map(lambda value: None if value is None else str(value))
    with atomic_write(path) as partial:
        table.to_parquet(partial, index=False)


def _mixes_types(column: pandas.Series) -> bool:
    """Whether parquet would refuse a column: several types that are not all numbers.  Lists it takes as they are."""
    kinds = {type(value) for value in column.dropna()}
    return list not in kinds and len(kinds) > 1 and not kinds <= {int, float}


def read_frame(path: str | Path, *, whole: bool = False) -> pandas.DataFrame:
    """Read a frame written by :func:`write_frame`; it has every column of its paper.

    Parameters
    ----------
    path : str or Path
        The file.
    whole : bool
        Return rows, too, that do not say what made them (:func:`says_its_source`), of which nothing is drawn or judged.
    """
    import pandas

    table = _complete(pandas.read_parquet(path))
    return table if whole else table[says_its_source(table)].reset_index(drop=True)


def says_its_source(table: pandas.DataFrame) -> pandas.Series:
    """Return which rows of a frame say when they were measured and, on a GPU, under which driver.

    A count, whose clock is ``none``, is the same on every day and machine.
    """
    on_gpu = table["device"].str.startswith("NVIDIA")
    return (table["clock"] == "none") | (table["run_measured_at"].notna() & (table["run_driver"].notna() | ~on_gpu))
