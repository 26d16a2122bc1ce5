"""Limits as they are or were, as plans: what to go back to, and what to take elsewhere."""

from __future__ import annotations

import contextlib
import glob
import re
from typing import TYPE_CHECKING

from libhamiregion.errors import RegionError
from libhamiregion.layouts import DEVICE_CAPACITY
from libhamiregion.node.selector import Selector
from libhamiregion.text import printable
from libhamiregion.units import MAX_SIZE_BYTES

from .limit_plan import LimitField, LimitPlan, Rule, Setting
from .values import covered_devices

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libhamiregion.node.containers import Container
    from libhamiregion.node.node import Node
    from libhamiregion.region import Region

    from .diff import ContainerDiff

_NO_UNICODE = re.compile("[\ud800-\udfff]")


def undo_plan(changes: Iterable[ContainerDiff]) -> LimitPlan:
    """The plan that puts back what edits change.

    Each rule names one container by its pod's UID and its own name, and one device. A value that
    no plan can hold, as only a damaged region has it, is left out.
    """
    rules: list[Rule] = []
    for change in changes:
        rules += exact_rules(
            change.container, [(edit.field, edit.device, edit.before) for edit in change.edits]
        )
    return LimitPlan(tuple(rules), name="undo")


def export_plan(node: Node, select: Selector | None = None) -> LimitPlan:
    """The limits of a node as they are, as a plan.

    Args:
        node: As it was at its last refresh. Containers without a region, and those outside the
            node's roots, are left out.
        select: Only these containers and devices; a priority is left out where a device is chosen.

    Raises:
        RegionClosed: The node has been closed.

    Shell: ``hamiregion limits export``.
    """
    chosen = Selector() if select is None else select
    rules: list[Rule] = []
    for container in node.containers:
        if container.directory is None or container.region is None:
            continue
        if not chosen.matches_container(container, node.pod_name(container)):
            continue
        with contextlib.suppress(RegionError):
            rules += exact_rules(container, _values(container.region, chosen))
    return LimitPlan(tuple(rules))


def _values(region: Region, chosen: Selector) -> list[tuple[LimitField, int | None, int | None]]:
    snapshot = region.snapshot()
    values: list[tuple[LimitField, int | None, int | None]] = []
    if chosen.device is None:
        values.append((LimitField.PRIORITY, None, snapshot.priority))
    for device in covered_devices(region, snapshot):
        if chosen.matches_device(device):
            values += [
                (LimitField.MEMORY_LIMIT, device.index, device.memory_limit_bytes),
                (LimitField.SM_LIMIT, device.index, device.sm_limit_percent),
            ]
    return values


def exact_rules(
    container: Container, values: Iterable[tuple[LimitField, int | None, int | None]]
) -> list[Rule]:
    """Rules for one container and nothing else, one per device."""
    by_device: dict[int | None, list[Setting]] = {}
    for field, device, value in values:
        settings = by_device.setdefault(device, [])
        if _is_plannable(field, value):
            settings.append(Setting(field, value))
    alike = [by_device.get(device) for device in range(DEVICE_CAPACITY)]
    if alike[0] is not None and all(each == alike[0] for each in alike):
        # A container that has not told of its devices: it will not turn out to have 16.
        whole = by_device.get(None, []) + alike[0]
        by_device = {None: whole}
    name = printable(f"{container.pod_uid}/{container.name}", 200)
    return [
        Rule(
            Selector(
                pod_uid=_exact(container.pod_uid or ""),
                container=_exact(container.name or ""),
                device=None if device is None else str(device),
            ),
            tuple(settings),
            name if device is None else f"{name} device {device}",
        )
        for device, settings in sorted(by_device.items(), key=_none_first)
        if settings
    ]


def _none_first(item: tuple[int | None, object]) -> int:
    return -1 if item[0] is None else item[0]


def _exact(text: str) -> str:
    """The pattern of one text only; what is no Unicode, as a file's name may hold, is a `?`."""
    return _NO_UNICODE.sub("?", glob.escape(text))


def _is_plannable(field: LimitField, value: int | None) -> bool:
    if field is LimitField.PRIORITY:
        return value is not None and value >= 0
    return value is None or value <= MAX_SIZE_BYTES
