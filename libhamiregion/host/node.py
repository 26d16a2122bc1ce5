"""One GPU node: its containers, their regions, processes and names."""

from __future__ import annotations

import glob
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from libhamiregion.errors import RegionClosed, RegionError, RegionStale
from libhamiregion.region import open_region
from libhamiregion.region_set import RegionSet

from .containers import (
    NO_FILE,
    Container,
    MissingReason,
    list_directory,
    missing_for,
    settled_stamp,
    split_name,
)
from .names import ChainedNames, DockerNames, PodLogNames
from .processes import ProcessTable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from typing_extensions import Self

    from libhamiregion.errors import PathLike
    from libhamiregion.models import RegionSnapshot
    from libhamiregion.region import Region
    from libhamiregion.region_set import RegionTable

    from .matching import RegionProcesses
    from .names import NameResolver, PodName
    from .processes import MappedRegion

# HAMi's, volcano-vgpu's from 1.12 on, and volcano-vgpu's before.
_DEFAULT_ROOTS = (
    "/usr/local/vgpu/containers",
    "/usr/local/vgpu/vgpu/containers",
    "/tmp/vgpu/containers",  # noqa: S108 (where they are)
)
_ENTRIES_LIMIT = 20_000
# A process can map any number of files that look like regions.
_OUTSIDE_LIMIT = 1_024
_OUTSIDE_LIMIT_PER_CONTAINER = 16


def default_roots() -> tuple[str, ...]:
    """Where regions are: under HOOK_PATH if the environment has it, else HAMi's and volcano's."""
    hook_path = os.environ.get("HOOK_PATH")
    return (f"{hook_path}/containers",) if hook_path else _DEFAULT_ROOTS


@attrs.frozen
class NodeChanges:
    """What a refresh found different.

    Attributes:
        added: Containers that are new.
        removed: Containers that have gone, or have been replaced; their regions are closed.
        replaced: Containers whose region came, went or is another file now, as they are now.
    """

    added: tuple[Container, ...] = ()
    removed: tuple[Container, ...] = ()
    replaced: tuple[Container, ...] = ()


@attrs.frozen
class NodeSnapshot:
    """All regions of a node, read in one native call.

    Attributes:
        containers: The containers with a region, one per row of ``table.regions``.
        missing: The containers without.
        table: The figures, as `RegionSet.read` gives them.
    """

    containers: tuple[Container, ...]
    missing: tuple[Container, ...]
    table: RegionTable


@attrs.frozen
class ContainerView:
    """A container with one picture of its region and the processes behind it.

    Attributes:
        container: The container.
        snapshot: Its region; None if there is none, or it could not be read.
        processes: What stands behind the slots, in the order of ``snapshot.processes``; None
            without a snapshot.
        error: Why the region could not be read now; None if it was, or if there is none.
    """

    container: Container
    snapshot: RegionSnapshot | None = None
    processes: RegionProcesses | None = None
    error: RegionError | None = None


@attrs.frozen
class _Watched:
    """A container's directory between two scans."""

    stamp: tuple[int, int] | None
    container: Container


