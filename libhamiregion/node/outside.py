"""Regions outside the roots, found through the processes that map them."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from libhamiregion.change_detector import is_readable
from libhamiregion.errors import RegionError

from .containers import Container, missing_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from libhamiregion.region import Region

    from .cgroups import ContainerId
    from .mapped import MappedRegion
    from .processes import ProcessTable

# A process can map any number of files that look like regions.
_LIMIT = 4_096
_LIMIT_PER_CONTAINER = 16

#: A file as maps prints it: device and inode.
Identity = tuple[int, int]
#: A container as it was and as it is; None where there is none.
Change = tuple[Container | None, Container | None]


@attrs.frozen
class _Outside:
    mapped: MappedRegion
    container: Container
    # Whose share of the limit it takes.
    payer: str


class OutsideRegions:
    """What processes map that lies in no root.

    A region is kept open for as long as somebody maps it for writing, whatever becomes of its name
    and of the process through which it was found.

    Threads: its user lets only one in at a time.
    """

    def __init__(self, table: ProcessTable) -> None:
        self._table = table
        self._found: dict[Identity, _Outside] = {}

    @property
    def containers(self) -> list[Container]:
        """One for each, in the order in which they were found."""
        return [outside.container for outside in self._found.values()]

    def has_news(self, inside: AbstractSet[Identity]) -> bool:
        """Whether the table knows mapped files that are neither inside a root nor known."""
        known = inside | self._found.keys()
        return next(self._table.mapped_files(without=known), None) is not None

    def scan(
        self, inside: AbstractSet[Identity], files: AbstractSet[tuple[int, int]]
    ) -> Iterator[Change]:
        """Bring it up to date with the table; yield what has changed.

        Args:
            inside: The open regions of the roots.
            files: All files of the roots that may be regions, device and inode as `os.stat` gives
                them: an older one, or one that cannot be opened, is not outside either.
        """
        table = self._table
        good = {
            identity
            for identity, outside in self._found.items()
            if outside.container.region is not None and is_readable(outside.container.region)
        }
        mapped = {each.identity: each for each in table.mapped_files(without=inside | good)}
        for identity in list(self._found):
            if identity in inside or not (identity in mapped or self._is_mapped(identity)):
                yield self._found.pop(identity).container, None
        tried = Counter(
            outside.payer for identity, outside in self._found.items() if identity not in mapped
        )
        for identity, file in mapped.items():
            tried[file.payer] += 1
            known = self._found.get(identity)
            before = None if known is None else known.container
            if before is None and (
                tried[file.payer] > _LIMIT_PER_CONTAINER or len(self._found) >= _LIMIT
            ):
                continue
            each = table.resolve(file)
            # Monitors map for a while what its container has left behind.
            left_over = each.deleted and not each.exclusive
            is_read = before is not None and before.region is not None
            if not is_read and (left_over or self._is_inside(each, files)):
                if before is not None:
                    yield self._found.pop(identity).container, None
                continue
            container = self._look_at(each)
            if before is not None and before.region is None and before.missing == container.missing:
                container = before
            self._found[identity] = _Outside(each, container, file.payer)
            if container is not before:
                yield before, container

    def open(self, container: Container) -> Region | None:
        """Open one for writing, through any process that maps it now; None if it is none of them.

        Raises:
            RegionStale: Its name is gone, or is another file's now.
            RegionError, OSError: As `open_region`.
        """
        for (device, inode), outside in self._found.items():
            if outside.container is container:
                pids = tuple(
                    process.pid
                    for process in self._table.mappers(device, inode, writable=True)
                    if process.pid not in outside.mapped.pids
                )
                mapped = attrs.evolve(outside.mapped, pids=outside.mapped.pids + pids)
                return self._table.open_mapped(mapped, writable=True)
        return None

    def clear(self) -> None:
        """Forget all; their regions are the caller's to close."""
        self._found.clear()

    def _is_mapped(self, identity: Identity) -> bool:
        own = self._table.own_pid
        mappers = self._table.mappers(*identity, writable=True)
        return any(process.pid != own for process in mappers)

    def _is_inside(self, mapped: MappedRegion, files: AbstractSet[tuple[int, int]]) -> bool:
        if mapped.deleted:
            return False
        for pid in mapped.pids:
            path = f"{self._table.proc}/{pid}/root{mapped.path_in_namespace}"
            try:
                status = os.lstat(path)
            except OSError:
                continue
            # The inode number is the same in maps, where the device's may not be.
            return status.st_ino == mapped.inode and (status.st_dev, status.st_ino) in files
        return False

    def _look_at(self, mapped: MappedRegion) -> Container:
        region: Region | None = None
        missing = None
        try:
            region = self._table.open_mapped(mapped)
        except (RegionError, OSError) as error:
            missing = missing_for(error)
        container_id = self._container_id(mapped, region)
        return Container(
            pod_uid=None if container_id is None else container_id.pod_uid,
            name=None,
            directory=None,
            region_path=None if region is None else region.path,
            region=region,
            missing=missing,
            container_id=container_id,
            pids=mapped.pids,
        )

    def _container_id(self, mapped: MappedRegion, region: Region | None) -> ContainerId | None:
        """Of the processes that are proved to have the slots; else of who maps nothing else."""
        table = self._table
        if region is not None:
            try:
                slots = table.match(region, region.snapshot()).slots
            except RegionError:
                slots = ()
            owners = Counter(slot.process.container for slot in slots if slot.process is not None)
            if owners:
                return owners.most_common(1)[0][0]
        process = table.get(mapped.pids[0])
        return None if process is None else process.container
