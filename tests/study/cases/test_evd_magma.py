"""MAGMA found, loaded and called: by a stand-in of a few lines of C here, itself where it is installed."""

import shutil
import subprocess

import numpy as np
import pytest
import scipy.linalg

from spectile_study.cases.evd import magma
from spectile_study.cases.evd.common import ONCE_S, chasing_seconds, magma_seconds
from spectile_study.inputs import counted

STAND_IN = """
typedef %(integer)s magma_int_t;
void magma_version(magma_int_t *major, magma_int_t *minor, magma_int_t *micro) { *major = 2; *minor = 10; *micro = 0; }
magma_int_t magma_init(void) { return %(status)d; }
magma_int_t magma_get_parallel_numthreads(void) { return 1; }
magma_int_t magma_get_dbulge_vblksiz(magma_int_t n, magma_int_t nb, magma_int_t threads) { return nb; }
magma_int_t magma_get_dbulge_nb(magma_int_t n, magma_int_t threads) { return 64; }
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Return a function that builds a library with MAGMA's names and points MAGMA_DIR at its installation."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the stand-in for MAGMA needs a C compiler")

    def build(integer, status):
        folder = tmp_path / f"magma {integer} {status}"
        (folder / "lib").mkdir(parents=True)
        source = folder / "stand_in.c"
        source.write_text(STAND_IN % {"integer": integer, "status": status})
        subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "lib/libmagma.so", source], check=True)
        monkeypatch.setenv(magma.FOLDER, str(folder))
        return folder

    return build


def test_without_magma_the_reason_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv(magma.FOLDER, str(tmp_path))
    assert magma.find() is None
    assert magma.reason(10) == (
        f"MAGMA_DIR names {tmp_path}, which holds no libmagma.so: name its folder by MAGMA_DIR, or install conda's "
        "package libmagma"
    )
    monkeypatch.delenv(magma.FOLDER)
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libmagma.so").write_text("not a library")
    assert magma.find() == tmp_path / "lib/libmagma.so"
    assert magma.reason(10).startswith("MAGMA cannot be used (")


@pytest.mark.parametrize(("integer", "bits"), [("int", 32), ("long long", 64)])
def test_the_width_of_magmas_integers_is_found(stand_in, integer, bits):
    folder = stand_in(integer, 0)
    assert magma.find() == folder / "lib/libmagma.so"
    assert magma.load(magma.find()).dtype.itemsize * 8 == bits
    assert magma.reason(40_000) is None
    narrow = "this MAGMA counts its work space in 32 bits, which ends at n = 26,754 with vectors"
    assert magma.reason(26_755, vectors=True) == (narrow if bits == 32 else None)
    assert magma.reason(26_754, vectors=True) is None
    assert magma.bandwidth(magma.load(magma.find()), 40_000) == 64


def test_a_magma_that_does_not_start_is_a_reason(stand_in):
    stand_in("int", -116)
    assert "magma_init failed: it needs a CUDA device" in magma.reason(10)


# Seconds of the records of ff9a2b8 and 12f690c: 16 cores, MAGMA's own bandwidth of 128 in the solver.
RECORDED = {
    "tridiagonal_8192": (magma_seconds(8192, 128, 16), 0.813),
    "tridiagonal_16384": (magma_seconds(16384, 128, 16), 2.41),
    "evd_4096_vectors": (magma_seconds(4096, 128, 16, vectors=True), 0.508),
    "evd_8192_values": (magma_seconds(8192, 128, 16), 1.88),
    "evd_8192_vectors": (magma_seconds(8192, 128, 16, vectors=True), 1.46),
    "evd_16384_values": (magma_seconds(16384, 128, 16), 7.16),
    "evd_16384_vectors": (magma_seconds(16384, 128, 16, vectors=True), 6.56),
    "sbr_8192_128 chasing": (chasing_seconds(8192, 128, 16), 0.566),
    "sbr_8192_256 chasing": (chasing_seconds(8192, 256, 16), 1.15),
    "sbr_16384_64 chasing": (chasing_seconds(16384, 64, 16), 1.23),
    "sbr_16384_128 chasing": (chasing_seconds(16384, 128, 16), 2.32),
}


@pytest.mark.parametrize("case", RECORDED)
def test_seconds_of_magma_are_predicted_well_enough_to_call_it_once(case):
    predicted, recorded = RECORDED[case]
    assert 0.4 < predicted / recorded < 2.5
    assert (predicted > ONCE_S) == (recorded > ONCE_S) or 0.5 < recorded < 2


def test_the_band_of_a_matrix_is_taken_whole():
    for n, b in ((50, 7), (5, 7), (8, 8)):
        assert np.array_equal(magma.band_of(counted.matrix(n, 1), b), counted.band(n, b, 1))


@pytest.mark.skipif(magma.find() is None, reason="MAGMA is not installed: name its folder by MAGMA_DIR")
@pytest.mark.parametrize(("n", "b"), [(200, 16), (501, 64)])
def test_magma_chases_a_band_on_the_host(n, b):
    library = magma.load(magma.find(), start=False)
    band = counted.band(n, b, 3)
    expected = scipy.linalg.eigvals_banded(band[:, : b + 1].T, lower=True)
    d, e = magma.chase(library, band, b)
    found = scipy.linalg.eigvalsh_tridiagonal(d, e)
    assert np.abs(found - expected).max() < 10 * n * np.finfo(float).eps * np.abs(expected).max()
