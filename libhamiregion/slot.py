"""Process slots: being a process of a region, and writing for others."""

from __future__ import annotations

import atexit
import contextlib
import os
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import attrs

from ._core import ffi, lib
from .errors import MemoryLimitExceeded, RegionError, last_detail
from .handle import RegionHandle, proc_root
from .layouts import DEVICE_CAPACITY, SLOT_CAPACITY
from .lock import SLICE_NS, in_slices, nanoseconds
from .models import ProcessStatus
from .units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from .errors import PathLike

Kind: TypeAlias = Literal["context", "module", "data"]

_KINDS = {"context": lib.HR_CONTEXT, "module": lib.HR_MODULE, "data": lib.HR_DATA}
_MAX_BYTES = (1 << 62) - 1
_MAX_PID = (1 << 31) - 1
_DEFAULT_TIMEOUT_S = 10.0
_HOLDS_LOCK = "this thread holds the lock; the call takes it itself"
_SIGNED = {"host_pid", "status"}

_TIMEOUT = lib.HR_ETIMEOUT
_charge = lib.hr_charge
_release = lib.hr_release


@attrs.frozen
class SlotChange:
    """One value of a process slot, as it was and as it is now.

    Attributes:
        pid: The process, in the container's namespace.
        field: ``host_pid``, ``status``, ``monitor_used_bytes``, or ``sm``, ``enc``, ``dec`` with
            ``_util_percent``.
        device: Index of the device, None where the value is not per device.
        before: The value before.
        after: The value now.
    """

    pid: int
    field: str
    device: int | None
    before: int
    after: int


@attrs.frozen
class ReapedSlot:
    """A dead process's slot that was freed.

    Attributes:
        pid: The process, in the container's namespace.
        memory_bytes: What the slot still counted, over all devices.
        removed: Whether the slot is gone; False if it was emptied where it stands, because slots
            of live processes must not move (HAMi 2.8.1 and later).
    """

    pid: int
    memory_bytes: int
    removed: bool


class Slot:
    """This process's place in a region. Made by `Region.attach`; a context manager.

    A slot that is still attached when the interpreter ends is detached then.

    Threads: may be shared. Fork: in the child every call raises `RegionClosed`; the parent's slot
    is not touched.

    Attributes:
        pid: The pid that stands in the slot.
    """

    __slots__ = ("_attached", "_region", "_slice_ns", "_timeout_ns", "pid")

    def __init__(self, region: SlotTable, timeout_ns: int) -> None:
        self._region = region
        self._timeout_ns = timeout_ns
        self._slice_ns = min(timeout_ns, SLICE_NS)
        self._attached = True
        self.pid = os.getpid()
        for slot in list(_slots):
            if slot._region.closed:
                _slots.discard(slot)
        _slots.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.detach()

    def __repr__(self) -> str:
        return f"<Slot pid {self.pid}{'' if self._attached else ', detached'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Slot cannot be pickled; attach in the other process")

    def charge(self, device: int, nbytes: int, kind: Kind = "data") -> None:
        """Count memory on a device, as libvgpu does before an allocation.

        The sum over all processes, plus `nbytes`, must stay within the limit, which is read each
        time. As in libvgpu, two processes that ask at the same moment may both be let in where the
        layout accounts without the lock (HAMi 2.8.1 and later).

        Raises:
            MemoryLimitExceeded: It would pass the limit; nothing was counted.
            ValueError: No such device or kind, or a negative number.
            LockTimeout: The region's lock was not free within the attachment's timeout.
            RegionStale, RegionCorrupt, RegionClosed: As `Region.snapshot`.
        """
        try:
            code = _charge(self._region._handle, device, _KINDS[kind], nbytes, self._slice_ns)
            if code == _TIMEOUT:
                code = self._account_on(_charge, device, _KINDS[kind], nbytes)
        except (KeyError, OverflowError):
            code = lib.HR_EINVAL
        if code:
            self._fail_account(code, device, nbytes, kind)

    def release(self, device: int, nbytes: int, kind: Kind = "data") -> None:
        """Give back what was charged.

        Raises:
            ValueError: More than this process has charged there; nothing was changed.
            LockTimeout, RegionStale, RegionCorrupt, RegionClosed: As `charge`.
        """
        try:
            code = _release(self._region._handle, device, _KINDS[kind], nbytes, self._slice_ns)
            if code == _TIMEOUT:
                code = self._account_on(_release, device, _KINDS[kind], nbytes)
        except (KeyError, OverflowError):
            code = lib.HR_EINVAL
        if code:
            self._fail_account(code, device, nbytes, kind)

    def _account_on(self, account: Any, device: int, kind: int, nbytes: int) -> int:
        handle = self._region._handle
        return in_slices(
            lambda slice_ns: account(handle, device, kind, nbytes, slice_ns),
            self._timeout_ns - self._slice_ns,
        )

    def _fail_account(self, code: int, device: int, nbytes: int, kind: str) -> NoReturn:
        if kind not in _KINDS:
            raise ValueError(f"a kind is context, module or data, not {kind!r}")
        if not 0 <= device < DEVICE_CAPACITY:
            raise ValueError(f"a device is 0 to {DEVICE_CAPACITY - 1}, not {device}")
        if not 0 <= nbytes <= _MAX_BYTES:
            raise ValueError(f"{nbytes} bytes cannot be charged or released")
        detail = last_detail()
        if code == lib.HR_EINVAL:
            raise ValueError(
                f"this process has charged {detail.found} bytes of {kind} on device {device}: "
                f"{nbytes} are too many"
            )
        if code == lib.HR_EMEMORYLIMIT:
            raise _limit_exceeded(self._region.path, detail)
        if code == lib.HR_EDETACHED:
            raise RuntimeError("the slot is detached; attach again")
        self._region._fail_busy(code, _HOLDS_LOCK)

    def detach(self) -> None:
        """Leave the region: what is still charged is given up. May be called again.

        Raises:
            LockTimeout: The region's lock was not free within the attachment's timeout; the slot
                stays.
            RegionStale, RegionCorrupt: As `Region.snapshot`; there is nothing to detach from then.
        """
        if not self._attached:
            return
        handle = self._region._handle
        code = in_slices(lambda slice_ns: lib.hr_detach(handle, slice_ns), self._timeout_ns)
        if code and code != lib.HR_EDETACHED:
            self._region._fail_busy(code, _HOLDS_LOCK)
        self._attached = False
        _slots.discard(self)


