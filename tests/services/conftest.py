"""Nodes with real processes."""

from support.node_fixtures import *  # noqa: F403
