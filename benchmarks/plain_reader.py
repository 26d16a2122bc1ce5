"""plain_reader.c from Python: many regions in one call, without any check."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scene import DEVICES, PROCESSES, compiler

if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCE = Path(__file__).with_suffix(".c")

_FIGURES = [
    *((f"memory_{part}_bytes", "u8") for part in ("used", "context", "module", "data", "offset")),
    ("memory_monitor_bytes", "u8"),
    *((f"{part}_util_percent", "u8") for part in ("sm", "enc", "dec")),
]
# The structs of plain_reader.c, under the names of RegionTable's columns.
REGION_ROW = np.dtype(
    [
        *((f"{what}_count", "i8") for what in ("device", "process")),
        *((name, "i8") for name in ("priority", "utilization_switch", "recent_kernel")),
        *((name, "u8") for name in ("last_kernel_time_s", "owner_pid", "semaphore")),
        *((f"first_{what}", "i8") for what in ("device", "process")),
    ]
)
DEVICE_ROW = np.dtype(
    [
        *((name, "i8") for name in ("region", "device")),
        *((name, "u8") for name in ("memory_limit_bytes", "sm_limit_percent")),
        *_FIGURES,
        ("uuid", "S96"),
    ]
)
PROCESS_ROW = np.dtype(
    [(name, "i8") for name in ("region", "pid", "host_pid", "status", "first_usage")]
)
USAGE_ROW = np.dtype([("process", "i8"), ("device", "i8"), *_FIGURES])


class PlainReader:
    """Regions of layout 1.2 with the scene's processes and devices, read into rows."""

    def __init__(self, directory: Path, paths: Iterable[Path]) -> None:
        library = directory / "plain_reader.so"
        command = [*compiler(), "-std=gnu11", "-O2", "-shared", "-fPIC", "-o", str(library)]
        subprocess.run([*command, str(SOURCE)], check=True)
        core = ctypes.CDLL(str(library))
        core.plain_open.restype = ctypes.c_void_p
        core.plain_open.argtypes = [ctypes.c_char_p]
        core.plain_close.argtypes = [ctypes.c_void_p]
        core.plain_read.restype = ctypes.c_int64
        self._close = core.plain_close
        self._mapped = [core.plain_open(bytes(path)) for path in paths]
        assert all(self._mapped)
        count = len(self._mapped)
        self.regions = np.zeros(count, REGION_ROW)
        self.devices = np.zeros(count * DEVICES, DEVICE_ROW)
        self.processes = np.zeros(count * PROCESSES, PROCESS_ROW)
        self.usages = np.zeros(count * PROCESSES * DEVICES, USAGE_ROW)
        tables = (self.regions, self.devices, self.processes, self.usages)
        self._arguments = (
            (ctypes.c_void_p * count)(*self._mapped),
            ctypes.c_int64(count),
            *(ctypes.c_void_p(table.ctypes.data) for table in tables),
        )
        self._read = core.plain_read

    def read(self) -> int:
        """Fill the tables anew; returns the number of usage rows."""
        return int(self._read(*self._arguments))

    def close(self) -> None:
        for region in self._mapped:
            self._close(region)
