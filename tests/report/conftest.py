"""Fixtures of the tests of recordings and reports."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from integration.conftest import fake_driver, nvml_library, nvml_sampler  # noqa: F401
from node_scene import NodeScene


@pytest.fixture
def scene(tmp_path: Path) -> NodeScene:
    """Return the directories of a node without containers."""
    return NodeScene(tmp_path / "containers")
