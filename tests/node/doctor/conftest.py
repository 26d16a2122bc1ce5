"""Nodes to be diagnosed, and what the other tests of nodes use."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "integration")]

from integration.conftest import (  # noqa: E402, F401 (after the path)
    _container_factory,
    doctor_node,
    fake_driver,
    nvml_library,
    nvml_sampler,
    own_monitor,
)
