"""A report as one page of HTML: charts inline, nothing loaded, no scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from libhamiregion import __version__

from . import groups as report_groups
from . import method as report_method
from . import ranked as report_ranked
from .cells import GIB_HOURS, Page, gpu_legend, memory_legend
from .charts import coverage_strip, gpu_chart, memory_chart
from .style import STYLE
from .words import Times, counted, hours, number, share, size, text

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Iterator

    from .models import Report, Usage

#: Steps of the charts over time.
CHART_POINTS: Final = 240

_HOUR_MS: Final = 3_600_000

# Nothing may be loaded and nothing may run; styles are the page's own.
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none';"
    " form-action 'none'"
)


def report_html(report: Report, *, zone: dt.tzinfo | None = None) -> str:
    """A report as a page to look at and to print: one file, which loads nothing and runs nothing.

    Args:
        report: Made with ``points=CHART_POINTS``, or there are no charts.
        zone: The time zone of its times; None is the local one.

    What is too much for a page is left to CSV and JSON, and the page says so: it shows 24 small
    charts, 20 groups with a chart each, and 1,000 lines of tables, about 1.5 MiB at most.
    """
    page = Page(report, Times(zone))
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
        + "\n".join(_parts(page, title))
        + "\n</main>\n</body>\n</html>\n"
    )


def _parts(page: Page, title: str) -> Iterator[str]:
    report = page.report
    yield _header(page, title)
    if report.warnings:
        yield report_method.warnings(report.warnings)
    if report.total is None:
        yield '<p class="panel">Nothing was recorded in this time.</p>'
    else:
        yield _tiles(page, report.total)
        yield _over_time(page, report.total)
        yield report_ranked.idle(page)
        yield report_ranked.suggestions(page)
        yield report_ranked.leftovers(page)
        yield report_groups.small_multiples(page)
        yield from report_groups.groups(page)
        yield report_groups.devices(page)
    yield report_method.method(page)
    made_ms = report.made_at_ms
    yield (
        f"<footer>Made {page.times.full(made_ms)} ({page.times.zone_name(made_ms)}) by hamiregion"
        f" {text(__version__)}.</footer>"
    )


def _header(page: Page, title: str) -> str:
    report, times = page.report, page.times
    since_ms, until_ms = report.since_ms, report.until_ms
    whole = hours((until_ms - since_ms) / _HOUR_MS)
    what = "recording" if report.facts.kind == "recording" else "Prometheus at"
    return (
        f"<header><h1>{text(title)}</h1>"
        f'<p class="soft">{times.full(since_ms)} to {times.full(until_ms)}'
        f" ({times.zone_name(until_ms)}), {whole}. From the {what}"
        f" <code>{text(report.facts.source, limit=300)}</code>.</p>"
        f"{coverage_strip(report.coverage, since_ms, until_ms)}"
        f'<p class="soft small-text">{share(report.coverage.ratio, 1)} of the time was recorded'
        f"{_gap_words(report)}.</p>{_navigation(report)}</header>"
    )


def _gap_words(report: Report) -> str:
    count = report.coverage.gap_count
    return f"; {counted(count, 'gap')}, hatched in the charts" if count else ""


def _navigation(report: Report) -> str:
    if report.total is None:
        return ""
    links = (
        ("time", "Over time"),
        ("idle", "Held and not used"),
        ("limits", "Suggested limits"),
        ("many", "Memory by container"),
        ("groups", report_groups.KINDS[report.by]),
        ("devices", "Devices"),
        ("method", "How it was measured"),
    )
    shown = "".join(f'<a href="#{target}">{words}</a>' for target, words in links)
    return f"<nav>{shown}</nav>"


def _tiles(page: Page, total: Usage) -> str:
    report = page.report
    rows = report.allocations
    there = [row for row in rows if page.is_there(row)]
    unused = [row for row in there if row.unused_since_ms is not None]
    held = sum(row.memory_limit_bytes or 0 for row in unused)
    used_of_limited = total.limited_used_gib_hours
    containers = {(row.namespace, row.pod, row.pod_uid, row.container) for row in rows}
    pods = {container[:3] for container in containers}
    tiles = (
        (
            "Memory limits in use",
            share(used_of_limited, total.limit_gib_hours),
            f"{number(used_of_limited)} of {number(total.limit_gib_hours)} {GIB_HOURS}",
        ),
        _busy_tile(total),
        (
            "Unused at the end",
            f"{len(unused):,} of {len(there):,}",
            f"allocations, with {size(held)} of limits",
        ),
        ("Could be freed", size(_freed(there)), "by the limits suggested below"),
        ("Most memory in use", size(total.memory_peak_bytes), page.times.short(total.peak_at_ms)),
        (
            "Containers",
            f"{len(containers):,}",
            f"in {counted(len(pods), 'pod')}, on {counted(len(report.devices), 'device')}",
        ),
    )
    shown = "".join(
        f'<div class="panel tile"><span class="what">{what}</span><b>{figure}</b>'
        f"<span>{words}</span></div>"
        for what, figure, words in tiles
    )
    return f'<div class="tiles" id="summary">{shown}</div>'


def _freed(rows: Iterable[Usage]) -> int:
    """What lower limits would give back, of what is there still."""
    return sum(
        -(suggestion.change_bytes or 0)
        for row in rows
        if (suggestion := row.suggestion) is not None and suggestion.verdict == "lower"
    )


def _busy_tile(total: Usage) -> tuple[str, str, str]:
    busy = number(total.busy_gpu_hours)
    if total.allocated_gpu_hours is None:
        return ("GPU hours busy", busy, f"in {number(total.device_hours)} device hours held")
    of = f"{busy} of {number(total.allocated_gpu_hours)} GPU hours allocated"
    return ("GPU time in use", share(total.busy_gpu_hours, total.allocated_gpu_hours), of)


def _over_time(page: Page, total: Usage) -> str:
    timeline = total.timeline
    if timeline is None:
        return ""
    gaps, times = page.report.coverage, page.times
    charts = memory_chart(timeline, "memory used and limits, all together", gaps=gaps, times=times)
    if total.busy_gpu_hours is not None:
        charts += gpu_legend(page.report)
        charts += gpu_chart(timeline, "GPUs busy and allocated", gaps=gaps, times=times)
    return f'<h2 id="time">Over time</h2><div class="panel">{memory_legend(gaps)}{charts}</div>'
