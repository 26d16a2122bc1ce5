"""A report as CSV, for spreadsheets, and as JSON, for programs."""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
from typing import TYPE_CHECKING, Any, Final

import attrs

from libhamiregion.text import printable

from .models import Usage

if TYPE_CHECKING:
    from .models import Report

#: Changes whenever a key of the JSON, or what it means, does.
JSON_SCHEMA: Final = "hamiregion-report/1"

# Spreadsheets take a cell that begins so for a formula; full-width forms are read as the same. In
# some countries they divide lines at semicolons, and see no quotes within what they divide.
_FORMULA = re.compile(r"""(^|[,;\t])(?=[\s"]*[=+\-@\uff1d\uff0b\uff0d\uff20])""")
_TEXTS = ("namespace", "pod", "container", "pod_uid", "device_uuid")
_LEFT_OUT = ("suggestion", "timeline")
_COLUMNS: Final = tuple(field.name for field in attrs.fields(Usage) if field.name not in _LEFT_OUT)
_SUGGESTED: Final = ("suggestion", "suggested_limit_bytes", "suggested_change_bytes")


def report_csv(report: Report) -> str:
    """The rows of a report as CSV (RFC 4180): lines end with CRLF, the first has the names.

    One row per container and device, or whatever `Report.by` says. Columns are the fields of
    `Usage` but its timeline; times are UTC in ISO 8601 (``peak_at``, for ``peak_at_ms``), and what
    is not known is empty. What a spreadsheet would take for a formula has a ``'`` before it, also
    within a text, after each character at which it may divide the line.
    """
    lines = io.StringIO(newline="")
    writer = csv.writer(lines, lineterminator="\r\n")
    writer.writerow([*(name.removesuffix("_ms") for name in _COLUMNS), *_SUGGESTED])
    for row in report.rows:
        suggestion = row.suggestion
        writer.writerow(
            [
                *(_cell(name, getattr(row, name)) for name in _COLUMNS),
                "" if suggestion is None else suggestion.verdict,
                _cell("", None if suggestion is None else suggestion.limit_bytes),
                _cell("", None if suggestion is None else suggestion.change_bytes),
            ]
        )
    return lines.getvalue()


def report_json(report: Report) -> dict[str, Any]:
    """A report as one object for JSON: ``schema``, and the fields of `Report` as they are named.

    `Report.allocations`, `.namespaces` and `.devices` are left out: make a report with another `by`
    for those. Times are Unix milliseconds; None is unknown, or unlimited where a limit is meant.
    """
    plain = attrs.asdict(attrs.evolve(report, allocations=(), namespaces=(), devices=()))
    for left_out in ("allocations", "namespaces", "devices"):
        del plain[left_out]
    return {"schema": JSON_SCHEMA, **plain}


def _cell(name: str, value: object) -> object:
    if value is None:
        return ""
    if name in _TEXTS:
        return _FORMULA.sub(r"\1'", printable(str(value)))
    if isinstance(value, float):
        return round(value, 6)
    if name.endswith("_ms") and isinstance(value, int):
        return iso_utc(value)
    return value


def iso_utc(moment_ms: int) -> str:
    """A moment in ISO 8601, UTC.

    >>> iso_utc(1_790_000_000_000)
    '2026-09-21T14:13:20Z'
    """
    moment = dt.datetime.fromtimestamp(moment_ms / 1000, tz=dt.timezone.utc)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
