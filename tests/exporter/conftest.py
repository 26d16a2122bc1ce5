"""A node of files or processes, a fake driver, and an exporter of them."""

from support.node_fixtures import (  # noqa: F401
    container_factory_end,
    exporter,
    fake_driver,
    files,
    nvml_library,
    nvml_sampler,
)
