"""Containers, groups of them, and devices, on a report's page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .cells import cut, memory_legend, peak_bar, table, where
from .charts import memory_chart, small_memory_chart
from .words import NOTHING, counted, device_words, hours, number, share, size, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .cells import Page
    from .models import Coverage, Report, Usage

# A page is for looking at: it stays below some 1.5 MiB whatever the node has.
_SMALL_CHARTS: Final = 24
_GROUPS_SHOWN: Final = 20
_GROUP_LINES: Final = 50
_LINES: Final = 1_000
_DEVICE_LINES: Final = 250

KINDS: Final = {
    "namespace": "Namespaces",
    "pod": "Pods",
    "device": "Containers by device",
    "container": "Containers",
}
_VERDICTS: Final = {
    "keep": "keep",
    "unused": "never used",
    "too_little_seen": "seen too shortly",
}


def _held(row: Usage) -> float:
    return -max(row.limit_gib_hours, row.used_gib_hours)


# ---- small multiples -----------------------------------------------------------------------------


def small_multiples(page: Page) -> str:
    """Small charts of the allocations that held most."""
    report = page.report
    rows = sorted((row for row in report.allocations if row.timeline is not None), key=_held)
    if not rows:
        return ""
    cards = "".join(_card(row, report.coverage) for row in rows[:_SMALL_CHARTS])
    which = (
        f" The {_SMALL_CHARTS} of {len(rows):,} that held most over time."
        if len(rows) > _SMALL_CHARTS
        else ""
    )
    return (
        '<h2 id="many">Memory by container</h2><p class="note">Each from zero to its own highest'
        f" limit or use.{which}</p>{memory_legend(report.coverage)}"
        f'<div class="grid">{cards}</div>'
    )


def _card(row: Usage, gaps: Coverage) -> str:
    assert row.timeline is not None  # noqa: S101 (chosen for it)
    chart = small_memory_chart(row.timeline, f"memory of {row.container}, {row.pod}", gaps=gaps)
    busy = ""
    if row.busy_gpu_hours is not None:
        part = share(row.busy_gpu_hours, row.device_hours)
        busy = f', <span class="whole">GPU busy {part}</span>'
    return (
        f'<div class="panel card"><h3>{text(row.container)} <span class="soft">device'
        f' {row.device_index}</span></h3><p class="where">{where(row)}</p>{chart}'
        f"<p>peak {size(row.memory_peak_bytes)} of {size(row.memory_limit_bytes)}<br>average"
        f" {size(row.memory_average_bytes)}{busy}</p></div>"
    )


# ---- groups --------------------------------------------------------------------------------------


def groups(page: Page) -> Iterator[str]:
    """One section per namespace, pod or device, with its chart and its allocations."""
    report = page.report
    yield f'<h2 id="groups">{KINDS[report.by]}</h2>'
    if report.by == "container":
        yield f'<section class="group panel">{_lines(page, report.allocations, _LINES)}</section>'
        return
    ranked = sorted(report.rows, key=_held)
    members = _members(report)
    if len(ranked) > _GROUPS_SHOWN:
        yield (
            f'<p class="note">The {_GROUPS_SHOWN} of {len(ranked):,} that held most over time;'
            " all of them are in CSV and JSON.</p>"
        )
    left = _LINES
    for group in ranked[:_GROUPS_SHOWN]:
        rows = members.get(_group_key(report, group), [])
        shown = min(len(rows), left, _GROUP_LINES)
        left -= shown
        chart = ""
        if group.timeline is not None:
            name = "memory used and limits"
            chart = memory_chart(group.timeline, name, gaps=report.coverage, times=page.times)
        yield (
            f'<section class="group panel"><div class="head"><h3>{_group_name(report, group)}</h3>'
            f"<span>{_group_figures(group)}</span></div>{chart}{_lines(page, rows, shown)}"
            "</section>"
        )


def _members(report: Report) -> dict[tuple[str | None, ...], list[Usage]]:
    found: dict[tuple[str | None, ...], list[Usage]] = {}
    for row in sorted(report.allocations, key=_held):
        found.setdefault(_group_key(report, row), []).append(row)
    return found


def _group_key(report: Report, row: Usage) -> tuple[str | None, ...]:
    if report.by == "namespace":
        return (row.namespace,)
    if report.by == "device":
        return (row.device_uuid,)
    return (row.namespace, row.pod, row.pod_uid)


def _group_name(report: Report, row: Usage) -> str:
    if report.by == "namespace":
        return text(row.namespace, "no namespace")
    if report.by == "device":
        return text(row.device_uuid)
    return where(row)


def _group_figures(row: Usage) -> str:
    busy = ""
    if row.busy_gpu_hours is not None:
        of = "" if row.allocated_gpu_hours is None else f" of {number(row.allocated_gpu_hours)}"
        busy = f", {number(row.busy_gpu_hours)}{of} GPU hours busy"
    return (
        f"{counted(row.allocations, 'allocation')}, peak {size(row.memory_peak_bytes)} of"
        f" {size(row.memory_limit_bytes)}{busy}"
    )


def _lines(page: Page, rows: Sequence[Usage], most: int) -> str:
    head = ("Container", "Device", "Limit", "Average", "95 %", "Peak", "Peak of limit")
    lines = [
        [
            page.name(row),
            device_words(row.device_uuid),
            size(row.memory_limit_bytes),
            size(row.memory_average_bytes),
            size(row.memory_p95_bytes),
            size(row.memory_peak_bytes),
            peak_bar(row),
            number(row.busy_gpu_hours),
            hours(row.unused_hours) if row.unused_hours else NOTHING,
            _verdict(row),
        ]
        for row in rows[:most]
    ]
    more = ""
    if len(rows) > most:
        more = (
            f'<p class="soft small-text">{counted(len(rows) - most, "more line")} in CSV and'
            " JSON.</p>"
        )
    if not lines:
        return more
    return table((*head, "GPU h busy", "Unused", "Suggested"), lines, "ttrrrrgrrr") + more


def _verdict(row: Usage) -> str:
    suggestion = row.suggestion
    if suggestion is None:
        return ""
    if suggestion.verdict in _VERDICTS:
        return f'<span class="soft">{_VERDICTS[suggestion.verdict]}</span>'
    return size(suggestion.limit_bytes)


# ---- devices -------------------------------------------------------------------------------------


def devices(page: Page) -> str:
    """All GPUs and MIG devices."""
    knows = page.report.facts.knows_sm_limits
    head = ("Device", "Containers", "Limits, highest", "Average", "95 %", "Peak", "Peak of limits")
    ranked = sorted(page.report.devices, key=lambda row: -row.used_gib_hours)
    lines = [
        [
            text(row.device_uuid),
            f"{row.allocations:,}",
            size(row.memory_limit_bytes),
            size(row.memory_average_bytes),
            size(row.memory_p95_bytes),
            size(row.memory_peak_bytes),
            peak_bar(row),
            number(row.allocated_gpu_hours if knows else row.device_hours),
            number(row.busy_gpu_hours),
        ]
        for row in ranked[:_DEVICE_LINES]
    ]
    if not lines:
        return ""
    held = "GPU h allocated" if knows else "Device h held"
    return (
        '<h2 id="devices">Devices</h2><p class="note">Sums over the containers that hold a part of'
        f" the device.{cut(ranked, _DEVICE_LINES)}</p>"
        f'<div class="panel">{table((*head, held, "GPU h busy"), lines, "trrrrrgrr")}</div>'
    )
