"""The node of processes and a fake driver that the command line looks at."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli_scene import Scene, busy_scene
from support.node_fixtures import (  # noqa: F401
    _container_factory,
    doctor_node,
    fake_driver,
    nvml_library,
    own_monitor,
    runs,
)


@pytest.fixture(scope="module")
def scene(
    tmp_path_factory: pytest.TempPathFactory,
    nvml_library: Path,  # noqa: F811 (the fixture)
) -> Iterator[Scene]:
    """A node with processes of each kind."""
    yield from busy_scene(tmp_path_factory, nvml_library)
