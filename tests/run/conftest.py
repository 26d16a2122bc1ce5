"""Programs within a budget, on the fake driver."""

from support.node_fixtures import busy_program, runs  # noqa: F401
