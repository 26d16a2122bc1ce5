"""The fields of a region's file one by one, each with its offset, also of a damaged one."""

from __future__ import annotations

import os
import stat
import struct
import time
from typing import TYPE_CHECKING

import attrs

from libhamiregion import Layout, NotARegion, format_size
from libhamiregion.layouts import DEVICE_CAPACITY, LAYOUTS, NEWEST, SLOT_CAPACITY
from libhamiregion.text import printable

from .format import status_word

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = 19_920_718
_UUID_BYTES = 96
_SHARED = 128
_NUMBERS_FROM = 0x4000_0000
_LARGEST_PID = (1 << 31) - 1
_NOBODY = _LARGEST_PID
_NEWEST_VERSION = max(layout.version or (0, 0) for layout in Layout)
_FORMS = {"i32": struct.Struct("<i"), "u32": struct.Struct("<I"), "u64": struct.Struct("<Q")}
_KINDS = ("context", "module", "data", "offset", "total")
_ENGINES = ("dec", "enc", "sm")
# The last struct ends here; what stands behind it is counted and not read.
_MOST_BYTES = max(layout.size_bytes for layout in Layout)


@attrs.frozen
class Field:
    """One field as it stands in the file.

    Attributes:
        offset: Bytes from the start of the file.
        name: As in the documentation of the format, with indexes: ``procs[3].used[0].total``.
        type: ``i32``, ``u32``, ``u64`` or ``text``.
        value: A number, or a uuid's text with what is not printable spelled out.
        note: What the value means; empty where there is nothing to add.
        fault: What is wrong with it; None where nothing is.
    """

    offset: int
    name: str
    type: str
    value: int | str
    note: str = ""
    fault: str | None = None


@attrs.frozen
class RawFile:
    """A file as it was read, once and without any lock.

    Attributes:
        data: What was read of it: no more than the largest layout has.
        size: Its length in bytes.
    """

    data: bytes
    size: int


def read_raw(path: str) -> RawFile:
    """Read a regular file and nothing else: no link is followed, no device or FIFO opened.

    Raises:
        NotARegion: Something else than a regular file.
        OSError: It cannot be read.
    """
    held = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(held).st_mode):
            raise NotARegion(f"{path!r} is no regular file; give the path of a region", path=path)
        # By that hold: what has taken its place meanwhile is not opened.
        descriptor = os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(held)
    with os.fdopen(descriptor, "rb") as stream:
        size = os.fstat(descriptor).st_size
        return RawFile(stream.read(min(size, _MOST_BYTES)), size)


def likeliest_layout(file: RawFile) -> Layout:
    """The layout to read a damaged file in: by its version, else by its size."""
    head = file.data[:64].ljust(64, b"\0")
    version = struct.unpack_from("<II", head, 4)
    of_version = [each for each in LAYOUTS if each.version == version]
    if len(of_version) == 1:
        return of_version[0]
    if NEWEST.version is not None and version[0] == NEWEST.version[0] and version > NEWEST.version:
        return NEWEST
    if version == (1, 1):
        is_longer = file.size >= Layout.V1_1_POSTINIT.size_bytes
        return Layout.V1_1_POSTINIT if is_longer and _is_shared(file, 56) else Layout.V1_1
    if file.size >= NEWEST.size_bytes and not _is_shared(file, 16):
        return NEWEST
    is_longer = file.size >= Layout.UNVERSIONED.size_bytes
    return Layout.UNVERSIONED if is_longer else Layout.UNVERSIONED_NO_UTIL


def _is_shared(file: RawFile, semaphore: int) -> bool:
    """Whether a semaphore of glibc stands there that several processes may use."""
    words = file.data[semaphore + 4 : semaphore + 12].ljust(8, b"\0")
    return _SHARED in struct.unpack("<ii", words)


