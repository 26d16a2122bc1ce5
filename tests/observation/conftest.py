"""Nodes with real processes, and the fake driver."""

from support.node_fixtures import (  # noqa: F401
    _container_factory,
    fake_driver,
    nvml_library,
    nvml_sampler,
    own_monitor,
    start,
)
