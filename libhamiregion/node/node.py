"""One GPU node: its containers, their regions, processes and names."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from operator import is_
from typing import TYPE_CHECKING

import attrs

from libhamiregion.errors import RegionClosed, RegionStale
from libhamiregion.observation.containers import NO_FILE, REMOVED
from libhamiregion.observation.model import NodeSnapshot
from libhamiregion.observation.selector import PodNamesUnknown, Selector
from libhamiregion.region import open_in_container
from libhamiregion.region_set import RegionSet

from .allocations import by_directory, device_checkpoint, kubelet_devices
from .directories import RootContainers
from .names import NodeNames, kubelet_claims, with_names
from .outside import OutsideRegions, mapped_regions, resolve
from .processes import ProcessTable
from .roots import Roots
from .slots import SlotTracker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Self

    from libhamiregion.errors import PathLike
    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.processes import FileIdentity, RegionProcesses, SlotStates
    from libhamiregion.observation.share import Allocation
    from libhamiregion.region import Region


_log = logging.getLogger(__name__)

# A refresh takes a second or two; the first one, on a node of thousands of busy processes, twenty.
_LOOK_TIMEOUT_S = 30.0
# A container whose name is not known yet is asked for again.
_NAME_AGAIN_S = 30.0


class NodeBusy(TimeoutError):
    """Another thread's refresh of the node has not returned: the system may never answer it."""


@contextlib.contextmanager
def exclusively(lock: threading.Lock | threading.RLock) -> Iterator[None]:
    """Hold a lock. A file system that never answers must hang only one refresh.

    Raises:
        NodeBusy: Another thread has held it for 30 s.
    """
    if not lock.acquire(timeout=_LOOK_TIMEOUT_S):
        raise NodeBusy(f"another refresh of this node has not returned for {_LOOK_TIMEOUT_S:g} s")
    try:
        yield
    finally:
        lock.release()


