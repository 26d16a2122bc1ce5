"""Nodes with real processes, and the fake driver."""

import sys
from pathlib import Path

import pytest
from node_root import Root

sys.path[:0] = [str(Path(__file__).parents[1] / "integration")]

from integration.conftest import (  # noqa: E402, F401 (after the path)
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


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """The containers' directories of the test's own node, empty."""
    return Root(tmp_path / "containers")
