"""The region's semaphore: taking it, telling who has it, freeing it with proof."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import attrs

from ._core import ffi, lib
from .handle import RegionHandle, proc_root

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from .errors import PathLike

_LIVES = {lib.HR_DEAD: "dead", lib.HR_ALIVE: "alive", lib.HR_LIFE_UNKNOWN: "unknown"}
_MAX_NS = (1 << 62) - 1
SLICE_NS = 100_000_000

_lock = lib.hr_lock
_unlock = lib.hr_unlock
_TIMEOUT = lib.HR_ETIMEOUT


def nanoseconds(timeout_s: float) -> int:
    """A timeout as the core takes it.

    Raises:
        ValueError: Negative or not a number.
    """
    if not timeout_s >= 0:
        raise ValueError(f"a timeout is 0 or more seconds, not {timeout_s!r}")
    return _MAX_NS if math.isinf(timeout_s) else min(int(timeout_s * 1e9), _MAX_NS)


def in_slices(call: Callable[[int], int], timeout_ns: int) -> int:
    """Make a call of the core that waits, a tenth of a second at a time.

    Python hears of a signal, Ctrl-C for one, only between two calls.
    """
    deadline_ns = time.monotonic_ns() + timeout_ns
    left_ns = timeout_ns
    while True:
        code = call(min(left_ns, SLICE_NS))
        if code != lib.HR_ETIMEOUT or left_ns <= SLICE_NS:
            return code
        left_ns = max(0, deadline_ns - time.monotonic_ns())


@attrs.frozen
class LockState:
    """Who holds a region's lock.

    Attributes:
        held: Whether the semaphore is taken.
        owner_pid: The signature as it stands in the region, usually a pid in the container's
            namespace; None where nobody has signed.
        owner_host_pid: The owner's pid in this process's /proc, None if it is not there.
        owner_life: ``"alive"``, ``"dead"`` or ``"unknown"``; None where nobody has signed.
        by_library: Signed by a process of this library that is not known to share the container's
            namespace; `owner_host_pid` is then its pid in its own.
        semaphore_value: 1 is free, 0 is taken, anything else is damage.
        waiters: Sleeping waiters, as glibc 2.21 and later count them.
        postinit_value: Of the second semaphore; None where the layout has none.
        held_for_s: Since when, at least, it has been in this state: since this Region first saw it
            so. 0 while it is free.
    """

    held: bool
    owner_pid: int | None
    owner_host_pid: int | None
    owner_life: str | None
    by_library: bool
    semaphore_value: int
    waiters: int
    postinit_value: int | None
    held_for_s: float


@attrs.frozen
class LockRecovery:
    """What `Region.recover_lock` has done; false if nothing was wrong.

    Attributes:
        dead_owner: A dead owner's lock was given back.
        ownerless: A lock that nobody had signed for was given back.
        impossible_value: The semaphore stood above 1.
        postinit: The second semaphore was given back.
        finished_removal: The dead holder had been removing a slot; that was finished.
    """

    dead_owner: bool
    ownerless: bool
    impossible_value: bool
    postinit: bool
    finished_removal: bool

    def __bool__(self) -> bool:
        return any(attrs.astuple(self))


class RegionLock:
    """A region's lock, to be held for milliseconds. Made by `Region.lock`.

    Not re-entrant: taking it twice in one thread raises RuntimeError. While it is held, libvgpu
    can neither add nor remove processes, and up to HAMi 2.8.0 not account either.
    """

    __slots__ = ("_region", "_timeout_ns")

    def __init__(self, region: Lockable, timeout_ns: int) -> None:
        self._region = region
        self._timeout_ns = timeout_ns

    def __enter__(self) -> None:
        handle = self._region._handle
        try:
            code = _lock(handle, min(self._timeout_ns, SLICE_NS))
            if code == _TIMEOUT and self._timeout_ns > SLICE_NS:
                left_ns = self._timeout_ns - SLICE_NS
                code = in_slices(lambda slice_ns: _lock(handle, slice_ns), left_ns)
        except BaseException:
            # A signal's handler runs after the call that has taken the lock, if it was that one.
            lib.hr_unlock_own(handle)
            raise
        if code:
            busy = "this thread holds the lock already; it is not re-entrant"
            self._region._fail_busy(code, busy)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        code = _unlock(self._region._handle)
        if code:
            self._region._fail_busy(code, "the lock is not held")


class Lockable(RegionHandle):
    """The part of `Region` that is about its lock."""

    __slots__ = ()

    def lock(self, timeout_s: float = 1.0) -> RegionLock:
        """The region's semaphore as a context manager, taken by libvgpu's own protocol.

        Hold it for milliseconds only: libvgpu's processes wait for it, and take it away after 10 s
        from a holder that they cannot see. Not re-entrant. Reading never needs it.

        A dead holder that was a writer of this library from another namespace is replaced at once;
        any other one that does not leave needs `recover_lock`.

        Args:
            timeout_s: How long to wait; 0 tries once.

        Raises:
            LockTimeout: Not free in time; on leaving: it was taken away meanwhile.
            RuntimeError: This thread holds it already.
            RegionReadOnly, RegionStale, RegionClosed: As `set_memory_limit`.

        Source: docs, The protocol (The lock).
        """
        return RegionLock(self, nanoseconds(timeout_s))

    def lock_state(self, *, proc: PathLike = "/proc") -> LockState:
        """Who holds the lock, and whether it lives. Changes nothing; works read-only.

        Alive means: some process that maps this very file has the owner's number as its pid in one
        of its namespaces. Where /proc does not show enough to tell, the answer is ``"unknown"``.

        Args:
            proc: The root of /proc, where it is mounted elsewhere.

        Raises:
            RegionStale, RegionClosed: As `snapshot`.

        Shell: ``hamiregion lock status FILE``.
        """
        out = ffi.new("struct hr_lock_state *")
        code = lib.hr_get_lock_state(self._handle, proc_root(proc), out)
        if code:
            self._fail(code)
        return LockState(
            held=out.value == 0,
            owner_pid=out.owner_pid or None,
            owner_host_pid=out.owner_pid_here or None,
            owner_life=_LIVES[out.owner_life] if out.owner_pid else None,
            by_library=bool(out.is_ours),
            semaphore_value=out.value,
            waiters=out.waiters,
            postinit_value=out.postinit if self._has_postinit() else None,
            held_for_s=self._held_for_s(out.value, out.owner_pid),
        )

    def _has_postinit(self) -> bool:
        return self.layout.offsets["sem_postinit"] is not None

    def _held_for_s(self, value: int, owner_pid: int) -> float:
        if value != 0:
            self._lock_seen = None
            return 0.0
        now = time.monotonic()
        seen = self._lock_seen
        if seen is None or seen[0] != (value, owner_pid):
            self._lock_seen = ((value, owner_pid), now)
            return 0.0
        return now - seen[1]

    def recover_lock(self, *, proc: PathLike = "/proc", watch_s: float = 10.5) -> LockRecovery:
        """Free a lock that nobody can hold any more. Never breaks one that a live process holds.

        Proof is: the owner is dead; or nobody has signed and nobody else maps the file; or that
        state stood unchanged for 10 s, longer than any holder can need; or the semaphore is above
        1. For the second semaphore, which nobody signs, 60 s.

        Args:
            proc: The root of /proc, where it is mounted elsewhere.
            watch_s: How long to watch an unsigned lock while others map the file. 0 does not wait;
                60 and more also judge the second semaphore. A signal begins the watch anew, so that
                a timer that fires every few seconds keeps it from its end.

        Returns:
            What was done; false if nothing was wrong.

        Raises:
            LockNotRecoverable: There is no proof; the message says what is missing.
            RegionReadOnly, RegionStale, RegionClosed: As `set_memory_limit`.
            RuntimeError: This thread holds the lock.

        Source: docs, The protocol (Recovery). Shell: ``hamiregion lock recover FILE``.
        """
        root, watch_ns = proc_root(proc), nanoseconds(watch_s)
        # A signal ends the watch, so that its handler runs; what it has not ended begins anew.
        code = lib.HR_EINTERRUPTED
        while code == lib.HR_EINTERRUPTED:
            code = lib.hr_recover_lock(self._handle, root, watch_ns)
        if code < 0:
            self._fail_busy(code, "this thread holds the lock; there is nothing to recover")
        return LockRecovery(
            dead_owner=bool(code & lib.HR_RECOVERED_OWNER),
            ownerless=bool(code & lib.HR_RECOVERED_OWNERLESS),
            impossible_value=bool(code & lib.HR_RECOVERED_VALUE),
            postinit=bool(code & lib.HR_RECOVERED_POSTINIT),
            finished_removal=bool(code & lib.HR_RECOVERED_MOVE),
        )
