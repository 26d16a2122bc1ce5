"""Figures and moments of a report, as people read them."""

from __future__ import annotations

import datetime as dt
from typing import Final

from libhamiregion.units import format_size

NOTHING: Final = "\u2013"
# Not those of the locale: the page's other words are English, too.
_MONTHS: Final = [
    "Jan",
    "Feb",
    "Mar",
    "Apr",
    "May",
    "Jun",
    "Jul",
    "Aug",
    "Sep",
    "Oct",
    "Nov",
    "Dec",
]


def size(nbytes: int | None) -> str:
    """Bytes; None is unlimited."""
    return "unlimited" if nbytes is None else format_size(nbytes)


def number(value: float | None, digits: int = 0) -> str:
    """A number with its thousands apart; small ones keep a digit that says something.

    >>> number(12345.6), number(9.26), number(0.04)
    ('12,346', '9.3', '0.04')
    """
    if value is None:
        return NOTHING
    if value and abs(value) < 10:
        digits = max(digits, 2 if abs(value) < 0.1 else 1)
    return f"{value:,.{digits}f}"


def hours(value: float | None) -> str:
    """A length of time.

    >>> hours(0.5), hours(5.26), hours(30), hours(80), hours(0), hours(0.001)
    ('30 min', '5.3 h', '30 h', '3.3 d', '0 h', '4 s')
    """
    if value is None:
        return NOTHING
    if value >= 72:
        return f"{value / 24:,.1f} d"
    if value >= 1 or not value:
        return f"{value:.1f} h" if 0 < value < 10 else f"{value:.0f} h"
    return f"{value * 60:.0f} min" if value >= 1 / 60 else f"{value * 3600:.0f} s"


def share(part: float | None, whole: float | None) -> str:
    """A part of a whole in percent.

    >>> share(1, 3), share(0, 3), share(1, 10_000)
    ('33 %', '0 %', '<1 %')
    """
    if part is None or not whole:
        return NOTHING
    percent = round(100 * part / whole, 6)
    if 0 < percent < 1:
        return "<1 %"
    return ">99 %" if 99 < percent < 100 else f"{percent:.0f} %"


def counted(count: int, noun: str) -> str:
    """A count with its noun.

    >>> counted(1, "device"), counted(1200, "device")
    ('1 device', '1,200 devices')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class Times:
    """Moments in one time zone.

    Args:
        zone: None is the local one.
    """

    def __init__(self, zone: dt.tzinfo | None = None) -> None:
        self._zone = zone

    def at(self, moment_ms: int) -> dt.datetime:
        """The moment as a date and time."""
        utc = dt.datetime.fromtimestamp(moment_ms / 1000, tz=dt.timezone.utc)
        return utc.astimezone(self._zone)

    def midnight_ms(self, day: dt.date) -> int:
        """When a day begins."""
        midnight = dt.datetime(day.year, day.month, day.day, tzinfo=self._zone)
        return round(midnight.timestamp() * 1000)

    def full(self, moment_ms: int) -> str:
        """Such as ``1 Oct 2026, 12:30``."""
        return f"{self.day(moment_ms)} {self.at(moment_ms):%Y, %H:%M}"

    def short(self, moment_ms: int) -> str:
        """Such as ``1 Oct 12:30``."""
        return f"{self.day(moment_ms)} {self.clock(moment_ms)}"

    def day(self, moment_ms: int) -> str:
        """Such as ``1 Oct``."""
        at = self.at(moment_ms)
        return f"{at.day} {_MONTHS[at.month - 1]}"

    def clock(self, moment_ms: int) -> str:
        """Such as ``12:30``."""
        return f"{self.at(moment_ms):%H:%M}"

    def seconds(self, moment_ms: int) -> str:
        """Such as ``12:30:05``."""
        return f"{self.at(moment_ms):%H:%M:%S}"

    def zone_name(self, moment_ms: int) -> str:
        """Such as ``UTC``, or ``CEST, UTC+02:00``."""
        at = self.at(moment_ms)
        name, offset = at.tzname() or "", f"{at:%z}"
        offset = "UTC" if offset == "+0000" else f"UTC{offset[:3]}:{offset[3:5]}"
        return offset if not name or name.startswith("UTC") else f"{name}, {offset}"
