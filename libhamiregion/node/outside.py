"""Regions outside the roots, found through the processes that map them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import attrs

from libhamiregion.errors import RegionError, RegionStale
from libhamiregion.observation.containers import Container, missing_for
from libhamiregion.observation.without_region import looks_like_a_region
from libhamiregion.region import open_region

from . import procfs
from .directories import is_readable
from .names import with_names
from .procfs import Gone
from .workers import Blocked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from libhamiregion.observation.processes import FileIdentity, HostProcess, Mapping, ProcessView
    from libhamiregion.region import Region

    from .names import NodeNames
    from .processes import ProcessTable

# A process can map any number of files that look like regions.
_LIMIT = 4_096
_LIMIT_PER_CONTAINER = 16
_LINKS_LIMIT = 8
_NO_CAPABILITY = (
    "following /proc/<pid>/map_files needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE, the only way to"
    " open a region outside HAMi's directories"
)


@attrs.frozen
class MappedRegion:
    """A file that processes map for writing and that looks like a region, wherever it is.

    Attributes:
        identity: The file, as `ProcessTable.identity` gives it.
        path_in_namespace: The file as the first process sees it, raw and hostile. Never walked.
        deleted: Whether that name is gone.
        users: The processes that map it. Those that map the fewest regions come first: a user maps
            one, a monitor all of them.
        exclusive: Whether the first process maps no other region.
    """

    identity: FileIdentity
    path_in_namespace: str
    deleted: bool
    users: tuple[tuple[HostProcess, Mapping], ...]
    exclusive: bool

    @property
    def pids(self) -> tuple[int, ...]:
        """Pids of the processes in the /proc that was read."""
        return tuple(process.pid for process, _ in self.users)

    @property
    def payer(self) -> str:
        """The container, or else the process, whose share of a limit it takes."""
        process = self.users[0][0]
        return f"process {process.pid}" if process.container is None else process.container.id

    @property
    def inode_and_name(self) -> tuple[int, str]:
        """Its inode number, and the last part of its path."""
        return self.identity[1], self.path_in_namespace.rpartition("/")[2]


def mapped_regions(
    view: ProcessView, *, without: AbstractSet[FileIdentity] = frozenset()
) -> Iterator[MappedRegion]:
    """Every file mapped by other processes for writing that looks like a region.

    That is one called ``*.cache``, or one mapped in the exact length of a layout. Nothing below a
    container's directories is read: only /proc is.

    Args:
        view: The processes.
        without: Files to leave out, each as `ProcessTable.identity` gives it.
    """
    own = view.visibility.own_pid
    users: dict[FileIdentity, list[tuple[HostProcess, Mapping]]] = {}
    counts: Counter[int] = Counter()
    for user in chain.from_iterable(view.by_inode.values()):
        process, mapping = user.process, user.mapping
        if looks_like_a_region(mapping) and process.pid != own:
            counts[process.pid] += 1
            if mapping.identity not in without:
                users.setdefault(mapping.identity, []).append((process, mapping))
    for identity, found in users.items():
        found.sort(key=lambda each: (counts[each[0].pid], each[0].pid))
        process, mapping = found[0]
        is_only = counts[process.pid] == 1
        yield MappedRegion(identity, mapping.path, mapping.deleted, tuple(found), is_only)


def _link(table: ProcessTable, process: HostProcess, mapping: Mapping) -> str:
    """The link that leads to a mapped file itself; the kernel may wait for the process."""
    return f"{table.proc}/{process.pid}/map_files/{mapping.start:x}-{mapping.end:x}"


def resolve(table: ProcessTable, mapped: MappedRegion) -> MappedRegion:
    """Find out what a mapped file is called now.

    A rename or deletion shows in no figure of a process, so maps may have been read before it.
    """
    with contextlib.suppress(OSError, Blocked, Gone):
        process, mapping = mapped.users[0]
        name = table.ask(process, partial(os.readlink, _link(table, process, mapping)))
        path, deleted = procfs.split_deleted(name)
        return attrs.evolve(mapped, path_in_namespace=path, deleted=deleted)
    return mapped


def open_mapped(table: ProcessTable, mapped: MappedRegion, *, writable: bool = False) -> Region:
    """Open a mapped region through ``/proc/<pid>/map_files``.

    No directory of a container is walked. The file must be on one of the host's own mounts, of a
    type that cannot hang; the core checks that before it opens the file. The file is mapped then,
    and this process's own maps must show the device and inode of `mapped`: that holds on btrfs and
    overlay too, whose `stat` gives other numbers than maps.

    Raises:
        RegionStale: The name is gone, or no process maps the file any more.
        RegionError, OSError: As `open_region`; PermissionError where the capability is missing.
    """
    if mapped.deleted:
        raise _stale(mapped)
    refusal: RegionError | OSError | None = None
    for process, mapping in mapped.users[:_LINKS_LIMIT]:
        link = _link(table, process, mapping)
        try:
            region = table.ask(process, partial(open_region, link, writable=writable))
        except (FileNotFoundError, Blocked, Gone):
            continue
        except PermissionError as error:
            refusal = refusal or PermissionError(error.errno, _NO_CAPABILITY, link)
            continue
        except OSError as error:
            if error.errno != errno.EREMOTE:
                raise
            refusal = OSError(
                f"{mapped.path_in_namespace!r} is on a file system that the host has not mounted,"
                " or of a type that can hang; it is not opened"
            )
            continue
        if procfs.file_identity(region) == mapped.identity:
            return region
        region.close()
    raise refusal or _stale(mapped)


def _stale(mapped: MappedRegion) -> RegionStale:
    return RegionStale(
        f"{mapped.path_in_namespace!r} of process {mapped.pids[0]} is mapped, but its name leads to"
        " it no more; it was deleted or replaced",
        path=mapped.path_in_namespace,
    )


class OutsideRegions:
    """The regions that processes map and that lie in no root.

    A region is kept open for as long as a process maps it for writing, whatever becomes of its name
    and of the process through which it was found.

    Threads: one at a time.
    """

    def __init__(self, table: ProcessTable, names: NodeNames) -> None:
        self._table = table
        self._names = names
        self._found: dict[FileIdentity, Container] = {}

    @property
    def containers(self) -> list[Container]:
        """One for each region."""
        return list(self._found.values())

    def scan(self, inside: AbstractSet[FileIdentity], files: AbstractSet[tuple[int, str]]) -> None:
        """Bring it up to date with the table.

        Args:
            inside: The open regions of the roots.
            files: All files of the roots that may be regions, by inode and name: an older one, or
                one that cannot be opened, is not outside either.
        """
        found: dict[FileIdentity, Container] = {}
        counts: Counter[str] = Counter()
        for each in mapped_regions(self._table.view, without=inside):
            known = self._found.get(each.identity)
            region = None if known is None else known.region
            counts[each.payer] += 1
            if known is None and (
                counts[each.payer] > _LIMIT_PER_CONTAINER or len(found) >= _LIMIT
            ):
                continue
            if known is None or region is None or not is_readable(region):
                now = resolve(self._table, each)
                # Monitors map for a while the regions of containers that have gone.
                is_left_over = now.deleted and not now.exclusive
                is_inside = not now.deleted and now.inode_and_name in files
                if region is None and (is_left_over or is_inside):
                    continue
                container = self._open(now)
                if known is None or region is not None or known.missing != container.missing:
                    known = container
            found[each.identity] = with_names(self._names, known)
        self._found = found

    def open(self, container: Container) -> Region | None:
        """Open one for writing, through any process that maps it now; None if it is none of them.

        Raises:
            RegionStale: No process maps it any more.
            RegionError, OSError: As `open_region`.
        """
        if container not in self._found.values():
            return None
        for mapped in mapped_regions(self._table.view):
            if self._found.get(mapped.identity) == container:
                return open_mapped(self._table, resolve(self._table, mapped), writable=True)
        path = str(container.path_in_namespace)
        raise RegionStale(f"no process maps {path!r} any more", path=path)

    def clear(self) -> None:
        """Forget all; their regions are the caller's to close."""
        self._found.clear()

    def _open(self, mapped: MappedRegion) -> Container:
        region: Region | None = None
        missing = None
        try:
            region = open_mapped(self._table, mapped)
        except (RegionError, OSError) as error:
            missing = missing_for(error)
        container_id = mapped.users[0][0].container
        return Container(
            pod_uid=None if container_id is None else container_id.pod_uid,
            container_id=container_id,
            region_path=None if region is None else region.path,
            path_in_namespace=mapped.path_in_namespace,
            region=region,
            identity=None if region is None else mapped.identity,
            missing=missing,
            pids=mapped.pids,
        )