class FieldReader:
    """Takes a file apart by the offsets of one layout.

    Args:
        file: What was read.
        layout: How to read it, whatever it is.

    Attributes:
        missing: Names of fields that lie behind the end of the file, as far as they were asked for.
    """

    def __init__(self, file: RawFile, layout: Layout) -> None:
        self._file = file
        self._layout = layout
        self._at = {name: at for name, at in layout.offsets.items() if at is not None}
        self.missing: list[str] = []

    # ---- one field -------------------------------------------------------------------------------

    def _number(self, offset: int, form: str) -> int | None:
        if offset + _FORMS[form].size > len(self._file.data):
            return None
        number: int = _FORMS[form].unpack_from(self._file.data, offset)[0]
        return number

    def _field(
        self, offset: int, name: str, form: str, note: str = "", fault: str | None = None
    ) -> Iterator[Field]:
        """The field, or nothing where the file ends before it."""
        value = self._number(offset, form)
        if value is None:
            self.missing.append(name)
        else:
            yield Field(offset, name, form, value, note, fault)

    # ---- the region as a whole -------------------------------------------------------------------

    def header(self) -> Iterator[Field]:
        """Yield what stands before the slots."""
        at = self._at
        yield from self._magic()
        if self._layout.version is not None:
            yield from self._version()
        yield from self._field(at["sm_init_flag"], "sm_init_flag", "i32")
        yield from self._owner()
        yield from self._semaphore("sem")
        if "sem_postinit" in at and at["sem_postinit"] < at["procs"]:
            yield from self._semaphore("sem_postinit")
        count = self._number(at["device_num"], "u64") or 0
        fault = f"more than {DEVICE_CAPACITY}" if count > DEVICE_CAPACITY else None
        note = "" if count else "not told yet"
        yield from self._field(at["device_num"], "device_num", "u64", note, fault)
        for device in range(DEVICE_CAPACITY):
            yield from self._uuid(device)
        for device in range(DEVICE_CAPACITY):
            offset = at["limit"] + 8 * device
            yield from self._field(offset, f"limit[{device}]", "u64", self._limit_note(offset))
        for device in range(DEVICE_CAPACITY):
            offset = at["sm_limit"] + 8 * device
            percent = self._number(offset, "u64") or 0
            note = f"{percent} %" if 0 < percent < 100 else "unlimited"
            yield from self._field(offset, f"sm_limit[{device}]", "u64", note)

    def _magic(self) -> Iterator[Field]:
        value = self._number(0, "i32")
        fault = None
        if value != MAGIC:
            fault = f"not the magic number {MAGIC}" if value else "not set: being made"
        yield from self._field(0, "initialized_flag", "i32", fault=fault)

    def _version(self) -> Iterator[Field]:
        major, minor = self._layout.version or (0, 0)
        found = self._number(4, "u32") or 0, self._number(8, "u32") or 0
        is_newer = found > _NEWEST_VERSION
        wrong = f"not that of layout {self._layout.value}"
        yield from self._field(
            4, "major_version", "u32", fault=None if found[0] == major else wrong
        )
        fault = None if found[1] == minor else wrong
        fault = "newer than any that is known" if is_newer else fault
        yield from self._field(8, "minor_version", "u32", fault=fault)

    def _owner(self) -> Iterator[Field]:
        offset = self._at["owner_pid"]
        owner = self._number(offset, "u64") or 0
        is_marked = owner >> 60 == 1 and self._layout.version is not None
        fault = "above every pid" if owner > _LARGEST_PID and not is_marked else None
        note = "a pid" if owner < _NUMBERS_FROM else "signed from outside the container"
        note = f"pid {owner & 0xFFFFFFFF}, attached" if is_marked else note
        yield from self._field(offset, "owner_pid", "u64", note if owner else "nobody", fault)

    def _semaphore(self, name: str) -> Iterator[Field]:
        offset = self._at[name]
        value = self._number(offset, "u32") or 0
        fault = "above 1: it excludes nobody" if value > 1 else None
        yield from self._field(offset, f"{name}.value", "u32", "free" if value else "taken", fault)
        # Old and new glibc have the number of waiters and the mark in different places.
        yield from self._field(offset + 4, f"{name}+4", "i32")
        fault = None if _is_shared(self._file, offset) else "no mark of a shared semaphore"
        yield from self._field(offset + 8, f"{name}+8", "i32", fault=fault)

    def _uuid(self, device: int) -> Iterator[Field]:
        offset, name = self._at["uuids"] + _UUID_BYTES * device, f"uuids[{device}]"
        raw = self._file.data[offset : offset + _UUID_BYTES]
        if len(raw) < _UUID_BYTES:
            self.missing.append(name)
            return
        text = raw.rstrip(b"\0")
        is_plausible = len(text) < _UUID_BYTES and all(0x20 <= byte <= 0x7E for byte in text)
        is_plausible = is_plausible and text[:4] in (b"", b"GPU-", b"MIG-")
        fault = None if is_plausible else "no GPU- or MIG- text"
        yield Field(offset, name, "text", printable(text.decode("latin-1")), fault=fault)

    def _limit_note(self, offset: int) -> str:
        limit = self._number(offset, "u64")
        return format_size(limit) if limit else "unlimited"

    @property
    def process_count(self) -> int | None:
        """Slots in use; None where that is damaged or missing."""
        count = self._number(self._at["proc_num"], "i32")
        return count if count is not None and 0 <= count <= SLOT_CAPACITY else None

    def tail(self) -> Iterator[Field]:
        """Yield what stands behind the slots."""
        at = self._at
        fault = None if self.process_count is not None else f"not within 0 to {SLOT_CAPACITY}"
        yield from self._field(at["proc_num"], "proc_num", "i32", fault=fault)
        switch = self._number(at["utilization_switch"], "i32")
        yield from self._field(
            at["utilization_switch"],
            "utilization_switch",
            "i32",
            "SM limiting on" if switch else "SM limiting off",
            None if switch in (0, 1) else "neither 0 nor 1",
        )
        recent = self._number(at["recent_kernel"], "i32") or 0
        note = "launches are blocked" if recent < 0 else ""
        yield from self._field(at["recent_kernel"], "recent_kernel", "i32", note)
        priority = self._number(at["priority"], "i32")
        note = {0: "high", 1: "low"}.get(1 if priority is None else priority, "")
        yield from self._field(at["priority"], "priority", "i32", note)
        if "last_kernel_time" in at:
            when = self._number(at["last_kernel_time"], "u64") or 0
            yield from self._field(at["last_kernel_time"], "last_kernel_time", "u64", _time(when))
        if at.get("sem_postinit", 0) > at["procs"]:
            yield from self._semaphore("sem_postinit")

    # ---- slots -----------------------------------------------------------------------------------

    def slot_start(self, slot: int) -> int:
        """Where a slot begins."""
        return self._at["procs"] + slot * self._at["slot_stride"]

    def is_empty(self, slot: int) -> bool:
        """Whether nothing but zeros stands in a slot, as far as the file goes."""
        start = self.slot_start(slot)
        return not any(self._file.data[start : start + self._at["slot_stride"]])

    def slot(self, slot: int, *, with_zeros: bool) -> Iterator[Field]:
        """Yield the fields of one slot; what a device has only with zeros or if it is not 0."""
        at, start, name = self._at, self.slot_start(slot), f"procs[{slot}]"
        pid = self._number(start + at["slot_pid"], "i32")
        is_used = slot < (self.process_count or 0)
        fault = "negative" if (pid or 0) < 0 else None
        if pid == 0 and is_used:
            fault = "0 in use: HAMi up to 2.8.0 hangs there"
        note = "nobody's" if pid == _NOBODY else "" if is_used else "not in use"
        yield from self._field(start + at["slot_pid"], f"{name}.pid", "i32", note, fault)
        host_pid = self._number(start + at["slot_hostpid"], "i32") or 0
        fault = "negative" if host_pid < 0 else None
        note = "" if host_pid else "not known"
        yield from self._field(start + at["slot_hostpid"], f"{name}.hostpid", "i32", note, fault)
        status = self._number(start + at["slot_status"], "i32")
        fault = None if status in (None, 0, 1, 2) else "none of 0, 1 and 2"
        note = status_word(status) if status is not None and fault is None else ""
        yield from self._field(start + at["slot_status"], f"{name}.status", "i32", note, fault)
        if "slot_seqlock" in at:
            seqlock = self._number(start + at["slot_seqlock"], "u64") or 0
            fault = "odd: a writer is inside, or has died there" if seqlock & 1 else None
            yield from self._field(
                start + at["slot_seqlock"], f"{name}.seqlock", "u64", fault=fault
            )
        for device in range(DEVICE_CAPACITY):
            fields = list(self._slot_device(slot, device))
            if with_zeros or any(field.value for field in fields):
                yield from fields

    def _slot_device(self, slot: int, device: int) -> Iterator[Field]:
        at, start, name = self._at, self.slot_start(slot), f"procs[{slot}]"
        used = start + at["slot_used"] + device * at["slot_used_stride"]
        *kinds, _, total = (self._number(used + 8 * i, "u64") or 0 for i in range(len(_KINDS)))
        # Elsewhere nothing tells a sum that is being changed.
        is_torn = self._layout.has_seqlock and total != sum(kinds) % (1 << 64)
        for index, kind in enumerate(_KINDS):
            value = self._number(used + 8 * index, "u64")
            yield from self._field(
                used + 8 * index,
                f"{name}.used[{device}].{kind}",
                "u64",
                format_size(value) if value else "",
                "not the sum of context, module and data" if is_torn and kind == "total" else None,
            )
        offset = start + at["slot_monitorused"] + 8 * device
        monitor = self._number(offset, "u64")
        note = format_size(monitor) if monitor else ""
        yield from self._field(offset, f"{name}.monitorused[{device}]", "u64", note)
        if self._layout.has_utilization:
            util = start + at["slot_util"] + device * at["slot_util_stride"]
            for index, engine in enumerate(_ENGINES):
                percent = self._number(util + 8 * index, "u64")
                yield from self._field(
                    util + 8 * index,
                    f"{name}.device_util[{device}].{engine}",
                    "u64",
                    f"{percent} %" if percent else "",
                )


def _time(seconds: int) -> str:
    if seconds == 0:
        return "never"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (OverflowError, OSError, ValueError):
        return "beyond every calendar"
