"""Long jobs and small machines: passes with checkpoints, Ctrl-C, forks, memory, and matrices of every shape."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from spectile.core import memory
from spectile.kpm import SpectralDensity, kpm_dos, ldos, spectral_function
from spectile.kpm.cpu import engine as cpu_engine
from spectile.kpm.cpu.engine import CpuEngine
from spectile.kpm.operators.lattices import graphene
from spectile.kpm.operators.topological_insulator import TopologicalInsulator

SAMPLE = TopologicalInsulator(4, 5, 3)


def interrupting(monkeypatch, call, error):
    """Raise `error` in the `call`-th time that a density adds moments; send SIGINT if it is None."""
    calls = []
    add_moments = SpectralDensity.add_moments

    def interrupted(self, num_moments):
        calls.append(num_moments)
        if len(calls) == call:
            if error is None:
                os.kill(os.getpid(), signal.SIGINT)
            else:
                raise error
        add_moments(self, num_moments)

    monkeypatch.setattr(SpectralDensity, "add_moments", interrupted)
    return calls


@pytest.mark.parametrize("call", [1, 4, 9, 11])
def test_a_job_of_several_passes_goes_on(call, tmp_path, monkeypatch):
    path = tmp_path / "dos.npz"
    whole = kpm_dos(SAMPLE, 500, 7, rng=5, backend="cpu")
    monkeypatch.setattr(CpuEngine, "capacity", lambda self: 3)
    arguments = {"H": SAMPLE, "num_moments": 500, "num_vectors": 7, "rng": 5, "backend": "cpu", "checkpoint": path}
    passes = kpm_dos(**arguments)
    np.testing.assert_allclose(passes.moments, whole.moments, atol=1e-10)
    np.testing.assert_allclose(passes.errors, whole.errors, rtol=1e-6, atol=1e-9)
    assert passes.num_vectors == 7 and not path.exists()
    with pytest.raises(ValueError, match="dropped"):
        passes.add_moments(10)
    with pytest.raises(ValueError, match="dropped"):
        passes.save(path)
    with monkeypatch.context() as once:
        interrupting(once, call, RuntimeError("the node dies"))
        with pytest.raises(RuntimeError, match="dies"):
            kpm_dos(**arguments, checkpoint_s=0)
    assert path.exists() == (call > 1)
    calls = interrupting(monkeypatch, 100, None)
    np.testing.assert_array_equal(kpm_dos(**arguments).moments, passes.moments)
    assert len(calls) == 13 - call  # four for each pass, less what the file holds


def test_bounds_that_prove_too_narrow_in_a_later_pass_begin_again(tmp_path, monkeypatch):
    from spectile.kpm import bounds, moments

    monkeypatch.setattr(CpuEngine, "capacity", lambda self: 3)
    advance, seen = moments.advance_watched, []

    def watched(recursion, etas, num_moments, progress):
        seen.append(1)
        etas, inside = advance(recursion, etas, num_moments, progress)
        return etas, inside and len(seen) != 8

    monkeypatch.setattr("spectile.kpm.density.advance_watched", watched)
    density = kpm_dos(SAMPLE, 300, 7, rng=5, backend="cpu", checkpoint=tmp_path / "dos.npz")
    fixed = kpm_dos(SAMPLE, 300, 7, rng=5, backend="cpu", bounds=density.bounds)
    np.testing.assert_allclose(density.moments, fixed.moments, atol=1e-10)
    assert bounds.scaling(density.bounds) and density.num_vectors == 7


def test_a_file_of_another_rng_is_refused_and_stays(tmp_path):
    path = tmp_path / "dos.npz"
    SpectralDensity(SAMPLE, 32, 2, rng=1, backend="cpu").save(path)
    held = path.read_bytes()
    for rng in (2, np.random.default_rng(3)):
        with pytest.raises(ValueError, match="another rng"):
            kpm_dos(SAMPLE, 64, 2, rng=rng, backend="cpu", checkpoint=path)
    assert path.read_bytes() == held
    density = kpm_dos(SAMPLE, 64, 2, rng=np.random.default_rng(1), backend="cpu", checkpoint=path)
    np.testing.assert_array_equal(density.moments, kpm_dos(SAMPLE, 64, 2, rng=1, backend="cpu").moments)


@pytest.mark.usefixtures("hears_ctrl_c")
def test_ctrl_c_writes_the_state(tmp_path, monkeypatch):
    path = tmp_path / "dos.npz"
    arguments = {"H": SAMPLE, "num_moments": 700, "num_vectors": 2, "rng": 5, "backend": "cpu"}
    whole = kpm_dos(**arguments, checkpoint=path)
    with monkeypatch.context() as once:
        interrupting(once, 3, None)
        with pytest.raises(KeyboardInterrupt):
            kpm_dos(**arguments, checkpoint=path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    calls = interrupting(monkeypatch, 100, None)
    np.testing.assert_array_equal(kpm_dos(**arguments, checkpoint=path).moments, whole.moments)
    assert len(calls) == 3 and not path.exists()


FORK = """
import os, numpy as np
from spectile.kpm import kpm_dos
from spectile.kpm.operators.lattices import graphene
def moments():
    return kpm_dos(graphene(120, 120), 32, 4, rng=1, backend="cpu", bounds=(-3, 3)).moments
