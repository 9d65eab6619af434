"""Calls on host arrays go where they are predicted to take less: every system, by a table of devices."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import spectile
from spectile.core import device
from spectile.core.devices import TABLE
from spectile.kpm import count, moments
from spectile.kpm.operators.adopt import as_operator
from spectile.kpm.operators.lattices import chain
from spectile.nearsparse import checks
from spectile.tsparse import candidates, row_blocks, symbolic
from spectile.tsparse.types import PRECISIONS

SLOW = sorted(name for name, one in TABLE.items() if one.fp64_divisor > 2)
RNG = np.random.default_rng(3)
DENSE = RNG.standard_normal((48, 40))
SPARSE = sp.csr_array(sp.random_array((40, 40), density=0.1, rng=RNG))
CHAIN = chain(30)
SMALL = {
    "spamm": lambda **_: spectile.spamm(DENSE, DENSE.T, tau=0.0, **_).c,
    "spamm, float32": lambda **_: spectile.spamm(DENSE.astype("f4"), DENSE.T.astype("f4"), rtol_factors=1e-3, **_).c,
    "spamm, a batch": lambda **_: spectile.spamm(DENSE[None], DENSE.T, valid_ratio=0.5, **_).c,
    "spamm, lists": lambda **_: spectile.spamm(DENSE.tolist(), DENSE.T.tolist(), tau=1.0, **_).c,
    "spamm_threshold": lambda **_: spectile.spamm_threshold(DENSE, DENSE.T, rtol_factors=1e-3, **_).tau,
    "spgemm": lambda **_: spectile.spgemm(SPARSE, SPARSE, **_).toarray(),
    "spgemm, masked": lambda **_: spectile.spgemm(SPARSE, SPARSE, mask=SPARSE, **_).toarray(),
    "spgemm, columns": lambda **_: spectile.spgemm(SPARSE.tocsc(), SPARSE.tocoo(), precision="float32", **_).toarray(),
    "symbolic": lambda **_: symbolic(SPARSE, SPARSE, **_).multiply(SPARSE, SPARSE).toarray(),
    "row_blocks": lambda **_: sp.vstack([part for _rows, part in row_blocks(SPARSE, SPARSE, **_)]).toarray(),
    "kpm_dos": lambda **_: spectile.kpm_dos(CHAIN, 16, 2, rng=1, **_).moments,
    "kpm_dos, dense": lambda **_: spectile.kpm_dos(CHAIN.toarray(), energy_resolution=1.0, rng=1, **_).moments,
    "ldos": lambda **_: spectile.ldos(CHAIN, [3], 16, **_).moments,
    "spectral_function": lambda **_: spectile.spectral_function(
        CHAIN, [[0.1]], np.arange(30), num_moments=16, **_
    ).moments,
    "count": lambda **_: count(CHAIN, (-1.0, 1.0), num_moments=64, num_vectors=4, rng=1, **_).value,
    "spectral_bounds": lambda **_: np.array(spectile.spectral_bounds(CHAIN, **_)),
}  # fmt: skip


def dense(n, dtype, **options):
    """Return where a product of two n x n matrices is made; nothing of their size is allocated."""
    matrix = np.broadcast_to(np.zeros((), dtype), (n, n))
    return checks.operands(matrix, matrix, None, None).backend("auto", 32, **options)


def placed(work, system):
    return device.choose_backend("auto", False, system, lambda: work)


@pytest.mark.parametrize("name", ["RTX 4090", "H200"])
@pytest.mark.parametrize("call", SMALL)
def test_small_calls_are_the_hosts(here, call, name):
    """Every function says what it costs: one that does not would ask for the device, which is not there."""
    expected = SMALL[call](backend="cpu")
    here(name)
    np.testing.assert_allclose(SMALL[call](), expected, atol=1e-12)


@pytest.mark.parametrize("name", TABLE)
def test_products_of_dense_arrays_follow_the_rates(here, name):
    for cores in (1, 2, 16):
        here(name, cores)
        assert dense(16_384, "float32") == dense(16_384, "float16") == "cuda"
        assert dense(100, "float32") == dense(100, "float64") == "cpu"
        assert {dense(n, "float64") for n in (1_000, 16_384, 100_000)} <= {"cpu"} if name in SLOW else {"cpu", "cuda"}
        assert dense(16_384, "complex64") == "cpu"
    if name not in SLOW:
        assert dense(16_384, "float64") == "cuda"
        # Where little is multiplied the way there and back counts.
        assert dense(4_096, "float64", valid_ratio=1e-4) == "cpu"


def test_what_passes_the_link_is_counted_in_bytes():
    for dtype, real in (
        ("float16", "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
        ("complex128", "float64"),
    ):
        a, b = np.zeros((30, 20), dtype), np.zeros((20, 50), dtype)
        for share, made in ((1.0, 1), (1e-3, 1), (0.0, 0)):  # with a share of 0 a threshold alone is searched
            work = checks.operands(a, b, None, None).work(16, share)
            assert (
                work.moved == a.nbytes + b.nbytes + made * 30 * 50 * a.itemsize and work.streamed == a.nbytes + b.nbytes
            )
            assert work.real == real
            assert work.flops == 2 * share * 30 * 20 * 50 * (4 if work.real != dtype and dtype[0] == "c" else 1)


def test_what_a_host_lacks_is_the_devices(here):
    here("H200")
    assert dense(64, "float32", precision="tf32x3") == "cuda"


@pytest.mark.parametrize("name", TABLE)
def test_sparse_products_and_expansions_follow_the_bytes(here, name):
    """Their arithmetic hides behind the bytes, so that slow float64 is no reason to stay."""
    here(name)
    band = sp.diags_array([np.ones(2_000)] * 9, offsets=range(9), shape=(2_000, 2_000)).tocsr()
    small = candidates.placed(band, band, PRECISIONS["float64"])
    assert placed(small, "tsparse") == "cpu"
    # C of as many entries for a thousand times the products: what passes the link no longer counts.
    dense_rows = small._replace(split=1000 * small.split)
    assert placed(dense_rows, "tsparse") == "cuda"
    sheet = as_operator(sp.eye_array(200_000, format="csr"))
    assert placed(moments.work_of(sheet, np.dtype("f8"), 1000, 32), "kpm") == "cuda"
    assert placed(moments.work_of(as_operator(CHAIN), np.dtype("f8"), 1000, 1), "kpm") == "cpu"


def families():
    rng = np.random.default_rng(5)
    n = 20_000
    yield "uniform", sp.random_array((n, n), density=4 / n, rng=rng).tocsr()
    yield "banded", sp.diags_array([np.ones(n)] * 31, offsets=range(-15, 16), shape=(n, n)).tocsr()
    yield "blocks", sp.block_diag([np.ones((20, 20))] * (n // 20)).tocsr()
    yield "columns", sp.random_array((n, n), density=4 / n, rng=rng).tocsc()


@pytest.mark.parametrize(("name", "A"), list(families()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_sample_tells_the_work(name, A):
    work, C = candidates.sampled(A, A), A.tocsr() @ A.tocsr()
    products = np.diff(A.tocsr().indptr)[A.tocsr().indices].sum()
    assert products / 1.5 < work.products < 1.5 * products
    assert C.nnz / 1.5 < work.entries < 1.5 * C.nnz


def malformed():
    rng = np.random.default_rng(6)
    for change in range(4):
        A = sp.random_array((600, 600), density=0.05, rng=rng).tocsr()
        if change == 0:
            A.indices[:] = 10**6
        elif change == 1:
            A.indices[::2] = -1
        elif change == 2:
            A.indptr = A.indptr[:-5]
        else:
            A.indptr = A.indptr[::-1].copy()
        yield A


@pytest.mark.parametrize("A", list(malformed()), ids=range(4))
def test_what_is_malformed_is_refused_as_without_a_device(here, A):
    def error():
        with warnings.catch_warnings(), pytest.raises(Exception) as caught:
            warnings.simplefilter("ignore")
            spectile.spgemm(A, A)
        return type(caught.value), str(caught.value)

    expected = error()
    here("H200", 1)
    found = error()
    # A prediction may send what is malformed to the device, whose own check refuses it, if it is there.
    assert found == expected or found[0] in (ImportError, ModuleNotFoundError) or "cud" in found[1].lower()


def test_explain_tells_what_was_not_taken(here):
    calls = [
        (spectile.spamm, (DENSE, DENSE.T), {"tau": 0.0}),
        (spectile.spgemm, (SPARSE, SPARSE), {}),
        (spectile.kpm_dos, (CHAIN, 16, 2), {}),
    ]
    for function, operands, options in calls:
        assert not any("16 cores" in one.why for one in spectile.explain(function, *operands, **options))
    here("A100")
    for function, operands, options in calls:
        *_, last = spectile.explain(function, *operands, **options)
        assert last.seconds is None and TABLE["A100"].name in last.why and "16 cores" in last.why


def test_a_state_is_read_where_it_was_written(here, tmp_path):
    file = tmp_path / "state.npz"
    written = spectile.kpm_dos(CHAIN, 16, 2, rng=1)
    written.save(file)
    here("H200")
    read = spectile.SpectralDensity.load(file, CHAIN)
    read.add_moments(4)
    written.add_moments(4)
    np.testing.assert_array_equal(read.moments, written.moments)
