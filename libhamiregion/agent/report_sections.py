"""The sections of a report's page: who holds and does not use, what limits would do, and all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .report_charts import limit_bullet, memory_chart, share_bar, small_memory_chart
from .report_words import (
    NOTHING,
    counted,
    device_words,
    hours,
    number,
    pod_words,
    share,
    size,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .report_models import Coverage, Report, Usage
    from .report_words import Times

_RANKED: Final = 25
_SMALL_CHARTS: Final = 24
_GROUPS_SHOWN: Final = 20
_GROUP_LINES: Final = 50
_LINES: Final = 1_000
_GAPS_LISTED: Final = 40
_WARNINGS_SHOWN: Final = 20
_GIB_HOURS: Final = "GiB\u00b7h"

_VERDICTS: Final = {
    "lower": "lower",
    "raise": "raise",
    "keep": "keep",
    "limit": "set one",
    "unused": "never used",
    "too_little_seen": "seen too shortly",
}
_KINDS: Final = {
    "namespace": "Namespaces",
    "pod": "Pods",
    "device": "Devices",
    "container": "Containers",
}


def navigation(report: Report) -> str:
    """Links to the sections."""
    links = (
        ("time", "Over time"),
        ("idle", "Held and not used"),
        ("limits", "Suggested limits"),
        ("many", "Memory by container"),
        ("groups", _KINDS[report.by]),
        ("devices", "Devices"),
        ("method", "How it was measured"),
    )
    shown = "".join(f'<a href="#{target}">{words}</a>' for target, words in links)
    return f"<nav>{shown}</nav>"


def warnings(said: Sequence[str]) -> str:
    """What a reader should know first."""
    items = "".join(f"<li>{_sentence(each)}</li>" for each in said[:_WARNINGS_SHOWN])
    if len(said) > _WARNINGS_SHOWN:
        items += f"<li>and {len(said) - _WARNINGS_SHOWN:,} more</li>"
    return f'<div class="warnings"><strong>Note</strong><ul>{items}</ul></div>'


def memory_legend(coverage: Coverage) -> str:
    """The legend of memory charts."""
    gap = '<span><i class="k-gap"></i>not recorded</span>' if coverage.gap_count else ""
    return (
        '<div class="legend"><span><i class="k-used"></i>memory used, average</span>'
        '<span><i class="k-peak"></i>highest in each step</span>'
        f'<span><i class="l k-limit"></i>memory limits</span>{gap}</div>'
    )


def gpu_legend(report: Report) -> str:
    """The legend of the chart of GPUs."""
    allocated = '<span><i class="l k-allocated"></i>GPUs allocated by SM limits</span>'
    return (
        '<div class="legend" style="margin-top:22px">'
        '<span><i class="k-busy"></i>GPUs busy</span>'
        f"{allocated if report.facts.knows_sm_limits else ''}</div>"
    )


# ---- held and not used ---------------------------------------------------------------------------


def idle(report: Report, times: Times) -> str:
    """Allocations by what they held while they used nothing."""
    rows = [row for row in report.allocations if row.unused_hours]
    rows.sort(key=lambda row: (-row.unused_gib_hours, -row.unused_hours))
    start = '<h2 id="idle">Held and not used</h2>'
    if not rows:
        return f'{start}<p class="note">Every allocation used memory whenever it was seen.</p>'
    most = rows[0].unused_gib_hours or 1
    lines = [
        [
            _name(row),
            device_words(row.device_uuid),
            size(row.memory_limit_bytes),
            f"{hours(row.unused_hours)} <span class='soft'>"
            f"{share(row.unused_hours, row.device_hours)}</span>",
            hours(row.unused_longest_hours),
            "never" if row.last_used_ms is None else _last_used(row, report, times),
            number(row.unused_gib_hours),
            share_bar(row.unused_gib_hours / most, "unused"),
        ]
        for row in rows[:_RANKED]
    ]
    head = ["Container", "Device", "Limit", "Unused for", "Longest", "Last used", _GIB_HOURS, ""]
    return (
        f'{start}<p class="note">A limit was set aside and no memory at all was in use, ranked by'
        f" the limit times that time.{_cut(rows, _RANKED)}</p>"
        f'<div class="panel scroll">{_table(head, lines, "ttrrrrrg")}</div>'
    )


def _last_used(row: Usage, report: Report, times: Times) -> str:
    if row.unused_since_ms is None and row.last_used_ms == row.last_seen_ms:
        ended = row.last_seen_ms < report.until_ms - 1000
        return times.short(row.last_seen_ms) if ended else "in use"
    return times.short(row.last_used_ms or 0)


# ---- limits --------------------------------------------------------------------------------------


def suggestions(report: Report) -> str:
    """Memory limits that would do, by how much they would change."""
    rows = [
        row
        for row in report.allocations
        if row.suggestion is not None and row.suggestion.verdict in {"lower", "raise", "limit"}
    ]
    rows.sort(key=_by_change)
    policy = report.policy
    start = '<h2 id="limits">Suggested limits</h2>'
    peak = (
        "it may be below the highest use seen"
        if policy.below_peak
        else "it is never below the highest use seen"
    )
    how = (
        f"The 99th percentile of the memory used, plus {number(policy.headroom * 100)} %, rounded up"
        f" to {size(policy.round_to_bytes)}; {peak}. Programs that take all memory they can get"
        " (vLLM, JAX, TensorFlow) look full at any limit: ask their owners."
    )
    if not rows:
        return f'{start}<p class="note">No limit needs to change. {how}</p>'
    lines = [
        [
            _name(row),
            device_words(row.device_uuid),
            size(row.memory_limit_bytes),
            size(row.memory_p99_bytes),
            size(row.memory_peak_bytes),
            f"<strong>{size(row.suggestion.limit_bytes)}</strong>",
            _change(row.suggestion.change_bytes),
            limit_bullet(
                row.memory_limit_bytes,
                row.memory_p99_bytes,
                row.memory_peak_bytes,
                row.suggestion.limit_bytes or 0,
            ),
        ]
        for row in rows[:_RANKED]
        if row.suggestion is not None
    ]
    head = ["Container", "Device", "Limit", "99 %", "Peak", "Suggested", "Change", ""]
    return (
        f'{start}<p class="note">{how}{_cut(rows, _RANKED)}</p>'
        '<div class="panel scroll"><div class="legend"><span><i class="k-used"></i>99th'
        ' percentile</span><span>dark mark: peak</span><span><i class="l k-limit"></i>suggested'
        f"</span></div>{_table(head, lines, 'ttrrrrrg')}</div>"
    )


def _by_change(row: Usage) -> tuple[bool, int]:
    suggestion = row.suggestion
    change = None if suggestion is None else suggestion.change_bytes
    # What has no limit yet comes last.
    return (change is None, -abs(change or 0))


def leftovers(report: Report) -> str:
    """Memory that is counted for processes that live no more."""
    rows = [row for row in report.allocations if row.leftover_hours]
    if not rows:
        return ""
    rows.sort(key=lambda row: -(row.leftover_hours or 0))
    lines = [
        [
            _name(row),
            device_words(row.device_uuid),
            hours(row.leftover_hours),
            size(row.memory_peak_bytes),
        ]
        for row in rows[:_RANKED]
    ]
    return (
        '<h2 id="left">Counted for nobody</h2><p class="note">Memory was counted against the limit'
        " while no process of the container was alive; <code>hamiregion doctor</code> tells why."
        f"{_cut(rows, _RANKED)}</p>"
        f'<div class="panel scroll">{_table(["Container", "Device", "For", "Peak"], lines, "ttrr")}'
        "</div>"
    )


# ---- memory by container -------------------------------------------------------------------------


def small_multiples(report: Report) -> str:
    """Small charts of the allocations that held most."""
    rows = [row for row in report.allocations if row.timeline is not None]
    rows.sort(key=lambda row: -max(row.limit_gib_hours, row.used_gib_hours))
    if not rows:
        return ""
    cards = "".join(_card(row, report) for row in rows[:_SMALL_CHARTS])
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


def _card(row: Usage, report: Report) -> str:
    assert row.timeline is not None  # noqa: S101 (chosen for it)
    chart = small_memory_chart(
        row.timeline, f"memory of {row.container}, {row.pod}", gaps=report.coverage
    )
    where = " / ".join(part for part in (_namespace(row), pod_words(row)) if part)
    return (
        f'<div class="panel card"><h3>{text(row.container)} <span class="soft">device'
        f' {row.device_index}</span></h3><p class="where">{where}</p>{chart}'
        f"<p>peak {size(row.memory_peak_bytes)} of {size(row.memory_limit_bytes)}, average"
        f" {size(row.memory_average_bytes)}"
        f"{_busy_words(row)}</p></div>"
    )


def _busy_words(row: Usage) -> str:
    if row.busy_gpu_hours is None:
        return ""
    return f"<br>GPU busy {share(row.busy_gpu_hours, row.device_hours)} of the time"


# ---- groups --------------------------------------------------------------------------------------


def groups(report: Report, times: Times) -> Iterator[str]:
    """One section per namespace, pod or device, with its chart and its allocations."""
    yield f'<h2 id="groups">{_KINDS[report.by]}</h2>'
    left = _LINES
    if report.by == "container":
        yield f'<section class="group panel">{_lines(report.allocations, left)}</section>'
        return
    ranked = sorted(report.rows, key=lambda row: -max(row.limit_gib_hours, row.used_gib_hours))
    members = _members(report)
    if len(ranked) > _GROUPS_SHOWN:
        yield (
            f'<p class="note">The {_GROUPS_SHOWN} of {len(ranked):,} that held most over time;'
            " all of them are in CSV and JSON.</p>"
        )
    for group in ranked[:_GROUPS_SHOWN]:
        rows = members.get(_group_key(report, group), ())
        shown = min(len(rows), left, _GROUP_LINES)
        left -= shown
        chart = ""
        if group.timeline is not None:
            chart = memory_chart(
                group.timeline, "memory used and limits", gaps=report.coverage, times=times
            )
        yield (
            f'<section class="group panel"><div class="head"><h3>{_group_name(report, group)}</h3>'
            f"<span>{_group_figures(group)}</span></div>{chart}{_lines(rows, shown)}</section>"
        )


def _members(report: Report) -> dict[tuple[str | None, ...], list[Usage]]:
    found: dict[tuple[str | None, ...], list[Usage]] = {}
    for row in report.allocations:
        found.setdefault(_group_key(report, row), []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: -max(row.limit_gib_hours, row.used_gib_hours))
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
    return " / ".join(part for part in (_namespace(row), pod_words(row)) if part)


def _group_figures(row: Usage) -> str:
    busy = ""
    if row.busy_gpu_hours is not None:
        of = "" if row.allocated_gpu_hours is None else f" of {number(row.allocated_gpu_hours)}"
        busy = f", {number(row.busy_gpu_hours)}{of} GPU hours busy"
    return (
        f"{counted(row.allocations, 'allocation')}, peak {size(row.memory_peak_bytes)} of"
        f" {size(row.memory_limit_bytes)}{busy}"
    )


def _lines(rows: Sequence[Usage], most: int) -> str:
    head = [
        "Container",
        "Device",
        "Limit",
        "Average",
        "95 %",
        "Peak",
        "Peak of limit",
        "GPU h busy",
        "Unused",
        "Suggested",
    ]
    lines = [
        [
            _name(row),
            device_words(row.device_uuid),
            size(row.memory_limit_bytes),
            size(row.memory_average_bytes),
            size(row.memory_p95_bytes),
            size(row.memory_peak_bytes),
            _peak_bar(row),
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
    return f'<div class="scroll">{_table(head, lines, "ttrrrrgrrr")}</div>{more}'


def _peak_bar(row: Usage) -> str:
    if not row.memory_limit_bytes:
        return ""
    return share_bar(row.memory_peak_bytes / row.memory_limit_bytes)


def _verdict(row: Usage) -> str:
    suggestion = row.suggestion
    if suggestion is None:
        return ""
    if suggestion.limit_bytes is None or suggestion.verdict == "keep":
        return f'<span class="soft">{_VERDICTS[suggestion.verdict]}</span>'
    return size(suggestion.limit_bytes)


def devices(report: Report) -> str:
    """All GPUs and MIG devices."""
    head = ["Device", "Containers", "Limits, highest", "Average", "95 %", "Peak", ""]
    knows = report.facts.knows_sm_limits
    head += ["GPU h allocated", "GPU h busy"] if knows else ["Device h held", "GPU h busy"]
    ranked = sorted(report.devices, key=lambda row: -row.used_gib_hours)
    lines = [
        [
            text(row.device_uuid),
            f"{row.allocations:,}",
            size(row.memory_limit_bytes),
            size(row.memory_average_bytes),
            size(row.memory_p95_bytes),
            size(row.memory_peak_bytes),
            _peak_bar(row),
            number(row.allocated_gpu_hours if knows else row.device_hours),
            number(row.busy_gpu_hours),
        ]
        for row in ranked[: _LINES // 4]
    ]
    if not lines:
        return ""
    return (
        '<h2 id="devices">Devices</h2><p class="note">Sums over the containers that hold a part of'
        f" the device.{_cut(ranked, _LINES // 4)}</p>"
        f'<div class="panel scroll">{_table(head, lines, "trrrrrgrr")}</div>'
    )


# ---- how it was measured -------------------------------------------------------------------------


def method(report: Report, times: Times) -> str:
    """Each figure with its formula, and where nothing was recorded."""
    facts, policy = report.facts, report.policy
    looks = f"every {number(facts.resolution_s)} s" if facts.resolution_s else "now and then"
    if facts.averaged:
        taken = (
            f"Steps of {number(facts.resolution_s)} s. Each has the highest and the average of the"
            " samples scraped in it; a step without samples is a gap. Peaks of groups add up the"
            " highest of each container, so they can be above what was in use at one moment."
        )
    else:
        taken = (
            f"The regions of the node were looked at {looks}. A figure holds until the next look,"
            " and for one interval where that came late; then there is a gap. What happened between"
            " two looks is not seen."
        )
    allocated = (
        "SM limit / 100, summed over the time held; no limit counts as a whole GPU, also where"
        " several containers share it"
        if facts.knows_sm_limits
        else "not told: this source has no SM limits"
    )
    terms = [
        ("Samples", taken),
        (
            "Memory used",
            "What libvgpu counts against the limit: contexts, modules and buffers of all processes"
            " of the container on that device.",
        ),
        ("Averages, 95 %, 99 %", "Weighted by time. Percentiles are rounded up, by 0.4 % at most."),
        (_GIB_HOURS, "Memory in GiB times hours."),
        ("GPU hours allocated", f"{allocated}."),
        (
            "GPU hours busy",
            "SM utilisation / 100, 1 at most for each container and device, summed over time."
            " Utilisation is the driver's share of time in which any kernel ran, not of SMs in"
            " use, so containers on one device can add up to more than the device has.",
        ),
        ("Unused", "No memory counted at all, not even a context, while the limit was held."),
        (
            "Suggested limits",
            f"max(99th percentile x {number(1 + policy.headroom, 2)}"
            f"{'' if policy.below_peak else ', peak'}), rounded up to"
            f" {size(policy.round_to_bytes)}; for what was seen for"
            f" {hours(policy.observed_s / 3600)} or longer.",
        ),
    ]
    listed = "".join(f"<dt>{term}</dt><dd>{words}</dd>" for term, words in terms)
    return f'<h2 id="method">How it was measured</h2><dl>{listed}</dl>{_gaps(report, times)}'


def _gaps(report: Report, times: Times) -> str:
    coverage = report.coverage
    if not coverage.gaps:
        return ""
    longest = sorted(coverage.gaps, key=lambda gap: gap.start_ms - gap.end_ms)[:_GAPS_LISTED]
    lines = [
        [
            times.full(gap.start_ms),
            times.full(gap.end_ms),
            hours((gap.end_ms - gap.start_ms) / 3_600_000),
        ]
        for gap in sorted(longest, key=lambda gap: gap.start_ms)
    ]
    more = coverage.gap_count - len(lines)
    cut = f'<p class="soft small-text">and {counted(more, "shorter gap")}</p>' if more > 0 else ""
    return (
        "<h3>Not recorded</h3>"
        f'<div class="panel scroll">{_table(["From", "To", "Length"], lines, "ttr")}{cut}</div>'
    )


# ---- pieces --------------------------------------------------------------------------------------


def _namespace(row: Usage) -> str:
    return "" if row.namespace is None else text(row.namespace)


def _name(row: Usage) -> str:
    where = " / ".join(part for part in (_namespace(row), pod_words(row)) if part)
    return f"{text(row.container)}<small>{where}</small>"


def _change(change_bytes: int | None) -> str:
    if change_bytes is None:
        return NOTHING
    sign = "\u2212" if change_bytes < 0 else "+"
    return f"{sign}{size(abs(change_bytes))}"


def _cut(rows: Sequence[object], shown: int) -> str:
    if len(rows) <= shown:
        return ""
    return f" The first {shown:,} of {len(rows):,}; all of them are in CSV and JSON."


def _sentence(said: str) -> str:
    sentence = text(said, limit=400)
    return sentence[:1].upper() + sentence[1:]


def _table(head: Iterable[str], lines: Iterable[Iterable[str]], kinds: str) -> str:
    """A table of cells that are HTML; kinds are t(ext), r(ight) and g(raphic)."""
    names = {"t": ' class="t"', "r": "", "g": ' class="g"'}
    heads = "".join(
        f'<th scope="col"{names[kind]}>{cell}</th>' for cell, kind in zip(head, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{names[kind]}>{cell}</td>" for cell, kind in zip(line, kinds, strict=True))
        + "</tr>"
        for line in lines
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
