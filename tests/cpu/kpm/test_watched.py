"""The watch over norms that tells of a spectrum outside its bounds."""

import numpy as np
import pytest

from spectile.kpm.moments import advance_watched


class Norms:
    """A recursion of two vectors, of norm 1 but for one of them in one step."""

    num_vectors = 2

    def __init__(self, step):
        self.step, self.done = step, 0

    def advance(self, steps):
        etas = np.zeros((2 * steps, 2))
        etas[::2] = 1
        if self.done <= self.step < self.done + steps:
            etas[2 * (self.step - self.done), 1] = 1.1
        self.done += steps
        return etas


@pytest.mark.parametrize("step", [*range(1, 12), 70, 71, 72, 73, 98, 99])
def test_a_norm_that_grows_in_any_step_is_seen(step):
    etas, inside = advance_watched(Norms(step), np.empty((0, 2)), 200)
    assert not inside and len(etas) > 2 * step


@pytest.mark.parametrize("moments", [2, 3, 16, 17, 145, 200])
def test_norms_that_stay_are_inside(moments):
    etas, inside = advance_watched(Norms(-1), np.empty((0, 2)), moments)
    assert inside and len(etas) == moments + moments % 2
