"""Figures and names of a report, as they stand on a page."""

from __future__ import annotations

import datetime as dt
from html import escape
from typing import TYPE_CHECKING

from libhamiregion.text import printable
from libhamiregion.units import format_size

if TYPE_CHECKING:
    from .models import Usage

NOTHING = "\u2013"
UNKNOWN = "not known"
_NAME_LIMIT = 80


def text(raw: str | None, missing: str = UNKNOWN, *, limit: int = _NAME_LIMIT) -> str:
    """A name from outside, on one line, cut, and escaped for HTML."""
    return escape(missing if raw is None else printable(raw, limit))


def size(nbytes: int | None, missing: str = "unlimited") -> str:
    """Bytes; None is unlimited unless said otherwise."""
    return missing if nbytes is None else format_size(nbytes).replace(" ", "\u00a0")


def number(value: float | None, digits: int = 0) -> str:
    """A number with its thousands apart; small ones keep a digit that says something.

    >>> number(12345.6), number(9.26), number(0.04)
    ('12,346', '9.3', '0.04')
    """
    if value is None:
        return NOTHING
    if value and abs(value) < 10:
        digits = max(digits, 1)
        if abs(value) < 0.1:
            digits = max(digits, 2)
    return f"{value:,.{digits}f}"


def hours(value: float | None) -> str:
    """A length of time.

    >>> hours(0.5), hours(5.26), hours(30), hours(80), hours(0), hours(0.001)
    ('30 min', '5.3 h', '30 h', '3.3 d', '0 h', '4 s')
    """
    if value is None:
        return NOTHING
    if not value:
        return "0 h"
    if value < 1 / 60:
        return f"{value * 3600:.0f} s"
    if value < 1:
        return f"{value * 60:.0f} min"
    if value >= 72:
        return f"{value / 24:,.1f} d"
    return f"{value:.1f} h" if value < 10 else f"{value:.0f} h"


def share(part: float | None, whole: float | None) -> str:
    """A part of a whole in percent; nothing where there is no whole.

    >>> share(1, 3), share(0, 3), share(1, 10_000)
    ('33 %', '0 %', '<1 %')
    """
    if part is None or not whole:
        return NOTHING
    percent = round(100 * part / whole, 6)
    if 0 < percent < 1:
        return "<1 %"
    if 99 < percent < 100:
        return ">99 %"
    return f"{percent:.0f} %"


def counted(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun.

    >>> counted(1, "device"), counted(1200, "device")
    ('1 device', '1,200 devices')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


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

    def zone_name(self, moment_ms: int) -> str:
        """Such as ``UTC``, or ``CEST, UTC+02:00``."""
        at = self.at(moment_ms)
        name, offset = at.tzname() or "", f"UTC{at:%z}"
        offset = "UTC" if offset == "UTC+0000" else f"{offset[:-2]}:{offset[-2:]}"
        return offset if name in {"", "UTC"} or name.startswith("UTC") else f"{name}, {offset}"


# Not those of the locale: the page's other words are English, too.
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def pod_words(row: Usage) -> str:
    """A row's pod, or its UID; escaped."""
    return text(row.pod or row.pod_uid)


def device_words(uuid: str | None) -> str:
    """A uuid as short as people use it, the whole of it on hovering; escaped.

    >>> device_words("GPU-1a2b3c4d-0000-1111-2222-333344445555")
    '<span title="GPU-1a2b3c4d-0000-1111-2222-333344445555">GPU-1a2b3c4d</span>'
    """
    if uuid is None:
        return UNKNOWN
    short = "-".join(uuid.split("-")[:2])
    return f'<span title="{text(uuid)}">{text(short)}</span>'
