"""Nodes with real processes, and the fake driver."""

import pytest
from support.node_fixtures import (  # noqa: F401
    _container_factory,
    events,
    fake_driver,
    feedback,
    node,
    nvml_library,
    nvml_sampler,
    own_monitor,
    scene,
    start,
)
from support.node_root import Root


@pytest.fixture
def root(tmp_path) -> Root:
    """The containers' directories of the test's own node, empty."""
    return Root(tmp_path / "containers")
