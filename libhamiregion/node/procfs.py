"""One process's files under /proc, read in bounded time and bounded size.

Functions take the descriptor of a process's directory, which stays that of this very process, or of
/proc, with pids.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any

import attrs

from libhamiregion._core import ffi, lib
from libhamiregion.errors import new_error, region_error
from libhamiregion.observation.processes import Mapping
from libhamiregion.observation.share import share_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libhamiregion._handle import Handle
    from libhamiregion.observation.processes import FileIdentity
    from libhamiregion.observation.share import Share

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
#: To open /proc itself.
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW

#: Characters of a command line that are kept.
COMMAND_LIMIT = 4096

_CHUNK = 1 << 16
# 65,536 supplementary groups can be before NSpid.
_STATUS_LIMIT = 1 << 20
# What is kept of maps until they have been read: different files, and the bytes of their paths.
_DISTINCT_FILES_LIMIT = 16_384
_PATHS_LIMIT = 2 << 20
_CGROUP_LIMIT = 1 << 16
# The kernel lets a process have megabytes of it.
_ENVIRONMENT_LIMIT = 1 << 20

_KERNEL_THREAD = 0x00200000  # PF_KTHREAD

_uncleared = ffi.new_allocator(should_clear_after_alloc=False)

_UID = re.compile(rb"^Uid:\s+[0-9]+\s+([0-9]+)", re.MULTILINE)
_NS_PIDS = re.compile(rb"^NSpid:((?:[ \t]+[0-9]+)+)$", re.MULTILINE)
_DELETED = " (deleted)"
# As libvgpu compares them: these spellings and no others. Of two that are called the same, getenv()
# sees the first.
_POLICY = b"\0GPU_CORE_UTILIZATION_POLICY="
_OF_SHARES = re.compile(
    rb"\0(CUDA_(?:DEVICE_MEMORY_LIMIT(?:_[0-9]{1,2})?|DEVICE_SM_LIMIT|DISABLE_CONTROL"
    rb"|MPS_PIPE_DIRECTORY|OVERSUBSCRIBE))=([!-~]{0,64})(?=[^!-~])"
)
_VISIBLE = re.compile(rb"\0CUDA_VISIBLE_DEVICES=([^\0]{0,1024})")
_OVERSUBSCRIBES = re.compile(rb"\0CUDA_OVERSUBSCRIBE=true(?=\0|\Z)")
_POLICIES = {b"force", b"FORCE", b"disable", b"DISABLE"}


class Gone(Exception):
    """The process has ended."""


class AccessDenied(Exception):
    """The system does not let this process look."""


class TooMuch(Exception):
    """There is more of it than is read."""


@attrs.frozen
class Maps:
    """What a process has mapped, as far as it matters here.

    Attributes:
        files: The files that it maps shared, with so many bytes each, or more.
        has_libvgpu: Whether it has libvgpu.so loaded.
    """

    files: tuple[Mapping, ...] = ()
    has_libvgpu: bool = False


@attrs.frozen
class Stat:
    """Facts from ``stat``.

    Attributes:
        start_time_ticks: Clock ticks after boot at which the process started.
        is_kernel_thread: It has no memory of its own and never will.
        name: The kernel's short name of it.
    """

    start_time_ticks: int
    is_kernel_thread: bool
    name: str


@contextlib.contextmanager
def opened_process(proc: int, pid: int) -> Iterator[int]:
    """Open a process's directory in /proc."""
    descriptor = _open(proc, str(pid), _DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def initial_pid_namespace() -> str:
    """The first pid namespace, which sees every process, as a link shows it."""
    return str(ffi.string(lib.hr_initial_pid_namespace()), "ascii")


def read_stat(process: int) -> Stat:
    """Read ``stat``."""
    line = read_file(process, "stat", 4096)
    end = line.rindex(b")")
    fields = line[end + 2 :].split(None, 21)
    return Stat(
        start_time_ticks=int(fields[19]),
        is_kernel_thread=bool(int(fields[6]) & _KERNEL_THREAD),
        name=_text(line[line.index(b"(") + 1 : end]),
    )


def read_status(process: int) -> tuple[int, tuple[int, ...]]:
    """Read the effective user of a process, and its pids from the outermost namespace inwards."""
    text = read_file(process, "status", _STATUS_LIMIT)
    uid, ns_pids = _UID.search(text), _NS_PIDS.search(text)
    if uid is None or ns_pids is None:
        raise AccessDenied
    return int(uid[1]), tuple(map(int, ns_pids[1].split()))


def read_start_times(directory: int, pids: Sequence[int]) -> Iterator[tuple[int, int | None]]:
    """When processes that have not ended started; None if this process may not read it.

    Args:
        directory: /proc.
        pids: The processes.
    """
    starts = ffi.new("int64_t[]", len(pids))
    lib.hr_read_start_times(directory, pids, len(pids), starts)
    for pid, start in zip(pids, starts, strict=True):
        if start != lib.HR_HAS_ENDED:
            yield pid, None if start == lib.HR_START_REFUSED else start


def read_maps(process: int, *, smallest: int, limit: int) -> Maps:
    """Read which files a process maps shared, `smallest` bytes or more of each.

    Args:
        process: The process's directory.
        smallest: Files of which less is mapped are left out.
        limit: How many files a process may map.

    Raises:
        Gone: The process has ended.
        AccessDenied: This process may not read it.
        TooMuch: There are more files than `limit`, or more of maps than is read.
    """
    rows = _uncleared("struct hr_mapped_file[]", _DISTINCT_FILES_LIMIT)
    paths = _uncleared("char[]", _PATHS_LIMIT)
    has_libvgpu = ffi.new("uint32_t *")
    count = lib.hr_read_mapped_files(
        process, rows, len(rows), paths, len(paths), has_libvgpu, ffi.NULL
    )
    if count < 0:
        raise {lib.HR_ENOTFOUND: Gone, lib.HR_EACCESS: AccessDenied}.get(count, TooMuch)
    large = [row for row in rows[0:count] if row.bytes >= smallest]
    if len(large) > limit:
        raise TooMuch
    return Maps(tuple(_mapping(row, paths) for row in large), bool(has_libvgpu[0]))


def _mapping(row: Any, paths: Any) -> Mapping:
    path = ffi.unpack(paths + row.path_at, row.path_bytes)
    return Mapping(
        os.makedev(row.file.major_number, row.file.minor_number),
        row.file.inode,
        row.start,
        row.end,
        row.bytes,
        bool(row.is_writable),
        *split_deleted(os.fsdecode(path)),
    )


def file_identity(region: Handle) -> FileIdentity:
    """A region's device and inode as maps prints them.

    `os.stat` gives another device number on some file systems (btrfs, overlay).

    Raises:
        RegionClosed: After `Region.close`.
    """
    found = ffi.new("struct hr_file_id *")
    error = new_error()
    code = lib.hr_get_file_id(region._handle, found, error)
    if code != lib.HR_OK:
        raise region_error(code, region.path, error)
    return os.makedev(found.major_number, found.minor_number), found.inode


def split_deleted(path: str) -> tuple[str, bool]:
    """A path as the kernel shows it: the path, and whether that name is gone."""
    return path.removesuffix(_DELETED), path.endswith(_DELETED)


def read_cgroup(process: int) -> str:
    """Read the text of ``cgroup``."""
    return _text(read_file(process, "cgroup", _CGROUP_LIMIT))


def read_command(process: int) -> str:
    """Read the command line, with spaces between its arguments; empty without one."""
    raw = read_file(process, "cmdline", COMMAND_LIMIT)
    return _text(raw.rstrip(b"\0").replace(b"\0", b" "))[:COMMAND_LIMIT]


def read_environment(process: int) -> bytes:
    """Read the environment: variables, each after a zero byte."""
    return b"\0" + read_file(process, "environ", _ENVIRONMENT_LIMIT)


def sm_policy_in(environment: bytes) -> str:
    """Whether libvgpu limits SMs, by the environment: force, disable or default."""
    policy = environment.partition(_POLICY)[2].partition(b"\0")[0]
    return policy.decode().lower() if policy in _POLICIES else "default"


def visible_devices_in(environment: bytes) -> str | None:
    """The devices that CUDA shows to a process, as its environment names them."""
    found = _VISIBLE.search(environment)
    return None if found is None else _text(found[1])


def oversubscribes_in(environment: bytes) -> bool:
    """Whether libvgpu gives a process managed memory, which can be more than the GPU has."""
    return _OVERSUBSCRIBES.search(environment) is not None


def share_in(environment: bytes) -> Share:
    """The share of GPUs that an environment names."""
    found: dict[str, str] = {}
    for name, value in _OF_SHARES.findall(environment):
        found.setdefault(name.decode(), value.decode())
    return share_of(found)


def read_link(directory: int, name: str) -> str | None:
    """Read where a link points to; None if that is not known."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:
        return None


def read_file(directory: int, name: str, limit: int) -> bytes:
    """Read a file up to a limit.

    Raises:
        Gone: The process has ended.
        AccessDenied: This process may not read it.
    """
    descriptor = _open(directory, name, _READ)
    content = b""
    try:
        while chunk := os.read(descriptor, min(_CHUNK, limit - len(content))):
            content += chunk
    except PermissionError as error:
        raise AccessDenied from error
    except ProcessLookupError as error:
        raise Gone from error
    finally:
        os.close(descriptor)
    return content


def _open(directory: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags, dir_fd=directory)
    except PermissionError as error:
        raise AccessDenied from error
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError) as error:
        raise Gone from error


def _text(raw: bytes) -> str:
    # Bytes that are no UTF-8 stay visible, and the result can be encoded again.
    return raw.decode("utf-8", "backslashreplace")
