"""Calls of the eigensolver that failed once: any order of calls, any kind of array, any shape, streams side by side."""

import sys
import threading
import types
import weakref

import numpy as np
import pytest

from spectile import evd
from spectile.evd.types import Options
from spectile_study.inputs.spectra import random_hermitian, residuals

cupy = pytest.importorskip("cupy")

from spectile.evd.cuda import run  # noqa: E402
from spectile.evd.cuda.small.report import Report  # noqa: E402
from spectile.evd.cuda.vendor import batched  # noqa: E402

pytestmark = pytest.mark.gpu
DTYPES = ("float64", "float32", "complex128", "complex64")


@pytest.fixture
def rng(request):
    return np.random.default_rng(sum(map(ord, request.node.name)))


def passes(a, w, v=None):
    return all(error < 10 for error in residuals(a, cupy.asnumpy(w), None if v is None else cupy.asnumpy(v)).values())


def test_a_part_of_the_spectrum_between_two_whole_ones(rng):
    """The third call ended in CUDA_ERROR_INVALID_VALUE: the second had lowered a kernel's limit of shared memory."""
    a = cupy.asarray(random_hermitian(3001, rng))
    first = evd.eigh(a)
    w, v = evd.eigh(a, subset_by_index=(0, 9))
    again = evd.eigh(a)
    assert v.shape == (3001, 10)
    assert all(bool((x == y).all()) for x, y in zip(first, again, strict=True))
    np.testing.assert_allclose(cupy.asnumpy(w), cupy.asnumpy(first[0][:10]), rtol=1e-12)


class Tensor:
    """An array of a library of its own, which speaks DLPack and nothing else."""

    def __init__(self, array):
        self.array = array
        self.shape, self.dtype = tuple(array.shape), f"foreign.{array.dtype}"

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.fixture
def tensor(monkeypatch):
    """Return the class of a library that has ``from_dlpack``, as PyTorch and JAX have."""
    library = types.ModuleType("foreign_library")
    kind = type("Tensor", (Tensor,), {"__module__": "foreign_library"})
    library.from_dlpack = lambda array: kind(cupy.from_dlpack(array))
    monkeypatch.setitem(sys.modules, "foreign_library", library)
    return kind


class Watched:
    """cuSOLVER, and what lies in the work space on the device when it is called."""

    def __init__(self, library):
        self._library, self.found = library, []

    def __getattr__(self, name):
        return getattr(self._library, name)

    def cusolverDnXsyevBatched(self, *arguments):
        work, size = arguments[-6].value, arguments[-5].value
        memory = cupy.cuda.UnownedMemory(work, size, self)
        held = cupy.ndarray(size, np.uint8, cupy.cuda.MemoryPointer(memory, 0))
        self.found.append(int(cupy.count_nonzero(held)))
        return self._library.cusolverDnXsyevBatched(*arguments)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [33, 100])
def test_batches_in_memory_that_holds_what_others_left(n, dtype, rng, monkeypatch):
    """The work space on the device is zero, which CUDA 12.6 needs; that of the host stays until the device is done."""
    if batched.library() is None:
        pytest.skip("this cuSOLVER has no XsyevBatched")
    watched, kept, alive = Watched(batched.library()), [], []
    keep, check = Report.keep, Report.check
    monkeypatch.setattr(batched, "library", lambda: watched)
    monkeypatch.setattr(Report, "keep", lambda own, memory: (kept.append(weakref.ref(memory)), keep(own, memory)))
    monkeypatch.setattr(
        Report, "check", lambda own, *rest: (alive.extend(one() is not None for one in kept), check(own, *rest))
    )
    batch = np.stack([random_hermitian(n, rng, dtype) for _ in range(5)])
    a = cupy.asarray(batch)
    left = cupy.full(1 << 27, 0xFF, np.uint8)
    del left
    w, v = batched.solve(a, Options(), run.solve)
    assert watched.found == [0] and alive == [True]
    assert all(passes(one, w[i], v[i]) for i, one in enumerate(batch))


