import contextlib
import gzip
import hashlib
import http.server
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import coo_array, csr_array

from spectile_study.inputs import download, families, suitesparse
from spectile_study.inputs.suitesparse import MissingMatrix, Pinned, content, table

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "config" / "matrices.tsv"
MIRROR = Path(os.environ.get("SPECTILE_MIRROR", ROOT.parent / "shared" / "suitesparse"))
needs_mirror = pytest.mark.skipif(
    not (MIRROR / "MM").is_dir(), reason=f"no SuiteSparse mirror at {MIRROR}; set SPECTILE_MIRROR to one"
)

# tSparse, Table 1: rows and NNZ(A).
TABLE_1 = {
    "Williams/mc2depi": (525825, 2100225),
    "Williams/webbase-1M": (1000005, 3105536),
    "vanHeukelum/cage12": (130228, 2032536),
    "GHS_indef/dawson5": (51537, 1010777),
    "HB/lock1074": (1074, 51588),
    "Pajek/patents_main": (240547, 560943),
    "Rothberg/struct3": (53570, 1173694),
    "SNAP/wiki-Vote": (8297, 103689),
    "HB/bcsstk30": (28924, 2043492),
    "Nemeth/nemeth21": (9506, 1173746),
    "Boeing/pcrystk03": (24696, 1751178),
    "Boeing/pct20stif": (52329, 2698463),
    "Chen/pkustk06": (43164, 2571768),
    "Li/pli": (22695, 1350309),
    "Andrianov/net50": (16320, 945200),
    "SNAP/web-NotreDame": (325729, 1497134),
}

TINY = """%%MatrixMarket matrix coordinate real general
% a comment
3 4 6
3 1 1.5
1 2 -2
1 4 0
2 3 0.25
1 1 1e-3
3 4 7
"""
TINY_DENSE = np.array([[1e-3, -2, 0, 0], [0, 0, 0.25, 0], [1.5, 0, 0, 7]])


def tar_gz(members):
    """An archive of (name, content) pairs; content may be a prepared TarInfo."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members:
            if isinstance(content, tarfile.TarInfo):
                content.name = name
                archive.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def index_line(group, name, rows, columns, nnz, logical=0):
    return f"{group},{name},{rows},{columns},{nnz},1,{logical},0,0,1,1,test problem,{nnz}"


class Mirror:
    """A small mirror in SuiteSparse's layout."""

    def __init__(self, folder):
        self.folder = folder
        self.lines = []

    @property
    def url(self):
        return self.folder.as_uri()

    def add(self, group, name, archive, rows=3, columns=4, nnz=5):
        self.lines.append(index_line(group, name, rows, columns, nnz))
        path = self.folder / "MM" / group / f"{name}.tar.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        if archive is not None:
            path.write_bytes(archive)
        self.write_index()
        return path

    def write_index(self):
        (self.folder / "files").mkdir(exist_ok=True)
        text = "\n".join([str(len(self.lines)), "08-Oct-2020 17:09:58", *self.lines]) + "\n"
        (self.folder / "files" / "ssstats.csv").write_text(text)


@pytest.fixture
def mirror(tmp_path):
    folder = tmp_path / "mirror"
    folder.mkdir()
    mirror = Mirror(folder)
    mirror.add("Test", "tiny", tar_gz([("tiny/tiny.mtx", TINY.encode()), ("tiny/tiny_b.mtx", b"not looked at")]))
    return mirror


@pytest.fixture
def resources(tmp_path):
    return tmp_path / "resources"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)


def leftovers(resources):
    """What lies in the resources beside finished files, locks and the index."""
    return [
        path.name
        for path in (resources / "suitesparse").rglob("*")
        if path.is_file() and "index" not in path.parts and path.suffix not in (".npz", ".gz", ".lock")
    ]


