"""Which slot's process is which of the driver's list, device by device."""

from __future__ import annotations

from array import array
from collections import defaultdict
from math import inf
from typing import TYPE_CHECKING, Final

from .driver import NvmlState
from .processes import SLOT_STATES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from libhamiregion.tables import RegionTable

    from .driver import NvmlProcess, NvmlSample
    from .model import Observation
    from .processes import HostProcess, ProcessView

#: In a column of rows: there is none.
NO_ROW: Final = 0xFFFFFFFF


def driver_gap(processes: ProcessView, sample: NvmlSample | None) -> str | None:
    """Why there are no figures of the driver: one sentence; None if there are.

    Args:
        processes: The node's processes.
        sample: The driver's sample; None if the driver was not asked.
    """
    if sample is None:
        return "the driver was not asked"
    if sample.state is not NvmlState.OK:
        return sample.message or sample.state.explanation
    if not sample.sees_all_processes:
        return "this program is not in the host's pid namespace; in Kubernetes, set hostPID: true"
    if not processes.visibility.is_own_namespace:
        return f"the pids in {processes.proc!r} are not the host's, as the driver's are"
    return None


class ProcessDeviceIndex:
    """Each proved process with each device of its region, as columns: one row per pair.

    A process that has slots in several regions is under the first of them.

    Attributes:
        states: State and process of every slot.
        slots: Of each pair the row of the process's slot in ``table.processes``.
        devices: Of each pair the row of the device in ``table.devices``.
        usages: Of each pair its row in ``table.usages``.
        slot_of: Pid in /proc to the row of its slot, of every proved process.
        uuids: Of each device; empty if the region has no uuid for it, or has it a second time.
        by_uuid: Uuid to the pairs of that device, by pid in /proc.
        of_region: Of each region the uuids of its devices.
        ambiguous: Rows of regions with slots whose processes are not known.
    """

    def __init__(self, observation: Observation) -> None:
        states, table = observation.proved(), observation.table
        self.states = states
        self.slots, self.devices, self.usages = array("I"), array("I"), array("I")
        self.slot_of: dict[int, int] = {}
        self.uuids: list[str] = []
        self.by_uuid: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self.of_region: list[set[str]] = []
        self.ambiguous: set[int] = set()
        unknown, uuids = SLOT_STATES.index("unknown"), table.devices.uuids()
        for region in range(len(table)):
            named: set[str] = set()
            for row in devices_of(table, region):
                uuid = uuids[row] or ""
                # A region can name one device twice.
                self.uuids.append("" if uuid in named else uuid)
                named.add(uuid)
            self.of_region.append(named - {""})
            first = table.regions.first_process[region]
            if unknown in states.states[first : first + table.regions.process_count[region]]:
                self.ambiguous.add(region)
        for slot, process in states.processes.items():
            if process.pid in self.slot_of:
                continue
            self.slot_of[process.pid] = slot
            rows = devices_of(table, table.processes.region[slot])
            for usage, row in enumerate(rows, table.processes.first_usage[slot]):
                self.by_uuid[self.uuids[row]][process.pid] = len(self.slots)
                self.slots.append(slot)
                self.devices.append(row)
                self.usages.append(usage)
        self.by_uuid.pop("", None)


def devices_of(table: RegionTable, region: int) -> range:
    """The rows of a region's devices."""
    first = table.regions.first_device[region]
    return range(first, first + table.regions.device_rows[region])


class Pairing:
    """The driver's figures of the processes of slots.

    Threads: may be shared.

    Args:
        observation: Taken with the slots.
        index: Of an observation with the same rows; None makes it.

    Attributes:
        observation: As given.
        index: Processes and their devices.
        rows_of_pairs: Of each pair its row in `figures`, or `NO_ROW` if the driver has no figure.

    Raises:
        OSError: /proc could not be listed.
    """

    def __init__(self, observation: Observation, index: ProcessDeviceIndex | None = None) -> None:
        self.observation = observation
        self.index = index or ProcessDeviceIndex(observation)
        sample = observation.sample
        if driver_gap(observation.processes, sample) is not None:
            sample = None
        self._sample = sample
        # A process that began after the sample has the pid of another one there.
        taken_s = -inf if sample is None else sample.taken_s + observation.suspended_s
        self._sampled_ticks = taken_s * observation.ticks_per_s
        columns = () if sample is None else sample.columns
        self._columns = {each.device_uuid: each for each in columns if each.device_uuid}
        self._idle = {
            uuid: None if sample is None else sample.unlisted(uuid)
            for uuid in {**self._columns, **self.index.by_uuid}
        }
        self.rows_of_pairs = self._find_rows()

    def _find_rows(self) -> array[int]:
        pairs, base = self.index, 0
        at = array("I", [NO_ROW]) * len(pairs.slots)
        alive = pairs.states.processes.values()
        too_new = {each.pid for each in alive if each.start_time_ticks > self._sampled_ticks}
        for uuid, absent in self._idle.items():
            columns = self._columns.get(uuid)
            rows = {} if columns is None else columns.rows
            # A process that came or went while the driver was asked uses an unknown amount.
            passing = frozenset() if columns is None else columns.sampled
            for pid, pair in pairs.by_uuid.get(uuid, {}).items():
                if pid in too_new:
                    continue
                if pid in rows:
                    at[pair] = base + rows[pid]
                elif absent is not None and pid not in passing:
                    at[pair] = base + len(rows)
            base += len(rows) + 1
        return at

    @property
    def has_driver(self) -> bool:
        """Whether the driver's figures can be matched."""
        return self._sample is not None

    def is_listed(self, uuid: str, pid: int) -> bool:
        """Whether the driver lists a process on a device."""
        columns = self._columns.get(uuid)
        return columns is not None and pid in columns.rows

    def _entries(
        self, process: HostProcess, without: Collection[str | None] = ()
    ) -> Sequence[NvmlProcess]:
        """The driver's entries of a process, without those of some devices."""
        if self._sample is None or process.start_time_ticks > self._sampled_ticks:
            return ()
        return self._sample.of_pid(process.pid, without=without)

    def figures(self, name: str) -> list[int]:
        """A column of the driver's figures, of all devices one after the other; -1 is not known.

        Args:
            name: Of a column of `ProcessColumns`.
        """
        found: list[int] = []
        for uuid, absent in self._idle.items():
            if uuid in self._columns:
                found += getattr(self._columns[uuid], name)
            figure = None if absent is None else getattr(absent, name)
            found.append(-1 if figure is None else figure)
        return found
