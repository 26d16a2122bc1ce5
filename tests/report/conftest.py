"""Fixtures of the tests of recordings and reports."""

import pytest
from support.node_fixtures import fake_driver, files, nvml_library, nvml_sampler  # noqa: F401
from support.node_scene import GPU, NodeScene


@pytest.fixture
def scene(tmp_path) -> NodeScene:
    """Return the directories of a node without containers."""
    return NodeScene(tmp_path, uuids=[GPU])