class Server:
    """An HTTP server on loopback with ranges, validators and faults."""

    def __init__(self, folder):
        self.requests = []  # (path, Range header)
        self.cut_after = []  # bytes after which the next archive responses break off
        self.chunk_pause = 0.0
        self.tag = '"one"'
        self.moved_to = None
        self.status = None
        self.shift = 0  # bytes by which the rest begins too late
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                wanted = self.headers.get("Range")
                outer.requests.append((self.path, wanted))
                path = folder / self.path.lstrip("/")
                archive = self.path.endswith(".gz")
                if archive and outer.moved_to:
                    self.send_response(302)
                    self.send_header("Location", outer.moved_to)
                    self.end_headers()
                    return
                if not path.is_file() or (archive and outer.status):
                    self.send_error(outer.status or 404)
                    return
                content, start = path.read_bytes(), 0
                if wanted and self.headers.get("If-Range") == outer.tag:
                    start = int(wanted.removeprefix("bytes=").removesuffix("-")) + outer.shift
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
                else:
                    self.send_response(200)
                rest = content[start:]
                self.send_header("Content-Length", str(len(rest)))
                self.send_header("ETag", outer.tag)
                self.end_headers()
                if archive and outer.cut_after:
                    rest = rest[: outer.cut_after.pop(0)]
                pause = outer.chunk_pause if archive else 0.0
                step = 1 << 10 if pause else 1 << 20
                with contextlib.suppress(OSError):
                    for first in range(0, len(rest), step):
                        self.wfile.write(rest[first : first + step])
                        self.wfile.flush()
                        if pause:
                            threading.Event().wait(pause)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def ranges(self):
        return [wanted for path, wanted in self.requests if path.endswith(".gz")]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def server(mirror):
    server = Server(mirror.folder)
    yield server
    server.close()


def big_member(seed=0):
    """A matrix whose archive does not pack below some tens of kilobytes."""
    matrix = families.banded(300, 20, seed=seed)
    entries = coo_array(matrix)
    lines = ["%%MatrixMarket matrix coordinate real general", f"300 300 {entries.nnz}"]
    lines += [f"{i + 1} {j + 1} {x!r}" for i, j, x in zip(*entries.coords, entries.data.tolist(), strict=True)]
    return matrix, tar_gz([("big/big.mtx", "\n".join(lines).encode())])


# --- canonical content ------------------------------------------------------------------------------------------------


def test_digest_is_of_the_stated_bytes():
    matrix = csr_array(TINY_DENSE)
    hasher = hashlib.sha256()
    for part, kind in (
        ([3, 4], "<i8"),
        ([0, 2, 3, 5], "<i8"),
        ([0, 1, 2, 0, 3], "<i8"),
        ([1e-3, -2, 0.25, 1.5, 7], "<f8"),
    ):
        hasher.update(np.array(part, dtype=kind).tobytes())
    assert suitesparse.digest(matrix) == hasher.hexdigest()


def test_digest_knows_the_content_and_not_the_form():
    rows, columns, values = [2, 0, 0, 1, 0, 2, 0], [0, 1, 3, 2, 0, 3, 1], [1.5, -1, 0, 0.25, 1e-3, 7, -1]
    loose = coo_array((values, (rows, columns)), shape=(3, 4))
    digest = suitesparse.digest(csr_array(TINY_DENSE))
    assert suitesparse.digest(loose) == digest
    assert suitesparse.digest(loose.tocsc()) == digest
    assert suitesparse.digest(csr_array(TINY_DENSE[:, :3])) != digest
    assert suitesparse.digest(csr_array(TINY_DENSE * (1 + 2**-52))) != digest
    assert suitesparse.digest(csr_array((3, 4))) != suitesparse.digest(csr_array((4, 3)))


def test_canonical_leaves_its_argument_alone():
    matrix = coo_array(([1.0, 2.0, 0.0], ([0, 0, 1], [1, 1, 1])), shape=(2, 2)).tocsr()
    kept = matrix.copy()
    result = suitesparse.canonical(matrix)
    assert result.nnz == 1 and matrix.nnz == kept.nnz


@pytest.mark.parametrize(
    ("matrix", "error", "words"),
    [
        (csr_array((0, 0)), ValueError, "empty"),
        (csr_array((3, 0)), ValueError, "empty"),
        (csr_array(np.array([[np.nan]])), ValueError, "NaN"),
        (csr_array(np.array([[np.inf]])), ValueError, "NaN or Inf"),
        (csr_array(np.array([[1j]])), TypeError, "complex"),
    ],
)
def test_what_has_no_canonical_content(matrix, error, words):
    with pytest.raises(error, match=words):
        suitesparse.digest(matrix)


# --- fetch and load ---------------------------------------------------------------------------------------------------


def test_fetch_and_load(mirror, resources):
    path = suitesparse.fetch("tiny", mirror.url, resources)
    assert path == resources / "suitesparse" / "Test" / "tiny.npz"
    for name in ("tiny", "Test/tiny"):
        matrix = suitesparse.load(name, resources)
        assert isinstance(matrix, csr_array) and matrix.dtype == np.float64
        np.testing.assert_array_equal(matrix.toarray(), TINY_DENSE)
        assert matrix.nnz == 5
    assert leftovers(resources) == []


