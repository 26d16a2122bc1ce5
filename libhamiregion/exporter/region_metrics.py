"""The part of a scrape that is read fresh: the figures of all regions, from one read's columns.

Label texts and the rows that they belong to are made once and kept while containers, devices and
processes stay the same; a scrape then only hands columns to the native writer.
"""

from __future__ import annotations

from array import array
from operator import is_not
from typing import TYPE_CHECKING, Any

import attrs

from libhamiregion.node.containers import MissingReason, missing_for

from . import families
from .identity import duplicates_hidden, identity_from, identity_of
from .labels import LabelRows, label_text
from .slot_sums import sum_slots
from .text import NO_ROW, Series

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from libhamiregion.node import Container, Node, NodeSnapshot
    from libhamiregion.region_set import RegionTable

    from .families import MetricFamily
    from .identity import Identity
    from .labels import CardinalityLimiter
    from .state import CollectedState

#: Why a container's figures are not shown, beside the values of `MissingReason`.
SAME_NAMES = "same_names"
POD_GONE = "pod_gone"

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
    if family.labels == families.DEVICE and family.column is not None
)
_REGION_FAMILIES = tuple(
    family
    for family in families.FAMILIES
    if family.labels == families.CONTAINER and family.column is not None
)


@attrs.frozen(eq=False)
class _Devices:
    """Rows of devices with their labels.

    Of each label text: the row of the device, of its region, and the device's row again where the
    layout has utilisation.
    """

    labels: LabelRows
    devices: array[int]
    regions: array[int]
    utilization: array[int]

    @classmethod
    def of(cls, rows: Sequence[tuple[bytes, int, int, int]]) -> _Devices:
        """Make it of label texts, each with these rows."""
        return cls(
            LabelRows([text for text, _, _, _ in rows]),
            array("I", [device for _, device, _, _ in rows]),
            array("I", [region for _, _, region, _ in rows]),
            array("I", [measured for _, _, _, measured in rows]),
        )


@attrs.frozen(eq=False)
class _DeviceRows:
    """Which rows of a read become series, and with which labels."""

    sources: tuple[object, ...]
    key: tuple[bytes, ...]
    #: The devices that have a uuid, those that have none yet, and all of them. HAMi's monitor has
    #: series of the first alone.
    named: _Devices
    unnamed: _Devices
    every: _Devices
    #: The regions that are shown: row, container, names.
    shown: Sequence[tuple[int, Container, Identity]]
    containers: LabelRows
    container_rows: array[int]
    series: Sequence[Series]
    #: How many containers are not shown.
    missing: int


class RegionMetrics:
    """Makes the series of one scrape.

    Threads: one at a time.

    Args:
        node: Names containers that no collector has named yet.
        limiter: Bounds what containers may write into labels.
    """

    def __init__(self, node: Node, limiter: CardinalityLimiter) -> None:
        self._node = node
        self._limiter = limiter
        self._rows: _DeviceRows | None = None

    @property
    def shown(self) -> int:
        """How many regions the last scrape had figures of."""
        return 0 if self._rows is None else len(self._rows.shown)

    @property
    def missing(self) -> int:
        """How many containers had none."""
        return 0 if self._rows is None else self._rows.missing

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
        regions = [
            Series(
                family,
                rows.containers,
                getattr(table.regions, str(family.column)),
                rows.container_rows,
            )
            for family in _REGION_FAMILIES
        ]
        return [*rows.series, *self._of_devices(rows, table, wanted), *regions]

    # ---- devices and regions ---------------------------------------------------------------------

    def _of_devices(
        self, rows: _DeviceRows, table: RegionTable, wanted: frozenset[MetricFamily]
    ) -> list[Series]:
        active = _active_sums(table)
        found = []
        for family in _DEVICE_FAMILIES:
            if family not in wanted:
                continue
            name = str(family.column)
            chosen = rows.every if family.origin == "own" else rows.named
            if family is families.UNNAMED_MEMORY_LIMIT:
                chosen = rows.unnamed
            at = chosen.devices
            cells: Any
            if name == "last_kernel_time_s":
                cells, at = table.regions.last_kernel_time_s, chosen.regions
            elif family.origin != "own" and name in active:
                cells = active[name]
            else:
                cells = getattr(table.devices, name)
            if name == "sm_util_percent":
                at = chosen.utilization
            found.append(Series(family, chosen.labels, cells, at))
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
        hidden = dict.fromkeys(duplicates_hidden(identities), SAME_NAMES)
        hidden.update(dict.fromkeys(state.gone, POD_GONE))
        codes, indexes = table.regions.code, table.devices.index
        first, count = table.regions.first_device, table.regions.device_rows
        shown: list[tuple[int, Container, Identity]] = []
        every: list[tuple[bytes, int, int, int]] = []
        with_uuid: list[tuple[bytes, int, int, int]] = []
        without: list[tuple[bytes, int, int, int]] = []
        for row, container in enumerate(snapshot.containers):
            if codes[row] != 0 or container in hidden:
                continue
            identity = identities[container]
            shown.append((row, container, identity))
            has_utilization = _has_utilization(container)
            for at in range(first[row], first[row] + count[row]):
                # Empty where the container has not said yet which devices it has.
                uuid = table.devices.uuid(at) or ""
                index = indexes[at]
                safe = self._limiter.uuid(identity.labels, index, uuid)
                text = identity.text(families.DEVICE, str(index), safe)
                every.append((text, at, row, at if has_utilization else NO_ROW))
                (with_uuid if uuid else without).append(every[-1])
        all_rows = _Devices.of(every)
        # Mostly the same: then its labels are made once.
        named = _Devices.of(with_uuid) if without else all_rows
        reasons = _reasons(snapshot, hidden)
        return _DeviceRows(
            sources=sources,
            key=key,
            named=named,
            unnamed=_Devices.of(without),
            every=all_rows,
            shown=shown,
            containers=LabelRows([identity.text(families.CONTAINER) for _, _, identity in shown]),
            container_rows=array("I", [row for row, _, _ in shown]),
            series=[
                _infos(shown, state),
                _claims(identities.values()),
                _missing_ones(reasons, identities),
            ],
            missing=len(reasons),
        )

    def _identity(self, container: Container) -> Identity:
        """Name a container that no collector has named; without its names if a resolver fails."""
        try:
            return identity_of(self._node, container, self._limiter)
        except Exception:  # noqa: BLE001 (the collector meets it too; there it is counted)
            return identity_from(container, None, self._limiter)


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


def _infos(shown: Sequence[tuple[int, Container, Identity]], state: CollectedState) -> Series:
    texts = []
    for _, container, identity in shown:
        layout = "" if container.region is None else container.region.layout.value
        container_id = state.container_ids.get(container, "")
        texts.append(identity.text(families.CONTAINER_INFO.labels, container_id, layout))
    return Series(families.CONTAINER_INFO, LabelRows(texts))


def _claims(identities: Iterable[Identity]) -> Series:
    family = families.CLAIM_INFO
    texts = {label_text(family.labels, *row): 1 for each in identities for row in each.claim}
    return Series.of(family, texts)


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
    texts = {identities[container].text(family.labels, reason): 1 for container, reason in reasons}
    return Series.of(family, texts)
