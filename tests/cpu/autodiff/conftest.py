"""What tests of derivatives share."""

import sys

import pytest


@pytest.fixture(scope="module")
def double_precision():
    """Let JAX compute in double precision."""
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(autouse=True)
def the_same_draws():
    """Seed the generator that PyTorch's checks of derivatives draw from."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
