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
JSON_SCHEMA: Final = "hamiregion/report/2"
_TEXT_LIMIT: Final = 253

# Spreadsheets take a cell that begins so for a formula; full-width forms are read as the same. In
# some countries they divide lines at semicolons, and see no quotes within what they divide.
_FORMULA = re.compile(r"""(^|[,;\t])(?=[\s"]*[=+\-@\uff1d\uff0b\uff0d\uff20])""")
_COLUMNS: Final = tuple(field.name for field in attrs.fields(Usage) if field.name != "timeline")


def report_csv(report: Report) -> str:
    """Write the rows of a report as CSV (RFC 4180): lines end with CRLF, the first has the names.

    One row per container and device, or whatever `Report.by` says, and last the total: ``level``
    says which. The other columns are the fields of `Usage` but its timeline. Times are UTC in ISO
    8601 (``peak_at``, for ``peak_at_ms``), and what is not known is empty. What a spreadsheet would
    take for a formula has a ``'`` before it, also within a text, after each character at which it
    may divide the line.
    """
    lines = io.StringIO(newline="")
    writer = csv.writer(lines, lineterminator="\r\n")
    writer.writerow(["level", *(name.removesuffix("_ms") for name in _COLUMNS)])
    totals = () if report.total is None else (("total", report.total),)
    for level, row in (*((report.by, row) for row in report.rows), *totals):
        writer.writerow([level, *(_cell(name, getattr(row, name)) for name in _COLUMNS)])
    return lines.getvalue()


def report_json(report: Report) -> dict[str, Any]:
    """Turn a report into one object for JSON: ``schema``, and the fields of `Report` by name.

    `Report.allocations` and `.devices` are left out: make a report with another `by` for those.
    Times are Unix milliseconds; None is unknown, or unlimited where a limit is meant.
    """
    plain = attrs.asdict(attrs.evolve(report, allocations=(), devices=()))
    del plain["allocations"], plain["devices"]
    return {"schema": JSON_SCHEMA, **plain}


def _cell(name: str, value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, str):
        return _FORMULA.sub(r"\1'", printable(value, _TEXT_LIMIT))
    if isinstance(value, float):
        return round(value, 6)
    if name.endswith("_ms") and isinstance(value, int):
        moment = dt.datetime.fromtimestamp(value / 1000, tz=dt.timezone.utc)
        return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
    return value
