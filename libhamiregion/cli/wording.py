"""What the numbers of a region mean, in words; the same words on a terminal and in a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion import Effect, ProcessStatus, format_size

if TYPE_CHECKING:
    from libhamiregion import DeviceUsage, ProcessUsage, RegionSnapshot

NOTHING = "-"
UNLIMITED = "unlimited"

# A process of this library that is none of the container's signs with a number that is no pid.
ABOVE_EVERY_PID = 2**30
OWN_WORDS = "a tool with libhamiregion"

_STATUSES = {status.value: status.name.lower() for status in ProcessStatus}
_EFFECTS = {
    Effect.IMMEDIATE: "at once, also in running processes",
    Effect.NEW_PROCESSES: "for processes started from now on",
    Effect.STOPS_LAUNCHES: "at once, and running processes without a limit so far stop for good",
}


def status_word(status: int) -> str:
    """Name a slot's status."""
    return _STATUSES.get(status, f"status {status}")


def effect_words(effect: Effect) -> str:
    """Say from when on an edit holds."""
    return _EFFECTS[effect]


def memory_words(nbytes: int | None) -> str:
    """Show bytes to people; None is unlimited."""
    return UNLIMITED if nbytes is None else format_size(nbytes)


def percent_words(percent: int | None) -> str:
    """Show a percentage to people; None is unlimited."""
    return UNLIMITED if percent is None else f"{percent} %"


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


def facts(snapshot: RegionSnapshot) -> tuple[tuple[str, str], ...]:
    """Name what holds for the whole region: (label, words), in the order shown."""
    priority = {0: "0 (high)", 1: "1 (low)"}.get(snapshot.priority, str(snapshot.priority))
    if snapshot.last_kernel_time_s is None:
        last_kernel = "not recorded by this layout"
    elif snapshot.last_kernel_time_s == 0:
        last_kernel = "never"
    else:
        last_kernel = age_words(snapshot.taken_at_ns // 10**9 - snapshot.last_kernel_time_s)
    return (
        ("layout", snapshot.layout.value),
        ("priority", priority),
        ("SM limiting", "on" if snapshot.utilization_switch else "off"),
        ("launches", "blocked" if snapshot.recent_kernel < 0 else "allowed"),
        ("last kernel", last_kernel),
        ("lock", lock_words(snapshot.owner_pid)),
        ("settled", settled_words(snapshot)),
    )


def lock_words(owner_pid: int) -> str:
    """Say who has signed for the lock."""
    if not owner_pid:
        return "free"
    if owner_pid >= ABOVE_EVERY_PID:
        return f"held by {OWN_WORDS}"
    return f"held by pid {owner_pid}"


def settled_words(snapshot: RegionSnapshot) -> str:
    """Say whether the picture is of one moment, and if not, who moved."""
    if snapshot.settled:
        return "yes"
    moving = [str(process.pid) for process in snapshot.processes if not process.settled]
    if not moving:
        return "no, it changed while it was read"
    shown = ", ".join(moving[:5]) + (", ..." if len(moving) > 5 else "")
    return f"no, pid {shown} changed while it was read"


def busy_devices(process: ProcessUsage) -> list[int]:
    """Positions in `process.devices` where the process has or does something."""
    return [
        position
        for position, usage in enumerate(process.devices)
        if usage.memory_used_bytes
        or usage.memory_monitor_bytes
        or usage.sm_util_percent
        or usage.enc_util_percent
        or usage.dec_util_percent
    ]


def fill_ratio(device: DeviceUsage) -> float | None:
    """Used memory as a share of the limit; None where there is no limit."""
    if device.memory_limit_bytes is None:
        return None
    return device.memory_used_bytes / device.memory_limit_bytes
