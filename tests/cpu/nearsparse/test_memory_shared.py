"""Arrays of callers: results that overlap operands, and layouts that kernels do not read or write as they are."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import threadpoolctl

from spectile.nearsparse import norm_map, spamm, spamm_threshold, tune_tau

N = 320  # several tiles for each of the groups in which they are packed


def buffer(dtype: str, items: int = 1) -> Any:
    return np.random.default_rng(1).standard_normal((items, 2 * N, N)).astype(dtype)


def views(place: Any) -> dict[str, Any]:
    """Return square views of memory whose parts overlap."""
    return {
        "same": place[:N],
        "next row": place[1 : N + 1],
        "half": place[N // 2 : N + N // 2],
        "apart": place[N:],
        "transposed": place[:N].T,
        "reversed": place[N - 1 :: -1],
        "one row": np.broadcast_to(place[3], (N, N)),
        "every other": place[::2],
    }


NAMES = list(views(np.empty((2 * N, N))))
CONTIGUOUS = ("same", "next row", "half", "apart")


def check(found: Any, wanted: Any, out: Any) -> None:
    assert found.c is out
    np.testing.assert_array_equal(out, wanted.c)
    assert found.error_bound == wanted.error_bound and found.error_bound_rel == wanted.error_bound_rel


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("of_a", NAMES)
def test_out_may_overlap_operands(of_a: str, dtype: str) -> None:
    output = "f4" if dtype == "f2" else dtype
    precision = "float16c16" if dtype == "f2" else None
    for of_b, of_out in itertools.product(("same", "transposed", "apart"), CONTIGUOUS):
        place = buffer(dtype)[0]
        a, b, out = (views(place)[name] for name in (of_a, of_b, of_out))
        wanted = spamm(a.copy(), b.copy(), tau=300.0, precision=precision, backend="cpu")
        check(spamm(a, b, tau=300.0, precision=precision, out=out, backend="cpu"), wanted, out)
        if dtype == "f2":
            # The memory of float16 operands taken for a float32 result.
            place = buffer(dtype)[0]
            a, out = place[:N], place.reshape(-1).view(output)[: N * N].reshape(N, N)
            wanted = spamm(a.copy(), a.copy(), tau=300.0, backend="cpu")
            check(spamm(a, a, tau=300.0, out=out, backend="cpu"), wanted, out)


@pytest.mark.parametrize("of_c", NAMES)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_added_may_overlap_too(of_c: str, workers: int) -> None:
    with threadpoolctl.threadpool_limits(workers):
        for of_a, of_out in itertools.product(("same", "apart"), CONTIGUOUS):
            place = buffer("f8")[0]
            a, c, out = (views(place)[name] for name in (of_a, of_c, of_out))
            b = buffer("f8")[0][N // 3 : N + N // 3].copy()
            wanted = spamm(a.copy(), b, tau=300.0, beta=-2.0, c=c.copy(), backend="cpu")
            check(spamm(a, b, tau=300.0, beta=-2.0, c=c, out=out, backend="cpu"), wanted, out)


def test_batches_may_overlap() -> None:
    for shift, shared in itertools.product((0, 1), (True, False)):
        places = buffer("f8", 4)
        stack = places[shift : shift + 3, :N]
        out = places.reshape(4, -1)[:3].reshape(-1)[: 3 * N * N].reshape(3, N, N)
        a = stack[1] if shared else stack
        wanted = spamm(a.copy(), stack.copy(), rtol_factors=0.5, beta=3.0, c=stack.copy(), backend="cpu")
        found = spamm(a, stack, rtol_factors=0.5, beta=3.0, c=stack, out=out, backend="cpu")
        np.testing.assert_array_equal(out, wanted.c)
        np.testing.assert_array_equal(found.error_bound, wanted.error_bound)


LAYOUTS = {
    "swapped": lambda x: x.astype(x.dtype.newbyteorder("S")),
    "fortran": np.asfortranarray,
    "backward": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "strided": lambda x: np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)[::2, ::3],
    "misaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), x.dtype, x.size, 1).reshape(x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "matrix": lambda x: x.view(np.matrix),
}


class Exporter:
    """What has DLPack's first method alone."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_is_read(layout: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    a, b, c = (rng.standard_normal(size).astype(dtype) for size in ((50, 70), (70, 60), (50, 60)))
    x, y, z = (LAYOUTS[layout](one) for one in (a, b, c))
    options: Any = {"tau": 1.0, "backend": "cpu", "block": 16}
    wanted = spamm(a, b, beta=2.0, c=c, **options)
    found = spamm(x, y, beta=2.0, c=z, **options)
    np.testing.assert_allclose(found.c, wanted.c, rtol=1e-5, atol=1e-5)
    assert found.error_bound == pytest.approx(wanted.error_bound, rel=1e-9)
    assert spamm_threshold(x, y, rtol_factors=0.1, backend="cpu").tau == pytest.approx(
        spamm_threshold(a, b, rtol_factors=0.1, backend="cpu").tau, rel=2e-6
    )
    np.testing.assert_allclose(norm_map(x).norms, norm_map(a).norms, rtol=1e-12)
    assert tune_tau(x, y, 0.4) == pytest.approx(tune_tau(a, b, 0.4))


