"""Directories that a deleted pod has left behind.

HAMi's monitor deletes such a directory once its pod is gone from the API and its time is some
minutes back. This library deletes nothing; it stops telling of them.
"""

from __future__ import annotations

import os
import time
from itertools import islice
from typing import TYPE_CHECKING

from libhamiregion.node import ChainedNames

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libhamiregion.node import Container, ContainerView, Node

# A resolver may have to ask a server; those that are alive need no answer.
_ASK_AGAIN_S = 60.0
_OTHERS_ASKED = 8


class GoneContainers:
    """Tells which containers are left-overs. Not thread-safe.

    All of this must hold: no process maps the region for writing, and /proc shows all of them; the
    directory's time is `after_s` back; no resolver knows the pod any more, and at the same time one
    knows another pod, so that silence means something. An idle container of a pod that is there has
    its name, and stays.

    Args:
        node: The node.
        after_s: How old the directory must be; None means that none is ever taken for gone.
    """

    def __init__(self, node: Node, after_s: float | None) -> None:
        self._node = node
        self._after_s = after_s
        #: When a candidate was last asked for, and whether it is gone.
        self._asked: dict[Container, tuple[float, bool]] = {}

    def among(self, views: Iterable[ContainerView], named: frozenset[Container]) -> set[Container]:
        """Those of these containers that are gone.

        Args:
            views: What `Node.view` gave.
            named: Containers that a resolver has named, at any time.
        """
        asked, self._asked = self._asked, {}
        if self._after_s is None or not self._node.processes.is_complete:
            return set()
        unused = [view.container for view in views if self._is_unused(view)]
        gone = set()
        now = time.monotonic()
        for container in unused:
            asked_s, is_gone = asked.get(container, (-_ASK_AGAIN_S, False))
            if now - asked_s >= _ASK_AGAIN_S:
                known = _is_known_now(self._node, container)
                asked_s, is_gone = now, not known and self._can_tell(named - {container})
            self._asked[container] = (asked_s, is_gone)
            if is_gone:
                gone.add(container)
        return gone

    def _can_tell(self, named: frozenset[Container]) -> bool:
        """Whether the resolvers know any other pod at this moment: they may not be reached."""
        return any(_is_known_now(self._node, each) for each in islice(named, _OTHERS_ASKED))

    def _is_unused(self, view: ContainerView) -> bool:
        container, processes = view.container, view.processes
        if container.directory is None or container.pod_uid is None or self._after_s is None:
            return False
        if processes is not None and (
            processes.unlisted or any(slot.state != "dead" for slot in processes.slots)
        ):
            return False
        try:
            changed_s = os.lstat(container.directory).st_mtime
        except OSError:
            return False
        return time.time() - changed_s > self._after_s


def _is_known_now(node: Node, container: Container) -> bool:
    """Whether a resolver knows the pod; what is kept of earlier answers does not count."""
    names = node.names
    resolvers = names.resolvers if isinstance(names, ChainedNames) else (names,)
    return any(each.resolve(container.pod_uid, container.name) is not None for each in resolvers)
