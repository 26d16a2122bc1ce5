"""A report as a table: on a terminal, or as plain aligned text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from libhamiregion.report.words import Times, share

from .node_words import shortened, word
from .plain import aligned, size_word
from .render import QUIET, columns, memory_bar, ratio_style
from .wording import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from libhamiregion.report import Report, Usage

_NAMES: dict[str, Callable[[Usage], str]] = {
    "NAMESPACE": lambda row: _word(row.namespace),
    "POD": lambda row: _word(row.pod or row.pod_uid),
    "CONTAINER": lambda row: _word(row.container),
    "DEVICE": lambda row: str(row.device_index),
    "UUID": lambda row: _word(row.device_uuid),
}
_FIGURES: dict[str, Callable[[Usage], str]] = {
    "LIMIT": lambda row: size_word(row.memory_limit_bytes),
    "AVERAGE": lambda row: size_word(row.memory_average_bytes),
    "P95": lambda row: size_word(row.memory_p95_bytes),
    "PEAK": lambda row: size_word(row.memory_peak_bytes),
    "GPU-H-BUSY": lambda row: _hours(row.busy_gpu_hours),
    "H-HELD": lambda row: _hours(row.device_hours),
    "H-UNUSED": lambda row: _hours(row.unused_hours),
}
_LEVELS = {
    "namespace": ("NAMESPACE",),
    "pod": ("NAMESPACE", "POD"),
    "container": ("NAMESPACE", "POD", "CONTAINER", "DEVICE"),
    "device": ("UUID",),
}


def report_lines(report: Report) -> str:
    """Plain text: a heading, then a table whose cells are single words."""
    names, figures = _columns(report)
    rows = [[*names, *figures]]
    rows += [[cell(row) for cell in (*names.values(), *figures.values())] for row in report.rows]
    return f"{_heading(report)}\n\n{aligned(rows)}"


def report_table(report: Report) -> Group:
    """A heading, then a table with bars, for a terminal."""
    names, figures = _columns(report)
    table = columns()
    for name in names:
        table.add_column(name.lower(), min_width=5)
    table.add_column("peak of limit")
    for figure in figures:
        table.add_column(figure.lower().replace("-", " "), justify="right", no_wrap=True)
    for row in report.rows:
        limit = row.memory_limit_bytes
        ratio = None if limit is None else row.memory_peak_bytes / limit
        cells: list[RenderableType] = [shortened(cell(row)) for cell in names.values()]
        cells.append(memory_bar(ratio, width=12))
        cells += [
            Text(cell(row), style=ratio_style(ratio) if figure == "PEAK" else "")
            for figure, cell in figures.items()
        ]
        table.add_row(*cells)
    return Group(Text(_heading(report), style=QUIET), "", table)


def _columns(
    report: Report,
) -> tuple[dict[str, Callable[[Usage], str]], dict[str, Callable[[Usage], str]]]:
    figures = dict(_FIGURES)
    if report.by == "container":
        figures["SUGGESTED"] = _suggested
    return {name: _NAMES[name] for name in _LEVELS[report.by]}, figures


def _heading(report: Report) -> str:
    times = Times()
    return (
        f"{times.full(report.since_ms)} to {times.full(report.until_ms)}"
        f" ({times.zone_name(report.until_ms)}), {share(report.coverage.ratio, 1)} recorded"
    )


def _word(name: str | None) -> str:
    return NOTHING if name is None else word(name)


def _hours(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def _suggested(row: Usage) -> str:
    limit = None if row.suggestion is None else row.suggestion.limit_bytes
    return NOTHING if limit is None else size_word(limit)