def test_a_fetched_matrix_needs_no_mirror(mirror, resources):
    path = suitesparse.fetch("Test/tiny", mirror.url, resources)
    assert suitesparse.fetch("Test/tiny", "file:///nowhere", resources) == path


def test_archives_may_lie_in_a_shared_cache(mirror, resources, tmp_path):
    suitesparse.fetch("tiny", mirror.url, resources, tmp_path / "cache")
    assert (tmp_path / "cache" / "Test" / "tiny.tar.gz").is_file()
    assert not list(resources.rglob("*.tar.gz"))
    (mirror.folder / "MM" / "Test" / "tiny.tar.gz").unlink()
    suitesparse.fetch("tiny", mirror.url, tmp_path / "other", tmp_path / "cache")
    assert suitesparse.load("tiny", tmp_path / "other").nnz == 5


@pytest.mark.parametrize(
    ("banner", "lines", "dense"),
    [
        ("coordinate pattern symmetric", ["2 2 2", "1 1", "2 1"], [[1, 1], [1, 0]]),
        ("coordinate integer general", ["2 2 3", "1 1 2", "1 1 3", "2 2 -1"], [[5, 0], [0, -1]]),
        ("coordinate real skew-symmetric", ["2 2 1", "2 1 4.5"], [[0, -4.5], [4.5, 0]]),
        ("array real general", ["2 2", "1", "2", "0", "4"], [[1, 0], [2, 4]]),
    ],
)
def test_kinds_of_matrix_market_files(mirror, resources, banner, lines, dense):
    text = "\n".join([f"%%MatrixMarket matrix {banner}", "% comment", "", *lines, ""])
    mirror.add("Test", "kind", tar_gz([("kind/kind.mtx", text.encode())]), 2, 2, np.count_nonzero(dense))
    suitesparse.fetch("kind", mirror.url, resources)
    np.testing.assert_array_equal(suitesparse.load("kind", resources).toarray(), dense)


def test_matrix_means_a_family_or_a_fetched_matrix(mirror, resources):
    assert suitesparse.matrix("cage5", resources).shape == (37, 37)
    suitesparse.fetch("tiny", mirror.url, resources)
    assert suitesparse.matrix("tiny", resources).shape == (3, 4)
    with pytest.raises(MissingMatrix, match="python -m spectile_study fetch --matrix Andrianov/net50"):
        suitesparse.matrix("net50", resources, TABLE)
    with pytest.raises(MissingMatrix, match="absent from the mirror"):
        suitesparse.matrix("net50", resources, TABLE)
    with pytest.raises(MissingMatrix, match="other has not been fetched") as caught:
        suitesparse.matrix("other", resources)
    assert str(resources) not in str(caught.value), "records keep the sentence"
    with pytest.raises(ValueError, match="cage3 to cage15"):
        suitesparse.matrix("cage99", resources)


def test_progress_names_what_came(mirror, resources, capfd):
    path, digest = suitesparse.fetch_main("tiny", mirror.url, resources)
    assert path.is_file() and digest == suitesparse.digest(suitesparse.load("tiny", resources))
    assert "Test/tiny: 3 x 4, 5 nonzeros, digest " in capfd.readouterr().err


# --- names and the index ----------------------------------------------------------------------------------------------


def test_names_match_exactly(mirror, resources):
    for k in range(15):  # ssgetpy's search would stop at ten of these
        mirror.add("Test", f"tiny_{k}", None)
    mirror.add("Test", "Xtiny", None)
    suitesparse.fetch("tiny", mirror.url, resources)
    assert suitesparse.load("tiny", resources).nnz == 5


def test_name_not_in_the_index(mirror, resources):
    with pytest.raises(MissingMatrix, match=r"'tinny' is not in the index .* near names: Test/tiny"):
        suitesparse.fetch("tinny", mirror.url, resources)
    with pytest.raises(MissingMatrix, match="Other/tiny"):
        suitesparse.fetch("Other/tiny", mirror.url, resources)
    with pytest.raises(MissingMatrix, match="near names: Test/tiny"):
        suitesparse.fetch("TINY", mirror.url, resources)


def test_name_of_two_groups(mirror, resources):
    mirror.add("Again", "tiny", (mirror.folder / "MM" / "Test" / "tiny.tar.gz").read_bytes())
    with pytest.raises(ValueError, match="say which: Test/tiny, Again/tiny"):
        suitesparse.fetch("tiny", mirror.url, resources)
    for group in ("Test", "Again"):
        suitesparse.fetch(f"{group}/tiny", mirror.url, resources)
    with pytest.raises(ValueError, match="say which: Again/tiny, Test/tiny"):
        suitesparse.load("tiny", resources)


