"""Processes of a node, the files they map, and the slots that are theirs."""

from __future__ import annotations

import mmap
from collections import Counter, defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from libhamiregion.text import count_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Mapping as MappingOf

    from libhamiregion.models import RegionSnapshot

    from .names import ContainerId
    from .share import Share

GapReason: TypeAlias = Literal["no_time", "blocked", "too_large"]

SlotState: TypeAlias = Literal["alive", "dead", "unknown"]

#: What the numbers in `SlotStates.states` mean.
SLOT_STATES = ("unknown", "alive", "dead")

#: A file as maps prints it: device and inode. `os.stat` can give another device number.
FileIdentity: TypeAlias = tuple[int, int]

#: The programs of HAMi and of volcano-vgpu that write launch marks and SM switches.
MONITOR_NAMES = frozenset({"vGPUmonitor", "volcano-vgpu-monitor"})
_KEPT_BYTES_PER_FILE = 512


@attrs.frozen
class HostProcess:
    """A process as /proc shows it. Together, `pid` and `start_time_ticks` are its identity.

    Attributes:
        pid: Its pid in the namespace of the /proc that was read; the host's, on the host.
        start_time_ticks: Start time, clock ticks after boot (field 22 of ``stat``).
        ns_pids: Its pids from that namespace to its own, the innermost one; the last is the pid in
            its slot.
        uid: Its effective user.
        user: That user's name in the passwd file, else the number.
        command: Command line, raw and hostile, 4,096 characters at most; ``[name]`` without one.
            Use `libhamiregion.text.printable` before showing it.
        container: The container that its cgroup names, if any.
    """

    pid: int
    start_time_ticks: int
    ns_pids: tuple[int, ...]
    uid: int
    user: str
    command: str
    container: ContainerId | None

    @property
    def pod_uid(self) -> str | None:
        """The pod that its cgroup names, if any."""
        return None if self.container is None else self.container.pod_uid


def monitor_in(command: str) -> str | None:
    """The name of HAMi's monitor, or of volcano-vgpu's, if a command line begins with it."""
    program = command.partition(" ")[0].rpartition("/")[2]
    return program if program in MONITOR_NAMES else None


def is_monitor(process: HostProcess) -> bool:
    """Whether a process has the name of HAMi's monitor, or of volcano-vgpu's."""
    return monitor_in(process.command) is not None


@attrs.frozen
class Mapping:
    """What a process maps of one file, all its mappings of it taken together.

    Attributes:
        device: The file system's device number as maps prints it; on some file systems `os.stat`
            gives another one.
        inode: The file's inode number as maps prints it.
        start: First address of the first of them.
        end: The address behind it.
        length_bytes: Sum over all of them.
        writable: Whether one of them may be written.
        path: As the process sees it, raw.
        deleted: Whether that name is gone.
    """

    device: int
    inode: int
    start: int
    end: int
    length_bytes: int
    writable: bool
    path: str
    deleted: bool

    @property
    def identity(self) -> FileIdentity:
        """The file."""
        return self.device, self.inode


@attrs.frozen
class FileUser:
    """A process that maps a file.

    Attributes:
        process: The process.
        namespace: The name of its pid namespace; None if it may not be read.
        mapping: The file.
    """

    process: HostProcess
    namespace: str | None
    mapping: Mapping

    @property
    def pid(self) -> int:
        """The pid that it would have in its slot."""
        return self.process.ns_pids[-1]

    @property
    def container_id(self) -> str | None:
        """The container that its cgroup names."""
        return None if self.process.container is None else self.process.container.id


