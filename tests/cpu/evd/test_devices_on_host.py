"""Stages that several devices share, with all of them in host memory: kernels compiled for the host, products by NumPy,
panels and rank-one eigenvectors by their definition."""

import contextlib
import ctypes
import functools
import itertools
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg

from spectile.evd.cuda.matrix import Matrix
from spectile.evd.cuda.multi import divide, reduction, run, workspace
from spectile.evd.cuda.multi.partition import Cyclic
from spectile.evd.cuda.multi.team import Member, Team
from spectile.evd.cuda.multi.units import EXCHANGE
from spectile.evd.cuda.reduction import band as band_reduction
from spectile.evd.cuda.reduction.panel import Panels
from spectile.evd.types import SCALARS
from spectile_study.inputs.spectra import random_hermitian

from ...on_host import fibers_library

RUN = """
extern "C" int run_mirror(int x, int threads, long long shared_bytes, const unsigned long long* owners, long long ld,
                          int width, int part, int parts, int top, int stop, int first, int columns) {
    return launch({x, 1, 1}, threads, shared_bytes, 3, [=] {
        mirror(owners, ld, width, part, parts, top, stop, first, columns);
    });
}
extern "C" int run_place_rows(int x, int y, int threads, const scalar_t* product, long long ldp, int width, int part,
                              int parts, int top, int first, int columns, scalar_t* out, long long ldo) {
    return launch({x, y, 1}, threads, 0, 3, [=] {
        place_rows(product, ldp, width, part, parts, top, first, columns, out, ldo);
    });
}
"""


def view(pointer, ld, rows, columns, dtype):
    """Return a column-major matrix at an address."""
    size = np.dtype(dtype).itemsize
    if rows == 0 or columns == 0:
        return np.empty((rows, columns), dtype)
    memory = (ctypes.c_char * (((columns - 1) * ld + rows) * size)).from_address(int(pointer))
    return np.ndarray((rows, columns), dtype, memory, strides=(size, ld * size))


def empty_matrix(rows, columns, dtype):
    """Return a matrix that holds NaN."""
    ld = rows + 3
    owner = np.full(ld * max(columns, 1), np.nan, dtype)
    return Matrix(owner.ctypes.data, ld, owner.itemsize, owner)


