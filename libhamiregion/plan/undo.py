"""Limits as they are or were, as plans: what to go back to, and what to take elsewhere."""

from __future__ import annotations

import contextlib
import glob
import re
from typing import TYPE_CHECKING, Any

from libhamiregion.errors import RegionError
from libhamiregion.layouts import DEVICE_CAPACITY
from libhamiregion.node.selector import Selector
from libhamiregion.text import printable

from .diff import region_devices, value_now
from .limit_plan import DEVICE_FIELDS, LIMIT_FIELDS, LimitPlan, Limits, Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libhamiregion.node.containers import Container
    from libhamiregion.node.node import Node
    from libhamiregion.region import Region

    from .diff import ContainerDiff, ValueKey

_NO_UNICODE = re.compile("[\ud800-\udfff]")


def undo_plan(changes: Iterable[ContainerDiff]) -> LimitPlan:
    """The plan that puts back what edits change, where nobody else changes it afterwards.

    Each rule names one container by its pod's UID and its own name, and one device. A value that
    no plan can hold, as only a damaged region has it, is left out.
    """
    rules: list[Rule] = []
    for change in changes:
        before = [(edit.key, edit.before) for edit in change.edits]
        after = {edit.key: edit.after for edit in change.edits}
        rules += exact_rules(change.container, before, only_if=after)
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
        region = container.region
        if container.directory is None or region is None:
            continue
        if chosen.matches(container):
            with contextlib.suppress(RegionError):
                keys = _keys(region, chosen)
                rules += exact_rules(container, [(key, value_now(region, key)) for key in keys])
    return LimitPlan(tuple(rules))


def _keys(region: Region, chosen: Selector) -> list[ValueKey]:
    keys: list[ValueKey] = []
    if chosen.device is None:
        keys += [(field, None) for field in LIMIT_FIELDS if field not in DEVICE_FIELDS]
    for device in region_devices(region):
        if chosen.matches_device(device):
            keys += [(field, device.index) for field in DEVICE_FIELDS]
    return keys


def exact_rules(
    container: Container,
    values: Iterable[tuple[ValueKey, int | None]],
    only_if: Mapping[ValueKey, int | None] | None = None,
) -> list[Rule]:
    """Rules for one container and nothing else, one per device.

    Args:
        container: The container.
        values: What it shall have.
        only_if: What has to stand there for that.
    """
    expected = only_if or {}
    by_device: dict[int | None, dict[str, dict[str, Any]]] = {}
    for (field, device), value in values:
        # No plan can hold the negative priority of a damaged region.
        if field != "priority" or (value is not None and value >= 0):
            parts = by_device.setdefault(device, {"set": {}, "only_if": {}})
            parts["set"][field] = value
            if (field, device) in expected:
                parts["only_if"][field] = expected[field, device]
    alike = [by_device.get(device) for device in range(DEVICE_CAPACITY)]
    if alike[0] is not None and all(each == alike[0] for each in alike):
        # A container that has not reported its devices: it will not turn out to have 16.
        whole = by_device.get(None, {})
        by_device = {None: {part: whole.get(part, {}) | alike[0][part] for part in alike[0]}}
    # By its directory: another process may not have proved yet who uses the region.
    own = container.claim_uid or container.directory_name or container.name
    name = printable(f"{container.pod_uid or 'claim'}/{own}", 200)
    return [
        Rule(
            Selector(
                # Of a claim empty: any pod may call a container of its own as a claim's UID reads.
                pod_uid=_exact(container.pod_uid or ""),
                container=container.claim_uid or _exact(own or ""),
                device=None if device is None else str(device),
            ),
            Limits(**parts["set"]),
            name if device is None else f"{name} device {device}",
            Limits(**parts["only_if"]),
        )
        for device, parts in sorted(by_device.items(), key=_none_first)
    ]


def _none_first(item: tuple[int | None, object]) -> int:
    return -1 if item[0] is None else item[0]


def _exact(text: str) -> str:
    """The pattern of one text only; what is no Unicode, as a file's name may hold, is a `?`."""
    return _NO_UNICODE.sub("?", glob.escape(text))
