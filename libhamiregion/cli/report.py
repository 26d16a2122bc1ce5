"""`hamiregion report`: usage over time, from recordings or a Prometheus."""

from __future__ import annotations

import contextlib
import datetime as dt
import fnmatch
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion.bounded_file import read_bounded
from libhamiregion.report import (
    PrometheusError,
    PrometheusHistory,
    Recording,
    RecordingError,
    make_report,
    report_csv,
    report_html,
    report_json,
)
from libhamiregion.report.aggregate import DEFAULT_HEADROOM
from libhamiregion.report.models import LEVELS
from libhamiregion.report.page import CHART_POINTS, Times, share
from libhamiregion.report.prices import parse_prices
from libhamiregion.text import printable
from libhamiregion.units import parse_duration

from . import options
from .failures import Failure, bad_arguments, failures_of
from .format import ratio_bar, ratio_style
from .help import verb
from .names import some
from .output import Answer, write
from .tables import ROOMY, WIDE, CellFormat, Column, Lines, Page, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from libhamiregion.node import Selector
    from libhamiregion.report import Report, Usage
    from libhamiregion.report.history import History

# Whole days and months, in local time.
_SPANS = ("today", "this-month", "yesterday", "last-month")
_PRICE_FILE_LIMIT = 1 << 16
_NAMESPACES_SHOWN = 20
_ENDINGS = {".txt": "text", ".html": "html", ".csv": "csv", ".json": "json"}


def is_length(text: str) -> bool:
    """Whether a moment is given as a length of time, not as a date or time."""
    return text not in _SPANS and text[-1:] in set("smhdw")


def parse_moment(text: str, *, before: dt.datetime) -> dt.datetime:
    """Turn "24h" or "2026-10-01T12:00" into a moment.

    A length of time means that long before `before`. A date or time without an offset is local
    time; ``Z`` is UTC.

    Raises:
        ValueError: Neither.
    """
    try:
        if is_length(text):
            return before - dt.timedelta(seconds=parse_duration(text))
        # Python 3.10 does not know the Z.
        moment = dt.datetime.fromisoformat(text.upper().replace("Z", "+00:00"))
        return moment if moment.tzinfo is not None else moment.astimezone()
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{text[:40]!a} is not one of {', '.join(_SPANS)}, a length of time such as 24h or 7d,"
            " or a date or time such as 2026-10-01T12:00"
        ) from None


def parse_span(
    since: str, until: str | None, *, now: dt.datetime
) -> tuple[dt.datetime, dt.datetime]:
    """Return begin and end of a report; ``last-month`` is the whole month before this one.

    Raises:
        ValueError: One is no moment, or the end is not after the beginning.
    """
    if since in _SPANS:
        # Midnights: the clocks may have changed in between.
        today = now.astimezone().date()
        day, first = dt.timedelta(days=1), today.replace(day=1)
        begin, ended = {
            "yesterday": (today - day, today),
            "today": (today, None),
            "this-month": (first, None),
            "last-month": ((first - day).replace(day=1), first),
        }[since]
        if until is None and ended is not None:
            until = ended.isoformat()
        since = begin.isoformat()
    end = now if until is None else parse_moment(until, before=now)
    start = parse_moment(since, before=end)
    if start >= end:
        raise ValueError("--since is not before --until")
    return start, end


