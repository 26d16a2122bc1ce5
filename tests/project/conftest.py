"""Programs within a budget, and containers, for the examples."""

from support.node_fixtures import container_factory_end, files, runs, start  # noqa: F401
