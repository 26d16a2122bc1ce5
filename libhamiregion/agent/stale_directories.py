"""Directories of pods that are gone are removed, as HAMi's monitor does it: with more proof."""

from __future__ import annotations

import os
import re
import time
from itertools import islice
from typing import TYPE_CHECKING

from libhamiregion.node.cgroups import is_pod_uid
from libhamiregion.node.containers import Container
from libhamiregion.node.events import silent
from libhamiregion.node.observation import SHARED_AGE_S, Observer
from libhamiregion.node.outside import mapped_regions
from libhamiregion.text import error_text

from .quarantine import (
    Budget,
    NotRemoved,
    give_back,
    look_at,
    opened_root,
    quarantine,
    quarantined_container,
    quarantined_in,
    remove_quarantined,
)
from .tasks import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libhamiregion.errors import PathLike
    from libhamiregion.node.events import Emit
    from libhamiregion.node.node import Node

    from .quarantine import DirectoryLook

#: What HAMi's monitor waits unless HAMI_RESYNC_INTERVAL says otherwise.
GONE_AFTER_S = 300.0

_LONGEST_INTERVAL_S = 30.0
# An unlink takes some 10 us: a pass is over in a second, whatever a container has left behind, and
# one directory takes a quarter of it at most.
_ENTRIES_PER_PASS = 20_000
_DIRECTORIES_PER_PASS = 100
_PODS_LIMIT = 100_000
# What Kubernetes lets a container be called.
_CONTAINER = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?\Z")


class _PodsUnknown(Exception):
    """Which pods there are cannot be told now; the message says why."""