@verb(
    "hamiregion report --from node.db --since last-month --to month.html",
    "hamiregion report --from a.db --from b.db --by pod --price A100=2.10",
)
@click.option(
    "--from",
    "sources",
    required=True,
    multiple=True,
    metavar="FILE|URL",
    help="Recordings, or the address of a Prometheus.",
)
@click.option(
    "--since",
    default="24h",
    show_default=True,
    metavar="WHEN",
    help="today, yesterday, this-month, last-month, 24h or 7d ago, or a time.",
)
@click.option("--until", metavar="WHEN", help="End time; same formats.  [default: now]")
@options.option("--format", "form", group="Form", type=click.Choice(tuple(_ENDINGS.values())))
@click.option(
    "--to",
    "path",
    type=options.NO_DIRECTORY,
    metavar="FILE",
    help="File to write, .html, .csv, .json or .txt.  [default: stdout]",
)
@click.option(
    "--by",
    type=click.Choice(LEVELS),
    help="Rows, or sections of html.  [default: container; html: namespace]",
)
@options.selector_options
@options.option(
    "--headroom",
    group="Form",
    type=click.FloatRange(0, 1_000),
    default=DEFAULT_HEADROOM * 100,
    metavar="PERCENT",
)
@options.option("--price", "prices", group="Costs", multiple=True, metavar="MODEL=PRICE|FILE")
@options.option(
    "--unlimited-sm-as",
    group="Costs",
    type=click.Choice(("memory", "whole")),
    default="memory",
)
@options.option("--step", "step_s", group="Prometheus", type=options.DURATION, metavar="PERIOD")
@options.option("--match", "matchers", group="Prometheus", metavar="LABELS")
@options.json_option
def report(
    sources: tuple[str, ...],
    since: str,
    until: str | None,
    form: str | None,
    path: str | None,
    by: Any,
    headroom: float,
    selector: Selector,
    prices: tuple[str, ...],
    unlimited_sm_as: Any,
    step_s: float | None,
    matchers: str | None,
    as_json: bool,
) -> None:
    """Report usage of GPUs over time, and what it costs."""
    known_prices = _prices(prices)
    form = _form(form, path, as_json=as_json)
    with bad_arguments():
        start, end = parse_span(since, until, now=dt.datetime.now(tz=dt.timezone.utc))
    with failures_of(RecordingError, PrometheusError), contextlib.ExitStack() as opened:
        histories = _histories(sources, step_s, matchers, opened)
        made = make_report(
            histories,
            round(start.timestamp() * 1000),
            round(end.timestamp() * 1000),
            by=by or ("namespace" if form == "html" else "container"),
            select=selector,
            headroom=headroom / 100,
            points=CHART_POINTS if form == "html" else 0,
            # A date may be in a gap, and shows it.
            from_first_sample=is_length(since),
            unlimited_sm_as=unlimited_sm_as,
            prices=known_prices,
        )
        if made.total is None:
            everything = make_report(histories, made.since_ms, made.until_ms, by="namespace")
            raise Failure(_nothing(histories, selector, everything))
    _write(made, form, path)


def _form(form: str | None, path: str | None, *, as_json: bool) -> str:
    if as_json and form not in {None, "json"}:
        raise click.UsageError(f"--json and --format {form} contradict each other")
    if as_json or form is not None or path is None:
        return "json" if as_json else form or "text"
    try:
        return _ENDINGS[Path(path).suffix.lower()]
    except KeyError:
        endings = ", ".join(_ENDINGS)
        raise click.UsageError(f"--to {path}: add a --format, or use {endings}") from None


def _prices(given: tuple[str, ...]) -> dict[str, float] | None:
    """Read prices, or files of them."""
    lines: list[str] = []
    for option in given:
        if "=" in option:
            lines.append(option)
            continue
        with failures_of(ValueError, about=f"{option}: "):
            text = read_bounded(option, _PRICE_FILE_LIMIT).decode()
        lines += [line for each in text.splitlines() if (line := each.partition("#")[0].strip())]
    with bad_arguments():
        return parse_prices(lines) or None


# ---- sources -------------------------------------------------------------------------------------


def _histories(
    sources: tuple[str, ...],
    step_s: float | None,
    matchers: str | None,
    opened: contextlib.ExitStack,
) -> list[History]:
    if not any("://" in source for source in sources):
        for option, given in (("--step", step_s), ("--match", matchers)):
            if given is not None:
                raise click.UsageError(f"{option} is for a Prometheus.")
        return [opened.enter_context(Recording(source)) for source in sources]
    if len(sources) > 1:
        raise click.UsageError("--from takes several recordings, or one Prometheus")
    # Command lines are public on their machine.
    secrets: dict[str, Any] = {
        name: os.environ.get(f"HAMIREGION_PROMETHEUS_{name.upper()}")
        for name in ("token", "user", "password")
    }
    if secrets["token"] is not None and secrets["user"] is not None:
        raise click.UsageError("sign in with a token or with a user, not with both")
    with bad_arguments():
        return [PrometheusHistory(sources[0], step_s=step_s, matchers=matchers or "", **secrets)]


def _nothing(histories: list[History], selector: Selector, everything: Report) -> str:
    there = sorted({row.namespace for row in everything.rows if row.namespace is not None})
    if there and selector.namespace is not None and not fnmatch.filter(there, selector.namespace):
        shown = some(map(printable, there), limit=_NAMESPACES_SHOWN)
        return (
            f"no namespace {printable(selector.namespace)} was recorded in that time; there are"
            f" {shown}"
        )
    spans = [history.span_ms() for history in histories if isinstance(history, Recording)]
    known = [each for each in spans if each is not None]
    nothing = "nothing of this was recorded in that time"
    if not spans:
        return f"{nothing}; does Prometheus scrape the exporter, and is --match right?"
    if not known:
        return nothing
    first, last = (Times().full(each) for each in (min(known)[0], max(each[1] for each in known)))
    return f"{nothing}, but from {first} to {last}"


