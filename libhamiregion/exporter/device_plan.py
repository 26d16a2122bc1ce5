"""Which devices of which containers become series, and with which labels.

A plan is made when containers, their names or their devices have changed, and kept until they
change again.
"""

from __future__ import annotations

from collections import Counter
from operator import is_not, itemgetter
from typing import TYPE_CHECKING, TypeAlias

import attrs

from libhamiregion.node.containers import MissingReason, missing_for

from . import metrics
from .labels import LabelMaker, Labels
from .naming import Identity, identity_of, shadowed
from .rendering import Series, steady

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from libhamiregion.node import Container, Node, NodeSnapshot
    from libhamiregion.node.containers import MissingRegion

    from .background import Background
    from .label_ledger import LabelLedger

    Picker: TypeAlias = Callable[[Sequence[int]], tuple[int, ...]]

#: Why a container's figures are not shown, beside the values of `MissingReason`.
SAME_NAMES = "same_names"
POD_GONE = "pod_gone"

_hami_device = LabelMaker(metrics.MEMORY_USED)
_legacy_device = LabelMaker(metrics.LEGACY_MEMORY_USED)
_legacy_parts = LabelMaker(metrics.LEGACY_MEMORY_PARTS, figures=len(metrics.LEGACY_SIZES))
_own_device = LabelMaker(metrics.MEMORY_COUNTED)
_container = LabelMaker(metrics.LOCK_HELD)
_missing = LabelMaker(metrics.CONTAINER_MISSING)
_info = LabelMaker(metrics.CONTAINER_INFO)


def picker(rows: Sequence[int]) -> Picker:
    """A function that takes these rows of a column."""
    if not rows:
        return lambda _: ()
    if len(rows) == 1:
        (only,) = rows
        return lambda column: (column[only],)
    return itemgetter(*rows)


@attrs.frozen(eq=False)
class _Device:
    """The labels of one device of one container, in all ways in which it is told."""

    hami: Labels
    own: Labels
    legacy: Labels | None
    legacy_parts: Labels | None


@attrs.frozen(eq=False)
class Known:
    """What is kept of a container for as long as it is there under the same names."""

    identity: Identity
    labels: Labels
    #: Index and uuid to labels.
    devices: dict[tuple[int, str], _Device]


@attrs.define(eq=False)
class Rows:
    """Series of a family whose set of rows depends on their values."""

    key: object = None
    labels: list[Labels] = attrs.Factory(list)
    legacy: list[Labels] = attrs.Factory(list)
    pick: Picker = attrs.field(factory=lambda: picker(()))


@attrs.define(eq=False)
class DevicePlan:
    """Which device rows become series, and with which labels."""

    #: What it was made of; compared by identity.
    sources: tuple[object, ...]
    key: tuple[bytes, ...]
    pick: Picker
    hami: list[Labels]
    own: list[Labels]
    legacy: list[Labels]
    legacy_parts: list[Labels]
    #: Of each of those, the row of its region.
    region_rows: list[int]
    #: The regions that are shown: row, container, what is kept of it.
    shown: list[tuple[int, Container, Known]]
    pick_regions: Picker
    containers: list[Labels]
    series: list[Series]
    #: Why the other containers are not shown: reason to number.
    reasons: Counter[str]
    no_lock_held: list[float]
    #: Those whose layout has utilisation; of them the key says only whether they are all.
    util: Rows
    kernel: Rows = attrs.Factory(Rows)
    sm_limit: Rows = attrs.Factory(Rows)


