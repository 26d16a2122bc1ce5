"""Process slots: being a process of a region, and writing for others."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import attrs

from ._core import lib
from .errors import MemoryLimitExceeded, attached_reason, new_error, region_error
from .layouts import DEVICE_CAPACITY
from .lock import SLICE_NS, in_slices, ticket
from .units import format_size, integer

if TYPE_CHECKING:
    from types import TracebackType
    from typing import SupportsIndex

    from typing_extensions import Self

    from .effects import Effect
    from .region import Region

Kind: TypeAlias = Literal["context", "module", "data"]

_KINDS = {"context": lib.HR_CONTEXT, "module": lib.HR_MODULE, "data": lib.HR_DATA}
MAX_BYTES = (1 << 62) - 1
_MAX_PID = (1 << 31) - 1
_DETACHED = "the slot is detached; attach again"
HOLDS_LOCK = "this thread holds the lock; the call takes it itself"

_TIMEOUT = lib.HR_ETIMEOUT
# What hr_detach() returns once the process is attached no more.
_ENDS_ATTACHMENT = {lib.HR_OK, lib.HR_EDETACHED, lib.HR_ESTALE, lib.HR_ECORRUPT}
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
        effect: Of a status: whether the process obeys it. None for other values.
    """

    pid: int
    field: str
    device: int | None
    before: int
    after: int
    effect: Effect | None = attrs.field(default=None, eq=False, repr=False)


@attrs.frozen
class ReapedSlot:
    """A dead process's slot that was freed.

    Attributes:
        pid: The process, in the container's namespace.
        memory_bytes: What the slot still counted, over all devices.
        removed: Whether the slot is gone, as all at the end of the table are when no other process
            of the region lives; False if it was emptied where it stands.
    """

    pid: int
    memory_bytes: int
    removed: bool


@attrs.frozen
class SlotRepair:
    """What `Region.repair_slots` found, as pids in the container's namespace.

    Attributes:
        repaired: Live processes that were put right: each of them counts once, in the slot that it
            writes to.
        left: Live processes that may be counted wrongly and were left alone: which slot is theirs
            cannot be told while they are idle. Repair again while they allocate or free memory.
    """

    repaired: tuple[int, ...]
    left: tuple[int, ...]


