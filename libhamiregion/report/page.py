"""A report as one page of HTML: charts inline, nothing loaded, no scripts."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from libhamiregion import __version__
from libhamiregion.html_template import html_template
from libhamiregion.text import printable

from .making import GROUP_FIELDS, group_key
from .words import Times, counted, hours, number, share, size

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Sequence

    import jinja2

    from .charts import Chart
    from .models import Report, Timeline, Usage

#: Steps of the charts over time.
CHART_POINTS: Final = 240

# A page is for looking at: it stays below some 1.5 MiB whatever the node has.
_RANKED: Final = 25
_SMALL_CHARTS: Final = 24
_GROUPS: Final = 20
_GROUP_LINES: Final = 50
_LINES: Final = 1_000
_DEVICES: Final = 250
_GAPS: Final = 40
_WARNINGS: Final = 20
_TEXT_LIMIT: Final = 400
_NAME_LIMIT: Final = 80


def report_html(report: Report, *, zone: dt.tzinfo | None = None) -> str:
    """Write a report as a page to look at and to print: one file, which loads and runs nothing.

    What is too much for a page is left to CSV and JSON, and the page says so: it shows 24 small
    charts, 20 groups with a chart each, and 1,000 lines of tables, about 1.5 MiB at most.

    Args:
        report: Made with ``points``, or there are no charts; 240 is a good number.
        zone: The time zone of its times; None is the local one.

    Raises:
        ImportError: jinja2 is missing, which the extra ``cli`` installs.
    """
    return _template().render(_Page(report, Times(zone)).context())


@functools.cache
def _template() -> jinja2.Template:
    from .charts import HEIGHT

    here = Path(__file__).parent
    return html_template(
        here / "page.html",
        style=(here / "page.css").read_text(encoding="utf-8"),
        text_limit=_TEXT_LIMIT,
        filters={
            "size": size,
            "number": number,
            "hours": hours,
            "counted": counted,
            "name": _name,
            "short_uuid": _short_uuid,
        },
        values={"share": share, "height": HEIGHT, "version": __version__},
    )


def _name(raw: str | None, missing: str = "not known") -> str:
    return missing if raw is None else printable(raw, _NAME_LIMIT)


def _short_uuid(uuid: str | None) -> str:
    """Shorten a uuid as people do: ``GPU-1a2b3c4d``."""
    return _name(None if uuid is None else "-".join(uuid.split("-")[:2]))


def _held(row: Usage) -> float:
    return -max(row.limit_gib_hours, row.used_gib_hours)


class _Cut:
    """The first rows of many, and how many there are."""

    def __init__(self, rows: Iterable[Usage], most: int, key: Callable[[Usage], Any]) -> None:
        found = sorted(rows, key=key)
        self.rows, self.count, self.left_out = found[:most], len(found), max(0, len(found) - most)


class _Page:
    """Chooses and orders what the template shows."""

    def __init__(self, report: Report, times: Times) -> None:
        self._report = report
        self._times = times
        total = report.total
        #: The last moment that anything is known of.
        self._end_ms = report.until_ms if total is None else total.last_seen_ms

    def context(self) -> dict[str, Any]:
        from .charts import gap_stripes

        report = self._report
        node = report.node
        gaps = sorted(report.gaps, key=lambda gap: gap[0] - gap[1])[:_GAPS]
        shown: dict[str, Any] = {
            "report": report,
            "times": self._times,
            "end_ms": self._end_ms,
            "title": "GPU report" if node is None else f"GPU report: {node}",
            "strip": gap_stripes(report.gaps, report.since_ms, report.until_ms),
            "warnings": report.warnings[:_WARNINGS],
            "gaps": sorted(gaps),
        }
        if report.total is not None:
            shown |= self._sections(report.total)
        return shown

    def _sections(self, total: Usage) -> dict[str, Any]:
        report = self._report
        rows = report.allocations
        timed = [row for row in rows if row.timeline is not None]
        there = [row for row in rows if self._is_there(row)]
        containers = {(row.namespace, row.pod, row.pod_uid, row.container) for row in rows}
        return {
            "there": there,
            "unused": [row for row in there if row.unused_since_ms is not None],
            "container_count": len(containers),
            "pod_count": len({container[:3] for container in containers}),
            "charts": self._charts(total),
            "idle": _Cut(
                (row for row in rows if row.unused_hours),
                _RANKED,
                lambda row: (-row.unused_gib_hours, -row.unused_hours),
            ),
            "suggested": _Cut(
                (row for row in rows if row.advice in {"lower", "raise", "limit"}),
                _RANKED,
                # What is there still can be changed; what has no limit yet comes last.
                lambda row: (not self._is_there(row), *_change_order(row)),
            ),
            "leftovers": _Cut(
                (row for row in rows if row.leftover_hours),
                _RANKED,
                lambda row: -(row.leftover_hours or 0),
            ),
            "cards": _Cut(timed, _SMALL_CHARTS, _held),
            "small_chart": self._small_chart,
            "group_count": len(report.rows),
            "groups": self._groups(),
            "devices": _Cut(report.devices, _DEVICES, lambda row: -row.used_gib_hours),
        }

    def _is_there(self, row: Usage) -> bool:
        return row.last_seen_ms >= self._end_ms

    def _charts(self, total: Usage) -> list[Chart]:
        from .charts import gpu_chart, memory_chart

        if total.timeline is None:
            return []
        gaps = self._report.gaps
        found = [memory_chart("memory used and limits", total.timeline, gaps, self._times)]
        if total.busy_gpu_hours is not None:
            found.append(gpu_chart("GPUs busy and allocated", total.timeline, gaps, self._times))
        return found

    def _small_chart(self, timeline: Timeline) -> Chart:
        from .charts import memory_chart

        return memory_chart("memory used and limit", timeline, self._report.gaps, None)

    def _groups(self) -> list[tuple[Usage | None, Chart | None, Sequence[Usage], int]]:
        """List each group with its chart, its lines, and how many more lines it has."""
        from .charts import memory_chart

        report = self._report
        if report.by not in GROUP_FIELDS:
            cut = _Cut(report.allocations, _LINES, _held)
            return [(None, None, cut.rows, cut.left_out)]
        members: dict[tuple[str | None, ...], list[Usage]] = {}
        for row in sorted(report.allocations, key=_held):
            members.setdefault(group_key(row, report.by), []).append(row)
        found: list[tuple[Usage | None, Chart | None, Sequence[Usage], int]] = []
        left = _LINES
        for group in sorted(report.rows, key=_held)[:_GROUPS]:
            rows = members.get(group_key(group, report.by), [])
            lines = rows[: min(left, _GROUP_LINES)]
            left -= len(lines)
            chart = None
            if group.timeline is not None:
                chart = memory_chart(
                    "memory used and limits", group.timeline, report.gaps, self._times
                )
            found.append((group, chart, lines, len(rows) - len(lines)))
        return found


def _change_order(row: Usage) -> tuple[bool, int]:
    limit, suggested = row.memory_limit_bytes or 0, row.suggested_limit_bytes or 0
    return (row.advice == "limit", -abs(suggested - limit))
