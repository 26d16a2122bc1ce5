"""Each proved process of a read with each device of its region."""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import attrs

from .slot_tracker import SLOT_STATES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from libhamiregion.region_set import RegionTable

    from .containers import Container
    from .node_snapshot import NodeSnapshot
    from .slot_tracker import SlotStates

# In the columns of states.
_UNKNOWN: Final = SLOT_STATES.index("unknown")


@attrs.frozen(eq=False)
class Pairs:
    """Each proved process with each device of its region, as columns: one row per pair.

    A process that has slots in several regions stands under the first of them.

    Attributes:
        key: What it was made of, compared by content.
        containers: Those of the read that it was made of.
        states: The states that it was made of.
        slots: Of each pair the row of the process's slot in ``table.processes``.
        devices: Of each pair the row of the device in ``table.devices``.
        slot_of: Pid in /proc to the row of its slot, of every proved process.
        uuids: Of each device; empty where the region names none, or has named it before.
        unnamed: Rows of devices whose region names none yet.
        by_uuid: Uuid to the pairs of that device.
        of_region: Row of a region to the uuids of its devices.
        doubtful: Rows of regions with slots of which it is not known whose they are.
    """

    key: tuple[bytes, ...]
    containers: Sequence[Container]
    states: SlotStates
    slots: array[int]
    devices: array[int]
    slot_of: Mapping[int, int]
    uuids: Sequence[str]
    unnamed: frozenset[int]
    by_uuid: Mapping[str, Sequence[int]]
    of_region: Mapping[int, frozenset[str]]
    doubtful: frozenset[int]

    @classmethod
    def of(cls, snapshot: NodeSnapshot, states: SlotStates, key: tuple[bytes, ...]) -> Pairs:
        """Pair the processes and devices of one read."""
        table = snapshot.table
        regions, devices = table.regions, table.devices
        uuids: list[str] = []
        unnamed: list[int] = []
        of_region: dict[int, frozenset[str]] = {}
        for region, (first, rows) in enumerate(
            zip(regions.first_device, regions.device_rows, strict=True)
        ):
            named: dict[str, None] = {}
            for row in range(first, first + rows):
                uuid = devices.uuid(row) or ""
                if not uuid:
                    unnamed.append(row)
                # A region can say that several of its devices are the same one.
                uuids.append("" if uuid in named else uuid)
                named[uuid] = None
            of_region[region] = frozenset(named) - {""}
        slots, places = array("I"), array("I")
        slot_of: dict[int, int] = {}
        by_uuid: defaultdict[str, list[int]] = defaultdict(list)
        for slot, process in states.processes.items():
            if process.pid in slot_of:
                continue
            slot_of[process.pid] = slot
            region = table.processes.region[slot]
            first = regions.first_device[region]
            for row in range(first, first + regions.device_rows[region]):
                if uuids[row]:
                    by_uuid[uuids[row]].append(len(slots))
                slots.append(slot)
                places.append(row)
        doubtful = frozenset(
            region
            for region, (first, count) in enumerate(
                zip(regions.first_process, regions.process_count, strict=True)
            )
            if _UNKNOWN in states.states[first : first + count]
        )
        return cls(
            key,
            snapshot.containers,
            states,
            slots,
            places,
            slot_of,
            uuids,
            frozenset(unnamed),
            dict(by_uuid),
            of_region,
            doubtful,
        )

    def fits(self, snapshot: NodeSnapshot) -> bool:
        """Whether a read has the same devices in the same rows."""
        is_same = self.containers is snapshot.containers
        return is_same and self.key[:3] == shape_of(snapshot.table)


def shape_of(table: RegionTable) -> tuple[bytes, bytes, bytes]:
    """What rows of devices a read has, to be compared."""
    devices = table.devices
    return devices.region.tobytes(), devices.index.tobytes(), devices.uuid_bytes.tobytes()
