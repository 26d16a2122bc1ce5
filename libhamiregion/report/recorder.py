"""Records what a node's containers hold and use: looks at its regions, one file."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .node_reader import NodeReader
from .recording import RecordingUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from libhamiregion.node.node import Node
    from libhamiregion.node.nvml import NvmlSampler

    from .recording import Written
    from .writer import RecordingWriter

_DRIVER_PATIENCE_S = 5.0


class Recorder:
    """Looks at a node every so many seconds and writes down what it sees.

        with Node() as node, RecordingWriter("node.db") as writer:
            Recorder(node, writer).run(stop.wait)

    Threads: one at a time.

    Args:
        node: What to look at; refreshed with every look.
        writer: Where to; not closed.
        sampler: Asks the driver as well; None records no figures of the driver. One that does not
            answer costs a look a part of its interval, and its figures.
    """

    def __init__(
        self, node: Node, writer: RecordingWriter, *, sampler: NvmlSampler | None = None
    ) -> None:
        patience_s = min(_DRIVER_PATIENCE_S, writer.interval_s / 4)
        self._reader = NodeReader(node, sampler=sampler, patience_s=patience_s)
        self._writer = writer

    def look(self) -> Written:
        """Look at the node and write it down.

        Raises:
            RecordingUnavailable: It could not be written; the next look tries again.
            RecordingError: The file cannot be written to as it is.
            OSError: /proc cannot be listed.
        """
        readings = self._reader.readings()
        return self._writer.write(
            readings,
            at_ms=time.time_ns() // 1_000_000,
            # It goes on while the machine sleeps, and nobody can set it.
            running_ms=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000,
        )

    def run(
        self,
        wait: Callable[[float], object],
        *,
        looked: Callable[[Written], None] = lambda _: None,
        failed: Callable[[RecordingUnavailable | OSError], None] = lambda _: None,
    ) -> None:
        """Look once in each of the writer's intervals until told to stop.

        A look that took longer than the interval makes the next one late; none is caught up on.

        What can pass (a full disk, no descriptors left) is told and tried again at the next look;
        what could not be recorded meanwhile is a gap.

        Args:
            wait: Called with the seconds until the next look; what it returns is true if there is
                to be none. ``threading.Event().wait`` is one.
            looked: Called after each look.
            failed: Called for each look that could not be taken or written.

        Raises:
            RecordingError: The file cannot be written to, and trying again is of no use.
        """
        due = time.monotonic()
        while True:
            try:
                written = self.look()
            except (RecordingUnavailable, OSError) as error:
                failed(error)
            else:
                looked(written)
            due = max(due + self._writer.interval_s, time.monotonic())
            if wait(max(0.0, due - time.monotonic())):
                return
