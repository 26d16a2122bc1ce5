"""Names of `rows` for its callers until they are converted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .rows import node_processes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .rows import Join, NodeProcess
    from .views import ContainerView


def process_rows(join: Join, _: Iterable[ContainerView] = ()) -> tuple[NodeProcess, ...]:
    """Return `node_processes`."""
    return node_processes(join.observation, join)
