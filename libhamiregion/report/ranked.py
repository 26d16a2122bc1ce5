"""Ranked tables of a report's page: what to look at first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cells import GIB_HOURS, RANKED, change, cut, table
from .charts import limit_bullet, share_bar
from .words import device_words, hours, number, share, size

if TYPE_CHECKING:
    from .cells import Page
    from .models import Usage


def idle(page: Page) -> str:
    """Allocations by what they held while they used nothing."""
    rows = [row for row in page.report.allocations if row.unused_hours]
    rows.sort(key=lambda row: (-row.unused_gib_hours, -row.unused_hours))
    start = '<h2 id="idle">Held and not used</h2>'
    if not rows:
        return f'{start}<p class="note">Every allocation used memory whenever it was seen.</p>'
    most = rows[0].unused_gib_hours or 1
    lines = []
    for row in rows[:RANKED]:
        part = share(row.unused_hours, row.device_hours)
        lines.append(
            [
                page.name(row),
                device_words(row.device_uuid),
                size(row.memory_limit_bytes),
                f'{hours(row.unused_hours)} <span class="soft">{part}</span>',
                hours(row.unused_longest_hours),
                _last_used(page, row),
                number(row.unused_gib_hours),
                share_bar(row.unused_gib_hours / most, "unused"),
            ]
        )
    head = ["Container", "Device", "Limit", "Unused for", "Longest", "Last used", GIB_HOURS, ""]
    return (
        f'{start}<p class="note">A limit was set aside and no memory at all was in use, ranked by'
        f" the limit times that time.{cut(rows, RANKED)}</p>"
        f'<div class="panel">{table(head, lines, "ttrrrrrg")}</div>'
    )


def _last_used(page: Page, row: Usage) -> str:
    if row.last_used_ms is None:
        return "never"
    return "in use" if row.last_used_ms >= page.end_ms else page.times.short(row.last_used_ms)


def suggestions(page: Page) -> str:
    """Memory limits that would do, by how much they would change."""
    rows = [
        row
        for row in page.report.allocations
        if row.suggestion is not None and row.suggestion.verdict in {"lower", "raise", "limit"}
    ]
    # What is there still can be changed; what has no limit yet comes last.
    rows.sort(key=lambda row: (not page.is_there(row), *_by_change(row)))
    policy = page.report.policy
    start = '<h2 id="limits">Suggested limits</h2>'
    bound = "it may be" if policy.below_peak else "it is never"
    how = (
        f"The 99th percentile of the memory used, plus {number(policy.headroom * 100)} %, rounded"
        f" up to {size(policy.round_to_bytes)}; {bound} below the highest use seen. Programs that"
        " take all memory they can get (vLLM, JAX, TensorFlow) look full at any limit: ask their"
        " owners."
    )
    if not rows:
        return f'{start}<p class="note">No limit needs to change. {how}</p>'
    lines = [
        [
            page.name(row),
            device_words(row.device_uuid),
            size(row.memory_limit_bytes),
            size(row.memory_p99_bytes),
            size(row.memory_peak_bytes),
            f"<strong>{size(suggestion.limit_bytes)}</strong>",
            change(suggestion.change_bytes),
            limit_bullet(
                row.memory_limit_bytes,
                row.memory_p99_bytes,
                row.memory_peak_bytes,
                suggestion.limit_bytes or 0,
            ),
        ]
        for row in rows[:RANKED]
        if (suggestion := row.suggestion) is not None
    ]
    head = ["Container", "Device", "Limit", "99 %", "Peak", "Suggested", "Change", ""]
    return (
        f'{start}<p class="note">{how}{cut(rows, RANKED)}</p>'
        '<div class="panel"><div class="legend"><span><i class="k-bar"></i>limit</span>'
        '<span><i class="k-used"></i>99th percentile</span>'
        '<span><i class="m k-mark"></i>peak</span><span><i class="m k-advice"></i>suggested</span>'
        f"</div>{table(head, lines, 'ttrrrrrg')}</div>"
    )


def _by_change(row: Usage) -> tuple[bool, int]:
    by = None if row.suggestion is None else row.suggestion.change_bytes
    return (by is None, -abs(by or 0))


def leftovers(page: Page) -> str:
    """Memory that is counted for processes that live no more."""
    rows = [row for row in page.report.allocations if row.leftover_hours]
    if not rows:
        return ""
    rows.sort(key=lambda row: -(row.leftover_hours or 0))
    lines = [
        [
            page.name(row),
            device_words(row.device_uuid),
            hours(row.leftover_hours),
            size(row.memory_peak_bytes),
        ]
        for row in rows[:RANKED]
    ]
    return (
        '<h2 id="left">Counted for nobody</h2><p class="note">Memory was counted against the limit'
        " while no process of the container was alive; <code>hamiregion doctor</code> tells why."
        f"{cut(rows, RANKED)}</p>"
        f'<div class="panel">{table(["Container", "Device", "For", "Peak"], lines, "ttrr")}</div>'
    )
