"""Fixtures of the tests of plans."""

import pytest
from support.agent_scene import Events


@pytest.fixture
def events() -> Events:
    """Collects the events of a test."""
    return Events()