class DevicePlanner:
    """Makes plans, and keeps the labels of containers that are still there.

    Args:
        node: Names containers that no refresh has named yet.
        legacy: Whether to make the labels of the former names as well.
        ledger: Bounds the uuids.
    """

    def __init__(self, node: Node, *, legacy: bool, ledger: LabelLedger) -> None:
        self._node = node
        self._ledger = ledger
        self._legacy = legacy
        self._known: dict[Container, Known] = {}
        #: The plan of the last scrape.
        self.plan: DevicePlan | None = None

    def plan_for(self, snapshot: NodeSnapshot, background: Background) -> DevicePlan:
        """The plan for what was just read; the last one, if it still holds."""
        table = snapshot.table
        # Everything that decides on rows and labels, as bytes: compared much faster than looked at.
        key = (
            table.regions.code.tobytes(),
            table.regions.device_rows.tobytes(),
            table.devices.index.tobytes(),
            table.devices.uuid_bytes.tobytes(),
        )
        sources = (
            snapshot.containers,
            snapshot.missing,
            background.identities,
            background.container_ids,
            background.gone,
        )
        plan = self.plan
        if plan is None or plan.key != key or any(map(is_not, plan.sources, sources)):
            plan = self._new_plan(snapshot, background)
            plan.sources, plan.key = sources, key
            self.plan = plan
        return plan

    def _new_plan(self, snapshot: NodeSnapshot, background: Background) -> DevicePlan:
        table = snapshot.table
        everybody = (*snapshot.containers, *snapshot.missing)
        identities = {
            each: background.identities.get(each) or identity_of(self._node, each, self._ledger)
            for each in everybody
        }
        hidden = dict.fromkeys(shadowed(identities), SAME_NAMES)
        hidden.update(dict.fromkeys(background.gone, POD_GONE))
        before, self._known = self._known, {}
        codes = table.regions.code
        first, count = table.regions.first_device, table.regions.device_rows
        indexes = table.devices.index
        shown: list[tuple[int, Container, Known]] = []
        devices: list[_Device] = []
        rows: list[int] = []
        region_rows: list[int] = []
        measured: list[int] = []
        for row, container in enumerate(snapshot.containers):
            if codes[row] != 0 or container in hidden:
                continue
            known = self._keep(container, identities[container], before.get(container))
            shown.append((row, container, known))
            kept: dict[tuple[int, str], _Device] = {}
            for device_row in range(first[row], first[row] + count[row]):
                uuid = table.devices.uuid(device_row)
                if uuid is None:
                    continue
                index = indexes[device_row]
                place = (index, self._ledger.uuid(known.identity, index, uuid))
                kept[place] = known.devices.get(place) or self._label(known.identity, *place)
                if container.region is not None and container.region.layout.has_utilization:
                    measured.append(len(devices))
                devices.append(kept[place])
                rows.append(device_row)
                region_rows.append(row)
            # What is not there any more is forgotten.
            known.devices.clear()
            known.devices.update(kept)
        reasons = _reasons(snapshot, hidden)
        hami = [device.hami for device in devices]
        legacy = [device.legacy for device in devices if device.legacy is not None]
        return DevicePlan(
            sources=(),
            key=(),
            pick=picker(rows),
            hami=hami,
            own=[device.own for device in devices],
            legacy=legacy,
            legacy_parts=[
                device.legacy_parts for device in devices if device.legacy_parts is not None
            ],
            region_rows=region_rows,
            shown=shown,
            pick_regions=picker([row for row, _, _ in shown]),
            containers=[known.labels for _, _, known in shown],
            series=[_infos(shown, background), _missing_ones(reasons, identities)],
            reasons=Counter(reason for _, reason in reasons),
            no_lock_held=[0.0] * len(shown),
            util=_chosen(measured, hami, legacy),
        )

    def _keep(self, container: Container, identity: Identity, before: Known | None) -> Known:
        if before is None or before.identity != identity:
            before = Known(identity, _container(*identity.labels), {})
        self._known[container] = before
        return before

    def _label(self, identity: Identity, index: int, uuid: str) -> _Device:
        values = (*identity.shown, str(index), uuid)
        return _Device(
            _hami_device(*values),
            _own_device(*values),
            _legacy_device(*values) if self._legacy else None,
            _legacy_parts(*values) if self._legacy else None,
        )


def _chosen(rows: Sequence[int], hami: list[Labels], legacy: list[Labels]) -> Rows:
    if len(rows) == len(hami):
        return Rows(True, hami, legacy)
    chosen = [hami[row] for row in rows]
    return Rows(False, chosen, [legacy[row] for row in rows] if legacy else [], picker(rows))


def _infos(shown: Sequence[tuple[int, Container, Known]], background: Background) -> Series:
    rows = []
    for _, container, known in shown:
        layout = "" if container.region is None else container.region.layout.value
        container_id = background.container_ids.get(container, "")
        rows.append((_info(*known.identity.labels, container_id, layout), 1))
    return steady(metrics.CONTAINER_INFO, rows)


def _reasons(
    snapshot: NodeSnapshot, hidden: Mapping[Container, str]
) -> list[tuple[Container, str]]:
    """Why the other containers are not shown."""
    reasons: list[tuple[Container, str]] = []
    codes = snapshot.table.regions.code
    for row, container in enumerate(snapshot.containers):
        if codes[row] != 0:
            # Broken since the last refresh, which will look closer.
            error = snapshot.table.error(row)
            reasons.append((container, _reason(None if error is None else missing_for(error))))
        elif container in hidden:
            reasons.append((container, hidden[container]))
    reasons += [
        (container, hidden.get(container, _reason(container.missing)))
        for container in snapshot.missing
    ]
    return reasons


def _missing_ones(
    reasons: Sequence[tuple[Container, str]], identities: Mapping[Container, Identity]
) -> Series:
    return steady(
        metrics.CONTAINER_MISSING,
        [(_missing(*identities[container].labels, reason), 1) for container, reason in reasons],
    )


def _reason(missing: MissingRegion | None) -> str:
    return (MissingReason.FAILED if missing is None else missing.reason).value
