"""Compare two runs case by case, for changes of code, library or machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spectile_study.bench import archive, record
from spectile_study.bench.stats import unpaired_ratio

if TYPE_CHECKING:
    import pandas


def load(path: Path) -> pandas.DataFrame:
    """Read one run: a parquet frame, a record, a zip of records, or a folder that holds frames or records.

    Raises
    ------
    FileNotFoundError
        If nothing of the kind is there; the message names the place.
    ValueError
        If the file is of another kind.
    """
    import pandas

    if not path.exists():
        raise FileNotFoundError(f"there is no {path}, neither records nor frames: {_NAME}")
    frames = sorted(path.glob("*.parquet")) if path.is_dir() else [path] if path.suffix == ".parquet" else []
    if frames:
        return pandas.concat([archive.read_frame(file, whole=True) for file in frames], ignore_index=True)
    if path.is_file() and path.suffix not in (".json", ".zip"):
        raise ValueError(f"{path} is neither a frame nor a record: {_NAME}")
    if path.suffix == ".zip":
        return record.frame(archive.load(path).values())
    try:
        files = record.files(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} holds neither records nor frames: {_NAME}") from None
    return record.frame(stored for file in files for stored in archive.load(file).values())


_NAME = "name a results folder, a .parquet file, a .zip of records or a record"


def compare(a: Path, b: Path) -> pandas.DataFrame:
    """Return one row for each case and method of both runs: medians, speed of `b` relative to `a`, interval, verdict.

    The runs were not interleaved, so the interval is the conservative one; cases that only one run holds are listed
    with the verdict ``only in A`` or ``only in B``, failed ones with ``failed in A`` or ``failed in B``.
    """
    import pandas

    keys, values = ["paper", "case", "method"], ["status", "time_s", "samples_s"]
    one, other = (load(path)[keys + values] for path in (a, b))
    papers = [sorted(set(frame["paper"])) for frame in (one, other)]
    if len(one) and len(other) and not set(papers[0]) & set(papers[1]):
        raise ValueError(
            f"{a} holds {', '.join(papers[0])} and {b} holds {', '.join(papers[1])}: name two runs of the same paper"
        )
    both = pandas.merge(one, other, on=keys, how="outer", suffixes=("_a", "_b"), indicator=True)
    rows = []
    for _, row in both.iterrows():
        line = {key: row[key] for key in keys} | {"time_a_s": row["time_s_a"], "time_b_s": row["time_s_b"]}
        if row["_merge"] != "both":
            line["verdict"] = "only in A" if row["_merge"] == "left_only" else "only in B"
        elif "failed" in (row["status_a"], row["status_b"]):
            line["verdict"] = "failed in A" if row["status_a"] == "failed" else "failed in B"
        elif pandas.notna(row["time_s_a"]) and pandas.notna(row["time_s_b"]):
            ratio = unpaired_ratio(list(row["samples_s_a"]), list(row["samples_s_b"]))
            line |= {"speedup": ratio.median, "speedup_lo": ratio.lo, "speedup_hi": ratio.hi, "verdict": ratio.verdict}
        else:
            continue
        rows.append(line)
    columns = [*keys, "time_a_s", "time_b_s", "speedup", "speedup_lo", "speedup_hi", "verdict"]
    return pandas.DataFrame(rows, columns=columns).sort_values(keys, ignore_index=True)


def report(table: pandas.DataFrame) -> str:
    """Return the comparison as text: one line for each case and method of both runs, then the number of each verdict.

    Parameters
    ----------
    table : DataFrame
        As `compare` returns it.
    """
    alone = table["verdict"].isin(["only in A", "only in B"])
    shown = table[~alone]
    formats = {"time_a_s": "{:.4g}", "time_b_s": "{:.4g}"} | dict.fromkeys(
        ("speedup", "speedup_lo", "speedup_hi"), "{:.3f}"
    )
    lines = shown.to_string(
        index=False, na_rep="-", formatters={name: pattern.format for name, pattern in formats.items()}
    )
    counts = [f"{count} {verdict}" for verdict, count in table["verdict"].value_counts().items()]
    summary = f"speed of B relative to A: {', '.join(counts) or 'nothing was measured in either'}"
    return f"{lines}\n{summary}" if len(shown) else f"the runs share no measured case; {summary}"
