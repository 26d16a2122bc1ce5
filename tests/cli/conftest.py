"""The node of processes and a fake driver that the command line looks at."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "integration"), str(TESTS / "unit")]

from integration.conftest import (  # noqa: E402, F401
    _container_factory,
    fake_driver,
    nvml_library,
)

from cli.cli_scene import Scene, busy_scene  # noqa: E402 (after the path)


@pytest.fixture(scope="module")
def scene(
    tmp_path_factory: pytest.TempPathFactory,
    nvml_library: Path,  # noqa: F811 (the fixture)
) -> Iterator[Scene]:
    """A node with processes of each kind."""
    yield from busy_scene(tmp_path_factory, nvml_library)
