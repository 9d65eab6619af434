"""Each product that the public functions take has its kernels on a GPU, whatever the types; no GPU is needed."""

from __future__ import annotations

import functools
import itertools
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from spectile.core.devices import TABLE
from spectile.tsparse import api
from spectile.tsparse.cpu.operands import one_operand
from spectile.tsparse.selection import Wanted
from spectile.tsparse.semirings import SEMIRINGS, lookup_semiring
from spectile.tsparse.types import PRECISIONS, Places

DTYPES = "?bBhHiIlLqQefdgFDG"


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    """Return the modules of the backend, whose units are looked up, and none is launched."""
    pytest.importorskip("cupy", reason="CuPy is not installed: install the extra cuda12 or cuda13")
    from spectile.tsparse.cuda import factors, given, symbolic, units

    stub = SimpleNamespace(empty=np.empty, cuda=SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: 0)))
    monkeypatch.setitem(sys.modules, "cupy", stub)
    used = set()
    monkeypatch.setattr(units, "describe", lambda: TABLE["H200"])
    monkeypatch.setattr(units, "prepare", lambda *listed: used.update(listed))
    monkeypatch.setattr(factors, "plan", lambda key, make: make())
    monkeypatch.setattr(factors, "Counters", lambda rows: SimpleNamespace(device=0, stream=0, head=0))

    class Check:
        def __init__(self, unit, *sizes):
            used.add(unit)

        def __call__(self, *addresses):
            pass

    monkeypatch.setattr(factors, "_bound_check", Check)
    units._prepare_rows.cache_clear()
    yield SimpleNamespace(factors=factors, given=given, symbolic=symbolic, units=units, used=used)
    units._prepare_rows.cache_clear()


@functools.cache
def matrix(char):
    """Return a matrix with values of a type, or None where SciPy has no such."""
    A = sp.csr_array(np.eye(2))
    A.data = np.ones(2, char)
    return A


def on_device(cuda, A, copied=True):
    """Return a factor as the backend holds it: of a matrix of the host, or of one of CuPy with values of any type."""
    try:
        data = one_operand(A, "A").data if copied else cuda.given._in_order("A", A.data, Places(A.data.shape))[0]
    except TypeError:
        return None
    indptr, indices = A.indptr.astype(np.int32), A.indices.astype(np.int32)
    return cuda.given.Given(A.shape, indptr, indices, data, A.data.shape)


def held(cuda, char):
    """Return a factor for each type in which values of a type are held on a device."""
    forms = [on_device(cuda, matrix(char)), *([on_device(cuda, matrix(char), False)] if char not in "gG" else [])]
    return list({one.data.dtype: one for one in forms if one is not None}.values())


@pytest.mark.parametrize("semiring", SEMIRINGS)
def test_every_product_has_its_kernels(cuda, semiring):
    from spectile.tsparse.cuda.run import of_device

    admitted, values = 0, set()
    wanted = Wanted(lookup_semiring(semiring), prune=0.5)
    factors = {char: held(cuda, char) for char in DTYPES}
    for a, b, precision in itertools.product(DTYPES, DTYPES, (None, *PRECISIONS)):
        try:
            chosen, _ = of_device(api._choose(matrix(a), matrix(b), wanted, precision))
        except (TypeError, ValueError):
            continue
        pairs = itertools.product(factors[a], factors[b])
        if SEMIRINGS[semiring].multiply in ("and", "pair"):
            ones = on_device(cuda, matrix(chosen.dtype.char))
            pairs = [(ones, ones)]
        for left, right in pairs:
            admitted += 1
            made = cuda.factors.with_checked_factors(left, right, chosen, lambda A, B, _: (A, B))
            assert {one.data.dtype for one in made} == {chosen.dtype}, (a, b, precision)
        values.add(chosen.value)
    assert admitted > 100
    for value in values:
        cuda.used |= {cuda.units.PLACE[value], cuda.units.LIST[value]}
        cuda.used.add(cuda.units.MASKED[value, SEMIRINGS[semiring].code])
        for family in (*cuda.units.NUMERIC.values(), *cuda.units.REUSE.values()):
            cuda.used.update(family[value].values())
    assert cuda.used <= set(cuda.units.UNITS), "a unit that no test compiles"


def test_every_pair_of_patterns_is_analysed(cuda, monkeypatch):
    phase = SimpleNamespace(products=2, entries=2)
    monkeypatch.setattr(cuda.symbolic, "count_rows", lambda *_: phase)
    monkeypatch.setattr(cuda.symbolic, "chunk_of", lambda *_: (1, 0))
    factors = [one for char in DTYPES for one in held(cuda, char)]
    for left, right in itertools.product(factors, repeat=2):
        pattern = cuda.symbolic.SymbolicProduct(left, right, None, host=False)
        assert (pattern.nnz, pattern._left.data, pattern._right.data) == (2, None, None)
    assert cuda.units.CHECK_PATTERN in cuda.used <= set(cuda.units.UNITS)