@attrs.frozen
class ProcessGap:
    """Processes that a refresh could not read: their mappings are not known.

    Attributes:
        container: The container that they are in; None outside of containers.
        cgroup: The container's id; without a container, the upper part of the cgroup's path, raw.
        count: The number of processes.
        reason: ``"no_time"``: the refresh had no time left; a later one reads them.
            ``"blocked"``: reading a process does not end (its address space is locked, for example
            by a file system that does not answer), or processes of that container keep as many
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
        return f"the mappings of {count_text(self.count, 'process')} are not known: {why}"


@attrs.frozen
class Entry:
    """The facts about a process that are kept between refreshes.

    Attributes:
        start_time_ticks: Start time.
        process: The process; None for a kernel thread.
        budget_key: Whose share of a budget it takes.
        uses: Itself with each file that it maps, in a region's size or more.
        has_libvgpu: Whether it has libvgpu loaded; None if not known.
        sm_policy: As `procfs.sm_policy_in`, of processes that map such a file.
        share: What its environment says of its share of GPUs; None if it was not read since the
            driver lists the process. Its maps are then as old as that.
        visible_devices: CUDA_VISIBLE_DEVICES of a process that maps such a file; None if it is not
            set, or not known.
        oversubscribes: Whether CUDA_OVERSUBSCRIBE has libvgpu give such a process managed memory.
        is_readable: Whether its maps may be read.
        unread: Why its maps have not been read; None if they were, or may not be.
        read_s: When it was last read, on the monotonic clock; 0 if never.
        due_s: When it is to be read again, on that clock; 0 for the next listing.
    """

    start_time_ticks: int
    process: HostProcess | None = None
    budget_key: str = ""
    uses: tuple[FileUser, ...] = ()
    has_libvgpu: bool | None = None
    sm_policy: str = "default"
    share: Share | None = None
    visible_devices: str | None = None
    oversubscribes: bool = False
    is_readable: bool = True
    unread: GapReason | None = None
    read_s: float = 0.0
    due_s: float = 0.0

    @property
    def identity(self) -> tuple[int, int]:
        """The pid and the start time."""
        assert self.process is not None  # noqa: S101 (kernel threads are not read)
        return self.process.pid, self.process.start_time_ticks

    @property
    def kept_bytes(self) -> int:
        """About how much memory its mappings take."""
        return sum(_KEPT_BYTES_PER_FILE + len(each.mapping.path) for each in self.uses)


def gaps_of(entries: Iterable[Entry]) -> tuple[ProcessGap, ...]:
    """The processes that could not be read, by container and reason; the largest group first."""
    counts: Counter[tuple[str, ContainerId | None, GapReason]] = Counter()
    for each in entries:
        if each.unread is not None and each.process is not None:
            counts[each.budget_key, each.process.container, each.unread] += 1
    return tuple(
        ProcessGap(container, cgroup, count, reason)
        for (cgroup, container, reason), count in counts.most_common()
    )


@attrs.frozen
class ProcVisibility:
    """How much of the node a /proc shows.

    Attributes:
        sees_host: It is that of the first pid namespace: its pids are those that the driver and a
            slot's ``hostpid`` mean.
        sees_all_pids: Every process of the node is in it, with its pids and command line. The maps
            of some may still be refused.
        unreadable: Pids whose maps may not be read; sorted, without the host's own init.
        own_pid: This process's pid in it; 0 if it is not shown.
        is_own_namespace: Whether its pids are those of this process's own pid namespace.
    """

    sees_host: bool = False
    sees_all_pids: bool = False
    unreadable: tuple[int, ...] = ()
    own_pid: int = 0
    is_own_namespace: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether every process of the node is shown and can be read."""
        return self.sees_all_pids and not self.unreadable


