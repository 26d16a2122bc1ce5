"""Which host process a slot of a region belongs to."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .cgroups import ContainerId

SlotState: TypeAlias = Literal["alive", "dead", "unknown"]

#: The programs of HAMi and of volcano-vgpu that write launch marks and SM switches.
MONITOR_NAMES = frozenset({"vGPUmonitor", "volcano-vgpu-monitor"})


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


def is_monitor(process: HostProcess) -> bool:
    """Whether a process has the name of HAMi's monitor, or of volcano-vgpu's."""
    return PurePosixPath(process.command.partition(" ")[0]).name in MONITOR_NAMES


@attrs.frozen
class SlotMatch:
    """One slot of a region and the process that it belongs to.

    Attributes:
        pid: The pid in the slot, of the container's namespace.
        state: ``"alive"``: `process` maps the region and has that pid in its own namespace;
            ``"dead"``: no process does, by the proof by which `Region.reap` frees slots;
            ``"unknown"``: /proc does not show enough, or several processes could be meant.
        process: The process if alive, else None.
    """

    pid: int
    state: SlotState
    process: HostProcess | None


@attrs.frozen
class RegionProcesses:
    """The processes of a region.

    Attributes:
        pids: The pids of the slots that were asked about, in their order.
        alive: Pid in a slot to the process that it is.
        dead: Pids in slots whose process is proved dead.
        unlisted: Processes that map the region for writing as its users do, and have no slot: what
            they allocate is counted by nobody. A child of fork() is one until it uses CUDA itself.
        onlookers: Processes that map it and are none of its users: they only read, belong to
            another pod or stand outside the container's pid namespace (monitors, this library).
    """

    pids: Sequence[int]
    alive: Mapping[int, HostProcess]
    dead: frozenset[int]
    unlisted: tuple[HostProcess, ...]
    onlookers: tuple[HostProcess, ...]

    def state(self, pid: int) -> SlotState:
        """Whether the process of a slot with this pid is alive, dead or unknown."""
        if pid in self.alive:
            return "alive"
        return "dead" if pid in self.dead else "unknown"

    @property
    def slots(self) -> tuple[SlotMatch, ...]:
        """One entry per pid of `pids`, in their order."""
        return tuple(SlotMatch(pid, self.state(pid), self.alive.get(pid)) for pid in self.pids)

    @property
    def host_pids(self) -> dict[int, int]:
        """Pid in the slot -> pid in /proc, of those that are alive."""
        return {pid: process.pid for pid, process in self.alive.items()}


@attrs.frozen
class Mapper:
    """A process that maps the region.

    Attributes:
        process: The process.
        namespace: The name of its pid namespace, None if it may not be looked at.
        may_use: Whether it can be a user of the region at all.
    """

    process: HostProcess
    namespace: str | None
    may_use: bool

    @property
    def pid(self) -> int:
        """The pid that it would have in its slot."""
        return self.process.ns_pids[-1]


def match_slots(
    pids: Sequence[int],
    mappers: Iterable[Mapper],
    *,
    sees_host: bool,
    dead: Callable[[Sequence[int]], frozenset[int]],
    shared: bool = False,
) -> RegionProcesses:
    """Find the process of each slot among those that map the region.

    Args:
        pids: The pids in the slots.
        mappers: The processes that map the region's file.
        sees_host: Whether the pids of the mappers begin with those of the first pid namespace.
        dead: Tells which of the pids without a process are of dead ones, and is called at most
            once. That a mapper was not matched proves nothing.
        shared: Whether the region has several containers. Then none of them is the one whose
            processes count, and a pid that stands for processes of two of them for neither.
    """
    onlookers: list[Mapper] = []
    users: list[Mapper] = []
    for mapper in mappers:
        (users if mapper.may_use else onlookers).append(mapper)
    named = set(pids)
    bystanders = _Bystanders(
        [each for each in users if each.pid in named], sees_host=sees_host, shared=shared
    )

    candidates: dict[int, list[Mapper]] = defaultdict(list)
    inside: list[Mapper] = []
    for mapper in users:
        if mapper in bystanders:
            onlookers.append(mapper)
        else:
            inside.append(mapper)
            if mapper.pid in named:
                candidates[mapper.pid].append(mapper)

    found: dict[int, HostProcess] = {}
    everywhere = (each.namespace for same in candidates.values() for each in same)
    home = None if shared else _majority(everywhere)
    for pid, same in candidates.items():
        at_home = same
        if len(same) > 1:
            at_home = [each for each in same if each.namespace == home and not shared]
        if len(at_home) == 1:
            found[pid] = at_home[0].process

    lost = [pid for pid in named if pid not in found]
    matched = {process.pid for process in found.values()}
    # Of several that could be one slot's process it is not known which has none.
    ambiguous = candidates.keys() - found.keys()
    return RegionProcesses(
        pids=pids,
        alive=found,
        dead=dead(lost) if lost else frozenset(),
        unlisted=_processes(
            each for each in inside if each.process.pid not in matched and each.pid not in ambiguous
        ),
        onlookers=_processes(onlookers),
    )


class _Bystanders:
    """Tells processes that map the region beside its container from those inside."""

    def __init__(self, named: Sequence[Mapper], *, sees_host: bool, shared: bool) -> None:
        # A container that has a namespace of its own has no processes in the host's.
        inner = [each for each in named if len(each.process.ns_pids) > 1]
        self._host_too = not (sees_host and inner)
        asked = () if shared else named if self._host_too else inner
        containers = [_container(each) for each in asked]
        self._home = _majority(containers)
        self._contested = self._home is None and any(containers)

    def __contains__(self, mapper: Mapper) -> bool:
        if not self._host_too and len(mapper.process.ns_pids) == 1:
            return True
        container = _container(mapper)
        return container is not None and (
            self._contested or (self._home is not None and container != self._home)
        )


def _container(mapper: Mapper) -> str | None:
    container = mapper.process.container
    return None if container is None else container.id


def _majority(names: Iterable[str | None]) -> str | None:
    """The name that occurs more often than any other, None if there is none."""
    ranking = Counter(name for name in names if name is not None).most_common(2)
    if not ranking or (len(ranking) == 2 and ranking[0][1] == ranking[1][1]):
        return None
    return ranking[0][0]


def _processes(mappers: Iterable[Mapper]) -> tuple[HostProcess, ...]:
    return tuple(sorted((each.process for each in mappers), key=lambda process: process.pid))
