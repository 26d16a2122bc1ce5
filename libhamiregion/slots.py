"""Process slots: be a process of a region, edit others' slots, free and repair them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from ._core import ffi, lib
from ._handle import SLICE_NS, Handle, in_slices, nanoseconds
from .changes import SLOT_FIELDS, Effect, SlotChange
from .edits import find_device
from .errors import ReapRefused, SearchCutShort, new_error, signed
from .evidence import judge
from .layouts import DEVICE_CAPACITY, SLOT_CAPACITY, Layout
from .models import ProcessStatus, take_snapshot
from .units import integer, parse_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import SupportsIndex

    from typing_extensions import Self

    from .edits import Device
    from .errors import PathLike
    from .evidence import Evidence

#: The kind of charged memory: CUDA contexts, modules (code) or buffers.
MemoryKind: TypeAlias = Literal["context", "module", "data"]

_KINDS: Final = {"context": lib.HR_CONTEXT, "module": lib.HR_MODULE, "data": lib.HR_DATA}
_MAX_BYTES: Final = (1 << 62) - 1
_MAX_PID: Final = (1 << 31) - 1
_DETACHED: Final = "the slot is detached; attach again"
_HOLDS_LOCK: Final = "this thread holds the lock; the call takes it itself"


@attrs.frozen
class ReapedSlot:
    """A dead process's slot that was emptied.

    Attributes:
        pid: The process, in the container's namespace.
        memory_bytes: The memory that the slot still counted, over all devices.
    """

    pid: int
    memory_bytes: int


@attrs.frozen
class SlotRepair:
    """The results of `Region.repair_slots`, as pids in the container's namespace.

    Attributes:
        repaired: Live processes that were put right: each of them counts once, in the slot that it
            writes to.
        left: Live processes that may be counted wrongly and were left alone: which slot is theirs
            is not known while they are idle. Repair again while they allocate or free memory.
    """

    repaired: tuple[int, ...]
    left: tuple[int, ...]


def _device_to_use(region: Handle, device: Device) -> int:
    """Return the index of a device that a process may use: any, while none is reported.

    Raises:
        NoSuchDevice: The region has no such device.
    """
    if not isinstance(device, str):
        device = integer("a device", device)
        if 0 <= device < (region._live(lib.HR_VALUE_DEVICE_NUM) or DEVICE_CAPACITY):
            return device
    return find_device(region, device)


class Slot:
    """This process's place in a region. Made by `Region.attach`; a context manager.

    Keep it: a slot that is dropped is detached, and its memory counts no more. A slot that is still
    attached when the interpreter ends is detached then.

    Threads: may be shared. Fork: in the child every call raises `RegionClosed`; the parent's slot
    is not touched.

    Attributes:
        pid: The pid in the slot.
        region: The region that it belongs to.
    """

    __slots__ = ("_number", "_timeout_ns", "pid", "region")

    def __init__(self, region: Handle, timeout_ns: int) -> None:
        self.region = region
        self.pid = os.getpid()
        self._timeout_ns = timeout_ns
        # The attachment that this object ends, and no later one.
        self._number = 0
        handle, error = region._handle, new_error()
        error.code = lib.HR_EATTACHED
        try:
            code = in_slices(lambda slice_ns: lib.hr_attach(handle, slice_ns, error), timeout_ns)
            region._check(code, error, _HOLDS_LOCK)
            self._number = lib.hr_attachment(handle)
        except BaseException:
            # A signal's handler may have run as the slot was taken.
            if error.code != lib.HR_EATTACHED:
                lib.hr_detach(handle, 0, SLICE_NS, error)
            raise

    @property
    def _attached(self) -> bool:
        # An exception may have ended __init__ before it had begun.
        number = getattr(self, "_number", 0)
        return number != 0 and lib.hr_attachment(self.region._handle) == number

    def __del__(self) -> None:
        if self._attached:
            lib.hr_detach(self.region._handle, self._number, SLICE_NS, ffi.NULL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.detach()

    def __repr__(self) -> str:
        return f"<Slot pid {self.pid}{'' if self._attached else ', detached'}>"

    def charge(
        self, device: Device, nbytes: SupportsIndex | str, kind: MemoryKind = "data"
    ) -> None:
        """Count memory on a device, as libvgpu does before an allocation.

        The sum over all processes, plus `nbytes`, must stay within the limit, which is read each
        time. Sum, comparison and addition happen under the region's lock: processes of this
        library, and of HAMi-core from September 2026 on, never pass the limit together. Those of
        earlier HAMi from 2.8.1 on take no lock: one that asks at the same moment may pass it.

        Args:
            device: Index or uuid.
            nbytes: Bytes, or text as `parse_size` takes it.
            kind: A `MemoryKind`.

        Raises:
            MemoryLimitExceeded: It would pass the limit; nothing was counted.
            NoSuchDevice: The message lists the devices there are.
            ValueError: No such kind, a negative number, or a text that is no size.
            RuntimeError: The slot is detached.
            LockTimeout: The region's lock was not free within the attachment's timeout; nothing was
                counted.
            RegionStale, RegionCorrupt, RegionClosed: As `Region.snapshot`.
        """
        self._account(lib.hr_charge, _device_to_use(self.region, device), nbytes, kind, 0)

    def release(
        self, device: Device, nbytes: SupportsIndex | str, kind: MemoryKind = "data"
    ) -> None:
        """Give back memory that was charged; arguments as `charge` takes them.

        Raises:
            ValueError: More than this process has charged there; nothing was changed.
            NoSuchDevice: The region has no device with that uuid.
            RuntimeError, LockTimeout, RegionStale, RegionCorrupt, RegionClosed: As `charge`.
        """
        # What was charged can be given back, whichever devices the container reports since.
        index = find_device(self.region, device) if isinstance(device, str) else device
        self._account(lib.hr_release, index, nbytes, kind)

    def _account(
        self,
        account: Any,
        device: SupportsIndex,
        nbytes: SupportsIndex | str,
        kind: str,
        *flags: int,
    ) -> None:
        if kind not in _KINDS:
            raise ValueError(f"a kind is context, module or data, not {kind!r}")
        index = integer("a device", device, 0, DEVICE_CAPACITY - 1)
        size = parse_size(nbytes) if isinstance(nbytes, str) else nbytes
        count = integer("a number of bytes", size, 0, _MAX_BYTES)
        if not self._attached:
            raise RuntimeError(_DETACHED)
        handle, number, error = self.region._handle, _KINDS[kind], new_error()
        code = in_slices(
            lambda slice_ns: account(handle, index, number, count, *flags, slice_ns, error),
            self._timeout_ns,
        )
        if code == lib.HR_EINVAL:
            raise ValueError(
                f"this process has charged {error.found} bytes of {kind} on device {index}: "
                f"{count} are too many"
            )
        if code == lib.HR_EDETACHED:
            raise RuntimeError(_DETACHED)
        self.region._check(code, error, _HOLDS_LOCK)

    def detach(self) -> None:
        """Leave the region, with all that is still charged. May be called again.

        The slot is removed if it is the last one; else it stays where it is, empty, and is reused
        when this process, or after its end another one, attaches.

        Raises:
            LockTimeout: The region's lock was not free within the attachment's timeout; the slot
                stays.
            RegionStale, RegionCorrupt: As `Region.snapshot`; there is nothing to detach from then.
        """
        if not self._attached:
            return
        handle, number, error = self.region._handle, self._number, new_error()
        try:
            code = in_slices(
                lambda slice_ns: lib.hr_detach(handle, number, slice_ns, error), self._timeout_ns
            )
        except BaseException:
            # A signal's handler: the slot goes all the same, if the lock is free.
            lib.hr_detach(handle, number, SLICE_NS, error)
            raise
        if code != lib.HR_EDETACHED:
            self.region._check(code, error, _HOLDS_LOCK)


class Slots(Handle):
    """The process slots of a region."""

    __slots__ = ()

    def attach(self, *, timeout_s: float = 10.0) -> Slot:
        """Become a process of the region, as libvgpu does when a program starts to use CUDA.

        Meant for processes inside the container: libvgpu takes a slot whose pid does not exist in
        the container's namespace for a dead one, and removes it. A slot that has this process's
        pid already is taken for a predecessor's; in another namespace it may be a live one's.

        Args:
            timeout_s: How long this and each call on the slot may wait for the region's lock.

        Returns:
            The slot; keep it, and leave it by `Slot.detach` or as a context manager. A killed
            process's slot keeps counting until it is reaped.

        Raises:
            SlotTableFull: All slots are taken.
            RuntimeError: This process is attached to the region already, or has libvgpu loaded,
                which has a slot of its own for it.
            LockTimeout: The lock was not free in time.
            RegionReadOnly, RegionStale, RegionCorrupt, RegionClosed: As `set_memory_limit`.

        Source: docs, The protocol (Attach).
        """
        return Slot(self, nanoseconds(timeout_s))

    def set_host_pid(
        self,
        pid: SupportsIndex,
        host_pid: SupportsIndex,
        *,
        dry_run: bool = False,
        timeout_s: float = 1.0,
    ) -> SlotChange:
        """Store the host's pid of a process for libvgpu.

        If libvgpu found none, this makes its utilisation count, and switches SM limiting on,
        within 120 ms.

        Args:
            pid: The process, in the container's namespace.
            host_pid: Its pid in the host's namespace; 0 = unknown.
            dry_run: Change nothing.
            timeout_s: How long to wait for the lock.

        Raises:
            ProcessNotInRegion: No slot has that pid.
            LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As `lock`.
        """
        values = {"host_pid": integer("a host pid", host_pid, 0, _MAX_PID)}
        return self._edit_slot(pid, values, None, dry_run, timeout_s)[0]

    def set_utilization(
        self,
        pid: SupportsIndex,
        device: Device,
        *,
        sm: SupportsIndex | None = None,
        enc: SupportsIndex | None = None,
        dec: SupportsIndex | None = None,
        dry_run: bool = False,
        timeout_s: float = 1.0,
    ) -> tuple[SlotChange, ...]:
        """Store a process's utilisation of a device, in percent; None leaves a value as it is.

        Raises:
            NoSuchDevice: The message lists the devices there are.
            ValueError: Not 0 to 100, or the layout has no such figures.
            ProcessNotInRegion, LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As
                `set_host_pid`.
        """
        given = {"sm_util_percent": sm, "enc_util_percent": enc, "dec_util_percent": dec}
        values = {
            field: integer("a utilisation in percent", percent, 0, 100)
            for field, percent in given.items()
            if percent is not None
        }
        return self._edit_slot(pid, values, _device_to_use(self, device), dry_run, timeout_s)

    def set_monitor_used(
        self,
        pid: SupportsIndex,
        device: Device,
        nbytes: SupportsIndex,
        *,
        dry_run: bool = False,
        timeout_s: float = 1.0,
    ) -> SlotChange:
        """Store the driver's figure of a process's memory on a device.

        Raises:
            NoSuchDevice: The message lists the devices there are.
            ValueError: A negative number.
            ProcessNotInRegion, LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As
                `set_host_pid`.
        """
        values = {"monitor_used_bytes": nbytes}
        return self._edit_slot(pid, values, _device_to_use(self, device), dry_run, timeout_s)[0]

    def suspend(
        self, pid: SupportsIndex, *, dry_run: bool = False, timeout_s: float = 1.0
    ) -> SlotChange:
        """Block a process's CUDA calls, within a second, until `resume`.

        From HAMi 2.10 on a process obeys only if a device that its container has reported has an
        SM limit of 1 to 99. Layout 1.2 does not show which HAMi uses it: without such a limit the
        change's `effect` is `Effect.IF_SM_LIMITED`.

        Raises:
            RegionCorrupt: As `snapshot`; nothing was changed.
            ProcessNotInRegion, LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As
                `set_host_pid`.

        Shell: ``hamiregion suspend FILE PID``.
        """
        values = {"status": int(ProcessStatus.SUSPENDED)}
        # First, because it can fail: then nothing has been changed.
        snapshot = take_snapshot(self)
        reported = snapshot.devices[: snapshot.device_count]
        is_limited = any(device.sm_limit_percent is not None for device in reported)
        is_sure = is_limited or self.layout is not Layout.V1_2
        (change,) = self._edit_slot(pid, values, None, dry_run, timeout_s)
        return attrs.evolve(change, effect=Effect.IMMEDIATE if is_sure else Effect.IF_SM_LIMITED)

    def resume(
        self, pid: SupportsIndex, *, dry_run: bool = False, timeout_s: float = 1.0
    ) -> SlotChange:
        """Let a suspended process continue, within a second.

        Raises:
            ProcessNotInRegion, LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As
                `set_host_pid`.

        Shell: ``hamiregion resume FILE PID``.
        """
        values = {"status": int(ProcessStatus.RUNNING)}
        (change,) = self._edit_slot(pid, values, None, dry_run, timeout_s)
        return attrs.evolve(change, effect=Effect.IMMEDIATE)

    def _edit_slot(
        self,
        pid: SupportsIndex,
        values: Mapping[str, SupportsIndex],
        device: int | None,
        dry_run: bool,
        timeout_s: float,
    ) -> tuple[SlotChange, ...]:
        """Store values by field, all under one lock."""
        pid = integer("a pid", pid, 1, _MAX_PID)
        edits = [
            (SLOT_FIELDS[field], device or 0, integer(field, to, 0, _MAX_BYTES), 0)
            for field, to in values.items()
        ]
        raw, error = ffi.new("struct hr_slot_edit[]", edits), new_error()
        code = in_slices(
            lambda slice_ns: lib.hr_edit_slot(
                self._handle, pid, raw, len(edits), int(dry_run), slice_ns, error
            ),
            nanoseconds(timeout_s),
        )
        self._check(code, error, _HOLDS_LOCK)
        changes = []
        for field, edit in zip(values, raw, strict=True):
            before = signed(edit.before) if field in {"host_pid", "status"} else edit.before
            where = pid, field, device
            changes.append(SlotChange(*where, before, edit.to, None, self.path, self.file_id))
        return tuple(changes)

    def reap(
        self,
        pids: Iterable[SupportsIndex] | None = None,
        *,
        proc: PathLike = "/proc",
        dry_run: bool = False,
        timeout_s: float = 1.0,
        evidence: Evidence | None = None,
    ) -> tuple[ReapedSlot, ...]:
        """Free the slots of dead processes, whose memory still counts against the limit.

        Dead is proved through /proc: no process that maps this very file has that pid in its
        own pid namespace. No slot is ever moved: a dead one is emptied where it is. A full table
        whose processes are all dead is emptied as a whole. Seqlocks that the dead left odd are
        mended.

        Args:
            pids: Pids of the container's namespace; None means all that are proved dead.
            proc: The root of /proc, if it is mounted elsewhere.
            dry_run: Change nothing.
            timeout_s: How long to wait for the lock.
            evidence: Evidence about this region, instead of a search of /proc in this thread.

        Returns:
            The freed slots.

        Raises:
            ReapRefused: One of `pids` is alive, or cannot be judged from here; the others have
                been freed, and are its `done`.
            ProcessNotInRegion: One of `pids` has no slot; nothing was done.
            SearchCutShort: Slots could not be judged, because /proc was not searched to its end;
                the others have been freed, and are its `done`.
            LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As `lock`.

        Shell: ``hamiregion reap FILE``.
        """
        wanted = [integer("a pid", pid, 1, _MAX_PID) for pid in pids or ()]
        if pids is not None and not wanted:
            return ()
        out, error = ffi.new("struct hr_slot_result[]", SLOT_CAPACITY), new_error()
        reap = judge(self, lib.hr_reap, lib.hr_reap_by, proc, evidence)
        code = in_slices(
            lambda slice_ns: reap(wanted, len(wanted), int(dry_run), slice_ns, out, error),
            nanoseconds(timeout_s),
        )
        slots = out[0 : self._check(code, error, _HOLDS_LOCK)]
        freed = tuple(
            ReapedSlot(slot.pid, slot.bytes) for slot in slots if slot.what == lib.HR_SLOT_DONE
        )
        kept = {slot.pid: slot.what for slot in slots if slot.what in _WHY_KEPT}
        if kept:
            why = ", ".join(_WHY_KEPT[what].format(pid) for pid, what in kept.items())
            message = f"{self.path!r}: {why}"
            raise ReapRefused(message, path=self.path, pids=tuple(kept), done=freed)
        self._check_complete(slots, freed)
        return freed

    def repair_slots(
        self,
        *,
        proc: PathLike = "/proc",
        dry_run: bool = False,
        timeout_s: float = 1.0,
        evidence: Evidence | None = None,
    ) -> SlotRepair:
        """Repair the slots of live processes that were moved without their knowledge.

        libvgpu 2.8.1 and later moves slots when it removes dead ones. The process goes on writing
        to its old slot, which counts no more. The table is extended to include that slot, and its
        frozen copy is emptied: afterwards the process counts once. A slot must be seen changing,
        within 20 ms, because earlier processes with the same pids leave slots behind as well; idle
        processes are left alone, and named in the answer.

        Args:
            proc: The root of /proc, if it is mounted elsewhere.
            dry_run: Only return the processes concerned. Takes no lock, and works on a read-only
                region.
            timeout_s: How long to wait for the lock.
            evidence: Evidence about this region, instead of a search of /proc in this thread.

        Returns:
            The repaired processes, and those that may be counted wrongly and were left alone.

        Raises:
            SearchCutShort: /proc was not searched to its end; its `done` is the result so far.
            LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As `lock`.

        Source: docs, The protocol (Orphaned slots).
        """
        out, error = ffi.new("struct hr_slot_result[]", SLOT_CAPACITY), new_error()
        repair = judge(self, lib.hr_repair_slots, lib.hr_repair_slots_by, proc, evidence)
        code = in_slices(
            lambda slice_ns: repair(int(dry_run), slice_ns, out, error), nanoseconds(timeout_s)
        )
        slots = out[0 : self._check(code, error, _HOLDS_LOCK)]
        done = SlotRepair(
            repaired=tuple(slot.pid for slot in slots if slot.what == lib.HR_SLOT_DONE),
            left=tuple(slot.pid for slot in slots if slot.what == lib.HR_SLOT_UNKNOWN),
        )
        self._check_complete(slots, done)
        return done

    def _check_complete(self, slots: Iterable[Any], done: Any) -> None:
        """Raise SearchCutShort if slots could not be judged."""
        left = [slot for slot in slots if slot.what in _UNREAD]
        if not left:
            return
        pids = tuple(slot.pid for slot in left)
        processes = tuple(sorted({slot.process for slot in left if slot.process}))
        named = ", ".join(str(pid) for pid in pids[:8] if pid > 0)
        why = "the search through /proc was cut short; try again"
        if processes:
            named_processes = ", ".join(map(str, processes[:8]))
            why = (
                f"more than 8 MiB of memory maps in process {named_processes}, too many to read; "
                "trying again does not help while it runs"
            )
        message = f"{len(pids)} slots of {self.path!r} (pids {named}...) could not be judged: {why}"
        raise SearchCutShort(message, path=self.path, pids=pids, processes=processes, done=done)


_UNREAD: Final = {lib.HR_SLOT_CUT_SHORT, lib.HR_SLOT_TOO_LONG}
_WHY_KEPT: Final[dict[int, str]] = {
    lib.HR_SLOT_ALIVE: "process {} is alive and keeps its slot",
    lib.HR_SLOT_UNKNOWN: "it is not known here whether process {} lives, so it keeps its slot",
}