@attrs.frozen(eq=False, slots=False)
class ProcessView:
    """The processes of a /proc at one moment, and the files that they map in a region's size.

    Attributes:
        proc: The root of that /proc.
        started_s: When reading it began, on the monotonic clock.
        ended_s: When it ended.
        entries: The processes by pid.
        visibility: How much of the node could be seen.
        gaps: The processes that could not be read, by container and reason.
    """

    proc: str = "/proc"
    started_s: float = float("-inf")
    ended_s: float = float("-inf")
    entries: dict[int, Entry] = attrs.field(factory=dict, repr=False)
    visibility: ProcVisibility = attrs.field(factory=ProcVisibility)
    gaps: tuple[ProcessGap, ...] = ()

    @cached_property
    def by_ns_pid(self) -> dict[int, list[Entry]]:
        """The processes by the pid that they have in their own namespace."""
        found: defaultdict[int, list[Entry]] = defaultdict(list)
        for _, entry in sorted(self.entries.items()):
            if entry.process is not None:
                found[entry.process.ns_pids[-1]].append(entry)
        return dict(found)

    @cached_property
    def by_inode(self) -> dict[int, tuple[FileUser, ...]]:
        """Inode to the processes that map a file with it, by pid.

        An overlay or btrfs shows one file on another device.
        """
        found: defaultdict[int, list[FileUser]] = defaultdict(list)
        for _, entry in sorted(self.entries.items()):
            for user in entry.uses:
                found[user.mapping.inode].append(user)
        return {inode: tuple(users) for inode, users in found.items()}

    @cached_property
    def possible_monitors(self) -> tuple[tuple[HostProcess, frozenset[FileIdentity]], ...]:
        """Processes that map files for writing: several, or one under the monitor's name."""
        found = []
        for process, uses in ((each.process, each.uses) for each in self.entries.values()):
            files = frozenset(each.mapping.identity for each in uses if each.mapping.writable)
            if process is not None and (len(files) > 1 or (files and is_monitor(process))):
                found.append((process, files))
        return tuple(found)

    def get(self, pid: int) -> HostProcess | None:
        """The process with a pid of this /proc; None if there is none, or a kernel thread."""
        entry = self.entries.get(pid)
        return None if entry is None else entry.process

    def __iter__(self) -> Iterator[HostProcess]:
        """All processes but kernel threads, in no particular order."""
        entries = self.entries.values()
        return iter([entry.process for entry in entries if entry.process is not None])

    @property
    def is_complete(self) -> bool:
        """Whether this is the /proc of the first pid namespace and every process may be read.

        What was not read although it may be is in `gaps`.
        """
        return self.visibility.is_complete

    def hides_users_of(self, pod_uid: str | None) -> bool:
        """Whether a process that could not be read may use the region of a pod.

        A container can reach the regions of its own pod only.

        Args:
            pod_uid: The pod; None if it is not known.
        """
        pods = {None if gap.container is None else gap.container.pod_uid for gap in self.gaps}
        return bool(pods if pod_uid is None else pods & {None, pod_uid})

    def has_libvgpu(self, process: HostProcess) -> bool | None:
        """Whether a process has libvgpu.so loaded, as of when it was read; None if not known."""
        entry = self.entry_of(process)
        return None if entry is None else entry.has_libvgpu

    def sm_policy(self, process: HostProcess) -> str:
        """Whether a process's environment has libvgpu limit SMs: force, disable or default.

        As of when it was read; the default if it is not known.
        """
        entry = self.entry_of(process)
        return "default" if entry is None else entry.sm_policy

    def entry_of(self, process: HostProcess) -> Entry | None:
        """The facts about a process; None if it is not the one of then."""
        entry = self.entries.get(process.pid)
        is_same = entry is not None and entry.start_time_ticks == process.start_time_ticks
        return entry if is_same else None

    def mappings(self, identity: FileIdentity) -> tuple[tuple[HostProcess, Mapping], ...]:
        """The processes that map a file shared, and how; sorted by pid.

        Mappings of less than a region's size do not count.

        Args:
            identity: Device and inode as maps prints them.
        """
        return tuple(
            (user.process, user.mapping)
            for user in self.users_of(identity)
            if user.mapping.identity == identity
        )

    def mappers(self, identity: FileIdentity, *, writable: bool = False) -> tuple[HostProcess, ...]:
        """The processes that map a file shared; sorted by pid.

        Args:
            identity: Device and inode as maps prints them.
            writable: Only those that may write it.
        """
        return tuple(
            process
            for process, mapping in self.mappings(identity)
            if mapping.writable or not writable
        )

    def is_unused(self, pod_uid: str | None, files: Iterable[FileIdentity]) -> bool:
        """Whether it is certain that no process uses any of a pod's regions.

        A monitor maps regions of other pods for writing too: it is known to have no libvgpu.

        Args:
            pod_uid: The pod; None if it is not known.
            files: Device and inode of the regions as maps prints them.
        """
        return (
            self.is_complete
            and not self.hides_users_of(pod_uid)
            and not any(
                process.pod_uid in {None, pod_uid} or self.has_libvgpu(process) is not False
                for each in files
                for process in self.mappers(each, writable=True)
            )
        )

    def lock_tools(self, identity: FileIdentity, region: RegionSnapshot) -> tuple[HostProcess, ...]:
        """The processes that may have signed a region's lock with a number; sorted by pid.

        They have locked bytes, which are pages of the file that are mapped in addition to the
        region. A process with a slot signs with its pid.

        Args:
            identity: Device and inode as maps prints them.
            region: The region.
        """
        slots = {each.pid for each in region.processes}
        size = -(-region.layout.size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        return tuple(
            process
            for process, mapping in self.mappings(identity)
            if mapping.length_bytes % size and process.ns_pids[-1] not in slots
        )

    def users_of(self, identity: FileIdentity) -> tuple[FileUser, ...]:
        """The processes that map a file, or one with its inode number on another device."""
        return self.by_inode.get(identity[1], ())


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
        unlisted: Processes that map the region for writing as its users do, and have no slot: their
            allocations are not counted. A child of fork() is one until it uses CUDA itself.
        onlookers: Processes that map it and are none of its users: they only read, belong to
            another pod or are outside the container's pid namespace (monitors, this library).
    """

    pids: Sequence[int]
    alive: MappingOf[int, HostProcess]
    dead: frozenset[int]
    unlisted: tuple[HostProcess, ...]
    onlookers: tuple[HostProcess, ...]

    @property
    def unknown(self) -> set[int]:
        """Pids in slots whose processes are neither known nor proved dead."""
        return set(self.pids).difference(self.alive, self.dead)

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
class SlotStates:
    """Whether the processes of all slots of a table live, and which processes they are.

    Attributes:
        states: One byte per row of ``table.processes``: an index into `SLOT_STATES`.
        processes: Row of ``table.processes`` to the process, of live ones. A process whose pid is
            in several slots of a region is under the last of them, to which it writes.
        proved: Row of ``table.regions`` to the result of the region's last proof.
    """

    states: bytes
    processes: MappingOf[int, HostProcess]
    proved: MappingOf[int, RegionProcesses]

    @property
    def unlisted(self) -> dict[int, tuple[HostProcess, ...]]:
        """Row of ``table.regions`` to the processes that use the region without a slot."""
        return {row: each.unlisted for row, each in self.proved.items() if each.unlisted}
