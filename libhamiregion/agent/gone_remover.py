"""Directories of pods that are gone are removed, as HAMi's monitor does it: with more proof."""

from __future__ import annotations

import os
import re
import threading
import time
from typing import TYPE_CHECKING

import attrs

from libhamiregion.node.backoff import Backoff
from libhamiregion.node.cgroups import is_pod_uid
from libhamiregion.node.containers import Container
from libhamiregion.node.events import Emit, Voice, container_place, silent
from libhamiregion.node.outside import mapped_regions

from .directory_removal import (
    RemovalRefused,
    Work,
    claim,
    claimed_in,
    claimed_uid,
    give_back,
    look_at,
    mount_points,
    opened_root,
    remove_claimed,
)
from .pod_presence import PodsUnknown, running_pods

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libhamiregion.node.node import Node

    from .directory_removal import DirectoryLook
    from .pod_presence import PodSource

#: What HAMi's monitor waits unless HAMI_RESYNC_INTERVAL says otherwise.
GONE_AFTER_S = 300.0

_LONGEST_INTERVAL_S = 30.0
_SHORTEST_INTERVAL_S = 0.05
# One look can fall into the instant in which a device plugin has made the directory and kubelet
# not yet its own.
_LOOKS = 2
# An unlink takes some 10 us: a pass is over in a second, whatever a container has left behind.
_ENTRIES_PER_PASS = 20_000
_ENTRIES_PER_DIRECTORY = 5_000
_DIRECTORIES_PER_PASS = 100

# What Kubernetes lets a container be called.
_CONTAINER = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?\Z")
_COUNTERS = ("runs", "directories", "entries", "bytes", "errors")


@attrs.define
class _Absence:
    """A directory whose pod has been found absent.

    Attributes:
        since_s: Since when, on the clock that is never set.
        looks: How often.
        told: Whether it has been said what would be removed.
        tried_at: The pass that has last tried to remove it.
    """

    since_s: float
    looks: int = 0
    told: bool = False
    tried_at: int = 0


@attrs.define
class _Claim:
    """A directory of which the removal has begun.

    Attributes:
        container: As it was.
        done: What has been removed up to now.
    """

    container: Container
    done: Work = attrs.field(factory=lambda: Work(0))


