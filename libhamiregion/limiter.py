"""The core limiter: the token bucket with which libvgpu holds a container to its SM limit."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

from ._core import ffi, lib
from ._handle import nanoseconds
from .errors import new_error, region_error
from .layouts import DEVICE_CAPACITY
from .units import integer

if TYPE_CHECKING:
    from .region import Region

_MAX_BLOCKS: Final = 2**63 - 1
# As libvgpu's launches.
_NAP_S: Final = 0.01


class CoreLimiter:
    """A token bucket of blocks for one device.

    libvgpu limits SM time by such a bucket per process and device; this one has the same integer
    divisions.  A launch (`acquire`) waits while the bucket is below zero, then takes one token per
    block.  The owner of the limiter calls `tick` every 120 ms.

    With a region, its SM limit of the device and its `utilization_switch` hold, read without a lock
    when the limiter is made and at each tick; `sm_limit` then has no effect.  While only the switch
    is off, launches pass and ticks still fill the bucket.

    The bucket holds `total` tokens at most, at first 32 x SMs x threads per SM.  A tick changes the
    `share` and adds it to the tokens.  All divisions drop the remainder:

    1. If the share is as large as the bucket and launches wait, `total` and the share double.
    2. The distance from the utilisation to the limit counts as at least 5.
    3. The step is SMs^2 x threads per SM x distance / 2560.  If the distance is more than half of
       the limit, multiply by distance x 2 / (limit + 1).
    4. At or below the limit the share grows by a step, up to `total`.  Above, it shrinks by a step,
       down to 0.
    5. The share is added to the tokens, up to `total`.

    Threads: all methods may be called from several threads at once; waiting threads are not served
    in order.  After `fork` the child's limiter is independent.

    Args:
        sm_count: CUDA's `multiProcessorCount`, 1 to 65536.
        max_threads_per_sm: CUDA's `maxThreadsPerMultiProcessor`, 1 to 65536.
        sm_limit: Percent; None, 0, 100 and above mean unlimited.
        region: Where the limit comes from; closing it while the limiter lives is allowed.
        device: The CUDA ordinal in the region, 0 to 15.

    Raises:
        ValueError: A number is out of range.
        TypeError: A number is not an integer.
        RegionError: The region cannot be read.

    >>> limiter = CoreLimiter(sm_count=132, max_threads_per_sm=2048, sm_limit=30)
    >>> limiter.acquire(1_548_195)
    >>> limiter.tick(29)
    >>> limiter.share, limiter.tokens, limiter.total
    (69696, -1478499, 8650752)
    """

    __slots__ = ("_handle", "_region")

    def __init__(
        self,
        *,
        sm_count: SupportsIndex,
        max_threads_per_sm: SupportsIndex,
        sm_limit: SupportsIndex | None,
        region: Region | None = None,
        device: SupportsIndex = 0,
    ) -> None:
        sm_count = integer("sm_count", sm_count, 1, 65536)
        max_threads_per_sm = integer("max_threads_per_sm", max_threads_per_sm, 1, 65536)
        limit = 0 if sm_limit is None else integer("sm_limit", sm_limit, 0, 2**32 - 1)
        device = integer("device", device, 0, DEVICE_CAPACITY - 1)
        # The C limiter reads the region through its handle, which lives as long as the Region.
        self._region = region
        out = ffi.new("hr_limiter **")
        error = new_error()
        handle = ffi.NULL if region is None else region._handle
        numbers = sm_count, max_threads_per_sm, limit
        code = lib.hr_limiter_new(*numbers, handle, device, out, error)
        if code:
            raise self._error(code, error)
        self._handle = ffi.gc(out[0], lib.hr_limiter_free)

    def acquire(self, blocks: SupportsIndex, timeout_s: float | None = None) -> None:
        """Take one token per block, as a kernel launch does.

        Waits while the bucket is below zero.  Returns at once, and takes nothing, where nothing is
        limited: limit 0 or 100, or the region's `utilization_switch` off.

        Args:
            blocks: Blocks of the launch: the product of the grid's dimensions.
            timeout_s: Seconds; 0 looks once, None waits until a tick brings tokens.

        Raises:
            TimeoutError: The bucket stayed below zero; nothing was taken.
            ValueError: `blocks` or `timeout_s` is negative or not a number.
            TypeError: `blocks` is not an integer.

        >>> limiter = CoreLimiter(sm_count=16, max_threads_per_sm=1536, sm_limit=5)
        >>> limiter.acquire(100)
        >>> limiter.acquire(1, timeout_s=0)
        Traceback (most recent call last):
        ...
        TimeoutError: no tokens for a launch of 1 blocks within 0 s: the bucket is at -100 and \
only tick() fills it
        """
        count = integer("blocks", blocks, 0, _MAX_BLOCKS)
        timeout_ns = nanoseconds(math.inf if timeout_s is None else timeout_s)
        deadline_ns = time.monotonic_ns() + timeout_ns
        while not lib.hr_limiter_take(self._handle, count):
            left_ns = deadline_ns - time.monotonic_ns()
            if left_ns <= 0:
                raise TimeoutError(
                    f"no tokens for a launch of {count} blocks within {timeout_s:g} s: "
                    f"the bucket is at {self.tokens} and only tick() fills it"
                )
            time.sleep(min(left_ns / 1e9, _NAP_S))

    def tick(self, util_percent: SupportsIndex) -> None:
        """Make one step of 120 ms.

        Args:
            util_percent: The sum of the processes' SM utilisation.  Outside 0 to 100 it says
                nothing, and the bucket stays as it is.

        Raises:
            RegionError: The region cannot be read any more.  The step was made all the same, with
                the limit and the switch read last, so that waiting launches go on.
            TypeError: `util_percent` is not an integer.
        """
        util = integer("util_percent", util_percent)
        # What says nothing says so in 32 bits, too.
        error = new_error()
        code = lib.hr_limiter_tick(self._handle, max(-1, min(util, 101)), error)
        if code:
            raise self._error(code, error)

    def _read(self) -> Any:
        state = ffi.new("struct hr_limiter_state *")
        lib.hr_limiter_read(self._handle, state)
        return state

    @property
    def share(self) -> int:
        """Blocks that a tick brings."""
        return int(self._read().share)

    @property
    def tokens(self) -> int:
        """Blocks that may be launched now; below zero, launches wait."""
        return int(self._read().tokens)

    @property
    def total(self) -> int:
        """The most blocks that the bucket holds; doubles when a full share is not enough."""
        return int(self._read().total)

    def _error(self, code: int, error: Any) -> Exception:
        if code == lib.HR_EBUSY:
            return TimeoutError("another thread is inside tick()")
        return region_error(code, "" if self._region is None else self._region.path, error)
