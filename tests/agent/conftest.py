"""A node of regions and processes, a fake driver, and the feedback."""

from support.node_fixtures import *  # noqa: F403
