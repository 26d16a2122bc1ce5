"""Which containers there are, what they are called, and which of them are left-overs."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from libhamiregion.exporter import families
from libhamiregion.exporter.identity import identity_of
from libhamiregion.exporter.labels import OTHER, label_text, safe_value
from libhamiregion.exporter.text import Series

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from libhamiregion.exporter.identity import Identity
    from libhamiregion.exporter.labels import CardinalityLimiter
    from libhamiregion.exporter.state import CollectedState
    from libhamiregion.node import Container, Gap, Observer

# A name that is not known yet is asked for again, and a claim's holders; others do not change.
_ASK_UNNAMED_S = 30.0
_ASK_GONE_S = 60.0
# Gaps with a series of their own; the rest is summed up by kind.
_GAPS_SHOWN = 256


class ContainersCollector:
    """Finds containers that came or went, and names them.

    Args:
        observer: Observes the node.
        limiter: Bounds what containers may write into labels.
        gone_after_s: How old a directory must be to be taken for a left-over; None means never.
        max_age_s: How old an observation may be; 0 takes one at each turn, for those that follow.
        slots: Whether those look at slots.
    """

    name = "containers"

    def __init__(
        self,
        observer: Observer,
        limiter: CardinalityLimiter,
        gone_after_s: float | None,
        *,
        max_age_s: float = 0.0,
        slots: bool = True,
    ) -> None:
        self._observer = observer
        self._node = observer.node
        self._limiter = limiter
        self._max_age_s = max_age_s
        self._slots = slots
        self._gone = GoneContainers(observer, gone_after_s)
        self._named_s = -_ASK_UNNAMED_S
        self._named: tuple[Container, ...] | None = None

    def ask_again(self) -> None:
        """Have the next look ask for all names, and for all left-overs."""
        self._named_s = -_ASK_UNNAMED_S
        self._gone.ask_again()

    def collect(self, state: CollectedState) -> CollectedState:
        """Look for containers, and name those that are new."""
        observation = self._observer.observe(max_age_s=self._max_age_s, slots=self._slots)
        identities = self._identities(state.identities)
        try:
            gone = self._gone.among(identities)
        except Exception:
            # The names found are lost with this look, so that the next one has to ask again.
            self._named = None
            raise
        if gone != state.gone:
            state = attrs.evolve(state, gone=gone)
        if identities is not state.identities:
            state = attrs.evolve(state, identities=identities)
            self._limiter.keep_containers(each.labels for each in identities.values())
        return state.with_series(self.name, [_gaps(observation.gaps, identities)])

    def _identities(self, before: Mapping[Container, Identity]) -> Mapping[Container, Identity]:
        now_s = time.monotonic()
        asks_unnamed = now_s - self._named_s >= _ASK_UNNAMED_S
        containers = self._node.containers
        if containers is self._named and not asks_unnamed:
            return before
        found = {}
        for container in containers:
            known = before.get(container)
            # The containers that hold a claim change; the name of a container does not.
            is_named = known is not None and known.is_named
            is_open = not is_named or container.claim_uid is not None
            if known is None or (asks_unnamed and is_open):
                now = identity_of(self._node, container, self._limiter)
                known = now if known != now else known
            found[container] = known
        # Only now: where a resolver fails, the next look asks again.
        self._named = containers
        if asks_unnamed:
            self._named_s = now_s
        is_same = found.keys() == before.keys() and all(
            identity is before[container] for container, identity in found.items()
        )
        return before if is_same else found


def _gaps(gaps: Sequence[Gap], identities: Mapping[Container, Identity]) -> Series:
    """How much could not be looked at, by container where it is known."""
    counts: defaultdict[bytes, int] = defaultdict(int)
    for number, gap in enumerate(gaps):
        identity = None if gap.container is None else identities.get(gap.container)
        names = ("",) * len(families.CONTAINER) if identity is None else identity.labels
        container_id = "" if gap.container_id is None else safe_value(gap.container_id.id)
        if number >= _GAPS_SHOWN:
            names, container_id = ("", "", OTHER, ""), ""
        counts[label_text(families.GAPS.labels, *names, container_id, gap.kind)] += gap.count
    return Series.of(families.GAPS, counts)


class GoneContainers:
    """Tells which containers a deleted pod has left behind.

    HAMi's monitor deletes such a directory once its pod is gone from the API and its time is some
    minutes back. This library deletes nothing; it stops telling of them. All of this must hold: the
    directory's time is `after_s` back; kubelet has no log directory of the pod, but one of another
    pod; no process maps the region for writing, and /proc shows all of them.

    Threads: one at a time.

    Args:
        observer: Observes the node.
        after_s: How old the directory must be; None means that none is ever taken for gone.
    """

    def __init__(self, observer: Observer, after_s: float | None) -> None:
        self._observer = observer
        self._node = observer.node
        self._after_s = after_s
        self._asked_s = -_ASK_GONE_S
        self._last: frozenset[Container] = frozenset()

    def ask_again(self) -> None:
        """Have the next call ask."""
        self._asked_s = -_ASK_GONE_S

    def among(self, identities: Mapping[Container, Identity]) -> frozenset[Container]:
        """Find the containers that are gone; resolvers are asked once a minute."""
        now_s = time.monotonic()
        if self._after_s is None:
            return frozenset()
        if now_s - self._asked_s < _ASK_GONE_S:
            return self._last & identities.keys()
        self._asked_s = now_s
        gone = [each for each in identities if self._is_old(each) and not self._is_known(each)]
        self._last = frozenset(self._unused(gone))
        return self._last

    def _is_old(self, container: Container) -> bool:
        if container.directory is None or container.pod_uid is None or self._after_s is None:
            return False
        try:
            changed_s = os.lstat(container.directory).st_mtime
        except OSError:
            return False
        return time.time() - changed_s > self._after_s

    def _is_known(self, container: Container) -> bool:
        """Whether kubelet has the pod's directory, or its directories cannot be listed."""
        uid = container.pod_uid
        return uid is None or self._node.names.has_pod(uid) is not False

    def _unused(self, containers: Iterable[Container]) -> list[Container]:
        """Find the containers that no process uses, proved by a complete /proc."""
        candidates = list(containers)
        if not candidates:
            return []
        observation = self._observer.observe()
        snapshot, states = observation.snapshot, observation.proved()
        processes = self._node.processes
        if not processes.is_complete:
            return []
        used = {each for each in candidates if processes.hides_users_of(each.pod_uid)}
        regions = snapshot.table.regions
        for row, container in enumerate(snapshot.containers):
            first = regions.first_process[row]
            slots = states.states[first : first + regions.process_count[row]]
            if slots.strip(b"\2") or states.unlisted.get(row):
                used.add(container)
        return [each for each in candidates if each not in used]
