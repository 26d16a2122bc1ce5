"""Programs within a budget, for the examples."""

from support.node_fixtures import runs  # noqa: F401
