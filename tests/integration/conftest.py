"""Nodes with real processes, the fake driver, and programs within a budget."""

from support.node_fixtures import (  # noqa: F401
    _container_factory,
    doctor_node,
    fake_driver,
    nvml_library,
    own_monitor,
    runs,
    scene,
    start,
)
