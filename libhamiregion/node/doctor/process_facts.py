"""What one process was started with, and whether it has libvgpu loaded."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Literal, TypeAlias

from libhamiregion.node import procfs
from libhamiregion.node.procfs import Gone, Refused

if TYPE_CHECKING:
    from libhamiregion.node.matching import HostProcess

Policy: TypeAlias = Literal["default", "force", "disable"]

# The kernel lets a process have megabytes of both.
_ENVIRONMENT_LIMIT = 1 << 20
_MAPS_LIMIT = 8 << 20
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
# As libvgpu compares them: these spellings and no others. Of two that are called the same, getenv()
# sees the first.
_POLICY = re.compile(rb"(?:\A|\0)GPU_CORE_UTILIZATION_POLICY=([^\0]*)")
_POLICIES: dict[bytes, Policy] = {
    b"force": "force",
    b"FORCE": "force",
    b"disable": "disable",
    b"DISABLE": "disable",
}
_LIBRARY = re.compile(rb"^[^\n]*/libvgpu\.so[^/\n]*$", re.MULTILINE)


def policy_of(proc: str, process: HostProcess) -> Policy:
    """What GPU_CORE_UTILIZATION_POLICY comes to in a process."""
    raw = _read(proc, process, "environ", _ENVIRONMENT_LIMIT)
    found = None if raw is None else _POLICY.search(raw)
    return "default" if found is None else _POLICIES.get(found[1], "default")


def has_libvgpu(proc: str, process: HostProcess) -> bool | None:
    """Whether a process has libvgpu.so loaded; None if that cannot be told."""
    raw = _read(proc, process, "maps", _MAPS_LIMIT)
    return None if raw is None else _LIBRARY.search(raw) is not None


def _read(proc: str, process: HostProcess, name: str, limit: int) -> bytes | None:
    """A file of that very process; None where it cannot be read whole."""
    try:
        descriptor = os.open(f"{proc}/{process.pid}", _DIRECTORY)
    except OSError:
        return None
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        try:
            stat = procfs.parse_stat(procfs.stat_line(descriptor))
            if stat.start_time_ticks == process.start_time_ticks:
                return procfs.read_all(descriptor, name, limit)
        except (Gone, Refused, OSError):
            pass
    return None
