"""Counted random matrices: any part gives the bits of the whole, and the entries are what they are said to be."""

import numpy as np
import pytest
import scipy.stats

from spectile_study.inputs import counted


def splitmix64(state):
    """Return SplitMix64's output for `state`, in Python's whole numbers."""
    z = state % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def test_entries_are_those_of_splitmix64_and_exact_in_float64():
    # The first outputs of the published generator from the state 1234567.
    assert splitmix64(1234567 + 0x9E3779B97F4A7C15) == 6457827717110365317
    index = np.array([0, 1, 2**40, 2**63, 2**64 - 1], np.uint64)
    for seed in (0, 1, 2**40):
        states = (counted.start(seed) + int(i) * 0x9E3779B97F4A7C15 for i in index)
        expected = [(splitmix64(state) >> 11) * 2.0**-52 - 1 for state in states]
        assert counted.uniform(index, seed).tolist() == expected


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_a_part_of_a_hermitian_matrix_is_that_of_the_whole(dtype):
    whole = counted.matrix(300, 5, dtype)
    assert whole.dtype == dtype and whole.flags.f_contiguous and np.array_equal(whole, whole.conj().T)
    rows, columns = np.arange(100, 140)[:, None], np.arange(7, 250)
    assert np.array_equal(counted.hermitian(rows, columns, 5, dtype), whole[100:140, 7:250])
    assert not np.array_equal(counted.matrix(300, 6, dtype), whole)


def test_a_band_is_that_of_the_matrix():
    whole, band = counted.matrix(40, 2), counted.band(40, 3, 2)
    assert band.shape == (40, 6)
    for j, offset in np.ndindex(40, 6):
        inside = offset <= 3 and j + offset < 40
        assert band[j, offset] == (whole[j + offset, j] if inside else 0)


def test_entries_are_uniform_and_independent_of_their_neighbours():
    a = counted.dense(np.arange(1000)[:, None], np.arange(1000), 3)
    assert scipy.stats.kstest(a.ravel(), scipy.stats.uniform(-1, 2).cdf).pvalue > 1e-3
    for one, other in ((a[1:], a[:-1]), (a[:, 1:], a[:, :-1])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 5e-3
    # Singular values of a matrix of independent entries end at 2 sqrt(n / 3).
    assert np.linalg.norm(a, 2) == pytest.approx(2 * np.sqrt(1000 / 3), rel=0.03)