class Pool:
    """Memory as CuPy's pool deals it: the smallest free chunk that is large enough is cut, neighbours are joined."""

    def __init__(self):
        self.total, self._free = 0, []

    def take(self, size):
        """Return the chunk of an allocation: where it begins, and its size."""
        size = max(-(-size // 512), 1) * 512
        start, most = min((own for own in self._free if own[1] >= size), key=lambda own: own[1], default=(None, size))
        if start is None:
            # Chunks of different allocations have no common border.
            start = 2 * self.total
            self.total += size
        else:
            self._free.remove((start, most))
        if most > size:
            self._free.append((start + size, most - size))
        return start, size

    def give_back(self, start, size):
        for own in list(self._free):
            if own[0] == start + size or sum(own) == start:
                self._free.remove(own)
                start, size = min(start, own[0]), size + own[1]
        self._free.append((start, size))


class HostBlas:
    def __init__(self, dtype):
        self.dtype = dtype

    def gemm(self, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, ops="NN"):
        left = view(a, lda, m, k, self.dtype) if ops[0] == "N" else view(a, lda, k, m, self.dtype).conj().T
        right = view(b, ldb, k, n, self.dtype) if ops[1] == "N" else view(b, ldb, n, k, self.dtype).conj().T
        target = view(c, ldc, m, n, self.dtype)
        target[...] = alpha * (left @ right) + (beta * target if beta else 0)


class HostMember(Member):
    @property
    def beside(self):
        return self

    def current(self):
        return contextlib.nullcontext()

    def mark(self):
        return None

    def wait(self, *events):
        pass

    def fetched(self, array):
        return array.copy()

    def copy(self, target, target_pitch, source, source_pitch, width, columns):
        for column in range(columns):
            ctypes.memmove(target + column * target_pitch, source + column * source_pitch, width)


class Streams:
    """Queues of what devices do, which runs at the end, in any order that streams and events allow."""

    def __init__(self):
        self.queues, self.active = {}, [(0, 0)]

    def put(self, run, key=None, until=()):
        """Enqueue a call, on the current stream or another, that waits for events."""
        event = [False]
        self.queues.setdefault(self.active[-1] if key is None else key, []).append((run, until, event))
        return event

    def run(self, prefer):
        """Run all; of the streams that can go on, the one that `prefer` gives the least key to is first."""
        while any(self.queues.values()):
            ready = [key for key, queue in self.queues.items() if queue and all(one[0] for one in queue[0][1])]
            run, _, event = self.queues[min(ready, key=prefer)].pop(0)
            assert run() in (None, 1)
            event[0] = True


class QueuedMember(HostMember):
    """A device whose two streams are queues."""

    def __init__(self, number, streams, own=0):
        super().__init__(number, number, None)
        self.streams, self.key = streams, (number, own)

    @property
    def beside(self):
        return QueuedMember(self.number, self.streams, 1)

    @contextlib.contextmanager
    def current(self):
        self.streams.active.append(self.key)
        yield
        self.streams.active.pop()

    def mark(self):
        return self.streams.put(lambda: None, self.key)

    def wait(self, *events):
        self.streams.put(lambda: None, self.key, events)

    def copy(self, *arguments, **named):
        self.streams.put(lambda: super(QueuedMember, self).copy(*arguments, **named), self.key)


class HostReduction(reduction._SharedReduction):
    """With panels by Householder's definition, and what their products leave."""

    def __init__(self, a, n, bandwidth, block):
        dtype = a.owner.dtype
        self.block, self.blas = block, HostBlas(dtype)
        self.v, self.x = (empty_matrix(n, 2 * block, dtype) for _ in range(2))
        self._s, self._factor = (empty_matrix(2 * block + 2 * bandwidth, bandwidth, dtype) for _ in range(2))
        self.panels = Panels(a, np.zeros((n, bandwidth * bandwidth), dtype), bandwidth, n)
        self._factorization, self._unit = SimpleNamespace(factor=self._qr, join=lambda *_: None), None

    def _qr(self, row, column, m, y1, y2, ldy, t):
        a, b = self.panels.a, self.panels.bandwidth
        panel = view(a.at(row, column), a.ld, m, b, a.owner.dtype)
        factor, y = view(t, b, b, b, a.owner.dtype), np.zeros_like(panel)
        factor[...] = 0
        rest = panel.copy()
        for j in range(min(m, b)):
            x = rest[j:, j].copy()
            size = np.linalg.norm(x)
            beta = -size * (x[0] / abs(x[0]) if x[0] else 1)
            y[j, j], y[j + 1 :, j] = 1, x[1:] / (x[0] - beta)
            tau = 2 / np.linalg.norm(y[j:, j]) ** 2
            rest -= tau * np.outer(y[:, j], y[:, j].conj() @ rest)
            factor[:j, j] = -tau * (factor[:j, :j] @ (y[:, :j].conj().T @ y[:, j]))
            factor[j, j] = tau
        # Rᴴ: the reflection is its own conjugate transpose, their product is not.
        panel[...] = np.triu(rest) + np.tril(y, -1)
        for target in (y1, y2):
            view(target, ldy, m, b, a.owner.dtype)[...] = y
        self._now = row, column, m, y

    def _small_factor(self, t, used):
        row, _, m, y = self._now
        b, dtype, local = self.panels.bandwidth, y.dtype, self.block_row(row)
        v, x = (view(z.at(local, 0), z.ld, m, used + 2 * b, dtype) for z in (self.v, self.x))
        t, s = view(t, b, b, b, dtype), x[:, :used].conj().T @ y
        p = v[:, used + b :] - v[:, :used] @ s
        k = -0.5 * t.conj().T @ (y.conj().T @ p) @ t
        view(self._factor.pointer, self._factor.ld, used + 2 * b, b, dtype)[...] = np.vstack([-s @ t, k, t])

    def block_row(self, row):
        return (row - self.panels.bandwidth) % self.block + self.panels.bandwidth


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp
    return functools.cache(lambda dtype: fibers_library(folder(dtype) / "exchange", EXCHANGE[dtype], RUN))


@pytest.mark.parametrize(
    ("n", "bandwidth", "block", "parts"), [(101, 8, 16, 3), (96, 8, 8, 2), (75, 16, 64, 2), (90, 4, 12, 4)]
)
@pytest.mark.parametrize(("dtype", "order"), [("float64", "home"), ("float64", "others"), ("complex128", "beside")])
def test_the_band_has_the_eigenvalues_of_the_matrix(dtype, order, n, bandwidth, block, parts, libraries, monkeypatch):
    """Whichever stream goes first, as far as they are let."""
    library, streams, rng = libraries(dtype), Streams(), np.random.default_rng(n)

    def kernel(unit, name):
        def launch(shape, *arguments):
            if name == "copy_panel":
                source, lds, target, ldt, m = map(int, arguments)
                to, of = view(target, ldt, m, bandwidth, dtype), view(source, lds, m, bandwidth, dtype)
                streams.put(lambda: to.__setitem__(..., of))
                return
            kinds = {np.uintp: ctypes.c_void_p, np.int64: ctypes.c_longlong, np.int32: ctypes.c_int}
            given = [kinds[type(x)](int(x)) if not isinstance(x, np.ndarray) else x.ctypes for x in arguments]
            sizes = *shape.grid, shape.threads, *([ctypes.c_longlong(shape.shared_bytes)] if shape.shared_bytes else [])
            streams.put(functools.partial(getattr(library, f"run_{name}"), *sizes, *given))

        return launch

    def queued(function):
        return lambda *given, **named: streams.put(functools.partial(function, *given, **named)) and None

    team = Team.__new__(Team)
    team.members = [QueuedMember(number, streams) for number in range(parts)]
    for module in (reduction, band_reduction):
        monkeypatch.setattr(module, "kernel", kernel)
    monkeypatch.setattr(reduction, "describe", lambda: SimpleNamespace(multiprocessors=2))
    monkeypatch.setattr(reduction, "Blas", HostBlas)
    monkeypatch.setattr(HostBlas, "gemm", lambda *given, gemm=HostBlas.gemm, **named: queued(gemm)(*given, **named))
    monkeypatch.setattr(reduction, "empty_matrix", empty_matrix)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=np.asarray))
    given = random_hermitian(n, np.random.default_rng(n), dtype)
    a = empty_matrix(n, n, dtype)
    streams.put(lambda: view(a.pointer, a.ld, n, n, dtype).__setitem__(..., given))
    one = HostReduction(a, n, bandwidth, block)
    one._factorization.factor, one._small_factor = queued(one._qr), queued(one._small_factor)
    one.share(team)
    for first in range(0, n - bandwidth, block):
        columns = one.reduce_block(first)
        if first + block < n:
            one.update(first, columns)
    keys = {"home": lambda key: key, "others": lambda key: (-key[0], key), "beside": lambda key: (-key[1], key)}
    streams.run(keys.get(order, lambda _: rng.random()))
    found = view(a.pointer, a.ld, n, n, dtype)
    distance = np.subtract.outer(np.arange(n), np.arange(n))
    lower = np.where((distance >= 0) & (distance <= bandwidth), found, 0)
    band = lower + np.tril(lower, -1).conj().T
    np.testing.assert_allclose(np.linalg.eigvalsh(band), np.linalg.eigvalsh(given), atol=1e-11)


