"""Programs within a budget, on the fake driver."""

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
