"""Nodes with real processes."""

from support.node_fixtures import (  # noqa: F401
    _container_factory,
    node,
    own_monitor,
    scene,
    start,
)
