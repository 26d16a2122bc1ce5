"""The containers of a node as a picture: rows for a pipe, tables for a terminal, JSON."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import attrs
from rich.console import Group
from rich.text import Text

from libhamiregion import format_size
from libhamiregion.node.containers import MissingRegion, missing_for
from libhamiregion.text import printable

from .node_words import ROOMY, Names, name_cells, name_columns, names_of, shortened, word
from .output import as_plain
from .plain import aligned, percent_word, size_word
from .render import GOOD, NEAR, OVER, QUIET, WIDE, columns, limit_text, memory_bar, ratio_style
from .wording import ABOVE_EVERY_PID, NOTHING, fill_ratio, memory_words, percent_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from libhamiregion import DeviceUsage, RegionSnapshot
    from libhamiregion.node import ContainerView, Node, Selector


@attrs.frozen
class NamedContainer:
    """A container with its names, and what of its devices was selected."""

    names: Names
    view: ContainerView
    devices: tuple[DeviceUsage, ...]

    @property
    def missing(self) -> MissingRegion | None:
        """Why there is nothing to show of it; None if there is."""
        if self.view.snapshot is not None:
            return None
        error = self.view.error
        return self.view.container.missing if error is None else missing_for(error)

    @property
    def states(self) -> Counter[str]:
        """How many of its processes are alive, dead, unknown and unlisted."""
        processes = self.view.processes
        if processes is None:
            return Counter()
        states: Counter[str] = Counter(slot.state for slot in processes.slots)
        states["unlisted"] = len(processes.unlisted)
        return states

    def lock_word(self, snapshot: RegionSnapshot) -> str:
        """Who has signed for the region's lock."""
        owner = snapshot.owner_pid
        if not owner:
            return "free"
        if owner >= ABOVE_EVERY_PID:
            return "tool"
        processes = self.view.processes
        slots = () if processes is None else processes.slots
        states = {slot.state for slot in slots if slot.pid == owner}
        return f"dead:{owner}" if states == {"dead"} else f"pid:{owner}"


def named_containers(
    node: Node, views: Iterable[ContainerView], selector: Selector
) -> list[NamedContainer]:
    """Name, select and sort containers."""
    chosen = []
    for view in views:
        if not selector.matches_container(view.container, node.pod_name(view.container)):
            continue
        devices = () if view.snapshot is None else view.snapshot.devices
        if selector.device is not None:
            devices = tuple(device for device in devices if selector.matches_device(device))
            if not devices:
                continue
        chosen.append(NamedContainer(names_of(node, view.container), view, devices))
    chosen.sort(key=lambda each: each.names.order)
    return chosen