class Node:
    """The containers of one node, kept up to date by `refresh`.

        with Node() as node:
            node.refresh()
            table = node.snapshot().table

    A refresh costs two `stat` calls per container that has not changed, and one read of all
    regions; only changed directories are listed, and their regions opened. No process is signalled,
    no file written, no link followed.

    Threads: may be shared. Refreshes exclude each other, and raise `NodeBusy` if one does not
    return; `snapshot` waits only for the moment in which the results of a refresh are taken over.
    Fork: a child makes its own Node.

    Args:
        root: The directory that holds the ``<podUID>_<container>`` directories, or one called
            ``claims`` that holds those of resource claims; several of them; or patterns as in a
            shell (``/data/*/containers``). None means ``containers`` and ``claims`` below
            ``$CONTAINER_VGPU_MOUNT``, ``$HAMI_VGPU_CACHE_ROOT`` or ``$HOOK_PATH`` if one is set,
            else those of HAMi, its DRA driver, KAI, volcano and this user's ``hamiregion run`` that
            exist, provided that only
            root and this user could have made them.
        proc: The root of /proc, if it is mounted elsewhere.
        names: Names of containers, pods and claims; None means the files of kubelet and Docker
            below /var.
        outside: Whether to look for regions outside the roots as well, through the processes that
            map them. That takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
        allocations: kubelet's checkpoint of devices; None means that of the host, through `proc`.

    Attributes:
        roots: As given, absolute.
        names: Names containers.
        processes: The node's processes.
        looks_outside: Whether it looks for regions outside the roots as well.
    """

    def __init__(
        self,
        root: PathLike | Iterable[PathLike] | None = None,
        *,
        proc: PathLike = "/proc",
        names: NodeNames | None = None,
        outside: bool = False,
        allocations: PathLike | None = None,
    ) -> None:
        roots = (root,) if isinstance(root, (str, os.PathLike)) else root
        self._roots = Roots(None if roots is None else tuple(os.fspath(each) for each in roots))
        self.roots = self._roots.paths
        self.names = NodeNames(claims=kubelet_claims(proc)) if names is None else names
        self.looks_outside = outside
        self.processes = ProcessTable(proc)
        self._allocations = device_checkpoint(os.fspath(allocations or kubelet_devices(proc)))
        self._inside = RootContainers(self._roots)
        self._outside = OutsideRegions(self.processes, self.names)
        self._slots = SlotTracker(self.processes)
        # What `allocations` were, and the same by pod and name of the directory.
        self._given: tuple[object, dict[str, list[Allocation]]] = (None, {})
        # What the containers were named after: they, and the checkpoint's content.
        self._named_by: tuple[object, object] = (None, None)
        self._named: tuple[SlotStates | None, float] = (None, 0.0)
        self._logged_problem: str | None = None
        self._pid = os.getpid()
        self._is_closed = False
        # Held while directories and /proc are read.
        self._refreshing = threading.RLock()
        # Held for moments only, inside the other one: guards the set and the containers.
        self._lock = threading.RLock()
        self._set = RegionSet()
        self._containers: tuple[Container, ...] = ()
        # Containers with and without a region; None if these have changed.
        self._rows: tuple[tuple[Container, ...], tuple[Container, ...]] | None = None

    @property
    def root_errors(self) -> dict[str, OSError]:
        """Root to error, for those that the last refresh could not list, or not whole.

        Default roots may be missing without one.
        """
        return dict(self._roots.errors)

    @property
    def root_problem(self) -> str | None:
        """Why the last refresh could list no directory of containers; None if it could list one.

        None also if no directory was given and regions outside the roots are looked for.
        """
        if self.looks_outside and not self._roots.given:
            return None
        return self._roots.problem

    @property
    def roots_given(self) -> bool:
        """Whether directories were named: without one, a node has none if HAMi is not on it."""
        return self._roots.given

    @property
    def scanned_roots(self) -> tuple[str, ...]:
        """The directories that the last refresh could list."""
        return self._roots.scanned

    @property
    def allocations(self) -> tuple[Allocation, ...] | None:
        """What kubelet has noted of GPUs given to containers; None if that is not available."""
        return self._allocations.read()

    @property
    def directories(self) -> tuple[str, ...]:
        """The roots that exist, as of the last refresh if there was one.

        Patterns are expanded, links resolved; each directory is there once.
        """
        return self._roots.directories()

    @property
    def proc(self) -> str:
        """The root of /proc, absolute."""
        return self.processes.proc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._containers)} containers"
        return f"<Node {', '.join(self.roots)}: {state}>"

    def _one_look(self) -> contextlib.AbstractContextManager[None]:
        """Exclude other refreshes."""
        return exclusively(self._refreshing)

    def close(self) -> None:
        """Close all regions; may be called again. A refresh that does not return keeps its own."""
        with contextlib.suppress(NodeBusy), self._one_look(), self._lock:
            self._is_closed = True
            self._set.close()
            self._inside.clear()
            self._outside.clear()
            self._containers = ()
            self._rows = None

    def check_open(self) -> None:
        """Make sure that the node can be used.

        Raises:
            RegionClosed: After `close`, or in a forked child.
        """
        if self._pid != os.getpid():
            raise RegionClosed("the Node belongs to the process that made it; make a new one")
        if self._is_closed:
            raise RegionClosed("the Node has been closed; make a new one")

    # ---- which containers there are --------------------------------------------------------------

    @property
    def containers(self) -> tuple[Container, ...]:
        """All containers that the last refresh found, with a region or without.

        By root and directory, then those outside the roots.
        """
        return self._containers

    def refresh(self, *, processes: bool | None = None) -> bool:
        """Find the containers, and open their regions.

        Args:
            processes: Read /proc as well, and look there for regions outside the roots. Without it
                `processes`, and the regions found there, stay as they are. None means only if the
                node `looks_outside`.

        Returns:
            Whether `containers` has changed. A container's problem is in its `missing`, a root's
            in `root_errors`.

        Raises:
            RegionClosed: After `close`, or in a forked child.
            RootsUnreadable: Roots were given, and none of them can be listed. `containers` is up
                to date all the same. Without given roots, a missing directory is logged.
            OSError: /proc cannot be listed; then nothing has changed. `NodeBusy` if another
                thread's refresh has not returned for 30 s.
        """
        self.check_open()
        processes = self.looks_outside if processes is None else processes
        with self._one_look():
            self.check_open()
            before = self._containers
            # Before the directories: a region that is mapped by now has its directory by then.
            if processes:
                self.processes.refresh()
            with self._lock:
                rows = zip(self._set.regions, self._set.read().regions.code, strict=True)
                failed = {region for region, code in rows if code != 0}
            try:
                self._inside.scan(failed)
                self._name_by_allocation()
                for each in self._inside.containers:
                    self._inside.replace(each, with_names(self.names, each))
                if processes and self.looks_outside:
                    self._outside.scan(self._identities(), self._inside.files())
            finally:
                # Also if it was interrupted: regions opened and closed so far count.
                self._take_over()
            problem = self.root_problem
            if problem != self._logged_problem and problem is not None and not self._roots.given:
                _log.info("%s", problem)
            self._logged_problem = problem
            self._roots.check()
            return self._containers is not before

    def _take_over(self) -> None:
        """Publish the containers that were found, and have their regions read."""
        # Mostly there is none outside, and this the same object as long as nothing changes.
        now = self._inside.containers + tuple(self._outside.containers)
        with self._lock:
            # Not by value: a region that was opened again is of an equal container.
            if len(now) == len(self._containers) and all(map(is_, now, self._containers)):
                return
            wanted = {each.region for each in now if each.region is not None}
            known = set(self._set.regions)
            for region in known - wanted:
                self._set.discard(region)
            for each in now:
                # Those outside the roots come last, also where they were found first.
                is_last = each.directory is None or each.region not in known
                if each.region is not None and is_last:
                    self._set._adopt(each.region)
            self._rows = None
            self._containers = now

    def _identities(self) -> set[FileIdentity]:
        """The files of the regions in the roots."""
        inside = self._inside.containers
        return {each.identity for each in inside if each.identity is not None}

    # ---- what they hold --------------------------------------------------------------------------

    def snapshot(self) -> NodeSnapshot:
        """Read all regions in one native call.

        A region that fails has its code and no rows (`RegionTable.error` has the reason); the next
        refresh opens it again or says what is wrong with it.

        Raises:
            RegionClosed: After `close`, or in a forked child.
        """
        self.check_open()
        with self._lock:
            self.check_open()
            table = self._set.read()
            read_s = time.monotonic()
            if self._rows is None:
                by_region = {each.region: each for each in self._containers}
                self._rows = (
                    tuple(by_region[region] for region in self._set.regions),
                    tuple(each for each in self._containers if each.region is None),
                )
            return NodeSnapshot(*self._rows, table, read_s)

    def slots(self, snapshot: NodeSnapshot) -> SlotStates:
        """Find out which slots of a snapshot are of live processes: `SlotTracker` says how.

        Call `refresh` with ``processes=False`` and `snapshot` before it.

        Args:
            snapshot: The last one.

        Raises:
            RegionClosed: After `close`, or in a forked child.
            OSError: /proc cannot be listed.
        """
        self.check_open()
        with self._one_look():
            states = self._slots.update(snapshot.containers, snapshot.table, snapshot.read_s)
            named, named_s = self._named
            if states is not named or time.monotonic() - named_s >= _NAME_AGAIN_S:
                self._named = states, time.monotonic()
                for row, found in states.proved.items():
                    container = snapshot.containers[row]
                    used_by = self._user_of(container, found)
                    if used_by != container.used_by:
                        self._rename(container, used_by)
                self._mark_removed(snapshot)
                self._take_over()
            return states

    def _mark_removed(self, snapshot: NodeSnapshot) -> None:
        """Tell containers that processes use without a name from those that have no region yet."""
        without: dict[str | None, list[Container]] = {}
        for each in snapshot.missing:
            if each.missing in (NO_FILE, REMOVED):
                without.setdefault(each.pod_uid, []).append(each)
        inside = self._identities() if without else set()
        used = mapped_regions(self.processes.view, without=inside) if without else ()
        mapped = {pod: each for each in used if (pod := each.users[0][0].pod_uid) in without}
        for pod, containers in without.items():
            # With several no process says whose file it was.
            is_removed = len(containers) == 1 and pod in mapped
            found = resolve(self.processes, mapped[pod]) if is_removed else None
            missing = REMOVED if found is not None and found.deleted else NO_FILE
            for each in containers:
                if each.missing != missing:
                    self._inside.replace(each, attrs.evolve(each, missing=missing))

    def _user_of(self, container: Container, found: RegionProcesses) -> str | None:
        """The name of the container that uses a region, if it is not the directory's.

        HAMi 2.10 can put a pod's region under its init container's name although another one uses
        it. The user is of the same pod, by its cgroup, and the only one that uses the region; its
        name stays while the region has no processes.
        """
        given = self._given_to(container)
        if given is not None:
            return None if given == container.directory_name else given
        users = {each.container for each in (*found.alive.values(), *found.unlisted)}
        if not users and container.pod_uid not in {each.pod_uid for each in found.onlookers}:
            return container.used_by
        (user,) = users if len(users) == 1 else (None,)
        if user is None or container.pod_uid is None or user.pod_uid != container.pod_uid:
            return None
        name = self.names.resolve(None, None, user.id)
        used_by = None if name is None else name.container
        return None if used_by == container.directory_name else used_by

    def allocations_of(self, container: Container) -> tuple[Allocation, ...]:
        """The allocations that came with a container's directory, even if others use its region."""
        if container.directory is None:
            return ()
        allocations, given = self._given
        if (now := self.allocations) is not allocations:
            given = by_directory(now or ())
            self._given = now, given
        _, _, own = container.directory.rpartition("/")
        return tuple(given.get(f"{container.pod_uid}/{own}", ()))

    def _given_to(self, container: Container) -> str | None:
        """The only container to which kubelet's checkpoint has given a region's directory."""
        names = {each.container for each in self.allocations_of(container)}
        return names.pop() if len(names) == 1 else None

    def _name_by_allocation(self) -> None:
        """Name the containers without a process after the checkpoint."""
        allocations = self.allocations
        if all(map(is_, self._named_by, (allocations, self._inside.containers))):
            return
        for each in self._inside.containers:
            given = self._given_to(each)
            if given is not None and given != (each.used_by or each.directory_name):
                self._rename(each, given)
        self._named_by = allocations, self._inside.containers

    def _rename(self, container: Container, used_by: str | None) -> None:
        """Name a container after another one that uses its region."""
        user = attrs.evolve(container, used_by=used_by, pod_name=None)
        self._inside.replace(container, with_names(self.names, user))

    def renamed(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        """Return a snapshot with what `slots` has found out since: names, and files removed.

        Args:
            snapshot: Of this node.
        """
        now = {each.region: each for each in self._containers}
        containers = tuple(now.get(each.region, each) for each in snapshot.containers)
        by_directory = {each.directory: each for each in self._containers if each.region is None}
        missing = tuple(by_directory.get(each.directory or "", each) for each in snapshot.missing)
        if (containers, missing) == (snapshot.containers, snapshot.missing):
            return snapshot
        return attrs.evolve(snapshot, containers=containers, missing=missing)

    def select(
        self,
        *,
        namespace: str | None = None,
        pod: str | None = None,
        container: str | None = None,
        allow_unnamed: bool = False,
    ) -> tuple[Container, ...]:
        """The containers whose names match, in the order of `containers`.

        Args:
            namespace: Pattern of the pod's namespace, as in a shell.
            pod: Pattern of the pod's name, or of its UID.
            container: Pattern of the container's name, or of its id.
            allow_unnamed: Leave containers out whose pods' names are not known, if a pattern asks
                for these names.

        Raises:
            PodNamesUnknown: A pattern asks for names of pods, and those of some containers that it
                may mean are not known; unless that is allowed.
        """
        selector = Selector(namespace=namespace, pod=pod, container=container)
        unnamed = [each for each in self._containers if selector.might_match(each)]
        if unnamed and not allow_unnamed:
            raise PodNamesUnknown(unnamed)
        return tuple(each for each in self._containers if selector.matches(each))

    def open(self, container: Container) -> Region:
        """Open a container's region for writing; the caller closes it.

        Raises:
            ValueError: The container has no region.
            RegionStale: The file is another one than the container's region by now.
            RegionClosed: The container is one of an earlier refresh, and its region closed.
            RegionError, OSError: As `open_region`.
        """
        known = container.region
        if known is None:
            raise ValueError("the container has no region")
        if known.closed:
            raise RegionClosed(f"{known.path!r} is of an earlier refresh", path=known.path)
        file_id = known.file_id
        region = None
        if container.directory is None:
            with self._one_look():
                region = self._outside.open(container)
        if region is None:
            region = open_in_container(known.path, writable=True, layout=known.layout)
        if region.file_id != file_id:
            region.close()
            raise RegionStale(
                f"{known.path!r} has been replaced; refresh and try again", path=known.path
            )
        return region
