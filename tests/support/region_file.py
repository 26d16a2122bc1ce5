"""Region files that tests store into, by the names of their fields."""

import contextlib
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from libhamiregion import Layout

MAGIC = 19920718
DEVICES = 16
SLOTS = 1024
UUID_BYTES = 96

# Parts of one `used` record and of one utilisation record: the same order in all layouts.
USED_PARTS = ("context", "module", "data", "offset", "total")
UTIL_PARTS = ("dec", "enc", "sm")

_INT32 = {
    "magic",
    "sm_init_flag",
    "proc_num",
    "utilization_switch",
    "recent_kernel",
    "priority",
    "slot_pid",
    "slot_hostpid",
    "slot_status",
}
_UINT32 = {"major_version", "minor_version"}
_WITHOUT_OFFSET = {"magic": 0, "major_version": 4, "minor_version": 8}
_STRIDES = {"uuids": UUID_BYTES, "limit": 8, "sm_limit": 8, "slot_monitorused": 8}


def locate(layout: Layout, field: str, *, device: int = 0, slot: int = 0) -> tuple[int, str]:
    """Where a field stands in the file, and its format for `struct`.

    Fields are the names in `Layout.offsets` beside magic, major_version and minor_version; parts of
    a record follow a dot: ``slot_used.total``, ``slot_util.sm``.
    """
    name, _, part = field.partition(".")
    offsets = layout.offsets
    offset = _WITHOUT_OFFSET.get(name, offsets.get(name))
    if offset is None:
        raise LookupError(f"layout {layout.value} has no {field}")
    if name.startswith("slot_"):
        offset += offsets["procs"] + slot * offsets["slot_stride"]
    if name == "slot_used":
        offset += device * offsets["slot_used_stride"] + 8 * USED_PARTS.index(part)
    elif name == "slot_util":
        offset += device * offsets["slot_util_stride"] + 8 * UTIL_PARTS.index(part)
    else:
        offset += device * _STRIDES.get(name, 0)
    if name == "uuids":
        return offset, f"{UUID_BYTES}s"
    return offset, "<i" if name in _INT32 else "<I" if name in _UINT32 else "<Q"


def truncate(path: os.PathLike[str] | str, size: int) -> None:
    """Give a file another length; whoever has it mapped meets the new end at once.

    A link in its place is refused (OSError), and so is a pipe: in a test where containers put
    there what they like, `os.truncate` would cut what the link leads to.
    """
    fd = _open_itself(path)
    try:
        os.ftruncate(fd, size)
    finally:
        os.close(fd)


def patch(path: os.PathLike[str] | str, offset: int, data: bytes) -> None:
    """Store bytes into a file; whoever has it mapped sees them at once.

    A link in its place is refused (OSError), and so is a pipe.
    """
    fd = _open_itself(path)
    try:
        assert os.pwrite(fd, data, offset) == len(data)
    finally:
        os.close(fd)


def _open_itself(path: os.PathLike[str] | str) -> int:
    # Not blocking: a pipe without a reader would keep the test waiting.
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


class RegionFile:
    """A region file; a path like any other, with `put` and `get` for its fields."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path = path
        self.layout = layout

    def __fspath__(self) -> str:
        return str(self.path)

    def put(self, field: str, value: Any, *, device: int = 0, slot: int = 0) -> None:
        offset, form = locate(self.layout, field, device=device, slot=slot)
        self.put_bytes(offset, struct.pack(form, value))

    def get(self, field: str, *, device: int = 0, slot: int = 0) -> Any:
        offset, form = locate(self.layout, field, device=device, slot=slot)
        with self.path.open("rb") as stream:
            stream.seek(offset)
            return struct.unpack(form, stream.read(struct.calcsize(form)))[0]

    def put_bytes(self, offset: int, data: bytes) -> None:
        patch(self.path, offset, data)

    def add_process(
        self, pid: int, used: Mapping[int, int] | None = None, *, host_pid: int = 0, status: int = 1
    ) -> int:
        """Take the next slot; `used` is device -> bytes, all of them data. Returns the slot."""
        slot: int = self.get("proc_num")
        self.put("slot_pid", pid, slot=slot)
        self.put("slot_hostpid", host_pid, slot=slot)
        self.put("slot_status", status, slot=slot)
        for device, nbytes in (used or {}).items():
            self.put("slot_used.data", nbytes, slot=slot, device=device)
            self.put("slot_used.total", nbytes, slot=slot, device=device)
        self.put("proc_num", slot + 1)
        return slot

    def resize(self, size: int) -> None:
        truncate(self.path, size)

    def content(self) -> bytes:
        return self.path.read_bytes()


@contextlib.contextmanager
def unchanged(what: Any) -> Iterator[None]:
    """Assert that a file, or all that has a `content()`, has the same bytes afterwards."""
    content = getattr(what, "content", None) or Path(what).read_bytes
    before = content()
    yield
    assert content() == before


class RegionFileFactory(Protocol):
    """The fixture `region_file`; `spec` is what `create_region` takes."""

    def __call__(
        self, layout: Layout = Layout.V1_2, *, name: str = "", **spec: Any
    ) -> RegionFile: ...