@pytest.mark.parametrize("name", ["", "../tiny", "a/b/c", "/tiny", "Test/..", "t'; DROP TABLE", ".npz"])
def test_names_that_are_none(mirror, resources, name):
    for call in (lambda: suitesparse.fetch(name, mirror.url, resources), lambda: suitesparse.load(name, resources)):
        with pytest.raises(ValueError, match="no name of a matrix"):
            call()


def test_matrix_in_the_index_but_not_at_the_mirror(mirror, resources):
    mirror.add("Test", "gone", None)
    with pytest.raises(MissingMatrix, match=r"Test/gone is not at file://.*choose another base URL"):
        suitesparse.fetch("gone", mirror.url, resources)


def test_an_index_kept_here_tells_of_a_matrix_that_is_not(mirror, resources):
    mirror.add("Test", "gone", None, rows=7, columns=8, nnz=9)
    with pytest.raises(MissingMatrix) as missing:
        suitesparse.load("Test/gone", resources)
    assert missing.value.entry is None  # nothing was fetched, so nothing is known
    with pytest.raises(MissingMatrix):
        suitesparse.fetch("gone", mirror.url, resources)
    with pytest.raises(MissingMatrix) as missing:
        suitesparse.load("Test/gone", resources)
    entry = missing.value.entry
    assert (entry.key, entry.rows, entry.columns, entry.nnz) == ("Test/gone", 7, 8, 9)
    with pytest.raises(MissingMatrix) as missing:
        suitesparse.load("Other/gone", resources)
    assert missing.value.entry is None


def test_truncated_index(mirror, resources):
    index = mirror.folder / "files" / "ssstats.csv"
    index.write_text("2" + index.read_text()[1:])
    with pytest.raises(ValueError, match=r"index .* is damaged or truncated"):
        suitesparse.fetch("tiny", mirror.url, resources)


def test_ssgetpy_stays_in_its_place(mirror, resources, tmp_path, monkeypatch):
    import requests

    def refuse(*args, **kwargs):
        raise AssertionError("a mirror on this machine needs no network")

    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(requests, "get", refuse)
    suitesparse.fetch("tiny", mirror.url, resources)
    assert list(home.iterdir()) == []
    assert os.environ["HOME"] == str(home)
    assert not any(name.split(".")[0] == "ssgetpy" for name in sys.modules)


def test_import_is_light():
    heavy = ("scipy", "requests", "ssgetpy")
    code = f"import sys, spectile_study.inputs.suitesparse; print([m for m in sys.modules if m in {heavy}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/x",
        "http://sparse.tamu.edu",
        "http://127.0.0.1.example.org",
        "http://localhost.example.org/",
        "file:relative",
        "file://host/folder",
        "/folder",
        "https://",
        "",
    ],
)
def test_addresses_that_are_refused(resources, url):
    with pytest.raises(ValueError, match=r"base URL .* cannot be used; give https://"):
        suitesparse.fetch("tiny", url, resources)


def test_redirects_are_held_to_the_same_rule(server, resources):
    server.moved_to = "http://example.org/MM/Test/tiny.tar.gz"
    with pytest.raises(ValueError, match=r"http://example.org.* cannot be used"):
        suitesparse.fetch("tiny", server.url, resources)
    server.moved_to = "file:///etc/passwd"
    with pytest.raises(ValueError, match="redirects to the file"):
        suitesparse.fetch("tiny", server.url, resources)


# --- downloads --------------------------------------------------------------------------------------------------------


def test_http_on_loopback(server, resources):
    suitesparse.fetch("tiny", server.url, resources)
    np.testing.assert_array_equal(suitesparse.load("tiny", resources).toarray(), TINY_DENSE)
    assert leftovers(resources) == []


def test_a_broken_download_is_continued(mirror, server, resources):
    matrix, archive = big_member()
    mirror.add("Test", "big", archive, 300, 300, matrix.nnz)
    server.cut_after = [10_000, 20_000]
    suitesparse.fetch("big", server.url, resources)
    assert server.ranges() == [None, "bytes=10000-", "bytes=30000-"]
    assert (suitesparse.load("big", resources) != matrix).nnz == 0
    assert leftovers(resources) == []


