"""Containers that a deleted pod has left behind."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from libhamiregion.node import NodeBusy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.node import Container, Observation

    from .scrape import Observes

_CHECK_S = 20.0


class GoneContainers:
    """Finds the containers of pods that are gone.

    HAMi's monitor deletes such a directory once its pod is gone from the API and its time is some
    minutes back. The exporter deletes nothing and leaves them out. All of this must hold: the
    directory's time is `after_s` back; kubelet has no log directory of the pod, but one of another
    pod; no process maps the region for writing, and /proc shows all of them.

    Threads: one at a time.

    Args:
        observer: Observes the node, if an observation has no slots.
        after_s: How old the directory must be; None means that none is ever gone.
    """

    def __init__(self, observer: Observes, after_s: float | None) -> None:
        self._observer = observer
        self._after_s = after_s
        self._checked_s = -_CHECK_S
        self._gone: frozenset[Container] = frozenset()

    def among(self, observation: Observation) -> frozenset[Container]:
        """Find those of an observation; checks again every 20 s."""
        now_s = time.monotonic()
        present = frozenset(observation.all_containers)
        if self._after_s is not None and now_s - self._checked_s >= _CHECK_S:
            self._checked_s = now_s
            before_s = observation.regions_read_at_s - self._after_s
            left = {each.container for each in observation.left if each.changed_at_s < before_s}
            self._gone = frozenset(left and left.difference(self._used(observation, left)))
        return self._gone & present

    def _used(self, observation: Observation, left: set[Container]) -> Iterator[Container]:
        """Those that a process may use."""
        if observation.states is None:
            try:
                observation = self._observer.observe()
            except NodeBusy:
                yield from left
                return
        states, processes = observation.states, observation.processes
        if states is None or not processes.is_complete:
            yield from left
            return
        yield from (each for each in left if processes.hides_users_of(each.pod_uid))
        regions = observation.table.regions
        for row, container in enumerate(observation.containers):
            first = regions.first_process[row]
            slots = states.states[first : first + regions.process_count[row]]
            if slots.strip(b"\2") or states.unlisted.get(row):
                yield container
