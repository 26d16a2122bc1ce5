"""Nodes to be diagnosed, and what the other tests of nodes use."""

from support.node_fixtures import (  # noqa: F401
    _container_factory,
    doctor_node,
    fake_driver,
    nvml_library,
    nvml_sampler,
    own_monitor,
)