class StaleDirectoryCollector(Task):
    """Removes the directories of pods that are gone.

    Removed is a directory ``<podUID>_<container>`` of a root of which all of this holds:

    - Kubelet has no directory for the pod, neither for its logs nor for its volumes, for
      `gone_after_s`; and kubelet's directories have shown that they are this node's: they know a
      pod of which processes run here.
    - No process is in the pod's cgroup, and none maps a file of the directory as a region's users
      do. This needs a /proc that shows every process of the node.
    - Neither it nor what is directly inside has changed for `gone_after_s`.

    Where one of this cannot be told, nothing is removed. First the directory gets a name that
    nobody uses, ``.gone-<podUID>-<number>-<container>`` in the same root, so that a pod of the same
    UID (a static one that comes back) gets a directory of its own; then the proof is taken once
    more, and the directory is emptied, without following anything and 20,000 entries per pass. What
    a killed agent has begun, the next one ends. Another agent, and HAMi's monitor, may do the same
    at the same time.

    Events (task ``removal``): ``removed`` or ``would_remove``, ``failed``, ``paused`` and
    ``resumed``.

    Args:
        node: The node; of its roots, those that only root and this user can have made.
        pod_logs: Kubelet's directory of logs, with the directories ``<namespace>_<pod>_<uid>``.
        kubelet_pods: Kubelet's directory of volumes, with the directories ``<uid>``. In a pod that
            shares the host's processes, ``/proc/1/root/var/lib/kubelet/pods`` needs no mount.
        gone_after_s: For how long a pod has to be gone.
        dry_run: Remove nothing, and report which pods are gone.
        observer: Observes the node for other tasks as well; None makes one.
        emit: Gets the events.

    Raises:
        ValueError: A time that is not above 0.
    """

    name = "removal"
    counted = ("runs", "directories", "entries", "errors")
    #: How many entries a pass touches at most.
    entries_per_pass = _ENTRIES_PER_PASS

    def __init__(
        self,
        node: Node,
        *,
        pod_logs: PathLike = "/var/log/pods",
        kubelet_pods: PathLike = "/var/lib/kubelet/pods",
        gone_after_s: float = GONE_AFTER_S,
        dry_run: bool = False,
        observer: Observer | None = None,
        emit: Emit = silent,
    ) -> None:
        if not gone_after_s > 0:
            raise ValueError(f"a time to wait is longer than 0 s, not {gone_after_s}")
        super().__init__(emit)
        self.interval_s = min(gone_after_s / 2, _LONGEST_INTERVAL_S)
        self._node = node
        self._observer = observer or Observer(node)
        self._max_age_s = 0.0 if observer is None else min(SHARED_AGE_S, self.interval_s / 2)
        self._processes_max_age_s = 0.0 if observer is None else self.interval_s
        self._sources = (os.fspath(pod_logs), os.fspath(kubelet_pods))
        self._gone_after_s = gone_after_s
        self._dry_run = dry_run
        # Since when the pod of a directory is absent, on the clock that is never set.
        self._absent_since_s: dict[str, float] = {}
        self._why: str | None = None

    @property
    def paused(self) -> str | None:
        """Why nothing is removed now; None while what can be proved is removed."""
        return self._why

    def counters(self) -> Mapping[str, int]:
        """How often what has happened, and ``removal_paused``."""
        return {**super().counters(), "removal_paused": int(self._why is not None)}

    # ---- one pass --------------------------------------------------------------------------------

    def run(self) -> None:
        """Look once, and remove what has been gone for long enough.

        Raises:
            OSError: /proc cannot be listed.
        """
        observation = self._observer.observe(
            max_age_s=self._max_age_s, slots=False, processes_max_age_s=self._processes_max_age_s
        )
        if observation.processes_error is not None:
            raise observation.processes_error
        self.count("runs")
        candidates = self._candidates()
        for path in self._absent_since_s.keys() - candidates.keys():
            del self._absent_since_s[path]
        self.backoff.retain(candidates)
        self.events.retain(candidates.values())
        try:
            alive = self._alive(candidates.values())
        except _PodsUnknown as unknown:
            self._note(str(unknown))
            return
        self._note(None)
        due = [(path, each) for path, each in candidates.items() if self._is_due(path, each, alive)]
        # Huge ones, of which the removal has begun, come last.
        self._remove_all(sorted(due, key=lambda each: _is_quarantined(each[0])))

    def _candidates(self) -> dict[str, Container]:
        """Directories that could be removed, by path."""
        roots = frozenset(self._node.scanned_roots)
        found = {
            each.directory: each
            for each in self._node.containers
            if each.directory is not None
            and os.path.dirname(each.directory) in roots  # noqa: PTH120
            and each.pod_uid is not None
            and is_pod_uid(each.pod_uid)
            # With a second underscore it would be a directory of kubelet's logs.
            and _CONTAINER.match(each.directory_name or "")
        }
        for root in roots:
            try:
                with opened_root(root) as descriptor:
                    begun = quarantined_in(descriptor)
            except (OSError, NotRemoved):
                continue  # reported where something is to be removed from it
            for directory_name, (uid, name) in begun.items():
                path = f"{root}/{directory_name}"
                found[path] = Container(uid, name, path)
        return found

    def _alive(self, candidates: Iterable[Container]) -> frozenset[str]:
        """The pods among these that are there.

        Raises:
            _PodsUnknown: It cannot be told.
        """
        asked = frozenset(each.pod_uid for each in candidates if each.pod_uid is not None)
        if not asked:
            return asked
        processes = self._node.processes
        if not processes.is_complete:
            raise _PodsUnknown(
                "not every process shows what it maps; that takes root and CAP_SYS_PTRACE"
                if processes.visibility.sees_all_pids
                else "not every process of the node can be seen; that takes the host's /proc"
            )
        in_pods = (process.container for process in processes)
        running = frozenset(each.pod_uid for each in in_pods if each is not None and each.pod_uid)
        if not running:
            raise _PodsUnknown(
                "no process of any pod runs here that would show that kubelet's directories are"
                " this node's"
            )
        return asked & (running | _known_to_kubelet(self._sources, running))

    def _note(self, why: str | None) -> None:
        """Report when it begins, and when it ends, that nothing can be told."""
        if why is not None and why != self._why:
            self.events.emit("paused", f"nothing is removed: {why}")
        elif why is None and self._why is not None:
            self.events.emit(
                "resumed", f"which pods are gone can be told again; it had paused: {self._why}"
            )
        self._why = why

    def _is_due(self, path: str, container: Container, alive: frozenset[str]) -> bool:
        """Note whether the pod is there; whether it has been gone for long enough."""
        if container.pod_uid in alive:
            self._absent_since_s.pop(path, None)
            return False
        now_s = time.monotonic()
        if path not in self._absent_since_s:
            self._absent_since_s[path] = now_s
            if self._dry_run:
                self.events.emit(
                    "would_remove",
                    f"its pod is gone; would be removed after {self._gone_after_s:g} s of that",
                    container,
                )
        if self._dry_run:
            return False
        return _is_quarantined(path) or now_s - self._absent_since_s[path] >= self._gone_after_s

    # ---- removing --------------------------------------------------------------------------------

    def _remove_all(self, due: list[tuple[str, Container]]) -> None:
        left, tries = self.entries_per_pass, _DIRECTORIES_PER_PASS
        for path, container in due:
            if left <= 0 or tries <= 0:
                break
            if self.backoff.should_skip(path):
                continue
            tries -= 1
            given = min(left, max(1, self.entries_per_pass // 4))
            budget = Budget(given)
            try:
                gone = self._remove(path, container, budget)
            except FileNotFoundError:
                pass  # somebody else has removed it
            except (OSError, NotRemoved, _PodsUnknown) as error:
                self.count("errors")
                self.backoff.failed(path)
                self.events.failed(f"{path} was not removed", error, container)
            else:
                self.backoff.recovered(path)
                self.events.recovered(container)
                if gone:
                    self.count("directories")
                    self.events.emit("removed", "its pod is gone; removed", container)
            self.count("entries", budget.removed)
            left -= given - budget.left

    def _remove(self, path: str, container: Container, budget: Budget) -> bool:
        """Remove a directory as far as the budget goes; whether it is gone."""
        parent, name = os.path.split(path)
        with opened_root(parent) as root:
            look = look_at(root, name)
            if self._is_in_use(look, container):
                return False
            if not _is_quarantined(path):
                if time.time_ns() - look.changed_ns < self._gone_after_s * 1e9:
                    return False
                name = self._quarantine(root, name, container, look)
            return remove_quarantined(root, name, budget)

    def _is_in_use(self, look: DirectoryLook, container: Container) -> bool:
        """Whether a process maps a file of it as a region's users do, or may.

        By the inode alone: what a device is called differs between maps and stat. A file of that
        number elsewhere only puts the removal off.
        """
        processes = self._node.processes
        used = {each.inode for each in mapped_regions(processes)}
        return processes.hides_users_of(container.pod_uid) or not look.inodes.isdisjoint(used)

    def _quarantine(self, root: int, name: str, container: Container, look: DirectoryLook) -> str:
        """Take the directory out of everybody's way, and prove once more that nobody misses it.

        A process that has not reached it by now does not find it any more; one that has is seen.

        Raises:
            NotRemoved: Its pod is there again, or it is in use; it has its name again.
            _PodsUnknown: It cannot be told; it has its name again.
            OSError: It cannot be renamed, or /proc cannot be listed.
        """
        named = (container.pod_uid or "", container.directory_name or "")
        quarantined = quarantine(root, name, named, look)
        try:
            self._node.processes.refresh()
            # A file of it can have been made since the first look.
            if self._alive([container]) or self._is_in_use(look_at(root, quarantined), container):
                raise NotRemoved("its pod is there again")
        except BaseException:
            give_back(root, quarantined, name)
            raise
        return quarantined


def _is_quarantined(path: str) -> bool:
    return quarantined_container(os.path.basename(path)) is not None  # noqa: PTH119


def _known_to_kubelet(sources: Iterable[str], running: frozenset[str]) -> frozenset[str]:
    """The pods that kubelet has a directory for.

    A pod has gone when it has neither logs nor volumes. One that waits for its volumes has no logs
    yet, and one whose volumes are gone has logs until kubelet tidies up: so both directories have
    to be readable, and to know a pod that runs.

    Raises:
        _PodsUnknown: A directory cannot be listed, or is not this node's.
    """
    known: set[str] = set()
    for path in sources:
        try:
            with os.scandir(path) as entries:
                names = [entry.name for entry in islice(entries, _PODS_LIMIT + 1)]
        except OSError as error:
            raise _PodsUnknown(f"it cannot be listed: {error_text(error)}") from error
        if len(names) > _PODS_LIMIT:
            raise _PodsUnknown(f"{path} has more than {_PODS_LIMIT:,} entries")
        listed = {uid for uid in (name.rpartition("_")[2] for name in names) if is_pod_uid(uid)}
        if not listed:
            raise _PodsUnknown(f"{path} has no pod at all; is it mounted?")
        if running.isdisjoint(listed):
            raise _PodsUnknown(f"{path} knows none of the pods whose processes run on this node")
        known |= listed
    return frozenset(known)
