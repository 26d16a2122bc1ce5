"""What the refresh behind the scrapes finds out: names, proofs, and the driver's figures.

It costs too much for every scrape, and changes slowly. What it makes is a value, replaced as a
whole; parts that have not changed are the same objects as before, which is how a scrape knows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from libhamiregion.node import FindingKind
from libhamiregion.node.usage import driver_gap

from . import metrics
from .figures import is_held
from .label_ledger import OTHER
from .labels import LabelMaker
from .rendering import steady, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from libhamiregion.node import Container, ContainerView, Finding, Node, NvmlSample
    from libhamiregion.node.usage import NodeProcess, ProcessDeviceRow

    from .label_ledger import LabelLedger
    from .labels import Labels
    from .naming import Identity
    from .rendering import Series

#: Of the processes of a container with a region.
STATES = ("alive", "dead", "unknown", "unlisted", "escaped")

# A lock is reported as held if it was in the same hands at every one of these looks.
_LOOKS = 10
_BETWEEN_LOOKS_S = 0.002

_process = LabelMaker(metrics.PROCESS_MEMORY)
_device = LabelMaker(metrics.MEMORY_DRIVER)
_container = LabelMaker(metrics.PROCESSES_FOLDED)
_states = LabelMaker(metrics.CONTAINER_PROCESSES)
_container_findings = LabelMaker(metrics.CONTAINER_FINDINGS)
_findings = LabelMaker(metrics.FINDINGS)


@attrs.frozen(eq=False)
class ShownProcesses:
    """The processes of one container that are proved, as series.

    Attributes:
        key: What they were made from; equal keys mean equal series.
        alone: Pid in the slot -> index of a device -> labels, for those with series of their own.
        folded: Pids of those that are summed up.
        other: Index of a device -> labels, for the sums.
    """

    key: tuple[object, ...]
    alone: Mapping[int, Mapping[int, Labels]]
    folded: frozenset[int]
    other: Mapping[int, Labels]


@attrs.frozen
class HeldLock:
    """A lock that was in the same hands at several looks.

    Attributes:
        owner_pid: As signed in the region; 0 if nobody has.
        since_s: Monotonic time of the first look.
    """

    owner_pid: int
    since_s: float


@attrs.frozen(eq=False)
class Background:
    """What one refresh has found.

    Attributes:
        identities: What containers are called.
        container_ids: Their ids, where a process or Docker's files tell.
        processes: Those that are proved, of containers that have any.
        gone: Those whose pod is gone.
        held: Locks that have been held for a while.
        series: All series that stay as they are until the next refresh, by who makes them; with
            the monotonic time at which they were made.
    """

    identities: Mapping[Container, Identity] = attrs.Factory(dict)
    container_ids: Mapping[Container, str] = attrs.Factory(dict)
    processes: Mapping[Container, ShownProcesses] = attrs.Factory(dict)
    gone: frozenset[Container] = frozenset()
    held: Mapping[Container, HeldLock] = attrs.Factory(dict)
    series: Mapping[str, tuple[float, tuple[Series, ...]]] = attrs.Factory(dict)

    def with_series(self, stage: str, series: Sequence[Series]) -> Background:
        """The same with other series of one stage, their text written."""
        made = time.monotonic(), tuple(map(written, series))
        return attrs.evolve(self, series={**self.series, stage: made})


@attrs.frozen
class Bounds:
    """How many series there may be, whatever containers write and do.

    Attributes:
        processes_per_container: With series of their own; the rest is summed up.
        rows_per_container: Processes times devices with series of their own.
        rows_per_node: The same, of the node.
        unaccounted: Processes and devices that no region accounts for.
        unaccounted_per_container: The same, of one container.
    """

    processes_per_container: int = 64
    rows_per_container: int = 512
    rows_per_node: int = 16_384
    unaccounted: int = 512
    unaccounted_per_container: int = 64


def container_ids_of(rows: Iterable[NodeProcess]) -> dict[Container, str]:
    """The ids of containers that their processes, or their regions, tell."""
    found: dict[Container, str] = {}
    for row in rows:
        if row.container is not None and row.container_id is not None:
            found.setdefault(row.container, row.container_id.id)
    return found


# ---- processes of containers ---------------------------------------------------------------------


def shown_processes(
    by_container: Mapping[Container, Sequence[NodeProcess]],
    identities: Mapping[Container, Identity],
    container_ids: Mapping[Container, str],
    before: Mapping[Container, ShownProcesses],
    bounds: Bounds,
    ledger: LabelLedger,
) -> dict[Container, ShownProcesses]:
    """Which proved processes get series of their own, and which are summed up."""
    found = {}
    left = bounds.rows_per_node
    for container, rows in by_container.items():
        identity = identities[container]
        alone: dict[int, tuple[object, ...]] = {}
        folded: set[int] = set()
        repeated = False
        room = min(bounds.rows_per_container, left)
        for row in rows:
            if row.state != "alive" or row.pid is None:
                continue
            if row.pid in alone:
                repeated = True
                continue
            places = _places(row.devices, identity, ledger)
            if len(alone) >= bounds.processes_per_container or len(places) > room:
                folded.add(row.pid)
                continue
            room -= len(places)
            left -= len(places)
            own_id = "" if row.container_id is None else row.container_id.id
            alone[row.pid] = (row.host_pid, own_id, places)
        if not alone and not folded:
            continue
        container_id = container_ids.get(container, "")
        devices = _places(rows[0].devices if folded or repeated else (), identity, ledger)
        key = (identity, container_id, tuple(alone.items()), frozenset(folded), devices)
        known = before.get(container)
        if known is not None and known.key == key:
            found[container] = known
        else:
            found[container] = _show(key, identity, container_id, alone, folded, devices)
    return found


def _places(
    devices: Iterable[ProcessDeviceRow], identity: Identity, ledger: LabelLedger
) -> tuple[tuple[int, str], ...]:
    """Index and uuid, as labels, of the devices that have both."""
    return tuple(
        (device.index, ledger.uuid(identity, device.index, device.uuid))
        for device in devices
        if device.index is not None and device.uuid is not None
    )


def _show(
    key: tuple[object, ...],
    identity: Identity,
    container_id: str,
    alone: Mapping[int, tuple[object, ...]],
    folded: set[int],
    devices: Sequence[tuple[int, str]],
) -> ShownProcesses:
    shown: dict[int, dict[int, Labels]] = {}
    for pid, (host_pid, own_id, places) in alone.items():
        shown[pid] = {
            index: _process(*identity.shown, str(own_id), str(index), uuid, str(pid), str(host_pid))
            for index, uuid in places  # type: ignore[attr-defined]
        }
    other = {
        index: _process(*identity.shown, container_id, str(index), uuid, OTHER, OTHER)
        for index, uuid in devices
    }
    return ShownProcesses(key, shown, frozenset(folded), other)


def process_series(
    by_container: Mapping[Container, Sequence[NodeProcess]],
    shown: Mapping[Container, ShownProcesses],
) -> list[Series]:
    """What the driver says of the proved processes."""
    rows: dict[metrics.MetricFamily, list[tuple[Labels, int]]] = {
        family: [] for family, _ in _DRIVER_FIGURES
    }
    for container, processes in shown.items():
        sums: defaultdict[tuple[metrics.MetricFamily, int], int] = defaultdict(int)
        taken = set()
        for row in by_container[container]:
            if row.pid is None or row.state != "alive":
                continue
            alone = processes.alone.get(row.pid)
            is_alone = alone is not None and row.pid not in taken
            taken.add(row.pid)
            for device in row.devices:
                index = device.index
                if index is None:
                    continue
                for family, figure in _DRIVER_FIGURES:
                    value = getattr(device, figure)
                    if value is None:
                        continue
                    if not is_alone or alone is None:
                        sums[family, index] += value
                    elif index in alone:
                        rows[family].append((alone[index], value))
        for (family, index), value in sums.items():
            if index in processes.other:
                rows[family].append((processes.other[index], value))
    return [steady(family, found) for family, found in rows.items()]


_DRIVER_FIGURES = (
    (metrics.PROCESS_DRIVER_MEMORY, "memory_driver_bytes"),
    (metrics.PROCESS_DRIVER_SM, "driver_sm_percent"),
    (metrics.PROCESS_DRIVER_ENC, "driver_enc_percent"),
    (metrics.PROCESS_DRIVER_DEC, "driver_dec_percent"),
)


# ---- sums of containers --------------------------------------------------------------------------


def container_series(
    views: Iterable[ContainerView],
    by_container: Mapping[Container, Sequence[NodeProcess]],
    identities: Mapping[Container, Identity],
    shown: Mapping[Container, ShownProcesses],
    ledger: LabelLedger,
    unplaced: Unplaced | None,
) -> list[Series]:
    """Processes by state; memory of the dead, and of all as the driver says.

    `unplaced` is None where the driver's figures cannot be brought together with processes.
    """
    states, folded = [], []
    driver, dead = [], []
    for view in views:
        container = view.container
        if view.snapshot is None:
            continue
        identity = identities[container]
        rows = by_container.get(container, ())
        counted = dict.fromkeys(STATES, 0)
        for row in rows:
            if row.state in counted:
                counted[row.state] += 1
        states += [(_states(*identity.labels, state), count) for state, count in counted.items()]
        if container in shown and shown[container].folded:
            folded.append((_container(*identity.labels), len(shown[container].folded)))
        used, of_dead = _memory(rows)
        for usage in view.snapshot.devices:
            if usage.uuid is None:
                continue
            uuid = ledger.uuid(identity, usage.index, usage.uuid)
            labels = _device(*identity.shown, str(usage.index), uuid)
            dead.append((labels, of_dead[usage.index]))
            known = used[usage.index]
            if unplaced is None or unplaced.may_be_of(container, usage.uuid):
                known = None
            if known is not None:
                driver.append((labels, known))
    return [
        steady(metrics.CONTAINER_PROCESSES, states),
        steady(metrics.PROCESSES_FOLDED, folded),
        steady(metrics.MEMORY_DRIVER, driver),
        steady(metrics.MEMORY_DEAD, dead),
    ]


def _memory(
    rows: Iterable[NodeProcess],
) -> tuple[defaultdict[int, int | None], defaultdict[int, int]]:
    """By device: what the driver says of a container's processes, and what the dead still count.

    The first is None where it is not known of all of them.
    """
    used: defaultdict[int, int | None] = defaultdict(int)
    of_dead: defaultdict[int, int] = defaultdict(int)
    for row in rows:
        for device in row.devices:
            index, figure = device.index, device.memory_driver_bytes
            if index is None:
                continue
            if row.state == "dead":
                of_dead[index] += device.memory_used_bytes or 0
                continue
            before = used[index]
            used[index] = None if before is None or figure is None else before + figure
    return used, of_dead


# ---- locks ---------------------------------------------------------------------------------------


def held_locks(node: Node, before: Mapping[Container, HeldLock]) -> dict[Container, HeldLock]:
    """Locks in the same hands at several looks in a row, and since when.

    A lock that is taken and given back a thousand times a second is found taken now and then; ten
    looks within 20 ms do not find it in the same hands each time.
    """
    first_s = time.monotonic()
    found: dict[Container, int] | None = None
    for look in range(_LOOKS):
        if look:
            time.sleep(_BETWEEN_LOOKS_S)
        snapshot = node.snapshot()
        regions = snapshot.table.regions
        codes, semaphores, owners = regions.code, regions.semaphore, regions.owner_pid
        now = {
            container: owners[row]
            for row, container in enumerate(snapshot.containers)
            if codes[row] == 0 and is_held(semaphores[row])
        }
        found = now if found is None else dict(found.items() & now.items())
        if not found:
            return {}
    held = {}
    for container, owner in (found or {}).items():
        known = before.get(container)
        same = known is not None and known.owner_pid == owner
        held[container] = known if known is not None and same else HeldLock(owner, first_s)
    return held


# ---- findings ------------------------------------------------------------------------------------


def finding_series(
    findings: Sequence[Finding],
    views: Iterable[ContainerView],
    identities: Mapping[Container, Identity],
    ledger: LabelLedger,
) -> list[Series]:
    """How many findings there are, by kind; by container; and what orphaned slots hold."""
    totals = dict.fromkeys(FindingKind, 0)
    of_container: defaultdict[tuple[Container, str, str], int] = defaultdict(int)
    orphans: defaultdict[Container, set[int]] = defaultdict(set)
    for finding in findings:
        totals[finding.kind] += 1
        container = finding.container
        if container is None or container not in identities:
            continue
        of_container[container, finding.kind.value, finding.severity.value] += 1
        # While its process is idle it may as well be an earlier one's.
        proved = finding.kind is FindingKind.ORPHANED_SLOT and finding.repairable
        if proved and finding.pid is not None:
            orphans[container].add(finding.pid)
    return [
        steady(
            metrics.FINDINGS, [(_findings(kind.value), count) for kind, count in totals.items()]
        ),
        steady(
            metrics.CONTAINER_FINDINGS,
            [
                (_container_findings(*identities[container].labels, kind, severity), count)
                for (container, kind, severity), count in of_container.items()
            ],
        ),
        steady(metrics.MEMORY_ORPHANED, _orphaned(views, identities, orphans, ledger)),
    ]


def _orphaned(
    views: Iterable[ContainerView],
    identities: Mapping[Container, Identity],
    orphans: Mapping[Container, set[int]],
    ledger: LabelLedger,
) -> list[tuple[Labels, int]]:
    rows = []
    for view in views:
        container, snapshot = view.container, view.snapshot
        if snapshot is None:
            continue
        pids = orphans.get(container, set())
        for place, usage in enumerate(snapshot.devices):
            if usage.uuid is not None:
                identity = identities[container]
                uuid = ledger.uuid(identity, usage.index, usage.uuid)
                labels = _device(*identity.shown, str(usage.index), uuid)
                frozen = sum(
                    process.devices[place].memory_used_bytes
                    for process in (snapshot.processes if pids else ())
                    if process.pid in pids
                )
                rows.append((labels, frozen))
    return rows


@attrs.frozen
class Unplaced:
    """Processes on GPUs that may be of one container or of another.

    Attributes:
        places: Pod UID and the device's uuid; None as the pod means that any container may be it.
    """

    places: frozenset[tuple[str | None, str]]

    def may_be_of(self, container: Container, uuid: str) -> bool:
        """Whether one of them may be a container's, on that device."""
        return not self.places.isdisjoint({(None, uuid), (container.pod_uid, uuid)})


def unplaced_processes(
    node: Node, rows: Iterable[NodeProcess], sample: NvmlSample | None
) -> Unplaced | None:
    """Who uses a GPU in a container, nobody knows in which.

    None where the driver's figures cannot be brought together with processes at all.
    """
    if sample is None or driver_gap(node.processes, sample) is not None:
        return None
    everybody = node.processes.is_complete
    return Unplaced(
        frozenset(
            (None if row.container_id is None else row.container_id.pod_uid, device.uuid)
            for row in rows
            if row.container is None
            and row.state != "unmanaged"
            # Whom a complete /proc does not show has ended since the driver was asked.
            and not (row.process is None and everybody)
            for device in row.devices
            if device.uuid is not None
        )
    )
