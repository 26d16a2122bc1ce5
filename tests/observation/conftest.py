"""Nodes with real processes, and the fake driver."""

from support.node_fixtures import *  # noqa: F403
