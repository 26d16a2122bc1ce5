"""What containers may write into labels over time, and not only at one moment.

A container can show another uuid, or its processes another program, at every look. Prometheus keeps
each series that it has ever seen for weeks, so the number of different values is bounded too.
"""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING

from libhamiregion.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libhamiregion.node import HostProcess

    from .naming import Identity

#: What stands for all further values.
OTHER = "other"

# A container has 16 devices at most, and real ones keep their uuids.
_UUIDS_PER_CONTAINER = 64
# A container that goes and comes again has not got others: a region outside the roots comes and
# goes as its owner maps it.
_GONE_CONTAINERS = 1024
# Regions that only their path tells apart are of no container at all: anybody can make some.
_PATHS = 256
# A process calls itself what it likes.
_PROGRAM_LIMIT = 64


class LabelLedger:
    """Remembers which values each container, and each process, has been given as labels.

    Threads: may be shared.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The longest gone come first, those that are there last.
        self._uuids: dict[tuple[str, ...], set[tuple[int, str]]] = {}
        self._paths: set[str] = set()
        self._programs: dict[tuple[int, int], str] = {}

    def uuid(self, identity: Identity, index: int, uuid: str) -> str:
        """The uuid of a container's device as a label: itself, or `OTHER` if there were too many.

        Args:
            identity: The container.
            index: Of the device.
            uuid: As its region has it.
        """
        with self._lock:
            known = self._uuids.setdefault(identity.labels, set())
            if (index, uuid) not in known:
                if len(known) >= _UUIDS_PER_CONTAINER:
                    return OTHER
                known.add((index, uuid))
            return uuid

    def path(self, path: str) -> str:
        """The path of a region as a label, where nothing else tells its container: or `OTHER`."""
        with self._lock:
            if path not in self._paths:
                if len(self._paths) >= _PATHS:
                    return OTHER
                self._paths.add(path)
            return path

    def program(self, process: HostProcess | None) -> str:
        """The program of a process: of its command line the first word's last part.

        As it was when it was first asked for. Arguments can hold secrets, and change with every
        job.
        """
        if process is None:
            return ""
        key = (process.pid, process.start_time_ticks)
        with self._lock:
            known = self._programs.get(key)
            if known is None:
                words = process.command.split(maxsplit=1)
                name = words[0].rstrip("/").rpartition("/")[2] if words else ""
                known = self._programs[key] = printable(name, _PROGRAM_LIMIT)
            return known

    def keep(self, identities: Iterable[Identity], processes: Iterable[HostProcess]) -> None:
        """Forget other processes, and other containers once too many have gone after them."""
        containers: set[tuple[str, ...]] = {identity.labels for identity in identities}
        pids = {(process.pid, process.start_time_ticks) for process in processes}
        with self._lock:
            here = containers & self._uuids.keys()
            for labels in here:
                self._uuids[labels] = self._uuids.pop(labels)
            gone = len(self._uuids) - len(here)
            for longest_gone in list(islice(self._uuids, max(0, gone - _GONE_CONTAINERS))):
                del self._uuids[longest_gone]
            for ended in self._programs.keys() - pids:
                del self._programs[ended]
