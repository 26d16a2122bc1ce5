"""Words for states and ages, and bars; the same on a terminal and in a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from libhamiregion import DeviceUsage, Effect, ProcessStatus
from libhamiregion.errors import signed_pid

from .tables import CRITICAL, GOOD, WARN, Bar

if TYPE_CHECKING:
    from collections.abc import Collection


# A process of this library that is none of the container's signs with a number that is no pid.
_ABOVE_EVERY_PID = 2**30
# libvgpu keeps a process near its SM limit, not under it: a little above is how it works.
_SM_SLACK_PERCENT = 10

_STATUSES = {status.value: status.name.lower() for status in ProcessStatus}
#: From when on an edit holds.
EFFECT_WORDS = {
    Effect.IMMEDIATE: "at once, also in running processes",
    Effect.NEW_PROCESSES: "for processes started from now on",
    Effect.STOPS_LAUNCHES: "at once, and running processes without a limit so far stop for good",
    Effect.IF_SM_LIMITED: "up to HAMi 2.9; from 2.10 on not, as no reported device has an SM limit",
}


def status_word(status: int) -> str:
    """Name a slot's status."""
    return _STATUSES.get(status, f"status {status}")


def lock_word(owner_pid: int, dead: Collection[int] = ()) -> str:
    """Name the process that has signed for a region's lock; `dead` are the pids proved dead."""
    if not owner_pid:
        return "free"
    if owner_pid >= _ABOVE_EVERY_PID:
        return "tool"
    if signed_pid(owner_pid) is None:
        return "unknown"
    return f"dead:{owner_pid}" if owner_pid in dead else f"pid:{owner_pid}"


def age_words(seconds: int) -> str:
    """Say how long ago, in the largest unit that fits.

    >>> age_words(0), age_words(75), age_words(7200), age_words(200_000)
    ('just now', '75 s ago', '2 h ago', '2 d ago')
    """
    if seconds <= 0:
        return "just now"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"


# ---- bars ----------------------------------------------------------------------------------------


def is_used(device: Any) -> bool:
    """Whether a figure of a process on a device is not 0."""
    names = (field.name for field in attrs.fields(type(device)))
    return any(getattr(device, name) for name in names if name.endswith(("_bytes", "_percent")))


def fill_ratio(device: DeviceUsage) -> float | None:
    """Used memory as a share of the limit; None without a limit, or if the sum cannot be."""
    used, limit = device.memory_used_bytes, device.memory_limit_bytes
    return None if limit is None or used is None else used / limit


def ratio_style(ratio: float | None) -> str:
    """Green, yellow from 70 %, red from 90 %; none without a limit."""
    if ratio is None:
        return ""
    if ratio > 1:
        return f"bold {CRITICAL}"
    return CRITICAL if ratio >= 0.9 else WARN if ratio >= 0.7 else GOOD


def ratio_bar(ratio: float | None) -> Bar:
    """Show how full something is; empty without a limit."""
    return Bar(ratio or 0.0, ratio_style(ratio))


def memory_bar(device: DeviceUsage) -> Bar:
    """Show how full a device's memory is."""
    return ratio_bar(fill_ratio(device))


def sm_bar(sm_percent: int | None, limit_percent: int | None = None) -> Bar:
    """Show SM utilisation; red above the limit."""
    sm = sm_percent or 0
    over = limit_percent is not None and sm > limit_percent + _SM_SLACK_PERCENT
    return Bar(sm / 100, CRITICAL if over else "cyan")
