"""The part of a scrape that is read fresh: the figures of all regions, from one read's columns.

Label texts and the rows that they belong to are made once and kept while containers, devices and
processes stay the same; a scrape then only hands columns to the native writer.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from operator import is_not
from typing import TYPE_CHECKING, Any

import attrs

from libhamiregion.node.containers import MissingReason, missing_for

from . import families
from .identity import identity_from, identity_of, shadowed
from .labels import LabelRows, label_text
from .process_metrics import ProcessMetrics, sum_slots
from .text import NO_ROW, Series

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from libhamiregion.node import Container, Node, NodeSnapshot
    from libhamiregion.region_set import RegionTable

    from .families import MetricFamily
    from .identity import Identity
    from .labels import CardinalityLimiter
    from .state import CollectedState

#: Why a container's figures are not shown, beside the values of `MissingReason`.
SAME_NAMES = "same_names"
POD_GONE = "pod_gone"

_WRAP = (1 << 64) - 1

# HAMi's monitor leaves out slots whose status is 0.
_OF_ACTIVE_SLOTS = (
    "memory_used_bytes",
    "memory_context_bytes",
    "memory_module_bytes",
    "memory_data_bytes",
    "sm_util_percent",
)
_DEVICE_FAMILIES = tuple(
    family
    for family in families.FAMILIES
    if family.labels in (families.HAMI_DEVICE, families.LEGACY_DEVICE) and family.column
)
_REGION_FAMILIES = tuple(
    family
    for family in families.FAMILIES
    if family.labels == families.CONTAINER and family.column is not None
)


@attrs.define(eq=False)
class _Known:
    """The label texts of a container, kept for as long as it has the same names."""

    identity: Identity
    text: bytes
    #: Of each device, by index and uuid; with its legacy form.
    devices: dict[tuple[int, str], tuple[bytes, bytes]]


@attrs.frozen(eq=False)
class _DeviceRows:
    """Which rows of a read become series, and with which labels."""

    sources: tuple[object, ...]
    key: tuple[bytes, ...]
    labels: LabelRows
    legacy: LabelRows
    legacy_texts: Sequence[bytes]
    #: Of each label text: the row of the device, of its region, and the device's row again where
    #: the layout has utilisation.
    devices: array[int]
    regions: array[int]
    utilization: array[int]
    #: The regions that are shown: row, container, names.
    shown: Sequence[tuple[int, Container, Identity]]
    containers: LabelRows
    container_rows: array[int]
    series: Sequence[Series]
    #: Why the other containers are not shown: reason to number.
    reasons: Counter[str]


class RegionMetrics:
    """Makes the series of one scrape.

    Threads: one at a time.

    Args:
        node: Names containers that no collector has named yet.
        legacy: Whether to make the series under their former names as well.
        limiter: Bounds what containers may write into labels.
    """

    def __init__(self, node: Node, *, legacy: bool, limiter: CardinalityLimiter) -> None:
        self._node = node
        self._legacy = legacy
        self._limiter = limiter
        self._known: dict[Container, _Known] = {}
        self._rows: _DeviceRows | None = None
        self._processes = ProcessMetrics()
        self._unsettled: dict[tuple[str, ...], int] = {}

    @property
    def shown(self) -> int:
        """How many regions the last scrape had figures of."""
        return 0 if self._rows is None else len(self._rows.shown)

    @property
    def missing(self) -> dict[str, int]:
        """Why the others had none: reason to number of containers."""
        return {} if self._rows is None else dict(self._rows.reasons)

    def series(
        self, snapshot: NodeSnapshot, state: CollectedState, wanted: frozenset[MetricFamily]
    ) -> list[Series]:
        """What the regions hold now.

        Args:
            snapshot: All regions, just read.
            state: What the collectors have found.
            wanted: The families that are wanted; more may come.
        """
        rows = self._device_rows(snapshot, state)
        table = snapshot.table
        found = [*rows.series, *self._of_devices(rows, table, wanted)]
        found += self._of_regions(rows, table, state)
        return found + self._processes.series(rows.shown, table, state, wanted)

    # ---- devices and regions ---------------------------------------------------------------------

    def _of_devices(
        self, rows: _DeviceRows, table: RegionTable, wanted: frozenset[MetricFamily]
    ) -> list[Series]:
        active = _active_sums(table)
        found = []
        for family in _DEVICE_FAMILIES:
            if family not in wanted or (family.origin == "legacy" and not self._legacy):
                continue
            name = str(family.column)
            at = rows.devices
            cells: Any
            if name == "last_kernel_time_s":
                cells, at = table.regions.last_kernel_time_s, rows.regions
            elif family.origin != "own" and name in active:
                cells = active[name]
            else:
                cells = getattr(table.devices, name)
            if name == "sm_util_percent":
                at = rows.utilization
            labels = rows.legacy if family.origin == "legacy" else rows.labels
            found.append(Series(family, labels, cells, at))
        if self._legacy and families.LEGACY_MEMORY_PARTS in wanted:
            found.append(_memory_parts(rows, table, active))
        return found

    def _of_regions(
        self, rows: _DeviceRows, table: RegionTable, state: CollectedState
    ) -> list[Series]:
        regions, at = table.regions, rows.container_rows
        found = [
            Series(family, rows.containers, getattr(regions, str(family.column)), at)
            for family in _REGION_FAMILIES
        ]
        settled = regions.settled
        for row, _, identity in rows.shown:
            if not settled[row]:
                self._unsettled[identity.labels] += 1
        counts = array("Q", [self._unsettled[identity.labels] for _, _, identity in rows.shown])
        found.append(Series(families.UNSETTLED_READS, rows.containers, counts))
        held = array("d", bytes(8 * len(rows.shown)))
        for place, (row, container, _) in enumerate(rows.shown if state.held else ()):
            lock = state.held.get(container)
            if (
                lock is not None
                and is_held(regions.semaphore[row])
                and regions.owner_pid[row] == lock.owner_pid
            ):
                held[place] = time.monotonic() - lock.since_s
        found.append(Series(families.LOCK_HELD, rows.containers, held))
        return found

    def _device_rows(self, snapshot: NodeSnapshot, state: CollectedState) -> _DeviceRows:
        """The rows of the last scrape, if what decides on them is still the same."""
        table = snapshot.table
        # As bytes: they are compared much faster than cells are looked at.
        key = (
            table.regions.code.tobytes(),
            table.regions.device_rows.tobytes(),
            table.devices.index.tobytes(),
            table.devices.uuid_bytes.tobytes(),
        )
        sources = (
            snapshot.containers,
            snapshot.missing,
            state.identities,
            state.container_ids,
            state.gone,
        )
        rows = self._rows
        if rows is None or rows.key != key or any(map(is_not, rows.sources, sources)):
            rows = self._rows = self._new_device_rows(snapshot, state, sources, key)
        return rows

    def _new_device_rows(
        self,
        snapshot: NodeSnapshot,
        state: CollectedState,
        sources: tuple[object, ...],
        key: tuple[bytes, ...],
    ) -> _DeviceRows:
        table = snapshot.table
        identities = {
            each: state.identities.get(each) or self._identity(each)
            for each in (*snapshot.containers, *snapshot.missing)
        }
        hidden = dict.fromkeys(shadowed(identities), SAME_NAMES)
        hidden.update(dict.fromkeys(state.gone, POD_GONE))
        before, self._known = self._known, {}
        codes, indexes = table.regions.code, table.devices.index
        first, count = table.regions.first_device, table.regions.device_rows
        shown: list[tuple[int, Container, Identity]] = []
        texts: list[tuple[bytes, bytes]] = []
        devices, regions, utilization = array("I"), array("I"), array("I")
        for row, container in enumerate(snapshot.containers):
            if codes[row] != 0 or container in hidden:
                continue
            known = self._keep(container, identities[container], before.get(container))
            shown.append((row, container, known.identity))
            kept: dict[tuple[int, str], tuple[bytes, bytes]] = {}
            has_utilization = _has_utilization(container)
            for at in range(first[row], first[row] + count[row]):
                uuid = table.devices.uuid(at)
                if uuid is None:
                    continue
                index = indexes[at]
                place = (index, self._limiter.uuid(known.identity.labels, index, uuid))
                kept[place] = known.devices.get(place) or self._label(known.identity, *place)
                texts.append(kept[place])
                devices.append(at)
                regions.append(row)
                utilization.append(at if has_utilization else NO_ROW)
            # What is not there any more is forgotten.
            known.devices = kept
        reasons = _reasons(snapshot, hidden)
        # Of containers that are gone nothing is kept; one that comes again begins anew.
        self._unsettled = {
            identity.labels: self._unsettled.get(identity.labels, 0) for _, _, identity in shown
        }
        return _DeviceRows(
            sources=sources,
            key=key,
            labels=LabelRows([own for own, _ in texts]),
            legacy=LabelRows([legacy for _, legacy in texts]),
            legacy_texts=[legacy for _, legacy in texts] if self._legacy else (),
            devices=devices,
            regions=regions,
            utilization=utilization,
            shown=shown,
            containers=LabelRows([self._known[container].text for _, container, _ in shown]),
            container_rows=array("I", [row for row, _, _ in shown]),
            series=[_infos(shown, state), _missing_ones(reasons, identities)],
            reasons=Counter(reason for _, reason in reasons),
        )

    def _identity(self, container: Container) -> Identity:
        """Name a container that no collector has named; without its names if a resolver fails."""
        try:
            return identity_of(self._node, container, self._limiter)
        except Exception:  # noqa: BLE001 (the collector meets it too; there it is counted)
            return identity_from(container, None, self._limiter)

    def _keep(self, container: Container, identity: Identity, before: _Known | None) -> _Known:
        if before is None or before.identity != identity:
            before = _Known(identity, label_text(families.CONTAINER, *identity.labels), {})
        self._known[container] = before
        return before

    def _label(self, identity: Identity, index: int, uuid: str) -> tuple[bytes, bytes]:
        values = (*identity.shown, str(index), uuid)
        legacy = label_text(families.LEGACY_DEVICE, *values) if self._legacy else b""
        return label_text(families.DEVICE, *values), legacy


def is_held(semaphore: int) -> bool:
    """Whether a region's semaphore is taken; the upper half counts who waits."""
    return semaphore & 0xFFFFFFFF == 0


