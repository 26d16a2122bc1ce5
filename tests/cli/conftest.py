"""The node of processes and a fake driver that the command line looks at."""

from collections.abc import Iterator

import pytest
from support.cli_scene import Scene, busy_scene
from support.node_fixtures import *  # noqa: F403


@pytest.fixture(scope="module")
def scene(tmp_path_factory, nvml_library) -> Iterator[Scene]:
    """A node with processes of each kind."""
    yield from busy_scene(tmp_path_factory, nvml_library)
