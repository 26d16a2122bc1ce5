"""A node of regions and processes, a fake driver, and the feedback."""

from support.node_fixtures import (  # noqa: F401
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
