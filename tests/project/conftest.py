"""Programs within a budget, and containers, for the examples."""

from support.node_fixtures import _container_factory, runs, start  # noqa: F401
