"""Limits by plan as one task among others."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from libhamiregion.plan import PlanLocked

from .tasks import Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libhamiregion.plan import PlanReconciler


class PlanKeeper(Task):
    """Keeps a node on a plan, beside other tasks.

    A plan that cannot be read is reported and tried again at each pass: it keeps no other task from
    running. Only a second keeper on one node is refused, or waits until the first one has gone.

    Args:
        watcher: Does the work and reports it.
        waits: Where another process keeps this node on a plan at the start, try again at each pass
            instead of raising `PlanLocked`.
    """

    name = "plan"
    interval_s = 5.0

    def __init__(self, watcher: PlanReconciler, *, waits: bool = False) -> None:
        super().__init__()
        self._waits = waits
        self._watcher = watcher
        watcher.when_changed(self.wake)

    def start(self) -> None:
        """Make sure that no other process keeps this node on a plan.

        Raises:
            PlanLocked: Another process does, and this one does not wait.
        """
        # What else keeps it from starting is reported by each pass, and tried again.
        with contextlib.suppress(OSError, *((PlanLocked,) if self._waits else ())):
            self._watcher.start()

    def run(self) -> None:
        """Do one pass.

        Raises:
            RuntimeError: There has been no plan yet that can be used; an event says why.
            PlanLocked: Another process keeps this node on a plan.
            OSError: The state directory or a root cannot be used.
        """
        self._watcher.run()

    def stop(self) -> None:
        """Let others keep this node on a plan. Limits stay as they are."""
        self._watcher.stop()

    def counters(self) -> Mapping[str, int]:
        """What the watcher counts."""
        return self._watcher.counters()
