"""The processes of a node as a picture: rows for a pipe, a table for a terminal, JSON."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import attrs
from rich.console import Group
from rich.text import Text

from libhamiregion import ProcessStatus, format_size
from libhamiregion.text import printable

from .driver_tables import driver_object
from .node_words import ROOMY, Names, name_cells, name_columns, names_of, shortened, word
from .output import as_plain
from .plain import aligned, percent_word, size_word
from .render import GOOD, NEAR, OVER, QUIET, columns
from .wording import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from libhamiregion.node import Node, NodeProcess, NvmlSample, ProcessDeviceRow, Selector

# From this width on there is room for the pids of two namespaces.
_PIDS = 90
# No terminal shows more of a command.
_LONGEST = 1000

_STATE_STYLES = {
    "alive": GOOD,
    "suspended": NEAR,
    "dead": f"bold {OVER}",
    "unknown": NEAR,
    "unlisted": NEAR,
    "escaped": f"bold {OVER}",
    "unmanaged": QUIET,
}
SORTS = ("name", "memory", "sm", "pid")


@attrs.frozen
class NamedProcess:
    """A process with the names of what it runs in; raw text."""

    names: Names
    process: NodeProcess

    @property
    def inner_pid(self) -> int | None:
        """Its pid inside its container, with a slot or without."""
        if self.process.pid is not None or self.process.process is None:
            return self.process.pid
        return self.process.process.ns_pids[-1]

    @property
    def state_word(self) -> str:
        """Its state; held up is one too."""
        suspended = self.process.status == ProcessStatus.SUSPENDED
        return "suspended" if suspended and self.process.state == "alive" else self.process.state

    @property
    def busy(self) -> tuple[ProcessDeviceRow, ...]:
        """The devices that it uses."""
        return tuple(row for row in self.process.devices if is_busy(row))

    @property
    def memory_bytes(self) -> int:
        """What it uses in all: as counted, or what the driver says where that is more."""
        devices = self.process.devices
        return sum(max(row.memory_used_bytes or 0, row.memory_driver_bytes or 0) for row in devices)

    @property
    def sm_percent(self) -> int:
        """Its utilisation in all; the driver's where it is known."""
        return sum(
            (row.sm_util_percent or 0) if row.driver_sm_percent is None else row.driver_sm_percent
            for row in self.process.devices
        )


def is_busy(row: ProcessDeviceRow) -> bool:
    """Whether the process has or does something there, or the driver lists it there."""
    counted = row.memory_used_bytes or row.sm_util_percent
    driven = (
        row.memory_driver_bytes
        or row.driver_sm_percent
        or row.driver_memory_percent
        or row.driver_enc_percent
        or row.driver_dec_percent
    )
    return bool(counted or driven) or row.memory_used_bytes is None


def named_processes(
    node: Node, processes: Iterable[NodeProcess], selector: Selector, sort: str
) -> list[NamedProcess]:
    """Name, select and sort processes."""
    chosen = []
    for process in processes:
        owner = process.owner
        if not selector.matches_container(owner, node.pod_name(owner)):
            continue
        named = NamedProcess(names_of(node, owner), process)
        if selector.device is not None:
            devices = tuple(row for row in named.busy if selector.matches_device(row))
            if not devices:
                continue
            named = attrs.evolve(named, process=attrs.evolve(process, devices=devices))
        chosen.append(named)
    return in_order(chosen, sort)


def in_order(processes: Iterable[NamedProcess], sort: str) -> list[NamedProcess]:
    """Sort processes by one of `SORTS`; what is equal keeps its order."""
    keys: dict[str, Callable[[NamedProcess], Any]] = {
        "name": lambda each: each.names.order,
        "memory": lambda each: -each.memory_bytes,
        "sm": lambda each: (-each.sm_percent, -each.memory_bytes),
        "pid": lambda each: each.process.host_pid or 0,
    }
    return sorted(processes, key=keys[sort])


