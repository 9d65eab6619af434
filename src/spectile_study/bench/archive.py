"""The records of a paper and machine in one zip file, which is kept beside their frame."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectile.core.atomic_file import atomic_write
from spectile_study.bench import record

if TYPE_CHECKING:
    import pandas

#: Equal records make equal files: entries carry the earliest time that the format knows.
_TIME = (1980, 1, 1, 0, 0, 0)
Records = dict[str, dict[str, Any]]


def load(place: Path) -> Records:
    """Read the records that `place` names, by case: a record, a folder of them, or a zip file.

    Raises
    ------
    FileNotFoundError
        If nothing of the kind is there.
    record.RecordError
        If one is truncated, breaks the schema, contradicts itself or has another name than its case and paper; the
        message names it.
    """
    if place.suffix != ".zip" or not place.exists():
        contents = ((path, str(path), path.read_bytes()) for path in record.files(place))
        return _by_case(contents)
    try:
        with zipfile.ZipFile(place) as archive:
            names = archive.namelist()
            return _by_case((Path(place.stem, name), f"{name} in {place}", archive.read(name)) for name in names)
    except (zipfile.BadZipFile, zlib.error) as error:
        raise record.RecordError(
            f"{place} is no whole file of records ({error}): take it from its source again"
        ) from None


def _by_case(contents: Iterable[tuple[Path, str, bytes]]) -> Records:
    records: Records = {}
    for path, what, content in contents:
        stored = record.parse(content, what)
        record.named(stored, path, what)
        if stored["case"] in records:
            raise record.RecordError(f"{what} is the second record of its case: name one folder of one paper at a time")
        records[stored["case"]] = stored
    return records


def read_frame(path: Path, *, whole: bool = False) -> pandas.DataFrame:
    """Read a frame that a user named, as :func:`record.read_frame <spectile_study.bench.record.read_frame>` does.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    record.RecordError
        If it is no frame; the message names it.
    """
    import pyarrow

    if not path.is_file():
        raise FileNotFoundError(f"there is no frame {path}: name a .parquet file of results or results/recorded")
    try:
        return record.read_frame(path, whole=whole)
    except (pyarrow.ArrowException, KeyError) as error:
        raise record.RecordError(
            f"{path} is no whole frame ({type(error).__name__}: {error}): gather it again, or take it from its source"
        ) from None


def pack(records: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write `records` of one paper as a zip file with an entry for each case; equal records make equal files."""
    ordered = sorted(records, key=lambda stored: stored["case"])
    with atomic_write(path) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for stored in ordered:
            entry = zipfile.ZipInfo(f"{stored['case']}.json", _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, json.dumps(stored, indent=1, allow_nan=False) + "\n")


