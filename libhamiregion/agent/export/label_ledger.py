"""What containers may write into labels over time, and not only at one moment.

A container can show another uuid, or its processes another program, at every look. Prometheus keeps
each series that it has ever seen for weeks, so the number of different values is bounded too.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from libhamiregion.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libhamiregion.host import HostProcess

    from .naming import Identity

#: What stands for all further values.
OTHER = "other"

# A container has 16 devices at most, and real ones keep their uuids.
_UUIDS_PER_CONTAINER = 64
# A process calls itself what it likes.
_PROGRAM_LIMIT = 64


class LabelLedger:
    """Remembers which values each container, and each process, has been given as labels.

    Threads: may be shared.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uuids: dict[tuple[str, ...], set[tuple[int, str]]] = {}
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
        """Forget all other containers and processes."""
        containers = {identity.labels for identity in identities}
        pids = {(process.pid, process.start_time_ticks) for process in processes}
        with self._lock:
            for gone in self._uuids.keys() - containers:
                del self._uuids[gone]
            for ended in self._programs.keys() - pids:
                del self._programs[ended]
