"""Nodes with real processes, and the fake driver."""

import pytest
from support.node_fixtures import *  # noqa: F403
from support.node_root import Root


@pytest.fixture
def root(tmp_path) -> Root:
    """The containers' directories of the test's own node, empty."""
    return Root(tmp_path / "containers")
