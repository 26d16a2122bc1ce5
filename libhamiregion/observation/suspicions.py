"""Suspicions: comparisons of columns that say which regions have to be examined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from libhamiregion.layouts import LAYOUTS, SLOT_CAPACITY, Layout, mapped_length
from libhamiregion.units import sm_limit_or_none

from .figures import IMPOSSIBLE_BYTES, LARGEST
from .pairing import devices_of
from .processes import SLOT_STATES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.tables import RegionTable

    from .model import Observation
    from .processes import HostProcess

#: From here on the table of slots is nearly full.
NEARLY_FULL: Final = SLOT_CAPACITY * 9 // 10
#: The length that maps shows for a layout that is mapped as a whole.
WHOLE_BYTES = {layout: mapped_length(layout.size_bytes) for layout in LAYOUTS}
LAYOUT_OF_LENGTH = {length: layout for layout, length in WHOLE_BYTES.items()}

_DEAD = SLOT_STATES.index("dead")
_SEMAPHORE_VALUE = 0xFFFFFFFF


def taken_locks(table: RegionTable) -> dict[int, tuple[int, int]]:
    """Find locks that are taken or damaged: row of the region to semaphore and owner.

    A lock that is merely taken is an everyday sight: from HAMi-core's September on every allocation
    of a container waits for it.
    """
    regions = table.regions
    rows = zip(regions.code, regions.layout, regions.semaphore, regions.owner_pid, strict=True)
    found = {}
    for row, (code, layout, word, owner) in enumerate(rows):
        value = word & _SEMAPHORE_VALUE
        # Locks of layouts without a version are only checked for impossible values.
        if code == 0 and (value != 1 or owner) and (LAYOUTS[layout].has_lock or value > 1):
            found[row] = value, owner
    return found


def foreign_host_pids(seen: Observation) -> dict[int, int]:
    """Find live processes whose slot has another host pid: row of the slot to that pid."""
    stored = seen.table.processes.host_pid
    alive = seen.proved().processes.items()
    return {at: stored[at] for at, process in alive if stored[at] != process.pid}


def rows_for_feedback(table: RegionTable) -> set[int]:
    """Find regions with SM limits that a monitor or an agent has switched off, or blocked."""
    regions, devices = table.regions, table.devices
    columns = zip(regions.code, regions.recent_kernel, regions.utilization_switch, strict=True)
    rows = enumerate(columns)
    found = {row for row, (code, mark, is_on) in rows if code == 0 and (mark < 0 or not is_on)}
    limits = zip(devices.region, devices.sm_limit_percent, strict=True) if found else ()
    return {row for row, limit in limits if row in found and sm_limit_or_none(limit)}


def other_layouts(seen: Observation, row: int) -> Iterator[tuple[HostProcess, int, Layout]]:
    """Find processes that map a region in the length of another layout."""
    identity = seen.containers[row].identity
    if identity is None:
        return
    whole = WHOLE_BYTES[LAYOUTS[seen.table.regions.layout[row]]]
    for user in seen.processes.users_of(identity):
        length = user.mapping.length_bytes
        other = LAYOUT_OF_LENGTH.get(length)
        if other is not None and length % whole and user.mapping.identity == identity:
            yield user.process, length, other


def suspicious_rows(seen: Observation) -> set[int]:
    """Find the regions with something to examine, by their columns and the evidence.

    Without `rows_for_feedback`, which take a missing monitor, and without the driver's figures.
    """
    table, states, evidence = seen.table, seen.proved(), seen.evidence
    regions, devices, usages = table.regions, table.devices, table.usages
    found = set() if evidence is None else {*evidence.regions, *evidence.large}
    found.update(table.processes.region[at] for at in foreign_host_pids(seen))
    if _DEAD in states.states:
        slots = zip(table.processes.region, states.states, strict=True)
        found.update(row for row, state in slots if state == _DEAD)
    # Slots without a pid have no process either.
    if 0 in table.processes.pid:
        slots = zip(table.processes.region, table.processes.pid, strict=True)
        found.update(row for row, pid in slots if pid == 0)
    for row, limit, used in zip(
        devices.region, devices.memory_limit_bytes, devices.memory_used_bytes, strict=True
    ):
        if 0 < limit < used or limit >= IMPOSSIBLE_BYTES:
            found.add(row)
    for name, most in LARGEST.items():
        cells = getattr(usages, name)
        if min(cells, default=0) < 0 or max(cells, default=0) > most:
            pairs = zip(usages.process, cells, strict=True)
            found.update(table.processes.region[at] for at, cell in pairs if not 0 <= cell <= most)
    unlimited = {
        each.identity for each in seen.processes.entries.values() if each.sm_policy == "disable"
    }
    for row, code in enumerate(regions.code):
        if code == 0 and row not in found and _is_suspicious(seen, row, unlimited):
            found.add(row)
    return {row for row in found if regions.code[row] == 0}


def _is_suspicious(seen: Observation, row: int, unlimited: set[tuple[int, int]]) -> bool:
    regions, own = seen.table.regions, seen.containers[row].pod_uid
    processes = seen.proved().proved.get(row)
    return (
        regions.slot_count[row] >= NEARLY_FULL
        or not regions.device_count[row]
        or seen.table.layout_newer(row) is not None
        or any(other_layouts(seen, row))
        or (
            processes is not None
            and (
                any(each.pod_uid not in {None, own} for each in processes.onlookers)
                or _has_other_sm_limit(seen, row, unlimited)
            )
        )
    )


def _has_other_sm_limit(seen: Observation, row: int, unlimited: set[tuple[int, int]]) -> bool:
    """Whether SM limits may not hold, by the layout or a process's environment."""
    table, alive = seen.table, seen.proved().proved[row].alive.values()
    is_off = bool(unlimited) and any(
        (each.pid, each.start_time_ticks) in unlimited for each in alive
    )
    if LAYOUTS[table.regions.layout[row]].has_limit_per_device and not is_off:
        return False
    limits = [sm_limit_or_none(table.devices.sm_limit_percent[at]) for at in devices_of(table, row)]
    return any(limits) and (is_off or not limits[0])