def test_rows_that_are_one_are_read() -> None:
    row = np.random.default_rng(3).standard_normal(70)
    for wide in (np.broadcast_to(row, (50, 70)), np.broadcast_to(row, (3, 50, 70)), np.broadcast_to(row[:1], (50, 70))):
        found = spamm(wide, np.broadcast_to(row[:, None], (70, 40)), tau=0.0, backend="cpu").c
        np.testing.assert_allclose(found, wide @ np.broadcast_to(row[:, None], (70, 40)), rtol=1e-12)


def test_objects_that_export_alone_are_read() -> None:
    a = np.random.default_rng(4).standard_normal((40, 40))
    wanted = spamm(a, a, tau=0.5, beta=1.0, c=a, backend="cpu").c
    found = spamm(Exporter(a), Exporter(a), tau=0.5, beta=1.0, c=Exporter(a), backend="cpu")
    np.testing.assert_array_equal(np.asarray(found.c), wanted)
    np.testing.assert_array_equal(norm_map(Exporter(a)).norms, norm_map(a).norms)


def test_objects_that_export_alone_are_written() -> None:
    a, place = np.random.default_rng(4).standard_normal((2, 300, 300))
    wanted = spamm(a.copy(), a.copy(), tau=0.0, backend="cpu").c
    for memory in (place, a):
        out = Exporter(memory)
        assert spamm(a, a, tau=0.0, out=out, backend="cpu").c is out
        np.testing.assert_array_equal(memory, wanted)


def test_tensors_are_written() -> None:
    torch = pytest.importorskip("torch")
    a = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
    wanted = spamm(a.clone(), a.clone(), tau=0.0, backend="cpu").c
    for out in (torch.empty(300, 300), a):
        found = spamm(a, a, tau=0.0, out=out, backend="cpu")
        assert found.c is out and torch.equal(out, wanted)


@pytest.mark.parametrize(
    ("out", "error"),
    [
        (np.frombuffer(bytes(40 * 40 * 8)).reshape(40, 40), ValueError),
        (np.empty((40, 40), order="F"), ValueError),
        (np.broadcast_to(np.empty(40), (40, 40)), ValueError),
        (np.empty((40, 80))[:, ::2], ValueError),
        (np.empty((40, 40))[::-1], ValueError),
        (np.frombuffer(bytearray(1 + 40 * 40 * 8), "f8", 1600, 1).reshape(40, 40), ValueError),
        (np.empty((40, 40), np.dtype("f8").newbyteorder("S")), TypeError),
        (np.empty((40, 40)).tolist(), TypeError),
        (memoryview(np.empty((40, 40))), TypeError),
    ],
)
def test_what_cannot_be_written_is_refused_and_left_as_it_was(out: Any, error: type[Exception]) -> None:
    a = np.eye(40)
    kept = np.array(out)
    with pytest.raises(error, match=r"^out "):
        spamm(a, a, tau=0.0, out=out, backend="cpu")
    np.testing.assert_array_equal(np.array(out), kept)