def keep(place: Path, folder: Path, sheet: Collection[str] | None = None) -> list[str]:
    """Take the records of `place` into a folder of reviewed measurements: its zip file and its frame.

    A case that was measured there stays as it is if the new record holds none (it was skipped, or could not be built)
    or is of other molecules.
    What others' libraries measured that are not installed any more stays, too, with what it is compared with
    (:func:`record.join <spectile_study.bench.record.join>`); the records of these rows are kept in ``earlier``.

    Parameters
    ----------
    place : Path
        Records of one paper: a zip file, a record or a folder of them.
    folder : Path
        ``results/recorded/<machine>``.  Cases that it holds already are replaced, all others stay as they are.
    sheet : collection of str, optional
        Cases of the paper's run sheet; others, which nothing draws any more, are left out.

    Returns
    -------
    list of str
        What a reviewer must know: how many cases came, which stayed, and methods that passed before and do not now.

    Raises
    ------
    ValueError
        If the records are of several papers, or of another machine than the folder's.
    """
    new = load(place)
    papers = {stored["paper"] for stored in new.values()}
    machines = {stored["machine"] for stored in new.values()}
    if len(papers) != 1 or machines != {folder.name}:
        raise ValueError(
            f"{place} holds records of {', '.join(sorted(papers))} on {', '.join(sorted(machines))}, "
            f"and {folder} takes one paper of {folder.name} at a time: name other records or another folder"
        )
    (paper,) = papers
    zipped, framed = folder / f"{paper}.zip", folder / f"{paper}.parquet"
    earlier = record.read_frame(framed, whole=True) if framed.exists() else None
    passed = set() if earlier is None else _passed(earlier)
    measured = {case for case, _ in passed}
    stay = {
        case: f"the new record is {stored['status']} ({stored['reason']})"
        for case, stored in new.items()
        if stored["status"] != "ok" and case in measured
    }
    stay |= _of_other_molecules(new, earlier)
    said = [f"{case} stays as it was: {why}" for case, why in sorted(stay.items())]
    new = {case: stored for case, stored in new.items() if case not in stay}
    before = load(zipped) if zipped.exists() else {}
    kept = before | new
    if sheet is not None:
        gone = sorted({*kept, *(earlier["case"] if earlier is not None else ())} - set(sheet))
        said += [f"{case} is left out: no row of the sheet is called so" for case in gone]
        kept = {case: stored for case, stored in kept.items() if case in sheet}
        earlier = None if earlier is None else earlier[earlier["case"].isin(sheet)].reset_index(drop=True)
    table = record.frame(kept[case] for case in sorted(kept))
    table = table if earlier is None else record.join(earlier, table)
    lost = sorted((passed - _passed(table)) & {(case, method) for case, method in passed if case in new})
    said += [f"{case}: {method} passed before and does not now" for case, method in lost]
    dated = table[table["case"].isin(new) & (table["status"] == "ok") & table["reason"].notna()]
    for method, rows in dated.groupby("method"):
        when = ", ".join(record.dates(rows))
        said.append(f"{method} is not installed now: {rows['case'].nunique()} cases keep what it measured on {when}")
    pack(kept.values(), zipped)
    _keep_earlier(before, table, folder / "earlier" / f"{paper}.zip")
    record.write_frame(table, framed)
    return [f"{len(set(new) - measured)} cases added, {len(set(new) & measured)} replaced", *said]


def _keep_earlier(before: Records, table: pandas.DataFrame, path: Path) -> None:
    """Keep those of the replaced records whose rows stand in the frame `table`, in a zip file of their own."""
    wanted = set(table["record"])
    known = [*(load(path) if path.exists() else {}).values(), *before.values()]
    latest = set(table.loc[table["status"] != "beside"].drop_duplicates("case")["record"])
    records = {record.record_id(stored): stored for stored in known}
    stay = [stored for name, stored in records.items() if name in wanted - latest]
    if stay:
        path.parent.mkdir(exist_ok=True)
        pack(stay, path)
    else:
        path.unlink(missing_ok=True)


def _of_other_molecules(new: Records, earlier: pandas.DataFrame | None) -> dict[str, str]:
    """Return the cases whose molecules come from elsewhere than those of the earlier row, and where from, in words."""
    if earlier is None or "v_cluster" not in earlier:
        return {}
    before: dict[str, str] = dict(earlier.dropna(subset="v_cluster")[["case", "v_cluster"]].itertuples(index=False))
    places = {
        case: (before[case].partition(";")[0], str(stored["values"]["cluster"]).partition(";")[0])
        for case, stored in new.items()
        if case in before and "cluster" in stored["values"]
    }
    return {
        case: f"its molecules are of {old}, and those of the new record of {of_new}"
        for case, (old, of_new) in places.items()
        if old != of_new
    }


def _passed(table: pandas.DataFrame) -> set[tuple[str, str]]:
    """Return case and method of the rows that passed their check."""
    rows = table[table["status"] == "ok"]
    return set(zip(rows["case"], rows["method"], strict=True))


def unpack(place: Path, folder: Path) -> int:
    """Write the records of a zip file into a folder of records, those that it holds excepted; return how many.

    A Snakemake of the same machine then measures none of them again.
    """
    written = 0
    for case, stored in load(place).items():
        path = folder / f"{case}.json"
        if not path.exists():
            record.write(stored, path)
            written += 1
    return written
