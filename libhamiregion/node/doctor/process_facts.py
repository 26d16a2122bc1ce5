"""What one process was started with, and which libvgpu it has loaded."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from libhamiregion.node import procfs
from libhamiregion.node.procfs import Gone, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from libhamiregion.node.matching import HostProcess

Policy: TypeAlias = Literal["default", "force", "disable"]

# The kernel lets a process have megabytes of it; whoever does is not asked about limits.
_ENVIRONMENT_LIMIT = 1 << 20
# No limit takes as many characters; what is kept of each of a thousand processes must be little.
_VALUE_LIMIT = 256
_LIBRARIES_LIMIT = 16
_MAPS_LIMIT = 8 << 20
_CHUNK = 1 << 16
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_WANTED = re.compile(
    r"(?:CUDA_DEVICE_MEMORY_LIMIT|CUDA_DEVICE_SM_LIMIT)(?:_[0-9]{1,2})?\Z"
    r"|GPU_CORE_UTILIZATION_POLICY\Z|CUDA_DISABLE_CONTROL\Z"
)
_LIBRARY = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ ([0-9a-f]+:[0-9a-f]+) ([1-9][0-9]*) +"
    rb"(?:/.*)?/libvgpu\.so[^/]*$",
    re.MULTILINE,
)
# As libvgpu compares them: these spellings and no others.
_POLICIES: dict[str, Policy] = {
    "force": "force",
    "FORCE": "force",
    "disable": "disable",
    "DISABLE": "disable",
}


@attrs.frozen
class ProcessEnvironment:
    """The variables of a process that libvgpu looks at.

    Attributes:
        variables: Those that are set, raw text, of each the first 256 characters.
    """

    variables: dict[str, str]

    @property
    def policy(self) -> Policy:
        """What GPU_CORE_UTILIZATION_POLICY comes to."""
        return _POLICIES.get(self.variables.get("GPU_CORE_UTILIZATION_POLICY", ""), "default")

    @property
    def has_limits(self) -> bool:
        """Whether any limit is given at all."""
        return any(name.startswith("CUDA_DEVICE_") for name in self.variables)

    @property
    def control_disabled(self) -> bool:
        """Whether CUDA_DISABLE_CONTROL switches libvgpu off."""
        return self.variables.get("CUDA_DISABLE_CONTROL") == "true"


class ProcessFacts:
    """Reads processes' environments and loaded libraries, each once.

    What cannot be read, for want of a permission or because the process has ended or is another one
    by now, is None. A process that executes another program is another one here: its command line
    differs.

    Threads: may be shared.

    Args:
        proc: The root of /proc.
    """

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._environments: dict[HostProcess, ProcessEnvironment | None] = {}
        self._libraries: dict[HostProcess, tuple[str, ...] | None] = {}

    def environment(self, process: HostProcess) -> ProcessEnvironment | None:
        """The environment that the process was started with; None if it cannot be read."""
        try:
            return self._environments[process]
        except KeyError:
            raw = self._read(process, "environ", _ENVIRONMENT_LIMIT)
            return self._environments.setdefault(
                process, None if raw is None else _environment(raw)
            )

    def libraries(self, process: HostProcess) -> tuple[str, ...] | None:
        """The files libvgpu.so that it maps, ``device:inode`` each, 16 at most; None if unknown."""
        try:
            return self._libraries[process]
        except KeyError:
            raw = self._read(process, "maps", _MAPS_LIMIT)
            return self._libraries.setdefault(process, None if raw is None else _libraries(raw))

    def keep_only(self, processes: Iterable[HostProcess]) -> None:
        """Forget all other processes."""
        kept = set(processes)
        for process in self._environments.keys() - kept:
            self._environments.pop(process, None)
        for process in self._libraries.keys() - kept:
            self._libraries.pop(process, None)

    def is_running(self, process: HostProcess) -> bool:
        """Whether that very process is still there."""
        with self._opened(process) as descriptor:
            return descriptor is not None

    def _read(self, process: HostProcess, name: str, limit: int) -> bytes | None:
        with self._opened(process) as descriptor:
            return None if descriptor is None else _read_file(descriptor, name, limit)

    @contextlib.contextmanager
    def _opened(self, process: HostProcess) -> Iterator[int | None]:
        """The process's directory; None if it has ended, or the pid is another's by now."""
        try:
            descriptor = os.open(f"{self._proc}/{process.pid}", _DIRECTORY)
        except OSError:
            yield None
            return
        try:
            yield descriptor if _is_same(descriptor, process) else None
        finally:
            os.close(descriptor)


def _is_same(descriptor: int, process: HostProcess) -> bool:
    try:
        stat = procfs.parse_stat(procfs.stat_line(descriptor))
    except (Gone, Refused):
        return False
    return stat.start_time_ticks == process.start_time_ticks


def _read_file(directory: int, name: str, limit: int) -> bytes | None:
    chunks = []
    total = 0
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
        try:
            while chunk := os.read(descriptor, _CHUNK):
                chunks.append(chunk)
                total += len(chunk)
                if total > limit:
                    return None
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return b"".join(chunks)


def _environment(raw: bytes) -> ProcessEnvironment:
    variables: dict[str, str] = {}
    for entry in raw.split(b"\0"):
        name, equals, value = os.fsdecode(entry).partition("=")
        # Of two that are called the same, getenv() sees the first.
        if equals and name not in variables and _WANTED.match(name):
            variables[name] = value[:_VALUE_LIMIT]
    return ProcessEnvironment(variables)


def _libraries(raw: bytes) -> tuple[str, ...]:
    found = {f"{device.decode()}:{inode.decode()}" for device, inode in _LIBRARY.findall(raw)}
    return tuple(sorted(found)[:_LIBRARIES_LIMIT])
