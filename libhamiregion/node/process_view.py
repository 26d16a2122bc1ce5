"""One state of the process table: what is kept of each process, and who maps which file."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from . import procfs
from .mapped import looks_like_a_region

if TYPE_CHECKING:
    from .host_process import HostProcess
    from .liveness import Liveness
    from .procfs import Mapping

# The inode number that the kernel gives to the first pid namespace, always.
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"


@attrs.frozen
class Entry:
    """What is kept of a process between refreshes; `process` is None for kernel threads."""

    activity: tuple[bytes, ...]
    process: HostProcess | None = None
    mappings: tuple[Mapping, ...] = ()
    namespace: str | None = None
    readable: bool = True
    # CPU time that the look at it has cost, and when that was (monotonic clock).
    look_s: float = 0.0
    looked_at_s: float = 0.0


@attrs.frozen
class View:
    """One state of the table, replaced as a whole."""

    # Made after the entries were read.
    liveness: Liveness
    started_ns: int = 0
    entries: dict[int, Entry] = attrs.field(factory=dict)
    by_file: dict[tuple[int, int], tuple[tuple[Entry, Mapping], ...]] = attrs.field(factory=dict)
    # Pid to how many files it maps that look like regions.
    region_counts: dict[int, int] = attrs.field(factory=dict)
    unreadable: tuple[int, ...] = ()
    everybody: bool = False
    hidden: bool = True
    own_pid: int = 0


def view_of(
    directory: int,
    liveness: Liveness,
    started_ns: int,
    entries: dict[int, Entry],
    refused: list[int],
) -> View:
    """Put together what one pass over /proc has found; `directory` is that /proc."""
    everybody = _INITIAL_PID_NAMESPACE in (
        procfs.read_link(directory, "self/ns/pid"),
        procfs.read_link(directory, "1/ns/pid"),
    )
    own = procfs.read_link(directory, "self") or ""
    by_file: dict[tuple[int, int], list[tuple[Entry, Mapping]]] = defaultdict(list)
    region_counts: dict[int, int] = {}
    unreadable = list(refused)
    for pid in sorted(entries):
        entry = entries[pid]
        for mapping in entry.mappings:
            by_file[mapping.device, mapping.inode].append((entry, mapping))
        if entry.mappings:
            region_counts[pid] = sum(map(looks_like_a_region, entry.mappings))
        # The init of the host itself is no process of a container, also where it may not be
        # looked at.
        is_host_init = everybody and entry.process is not None and entry.process.ns_pids == (1,)
        if not entry.readable and not is_host_init:
            unreadable.append(pid)
    return View(
        liveness=liveness,
        started_ns=started_ns,
        entries=entries,
        by_file={key: tuple(users) for key, users in by_file.items()},
        region_counts=region_counts,
        unreadable=tuple(sorted(unreadable)),
        everybody=everybody,
        # hidepid leaves out other users' processes, and the first of all is one of them.
        hidden=bool(refused) or 1 not in entries,
        own_pid=int(own) if own.isdigit() else 0,
    )
