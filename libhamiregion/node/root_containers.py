"""The containers in the roots, kept up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from .change_detector import ChangeDetector
from .directories import is_unchanged, scan_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .containers import Container
    from .directories import DirectoryScan
    from .names import NodeNames
    from .roots import Roots


class RootContainers:
    """The containers whose directories lie in the roots.

    Only directories and regions that have changed are looked into again.

    Threads: one at a time.

    Args:
        roots: The roots.
        names: Names containers.
    """

    def __init__(self, roots: Roots, names: NodeNames) -> None:
        self._roots = roots
        self._names = names
        self._changes = ChangeDetector()
        self._scans: dict[str, DirectoryScan] = {}
        self._directories: Mapping[str, Mapping[str, str]] = {}
        # None where something has changed since.
        self._containers: tuple[Container, ...] | None = ()

    @property
    def containers(self) -> tuple[Container, ...]:
        """All of them, by root and directory; the same object while nothing changes."""
        if self._containers is None:
            scans = self._scans
            self._containers = tuple(
                [scans[each].container for each in self._directories if each in scans]
            )
        return self._containers

    def files(self) -> set[tuple[int, str]]:
        """Inode and name of every file that may be a region."""
        return {(file.id[1], file.name) for scan in self._scans.values() for file in scan.files}

    def scan(self) -> None:
        """Bring them up to date with the directories.

        What was found until an exception stays.
        """
        directories = self._roots.scan()
        due = self._changes.changed()
        # One that was not there when it was scanned may be back.
        if directories is not self._directories or len(self._scans) != len(directories):
            for gone in self._scans.keys() - directories.keys():
                self._store(gone, None)
            due = [each for each in due if each in directories]
            due += [each for each in directories if each not in self._scans]
            self._containers = None
            self._directories = directories
        for directory in due:
            before = self._scans.get(directory)
            scan = scan_directory(directory, directories[directory], before, self._names)
            self._store(directory, scan)

    def _store(self, directory: str, scan: DirectoryScan | None) -> None:
        before = self._scans.get(directory)
        self._containers = None
        if scan is None:
            if before is not None:
                del self._scans[directory]
                self._changes.drop(directory)
            return
        if before is not None and is_unchanged(before.container, scan.container):
            scan = attrs.evolve(scan, container=before.container)
        self._scans[directory] = scan
        self._changes.put(directory, directory, scan.stamp, scan.container.region)

    def replace(self, container: Container, named: Container) -> None:
        """Put a container in the place of another one, if that one is still there.

        Args:
            container: As it is.
            named: That container, under another name.
        """
        directory = container.directory
        scan = None if directory is None else self._scans.get(directory)
        if directory is not None and scan is not None and scan.container is container:
            self._containers = None
            self._scans[directory] = attrs.evolve(scan, container=named)

    def clear(self) -> None:
        """Forget all; their regions are the caller's to close."""
        self._containers = None
        self._changes.clear()
        self._scans.clear()