@pytest.mark.parametrize("n", [5, 1100])
def test_batches_of_dlpack_tensors(n, tensor, rng):
    batch = np.stack([random_hermitian(n, rng) for _ in range(3)])
    w, v = evd.eigh(tensor(cupy.asarray(batch)))
    assert type(w) is type(v) is tensor
    for i, a in enumerate(batch):
        assert passes(a, w.array[i], v.array[i])
    assert type(evd.eigvalsh(tensor(cupy.asarray(batch)))) is tensor


def test_batches_of_cuda_tensors_of_torch(rng):
    torch = pytest.importorskip("torch")
    batch = np.stack([random_hermitian(40, rng) for _ in range(3)])
    w, v = evd.eigh(torch.as_tensor(batch, device="cuda"))
    assert isinstance(v, torch.Tensor)
    assert passes(batch[2], w[2].cpu().numpy(), v[2].cpu().numpy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 2, 31, 32, 33, 127, 128, 129, 811])
def test_shapes(n, dtype, rng):
    a = random_hermitian(n, rng, dtype)
    w, v = evd.eigh(cupy.asarray(a))
    assert w.shape == (n,)
    assert v.shape == (n, n)
    assert n == 0 or passes(a, w, v)
    assert n == 0 or passes(a, evd.eigvalsh(cupy.asarray(a)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [130, 701])
@pytest.mark.parametrize("overwrite", [False, True])
def test_unaligned_views(n, dtype, overwrite, rng):
    a = random_hermitian(n, rng, dtype)
    space = cupy.zeros((n + 3, n + 5), dtype)
    for view in (space[1 : n + 1, 3 : n + 3], space.T[5 : n + 5, 2 : n + 2] if n + 5 <= space.shape[1] else None):
        if view is None or view.shape != (n, n):
            continue
        view[...] = cupy.asarray(a)
        assert passes(a, *evd.eigh(view, overwrite_a=overwrite))


def test_low_rank_in_single_precision(rng):
    """A matrix of rank 7 and order 4096, on which other libraries do not converge."""
    n = 4096
    x = rng.standard_normal((n, 7)).astype(np.float32)
    a = x @ np.diag(np.float32([3, -2, 1, 5, -4, 2, 1])) @ x.T
    a = (a + a.T) / 2
    w, v = evd.eigh(cupy.asarray(a))
    eps, norm = np.finfo(np.float32).eps, np.linalg.norm(a)
    wide, values = cupy.asarray(a, np.float64), v.astype(np.float64)
    assert float(cupy.linalg.norm(wide @ values - values * w)) < 10 * n * eps * norm
    assert float(cupy.linalg.norm(values.T @ values - cupy.eye(n))) < 10 * n * eps
    assert int((cupy.abs(w) > 1e-3 * norm).sum()) == 7


def test_panels_of_two_streams_side_by_side(rng):
    """Each panel's blocks wait for each other, and two of them together are more than the device holds."""
    n = 17_500
    if cupy.cuda.runtime.memGetInfo()[0] < 14 * 2**30:
        pytest.skip("two matrices of order 17,500 and their work space need 14 GB")
    ends, errors = [], []

    def solve(seed):
        try:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                a = cupy.random.RandomState(seed).standard_normal((n, n))
                w = evd.eigvalsh(a, overwrite_a=True)
                stream.synchronize()
                ends.append(float(w[-1]))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=solve, args=(seed,), daemon=True) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not errors
    assert len(ends) == 2
    cupy.get_default_memory_pool().free_all_blocks()


def test_memory_error_leaves_the_next_call_whole(rng):
    a = cupy.asarray(random_hermitian(1500, rng))
    expected = evd.eigvalsh(a)
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    pool.set_limit(size=pool.used_bytes() + a.nbytes // 2)
    try:
        for call in (evd.eigh, evd.eigvalsh, lambda a: evd.eigh(a[:200, :200].repeat(4, 0).repeat(4, 1))):
            with pytest.raises(MemoryError, match="bytes"):
                call(a)
    finally:
        pool.set_limit(size=0)
    assert bool((evd.eigvalsh(a) == expected).all())


def test_a_result_on_a_device_shows_itself_without_a_wait():
    result = evd.eigh(cupy.eye(3))
    assert repr(result) == "EighResult(3 eigenvalues, eigenvectors 3 x 3 float64)"
