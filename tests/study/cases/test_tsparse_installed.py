"""Installed libraries are measured beside ours through the interface of square.h: one of our own C proves it."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from spectile_study.bench.case import Context, Skipped
from spectile_study.bench.measure.checks import check_method
from spectile_study.cases.tsparse import build, installed
from spectile_study.cases.tsparse.checks import Check
from spectile_study.inputs import families

HEADER = Path(installed.__file__).with_name("square.h")
#: A product row by row into a dense row; what goes wrong is compiled in.
SOURCE = r"""
#include <stdlib.h>
#include "square.h"
#ifndef REAL
#define REAL double
#endif
#ifndef MADE_FOR
#define MADE_FOR SPECTILE_SQUARE_INTERFACE
#endif
#ifndef ON_DEVICE
#define ON_DEVICE 0
#endif
#ifndef OFF
#define OFF 0
#endif
static int64_t held;
int live = 0;
int32_t spectile_square_interface(void) { return MADE_FOR; }
const char *spectile_square_version(void) { return "rows 1.2 (0123abc)"; }
int32_t spectile_square_value_bytes(void) { return sizeof(REAL); }
int32_t spectile_square_on_device(void) { return ON_DEVICE; }
const char *spectile_square_message(int32_t status) { return status == 7 ? "no memory is left" : 0; }
#ifndef WITHOUT_COUNT
int64_t spectile_square_most_bytes(void) { return held; }
#endif
void spectile_square_release(spectile_square_csr *c) {
    free((void *)c->indptr), free((void *)c->indices), free((void *)c->values);
    live -= 1;
}
int32_t spectile_square(const spectile_square_csr *a, spectile_square_csr *c) {
#ifdef FAILS
    return FAILS;
#endif
    const REAL *values = a->values;
    int64_t most = 0, found = 0;
    for (int64_t k = 0; k < a->entries; k++) most += a->indptr[a->indices[k] + 1] - a->indptr[a->indices[k]];
    int32_t *indptr = calloc(a->rows + 1, sizeof *indptr), *indices = malloc((most + 1) * sizeof *indices);
    REAL *sums = malloc((most + 1) * sizeof *sums);
    int64_t *place = malloc(a->rows * sizeof *place);
    for (int64_t j = 0; j < a->rows; j++) place[j] = -1;
    for (int64_t i = 0; i < a->rows; i++) {
        for (int32_t k = a->indptr[i]; k < a->indptr[i + 1]; k++)
            for (int32_t l = a->indptr[a->indices[k]]; l < a->indptr[a->indices[k] + 1]; l++) {
                const int32_t j = a->indices[l];
                if (place[j] < indptr[i]) place[j] = found, indices[found] = j, sums[found++] = 0;
                sums[place[j]] += values[k] * values[l];
            }
        indptr[i + 1] = (int32_t)found;
    }
    free(place);
    if (found) sums[0] += OFF;
    held = (a->rows + 1) * 4 + found * (4 + (int64_t)sizeof(REAL));
    live += 1;
#ifdef FEWER_ROWS
    *c = (spectile_square_csr){a->rows - 1, found, indptr, indices, sums};
#else
    *c = (spectile_square_csr){a->rows, found, indptr, indices, sums};
#endif
    return 0;
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return a function that compiles the library with some macros and returns its path."""
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "rows.c").write_text(SOURCE)

    def library(*macros):
        out = folder / f"{'_'.join(macros) or 'plain'}.so".replace("=", "")
        flags = ("-std=c99", "-Wall", "-Werror", "-O1", "-shared", "-fPIC", f"-I{HEADER.parent}")
        call = ["cc", *flags, *(f"-D{macro}" for macro in macros), str(folder / "rows.c"), "-o", str(out)]
        subprocess.run(call, check=True)
        return str(out)

    return library


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch):
    for name in installed.NAMES:
        monkeypatch.delenv(installed.variable(name), raising=False)


def matrix(dtype="float64"):
    A = families.generate("cage5")
    return sp.csr_array((A.data.astype(dtype), A.indices.astype(np.int32), A.indptr.astype(np.int32)), A.shape)


def methods(A=None):
    A = matrix() if A is None else A
    counts = build.table1(A)
    matrices = {dtype: matrix(dtype) for dtype in ("float64", "float32")}
    found = installed.methods(matrices, counts, Check(A, counts["nnz_c"], seed=1), on_device=False)
    return {method.name: method for method in found}


@pytest.mark.parametrize("real", ["double", "float"])
def test_an_installed_library_is_checked_asked_and_released(compiled, monkeypatch, real):
    path = compiled(f"REAL={real}")
    monkeypatch.setenv("SPECTILE_SPECK", path)
    method = methods()["speck"]
    row, _ = check_method(method, "cpu")
    assert (row["status"], row["reason"]) == ("ok", None)
    assert row["errors"]["error_pattern"] == 0 and row["errors"]["error_bound_ratio"] < 1
    assert row["values"]["library"] == "rows 1.2 (0123abc)"
    assert row["values"]["precision"] == {"double": "float64", "float": "float32"}[real]
    nnz = build.table1(matrix())["nnz_c"]
    assert row["memory_bytes"] == 4 * (matrix().shape[0] + 1) + nnz * (12 if real == "double" else 8)
    method.run()
    assert ctypes.c_int.in_dll(ctypes.CDLL(path), "live").value == 0


def test_it_is_among_the_methods_of_a_case(compiled, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECTILE_OPSPARSE", compiled())
    context = Context("cpu", tmp_path, 1, 1, Path(__file__).resolve().parents[3])
    problem = build.build({"matrix": "cage5", "product": None, "empty_pool": False}, context)
    found = {method.name: method for method in problem.methods}
    assert check_method(found["opsparse"], "cpu")[0]["status"] == "ok"
    assert isinstance(found["cusp"], Skipped) and "SPECTILE_CUSP" in found["cusp"].reason


@pytest.mark.parametrize(
    ("macros", "reason"),
    [
        (["OFF=1"], "wrong result: error_bound_ratio"),
        (["FAILS=7"], "rows 1.2 (0123abc) ended with status 7: no memory is left"),
        (["FAILS=8"], "ended with status 8: it does not say why"),
        (["FEWER_ROWS"], "entries in "),
    ],
)
def test_what_goes_wrong_is_a_failed_method(compiled, monkeypatch, macros, reason):
    monkeypatch.setenv("SPECTILE_NSPARSE", compiled(*macros))
    row, _ = check_method(methods()["nsparse"], "cpu")
    assert row["status"] == "failed" and reason in row["reason"]


@pytest.mark.parametrize(
    ("macros", "reason"),
    [
        (["MADE_FOR=2"], "made for the interface 2 of square.h"),
        (["WITHOUT_COUNT"], "has no function spectile_square_most_bytes"),
        (["REAL=long double"], "values of 16 bytes"),
        (["ON_DEVICE=1"], "needs a CUDA device"),
    ],
)
def test_what_cannot_be_measured_is_skipped_with_the_reason(compiled, monkeypatch, macros, reason):
    monkeypatch.setenv("SPECTILE_NSPARSE", compiled(*macros))
    method = methods()["nsparse"]
    assert isinstance(method, Skipped) and reason in method.reason


def test_what_is_named_and_absent_is_skipped(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECTILE_RMERGE2", str(tmp_path / "absent.so"))
    assert "RMerge2 cannot be used" in methods()["rmerge2"].reason
    assert all(isinstance(method, Skipped) for method in methods().values())


def test_an_empty_product(compiled, monkeypatch):
    monkeypatch.setenv("SPECTILE_CUSP", compiled())
    empty = sp.csr_array((4, 4))
    library = installed.Library(compiled())
    indexed = sp.csr_array((empty.data, empty.indices.astype(np.int32), empty.indptr.astype(np.int32)), (4, 4))
    C = library.square(indexed).matrix()
    assert C.shape == (4, 4) and C.nnz == 0


def test_header_and_module_are_of_one_interface():
    text = HEADER.read_text()
    assert f"#define SPECTILE_SQUARE_INTERFACE {installed.INTERFACE}\n" in text
