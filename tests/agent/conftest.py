"""A node of regions and processes, a fake driver, and the feedback."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "integration")]

from integration.conftest import (  # noqa: E402, F401
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
