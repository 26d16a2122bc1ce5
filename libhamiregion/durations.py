"""Lengths of time as Go programs and Prometheus write them: ``5m``, ``1h30m``, ``500ms``, ``7d``."""

from __future__ import annotations

import re
from typing import Final

_UNITS_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,  # micro sign
    "\u03bcs": 1_000,  # Greek mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
    "w": 604_800_000_000_000,
}
# What a Go program can hold: a signed 64-bit count of nanoseconds, 292 years.
_MAX_NS: Final = 2**63 - 1
_PART: Final = re.compile(
    r"(?=\.?[0-9])([0-9]{0,20})(?:\.([0-9]{0,20}))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h|d|w)", re.ASCII
)


def parse_duration(text: str) -> float:
    """Turn a length of time such as "5m" into seconds.

    The notation is that of Go's ``time.ParseDuration``, which HAMi's settings and the web
    configuration of exporters use: one or more numbers, each with its unit (``h``, ``m``, ``s``,
    ``ms``, ``us``, ``ns``), with a plus sign before them or without. A number without a unit means
    nothing, except ``0``. ``d`` and ``w`` are days of 24 hours and weeks, as in Prometheus.

    Args:
        text: The length of time; never negative here.

    Returns:
        Seconds.

    Raises:
        ValueError: Not a length of time, negative, or longer than 292 years.

    >>> parse_duration("5m"), parse_duration("1h30m"), parse_duration("1.5s"), parse_duration("7d")
    (300.0, 5400.0, 1.5, 604800.0)
    >>> parse_duration("5")
    Traceback (most recent call last):
    ...
    ValueError: '5' is no length of time such as 30s, 5m or 1h30m: it has no unit
    """
    shown = ascii(text if len(text) <= 40 else text[:40] + "...")
    if text.startswith("-"):
        raise ValueError(f"{shown} is negative; a length of time is not")
    text = text.removeprefix("+")
    if text == "0":
        return 0.0
    total_ns = 0
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            break
        whole, fraction, unit = match.groups()
        total_ns += int(whole or 0) * _UNITS_NS[unit]
        if fraction:
            total_ns += int(fraction) * _UNITS_NS[unit] // 10 ** len(fraction)
        position = match.end()
    if position == 0 or position < len(text):
        why = ": it has no unit" if text.isascii() and text.isdigit() else ""
        raise ValueError(f"{shown} is no length of time such as 30s, 5m or 1h30m{why}")
    if total_ns > _MAX_NS:
        raise ValueError(f"{shown} is longer than 292 years")
    return total_ns / 1e9