class Slot:
    """This process's place in a region. Made by `Region.attach`; a context manager.

    A slot that is still attached when the interpreter ends is detached then. One that nobody refers
    to any more is detached at once, as after an exception between `Region.attach` and the block of
    a ``with`` statement, unless memory was charged outside of such a block: that stays counted.

    Threads: may be shared. Fork: in the child every call raises `RegionClosed`; the parent's slot
    is not touched.

    Attributes:
        pid: The pid that stands in the slot.
        region: The region that it belongs to.
    """

    __slots__ = (
        "__weakref__",
        "_attached",
        "_is_loose",
        "_slice_ns",
        "_ticket",
        "_timeout_ns",
        "pid",
        "region",
    )

    def __init__(self, region: Region, timeout_ns: int) -> None:
        self.region = region
        self._timeout_ns = timeout_ns
        self._slice_ns = min(timeout_ns, SLICE_NS)
        self._attached = False
        # Neither a block's nor kept for what it has charged: dropped, in whatever way, it detaches.
        self._is_loose = True
        self._ticket = ticket(lib.hr_end_attachment)
        self.pid = os.getpid()
        for known in list(_slots):
            if known() is None:
                _slots.pop(known, None)
        _slots[weakref.ref(self)] = None

    def _attach(self) -> Self:
        """Take a slot; what is taken is this object's own from within the call."""
        for slot in list(_kept):
            if slot.region.closed:
                _kept.pop(slot, None)
        try:
            handle, error = self.region._handle, new_error()
            code = in_slices(
                lambda slice_ns: lib.hr_attach(handle, self._ticket, slice_ns, error),
                self._timeout_ns,
            )
            if code == lib.HR_EATTACHED:
                raise RuntimeError(attached_reason(error))
            if code:
                self.region._fail_busy(code, error, HOLDS_LOCK)
            self._attached = True
            return self
        except BaseException:
            lib.hr_end_attachment(self._ticket)
            raise

    def __enter__(self) -> Self:
        self._is_loose = False
        _kept.pop(self, None)
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

    def charge(self, device: SupportsIndex, nbytes: SupportsIndex, kind: Kind = "data") -> None:
        """Count memory on a device, as libvgpu does before an allocation.

        The sum over all processes, plus `nbytes`, must stay within the limit, which is read each
        time. Two processes of this library never pass it together. A process of libvgpu that asks
        at the same moment may be let in beside one where the layout accounts without the lock (HAMi
        2.8.1 and later): libvgpu does not look again after it has added.

        Raises:
            MemoryLimitExceeded: It would pass the limit; nothing was counted.
            ValueError: No such device or kind, or a negative number.
            RuntimeError: The slot is detached.
            LockTimeout: The region's lock was not free within the attachment's timeout; nothing was
                counted.
            RegionStale, RegionCorrupt, RegionClosed: As `Region.snapshot`.
        """
        if not self._attached:
            raise RuntimeError(_DETACHED)
        if type(device) is not int or type(nbytes) is not int:
            device, nbytes = integer("a device", device), integer("a number of bytes", nbytes)
        error = new_error()
        try:
            code = _charge(self.region._handle, device, _KINDS[kind], nbytes, self._slice_ns, error)
            if code == _TIMEOUT:
                code = self._account_on(_charge, device, _KINDS[kind], nbytes, error)
        except (KeyError, OverflowError):
            _check_account(device, nbytes, kind)
            raise
        if code:
            self._fail_account(code, error, device, nbytes, kind)
        if self._is_loose:
            _kept[self] = None
            self._is_loose = False

    def release(self, device: SupportsIndex, nbytes: SupportsIndex, kind: Kind = "data") -> None:
        """Give back what was charged.

        Raises:
            ValueError: More than this process has charged there; nothing was changed.
            RuntimeError, LockTimeout, RegionStale, RegionCorrupt, RegionClosed: As `charge`.
        """
        if not self._attached:
            raise RuntimeError(_DETACHED)
        if type(device) is not int or type(nbytes) is not int:
            device, nbytes = integer("a device", device), integer("a number of bytes", nbytes)
        error = new_error()
        try:
            code = _release(
                self.region._handle, device, _KINDS[kind], nbytes, self._slice_ns, error
            )
            if code == _TIMEOUT:
                code = self._account_on(_release, device, _KINDS[kind], nbytes, error)
        except (KeyError, OverflowError):
            _check_account(device, nbytes, kind)
            raise
        if code:
            self._fail_account(code, error, device, nbytes, kind)

    def _account_on(self, account: Any, device: int, kind: int, nbytes: int, error: Any) -> int:
        handle = self.region._handle
        return in_slices(
            lambda slice_ns: account(handle, device, kind, nbytes, slice_ns, error),
            self._timeout_ns - self._slice_ns,
        )

    def _fail_account(
        self, code: int, detail: Any, device: int, nbytes: int, kind: str
    ) -> NoReturn:
        if code == lib.HR_EBUSY:
            raise RuntimeError(HOLDS_LOCK)
        if code == lib.HR_EINVAL:
            _check_account(device, nbytes, kind)
            raise ValueError(
                f"this process has charged {detail.found} bytes of {kind} on device {device}: "
                f"{nbytes} are too many"
            )
        if code == lib.HR_EMEMORYLIMIT:
            raise _limit_exceeded(self.region.path, detail)
        if code == lib.HR_EDETACHED:
            raise RuntimeError(_DETACHED)
        raise region_error(code, self.region.path, detail)

    def detach(self) -> None:
        """Leave the region: what is still charged is given up. May be called again.

        The slot goes if it is the last one; else it stays where it is, empty, and is taken again
        when this process, or after its end another one, attaches.

        Raises:
            LockTimeout: The region's lock was not free within the attachment's timeout; the slot
                stays.
            RegionStale, RegionCorrupt: As `Region.snapshot`; there is nothing to detach from then.
        """
        if not self._attached:
            return
        handle, error = self.region._handle, new_error()
        code = in_slices(lambda slice_ns: lib.hr_detach(handle, slice_ns, error), self._timeout_ns)
        if code in _ENDS_ATTACHMENT:
            self._attached = False
            _kept.pop(self, None)
        if code and code != lib.HR_EDETACHED:
            self.region._fail_busy(code, error, HOLDS_LOCK)
        self._attached = False
        _kept.pop(self, None)


_slots: dict[weakref.ref[Slot], None] = {}
# Those that stay attached though nobody else has them: they have charged outside of any block.
_kept: dict[Slot, None] = {}


def attached_slots() -> list[Slot]:
    """The slots that this process has now."""
    slots = [known() for known in list(_slots)]
    return [slot for slot in slots if slot is not None and slot._attached]


# In C: this thread's locks are given back and all slots detached, whatever is interrupted.
atexit.register(lib.hr_leave_all)


def _check_account(device: int, nbytes: int, kind: str) -> None:
    if kind not in _KINDS:
        raise ValueError(f"a kind is context, module or data, not {kind!r}")
    integer("a device", device, 0, DEVICE_CAPACITY - 1)
    integer("a number of bytes", nbytes, 0, MAX_BYTES)


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
