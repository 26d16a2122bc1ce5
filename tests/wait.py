"""Waiting for what will happen, instead of sleeping until it has."""

import time
from collections.abc import Callable

PATIENCE_S = 20.0


def eventually(condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Return once the condition is true; fail if it does not become so."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)
