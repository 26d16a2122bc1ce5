"""Nodes to be diagnosed, and what the other tests of nodes use."""

from support.node_fixtures import *  # noqa: F403
