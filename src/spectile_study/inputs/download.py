"""Files from a server or a folder: complete or absent, never larger than allowed, continued after an interruption."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urljoin, urlsplit

from spectile.core.atomic_file import atomic_write

#: Bytes that are copied at a time.
CHUNK = 1 << 20
_ATTEMPTS = 5


class NotThere(ValueError):
    """The server or folder that was asked does not have the file."""


def checked_base(base_url: str) -> str:
    """Return the base URL without its last slash.

    Raises
    ------
    ValueError
        If its kind is not one that may be read: https, file, or http on this machine's loopback.
    """
    parts = urlsplit(base_url)
    usable = {
        "https": bool(parts.hostname),
        "http": _is_loopback(parts.hostname or ""),
        "file": parts.netloc in ("", "localhost") and parts.path.startswith("/"),
    }
    if not usable.get(parts.scheme, False):
        raise ValueError(
            f"base URL {base_url!r} cannot be used; give https://..., file:///folder, or http://127.0.0.1:port/..."
        )
    return base_url.rstrip("/")


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def say(line: str) -> None:
    """Print a line of progress on standard error."""
    print(line, file=sys.stderr, flush=True)


def _progress(what: str, total: int | None, done: int) -> Any:
    """Return a bar of bytes on standard error that appears after three seconds."""
    from tqdm import tqdm

    return tqdm(desc=what, total=total, initial=done, unit="B", unit_scale=True, delay=3, mininterval=3, leave=False)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock beside a file: processes that fetch the same matrix wait for each other; a killed one lets go."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(path.name + ".lock")):
        yield


def clear_partials(path: Path) -> None:
    """Remove what killed processes left of `path` half-written; the caller holds its lock."""
    for partial in path.parent.glob(f".{path.name}.*"):
        partial.unlink(missing_ok=True)


def download(url: str, target: Path, what: str, most_bytes: int) -> bool:
    """Download to ``target.part``, then rename; return whether an earlier part was continued.

    Parameters
    ----------
    url : str
        https, file, or http on this machine's loopback.
    target : Path
        Where the file comes to lie; the caller holds its lock.
    what : str
        How messages call it.
    most_bytes : int
        A longer file is refused.

    Raises
    ------
    NotThere
        The server or folder does not have it.
    ValueError
        It is longer than allowed, the address redirects to one that may not be read, or the connection keeps breaking.
    """
    part = target.with_name(target.name + ".part")
    if urlsplit(url).scheme == "file":
        source = Path(unquote(urlsplit(url).path))
        if not source.is_file():
            raise NotThere(f"{what} is not at {url}")
        with open(source, "rb") as incoming, open(part, "wb") as outgoing:
            chunks = iter(lambda: incoming.read(CHUNK), b"")
            with _progress(what, source.stat().st_size, 0) as progress:
                _copy(chunks, outgoing, progress, url, most_bytes)
        os.replace(part, target)
        return False
    # What the part is a part of, so that it is continued only with the rest of the same file.
    origin = target.with_name(target.name + ".part.json")
    continued = False
    for attempt in range(_ATTEMPTS):
        before = part.stat().st_size if part.is_file() else 0
        try:
            continued = _transfer(url, part, origin, what, most_bytes) or continued
            os.replace(part, target)
            origin.unlink(missing_ok=True)
            return continued
        except _Broken as error:
            if attempt == _ATTEMPTS - 1:
                raise ValueError(
                    f"{what} could not be downloaded from {url}: {error}; run the same command again to continue"
                ) from error
            grown = part.is_file() and part.stat().st_size > before
            time.sleep(0.1 if grown else min(8.0, 0.5 * 2**attempt))
    raise AssertionError("the last attempt returns or raises")


class _Broken(Exception):
    """A transfer that may succeed when tried again."""


def _transfer(url: str, part: Path, origin: Path, what: str, most_bytes: int) -> bool:
    """One HTTP request that starts or continues `part`; returns whether it continued one."""
    import requests
    import urllib3

    have = part.stat().st_size if part.is_file() else 0
    try:
        known = json.loads(origin.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if not isinstance(known, dict) or known.get("url") != url or not known.get("validator"):
        have = 0
    # The archive's own bytes: a server must not pack or unpack them on the way.
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": known["validator"]}
    try:
        response = _get(url, headers)
    except requests.RequestException as error:
        raise _Broken(f"{type(error).__name__}") from error
    with response:
        if response.status_code == 404:
            raise NotThere(f"{what} is not at {url} (404)")
        if response.status_code == 416:  # the part is as long as the file, or longer
            part.unlink(missing_ok=True)
            raise _Broken("the server has no rest of the unfinished file")
        if response.status_code not in (200, 206):
            raise _Broken(f"the server answered {response.status_code} {response.reason}")
        if response.status_code == 206 and not (
            have and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        ):
            part.unlink(missing_ok=True)
            raise _Broken("the server sent another range than asked for")
        if response.status_code == 200:
            have = 0
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if length.isdigit() else None
        tag = response.headers.get("ETag", "")
        validator = tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified", "")
        with open(part, "r+b" if have else "wb") as outgoing:
            outgoing.seek(have)
            if not have:
                with atomic_write(origin) as note:
                    note.write_text(json.dumps({"url": url, "validator": validator}))
            try:
                with _progress(what, total, have) as progress:
                    _copy(response.raw.stream(1 << 16, decode_content=False), outgoing, progress, url, most_bytes)
            except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
                raise _Broken(f"the connection broke after {progress.n} bytes ({type(error).__name__})") from error
        if total is not None and progress.n != total:
            raise _Broken(f"the connection broke after {progress.n} of {total} bytes")
    return have > 0


def _get(url: str, headers: Mapping[str, str]) -> Any:
    """GET that follows redirects only to addresses that could be asked for directly."""
    import requests

    for _ in range(6):
        response = requests.get(url, headers=dict(headers), stream=True, timeout=(20, 60), allow_redirects=False)
        if not response.is_redirect:
            return response
        response.close()
        target = urljoin(url, response.headers["Location"])
        if urlsplit(target).scheme == "file":
            raise ValueError(f"{url} redirects to the file {target}; choose another base URL")
        checked_base(target)
        url = target
    raise ValueError(f"{url} redirects too often; choose another base URL")


def _copy(chunks: Iterator[bytes], outgoing: IO[bytes], progress: Any, url: str, most_bytes: int) -> None:
    for chunk in chunks:
        if progress.n + len(chunk) > most_bytes:
            outgoing.truncate(0)
            raise ValueError(f"{url} is larger than {most_bytes} bytes, the most that its matrix can need; not taken")
        outgoing.write(chunk)
        progress.update(len(chunk))
    outgoing.flush()
    os.fsync(outgoing.fileno())
