"""A process of the node, and how it maps a region."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from .cgroups import ContainerId


@attrs.frozen
class HostProcess:
    """A process as /proc shows it. Together, `pid` and `start_time_ticks` are its identity.

    Attributes:
        pid: Its pid in the namespace of the /proc that was read; the host's, on the host.
        start_time_ticks: When it started, clock ticks after boot (field 22 of ``stat``).
        ns_pids: Its pids from that namespace to its own, the innermost one; the last is what
            stands in its slot.
        uid: Its effective user.
        user: That user's name in the passwd file, else the number.
        command: Command line, raw and hostile, 4,096 characters at most; ``[name]`` where there is
            none. Use `libhamiregion.text.printable` before showing it.
        container: The container that its cgroup names, if any.
    """

    pid: int
    start_time_ticks: int
    ns_pids: tuple[int, ...]
    uid: int
    user: str
    command: str
    container: ContainerId | None


@attrs.frozen
class RegionMapping:
    """A process's mapping of a region, all its mappings of the file taken together.

    Attributes:
        process: The process.
        length_bytes: How much of the file it maps; more than the file where it maps it twice.
        writable: Whether it may write; who may not is none of the region's users.
    """

    process: HostProcess
    length_bytes: int
    writable: bool