def _active_sums(table: RegionTable) -> dict[str, array[int]]:
    """What slots of a status other than 0 hold, by column; empty where all slots are such."""
    statuses = table.processes.status.tolist()
    if 0 not in statuses:
        return {}
    active = bytes(map(bool, statuses))
    return {
        name: sum_slots(table, active, getattr(table.usages, name)) for name in _OF_ACTIVE_SLOTS
    }


def _has_utilization(container: Container) -> bool:
    return container.region is not None and container.region.layout.has_utilization


def _memory_parts(
    rows: _DeviceRows, table: RegionTable, active: Mapping[str, array[int]]
) -> Series:
    """The family that has sizes as the values of labels."""
    names = (
        "memory_used_bytes",
        "memory_context_bytes",
        "memory_module_bytes",
        "memory_data_bytes",
    )
    columns = [active.get(name) or getattr(table.devices, name) for name in names]
    texts = []
    for labels, row in zip(rows.legacy_texts, rows.devices, strict=True):
        used, context, module, data = [column[row] for column in columns]
        rest = (used - context - module - data) & _WRAP
        sizes = b',context="%d",module="%d",data="%d",offset="%d"' % (context, module, data, rest)
        texts.append(labels + sizes)
    return Series(families.LEGACY_MEMORY_PARTS, LabelRows(texts), columns[0], rows.devices)