class Node:
    """The containers of one node, kept up to date by `refresh`.

        with Node() as node:
            node.refresh()
            table = node.snapshot().table

    A refresh costs two `stat` calls per container where nothing has changed; only what has changed
    is listed and opened. No process is signalled and no file written.

    Threads: may be shared. Refreshes exclude each other and readers.

    Args:
        root: The directory that holds the ``<podUID>_<container>`` directories; several of them;
            or patterns as in a shell (``/data/*/containers``). None means ``$HOOK_PATH/containers``
            if that is set, else those of HAMi and volcano that exist.
        proc: The root of /proc, where it is mounted elsewhere.
        names: Where pods' names come from; None means the directories of kubelet and Docker below
            /var.
        outside: Whether to look for regions outside the roots, through the processes that map
            them.

    Attributes:
        roots: As given, absolute.
        proc: The root of /proc, absolute.
        names: Names containers.
        processes: The node's processes.
    """

    def __init__(
        self,
        root: PathLike | Iterable[PathLike] | None = None,
        *,
        proc: PathLike = "/proc",
        names: NameResolver | None = None,
        outside: bool = True,
    ) -> None:
        if root is None:
            given: tuple[PathLike, ...] = default_roots()
        elif isinstance(root, (str, os.PathLike)):
            given = (root,)
        else:
            given = tuple(root)
        self.roots = tuple(dict.fromkeys(str(Path(each).absolute()) for each in given))
        self._expected = root is not None
        self.names: NameResolver = (
            ChainedNames([PodLogNames(), DockerNames()]) if names is None else names
        )
        self.processes = ProcessTable(proc)
        self._outside = outside
        self._lock = threading.RLock()
        self._set = RegionSet()
        self._listings: dict[str, tuple[tuple[int, int] | None, tuple[str, ...]]] = {}
        self._watched: dict[str, _Watched] = {}
        self._mapped: dict[tuple[int, int], tuple[MappedRegion, Container]] = {}
        self._closed = False
        self._rows: tuple[tuple[Container, ...], tuple[Container, ...]] | None = None
        #: Root to error, for those that could not be listed; default roots may be missing.
        self.root_errors: dict[str, OSError] = {}

    @property
    def proc(self) -> str:
        """The root of /proc, absolute."""
        return self.processes.proc

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Node {', '.join(self.roots)}: {len(self.containers)} containers>"

    def close(self) -> None:
        """Close all regions; may be called again."""
        with self._lock:
            self._closed = True
            self._set.close()
            self._watched.clear()
            self._mapped.clear()
            self._rows = None

    # ---- which containers there are --------------------------------------------------------------

    @property
    def containers(self) -> tuple[Container, ...]:
        """All containers that the last refresh found, with a region or without."""
        with self._lock:
            return tuple(
                [watched.container for watched in self._watched.values()]
                + [container for _, container in self._mapped.values()]
            )

    def refresh(self, *, processes: bool = True) -> NodeChanges:
        """Find what has changed since the last refresh.

        Args:
            processes: Read /proc as well, and look there for regions outside the roots. Without it
                `processes`, and what was found there, stay as they are.

        Returns:
            What is different now. What went wrong with a container is in its `missing`, with a
            root in `root_errors`.

        Raises:
            RegionClosed: After `close`.
            OSError: /proc cannot be listed.
        """
        with self._lock:
            if self._closed:
                raise RegionClosed("the Node has been closed; make a new one")
            changes = _Changes()
            self._scan_roots(changes)
            if processes:
                self.processes.refresh()
                if self._outside:
                    self._scan_mapped(changes)
            if changes:
                self._rows = None
            return changes.frozen()

    def _scan_roots(self, changes: _Changes) -> None:
        present: set[str] = set()
        self.root_errors = {}
        for root in self._expanded_roots():
            try:
                names = self._list_root(root)
            except OSError as error:
                if self._expected or not isinstance(error, FileNotFoundError):
                    self.root_errors[root] = error
                self._listings.pop(root, None)
                continue
            for name in names:
                if split_name(name) is not None:
                    directory = f"{root}/{name}"
                    if self._scan_container(directory, name, changes):
                        present.add(directory)
        for directory in self._watched.keys() - present:
            gone = self._watched.pop(directory).container
            self._close_region(gone)
            changes.removed.append(gone)

    def _expanded_roots(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for root in self.roots:
            matches = sorted(glob.glob(root)) if glob.has_magic(root) else [root]  # noqa: PTH207
            # Two ways to one directory are one root.
            found.update((os.path.realpath(each), None) for each in matches)
        return tuple(found)

    def _list_root(self, root: str) -> tuple[str, ...]:
        now_ns = time.time_ns()
        stamp = settled_stamp(os.stat(root), now_ns)  # noqa: PTH116
        known = self._listings.get(root)
        if known is not None and stamp is not None and known[0] == stamp:
            return known[1]
        names = []
        with os.scandir(root) as entries:
            for entry, _ in zip(entries, range(_ENTRIES_LIMIT), strict=False):
                names.append(entry.name)
        names.sort()
        self._listings[root] = (stamp, tuple(names))
        return self._listings[root][1]

    def _scan_container(self, directory: str, name: str, changes: _Changes) -> bool:
        """Bring one container up to date; False if it is no directory."""
        now_ns = time.time_ns()
        try:
            status = os.lstat(directory)
        except FileNotFoundError:
            return False
        except OSError:
            status = None
        if status is not None and not _is_directory(status):
            return False
        before = self._watched.get(directory)
        if before is not None and status is not None:
            stamp = settled_stamp(status, now_ns)
            if stamp is not None and stamp == before.stamp and self._is_current(before.container):
                return True
        watched = self._look_into(directory, name, before)
        self._watched[directory] = watched
        if before is None:
            changes.added.append(watched.container)
        elif watched.container is not before.container:
            changes.removed.append(before.container)
            changes.replaced.append(watched.container)
        return True

    def _is_current(self, container: Container) -> bool:
        if container.region is None:
            # Without a file, the directory tells when there is one; a file can become a region.
            missing = container.missing
            return missing is not None and missing.reason is MissingReason.NO_FILE
        return not container.region.is_stale()

    def _look_into(self, directory: str, name: str, before: _Watched | None) -> _Watched:
        listing = list_directory(directory)
        parts = split_name(name)
        assert parts is not None  # noqa: S101 (only such names come here)
        pod_uid, container_name = parts
        container = Container(pod_uid, container_name, directory)
        region: Region | None = None
        stamp = listing.stamp
        if listing.error is not None:
            container = attrs.evolve(container, missing=missing_for(listing.error))
        elif not listing.files:
            container = attrs.evolve(container, missing=NO_FILE)
        else:
            kept = None if before is None else before.container.region
            for file in listing.files:
                path = f"{directory}/{file}"
                others = tuple(each for each in listing.files if each != file)
                if kept is not None and kept.path == path and not kept.is_stale():
                    region = kept
                else:
                    try:
                        region = open_region(path)
                    except (RegionError, OSError) as error:
                        if container.missing is None:
                            container = attrs.evolve(
                                container,
                                region_path=path,
                                missing=missing_for(error),
                                other_files=others,
                            )
                        continue
                container = attrs.evolve(
                    container, region_path=path, region=region, missing=None, other_files=others
                )
                if file != listing.files[0]:
                    stamp = None  # a newer file is being made; look again
                break
        if before is not None:
            if _same(before.container, container):
                return _Watched(stamp, before.container)
            if before.container.region is not container.region:
                self._close_region(before.container)
        if region is not None and (before is None or before.container.region is not region):
            self._set.adopt(region)
        return _Watched(stamp, container)

    def _close_region(self, container: Container) -> None:
        if container.region is not None:
            self._set.discard(container.region.path)

    def _scan_mapped(self, changes: _Changes) -> None:
        inside = set()
        for watched in self._watched.values():
            region = watched.container.region
            if region is not None:
                inside.add(self.processes.identity(region))
        found = {
            (mapped.device, mapped.inode): mapped
            for mapped in self.processes.mapped_regions()
            if (mapped.device, mapped.inode) not in inside
        }
        for key in self._mapped.keys() - found.keys():
            _, gone = self._mapped.pop(key)
            self._close_region(gone)
            changes.removed.append(gone)
        per_container: dict[str | None, int] = {}
        for key, mapped in found.items():
            process = self.processes.get(mapped.pids[0])
            container_id = None if process is None else process.container
            owner = None if container_id is None else container_id.id
            per_container[owner] = per_container.get(owner, 0) + 1
            if per_container[owner] > _OUTSIDE_LIMIT_PER_CONTAINER:
                continue
            if key in self._mapped or len(self._mapped) >= _OUTSIDE_LIMIT:
                continue
            region = None
            missing = None
            try:
                region = self.processes.open_mapped(mapped)
            except (RegionError, OSError) as error:
                missing = missing_for(error)
            container = Container(
                pod_uid=None if container_id is None else container_id.pod_uid,
                name=None,
                directory=None,
                region_path=None if region is None else region.path,
                region=region,
                missing=missing,
                container_id=container_id,
                pids=mapped.pids,
            )
            if region is not None:
                self._set.adopt(region)
            self._mapped[key] = (mapped, container)
            changes.added.append(container)

    # ---- what they hold --------------------------------------------------------------------------

    def snapshot(self) -> NodeSnapshot:
        """Read all regions in one native call.

        A region that fails has its code and no rows (`RegionTable.error` tells why); the next
        refresh opens it anew or says what is wrong with it.

        Raises:
            RegionClosed: After `close`.
        """
        with self._lock:
            table = self._set.read()
            if self._rows is None:
                by_path = {
                    container.region.path: container
                    for container in self.containers
                    if container.region is not None
                }
                self._rows = (
                    tuple(by_path[path] for path in table.paths),
                    tuple(each for each in self.containers if each.region is None),
                )
            return NodeSnapshot(*self._rows, table)

    def view(self) -> tuple[ContainerView, ...]:
        """Refresh, then look at every container with the processes behind its slots.

        All in the order that proves what is dead: the regions first, /proc after them.

        Raises:
            RegionClosed: After `close`.
            OSError: /proc cannot be listed.
        """
        with self._lock:
            self.refresh()
            looked: list[tuple[Container, RegionSnapshot | None, RegionError | None]] = []
            for container in self.containers:
                snapshot = error = None
                if container.region is not None:
                    try:
                        snapshot = container.region.snapshot()
                    except RegionError as failure:
                        error = failure
                looked.append((container, snapshot, error))
            self.processes.refresh()
            return tuple(
                ContainerView(
                    container,
                    snapshot,
                    None if snapshot is None else self.match(container, snapshot),
                    error,
                )
                for container, snapshot, error in looked
            )

    def match(self, container: Container, snapshot: RegionSnapshot) -> RegionProcesses:
        """`ProcessTable.match` for a container of this node.

        Raises:
            ValueError: The container has no region.
            RegionClosed: Its region has been closed.
        """
        if container.region is None:
            raise ValueError("the container has no region")
        return self.processes.match(container.region, snapshot, pod_uid=container.pod_uid)

    def pod_name(self, container: Container) -> PodName | None:
        """The names of a container's pod; None if no resolver knows them."""
        container_id = None if container.container_id is None else container.container_id.id
        return self.names.resolve(container.pod_uid, container.name, container_id)

    def open(self, container: Container) -> Region:
        """Open a container's region for writing; the caller closes it.

        Raises:
            ValueError: The container has no region.
            RegionStale: The file is another one than the container's region by now.
            RegionError, OSError: As `open_region`.
        """
        known = container.region
        if known is None:
            raise ValueError("the container has no region")
        if container.directory is None:
            for mapped, each in list(self._mapped.values()):
                if each is container:
                    return self.processes.open_mapped(mapped, writable=True)
        region = open_region(known.path, writable=True, layout=known.layout)
        if region.file_id != known.file_id:
            region.close()
            raise RegionStale(
                f"{known.path!r} has been replaced; refresh and try again", path=known.path
            )
        return region


@attrs.define
class _Changes:
    added: list[Container] = attrs.field(factory=list)
    removed: list[Container] = attrs.field(factory=list)
    replaced: list[Container] = attrs.field(factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.replaced)

    def frozen(self) -> NodeChanges:
        return NodeChanges(tuple(self.added), tuple(self.removed), tuple(self.replaced))


def _is_directory(status: os.stat_result) -> bool:
    return (status.st_mode & 0o170000) == 0o040000


def _same(before: Container, after: Container) -> bool:
    return (
        before.region is after.region
        and before.region_path == after.region_path
        and before.missing == after.missing
        and before.other_files == after.other_files
    )
