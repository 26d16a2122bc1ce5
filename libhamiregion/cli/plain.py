"""Regions as plain aligned text, for pipes and files.

No escapes and no drawing.  Every line of a table splits on white space into as many words as its
heading has: sizes stand without their space, which `parse_size` reads as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion import format_size
from libhamiregion.text import printable

from .wording import (
    NOTHING,
    UNLIMITED,
    busy_devices,
    facts,
    status_word,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libhamiregion import DeviceUsage, ProcessDeviceUsage, ProcessUsage, RegionSnapshot

_DEVICE_HEADING = [
    "DEVICE",
    "MEM-USED",
    "MEM-LIMIT",
    "MEM-FREE",
    "CONTEXT",
    "MODULE",
    "DATA",
    "DRIVER",
    "SM",
    "SM-LIMIT",
    "ENC",
    "DEC",
    "UUID",
]
_PROCESS_HEADING = [
    "PID",
    "HOST-PID",
    "STATUS",
    "SETTLED",
    "DEVICE",
    "MEM-USED",
    "CONTEXT",
    "MODULE",
    "DATA",
    "DRIVER",
    "SM",
    "ENC",
    "DEC",
]


def region_text(snapshot: RegionSnapshot) -> str:
    """Show a whole region: facts, devices, processes; ends with a newline."""
    util = snapshot.layout.has_utilization
    blocks = [
        aligned(
            [("path", printable(snapshot.path))]
            + [(label.replace(" ", "-").lower(), words) for label, words in facts(snapshot)]
        ),
        aligned([_DEVICE_HEADING] + [_device_row(device, util) for device in snapshot.devices]),
    ]
    if snapshot.processes:
        rows = [row for process in snapshot.processes for row in _process_rows(process, util)]
        blocks.append(aligned([_PROCESS_HEADING, *rows]))
    return "\n".join(blocks)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart; each line ends with a newline."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        + "\n"
        for row in rows
    )


def size_word(nbytes: int | None) -> str:
    """Show bytes as one word; None is unlimited."""
    return UNLIMITED if nbytes is None else format_size(nbytes).replace(" ", "")


def percent_word(percent: int | None) -> str:
    """Show a percentage as one word; None is unlimited."""
    return UNLIMITED if percent is None else f"{percent}%"


def _util_word(percent: int, known: bool) -> str:
    return percent_word(percent) if known else NOTHING


def _device_row(device: DeviceUsage, util: bool) -> list[str]:
    free = device.memory_free_bytes
    return [
        str(device.index),
        size_word(device.memory_used_bytes),
        size_word(device.memory_limit_bytes),
        NOTHING if free is None else size_word(free),
        size_word(device.memory_context_bytes),
        size_word(device.memory_module_bytes),
        size_word(device.memory_data_bytes),
        size_word(device.memory_monitor_bytes),
        _util_word(device.sm_util_percent, util),
        percent_word(device.sm_limit_percent),
        _util_word(device.enc_util_percent, util),
        _util_word(device.dec_util_percent, util),
        # Printable text may hold spaces; a line keeps its number of words all the same.
        printable(device.uuid).replace(" ", r"\x20") if device.uuid else NOTHING,
    ]


def _process_rows(process: ProcessUsage, util: bool) -> list[list[str]]:
    identity = [
        str(process.pid),
        NOTHING if process.host_pid is None else str(process.host_pid),
        status_word(process.status).replace(" ", "-"),
        "yes" if process.settled else "no",
    ]
    busy = busy_devices(process)
    if not busy:
        return [identity + [NOTHING] * (len(_PROCESS_HEADING) - len(identity))]
    return [identity + _usage_cells(process.devices[position], util) for position in busy]


def _usage_cells(usage: ProcessDeviceUsage, util: bool) -> list[str]:
    return [
        str(usage.index),
        size_word(usage.memory_used_bytes),
        size_word(usage.memory_context_bytes),
        size_word(usage.memory_module_bytes),
        size_word(usage.memory_data_bytes),
        size_word(usage.memory_monitor_bytes),
        _util_word(usage.sm_util_percent, util),
        _util_word(usage.enc_util_percent, util),
        _util_word(usage.dec_util_percent, util),
    ]
