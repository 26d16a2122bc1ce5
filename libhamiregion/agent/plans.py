"""Limits by plan as one task among others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion.plan.state import StateBusy

from .tasks import Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libhamiregion.plan.watch import PlanWatcher


class PlanKeeper(Task):
    """Keeps a node on a plan, beside other tasks.

    A plan that cannot be read is reported and tried again at each pass: it keeps no other task from
    running. Only a second keeper on one node is refused.

    Args:
        watcher: Does the work and reports it.
    """

    name = "plan"
    interval_s = 5.0

    def __init__(self, watcher: PlanWatcher) -> None:
        super().__init__()
        self._watcher = watcher

    @property
    def has_plan(self) -> bool:
        """Whether there has been a plan that could be read."""
        return self._watcher.plan is not None

    def start(self) -> None:
        """Make sure that no other process keeps this node on a plan.

        Raises:
            StateBusy: Another process does.
        """
        try:
            self._watcher.start()
        except StateBusy:
            raise
        except OSError:
            pass  # the first pass reports it, and each one tries again

    def run(self) -> None:
        """Do one pass.

        Raises:
            OSError: The plan's state cannot be used.
        """
        self._watcher.run()

    def stop(self) -> None:
        """Let others keep this node on a plan. Limits stay as they are."""
        self._watcher.stop()

    def counters(self) -> Mapping[str, int]:
        """What the watcher counts."""
        return self._watcher.counters()
