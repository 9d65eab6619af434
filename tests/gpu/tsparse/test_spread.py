"""Products by rows on the GPU: over the devices that there are, and block by block, with the bits of one call."""

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.tsparse import row_blocks, spgemm
from spectile.tsparse.cuda import spread

from .test_factors import on_gpu
from .test_semirings import factors

pytestmark = pytest.mark.gpu

OPTIONS = [
    {},
    {"format": "dense"},
    {"format": "csc"},
    {"precision": "float16"},
    {"semiring": "max_plus"},
    {"semiring": "or_and"},
    {"semiring": "plus_pair", "mask": True},
    {"mask": True, "complement": True},
    {"C": True, "beta": 2.0, "alpha": 0.5},
    {"top_n": 3},
]


def lists():
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    return [1, [0], *([2, [1, 0], list(range(count))] if count > 1 else [])]


def host(C):
    if isinstance(C, np.ndarray) or sp.issparse(C):
        return C
    return C.get()


def same(C, known):
    assert type(C) is type(known) and C.dtype == known.dtype and C.shape == known.shape
    C, known = host(C), host(known)
    if isinstance(C, np.ndarray):
        np.testing.assert_array_equal(C, known)
        return
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(C, name), getattr(known, name))


def filled(options, where):
    added = sp.random_array((300, 350), density=0.1, rng=np.random.default_rng(4), format="csr")
    others = {"mask": added, "C": added}
    place = on_gpu if where == "device" else lambda x: x
    return {name: place(others[name]) if value is True and name in others else value for name, value in options.items()}


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("options", OPTIONS)
def test_rows_of_several_devices_have_the_bits_of_one(options, where):
    A, B = factors("hub") if where == "host" else map(on_gpu, factors("hub"))
    options = filled(options, where)
    known = spgemm(A, B, backend="cuda", **options)
    for devices in lists():
        same(spgemm(A, B, devices=devices, **options), known)


@pytest.mark.parametrize("kind", ["?", "f4", "F", "D"])
@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_types_and_formats(kind, form):
    A = on_gpu(factors("random")[0].astype(kind).asformat(form))
    B = on_gpu(factors("random")[1].astype(kind))
    for devices in lists():
        same(spgemm(A, B, devices=devices), spgemm(A, B))


def test_integers_of_the_host():
    A, B = ((9 * x).astype(np.int32) for x in factors("random"))
    for devices in lists():
        same(spgemm(A, B, devices=devices), spgemm(A, B, backend="cuda"))


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("limit", [None, 2**22])
@pytest.mark.parametrize("options", [one for one in OPTIONS if "format" not in one])
def test_blocks_are_the_rows_in_order(options, limit, where, monkeypatch):
    monkeypatch.setattr(spread, "_BLOCK_ENTRIES", 20_000)
    A, B = factors("random") if where == "host" else map(on_gpu, factors("random"))
    options = filled(options, where)
    known, end, parts = host(spgemm(A, B, backend="cuda", **options)), 0, []
    for rows, part in row_blocks(A, B, memory_limit=limit, backend="cuda", **options):
        assert rows.start == end
        end = rows.stop
        parts.append(host(part))
    assert end == 300 and (len(parts) > 2 or limit)
    C = sp.vstack(parts, format="csr")
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(C, name), getattr(known, name))


@pytest.mark.parametrize("kind", ["f4", "D"])
def test_large_arrays_go_through_pinned_memory_in_pieces(kind, monkeypatch):
    from spectile.tsparse.cuda import pinned

    A, B = (one.astype(kind) for one in factors("random"))
    known = spgemm(on_gpu(A), on_gpu(B)).get()
    monkeypatch.setattr(pinned, "_LARGE", 1)
    monkeypatch.setattr(pinned, "_PIECE", 1000)
    monkeypatch.setattr(spread, "_BLOCK_ENTRIES", 20_000)
    monkeypatch.setattr(spread, "_PINNED_BYTES", 2**17)  # the blocks that are kept are soon beyond it
    limit = 2**22
    blocks = [list(row_blocks(A, B, memory_limit=one, backend="cuda")) for one in (None, limit)]
    made = [spgemm(A, B, backend="cuda"), spgemm(A, B, memory_limit=limit, backend="cuda")]
    for C in (*made, *(sp.vstack([part for _, part in one], format="csr") for one in blocks)):
        for name in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(C, name), getattr(known, name))


def test_what_is_wrong_is_said_as_of_one_device():
    A, _ = factors("random")
    A = sp.csr_array(A[:, :300])
    A.data[-1] = np.nan
    for matrix in (A, on_gpu(A)):
        with pytest.raises(ValueError, match="A holds nan") as one:
            spgemm(matrix, matrix, backend="cuda")
        with pytest.raises(ValueError, match="A holds nan") as several:
            spgemm(matrix, matrix, devices=1)
        assert str(one.value) == str(several.value)
    with pytest.raises(ValueError, match="are visible"):
        spgemm(A, A, devices=1000)
