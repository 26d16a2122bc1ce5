"""A report as a table: on a terminal, or as plain aligned text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from libhamiregion.report.words import NOTHING as DASH
from libhamiregion.report.words import Times, hours, number, share

from .node_words import shortened, word
from .plain import aligned, size_word
from .render import QUIET, columns, memory_bar, ratio_style
from .wording import NOTHING, memory_words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from libhamiregion.report import Report, Usage

_IDENTITY = {
    "namespace": ("NAMESPACE",),
    "pod": ("NAMESPACE", "POD"),
    "container": ("NAMESPACE", "POD", "CONTAINER", "DEVICE"),
    "device": ("UUID",),
}
_FIGURES = ("LIMIT", "AVERAGE", "P95", "PEAK", "GPU-HOURS-BUSY", "HOURS", "HOURS-UNUSED")


def report_lines(report: Report) -> str:
    """Plain text: a heading, then a table whose cells are single words."""
    figures = (*_FIGURES, "SUGGESTED") if report.by == "container" else _FIGURES
    rows = [[*_IDENTITY[report.by], *figures]]
    for row in report.rows:
        cells = [
            *_identity(report, row),
            size_word(row.memory_limit_bytes),
            size_word(row.memory_average_bytes),
            size_word(row.memory_p95_bytes),
            size_word(row.memory_peak_bytes),
            NOTHING if row.busy_gpu_hours is None else f"{row.busy_gpu_hours:.2f}",
            f"{row.device_hours:.2f}",
            f"{row.unused_hours:.2f}",
        ]
        if report.by == "container":
            cells.append(_suggested(row))
        rows.append(cells)
    return f"{_heading(report)}\n\n{aligned(rows)}"


def report_table(report: Report) -> RenderableType:
    """The same with bars, for a terminal."""
    table = columns()
    for name in _IDENTITY[report.by]:
        table.add_column(name.lower(), min_width=5)
    table.add_column("peak of limit")
    for name in ("limit", "average", "95 %", "peak", "GPU h busy", "unused"):
        table.add_column(name, justify="right", no_wrap=True)
    if report.by == "container":
        table.add_column("suggested", justify="right", no_wrap=True)
    for row in report.rows:
        limit = row.memory_limit_bytes
        ratio = None if limit is None else row.memory_peak_bytes / limit
        cells: list[RenderableType] = [shortened(each) for each in _identity(report, row)]
        cells += [
            memory_bar(ratio, width=12),
            memory_words(limit),
            memory_words(row.memory_average_bytes),
            memory_words(row.memory_p95_bytes),
            Text(memory_words(row.memory_peak_bytes), style=ratio_style(ratio)),
            number(row.busy_gpu_hours).replace(DASH, NOTHING),
            hours(row.unused_hours) if row.unused_hours else Text(NOTHING, style=QUIET),
        ]
        if report.by == "container":
            cells.append(_suggested(row))
        table.add_row(*cells)
    return Group(Text(_heading(report), style=QUIET), "", table)


def _heading(report: Report) -> str:
    times = Times()
    return (
        f"{times.full(report.since_ms)} to {times.full(report.until_ms)}"
        f" ({times.zone_name(report.until_ms)}), {share(report.coverage.ratio, 1)} recorded"
    )


def _identity(report: Report, row: Usage) -> list[str]:
    if report.by == "device":
        return [_word(row.device_uuid)]
    words = [_word(row.namespace)]
    if report.by != "namespace":
        words.append(_word(row.pod or row.pod_uid))
    if report.by == "container":
        words += [_word(row.container), str(row.device_index)]
    return words


def _word(name: str | None) -> str:
    return NOTHING if name is None else word(name)


def _suggested(row: Usage) -> str:
    suggestion = row.suggestion
    if suggestion is None or suggestion.limit_bytes is None:
        return NOTHING
    return size_word(suggestion.limit_bytes)
