"""The region's semaphore: taking it, telling who has it, freeing it with proof."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import attrs

from ._core import ffi, lib
from .errors import new_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from .region import Region

OWNER_LIVES = {lib.HR_DEAD: "dead", lib.HR_ALIVE: "alive", lib.HR_LIVENESS_UNKNOWN: "unknown"}
_MAX_NS = (1 << 62) - 1
_MAX_S = _MAX_NS / 1e9
SLICE_NS = 100_000_000

_lock = lib.hr_lock
_unlock = lib.hr_unlock
_end_lock = lib.hr_end_lock
_TIMEOUT = lib.HR_ETIMEOUT
_TICKET = ffi.typeof("struct hr_ticket *")
_new, _gc = ffi.new, ffi.gc


def nanoseconds(timeout_s: float) -> int:
    """A timeout as the core takes it.

    Raises:
        TypeError: No number.
        ValueError: Negative, or NaN.
    """
    if not isinstance(timeout_s, int | float):
        raise TypeError(f"a timeout is a number of seconds, not {type(timeout_s).__name__}")
    if 0 <= timeout_s < _MAX_S:
        return int(timeout_s * 1e9)
    if timeout_s >= _MAX_S:
        return _MAX_NS
    raise ValueError(f"a timeout is 0 or more seconds, not {timeout_s!r}")


_TIMED_OUT = (lib.HR_ETIMEOUT,)


def in_slices(
    call: Callable[[int], int], timeout_ns: int, until: tuple[int, ...] = _TIMED_OUT
) -> int:
    """Make a call of the core that waits, a tenth of a second at a time.

    Python hears of a signal, Ctrl-C for one, only between two calls. `until` are the codes that a
    call gives which has waited in vain.
    """
    deadline_ns = time.monotonic_ns() + timeout_ns
    left_ns = timeout_ns
    while True:
        code = call(min(left_ns, SLICE_NS))
        if code not in until or left_ns <= SLICE_NS:
            return code
        left_ns = max(0, deadline_ns - time.monotonic_ns())


@attrs.frozen
class LockState:
    """Who holds a region's lock.

    Attributes:
        held: Whether the semaphore is taken.
        owner_pid: The signature as HAMi reads it, usually a pid in the container's namespace; None
            where nobody has signed.
        owner_host_pid: The owner's pid in this process's /proc; None if it is not there, or has
            signed with a number.
        owner_life: ``"alive"``, ``"dead"`` or ``"unknown"``; None where nobody has signed.
        by_library: Signed by this library with a number, as it does unless it is attached.
        semaphore_value: 1 is free, 0 is taken.
        damaged: The value is above 1, or above 0 though somebody has signed: then the lock excludes
            nobody, until `Region.recover_lock` mends it.
        waiters: Sleeping waiters, as glibc 2.21 and later count them.
        postinit_value: Of the second semaphore; None where the layout has none.
        held_for_s: For how long every call on this Region has found the same owner. Releases
            between two calls are not seen: a busy lock can have a high value. 0 if it is free.
    """

    held: bool
    owner_pid: int | None
    owner_host_pid: int | None
    owner_life: str | None
    by_library: bool
    semaphore_value: int
    damaged: bool
    waiters: int
    postinit_value: int | None
    held_for_s: float


@attrs.frozen
class LockRecovery:
    """What `Region.recover_lock` has done; false if nothing was wrong.

    Attributes:
        dead_owner: A dead owner's lock was given back.
        ownerless: A lock that nobody had signed for was given back.
        impossible_value: The semaphore stood above 1, or above 0 though somebody had signed.
        postinit: The second semaphore was given back.
    """

    dead_owner: bool
    ownerless: bool
    impossible_value: bool
    postinit: bool

    def __bool__(self) -> bool:
        return any(attrs.astuple(self))


def ticket(end: Any) -> Any:
    """What a call of the core stores its taking in, from within the call.

    When it is dropped, `end` undoes what still stands, in C: no signal's handler can come between.
    """
    return _gc(_new(_TICKET), end)


class RegionLock:
    """A region's lock, to be held for microseconds. Made by `Region.lock`.

    Not re-entrant: taking it twice in one thread raises RuntimeError. While it is held, libvgpu
    can neither add nor remove processes, and up to HAMi 2.8.0 not account either.

    As with Python's own locks, an exception that a signal's handler raises at the very first
    instruction of ``__exit__`` leaves the lock taken until this object is dropped.
    """

    __slots__ = ("_region", "_ticket", "_timeout_ns")

    def __init__(self, region: Region, timeout_ns: int) -> None:
        self._region = region
        self._timeout_ns = timeout_ns
        self._ticket = _gc(_new(_TICKET), _end_lock)

    def __enter__(self) -> None:
        handle = self._region._handle
        # An outer block may be this very object's.
        turn = self._ticket.turn
        error = new_error()
        try:
            code = _lock(handle, self._ticket, min(self._timeout_ns, SLICE_NS), error)
            if code == _TIMEOUT and self._timeout_ns > SLICE_NS:
                left_ns = self._timeout_ns - SLICE_NS
                code = in_slices(
                    lambda slice_ns: _lock(handle, self._ticket, slice_ns, error), left_ns
                )
        except BaseException:
            # A signal's handler runs after the call that has taken the lock, if it was that one.
            if self._ticket.turn != turn:
                _end_lock(self._ticket)
            raise
        if code:
            busy = "this thread holds the lock already; it is not re-entrant"
            self._region._fail_busy(code, error, busy)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        error = new_error()
        code = _unlock(self._region._handle, error)
        if code:
            self._region._fail_busy(code, error, "the lock is not held")
