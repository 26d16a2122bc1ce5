"""Fixtures of the tests of plans."""

import pytest
from support.agent_tasks import Events
from support.node_fixtures import fake_driver, nvml_library, nvml_sampler  # noqa: F401


@pytest.fixture
def events() -> Events:
    """Collects the events of a test."""
    return Events()