@attrs.frozen
class ContainerPicture:
    """All containers of a node at one time.

    Attributes:
        taken_at_ns: Unix nanoseconds.
        containers: What was selected, sorted.
        complete: Whether every process of the node could be seen.
        wide: Whether to show uuids and paths too.
    """

    taken_at_ns: int
    containers: Sequence[NamedContainer]
    complete: bool
    wide: bool
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    failure: str | None

    def as_object(self) -> dict[str, Any]:
        """The picture for programs; see the help of `hamiregion containers`."""
        return {
            "taken_at_ns": self.taken_at_ns,
            "complete": self.complete,
            "warnings": list(self.warnings),
            "containers": [_as_object(each) for each in self.containers],
        }

    def as_text(self) -> str:
        """One line per container and device; after an empty line, the containers without region."""
        heading = ["POD", "CONTAINER", "LAYOUT", "DEVICE", "MEM-USED", "MEM-LIMIT", "SM"]
        heading += ["SM-LIMIT", "ALIVE", "DEAD", "UNKNOWN", "PRIORITY", "LOCK"]
        if self.wide:
            heading += ["UUID", "FILE"]
        lines = [heading]
        for each, snapshot in self._with_region():
            states = each.states
            for device in each.devices or (None,):
                cells = [
                    word(each.names.pod_words),
                    word(each.names.container_words),
                    snapshot.layout.value,
                    *_device_words(snapshot, device),
                    *(str(states[state]) for state in ("alive", "dead", "unknown")),
                    str(snapshot.priority),
                    each.lock_word(snapshot),
                ]
                if self.wide:
                    uuid = None if device is None else device.uuid
                    cells += [
                        NOTHING if uuid is None else word(uuid),
                        # The last column: its blanks split nothing.
                        printable(snapshot.path),
                    ]
                lines.append(cells)
        text = aligned(lines)
        missing = [["POD", "CONTAINER", "REASON", "MESSAGE"]]
        for each in self.containers:
            reason = each.missing
            if reason is not None:
                names = (word(each.names.pod_words), word(each.names.container_words))
                missing.append([*names, reason.reason.value, printable(reason.message)])
        return text if len(missing) == 1 else f"{text}\n{aligned(missing)}"

    def as_view(self, width: int) -> RenderableType:
        """A table of the regions, and below it why the others have none."""
        if not self.containers:
            return Text("No container has a directory or maps a region.", style=QUIET)
        parts: list[RenderableType] = []
        if any(True for _ in self._with_region()):
            parts.append(self._table(width))
        missing = [each for each in self.containers if each.missing is not None]
        if missing:
            parts += [Text()] if parts else []
            parts.append(_missing_table(missing, width))
        return Group(*parts)

    def _with_region(self) -> Iterable[tuple[NamedContainer, RegionSnapshot]]:
        for each in self.containers:
            if each.view.snapshot is not None:
                yield each, each.view.snapshot

    def _table(self, width: int) -> Table:
        roomy = width >= ROOMY
        table = columns()
        name_columns(table, roomy=roomy)
        table.add_column("dev", justify="right", style="bold", no_wrap=True)
        if width >= WIDE:
            table.add_column("memory")
        # As wide as they get: a live table must not jump from one picture to the next.
        for name, longest in (
            ("used", "1023 MiB"),
            ("limit", "unlimited"),
            ("SM", "100 %"),
            ("limit", "unlimited"),
        ):
            table.add_column(name, justify="right", no_wrap=True, min_width=len(longest))
        table.add_column("processes", no_wrap=True)
        if roomy:
            table.add_column("prio", justify="right", no_wrap=True)
            table.add_column("layout", no_wrap=True)
            table.add_column("lock", no_wrap=True)
        if self.wide:
            table.add_column("uuid", style=QUIET)
            table.add_column("file", overflow="fold", style=QUIET)
        for each, snapshot in self._with_region():
            for cells in self._rows(each, snapshot, width):
                table.add_row(*cells)
        return table

    def _rows(
        self, each: NamedContainer, snapshot: RegionSnapshot, width: int
    ) -> Iterable[list[RenderableType]]:
        roomy, wide = width >= ROOMY, width >= WIDE
        lock = each.lock_word(snapshot)
        whole = name_cells(each.names, roomy=roomy)
        region = [
            Text(str(snapshot.priority)),
            Text(snapshot.layout.value),
            Text(lock, style="" if lock == "free" else NEAR),
        ]
        counts = _counts(each.states)
        path = Text(printable(snapshot.path))
        util = snapshot.layout.has_utilization
        for device in each.devices or (None,):
            cells: list[RenderableType] = [*whole]
            if device is None:
                cells += [Text(NOTHING), *([Text()] if wide else []), *[Text(NOTHING)] * 4]
            else:
                ratio = fill_ratio(device)
                cells.append(str(device.index))
                if wide:
                    cells.append(memory_bar(ratio, width=12))
                cells += [
                    Text(format_size(device.memory_used_bytes), style=ratio_style(ratio)),
                    limit_text(memory_words(device.memory_limit_bytes)),
                    Text(f"{device.sm_util_percent} %" if util else NOTHING),
                    limit_text(percent_words(device.sm_limit_percent)),
                ]
            cells.append(counts)
            cells += region if roomy else []
            if self.wide:
                uuid = None if device is None else device.uuid
                cells += [shortened(NOTHING if uuid is None else printable(uuid)), path]
            yield cells
            # One container with several devices is one container.
            whole = [Text()] * len(whole)
            counts, path = Text(), Text()
            region = [Text()] * len(region)


def _missing_table(missing: Sequence[NamedContainer], width: int) -> Table:
    table = columns()
    roomy = width >= ROOMY
    name_columns(table, roomy=roomy)
    table.add_column("no region, because", overflow="fold")
    for each in missing:
        if each.missing is None:
            continue
        message = Text(printable(each.missing.message))
        table.add_row(*name_cells(each.names, roomy=roomy), message)
    return table


def _counts(states: Counter[str]) -> Text:
    line = Text(str(states["alive"]), style=GOOD if states["alive"] else QUIET)
    for state, style in (("dead", f"bold {OVER}"), ("unknown", NEAR), ("unlisted", NEAR)):
        if states[state]:
            line.append(f" +{states[state]} {state}", style=style)
    return line


def _device_words(snapshot: RegionSnapshot, device: DeviceUsage | None) -> list[str]:
    if device is None:
        return [NOTHING] * 5
    util = snapshot.layout.has_utilization
    return [
        str(device.index),
        size_word(device.memory_used_bytes),
        size_word(device.memory_limit_bytes),
        percent_word(device.sm_util_percent) if util else NOTHING,
        percent_word(device.sm_limit_percent),
    ]


def _as_object(each: NamedContainer) -> dict[str, Any]:
    container, snapshot, missing = each.view.container, each.view.snapshot, each.missing
    states = each.states
    found: dict[str, Any] = {
        **as_plain(each.names),
        "directory": container.directory,
        "region_path": container.region_path,
        "other_files": list(container.other_files),
        "reason": None if missing is None else missing.reason.value,
        "message": None if missing is None else missing.message,
    }
    for name in _REGION_KEYS:
        found[name] = None if snapshot is None else getattr(snapshot, name)
    found["layout"] = None if snapshot is None else snapshot.layout.value
    found["processes"] = (
        None
        if snapshot is None
        else {state: states[state] for state in ("alive", "dead", "unknown", "unlisted")}
    )
    found["devices"] = [as_plain(device) for device in each.devices]
    return found


_REGION_KEYS = (
    "layout",
    "device_count",
    "priority",
    "utilization_switch",
    "recent_kernel",
    "last_kernel_time_s",
    "owner_pid",
    "settled",
)
