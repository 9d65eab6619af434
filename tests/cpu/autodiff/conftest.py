"""What tests of derivatives share."""

import pytest


@pytest.fixture(scope="module")
def double_precision():
    """Let JAX compute in double precision."""
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
