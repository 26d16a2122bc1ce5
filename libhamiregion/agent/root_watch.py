"""Says which directories of containers cannot be listed: an agent that sees nothing looks idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion.node.events import Emit, Voice, silent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libhamiregion.node.node import Node

ROOTS_INTERVAL_S = 10.0


class RootWatch:
    """Looks whether the node's directories can be listed, and says it when that changes; a `Task`.

    Events (task ``roots``): ``unreadable`` and ``readable``, with the directory.

    Args:
        node: The node.
        interval_s: Seconds between two looks.
        emit: Gets the events.

    Threads: one at a time.
    """

    name = "roots"

    def __init__(
        self, node: Node, *, interval_s: float = ROOTS_INTERVAL_S, emit: Emit = silent
    ) -> None:
        self.interval_s = interval_s
        self._node = node
        self._voice = Voice(self.name, emit)
        self._failing: dict[str, str] = {}

    def counters(self) -> Mapping[str, int]:
        """Nothing is counted."""
        return {}

    def run(self) -> None:
        """Look once.

        Raises:
            RegionClosed: The node has been closed.
        """
        self._node.refresh(processes=False)
        failing = {
            root: error.strerror or str(error) for root, error in self._node.root_errors.items()
        }
        for root, why in failing.items():
            if self._failing.get(root) != why:
                self._voice.say("unreadable", f"{root}: {why}; its containers are not seen")
        for root in self._failing.keys() - failing.keys():
            self._voice.say("readable", f"{root}: can be listed again")
        self._failing = failing

    def stop(self) -> None:
        """Nothing has to be taken back."""
