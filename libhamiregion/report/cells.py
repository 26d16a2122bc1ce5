"""What the page of a report is put together from: cells, tables, legends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from .charts import share_bar
from .words import NOTHING, Times, pod_words, size, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .models import Coverage, Report, Usage

GIB_HOURS: Final = "GiB\u00b7h"
#: Lines of a ranked table.
RANKED: Final = 25

_CLASSES: Final = {"t": ' class="t"', "r": "", "g": ' class="g"'}


@attrs.frozen
class Page:
    """A report on its way to paper.

    Attributes:
        report: What to show.
        times: How to show moments.
    """

    report: Report
    times: Times

    @property
    def end_ms(self) -> int:
        """The last moment that anything is known of."""
        total = self.report.total
        return self.report.until_ms if total is None else total.last_seen_ms

    def is_there(self, row: Usage) -> bool:
        """Whether an allocation was still held at the end."""
        return row.last_seen_ms >= self.end_ms

    def name(self, row: Usage) -> str:
        """A container with its pod below, and when it ended if it has."""
        ended = "" if self.is_there(row) else f", until {self.times.short(row.last_seen_ms)}"
        return f"{text(row.container)}<small>{where(row)}{ended}</small>"


def where(row: Usage) -> str:
    """Namespace and pod."""
    namespace = [] if row.namespace is None else [text(row.namespace)]
    return " / ".join([*namespace, pod_words(row)])


def change(change_bytes: int | None) -> str:
    """A difference with its sign."""
    if change_bytes is None:
        return NOTHING
    sign = "\u2212" if change_bytes < 0 else "+"
    return f"{sign}{size(abs(change_bytes))}"


def cut(rows: Sequence[object], shown: int) -> str:
    """What is not shown, as a sentence."""
    if len(rows) <= shown:
        return ""
    return f" The first {shown:,} of {len(rows):,}; all of them are in CSV and JSON."


def peak_bar(row: Usage) -> str:
    """The peak as a share of the limit."""
    if not row.memory_limit_bytes:
        return ""
    return share_bar(row.memory_peak_bytes / row.memory_limit_bytes)


def table(head: Iterable[str], lines: Iterable[Iterable[str]], kinds: str) -> str:
    """A table of cells that are HTML; kinds are t(ext), r(ight) and g(raphic)."""
    heads = "".join(
        f'<th scope="col"{_CLASSES[kind]}>{cell}</th>'
        for cell, kind in zip(head, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_CLASSES[kind]}>{cell}</td>" for cell, kind in zip(line, kinds, strict=True)
        )
        + "</tr>"
        for line in lines
    )
    return (
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


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
        '<div class="legend below"><span><i class="k-busy"></i>GPUs busy</span>'
        f"{allocated if report.facts.knows_sm_limits else ''}</div>"
    )