def _infos(shown: Sequence[tuple[int, Container, Identity]], state: CollectedState) -> Series:
    texts = []
    for _, container, identity in shown:
        layout = "" if container.region is None else container.region.layout.value
        container_id = state.container_ids.get(container, "")
        texts.append(
            label_text(families.CONTAINER_INFO.labels, *identity.labels, container_id, layout)
        )
    return Series(families.CONTAINER_INFO, LabelRows(texts))


def _reasons(
    snapshot: NodeSnapshot, hidden: Mapping[Container, str]
) -> list[tuple[Container, str]]:
    """Why the other containers are not shown."""
    reasons: list[tuple[Container, str]] = []
    codes = snapshot.table.regions.code
    for row, container in enumerate(snapshot.containers):
        if codes[row] != 0:
            # Broken since the last scan, which will look closer.
            error = snapshot.table.error(row)
            missing = MissingReason.FAILED if error is None else missing_for(error).reason
            reasons.append((container, missing.value))
        elif container in hidden:
            reasons.append((container, hidden[container]))
    for container in snapshot.missing:
        missing = MissingReason.FAILED if container.missing is None else container.missing.reason
        reasons.append((container, hidden.get(container, missing.value)))
    return reasons


def _missing_ones(
    reasons: Sequence[tuple[Container, str]], identities: Mapping[Container, Identity]
) -> Series:
    family = families.CONTAINER_MISSING
    texts = {
        label_text(family.labels, *identities[container].labels, reason): 1
        for container, reason in reasons
    }
    return Series.of(family, texts)
