"""What is kept of a process between two readings of /proc, and what could not be read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .cgroups import ContainerId, Payer
    from .matching import HostProcess
    from .procfs import Mapping

GapReason: TypeAlias = Literal["no_time", "blocked", "too_large"]

_KEPT_BYTES_PER_FILE = 512


@attrs.frozen
class ProcessGap:
    """Processes that a refresh could not read: what they map is not known.

    Attributes:
        container: The container that they are in; None outside of containers.
        cgroup: The container's id; without a container, the upper part of the cgroup's path, raw.
        count: How many processes.
        reason: ``"no_time"``: the refresh had no time left; they are read by a later one.
            ``"blocked"``: a process does not let itself be
            read (its address space is locked, by a file system that does not answer, for example),
            and is not asked again while it lives; or processes of that container keep as many
            readers waiting as it may have. ``"too_large"``: there are more mappings than are read.
    """

    container: ContainerId | None
    cgroup: str
    count: int
    reason: GapReason

    @property
    def explanation(self) -> str:
        """The gap as a sentence."""
        why = {
            "no_time": "there was no time to read them yet",
            "blocked": "reading them, or others of their container, does not end",
            "too_large": "they have more mappings than are read",
        }[self.reason]
        processes = "1 process" if self.count == 1 else f"{self.count:,} processes"
        return f"the mappings of {processes} are not known: {why}"


@attrs.frozen
class Entry:
    """What is kept of a process between refreshes; `process` is None for kernel threads."""

    start_time_ticks: int
    process: HostProcess | None = None
    payer: Payer | None = None
    mappings: tuple[Mapping, ...] = ()
    namespace: str | None = None
    has_libvgpu: bool | None = None
    readable: bool = True
    unread: GapReason | None = None
    # When it was last read, on the monotonic clock.
    looked_at_s: float = 0.0
    # Whether that was the first time.
    is_first: bool = False
    # What was found out about the program that it runs.
    facts: dict[str, object] = attrs.field(factory=dict, eq=False)

    @property
    def identity(self) -> tuple[int, int]:
        """The pid and the start time."""
        assert self.process is not None  # noqa: S101 (kernel threads are not read)
        return self.process.pid, self.process.start_time_ticks

    def is_as_used(self, other: Entry) -> bool:
        """Whether another reading of a process says the same of who it is and what it maps."""
        return self is other or (
            self.process is other.process
            and self.mappings is other.mappings
            and self.namespace == other.namespace
        )

    @property
    def kept_bytes(self) -> int:
        """About how much memory its mappings take."""
        return sum(_KEPT_BYTES_PER_FILE + len(each.path) for each in self.mappings)


def gaps_of(entries: Iterable[Entry]) -> tuple[ProcessGap, ...]:
    """What could not be read, by container and reason; the largest first."""
    counts: Counter[tuple[str, ContainerId | None, GapReason]] = Counter()
    for each in entries:
        if each.unread is not None and each.payer is not None:
            counts[each.payer.cgroup, each.payer.container, each.unread] += 1
    return tuple(
        ProcessGap(container, cgroup, count, reason)
        for (cgroup, container, reason), count in counts.most_common()
    )
