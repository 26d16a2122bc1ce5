"""The region's semaphore: take it, report its owner, free it with proof."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs

from ._core import ffi, lib
from ._handle import Handle, in_slices, nanoseconds
from .errors import new_error, signed_pid
from .evidence import judge

if TYPE_CHECKING:
    from .errors import PathLike
    from .evidence import Evidence

_HOLDS_LOCK: Final = "this thread holds the lock already; it is not re-entrant"
# What a recovery may take besides its watch: its search, and the wait for another recovery.
_SEARCH_S: Final = 3.0

#: The life of a lock's owner.
OwnerLife: TypeAlias = Literal["dead", "alive", "unknown"]
_OWNER_LIVES: dict[int, OwnerLife] = {
    lib.HR_DEAD: "dead",
    lib.HR_ALIVE: "alive",
    lib.HR_LIVENESS_UNKNOWN: "unknown",
}


@attrs.frozen
class LockState:
    """The state of a region's lock, and its owner.

    Attributes:
        held: Whether the semaphore is taken.
        owner_pid: The owner's pid in the container's namespace; None if the lock is not signed, or
            signed with a number that is no pid, as by this library for a process outside.
        owner_host_pid: The owner's pid in this process's /proc; None if it is not known.
        owner_life: ``"alive"``, ``"dead"`` or ``"unknown"``; None if the lock is not signed.
        by_library: Signed by this library for a process that is not attached.
        semaphore_value: 1 is free, 0 is taken.
        damaged: The value is above 1, or above 0 though the lock is signed: it excludes no one
            until `Region.recover_lock` mends it.
        waiters: Sleeping waiters, as glibc 2.21 and later count them.
        postinit_value: Of the second semaphore; None if the layout has none.
    """

    held: bool
    owner_pid: int | None
    owner_host_pid: int | None
    owner_life: OwnerLife | None
    by_library: bool
    semaphore_value: int
    damaged: bool
    waiters: int
    postinit_value: int | None


@attrs.frozen
class LockRecovery:
    """The repairs of `Region.recover_lock`; false if nothing was wrong.

    Attributes:
        dead_owner: A dead owner's lock was given back.
        ownerless: An unsigned lock was given back.
        impossible_value: The semaphore was above 1, or above 0 though the lock was signed.
        postinit: The second semaphore was given back.
    """

    dead_owner: bool
    ownerless: bool
    impossible_value: bool
    postinit: bool

    def __bool__(self) -> bool:
        return any(attrs.astuple(self))


class RegionLock:
    """A region's lock, to be held for microseconds. Made by `Region.lock`.

    Not re-entrant: taking it twice in one thread raises RuntimeError. While it is held, libvgpu
    can neither add nor remove processes. Up to HAMi 2.8.0, and after 2.10, it cannot account
    either: each allocation in the container waits.

    If this process is not attached, a waiting allocation takes the lock away after 9 to 10 s
    (`LockLost`).

    An exception that a signal's handler raises at the very beginning or end of the block can leave
    the lock taken until `Region.close` or the end of the program. Python's own locks do not have
    this gap: in a program whose handlers raise (Ctrl-C is one), close the region afterwards.
    """

    __slots__ = ("_at_exit", "_region", "_timeout_ns")

    def __init__(self, region: Handle, timeout_ns: int) -> None:
        self._region = region
        self._timeout_ns = timeout_ns
        # Before the block: at its end nothing is to come before the lock is given back.
        self._at_exit = new_error()

    def __enter__(self) -> None:
        handle, error = self._region._handle, new_error()
        error.code = lib.HR_EBUSY
        try:
            code = in_slices(
                lambda slice_ns: lib.hr_lock(handle, slice_ns, error), self._timeout_ns
            )
            self._region._check(code, error, _HOLDS_LOCK)
        except BaseException:
            # A signal's handler may have run as the lock was taken, here and not by an outer block.
            if error.code != lib.HR_EBUSY:
                lib.hr_unlock_own(handle, error)
            raise

    def __exit__(self, *exc_info: object) -> None:
        code = lib.hr_unlock(self._region._handle, self._at_exit)
        self._region._check(code, self._at_exit, "the lock is not held")


class Locks(Handle):
    """The lock of a region."""

    __slots__ = ()

    def lock(self, timeout_s: float = 1.0) -> RegionLock:
        """Return the region's semaphore as a context manager, taken by libvgpu's own protocol.

        Hold it for microseconds only: libvgpu's processes wait for it, after HAMi 2.10 at each
        allocation. After 10 s one of them takes it away from a holder that is no process of the
        container. A holder that is attached keeps it. Not re-entrant. Reading never needs it.

        A dead holder of this library that was not attached is replaced at once; any other one that
        does not leave needs `recover_lock`.

        Args:
            timeout_s: How long to wait; 0 tries once.

        Raises:
            LockTimeout: Not free in time.
            LockLost: On leaving: it was taken away meanwhile.
            RuntimeError: This thread holds it already.
            RegionReadOnly, RegionStale, RegionClosed: As `set_memory_limit`.

        Source: docs, The protocol (The lock).
        """
        return RegionLock(self, nanoseconds(timeout_s))

    def lock_state(
        self, *, proc: PathLike = "/proc", evidence: Evidence | None = None
    ) -> LockState:
        """Return whether the lock is held, by which process, and whether that lives.

        Changes nothing, and works read-only. Alive means: a process that maps this very file has
        the owner's pid in one of its namespaces, or the kernel says so of an owner of this library.
        ``"unknown"`` if /proc does not show enough.

        Args:
            proc: The root of /proc, if it is mounted elsewhere.
            evidence: Evidence about this region, instead of a search of /proc in this thread.

        Raises:
            RegionReadOnly: The region was opened by `own_region`: the call may open the file again,
                which would drop the locks of a libvgpu in this process.
            RegionStale, RegionClosed: As `snapshot`.

        Shell: ``hamiregion lock status FILE``.
        """
        out, error = ffi.new("struct hr_lock_state *"), new_error()
        search, by_evidence = lib.hr_get_lock_state, lib.hr_get_lock_state_by
        self._check(judge(self, search, by_evidence, proc, evidence)(out, error), error)
        return LockState(
            held=out.value == 0,
            owner_pid=signed_pid(out.owner_pid),
            owner_host_pid=out.owner_pid_here or None,
            owner_life=_OWNER_LIVES[out.owner_liveness] if out.owner_pid else None,
            by_library=bool(out.is_ours),
            semaphore_value=out.value,
            damaged=bool(out.is_damaged),
            waiters=out.waiters,
            postinit_value=None if self.layout.offsets["sem_postinit"] is None else out.postinit,
        )

    def recover_lock(
        self,
        *,
        proc: PathLike = "/proc",
        watch_s: float = 10.5,
        evidence: Evidence | None = None,
    ) -> LockRecovery:
        """Free a lock that no process can hold any more, never one that a live process holds.

        Proof is: the owner is dead; or the lock is unsigned, or its signature cannot be judged, and
        no other process has the file open; or it is unsigned and was unchanged for 10 s, longer
        than any holder can need; or the semaphore's value contradicts its owner. For the second
        semaphore, which is never signed, 60 s.

        Args:
            proc: The root of /proc, if it is mounted elsewhere.
            evidence: Evidence about this region, instead of a search of /proc in this thread.
            watch_s: How long to watch an unsigned lock while others map the file. 0 does not wait;
                60 and more also judge the second semaphore. A signal whose handler takes longer
                than 0.1 s begins the watch anew; 3 s after `watch_s` the call gives up.

        Returns:
            The repairs; false if nothing was wrong.

        Raises:
            LockNotRecoverable: There is no proof. The message says which one is missing.
            RegionReadOnly, RegionStale, RegionClosed: As `set_memory_limit`.
            RuntimeError: This thread holds the lock.

        Source: docs, The protocol (Recovery). Shell: ``hamiregion lock recover FILE``.
        """
        watch_ns = nanoseconds(watch_s)
        recover = judge(self, lib.hr_recover_lock, lib.hr_recover_lock_by, proc, evidence)
        progress, error = ffi.new("struct hr_recovery *"), new_error()
        deadline_s = time.monotonic() + watch_s + _SEARCH_S
        # A signal ends the call, so that its handler runs; the next one goes on from there.
        code = lib.HR_EINTERRUPTED
        while code == lib.HR_EINTERRUPTED:
            code = recover(watch_ns, progress, error)
            if time.monotonic() > deadline_s:
                # Handlers have taken too much of the time: what is not proved now is left alone.
                watch_ns = 0
        self._check(code, error, "this thread holds the lock; there is nothing to recover")
        return LockRecovery(
            dead_owner=bool(progress.done & lib.HR_RECOVERED_OWNER),
            ownerless=bool(progress.done & lib.HR_RECOVERED_OWNERLESS),
            impossible_value=bool(progress.done & lib.HR_RECOVERED_VALUE),
            postinit=bool(progress.done & lib.HR_RECOVERED_POSTINIT),
        )
