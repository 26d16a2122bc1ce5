"""Lengths of time and moments as people type them: ``24h``, ``7d``, ``2026-10-01``."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PERIOD: Final = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?[smhdw])+", re.ASCII)
_PART: Final = re.compile(r"([0-9.]+)([smhdw])", re.ASCII)
_CENTURY_S: Final = 100 * 366 * 86_400


def parse_period(text: str) -> float:
    """Turn a length of time such as "7d" into seconds.

    Units are ``s``, ``m``, ``h``, ``d`` and ``w``; days have 24 hours.

    Raises:
        ValueError: Not a length of time, none at all, or more than a century.

    >>> parse_period("24h"), parse_period("7d"), parse_period("1h30m"), parse_period("1.5d")
    (86400.0, 604800.0, 5400.0, 129600.0)
    """
    shown = ascii(text if len(text) <= 40 else text[:40] + "...")
    if not _PERIOD.fullmatch(text):
        raise ValueError(f"{shown} is no length of time such as 90m, 24h, 7d or 2w")
    period_s = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
    if not 0 < period_s <= _CENTURY_S:
        raise ValueError(f"{shown} is no time at all, or more than a century")
    return period_s


def parse_moment(text: str, *, before: dt.datetime) -> dt.datetime:
    """Turn "24h" or "2026-10-01T12:00" into a moment.

    A length of time means that long before `before`. A date or time without an offset is local
    time, as `date` and `journalctl` take it; ``Z`` is UTC.

    Raises:
        ValueError: Neither.

    >>> noon = dt.datetime(2026, 10, 1, 12, tzinfo=dt.timezone.utc)
    >>> parse_moment("36h", before=noon).isoformat()
    '2026-09-30T00:00:00+00:00'
    >>> parse_moment("2026-09-30T08:00Z", before=noon).isoformat()
    '2026-09-30T08:00:00+00:00'
    """
    if _PERIOD.fullmatch(text):
        return before - dt.timedelta(seconds=parse_period(text))
    shown = ascii(text if len(text) <= 40 else text[:40] + "...")
    try:
        moment = dt.datetime.fromisoformat(re.sub(r"[zZ]\Z", "+00:00", text))
        # The years 1 and 9999 have no neighbours to be converted to.
        return moment if moment.tzinfo is not None else moment.astimezone()
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{shown} is neither a length of time such as 24h nor a date or time such as"
            " 2026-10-01T12:00"
        ) from None