def test_a_part_of_another_version_is_not_continued(mirror, server, resources, monkeypatch):
    matrix, archive = big_member()
    path = mirror.add("Test", "big", archive, 300, 300, matrix.nnz)
    server.cut_after = [10_000]
    monkeypatch.setattr(download, "_ATTEMPTS", 1)
    with pytest.raises(ValueError, match="run the same command again to continue"):
        suitesparse.fetch("big", server.url, resources)
    matrix, archive = big_member(seed=1)
    path.write_bytes(archive)
    server.tag = '"two"'
    suitesparse.fetch("big", server.url, resources)
    assert server.ranges() == [None, "bytes=10000-"]  # asked for, and answered with the whole
    assert (suitesparse.load("big", resources) != matrix).nnz == 0


def test_another_range_than_asked_for_is_not_taken(mirror, server, resources, capsys):
    matrix, archive = big_member()
    mirror.add("Test", "big", archive, 300, 300, matrix.nnz)
    server.cut_after, server.shift = [10_000], 5
    suitesparse.fetch("big", server.url, resources)
    assert server.ranges() == [None, "bytes=10000-", None]
    assert "downloading it again" not in capsys.readouterr().err  # it was noticed before the archive was read
    assert (suitesparse.load("big", resources) != matrix).nnz == 0


def test_a_part_of_another_server_is_not_continued(mirror, server, resources, monkeypatch):
    matrix, archive = big_member()
    mirror.add("Test", "big", archive, 300, 300, matrix.nnz)
    server.cut_after = [10_000]
    with monkeypatch.context() as once:
        once.setattr(download, "_ATTEMPTS", 1)
        with pytest.raises(ValueError, match="run the same command again to continue"):
            suitesparse.fetch("big", server.url, resources)
    other = Server(mirror.folder)
    suitesparse.fetch("big", other.url, resources)
    other.close()
    assert other.ranges() == [None]


def test_a_connection_that_keeps_breaking(mirror, server, resources):
    _, archive = big_member()
    mirror.add("Test", "big", archive, 300, 300, 1)
    server.cut_after = [100] * 50
    with pytest.raises(
        ValueError, match=r"Test/big could not be downloaded .* broke after 500 bytes .* run the same command again"
    ):
        suitesparse.fetch("big", server.url, resources)
    assert not list(resources.rglob("big.npz")) and not list(resources.rglob("big.tar.gz"))


def test_a_server_that_is_not_there(resources):
    with pytest.raises(ValueError, match="could not be downloaded"):
        suitesparse.fetch("tiny", "http://127.0.0.1:9", resources)


def test_who_waits_for_an_index_that_cannot_be_had_is_told_with_the_first(resources, monkeypatch):
    """Sixteen jobs of a workflow without a network need no longer than one; a later one tries again."""
    tried = []

    def fails(url, *_):
        tried.append(url)
        threading.Event().wait(1.0)  # these tests do not sleep
        raise ValueError(f"try {len(tried)} of {url} failed")

    def one(number):
        with pytest.raises(ValueError, match="try ") as told:
            suitesparse.fetch(f"tiny{number}", "http://127.0.0.1:9", resources)
        return str(told.value)

    monkeypatch.setattr(suitesparse.index, "download", fails)
    with ThreadPoolExecutor(8) as pool:
        said = set(pool.map(one, range(8)))
    assert len(tried) == len(said) == 1
    assert one(9).startswith("try 2") and len(tried) == 2


@pytest.mark.parametrize(("status", "error"), [(404, MissingMatrix), (503, ValueError)])
def test_a_server_that_refuses(server, resources, status, error):
    server.status = status
    with pytest.raises(error, match=str(status)):
        suitesparse.fetch("tiny", server.url, resources)


def test_kill_9_in_the_middle(mirror, server, resources):
    matrix, archive = big_member()
    mirror.add("Test", "big", archive, 300, 300, matrix.nnz)
    server.chunk_pause = 0.02
    code = "import sys; from spectile_study.inputs import suitesparse as s; s.fetch(*sys.argv[1:])"
    process = subprocess.Popen([sys.executable, "-c", code, "big", server.url, str(resources)])
    part = resources / "suitesparse" / "Test" / "big.tar.gz.part"
    deadline = time.monotonic() + 240
    while not (part.is_file() and part.stat().st_size > 0) and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    have = part.stat().st_size
    assert 0 < have < len(archive)  # 64 KiB at the most are lost
    finished = [path.name for path in part.parent.iterdir() if path.suffix in (".npz", ".gz")]
    assert finished == []
    with pytest.raises(MissingMatrix):
        suitesparse.load("Test/big", resources)
    server.chunk_pause = 0.0
    suitesparse.fetch("big", server.url, resources)
    assert server.ranges() == [None, f"bytes={have}-"]
    assert (suitesparse.load("big", resources) != matrix).nnz == 0
    assert leftovers(resources) == []


