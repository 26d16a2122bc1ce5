"""A report as one page of HTML: charts inline, nothing loaded, no scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from libhamiregion import __version__

from . import report_sections as sections
from .report_charts import coverage_strip, gpu_chart, memory_chart
from .report_style import STYLE
from .report_words import Times, counted, hours, number, share, size, text

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator

    from .report_models import Report, Usage

#: Steps of the charts over time.
CHART_POINTS: Final = 240

# Nothing may be loaded and nothing may run; styles are the page's own.
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)

_GIB_HOURS: Final = "GiB\u00b7h"


def report_html(report: Report, *, zone: dt.tzinfo | None = None) -> str:
    """A report as a page to look at and to print: one file, which loads nothing and runs nothing.

    Args:
        report: Made with ``points=CHART_POINTS``, or there are no charts.
        zone: The time zone of its times; None is the local one.

    What is too much for a page is left to CSV and JSON, and the page says so: it shows 24 small
    charts, 20 groups with a chart each, and 1,000 lines of tables, about 1.5 MiB at most.
    """
    times = Times(zone)
    node = report.facts.node
    title = "GPU report" if node is None else f"GPU report: {node}"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        # Without one, browsers ask the server for /favicon.ico.
        '<link rel="icon" href="data:,">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(_parts(report, title, times))
        + "\n</main>\n</body>\n</html>\n"
    )


def _parts(report: Report, title: str, times: Times) -> Iterator[str]:
    yield _header(report, title, times)
    if report.warnings:
        yield sections.warnings(report.warnings)
    total = report.total
    if total is None:
        yield '<p class="panel">Nothing was recorded in this time.</p>'
    else:
        yield _tiles(report, total, times)
        yield _over_time(report, total, times)
        yield sections.idle(report, times)
        yield sections.suggestions(report)
        yield sections.leftovers(report)
        yield sections.small_multiples(report)
        yield from sections.groups(report, times)
        yield sections.devices(report)
    yield sections.method(report, times)
    yield (
        f"<footer>Made {times.full(report.made_at_ms)} ({times.zone_name(report.made_at_ms)}) by"
        f" hamiregion {text(__version__)}.</footer>"
    )


def _header(report: Report, title: str, times: Times) -> str:
    since_ms, until_ms = report.since_ms, report.until_ms
    coverage = report.coverage
    whole = hours((until_ms - since_ms) / 3_600_000)
    what = "recording" if report.facts.kind == "recording" else "Prometheus at"
    links = "" if report.total is None else sections.navigation(report)
    return (
        f"<header><h1>{text(title)}</h1>"
        f'<p class="soft">{times.full(since_ms)} to {times.full(until_ms)}'
        f" ({times.zone_name(until_ms)}), {whole}. From the {what}"
        f" <code>{text(report.facts.source)}</code>.</p>"
        f"{coverage_strip(coverage, since_ms, until_ms)}"
        f'<p class="soft small-text">{share(coverage.ratio, 1)} of the time was recorded'
        f"{_gap_words(report)}.</p>{links}</header>"
    )


def _gap_words(report: Report) -> str:
    count = report.coverage.gap_count
    return f", with {counted(count, 'gap')}; they are hatched in the charts" if count else ""


def _tiles(report: Report, total: Usage, times: Times) -> str:
    rows = report.allocations
    pods = {(row.namespace, row.pod, row.pod_uid) for row in rows}
    containers = {(row.namespace, row.pod, row.pod_uid, row.container) for row in rows}
    unused = [row for row in rows if row.unused_since_ms is not None]
    freed = sum(
        -suggestion.change_bytes
        for row in rows
        if (suggestion := row.suggestion) is not None
        and suggestion.verdict == "lower"
        and suggestion.change_bytes is not None
    )
    held = sum(row.memory_limit_bytes or 0 for row in unused)
    limited = total.limit_gib_hours
    used_of_limited = sum(row.used_gib_hours for row in rows if row.limit_gib_hours)
    tiles = [
        (
            "Memory limits in use",
            share(used_of_limited, limited),
            f"{number(used_of_limited)} of {number(limited)} {_GIB_HOURS}",
        ),
        _busy_tile(total),
        (
            "Unused at the end",
            f"{len(unused):,} of {len(rows):,}",
            f"allocations, with {size(held)} of limits",
        ),
        ("Could be freed", size(freed), "by the limits suggested below"),
        (
            "Most memory in use",
            size(total.memory_peak_bytes),
            f"on {times.short(total.peak_at_ms)}",
        ),
        (
            "Containers",
            f"{len(containers):,}",
            f"in {counted(len(pods), 'pod')}, on {counted(len(report.devices), 'device')}",
        ),
    ]
    return (
        '<div class="tiles" id="summary">'
        + "".join(
            f'<div class="panel tile"><span class="what">{what}</span><b>{figure}</b>'
            f"<span>{words}</span></div>"
            for what, figure, words in tiles
        )
        + "</div>"
    )


def _busy_tile(total: Usage) -> tuple[str, str, str]:
    busy = number(total.busy_gpu_hours)
    if total.allocated_gpu_hours is None:
        return (
            "GPU hours busy",
            busy,
            f"while {number(total.device_hours)} device hours were held",
        )
    of = f"{busy} of {number(total.allocated_gpu_hours)} GPU hours allocated"
    return ("GPU time in use", share(total.busy_gpu_hours, total.allocated_gpu_hours), of)


def _over_time(report: Report, total: Usage, times: Times) -> str:
    timeline = total.timeline
    if timeline is None:
        return ""
    gaps = report.coverage
    charts = memory_chart(timeline, "memory used and limits, all together", gaps=gaps, times=times)
    if total.busy_gpu_hours is not None:
        charts += f"{sections.gpu_legend(report)}" + gpu_chart(
            timeline, "GPUs busy and allocated", gaps=gaps, times=times
        )
    return (
        '<h2 id="time">Over time</h2>'
        f'<div class="panel">{sections.memory_legend(gaps)}{charts}</div>'
    )
