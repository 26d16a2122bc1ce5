"""Reports which directories of containers cannot be listed: a blind agent would look idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion.node.events import error_text, silent

from .tasks import Task

if TYPE_CHECKING:
    from libhamiregion.node.events import Emit
    from libhamiregion.node.node import Node


class RootWatch(Task):
    """Looks whether the node's directories can be listed, and reports when that changes.

    Events (task ``roots``): ``unreadable`` and ``readable``, with the directory.

    Args:
        node: The node.
        emit: Gets the events.
    """

    name = "roots"

    def __init__(self, node: Node, *, emit: Emit = silent) -> None:
        super().__init__(emit)
        self._node = node
        self._failing: dict[str, str] = {}

    def run(self) -> None:
        """Look once.

        Raises:
            RegionClosed: The node has been closed.
        """
        self._node.refresh(processes=False)
        failing = {root: error_text(error) for root, error in self._node.root_errors.items()}
        for root, why in failing.items():
            if self._failing.get(root) != why:
                self.events.emit("unreadable", f"{why}; its containers are not seen", distinct=root)
        for root in self._failing.keys() - failing.keys():
            self.events.emit("readable", f"{root}: can be listed again", distinct=root)
        self._failing = failing
