"""How a report's figures came about: each with its formula, and where nothing was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .cells import GIB_HOURS, table
from .words import counted, hours, number, size, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .cells import Page
    from .history import HistoryFacts
    from .models import SuggestionPolicy

_GAPS_LISTED: Final = 40
_WARNINGS_SHOWN: Final = 20
_WARNING_LIMIT: Final = 400

_MEMORY: Final = (
    "What libvgpu counts against the limit: contexts, modules and buffers of all processes of the"
    " container on that device."
)
_BUSY: Final = (
    "SM utilisation / 100, 1 at most for each container and device, summed over time. Utilisation"
    " is the driver's share of time in which any kernel ran, not of SMs in use, so containers on"
    " one device can add up to more than the device has."
)
_PERCENTILES: Final = "Weighted by time. Percentiles are rounded up, by 0.4 % at most."
_UNUSED: Final = "No memory counted at all, not even a context, while the limit was held."


def warnings(said: Sequence[str]) -> str:
    """What a reader should know first."""
    items = "".join(f"<li>{_sentence(each)}</li>" for each in said[:_WARNINGS_SHOWN])
    if len(said) > _WARNINGS_SHOWN:
        items += f"<li>and {len(said) - _WARNINGS_SHOWN:,} more</li>"
    return f'<div class="warnings"><strong>Note</strong><ul>{items}</ul></div>'


def _sentence(said: str) -> str:
    return text(said[:1].upper() + said[1:], limit=_WARNING_LIMIT)


def method(page: Page) -> str:
    """Each figure with its formula, and the gaps."""
    facts = page.report.facts
    terms = (
        ("Samples", _samples(facts)),
        ("Memory used", _MEMORY),
        ("Average, 95 %, 99 %", _PERCENTILES),
        (GIB_HOURS, "Memory in GiB times hours."),
        ("GPU hours allocated", _allocated(facts)),
        ("GPU hours busy", _BUSY),
        ("Unused", _UNUSED),
        ("Suggested limits", _suggested(page.report.policy)),
    )
    listed = "".join(f"<dt>{term}</dt><dd>{words}</dd>" for term, words in terms)
    return f'<h2 id="method">How it was measured</h2><dl>{listed}</dl>{_gaps(page)}'


def _samples(facts: HistoryFacts) -> str:
    if facts.averaged:
        return (
            f"Steps of {number(facts.resolution_s)} s. Each has the highest and the average of the"
            " samples scraped in it; a step without samples is a gap. Peaks of groups add up the"
            " highest of each container, so they can be above what was in use at one moment."
        )
    every = f" every {number(facts.resolution_s)} s" if facts.resolution_s else ""
    return (
        f"The regions of the node were looked at{every}. A figure holds until the next look, and"
        " for one interval where that came late; then there is a gap. What happened between two"
        " looks is not seen."
    )


def _allocated(facts: HistoryFacts) -> str:
    if not facts.knows_sm_limits:
        return "Not told: this source has no SM limits."
    return (
        "SM limit / 100, summed over the time held. No limit counts as a whole GPU, also where"
        " several containers share it."
    )


def _suggested(policy: SuggestionPolicy) -> str:
    peak = "" if policy.below_peak else ", peak"
    return (
        f"max(99th percentile x {number(1 + policy.headroom, 2)}{peak}), rounded up to"
        f" {size(policy.round_to_bytes)}; for what was seen for {hours(policy.observed_s / 3600)}"
        " or longer."
    )


def _gaps(page: Page) -> str:
    coverage, times = page.report.coverage, page.times
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
        '<h3 class="apart">Not recorded</h3>'
        f'<div class="panel">{table(["From", "To", "Length"], lines, "trr")}{cut}</div>'
    )
