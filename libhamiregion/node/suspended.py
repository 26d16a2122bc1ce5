"""Processes of a node that are suspended: which of them go on all the same."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

import attrs

from libhamiregion.errors import RegionError
from libhamiregion.models import ProcessStatus
from libhamiregion.suspension import (
    LOOK_EVERY_S,
    WATCH_S,
    SuspensionWatch,
    is_suspended,
    may_go_on,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libhamiregion.models import RegionSnapshot
    from libhamiregion.region import Region
    from libhamiregion.suspension import SuspendedActivity

    from .matching import HostProcess
    from .views import ContainerView

#: A process of a region: its pid inside, its pid here and when it started.
SuspendedKey: TypeAlias = "tuple[int, int, int]"

# Who looks often waits once in so many seconds: what was seen then stands until then.
_WATCH_EACH_S = 60.0
_TOLD_FOR_S = 2 * _WATCH_EACH_S
# A container can suspend a thousand processes of its own, and there are many containers.
_PER_REGION = 16
_KEPT = 1024


@attrs.define(eq=False)
class _Suspended:
    """One suspended process, and what was seen of it."""

    region: Region
    pid: int
    watch: SuspensionWatch
    may_go_on: bool = False
    seen: SuspendedActivity | None = None
    seen_s: float = float("-inf")

    def look(self, snapshot: RegionSnapshot) -> None:
        seen = self.watch.look(snapshot)
        if seen is not None:
            self.seen, self.seen_s = seen, time.monotonic()

    @property
    def activity(self) -> SuspendedActivity | None:
        return self.seen if time.monotonic() - self.seen_s < _TOLD_FOR_S else None


class SuspendedProcesses:
    """What a node's suspended processes do, over several looks.

    Of a region 16 processes are looked at, and no more than 1,024 in all.

    Threads: one at a time.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Region, SuspendedKey], _Suspended] = {}
        self._watched_s = float("-inf")

    def look(
        self,
        region: Region,
        snapshot: RegionSnapshot,
        processes: Iterable[tuple[int, HostProcess]],
    ) -> dict[SuspendedKey, SuspendedActivity | None]:
        """Look at a region's suspended processes once more.

        Args:
            region: The region.
            snapshot: What stands in it now.
            processes: Pids in its slots, and the live processes that they are.

        Returns:
            Each that is suspended, with what it has been seen doing within two minutes.
        """
        suspended = {
            each.pid for each in snapshot.processes if each.status == ProcessStatus.SUSPENDED
        }
        chosen = [
            (pid, process.pid, process.start_time_ticks)
            for pid, process in processes
            if pid in suspended
        ][:_PER_REGION]
        before = self._known
        self._known = known = {
            key: each
            for key, each in before.items()
            if not each.region.closed and (key[0] is not region or key[1] in chosen)
        }
        found: dict[SuspendedKey, SuspendedActivity | None] = {}
        for process in chosen:
            each = known.setdefault(
                (region, process), _Suspended(region, process[0], SuspensionWatch(process[0]))
            )
            each.may_go_on = may_go_on(snapshot)
            each.look(snapshot)
            found[process] = each.activity
        while len(known) > _KEPT:
            del known[next(iter(known))]
        return found

    def look_at(self, views: Iterable[ContainerView]) -> None:
        """Look at the suspended processes of all containers of some views once more."""
        for view in views:
            region, snapshot, processes = view.container.region, view.snapshot, view.processes
            if region is not None and snapshot is not None and processes is not None:
                self.look(region, snapshot, processes.alive.items())

    @property
    def going_on(self) -> dict[int, SuspendedActivity]:
        """Host pid to what it does, of those that were seen going on within two minutes."""
        return {key[1][1]: each.activity for key, each in self._known.items() if each.activity}

    def watch(self) -> bool:
        """Watch for 3 s those that may ignore that they are suspended, and were not seen doing it.

        Once in a minute, and only where there are such.

        Returns:
            Whether some were watched.
        """
        now_s = time.monotonic()
        rest = [each for each in self._known.values() if each.may_go_on and not each.activity]
        if not rest or now_s - self._watched_s < _WATCH_EACH_S:
            return False
        self._watched_s = now_s
        while rest and time.monotonic() - now_s < WATCH_S:
            time.sleep(LOOK_EVERY_S)
            rest = _look_again(rest)
        return True


def _look_again(suspended: Iterable[_Suspended]) -> list[_Suspended]:
    """Look once more; those of which nothing was seen yet."""
    of_region: defaultdict[Region, list[_Suspended]] = defaultdict(list)
    for each in suspended:
        of_region[each.region].append(each)
    rest = []
    for region, known in of_region.items():
        # One that has gone or is broken is not watched on.
        with contextlib.suppress(RegionError, OSError):
            snapshot = region.snapshot()
            for each in known:
                if is_suspended(snapshot, each.pid):
                    each.look(snapshot)
                    if each.activity is None:
                        rest.append(each)
    return rest