# ---- answers -------------------------------------------------------------------------------------


def _write(made: Report, form: str, path: str | None) -> None:
    times = Times()
    heading = (
        f"{times.full(made.since_ms)} to {times.full(made.until_ms)}"
        f" ({times.zone_name(made.until_ms)}), {share(made.recorded_ratio, 1)} recorded"
    )
    blocks = (
        Lines([heading]),
        Table(_bill_columns(made), (*made.bill, made.total)),
        Table(_columns(made), made.rows),
    )
    if path is None and form in {"text", "json"}:
        page = Page("report/2", report_json(made), blocks, notes=made.warnings)
        Answer(as_json=form == "json").show(page)
        return
    makers: dict[str, Callable[[Report], str]] = {
        "html": report_html,
        "csv": report_csv,
        "json": lambda made: json.dumps(report_json(made)) + "\n",
        "text": lambda _: "\n".join(block.text() for block in blocks),
    }
    content = makers[form](made)
    if path is None:
        write(content)
    else:
        Path(path).write_bytes(content.encode())
    # The page has them.
    for warning in () if form == "html" else made.warnings:
        sys.stderr.write(f"Note: {printable(warning)}\n")


def _peak_ratio(row: Usage) -> float | None:
    limit = row.memory_limit_bytes
    return None if limit is None else row.memory_peak_bytes / limit


_HOURS = CellFormat("{:.2f}".format)
_NODE = Column("NODE", "node", "name")
_NAMESPACE = Column("NAMESPACE", "namespace", "name")
_POD = Column("POD", lambda row: row.pod or row.pod_uid, "name")
_CONTAINER = Column("CONTAINER", "container", "name")
_NAMES = {
    "node": [_NODE],
    "namespace": [_NAMESPACE],
    "pod": [_NAMESPACE, _POD],
    "container": [_NAMESPACE, _POD, _CONTAINER, Column("DEVICE", "device_index", "number")],
    "device": [Column("UUID", "device_uuid", "name")],
}
_FIGURES = (
    Column("DRAWING", lambda row: ratio_bar(_peak_ratio(row)), "drawing", title="", on="terminal"),
    Column("LIMIT", "memory_limit_bytes", "size_limit"),
    Column("AVERAGE", "memory_average_bytes", "size"),
    Column("P95", "memory_p95_bytes", "size", title="95 %"),
    Column("PEAK", "memory_peak_bytes", "size", style=lambda row: ratio_style(_peak_ratio(row))),
    Column("GPU-H-BUSY", "busy_gpu_hours", _HOURS, title="GPU h busy"),
    Column("H-HELD", "device_hours", _HOURS, title="h held"),
    Column("H-UNUSED", "unused_hours", _HOURS, title="unused"),
)
_MONEY = CellFormat("{:,.2f}".format)
_SHARE = CellFormat("{:.1%}".format)
_COSTS = (
    Column("COST-ALLOCATED", "cost_allocated", _MONEY, title="cost allocated"),
    Column("COST-USED", "cost_used", _MONEY, title="used"),
)
_BILL = (
    Column("GIB-H-LIMITS", "limit_gib_hours", _HOURS, title="GiB h limits"),
    Column("GIB-H-USED", "used_gib_hours", _HOURS, title="GiB h used"),
    Column("GPU-H-ALLOCATED", "allocated_gpu_hours", _HOURS, title="GPU h allocated"),
    Column("GPU-H-BUSY", "busy_gpu_hours", _HOURS, title="GPU h busy"),
    Column("SHARE", "allocated_ratio", _SHARE),
)
_SUGGESTED = Column("SUGGESTED", "suggested_limit_bytes", "size")
# Where a row has four names, a narrow terminal shows less of its figures.
_FROM_WIDTH = {"DRAWING": ROOMY, "AVERAGE": WIDE, "P95": WIDE, "H-HELD": WIDE}


def _bill_columns(made: Report) -> list[Column]:
    first, *names = _NAMES[made.bill_by]
    # No namespace is called so.
    first = attrs.evolve(first, value=lambda row: "TOTAL" if row is made.total else row.namespace)
    return [first, *names, *_BILL, *(_COSTS if made.prices else ())]


def _columns(made: Report) -> list[Column]:
    names = _NAMES[made.by]
    if made.by != "container":
        return [*names, *_FIGURES]
    figures = [
        attrs.evolve(column, from_width=_FROM_WIDTH.get(column.name, 0)) for column in _FIGURES
    ]
    node = [_NODE] if len({row.node for row in made.rows}) > 1 else []
    return [*node, *names, *figures, _SUGGESTED]
