"""Limits as people give them and as a region holds them, and why one is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import LimitBelowUsage, LimitConflict
from .units import format_size, parse_size

if TYPE_CHECKING:
    from .errors import RegionError

#: What libvgpu stores for "no SM limit"; 0 means the same to it.
UNLIMITED_SM_PERCENT = 100


# What fits its field. libvgpu takes -1 from the environment for it.
_MOST_BYTES = 2**64 - 1


def limit_bytes(limit: int | str) -> int:
    """A memory limit in bytes; what stands in a region may be larger than any size."""
    if type(limit) is int and 0 < limit <= _MOST_BYTES:
        return limit
    return parse_size(limit)


def memory_value(limit: int | str | None) -> int:
    """A memory limit in bytes as it is stored: 0 where it is None, unlimited."""
    if limit is None:
        return 0
    value = limit_bytes(limit)
    if value == 0:
        raise ValueError("a memory limit of 0 would mean unlimited; say None for that")
    return value


def sm_value(percent: int | None) -> int:
    """An SM limit in percent as it is stored: 100 where it is None, unlimited."""
    if percent is None:
        return UNLIMITED_SM_PERCENT
    if isinstance(percent, bool) or not isinstance(percent, int):
        raise TypeError(f"an SM limit is an int in percent, not {type(percent).__name__}")
    if not 1 <= percent <= UNLIMITED_SM_PERCENT:
        raise ValueError(f"an SM limit is 1 to 100 percent, or None for unlimited, not {percent}")
    return percent


def sm_or_none(percent: int) -> int | None:
    """A stored SM limit in percent; None if it is unlimited."""
    return percent if 0 < percent < UNLIMITED_SM_PERCENT else None


def _limit_text(limit: int | None, *, in_bytes: bool) -> str:
    if limit is None:
        return "unlimited"
    return f"{format_size(limit)} ({limit} bytes)" if in_bytes else f"{limit}%"


def limit_conflict(path: str, detail: Any, *, device: int, in_bytes: bool) -> RegionError:
    """The error for a limit that was not what was expected."""

    def plain(value: int) -> int | None:
        return (value or None) if in_bytes else sm_or_none(value)

    found, expected = plain(detail.found), plain(detail.wanted)
    what = "memory" if in_bytes else "SM"
    error = LimitConflict(
        f"{path!r}: the {what} limit of device {device} is "
        f"{_limit_text(found, in_bytes=in_bytes)}, not {_limit_text(expected, in_bytes=in_bytes)} "
        "as expected; nothing was changed",
        path=path,
    )
    error.device, error.found, error.expected = device, found, expected
    return error


def value_conflict(path: str, field: str, found: int, expected: int) -> RegionError:
    """The error for a value of the whole region that was not what was expected."""
    error = LimitConflict(
        f"{path!r}: {field} is {found}, not {expected} as expected; nothing was changed", path=path
    )
    error.device, error.found, error.expected = None, found, expected
    return error


def limit_below_usage(path: str, detail: Any, *, device: int) -> RegionError:
    """The error for a memory limit under what is in use."""
    used = _limit_text(detail.found, in_bytes=True)
    wanted = _limit_text(detail.wanted, in_bytes=True)
    error = LimitBelowUsage(
        f"{path!r}: device {device} uses {used}, more than the limit asked for, {wanted}; "
        "its programs would see an enormous amount of free memory. Nothing was changed; "
        "force=True sets it all the same",
        path=path,
    )
    error.device = device
    error.used_bytes, error.requested_bytes = detail.found, detail.wanted
    return error
