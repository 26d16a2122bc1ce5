"""Nodes with real processes, the fake driver, and programs within a budget."""

from support.node_fixtures import (  # noqa: F401
    _container_factory,
    busy_program,
    doctor_node,
    fake_driver,
    node,
    nvml_library,
    own_monitor,
    runs,
    scene,
    start,
)
