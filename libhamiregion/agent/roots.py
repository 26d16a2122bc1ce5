"""Reports which directories of containers cannot be listed: a blind agent would look idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion.node.events import silent
from libhamiregion.node.observation import Observer
from libhamiregion.text import error_text

from .tasks import Task

if TYPE_CHECKING:
    from libhamiregion.node.events import Emit
    from libhamiregion.node.node import Node


class RootWatch(Task):
    """Looks whether the node's directories can be listed, and reports when that changes.

    Events (task ``roots``): ``unreadable`` and ``readable``, with the directory.

    Args:
        node: The node.
        observer: Observes it for other tasks as well; None makes one.
        emit: Gets the events.
    """

    name = "roots"

    def __init__(
        self, node: Node, *, observer: Observer | None = None, emit: Emit = silent
    ) -> None:
        super().__init__(emit)
        self._node = node
        self._observer = observer or Observer(node)
        self._max_age_s = 0.0 if observer is None else self.interval_s / 2
        self._failing: dict[str, str] = {}

    def run(self) -> None:
        """Report which roots can be listed now.

        Raises:
            RegionClosed: The node has been closed.
        """
        self._observer.observe(max_age_s=self._max_age_s, slots=False)
        failing = {root: error_text(error) for root, error in self._node.root_errors.items()}
        for root, why in failing.items():
            if self._failing.get(root) != why:
                self.events.emit("unreadable", f"{why}; its containers are not seen", distinct=root)
        for root in self._failing.keys() - failing.keys():
            self.events.emit("readable", f"{root}: can be listed again", distinct=root)
        self._failing = failing
