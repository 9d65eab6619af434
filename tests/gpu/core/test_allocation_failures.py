"""Every allocation of a call fails once, in turn: the call says so in one sentence, and the next one works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import spectile

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")


class Allocator:
    """CuPy's pool, of which the allocation number `failing` fails."""

    def __init__(self) -> None:
        self.pool, self.count, self.failing = cupy.get_default_memory_pool(), 0, -1

    def __call__(self, size: int) -> Any:
        self.count += 1
        if self.count - 1 == self.failing:
            raise cupy.cuda.memory.OutOfMemoryError(size, self.pool.used_bytes(), 0)
        return self.pool.malloc(size)


@pytest.fixture
def allocator() -> Iterator[Allocator]:
    allocator = Allocator()
    with cupy.cuda.using_allocator(allocator):
        yield allocator


def _host(array: Any) -> Any:
    return array.get() if hasattr(array, "get") else array


def _hamiltonian(n: int) -> Any:
    import cupyx.scipy.sparse

    h = sp.random_array((n, n), density=0.02, rng=1)
    return cupyx.scipy.sparse.csr_matrix(sp.csr_matrix(h + h.T))


def _calls() -> dict[str, Callable[[], Any]]:
    a = cupy.random.default_rng(1).standard_normal((400, 400))
    single, half = a.astype("float32"), a.astype("float16")
    large = cupy.random.default_rng(1).standard_normal((1200, 1200))
    sparse = _hamiltonian(300)
    pattern = spectile.tsparse.symbolic(sparse, sparse)
    return {
        "spamm_float16": lambda: spectile.spamm(half, half, tau=1.0).c,
        "spamm_float32": lambda: spectile.spamm(single, single, tau=1.0).c,
        "spamm_rtol": lambda: spectile.spamm(a, a, rtol_factors=1e-3).c,
        "spamm_valid_ratio": lambda: spectile.spamm(single, single, valid_ratio=0.5).c,
        "spgemm": lambda: spectile.spgemm(sparse, sparse).data,
        "spgemm_float16": lambda: spectile.spgemm(sparse, sparse, precision="float16").data,
        "multiply": lambda: pattern.multiply(sparse, sparse).data,
        "eigvalsh": lambda: spectile.eigvalsh(large + large.T),
        "eigh": lambda: spectile.eigh(large + large.T)[1],
        "eigh_small": lambda: spectile.eigh(a[:64, :64] + a[:64, :64].T)[0],
        "kpm_dos": lambda: spectile.kpm_dos(sparse, 32, 4, rng=1, bounds=(-9.0, 9.0))(np.linspace(-1, 1, 9)),
    }


@pytest.mark.parametrize("name", ["spamm_float16", "spamm_float32", "spamm_rtol", "spamm_valid_ratio", "spgemm",
                                  "spgemm_float16", "multiply", "eigvalsh", "eigh", "eigh_small",
                                  "kpm_dos"])  # fmt: skip
def test_an_allocation_that_fails_is_said_and_forgotten(allocator: Allocator, name: str) -> None:
    call = _calls()[name]
    expected = _host(call())
    allocator.count = 0
    np.testing.assert_array_equal(_host(call()), expected)
    total = allocator.count
    assert total > 0
    for number in range(min(total, 200)):
        allocator.count, allocator.failing = 0, number
        try:
            call()
        except MemoryError as error:
            assert "bytes" in str(error)
        allocator.failing = -1
        np.testing.assert_array_equal(_host(call()), expected)
