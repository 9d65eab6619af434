"""A Slurm of its own for each file of tests."""

import pytest

from . import onenode


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if reason := onenode.obstacle():
        pytest.skip(reason)
    with onenode.Slurm(tmp_path_factory.mktemp("slurm")) as daemons:
        yield daemons