@attrs.frozen
class ProcessPicture:
    """All processes of a node at one time.

    Attributes:
        taken_at_ns: Unix nanoseconds.
        processes: What was selected, sorted.
        sample: What the driver said; None if it was not asked.
        complete: Whether every process of the node could be seen.
        wide: Whether to show users, uuids and commands too.
        driver_gap: Why the driver's figures are missing, if they are.
    """

    taken_at_ns: int
    processes: Sequence[NamedProcess]
    sample: NvmlSample | None
    complete: bool
    wide: bool
    driver_gap: str | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    failure: str | None

    def as_object(self) -> dict[str, Any]:
        """The picture for programs; see the help of `hamiregion ps`."""
        return {
            "taken_at_ns": self.taken_at_ns,
            "complete": self.complete,
            "driver": driver_object(self.sample, self.driver_gap),
            "warnings": list(self.warnings),
            "processes": [_as_object(each) for each in self.processes],
        }

    def as_text(self) -> str:
        """One line per process and device that it uses."""
        heading = ["POD", "CONTAINER", "DEVICE", "GPU", "PID", "HOST-PID", "STATE", "MEM-USED"]
        heading += ["MEM-DRIVER", "SM", "SM-DRIVER"]
        if self.wide:
            heading += ["USER", "UUID", "COMMAND"]
        lines = [heading]
        for each in self.processes:
            host = each.process.process
            for row in each.busy or (None,):
                cells = [
                    word(each.names.pod_words),
                    word(each.names.container_words),
                    _number(None if row is None else row.index),
                    _number(None if row is None else row.driver_index),
                    _number(each.inner_pid),
                    _number(each.process.host_pid),
                    each.state_word,
                    *(_figures(row, size_word, percent_word)),
                ]
                if self.wide:
                    uuid = None if row is None else row.uuid
                    cells += [
                        NOTHING if host is None else word(host.user),
                        NOTHING if uuid is None else word(uuid),
                        # The last column: its blanks split nothing.
                        NOTHING if host is None else printable(host.command),
                    ]
                lines.append(cells)
        return aligned(lines)

    def as_view(self, width: int, *, rows: int | None = None) -> RenderableType:
        """A table, of so many rows if given, and below it the sums over all of them."""
        if not self.processes:
            return Text("No process uses a region or a GPU.", style=QUIET)
        shown = self.processes
        if rows is not None:
            ends = itertools.accumulate(len(each.busy) or 1 for each in shown)
            shown = [each for each, end in zip(shown, ends, strict=True) if end <= rows]
        hidden = len(self.processes) - len(shown)
        more = [Text(f"and {hidden} more", style=QUIET)] if hidden else []
        return Group(self._table(shown, width), *more, Text(), Text(self._sums(), style=QUIET))

    def _table(self, processes: Sequence[NamedProcess], width: int) -> Table:
        driver = self.sample is not None and self.driver_gap is None
        roomy = width >= ROOMY
        table = columns()
        name_columns(table, roomy=roomy)
        gpu = ("GPU",) if driver and roomy else ()
        inner = ("PID",) if width >= _PIDS else ()
        for name in ("dev", *gpu, *inner, "host PID"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("state", no_wrap=True, min_width=len("unmanaged"))
        names = ("used", "driver", "SM", "SM drv") if driver else ("used", "SM")
        for name in names:
            longest = "100 %" if name.startswith("SM") else "1023 MiB"
            table.add_column(name, justify="right", no_wrap=True, min_width=len(longest))
        if self.wide:
            table.add_column("user", max_width=12)
            if roomy:
                table.add_column("uuid", style=QUIET)
            table.add_column("command")
        for each in processes:
            for cells in self._rows(each, width, driver=driver):
                table.add_row(*cells)
        return table

    def _rows(self, each: NamedProcess, width: int, *, driver: bool) -> Iterable[list[Text]]:
        roomy = width >= ROOMY
        state = each.state_word
        identity = [
            *([Text(_number(each.inner_pid), style="bold")] if width >= _PIDS else []),
            Text(_number(each.process.host_pid)),
            Text(state, style=_STATE_STYLES.get(state, "")),
        ]
        host = each.process.process
        whole = name_cells(each.names, roomy=roomy)
        for row in each.busy or (None,):
            used, driven, sm, driver_sm = _figures(row, format_size, _percent)
            device = [Text(_number(None if row is None else row.index))]
            if driver and roomy:
                device.append(Text(_number(None if row is None else row.driver_index)))
            figures = (used, driven, sm, driver_sm) if driver else (used, sm)
            cells = [*whole, *device, *identity, *map(_quiet_nothing, figures)]
            if self.wide:
                cells.append(shortened(NOTHING if host is None else printable(host.user, _LONGEST)))
                if roomy:
                    uuid = None if row is None else row.uuid
                    cells.append(shortened(NOTHING if uuid is None else printable(uuid)))
                command = NOTHING if host is None else printable(host.command, _LONGEST)
                cells.append(shortened(command))
            yield cells
            # One process on several devices is one process.
            whole = [Text()] * len(whole)
            identity = [Text()] * len(identity)

    def _sums(self) -> str:
        rows = [row for each in self.processes for row in each.process.devices]
        containers = {id(each.process.container) for each in self.processes} - {id(None)}
        words = f"{_count(len(self.processes), 'process', 'processes')} of"
        words += f" {_count(len(containers), 'container', 'containers')}"
        words += f"; {format_size(sum(row.memory_used_bytes or 0 for row in rows))} counted"
        if self.sample is not None and self.driver_gap is None:
            total = sum(row.memory_driver_bytes or 0 for row in rows)
            words += f", {format_size(total)} by the driver"
        return words


def _as_object(each: NamedProcess) -> dict[str, Any]:
    process, names = each.process, each.names
    host = process.process
    container = process.container
    return {
        **as_plain(names),
        "region_path": None if container is None else container.region_path,
        "pid": each.inner_pid,
        "host_pid": process.host_pid,
        "state": process.state,
        "status": process.status,
        "uid": None if host is None else host.uid,
        "user": None if host is None else host.user,
        "command": None if host is None else host.command,
        "devices": [as_plain(row) for row in process.devices],
    }


def _figures(row: ProcessDeviceRow | None, size: Any, percent: Any) -> tuple[str, str, str, str]:
    if row is None:
        return NOTHING, NOTHING, NOTHING, NOTHING
    return (
        NOTHING if row.memory_used_bytes is None else size(row.memory_used_bytes),
        NOTHING if row.memory_driver_bytes is None else size(row.memory_driver_bytes),
        NOTHING if row.sm_util_percent is None else percent(row.sm_util_percent),
        NOTHING if row.driver_sm_percent is None else percent(row.driver_sm_percent),
    )


def _quiet_nothing(words: str) -> Text:
    return Text(words, style=QUIET if words == NOTHING else "")


def _percent(percent: int) -> str:
    return f"{percent} %"


def _number(number: int | None) -> str:
    return NOTHING if number is None else str(number)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