def test_kill_9_around_every_renaming(mirror, resources):
    code = """
import os, signal, sys
from spectile_study.inputs import suitesparse
renamed, replace = 0, os.replace
def dying(source, target):
    global renamed
    for _ in range(2):  # before and after
        renamed += 1
        if renamed == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        if renamed % 2:
            replace(source, target)
os.replace = dying
suitesparse.fetch("tiny", sys.argv[1], sys.argv[2])
"""
    for step in range(1, 20):
        run = [sys.executable, "-c", code, mirror.url, str(resources / str(step)), str(step)]
        done = subprocess.run(run, timeout=300).returncode
        if done == 0:
            break
        assert done == -signal.SIGKILL
        with contextlib.suppress(MissingMatrix):  # whole or not there at all
            np.testing.assert_array_equal(suitesparse.load("tiny", resources / str(step)).toarray(), TINY_DENSE)
        suitesparse.fetch("tiny", mirror.url, resources / str(step))
        np.testing.assert_array_equal(suitesparse.load("tiny", resources / str(step)).toarray(), TINY_DENSE)
        assert leftovers(resources / str(step)) == []
    assert step == 7  # the index, the archive and the matrix are renamed, twice a step


def test_two_at_once_download_once(server, resources):
    server.chunk_pause = 0.01
    threads = [threading.Thread(target=suitesparse.fetch, args=("tiny", server.url, resources)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.ranges()) == 1


# --- archives ---------------------------------------------------------------------------------------------------------


def link(kind, target):
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


MTX = ("bad/bad.mtx", TINY.encode())


@pytest.mark.parametrize(
    ("archive", "words"),
    [
        (tar_gz([MTX])[:-40], "truncated or damaged"),
        (tar_gz([MTX])[:60], "truncated or damaged"),
        (b"", "truncated|does not hold"),
        (b"<html>not found</html>", "truncated or damaged"),
        (gzip.compress(b"no tar" * 1000), "truncated or damaged"),
        (tar_gz([MTX, ("../escaped", b"x")]), "leads out of its folder"),
        (tar_gz([("/tmp/escaped", b"x"), MTX]), "leads out of its folder"),
        (tar_gz([("bad/x/../../../escaped", b"x"), MTX]), "leads out of its folder"),
        (tar_gz([("bad/bad.mtx", link(tarfile.SYMTYPE, "/etc/passwd"))]), "leads out of its folder"),
        (tar_gz([("bad/bad.mtx", link(tarfile.LNKTYPE, "bad/other.mtx"))]), "leads out of its folder"),
        (tar_gz([("bad/bad.mtx", link(tarfile.FIFOTYPE, ""))]), "which is no file"),
        (tar_gz([MTX, MTX]), "exactly one file"),
        (tar_gz([("other/other.mtx", TINY.encode())]), "does not hold bad/bad.mtx"),
        (tar_gz([("bad/bad.mtx", b"%" * (1 << 20) * 3)]), "more than Test/bad can need"),
        (tar_gz([MTX, ("bad/filler", b"\0" * (1 << 20) * 20)]), "more than Test/bad can need"),
        (tar_gz([("bad/bad.mtx", b"hello\n")]), "no MatrixMarket banner"),
        (tar_gz([("bad/bad.mtx", TINY.replace("3 4 6", "3 x 6").encode())]), "no size line"),
        (tar_gz([("bad/bad.mtx", TINY.replace("3 4 6", "0 0 0").encode())]), "is empty"),
        (tar_gz([("bad/bad.mtx", TINY.replace("3 4 6", "4 4 6").encode())]), "but the index says 3 x 4"),
        (tar_gz([("bad/bad.mtx", TINY.replace("3 4 6", "3 4 999999999").encode())]), "more than its .* bytes can hold"),
        (tar_gz([("bad/bad.mtx", TINY.replace("3 4 6", "3 4 7").encode())]), "is damaged"),
        (tar_gz([("bad/bad.mtx", TINY.replace("2 3 0.25", "9 9 0.25").encode())]), "is damaged"),
        (tar_gz([("bad/bad.mtx", TINY.replace("0.25", "nan").encode())]), "NaN"),
        (tar_gz([("bad/bad.mtx", TINY.replace("2 3 0.25", "1 3 0.25\n").encode())]), None),
        (tar_gz([("bad/bad.mtx", TINY.replace("0.25", "0").encode())]), "with 4 nonzeros, but the collection's index"),
    ],
)
def test_archives_that_are_refused(mirror, resources, archive, words, tmp_path):
    mirror.add("Test", "bad", archive)
    if words is None:  # the control: the same archive with another sound content is taken
        suitesparse.fetch("bad", mirror.url, resources)
        return
    with pytest.raises(ValueError, match=words):
        suitesparse.fetch("bad", mirror.url, resources)
    assert not list(resources.rglob("bad.npz")) and not list(resources.rglob("bad.tar.gz"))
    assert leftovers(resources) == []
    assert not list(tmp_path.rglob("escaped")) and not Path("/tmp/escaped").exists()


def test_complex_matrix(mirror, resources):
    text = "%%MatrixMarket matrix coordinate complex general\n3 4 1\n1 1 1 1\n"
    mirror.add("Test", "z", tar_gz([("z/z.mtx", text.encode())]))
    with pytest.raises(TypeError, match="Test/z is complex"):
        suitesparse.fetch("z", mirror.url, resources)


def test_an_archive_larger_than_its_matrix_can_be(mirror, resources):
    mirror.add("Test", "fat", os.urandom(20 << 20))
    with pytest.raises(ValueError, match=r"larger than .* the most that its matrix can need"):
        suitesparse.fetch("fat", mirror.url, resources)


# --- checks against the table -----------------------------------------------------------------------------------------


def pin(**changes):
    fields = {
        "group": "Test",
        "name": "tiny",
        "rows": 3,
        "columns": 4,
        "nnz": 5,
        "digest": suitesparse.digest(csr_array(TINY_DENSE)),
        "source": "mirror",
        "field": "real",
        "papers": "",
        "notes": "",
    }
    pinned = Pinned(**(fields | changes))
    return {pinned.key: pinned}


def test_pinned_digest(mirror, resources):
    suitesparse.fetch("tiny", mirror.url, resources, table=pin())
    assert suitesparse.load("tiny", resources, pin()).nnz == 5
    with pytest.raises(ValueError, match=r"has the digest .* but config/matrices.tsv pins 0000"):
        suitesparse.load("tiny", resources, pin(digest="0" * 64))


def test_digest_mismatch(mirror, resources):
    with pytest.raises(ValueError, match=r"Test/tiny .* pins 0000.* \(a note\); choose another base URL"):
        suitesparse.fetch("tiny", mirror.url, resources, table=pin(digest="0" * 64, notes="a note"))
    assert not list(resources.rglob("tiny.npz")) and not list(resources.rglob("tiny.tar.gz"))


def test_an_absent_matrix_is_checked_by_its_counts(mirror, resources):
    suitesparse.fetch("tiny", mirror.url, resources, table=pin(digest="", source="absent"))
    with pytest.raises(ValueError, match=r"3 x 4 with 5 nonzeros, but config/matrices.tsv says 3 x 4 with 6"):
        suitesparse.load("tiny", resources, pin(digest="", source="absent", nnz=6))


def test_a_damaged_kept_copy_is_found_and_made_again(mirror, resources, capfd):
    path = suitesparse.fetch("tiny", mirror.url, resources, table=pin())
    whole = path.read_bytes()
    at = whole.index(np.float64(1.5).tobytes())
    for damage in (whole[:at] + np.float64(2.5).tobytes() + whole[at + 8 :], whole[: len(whole) // 2], b"", b"x" * 99):
        path.write_bytes(damage)
        with pytest.raises(ValueError, match=r"kept matrix .* is damaged"):
            suitesparse.load("tiny", resources)
        suitesparse.fetch("tiny", mirror.url, resources, table=pin())
        np.testing.assert_array_equal(suitesparse.load("tiny", resources).toarray(), TINY_DENSE)
        assert "fetching it again" in capfd.readouterr().err


def test_another_matrix_in_the_place_of_the_kept_copy(mirror, resources):
    path = suitesparse.fetch("tiny", mirror.url, resources, table=pin())
    content.write_kept(path, suitesparse.canonical(csr_array(2 * TINY_DENSE)))  # sound in itself
    suitesparse.fetch("tiny", mirror.url, resources, table=pin())
    np.testing.assert_array_equal(suitesparse.load("tiny", resources, pin()).toarray(), TINY_DENSE)


def test_a_damaged_archive_in_the_cache_is_downloaded_again(mirror, server, resources):
    path = suitesparse.fetch("tiny", server.url, resources)
    for damage in (b"", b"garbage" * 10):
        path.unlink()
        path.with_name("tiny.tar.gz").write_bytes(damage)
        suitesparse.fetch("tiny", server.url, resources)
        assert suitesparse.load("tiny", resources).nnz == 5
    assert len(server.ranges()) == 3


def test_pickles_are_not_read(mirror, resources):
    path = suitesparse.fetch("tiny", mirror.url, resources)
    np.savez(path, shape=np.array([{}], dtype=object), indptr=[0], indices=[0], data=[0.0], digest="")
    with pytest.raises(ValueError, match="damaged"):
        suitesparse.load("tiny", resources)


def test_a_rebuilt_pin_admits_the_collections_last_bits(resources):
    model = suitesparse.canonical(families.cage(5))
    pinned = pin(
        group="G", name="cage5", rows=37, columns=37, nnz=233, digest=suitesparse.digest(model), source="rebuilt"
    )
    near, far = model.copy(), model.copy()
    near.data[7] += 5e-16
    far.data[7] += 1e-12
    content.verify(near, "G/cage5", pinned["G/cage5"], None, "here")
    with pytest.raises(ValueError, match="has the digest"):
        content.verify(far, "G/cage5", pinned["G/cage5"], None, "here")


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_holds_table_1():
    table = suitesparse.read_table(TABLE)
    listed = {key: pinned for key, pinned in table.items() if "tsparse" in pinned.papers.split(",")}
    assert {key: (pinned.rows, pinned.nnz) for key, pinned in listed.items()} == TABLE_1
    assert all(pinned.columns == pinned.rows for pinned in listed.values())
    assert sum(pinned.source == "absent" for pinned in listed.values()) == 11


HEADER = "\t".join(table.COLUMNS) + "\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name\tn\n", "has the columns"),
        (HEADER + "a\tG\tx\t\t5\t\tabsent\treal\t\t\n", "line 2: n, columns and nnz must be whole numbers"),
        (HEADER + "a\tG\t3\t\t5\t\tabsent\n", "10 cells"),
        (HEADER + "../a\tG\t3\t\t5\t\tabsent\treal\t\t\n", "no name of a matrix"),
        (HEADER + "a\tG\t3\t\t5\tabc\tmirror\treal\t\t\n", "64 hexadecimal"),
        (HEADER + "a\tG\t3\t\t5\t\tmirror\treal\t\t\n", "mirror or rebuilt with a digest"),
        (HEADER + "a\tG\t3\t\t5\t\telsewhere\treal\t\t\n", "source must be"),
        (HEADER + "a\tG\t3\t\t5\t\tabsent\treal\t\t\n" * 2, "line 3: G/a is listed twice"),
    ],
)
def test_tables_that_are_wrong(tmp_path, text, words):
    path = tmp_path / "matrices.tsv"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        suitesparse.read_table(path)