# Those that are attached, also where nobody else remembers them.
_slots: set[Slot] = set()


def attached_regions() -> list[SlotTable]:
    """The regions in which this process has a slot now."""
    return [slot._region for slot in list(_slots) if slot._attached]


@atexit.register
def _detach_all() -> None:
    for slot in list(_slots):
        # A child of fork() ends here too, and the slot is its parent's.
        with contextlib.suppress(RegionError):
            slot.detach()


def _limit_exceeded(path: str, detail: Any) -> MemoryLimitExceeded:
    error = MemoryLimitExceeded(
        f"{path!r}: device {detail.device} uses {format_size(detail.found)} of "
        f"{format_size(detail.limit)}; {format_size(detail.wanted)} more would pass the limit",
        path=path,
    )
    error.device = detail.device
    error.used_bytes, error.limit_bytes = detail.found, detail.limit
    error.requested_bytes = detail.wanted
    return error


class SlotTable(RegionHandle):
    """The part of `Region` that is about its process slots."""

    __slots__ = ()

    def attach(self, *, timeout_s: float = _DEFAULT_TIMEOUT_S) -> Slot:
        """Become a process of the region, as libvgpu does when a program starts to use CUDA.

        Meant for processes inside the container: libvgpu takes a slot whose pid does not exist in
        the container's namespace for a dead one, and removes it. And a slot that has this process's
        pid already is taken for a predecessor's; in another namespace it may be a live one's.

        Args:
            timeout_s: How long this and each call on the slot may wait for the region's lock.

        Returns:
            The slot; leave it by `Slot.detach` or as a context manager. A killed process's slot
            keeps counting until it is reaped.

        Raises:
            SlotTableFull: All slots are taken.
            RuntimeError: This process is attached to the region already.
            LockTimeout: The lock was not free in time.
            RegionReadOnly, RegionStale, RegionCorrupt, RegionClosed: As `set_memory_limit`.

        Source: docs, The protocol (Attach).
        """
        timeout_ns = nanoseconds(timeout_s)
        before = self._slot_here()
        try:
            code = in_slices(lambda slice_ns: lib.hr_attach(self._handle, slice_ns), timeout_ns)
            slot = None if code else Slot(self, timeout_ns)
        except BaseException:
            # A signal's handler runs after the call that has attached, if it was that one.
            made = self._slot_here()
            if before is None and made is not None:
                made.detach()
            elif made is None:
                lib.hr_detach(self._handle, timeout_ns)
            raise
        if code == lib.HR_EATTACHED:
            raise RuntimeError("this process is attached to the region already")
        if slot is None:
            self._fail_busy(code, _HOLDS_LOCK)
        return slot

    def _slot_here(self) -> Slot | None:
        own = os.getpid()
        for slot in list(_slots):
            if slot._region is self and slot._attached and slot.pid == own:
                return slot
        return None

    # ---- one process, by its pid in the container's namespace -----------------------------------

    def set_host_pid(
        self, pid: int, host_pid: int, *, dry_run: bool = False, timeout_s: float = 1.0
    ) -> SlotChange:
        """Tell libvgpu the host's pid of a process.

        Where libvgpu found none, this makes its utilisation count, and switches SM limiting on,
        within 120 ms.

        Args:
            pid: The process, in the container's namespace.
            host_pid: Its pid in the host's namespace; 0 = unknown.
            dry_run: Only look.
            timeout_s: How long to wait for the lock.

        Raises:
            ProcessNotInRegion: No slot has that pid.
            LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As `lock`.
        """
        edits = [("host_pid", lib.HR_SLOT_HOST_PID, None, host_pid)]
        return self._edit(pid, edits, dry_run=dry_run, timeout_s=timeout_s)[0]

    def set_utilization(
        self,
        pid: int,
        device: int,
        *,
        sm: int | None = None,
        enc: int | None = None,
        dec: int | None = None,
        dry_run: bool = False,
        timeout_s: float = 1.0,
    ) -> tuple[SlotChange, ...]:
        """Store a process's utilisation of a device, in percent; what is None stays as it is.

        Raises:
            ValueError: Not 0 to 100, or the layout has no such figures.
            ProcessNotInRegion, LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As
                `set_host_pid`.
        """
        edits = [
            (f"{name}_util_percent", number, device, percent)
            for name, number, percent in (
                ("sm", lib.HR_SLOT_SM, sm),
                ("enc", lib.HR_SLOT_ENC, enc),
                ("dec", lib.HR_SLOT_DEC, dec),
            )
            if percent is not None
        ]
        for _, _, _, percent in edits:
            if not 0 <= percent <= 100:
                raise ValueError(f"a utilisation is 0 to 100 percent, not {percent}")
        return self._edit(pid, edits, dry_run=dry_run, timeout_s=timeout_s)

    def set_monitor_used(
        self,
        pid: int,
        device: int,
        nbytes: int,
        *,
        dry_run: bool = False,
        timeout_s: float = 1.0,
    ) -> SlotChange:
        """Store the driver's figure of a process's memory on a device.

        Raises:
            ValueError: No such device, or a negative number.
            ProcessNotInRegion, LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As
                `set_host_pid`.
        """
        edits = [("monitor_used_bytes", lib.HR_SLOT_MONITOR_USED, device, nbytes)]
        return self._edit(pid, edits, dry_run=dry_run, timeout_s=timeout_s)[0]

    def suspend(self, pid: int, *, dry_run: bool = False, timeout_s: float = 1.0) -> SlotChange:
        """Block a process's CUDA calls, within a second, until `resume`.

        Raises:
            ProcessNotInRegion, LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As
                `set_host_pid`.

        Shell: ``hamiregion suspend FILE PID``.
        """
        return self._set_status(pid, ProcessStatus.SUSPENDED, dry_run, timeout_s)

    def resume(self, pid: int, *, dry_run: bool = False, timeout_s: float = 1.0) -> SlotChange:
        """Let a suspended process go on, within a second.

        Raises:
            ProcessNotInRegion, LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As
                `set_host_pid`.

        Shell: ``hamiregion resume FILE PID``.
        """
        return self._set_status(pid, ProcessStatus.RUNNING, dry_run, timeout_s)

    def _set_status(
        self, pid: int, status: ProcessStatus, dry_run: bool, timeout_s: float
    ) -> SlotChange:
        edits = [("status", lib.HR_SLOT_STATUS, None, int(status))]
        return self._edit(pid, edits, dry_run=dry_run, timeout_s=timeout_s)[0]

    def _edit(
        self,
        pid: int,
        edits: Sequence[tuple[str, int, int | None, int]],
        *,
        dry_run: bool,
        timeout_s: float,
    ) -> tuple[SlotChange, ...]:
        raw = ffi.new("struct hr_slot_edit[]", max(1, len(edits)))
        if not 0 < pid <= _MAX_PID:
            raise ValueError(f"a pid is 1 to {_MAX_PID}, not {pid}")
        for at, (field, number, device, to) in enumerate(edits):
            if device is not None and not 0 <= device < DEVICE_CAPACITY:
                raise ValueError(f"a device is 0 to {DEVICE_CAPACITY - 1}, not {device}")
            if not 0 <= to <= _MAX_BYTES:
                raise ValueError(f"{field} cannot be {to}")
            raw[at].value, raw[at].device, raw[at].to = number, device or 0, to
        code = in_slices(
            lambda slice_ns: lib.hr_edit_slot(
                self._handle, pid, raw, len(edits), int(dry_run), slice_ns
            ),
            nanoseconds(timeout_s),
        )
        if code == lib.HR_EINVAL:
            names = ", ".join(field for field, *_ in edits)
            raise ValueError(f"{self.path!r}: its layout has no {names}, or the value is too large")
        if code:
            self._fail_busy(code, _HOLDS_LOCK)
        return tuple(
            SlotChange(pid, field, device, _before(field, raw[at].before), to)
            for at, (field, _, device, to) in enumerate(edits)
        )

    # ---- dead processes and torn slots ---------------------------------------------------------

    def reap(
        self,
        pids: Iterable[int] | None = None,
        *,
        proc: PathLike = "/proc",
        dry_run: bool = False,
        timeout_s: float = 1.0,
    ) -> tuple[ReapedSlot, ...]:
        """Free the slots of dead processes, whose memory still counts against the limit.

        Dead is proved through /proc: no process that maps this very file has that pid in any of
        its namespaces. Nothing is moved under a live process: up to HAMi 2.8.0 the last slot goes
        into the hole, which those versions expect; later ones get their dead slots cut off the end
        of the table or emptied where they stand. Seqlocks that the dead left odd are mended.

        Args:
            pids: Pids of the container's namespace; None means all that are proved dead.
            proc: The root of /proc, where it is mounted elsewhere.
            dry_run: Only tell what would be done.
            timeout_s: How long to wait for the lock.

        Returns:
            What was freed.

        Raises:
            ValueError: One of `pids` is no pid, is alive, or cannot be judged from here; the
                others have been freed.
            ProcessNotInRegion: One of `pids` has no slot; nothing was done.
            LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As `lock`.

        Shell: ``hamiregion reap FILE``.
        """
        wanted = [] if pids is None else list(pids)
        if pids is not None and not wanted:
            return ()
        for pid in wanted:
            if not 0 < pid <= _MAX_PID:
                raise ValueError(f"a pid is 1 to {_MAX_PID}, not {pid}")
        out = ffi.new("struct hr_reap[]", SLOT_CAPACITY)
        root = proc_root(proc)
        found = in_slices(
            lambda slice_ns: lib.hr_reap(
                self._handle, root, wanted, len(wanted), int(dry_run), slice_ns, out
            ),
            nanoseconds(timeout_s),
        )
        if found < 0:
            self._fail_busy(found, _HOLDS_LOCK)
        entries = [out[at] for at in range(found)]
        left = {entry.pid: entry.what for entry in entries if entry.what >= lib.HR_REAP_ALIVE}
        if left:
            raise ValueError(f"{self.path!r}: " + ", ".join(map(_why_left, left.items())))
        return tuple(
            ReapedSlot(entry.pid, entry.bytes, entry.what == lib.HR_REAP_REMOVED)
            for entry in entries
        )

    def repair_slots(
        self, *, proc: PathLike = "/proc", dry_run: bool = False, timeout_s: float = 1.0
    ) -> tuple[int, ...]:
        """Put right live processes whose slots were moved without their knowledge.

        libvgpu 2.8.1 and later does that when it removes two dead slots at once: the process goes
        on writing to its old slot, which counts no more. The table is extended to take that slot
        in, and its frozen copy is emptied. Up to 2.8.0, a process that stands twice after an
        unfinished removal gets its second slot removed.

        Args:
            proc: The root of /proc, where it is mounted elsewhere.
            dry_run: Only tell which processes are concerned; a read-only region will do then, and
                through such a one no lock is taken.
            timeout_s: How long to wait for the lock.

        Returns:
            Pids of the processes concerned, in the container's namespace.

        Raises:
            LockTimeout, RegionReadOnly, RegionStale, RegionClosed: As `lock`.

        Source: docs, The protocol (Orphaned slots).
        """
        out = ffi.new("int32_t[]", SLOT_CAPACITY)
        root = proc_root(proc)
        found = in_slices(
            lambda slice_ns: lib.hr_repair_slots(self._handle, root, int(dry_run), slice_ns, out),
            nanoseconds(timeout_s),
        )
        if found < 0:
            self._fail_busy(found, _HOLDS_LOCK)
        return tuple(out[at] for at in range(found))


def _before(field: str, raw: int) -> int:
    # The core widens what is signed in the slot.
    return raw - (1 << 64) if field in _SIGNED and raw >= 1 << 63 else raw


def _why_left(entry: tuple[int, int]) -> str:
    pid, what = entry
    if what == lib.HR_REAP_ALIVE:
        return f"process {pid} is alive and keeps its slot"
    return f"whether process {pid} lives cannot be told from here, so it keeps its slot"
