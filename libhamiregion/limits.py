"""Limits as a region holds them, and why an edit of one is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import LimitBelowUsage, LimitConflict
from .units import UNLIMITED_SM_PERCENT, format_size

if TYPE_CHECKING:
    from .errors import RegionError


def sm_or_none(percent: int) -> int | None:
    """A stored SM limit in percent; None if it is unlimited."""
    return percent if 0 < percent < UNLIMITED_SM_PERCENT else None


def _limit_text(limit: int | None, *, in_bytes: bool) -> str:
    if limit is None:
        return "unlimited"
    return f"{format_size(limit)} ({limit} bytes)" if in_bytes else f"{limit}%"


def limit_conflict(path: str, detail: Any, *, in_bytes: bool) -> RegionError:
    """The error for a limit that was not what was expected."""

    def plain(value: int) -> int | None:
        return (value or None) if in_bytes else sm_or_none(value)

    found, expected = plain(detail.found), plain(detail.wanted)
    what = "memory" if in_bytes else "SM"
    error = LimitConflict(
        f"{path!r}: the {what} limit of device {detail.device} is "
        f"{_limit_text(found, in_bytes=in_bytes)}, not {_limit_text(expected, in_bytes=in_bytes)} "
        "as expected; nothing was changed",
        path=path,
    )
    error.device, error.found, error.expected = detail.device, found, expected
    return error


def value_conflict(path: str, field: str, found: int, expected: int) -> RegionError:
    """The error for a value of the whole region that was not what was expected."""
    error = LimitConflict(
        f"{path!r}: {field} is {found}, not {expected} as expected; nothing was changed", path=path
    )
    error.device, error.found, error.expected = None, found, expected
    return error


def limit_below_usage(path: str, detail: Any) -> RegionError:
    """The error for a memory limit under what is in use."""
    used = _limit_text(detail.found, in_bytes=True)
    wanted = _limit_text(detail.wanted, in_bytes=True)
    error = LimitBelowUsage(
        f"{path!r}: device {detail.device} uses {used}, more than the limit asked for, {wanted}; "
        "its programs would see an enormous amount of free memory. Nothing was changed; "
        "force=True sets it all the same",
        path=path,
    )
    error.device = detail.device
    error.used_bytes, error.requested_bytes = detail.found, detail.wanted
    return error


def limit_stops_launches(path: str, detail: Any) -> RegionError:
    """The error for an SM limit that would stop running processes for good."""
    processes = f"{detail.found} process{'' if detail.found == 1 else 'es'}"
    error = LimitBelowUsage(
        f"{path!r}: {processes} may have started without an SM limit, and an SM limit of "
        f"{detail.wanted}% would let each launch once more and then never again, also after it "
        "is taken back: libvgpu of that generation starts what lets launches through only where "
        "it finds a limit. Set it while nothing runs there. Nothing was changed; force=True sets "
        "it all the same",
        path=path,
    )
    error.device = detail.device
    return error


def no_such_device(path: str, device: int | str, devices: dict[int, str | None]) -> ValueError:
    """The error for a device that the region does not have."""
    listed = ", ".join(
        f"{number} ({uuid})" if uuid else str(number) for number, uuid in devices.items()
    )
    return ValueError(
        f"{path!r} has no device {device!r}, only {listed}; nothing was changed; force=True sets "
        "any index from 0 to 15"
    )


def no_percentage(path: str, detail: Any) -> ValueError:
    """The error for a percentage of a limit that has none."""
    now = _limit_text(detail.found or None, in_bytes=True)
    return ValueError(
        f"{path!r}: the memory limit of device {detail.device} is {now}, and {detail.wanted}% of "
        "that is no limit; nothing was changed"
    )