@needs_mirror
def test_every_matrix_of_the_mirror_is_pinned():
    table = suitesparse.read_table(TABLE)
    held = {f"{path.parent.name}/{path.name.removesuffix('.tar.gz')}" for path in (MIRROR / "MM").glob("*/*.tar.gz")}
    assert held == {key for key, pinned in table.items() if pinned.source != "absent"}


@needs_mirror
@pytest.mark.parametrize(
    "name", ["lock1074", "SNAP/wiki-Vote", "cage8", "ex6", "t2dal_bci", "email-Eu-core", "cavity19"]
)
def test_matrices_of_the_mirror(name, resources):
    table = suitesparse.read_table(TABLE)
    path = suitesparse.fetch(name, MIRROR.resolve().as_uri(), resources, table=table)
    matrix = suitesparse.load(name, resources, table)
    pinned = table[f"{path.parent.name}/{path.stem}"]
    assert matrix.shape == (pinned.rows, pinned.columns) and matrix.nnz == pinned.nnz
    assert suitesparse.digest(matrix) == pinned.digest
    if pinned.field == "pattern":
        assert set(matrix.data) == {1.0}


@needs_mirror
def test_the_epidemic_model_has_the_pinned_digest():
    pinned = suitesparse.read_table(TABLE)["Williams/mc2depi"]
    assert suitesparse.digest(families.epidemic()) == pinned.digest


@needs_mirror
@pytest.mark.slow
def test_all_matrices_of_the_mirror(resources):
    table = suitesparse.read_table(TABLE)
    for key, pinned in table.items():
        if pinned.source == "absent":
            with pytest.raises(MissingMatrix):
                suitesparse.fetch(key, MIRROR.resolve().as_uri(), resources, table=table)
        else:
            suitesparse.fetch(key, MIRROR.resolve().as_uri(), resources, table=table)
            matrix = suitesparse.load(key, resources)
            assert suitesparse.digest(matrix) == pinned.digest
            assert matrix.nnz == pinned.nnz