before = moments()
child = os.fork()
if child == 0:
    os._exit(int(not np.array_equal(moments(), before)))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_has_threads_of_its_own():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"NUMBA_NUM_THREADS": "2"},
    )  # fmt: skip
    assert done.stdout.strip() == "0", done.stderr


def test_memory_of_the_host_is_looked_at(monkeypatch):
    matrix = graphene(30, 30)
    state = 2 * matrix.shape[0] * 8
    whole = kpm_dos(matrix, 32, 5, rng=1, backend="cpu")
    monkeypatch.setattr(memory, "UNASKED", 0)
    for module in (memory, cpu_engine):
        monkeypatch.setattr(module, "host_free_bytes", lambda: int(2.5 * state))
    passes = SpectralDensity(matrix, 32, 5, rng=1, backend="cpu")
    np.testing.assert_allclose(passes.moments, whole.moments, atol=1e-10)
    assert passes._engine.capacity() == 2
    for module in (memory, cpu_engine):
        monkeypatch.setattr(module, "host_free_bytes", lambda: state // 2)
    for call in (lambda: kpm_dos(matrix, 32, 5, backend="cpu"), lambda: ldos(matrix, [1, 2], 32, backend="cpu")):
        with pytest.raises(MemoryError, match=f"{state:,} bytes"):
            call()


@st.composite
def hermitian(draw):
    """Draw a Hermitian matrix in one of the forms that callers have: any size, type, index, order; empty rows."""
    size = draw(st.sampled_from([1, 2, 31, 32, 33, 97]))
    dtype = draw(st.sampled_from(["float32", "float64", "complex64", "complex128", "int64"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    entries = draw(st.sampled_from([0, 1, size, 5 * size]))
    row, column = rng.integers(0, size, (2, entries))
    values = rng.integers(-9, 9, entries) if dtype == "int64" else rng.normal(size=entries)
    values = values + 1j * rng.normal(size=entries) if dtype.startswith("complex") else values
    full = sp.coo_array(
        (np.r_[values, values.conj()], (np.r_[row, column], np.r_[column, row])), shape=(size, size)
    ).astype(dtype)
    form = draw(st.sampled_from(["coo", "csr", "csc", "wide", "unsorted", "dense"]))
    if form == "dense":
        return full.toarray()
    if form in ("coo", "csr", "csc"):
        return full.asformat(form)
    # Duplicates stay, in any order.
    order = np.lexsort((rng.random(full.nnz), full.row))
    indptr = np.r_[0, np.cumsum(np.bincount(full.row, minlength=size))]
    index = np.int64 if form == "wide" else np.int32
    return sp.csr_array((full.data[order], full.col[order].astype(index), indptr.astype(index)), shape=(size, size))


def check_shape(matrix, num_vectors, backend):
    """Compare the density of a matrix with its eigenvalues' moments on the same vectors."""
    from spectile.kpm import bounds, reference

    density = kpm_dos(matrix, 10, num_vectors, rng=4, backend=backend)
    dense = matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
    single = dense.dtype in (np.float32, np.complex64)
    double = dense.astype(np.result_type(dense.dtype, np.float64))
    energies, states = np.linalg.eigh(double)
    a, b = bounds.scaling(density.bounds)
    seed = int(np.random.default_rng(4).integers(2**62))
    start = reference.random_phases(seed, len(dense), num_vectors, real=dense.dtype.kind != "c")
    overlap = (np.abs(states.conj().T @ start) ** 2).mean(axis=1)
    x = np.clip(a * (energies - b), -1, 1)
    exact = np.cos(np.arange(10)[:, None] * np.arccos(x)) @ overlap
    # Duplicates are summed in another order here, which is no small part of a spectrum that is one level alone.
    entries = np.abs(matrix if isinstance(matrix, np.ndarray) else matrix.data)
    roundoff = 9**2 * np.finfo(double.dtype).eps * float(entries.sum(dtype=np.float64)) / density.scale
    atol = (2e-3 if single else 1e-7) + (roundoff if len(dense) == 1 else 0)
    np.testing.assert_allclose(density.moments / len(dense), exact / len(dense), atol=atol)


@settings(max_examples=120)
@given(matrix=hermitian(), num_vectors=st.sampled_from([1, 2, 3, 7, 17, 70]))
def test_matrices_of_every_shape(matrix, num_vectors):
    check_shape(matrix, num_vectors, "cpu")


@pytest.mark.parametrize("form", ["dense", "csr", "coo"])
def test_other_byte_orders_are_taken(form):
    H = graphene(4, 4)
    wanted = ldos(H, [0, 3], 32, backend="cpu").moments
    if form == "dense":
        foreign = H.toarray().astype(">f8")
    else:
        foreign = H.asformat(form)
        foreign.data = foreign.data.astype(">f8")
    np.testing.assert_array_equal(ldos(foreign, [0, 3], 32, backend="cpu").moments, wanted)
    assert round(kpm_dos(foreign, 16, 4, rng=1, backend="cpu").integrate()) == H.shape[0]


def test_masks_are_refused():
    H = graphene(4, 4).toarray()
    masked = np.ma.masked_array(H, mask=H != 0)
    sparse = graphene(4, 4)
    sparse.data = np.ma.masked_array(sparse.data, mask=sparse.data < 0)
    for each in (masked, sparse):
        with pytest.raises(TypeError, match="H has masked entries"):
            kpm_dos(each, 16, 2, backend="cpu")
    assert round(kpm_dos(np.ma.masked_array(H), 16, 2, rng=1, backend="cpu").integrate()) == len(H)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr"])
@pytest.mark.parametrize("index", [-3, 10**7])
def test_indices_outside_the_matrix_are_named(form, index):
    H = graphene(4, 4).asformat(form)
    (H.row if form == "coo" else H.indices)[5] = index
    with pytest.raises(ValueError, match=f"H is no valid {form} matrix"):  # was a segmentation fault
        kpm_dos(H, 16, 2, backend="cpu")


def test_a_real_operator_whose_product_is_complex_is_refused():
    class Rotated:
        shape, dtype = (10, 10), np.dtype(np.float64)

        def __matmul__(self, x):
            return 1j * x

    with pytest.raises(ValueError, match=r"H @ x is complex128 and H\.dtype is float64"):
        kpm_dos(Rotated(), 16, 2, backend="cpu")


def test_nan_and_complex_numbers_keep_their_nature():
    H = graphene(4, 4)
    density = kpm_dos(H, 64, 8, rng=1, backend="cpu")
    curves = ldos(H, [0, 1], 64, backend="cpu")
    assert np.isnan(density(np.nan)) and np.isnan(curves(np.nan)).all() and density(1e3) == 0
    green = density.integrate(lambda energy: 1 / (0.1 + 0.5j - energy))
    parts = [
        density.integrate(lambda energy, part=part: part(1 / (0.1 + 0.5j - energy))) for part in (np.real, np.imag)
    ]
    assert abs(green - complex(*parts)) < 1e-12 and abs(green.imag) > 1
    assert isinstance(density.integrate(), float)


def test_numbers_of_plane_waves_are_checked():
    H, positions = graphene(4, 4), np.arange(32.0)
    for options, words in (
        ({"wavevectors": [[1j]]}, "wavevectors must be real numbers, not complex128"),
        ({"wavevectors": [[0.1]], "weights": np.ones(32) + 1j}, "weights must be real numbers, not complex128"),
        ({"wavevectors": "x"}, "wavevectors must be real numbers, not <U1"),
    ):
        with pytest.raises(TypeError, match=words):
            spectral_function(H, positions=positions, num_moments=8, backend="cpu", **options)
    for options, words in (
        ({"wavevectors": np.zeros((0, 1))}, "give at least one"),
        ({"wavevectors": np.zeros((1, 1, 1))}, "give at least one, one a row"),
        ({"wavevectors": [[0.1]], "orbitals": np.full(32, np.nan)}, "orbitals hold NaN"),
    ):
        with pytest.raises(ValueError, match=words):
            spectral_function(H, positions=positions, num_moments=8, backend="cpu", **options)