class HostMerges:
    """Merges of one level whose eigenvector matrices are given."""

    def __init__(self, order, wholes):
        self.order, self.wholes = order, wholes

    def write_vectors(self, s, columns, height, *, first):
        assert s.size >= len(self.wholes) * columns * height and height == self.wholes.shape[1]
        s[: len(self.wholes) * columns * height] = np.concatenate(
            [whole[:, first : first + columns].T.ravel() for whole in self.wholes]
        )


@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("shift", [0, 1])
def test_the_last_two_levels_are_products_of_what_their_merges_give(shift, parts, monkeypatch):
    order, n, rng = 96, 93, np.random.default_rng(parts)
    h, quarter = order // 2, order // 4
    monkeypatch.setitem(
        sys.modules, "cupy", SimpleNamespace(empty=lambda *a: np.full(a[0], np.nan), ndarray=np.ndarray)
    )
    monkeypatch.setattr(divide, "Blas", HostBlas)
    monkeypatch.setattr(divide, "empty_matrix", empty_matrix)
    monkeypatch.setattr(divide, "CHUNK", 7)
    quarters = rng.standard_normal((4, quarter, quarter))
    q = empty_matrix(order, order, np.float64)
    whole = view(q.pointer, q.ld, order, order, np.float64)
    # The blocks of each half stand in its diagonal block, or beside it.
    starts = (0, h) if shift == 0 else (h, 0)
    for number, block in enumerate(quarters):
        row, column = number * quarter, starts[number // 2] + number % 2 * quarter
        whole[row : row + quarter, column : column + quarter] = block
    halves, last = rng.standard_normal((2, h, h)), rng.standard_normal((1, order, order))
    members = [HostMember(number, number, None) for number in range(parts)]
    team = SimpleNamespace(members=members, home=members[0], others=members[1:], meet=lambda: None, join=lambda: None)
    found = divide._merge_halves(HostMerges(order, halves), q, starts[0], team)
    wanted = [scipy.linalg.block_diag(*quarters[2 * one : 2 * one + 2]) @ halves[one] for one in range(2)]
    for blocks in found:
        for place, each in zip(blocks.places, wanted, strict=True):
            np.testing.assert_allclose(view(place, blocks.ld, h, h, np.float64), each, atol=1e-12)
    for member, blocks in zip(members, found, strict=True):
        columns = slice(10 * member.number, 10 * member.number + 15)
        z = divide._merge_whole(member, HostMerges(order, last), blocks, n, columns, SCALARS["float64"])
        expected = (scipy.linalg.block_diag(*wanted) @ last[0])[:n, columns]
        np.testing.assert_allclose(view(z.pointer, z.ld, n, 15, np.float64), expected, atol=1e-11)
    # And home's within Q, where as many have room as a half has.
    room, columns = divide._Room(q, starts[0]), slice(n - h, n)
    z = divide._merge_whole(members[0], HostMerges(order, last), found[0], n, columns, SCALARS["float64"], room)
    assert q.pointer <= z.pointer < q.at(0, order)
    expected = (scipy.linalg.block_diag(*wanted) @ last[0])[:n, columns]
    np.testing.assert_allclose(view(z.pointer, z.ld, n, h, np.float64), expected, atol=1e-11)


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_what_a_device_has_freed_has_room_for_what_comes_next(dtype, parts, monkeypatch):
    """All that a device beside home takes is what is asked for, though a pool joins no chunks of two allocations."""
    n, bandwidth, block, scalar, pool, active = 640, 16, 32, SCALARS[dtype], Pool(), [0]

    class PoolMember(HostMember):
        @contextlib.contextmanager
        def current(self):
            active.append(self.number)
            yield
            active.pop()

    def noted(owner):
        if active[-1] == 1:
            weakref.finalize(owner, pool.give_back, *pool.take(owner.nbytes))
        return owner

    def noted_matrix(*sizes):
        matrix = empty_matrix(*sizes)
        noted(matrix.owner)
        return matrix

    class Merges(HostMerges):
        def solve(self, *_):
            self.wholes = np.zeros((1, n, n))

    fake = SimpleNamespace(asarray=np.asarray, empty=lambda *a: noted(np.zeros(*a)), ndarray=np.ndarray)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    for module in (divide, workspace):
        monkeypatch.setattr(module, "CHUNK", 64)
    for module in (reduction, divide):
        monkeypatch.setattr(module, "Blas", HostBlas)
    for module in (reduction, divide, run):
        monkeypatch.setattr(module, "empty_matrix", noted_matrix)
    monkeypatch.setattr(divide, "as_array", lambda m, *shape: view(m.pointer, m.ld, *shape, m.owner.dtype))
    below = np.zeros(n), 1.0, Merges(n, np.zeros((2, n // 2, n // 2))), (0, n // 2), None
    monkeypatch.setattr(divide, "merge_below", lambda *_: below)
    members = [PoolMember(number, number, None) for number in range(parts)]
    team = SimpleNamespace(members=members, home=members[0], others=members[1:], meet=lambda: None, join=lambda: None)
    one = HostReduction(empty_matrix(n, n, dtype), n, bandwidth, block)
    one.share(team, n)
    panels = one.panels
    one._factorization = None  # of a ring of references, which only this test has
    del one
    copies = run._spread(panels, team)
    _, made = divide.eigenvectors(np.zeros(n), np.zeros(n), scalar, None, team)
    most = max(piece.stop - piece.start for _, piece in made)
    monkeypatch.setattr(workspace, "tile_bytes", lambda n: 0)
    monkeypatch.setattr(workspace, "back_columns", lambda n: (0, 0))  # nothing is transformed back
    shares = workspace.share_bytes(n, scalar, bandwidth, block, parts)
    asked = max(shares, workspace.piece_bytes(n, scalar, most))
    assert len(copies) == parts and asked / 2 < pool.total <= 1.05 * asked


@pytest.mark.parametrize(("n", "width", "parts"), [(100, 8, 3), (5, 8, 3), (64, 16, 4), (65, 16, 1), (1, 32, 2)])
def test_every_column_has_one_owner_and_one_place(n, width, parts):
    columns = Cyclic(n, width, parts)
    stored = [[] for _ in range(parts)]
    for column in range(n):
        owner = columns.owner(column)
        assert columns.before(owner, column) == len(stored[owner])
        stored[owner].append(column)
        assert all(columns.before(part, column + 1) == len(stored[part]) for part in range(parts))
    for part in range(parts):
        assert columns.count(part) == len(stored[part])
        for first, count in itertools.product(range(0, n, width), (1, 2, 8)):
            strips = list(columns.strips(first, count))
            assert [column for strip in strips for column in strip] == list(range(first, n)) and len(strips) <= count
            blocks = [own for strip in strips for own in columns.blocks(part, strip)]
            listed = [c for column, size in blocks for c in range(column, column + size)]
            assert listed == [column for column in stored[part] if column >= first]
