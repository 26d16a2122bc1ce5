"""Regions that are open for writing: an act on one costs a tenth of opening it."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.node.node import Node
    from libhamiregion.observation.containers import Container
    from libhamiregion.region import Region

# A container that launches is written to every 5 s.
_REST_S = 60.0


class WritableRegions:
    """Keeps one region per container open for writing, until nothing was written for 60 s.

    Each act compares the file's device and inode with those of the container's region and of its
    path: a file that has been replaced is opened anew. After an act that fails nothing stays open.
    For the feedback only: a process that keeps regions of several pods mapped for writing is taken
    for a controller of launches (`find_monitors`).

    Threads: one at a time.

    Args:
        node: The node; stays the caller's.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        # By directory: a container that makes one file after the other has one open.
        self._open: dict[str | None, tuple[Region, float]] = {}

    @contextlib.contextmanager
    def open(self, container: Container) -> Iterator[Region]:
        """Give a container's region for one act; the caller does not close it.

        Raises:
            ValueError, RegionError, OSError: As `Node.open`.
        """
        key, wanted = container.directory or container.region_path, container.region
        region, _ = self._open.pop(key, (None, 0.0))
        same = region is not None and wanted is not None and region.file_id == wanted.file_id
        if region is None or not same or region.is_stale():
            region = self._node.open(container)
        yield region
        self._open[key] = region, time.monotonic()

    def close_rested(self, rest_s: float = _REST_S) -> None:
        """Close the regions to which nothing was written for so long, by dropping them."""
        until_s = time.monotonic() - rest_s
        self._open = {key: kept for key, kept in self._open.items() if kept[1] > until_s}
