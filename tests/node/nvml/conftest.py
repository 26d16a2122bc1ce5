"""The fake driver that the tests share."""

from support.node_fixtures import (  # noqa: F401
    fake_driver,
    nvml_library,
    nvml_sampler,
)
