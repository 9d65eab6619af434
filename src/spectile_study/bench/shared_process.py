"""One process measures all cases of a Snakemake run, one after another, so that CUDA and the libraries start once.

Every measuring job of the workflow is a small process that hands its arguments to the shared one and waits.  The first
job starts it; it ends with the Snakemake that its jobs belong to.  A job that is killed takes the shared process with
it, so that its measurement does not go on; the next job starts another.  This module imports nothing that takes time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spectile_study.bench.private_folder import private_folder

#: The shared process looks this often whether its Snakemake is still there.
LOOK_S = 0.2


def ask(arguments: Sequence[str], owner: int, log: Path) -> int:
    """Let the shared process of `owner` run a command; return its exit status.

    Parameters
    ----------
    arguments : sequence of str
        Arguments of ``python -m spectile_study``.
    owner : int
        Id of the Snakemake process that this job belongs to.
    log : Path
        File for what the command prints.

    Raises
    ------
    RuntimeError
        If the shared process ended before it answered, or cannot be reached.
    """
    folder = private_folder("spectile-run")
    if folder is None:
        raise RuntimeError(f"{tempfile.gettempdir()} is not safe for jobs to meet in: set TMPDIR to a folder of yours")
    name = hashlib.sha256(f"{sys.executable} {Path.cwd()}".encode()).hexdigest()[:12]
    try:
        connection = _connected(folder / f"{owner}-{name}", owner)
    except OSError as error:  # a path that is too long for a socket, or a file system that holds none
        raise RuntimeError(
            f"jobs cannot meet in {folder} ({error}): set TMPDIR to a short path on a local disk"
        ) from None
    with connection, connection.makefile("r") as answers:
        connection.sendall(json.dumps({"arguments": list(arguments), "log": str(log.absolute())}).encode() + b"\n")
        answer = answers.readline()
    if not answer:
        raise RuntimeError(f"the process that measures ended before this case did: see {log}, and run this again")
    return int(json.loads(answer)["status"])


def _connected(path: Path, owner: int) -> socket.socket:
    """Return a connection to the shared process, which is started if it is not there."""
    with (path.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # jobs that start at the same time start one process
        connection = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            connection.connect(str(path))
            return connection
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            subprocess.Popen(
                [sys.executable, "-m", "spectile_study", "serve", str(path), str(listener.fileno()), str(owner)],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            connection.connect(str(path))
    return connection


def serve(path: Path, descriptor: int, owner: int, command: Callable[[Sequence[str], str], int]) -> None:
    """Run the commands of jobs, one at a time, until the process `owner` ends.

    Parameters
    ----------
    path : Path
        Where the socket lies; it is removed at the end.
    descriptor : int
        The listening socket.
    owner : int
        Process that the jobs belong to.
    command : callable
        ``command(arguments, log)`` returns an exit status; standard output and error are the log while it runs.
    """
    threading.Thread(target=_end_with, args=(owner, path), daemon=True).start()
    listener = socket.socket(fileno=descriptor)
    while True:
        connection, _ = listener.accept()
        with connection:
            order = connection.makefile("r").readline()
            if order:
                _run(connection, json.loads(order), path, command)


def _run(connection: socket.socket, order: dict[str, Any], path: Path, command: Callable[..., int]) -> None:
    answered = threading.Event()

    def end_with_job() -> None:
        with contextlib.suppress(OSError):
            connection.recv(1)
        if not answered.is_set():  # the job was killed: what it asked for must not go on beside another's
            _end(path)

    threading.Thread(target=end_with_job, daemon=True).start()
    log = order["log"]
    with open(log, "w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        status = command(order["arguments"], log)
    except BaseException:  # this process serves the next job, whatever a command does
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    answered.set()
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps({"status": status}).encode() + b"\n")


def _end_with(owner: int, path: Path) -> None:
    with contextlib.suppress(ProcessLookupError):
        while True:
            with contextlib.suppress(PermissionError):  # somebody else's process is one all the same
                os.kill(owner, 0)
            time.sleep(LOOK_S)
    _end(path)


def _end(path: Path) -> None:
    path.unlink(missing_ok=True)
    os._exit(1)
