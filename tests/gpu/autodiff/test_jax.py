"""Derivatives of JAX's arrays are the same where the solver runs on a GPU."""

import numpy as np
import pytest

from tests.spectra import CLOSED, SPECTRA, with_spectrum

jax = pytest.importorskip("jax")

import spectile.jax as ours  # noqa: E402


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_derivatives_are_those_of_the_host(spectrum):
    with jax.enable_x64(True):
        a = jax.numpy.asarray(with_spectrum(SPECTRA[spectrum], False))

        def cost(a, backend):
            w, v = ours.eigh(a, backend=backend)
            return (v[:, :CLOSED] ** 2).sum(1) @ jax.numpy.arange(5.0) + w[:CLOSED].sum() ** 2

        gradient = jax.jit(jax.grad(cost), static_argnums=1)
        assert np.allclose(gradient(a, "cuda"), gradient(a, "cpu"), rtol=1e-8, atol=1e-8)
