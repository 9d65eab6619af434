"""What `explain` predicts: the way that is taken, more for more work, and nothing that runs."""

import dataclasses
import logging

import numpy as np
import pytest
import scipy.sparse as sp

import spectile
from spectile.core.devices import TABLE
from spectile.tsparse import candidates, explain, row_blocks, spgemm, spmm
from spectile.tsparse.cpu import one_pass
from spectile.tsparse.cpu.operands import operands
from spectile.tsparse.types import lookup


def random(rows, columns, entries, seed=1):
    rng = np.random.default_rng(seed)
    return sp.random_array((rows, columns), density=entries / columns, rng=rng, format="csr")


def applies(listed):
    return [one.kernel for one in listed if one.seconds is not None]


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("reserve", [one_pass.LARGEST_RESERVE, 100])
def test_the_way_taken_on_a_cpu_is_the_cheapest_that_applies(limited, reserve, monkeypatch, caplog):
    monkeypatch.setattr(one_pass, "LARGEST_RESERVE", reserve)
    monkeypatch.setattr(candidates, "LARGEST_RESERVE", reserve)
    A, options = random(300, 300, 5), {"memory_limit": 10**8, "backend": "cpu"} if limited else {"backend": "cpu"}
    listed = explain(A, A, **options)
    with caplog.at_level(logging.DEBUG, "spectile.tsparse"):
        spgemm(A, A, **options)
    taken = min((one for one in listed if one.seconds is not None), key=lambda one: one.seconds).kernel
    assert ("one pass" in taken) == ("one pass" in caplog.text)
    assert ("counted" in taken) == ("counted" in caplog.text)
    assert applies(listed)[0].startswith("cpu") and "cuda: rows by bins" not in applies(listed)


@pytest.mark.parametrize("device", TABLE.values(), ids=list(TABLE))
def test_more_work_is_predicted_to_take_longer_and_no_step_is_large(device):
    before = None
    for entries in range(1, 40):
        A = random(2000, 2000, entries)
        work = candidates.work_of(*operands(A, A, values=False))
        double = lookup("float64")
        seconds = [
            candidates.on_gpu(work, double, device).seconds,
            candidates.on_cpu(work, double, 2, False)[0].seconds,
        ]
        for now, last in zip(seconds, before or (), strict=False):
            assert last < now < (4 if entries < 3 else 1 + 4 / entries) * last
        before = seconds


def test_the_work_is_that_of_the_patterns():
    A, B = random(200, 300, 4, 2), random(300, 5000, 6, 3)
    work = candidates.work_of(*operands(A, B, values=False))
    exact = spgemm(A, B, backend="cpu")
    assert (work.rows, work.factors) == (200, A.nnz + B.nnz)
    assert work.products == np.diff(B.indptr)[A.indices].sum()
    assert work.entries == pytest.approx(exact.nnz, rel=0.05), "columns at random"
    column = candidates.work_of(*operands(A, sp.csr_array(np.ones((300, 1))), values=False))
    assert 180 < column.entries <= 200, "no more than one a row"
    empty = candidates.work_of(*operands(sp.csr_array((3, 0)), sp.csr_array((0, 4)), values=False))
    assert (empty.products, empty.entries) == (0, 0)


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({"format": "dense"}, ["cpu: dense"]),
        ({"format": "csc"}, ["cpu: one pass, by columns", "cpu: counted, then filled, by columns"]),
        ({"format": "coo"}, ["cpu: one pass", "cpu: counted, then filled"]),
        ({"mask": sp.eye_array(300, format="csr")}, ["cpu: mask, by rows of B", "cpu: mask, by rows and columns of B"]),
        ({"mask": random(300, 300, 200)}, ["cpu: mask, by rows of B"]),
        ({"top_n": 3}, ["cpu: blocks of rows, then selected"]),
        ({"semiring": "min_plus"}, ["cpu: blocks of rows, then selected"]),
    ],
)
def test_options_have_ways_of_their_own(options, taken):
    A = random(300, 300, 40)
    assert applies(explain(A, A, backend="cpu", **options)) == taken
    assert spgemm(A, A, backend="cpu", **options).shape == (300, 300)


def test_blocks_of_rows_and_dense_blocks_are_explained():
    A, X = random(300, 300, 5), np.ones((300, 7))
    for options in ({}, {"top_n": 3}, {"mask": random(300, 300, 4)}, {"memory_limit": 10**7}):
        (one, *_) = whole = spectile.explain(row_blocks, A, A, backend="cpu", **options)
        assert one.seconds > 0 and all("in blocks of rows" in way.kernel for way in whole)
    few, many = (spectile.explain(spmm, A, x)[0] for x in (X[:, :1], X))
    assert 0 < few.seconds < many.seconds and few.kernel == many.kernel == "cpu: rows times a dense block"
    assert spectile.explain(spmm, A, X[:, 0])[0] == few
    with pytest.raises(ValueError, match="columns of A must be the rows of X"):
        spectile.explain(spmm, A, X[:5])
    with pytest.raises(ValueError, match="leave them out on a CPU"):
        explain(A, A, backend="cpu", devices=2)


@pytest.mark.parametrize("device", TABLE.values(), ids=list(TABLE))
def test_ways_on_a_gpu_take_as_long_as_what_they_move(device):
    A, double = random(2000, 2000, 30), lookup("float64")
    work = candidates.work_of(*operands(A, A, values=False))
    plain, dense, spread = (
        candidates.on_gpu(work, double, device, **more) for more in ({}, {"columns": 2000}, {"devices": 4})
    )
    assert spread.seconds < plain.seconds < dense.seconds
    assert len({plain.kernel, dense.kernel, spread.kernel}) == 3
    here, there = (candidates.in_blocks(plain, work, double, host) for host in (False, True))
    assert here.seconds == plain.seconds <= there.seconds >= 12 * work.entries / 25e9
    dense = [candidates.dense_block(A.nnz, 2000, columns, 8, 1, device).seconds for columns in (1, 8, 32)]
    assert sorted(set(dense)) == dense
    for name in ("rows", "factors", "products", "entries"):
        more = dataclasses.replace(work, **{name: 100 * getattr(work, name)})
        assert candidates.on_gpu(more, double, device).seconds > plain.seconds, name


def test_conversions_take_time():
    A, B = random(300, 300, 5), random(300, 300, 5, 2)
    plain, turned = (explain(A.asformat(form), B, backend="cpu")[0].seconds for form in ("csr", "csc"))
    assert plain < turned < plain + 1e-6 * A.nnz
    n = 2**40
    wide = sp.csr_array((np.ones(2), np.array([5, n - 1]), np.array([0, 2])), shape=(1, n))
    assert explain(wide, wide.T, backend="cpu")[0].seconds < 1


def test_bad_arguments_are_those_of_a_product():
    A = random(20, 30, 2)
    with pytest.raises(ValueError, match="columns of A must be the rows of B"):
        explain(A, A)
    with pytest.raises(ValueError, match="positive number of bytes"):
        explain(A, sp.csr_array(A.T), memory_limit=-1)
    with pytest.raises(TypeError, match="not a sparse matrix"):
        explain(A.toarray(), A)
    for options in ({"format": "lil"}, {"semiring": "x"}, {"prune": -1}, {"complement": True}):
        with pytest.raises(ValueError, match=next(iter(options))):
            explain(A, sp.csr_array(A.T), **options)
    with pytest.raises(TypeError, match="no option 'rtol'"):
        explain(A, sp.csr_array(A.T), rtol=1)
    assert row_blocks.__kwdefaults__.items() <= spgemm.__kwdefaults__.items()
