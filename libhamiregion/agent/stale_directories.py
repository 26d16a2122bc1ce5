"""Removes directories of pods that are gone, as HAMi's monitor does, with more proof."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from libhamiregion.observation.containers import Container
from libhamiregion.observation.names import is_pod_uid
from libhamiregion.services.events import silent
from libhamiregion.text import error_text, printable

from .loop import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from libhamiregion.errors import PathLike
    from libhamiregion.node.node import Node
    from libhamiregion.observation.model import Observation
    from libhamiregion.services.events import Emit

#: HAMi's monitor waits as long unless HAMI_RESYNC_INTERVAL says otherwise.
GONE_AFTER_S: Final = 300.0

_LONGEST_INTERVAL_S: Final = 30.0
# A real directory holds three or four files; an unlink takes some 10 us.
_ENTRIES_PER_DIRECTORY: Final = 1_000
_PODS_LIMIT: Final = 100_000
_SHOWN: Final = 5
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
# No pod's UID: neither HAMi's monitor nor this library takes it for a container's directory.
_GONE: Final = ".gone-"


class _PodsUnknown(Exception):
    """It is not known which pods exist; the message says why."""


class StaleDirectoryCleaner(Task):
    """Removes the directories of pods that are gone.

    HAMi from 2.11 on does it itself, in its device plugin: there, leave this task out.

    A directory ``<podUID>_<container>`` of a root is removed if all of this is true:

    - Kubelet has had no directory for the pod, neither for its logs nor for its volumes, for
      `gone_after_s`; and kubelet's directories know a pod of which processes run on this node.
    - No process is in the pod's cgroup, and none maps a file of the directory for writing. This
      needs a /proc that shows every process of the node.
    - Neither the directory nor its entries have changed for `gone_after_s`.

    If one of this is not known, nothing is removed. First the directory is renamed to
    ``.gone-<number>``, so that a static pod that comes back gets a directory of its own; then the
    proof is taken once more. Then its files are unlinked, 1,000 a pass, and the directory itself.
    Subdirectories with content stay, and are reported. The next agent goes on after a killed one.

    Events (task ``removal``): ``removed`` or ``would_remove``, ``left``, ``failed``, ``paused`` and
    ``resumed``.

    Args:
        node: The node.
        pod_logs: Kubelet's directory of logs, with the directories ``<namespace>_<pod>_<uid>``.
        kubelet_pods: Kubelet's directory of volumes, with the directories ``<uid>``. In a pod that
            shares the host's processes, ``/proc/1/root/var/lib/kubelet/pods`` needs no mount.
        gone_after_s: For how long a pod has to be gone.
        dry_run: Remove nothing, and report which pods are gone.
        emit: Gets the events.

    Attributes:
        paused: The reason why nothing is removed now; None if there is none.

    Raises:
        ValueError: A time that is not above 0.
    """

    name = "removal"
    counted = ("runs", "directories", "entries", "errors")
    needs = "processes"

    def __init__(
        self,
        node: Node,
        *,
        pod_logs: PathLike = "/var/log/pods",
        kubelet_pods: PathLike = "/var/lib/kubelet/pods",
        gone_after_s: float = GONE_AFTER_S,
        dry_run: bool = False,
        emit: Emit = silent,
    ) -> None:
        if not gone_after_s > 0:
            raise ValueError(f"a time to wait is longer than 0 s, not {gone_after_s}")
        super().__init__(emit)
        self.interval_s = min(gone_after_s / 2, _LONGEST_INTERVAL_S)
        self._node = node
        self._sources = (os.fspath(pod_logs), os.fspath(kubelet_pods))
        self._gone_after_s = gone_after_s
        self._dry_run = dry_run
        # Since when the pod of a directory is absent, on the monotonic clock.
        self._absent_since_s: dict[str, float] = {}
        self.paused: str | None = None

    def counters(self) -> Mapping[str, int]:
        """Return the counters, and ``removal_paused``."""
        return {**super().counters(), "removal_paused": int(self.paused is not None)}

    # ---- one pass --------------------------------------------------------------------------------

    def run(self, observation: Observation) -> None:
        """Remove the directories whose pods have been gone for long enough.

        Raises:
            OSError: /proc cannot be listed.
        """
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
        for path, container in candidates.items():
            if self._is_due(path, container, alive) and not self.backoff.should_skip(path):
                self._try_to_remove(path, container)

    def _candidates(self) -> dict[str, Container]:
        """List directories that could be removed, by path; those that are renamed come last."""
        roots = frozenset(self._node.scanned_roots)
        found = {
            each.directory: each
            for each in self._node.containers
            if each.directory is not None
            and os.path.dirname(each.directory) in roots  # noqa: PTH120
            and each.pod_uid is not None
            and is_pod_uid(each.pod_uid)
        }
        for root in roots:
            with contextlib.suppress(OSError), os.scandir(root) as entries:
                for entry in islice(entries, _PODS_LIMIT):
                    if entry.name.startswith(_GONE) and entry.is_dir(follow_symlinks=False):
                        found[entry.path] = Container("removed", entry.name, entry.path)
        return found

    def _alive(self, candidates: Iterable[Container]) -> frozenset[str]:
        """Return the pods among these that exist.

        Raises:
            _PodsUnknown: This is not known.
        """
        processes = self._node.processes.view
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
        known = running | _known_to_kubelet(self._sources, running)
        return frozenset(each.pod_uid for each in candidates if each.pod_uid in known)

    def _note(self, why: str | None) -> None:
        """Report a pause, and its end."""
        if why is not None and why != self.paused:
            self.events.emit("paused", f"nothing is removed: {why}")
        elif why is None and self.paused is not None:
            self.events.emit("resumed", f"removing again; it had paused: {self.paused}")
        self.paused = why

    def _is_due(self, path: str, container: Container, alive: frozenset[str]) -> bool:
        """Note whether the pod exists; return whether it has been gone for long enough."""
        if container.pod_uid in alive:
            self._absent_since_s.pop(path, None)
            return False
        now_s = time.monotonic()
        since_s = self._absent_since_s.setdefault(path, now_s)
        if self._dry_run:
            if since_s == now_s:
                message = f"its pod is gone; would be removed after {self._gone_after_s:g} s"
                self.events.emit("would_remove", message, container)
            return False
        return now_s - since_s >= self._gone_after_s

    # ---- removing --------------------------------------------------------------------------------

    def _try_to_remove(self, path: str, container: Container) -> None:
        try:
            is_done = self._remove(path, container)
        except FileNotFoundError:
            return  # another process has removed it
        except (OSError, _PodsUnknown) as error:
            self.count("errors")
            self.backoff.failed(path)
            self.events.failed(f"{path} was not removed", error, container)
            return
        if is_done:
            self.backoff.recovered(path)
            self.events.recovered(container)

    def _remove(self, path: str, container: Container) -> bool:
        """Rename a directory and remove it, as far as possible; False if it is in use or young."""
        parent, name = os.path.split(path)
        with _opened(parent) as root:
            with _opened(name, root) as directory:
                changed_ns, is_used = self._look(directory, container)
            if is_used:
                return False
            if not name.startswith(_GONE):
                if time.time_ns() - changed_ns < self._gone_after_s * 1e9:
                    return False
                name = self._take_away(root, name, container)
            stays = self._empty(root, name)
            if stays is None:
                self.count("directories")
                self.events.emit("removed", "its pod is gone; removed", container)
            elif stays:
                self.backoff.failed(path)
                names = ", ".join(printable(each, 60) for each in stays[:_SHOWN])
                message = f"{len(stays)} entries of {parent}/{name} stay: {names}"
                self.events.emit("left", message, container)
                return False
        return True

    def _look(self, directory: int, container: Container) -> tuple[int, bool]:
        """Return the last change of a directory and its entries, and whether it may be in use."""
        status = os.fstat(directory)
        changed_ns, inodes = status.st_ctime_ns, []
        with os.scandir(directory) as entries:
            for entry in islice(entries, _ENTRIES_PER_DIRECTORY):
                with contextlib.suppress(FileNotFoundError):
                    inside = entry.stat(follow_symlinks=False)
                    changed_ns = max(changed_ns, inside.st_ctime_ns)
                    if stat.S_ISREG(inside.st_mode):
                        inodes.append(inside.st_ino)
        processes, device = self._node.processes.view, status.st_dev
        if container.identity is not None:
            # On some file systems maps has another device number than stat.
            device = container.identity[0]
        files = [(device, inode) for inode in inodes]
        # An act: the mapping of a monitor counts, too.
        is_mapped = any(processes.mappers(each, writable=True) for each in files)
        return changed_ns, is_mapped or not processes.is_unused(container.pod_uid, files)

    def _take_away(self, root: int, name: str, container: Container) -> str:
        """Rename a directory, and prove once more that nothing uses it; returns its new name.

        A process that has not opened it by now does not find it any more.

        Raises:
            OSError, _PodsUnknown: It has its name again.
        """
        gone = f"{_GONE}{os.urandom(8).hex()}"
        os.rename(name, gone, src_dir_fd=root, dst_dir_fd=root)
        try:
            # Maps that were read before the rename prove nothing.
            processes = self._node.processes
            processes.refresh(
                [each.pid for each in processes.view if each.pod_uid in {None, container.pod_uid}]
            )
            with _opened(gone, root) as directory:
                _, is_used = self._look(directory, container)
            if self._alive([container]) or is_used:
                raise _PodsUnknown("its pod is there again")
        except BaseException:
            # A rename would replace the new, empty directory of a pod that is there again.
            try:
                os.stat(name, dir_fd=root, follow_symlinks=False)
            except FileNotFoundError:
                os.rename(gone, name, src_dir_fd=root, dst_dir_fd=root)
            raise
        return gone

    def _empty(self, root: int, name: str) -> list[str] | None:
        """Remove a directory with its files and empty directories.

        Each step names an entry of an open directory and unlinks the entry itself, so that no link
        is followed and no mount is entered.

        Returns:
            The entries that cannot be removed; None if the directory is gone.
        """
        stays = []
        with _opened(name, root) as directory, os.scandir(directory) as entries:
            found = list(islice(entries, _ENTRIES_PER_DIRECTORY + 1))
            for entry in found[:_ENTRIES_PER_DIRECTORY]:
                remove = os.rmdir if entry.is_dir(follow_symlinks=False) else os.unlink
                try:
                    remove(entry.name, dir_fd=directory)
                except FileNotFoundError:
                    continue  # another process has removed it
                except OSError:
                    stays.append(entry.name)
                else:
                    self.count("entries")
        if stays or len(found) > _ENTRIES_PER_DIRECTORY:
            return stays
        os.rmdir(name, dir_fd=root)
        self.count("entries")
        return None


@contextlib.contextmanager
def _opened(name: str, parent: int | None = None) -> Iterator[int]:
    descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _known_to_kubelet(sources: Iterable[str], running: frozenset[str]) -> frozenset[str]:
    """Return the pods that kubelet has a directory for.

    A pod that waits for its volumes has no logs yet, and one whose volumes are gone has logs until
    kubelet collects them: so both directories have to be readable, and to know a running pod.

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