class GoneRemover:
    """Removes the directories of pods that are gone; a `Task`.

    Removed is a directory ``<podUID>_<container>`` of a root of which all of this holds:

    - No source has the pod, at two looks at least and for `gone_after_s`; and the source has shown
      that it is this node's: it knows a pod of which processes run here.
    - No process is in the pod's cgroup, and none maps a file of the directory as a region's users
      do. This needs a /proc that shows every process of the node.
    - Neither it nor what is directly inside has changed for `gone_after_s`, and nothing is mounted
      there.

    Where one of this cannot be told, nothing is removed. First the directory gets a name that
    nobody uses, ``.gone-<podUID>-…`` in the same root, so that a pod of the same UID (a static one
    that comes back) gets a directory of its own; then it is emptied, without following anything and
    some thousand entries per pass. Another agent, and HAMi's monitor, may do the same at the same
    time.

    Args:
        node: The node; of its roots, those that only root and this user can have made.
        source: Knows which pods there are.
        gone_after_s: For how long a pod has to be gone.
        interval_s: Seconds between two passes; None means half of `gone_after_s`, 30 s at most.
        dry_run: Remove nothing, and say what would be removed.
        entries_per_pass: How many entries a pass touches at most, a quarter of it in one directory.
        emit: Gets the events.

    Raises:
        ValueError: A time below 0.

    Threads: `counters` and `paused` may be read from any; the rest one at a time.
    """

    name = "removal"

    def __init__(
        self,
        node: Node,
        source: PodSource,
        *,
        gone_after_s: float = GONE_AFTER_S,
        interval_s: float | None = None,
        dry_run: bool = False,
        entries_per_pass: int = _ENTRIES_PER_PASS,
        emit: Emit = silent,
    ) -> None:
        if not gone_after_s >= 0:
            raise ValueError(f"a time is 0 or more, not {gone_after_s}")
        if interval_s is None:
            interval_s = min(max(gone_after_s / 2, _SHORTEST_INTERVAL_S), _LONGEST_INTERVAL_S)
        self.interval_s = interval_s
        self._node = node
        self._source = source
        self._gone_after_s = gone_after_s
        self._dry_run = dry_run
        self._entries_per_pass = entries_per_pass
        self._voice = Voice(self.name, emit)
        self._backoff = Backoff()
        self._counts = {f"removal_{what}": 0 for what in _COUNTERS}
        self._counting = threading.Lock()
        self._absent: dict[str, _Absence] = {}
        self._claims: dict[str, _Claim] = {}
        self._pass = 0
        self._why: str | None = None

    @property
    def paused(self) -> str | None:
        """Why nothing is removed now; None while what can be proved is removed."""
        return self._why

    def counters(self) -> Mapping[str, int]:
        """How often what has happened: directories, entries and bytes removed among them."""
        with self._counting:
            return {**self._counts, "removal_paused": int(self._why is not None)}

    def _count(self, what: str, by: int = 1) -> None:
        with self._counting:
            self._counts[f"removal_{what}"] += by

    def stop(self) -> None:
        """Nothing has to be taken back; what has begun is gone on with by the next agent."""

    # ---- one pass --------------------------------------------------------------------------------

    def run(self) -> None:
        """Look once, and remove what has been gone for long enough.

        Raises:
            OSError: /proc cannot be listed.
        """
        self._node.refresh()
        self._count("runs")
        candidates = self._candidates()
        self._forget_all_but(candidates)
        if not candidates:
            self._note(None)
            return
        try:
            alive = self._alive(candidates.values())
            due = [path for path in candidates if self._is_due(path, candidates[path], alive)]
            mounted = mount_points() if due else ()
        except PodsUnknown as unknown:
            self._note(str(unknown))
            return
        except OSError as error:
            self._note(f"what is mounted where cannot be told: {error}")
            return
        self._note(None)
        # Who has waited for longest comes first, those of which the removal has begun last.
        due.sort(key=lambda path: (self._absent[path].tried_at, path in self._claims))
        self._remove_all([(path, candidates[path]) for path in due], mounted)

    def _candidates(self) -> dict[str, Container]:
        """Directories that could be removed, by path: the claimed ones come last."""
        roots = frozenset(self._node.scanned_roots)
        found = {
            each.directory: each
            for each in self._node.containers
            if each.directory is not None
            and os.path.dirname(each.directory) in roots  # noqa: PTH120
            and each.pod_uid is not None
            and is_pod_uid(each.pod_uid)
            # With a second underscore it would be a directory of kubelet's logs.
            and _CONTAINER.match(each.name or "")
        }
        for root in sorted(roots):
            try:
                with opened_root(root) as descriptor:
                    claimed = claimed_in(descriptor)
            except (OSError, RemovalRefused):
                continue  # said where something is to be removed from it
            for name, uid in claimed:
                path = f"{root}/{name}"
                known = self._claims.get(path)
                found[path] = Container(uid, "(begun)", path) if known is None else known.container
        return found

    def _forget_all_but(self, candidates: Mapping[str, Container]) -> None:
        self._absent = {path: each for path, each in self._absent.items() if path in candidates}
        self._claims = {path: each for path, each in self._claims.items() if path in candidates}
        self._backoff.keep(frozenset(candidates))
        self._voice.keep(frozenset(map(container_place, candidates.values())))

    def _alive(self, candidates: Iterable[Container]) -> frozenset[str]:
        """The pods among these that are there.

        Raises:
            PodsUnknown: It cannot be told.
        """
        processes = self._node.processes
        if not processes.is_complete:
            raise PodsUnknown(
                "not every process shows what it maps; that takes root and CAP_SYS_PTRACE"
                if processes.visibility.sees_all_pids
                else "not every process of the node can be seen; that takes the host's /proc"
            )
        running = running_pods(processes)
        asked = frozenset(each.pod_uid for each in candidates if each.pod_uid is not None)
        return self._source.present(asked, running) | (running & asked)

    def _note(self, why: str | None) -> None:
        """Say when it begins, and when it ends, that nothing can be told."""
        if why is not None and why != self._why:
            self._voice.say("paused", f"nothing is removed: {why}")
        elif why is None and self._why is not None:
            self._voice.say("resumed", "it can be told again which pods are gone")
        self._why = why

    def _is_due(self, path: str, container: Container, alive: frozenset[str]) -> bool:
        """Note whether the pod is there; whether it has been gone for long enough."""
        if container.pod_uid in alive:
            self._absent.pop(path, None)
            return False
        now_s = time.monotonic()
        absence = self._absent.setdefault(path, _Absence(now_s))
        absence.looks += 1
        if self._dry_run and absence.looks == 1:
            self._voice.say(
                "gone",
                f"its pod is gone; would be removed after {self._gone_after_s:g} s of that",
                container,
            )
        if path in self._claims:
            return True
        return absence.looks >= _LOOKS and now_s - absence.since_s >= self._gone_after_s

    # ---- removing --------------------------------------------------------------------------------

    def _remove_all(self, due: list[tuple[str, Container]], mounted: tuple[str, ...]) -> None:
        self._pass += 1
        left, tries = self._entries_per_pass, _DIRECTORIES_PER_PASS
        for path, container in due:
            if left <= 0 or tries <= 0:
                break
            if self._backoff.waits(path):
                continue
            tries -= 1
            self._absent[path].tried_at = self._pass
            work = Work(min(left, max(1, self._entries_per_pass // 4)))
            given = work.left
            try:
                self._remove(path, container, mounted, work)
            except FileNotFoundError:
                pass  # somebody else has removed it
            except (OSError, RemovalRefused, PodsUnknown) as error:
                self._count("errors")
                self._backoff.failed(path)
                self._voice.failed("not removed", error, container)
            else:
                self._backoff.well(path)
                self._voice.well(container)
            left -= given - work.left

    def _remove(
        self,
        path: str,
        container: Container,
        mounted: tuple[str, ...],
        work: Work,
    ) -> None:
        parent, name = os.path.split(path)
        with opened_root(parent) as root:
            look = look_at(root, name)
            if any(each == path or each.startswith(f"{path}/") for each in mounted):
                raise RemovalRefused("something is mounted in it")
            if self._is_in_use(look) or not self._is_old(path, look):
                return
            if self._dry_run:
                self._tell(path, container, look)
                return
            if claimed_uid(name) is None:
                name = self._claim(root, name, container, look)
                path = f"{parent}/{name}"
            record = self._claims.setdefault(path, _Claim(container))
            try:
                gone = remove_claimed(root, name, work)
            finally:
                record.done.entries += work.entries
                record.done.size_bytes += work.size_bytes
                self._count("entries", work.entries)
                self._count("bytes", work.size_bytes)
            if gone:
                del self._claims[path]
                self._absent.pop(path, None)
                self._say_removed(record)

    def _is_old(self, path: str, look: DirectoryLook) -> bool:
        # What has been begun has changed because of that.
        if path in self._claims:
            return True
        return time.time_ns() - look.changed_ns >= self._gone_after_s * 1e9

    def _is_in_use(self, look: DirectoryLook) -> bool:
        """Whether a process maps a file of it as a region's users do.

        By the inode alone: what a device is called differs between maps and stat. A file of that
        number elsewhere only puts the removal off.
        """
        used = {each.inode for each in mapped_regions(self._node.processes)}
        return not look.inodes.isdisjoint(used)

    def _claim(self, root: int, name: str, container: Container, look: DirectoryLook) -> str:
        """Take the directory out of everybody's way, and prove once more that nobody misses it.

        Who has not reached it by now does not find it any more, and who has is seen.

        Raises:
            RemovalRefused: Its pod is there again, or it is in use; it has its name again.
            PodsUnknown: It cannot be told; the same.
            OSError: It cannot be renamed, or /proc cannot be listed.
        """
        uid = container.pod_uid
        assert uid is not None  # noqa: S101 (only such are candidates)
        if self._alive([container]):
            raise RemovalRefused("its pod is there again")
        claimed = claim(root, name, uid, look)
        try:
            self._node.processes.refresh()
            if self._alive([container]) or self._is_in_use(look):
                raise RemovalRefused("its pod is there again")
        except BaseException:
            give_back(root, claimed, name)
            raise
        return claimed

    def _tell(self, path: str, container: Container, look: DirectoryLook) -> None:
        absence = self._absent[path]
        if not absence.told:
            absence.told = True
            self._voice.say(
                "would_remove",
                f"would be removed: its pod is gone; some {look.size_bytes:,} bytes",
                container,
                bytes=look.size_bytes,
            )

    def _say_removed(self, record: _Claim) -> None:
        self._count("directories")
        done = record.done
        self._voice.say(
            "removed",
            f"its pod is gone; {done.entries:,} entries, {done.size_bytes:,} bytes",
            record.container,
            bytes=done.size_bytes,
            entries=done.entries,
        )
