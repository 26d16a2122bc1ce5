"""`hamiregion report`: who held and used what, from a recording or a Prometheus."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

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
from libhamiregion.report.making import DEFAULT_HEADROOM
from libhamiregion.report.models import LEVELS
from libhamiregion.report.page import CHART_POINTS
from libhamiregion.report.words import Times, share
from libhamiregion.text import printable
from libhamiregion.units import parse_duration

from . import options
from .failures import Failure
from .format import count, ratio_bar, ratio_style
from .help import Verb
from .output import Page, show, write
from .tables import (
    DRAWING,
    NAME,
    NUMBER,
    ROOMY,
    SIZE,
    SIZE_LIMIT,
    WIDE,
    Bar,
    CellFormat,
    Column,
    Lines,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.node import Selector
    from libhamiregion.report import Report, Usage
    from libhamiregion.report.history import History

_FORMATS = ("text", "html", "csv", "json")
_ENDINGS = {".txt": "text", ".html": "html", ".htm": "html", ".csv": "csv", ".json": "json"}


def is_length(text: str) -> bool:
    """Whether a moment is given as a length of time, not as a date or time."""
    return text[-1:] in set("smhdw")


def parse_moment(text: str, *, before: dt.datetime) -> dt.datetime:
    """Turn "24h" or "2026-10-01T12:00" into a moment.

    A length of time means that long before `before`. A date or time without an offset is local
    time, as `date` and `journalctl` take it; ``Z`` is UTC.

    Raises:
        ValueError: Neither.

    >>> noon = dt.datetime(2026, 10, 1, 12, tzinfo=dt.timezone.utc)
    >>> parse_moment("36h", before=noon).isoformat()
    '2026-09-30T00:00:00+00:00'
    >>> parse_moment("2026-09-30T08:00Z", before=noon).isoformat()
    '2026-09-30T08:00:00+00:00'
    """
    try:
        if is_length(text):
            return before - dt.timedelta(seconds=parse_duration(text))
        moment = dt.datetime.fromisoformat(re.sub(r"[zZ]\Z", "+00:00", text))
        # The years 1 and 9999 have no neighbours to be converted to.
        return moment if moment.tzinfo is not None else moment.astimezone()
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{text[:40]!a} is neither a length of time such as 24h or 7d nor a date or time"
            " such as 2026-10-01T12:00"
        ) from None


@click.command(
    cls=Verb,
    examples=[
        "hamiregion report --from node.db --since 7d --to week.html",
        "hamiregion report --from http://prometheus:9090 --by namespace",
    ],
    brief={"Form": ("form", "headroom"), "Prometheus": ("step_s", "matchers")},
)
@click.option(
    "--from",
    "sources",
    required=True,
    multiple=True,
    metavar="FILE|URL",
    help="A recording, or the address of a Prometheus.",
)
@click.option(
    "--since",
    default="24h",
    show_default=True,
    metavar="WHEN",
    help="90m, 24h, 7d or 2w before the end, or a date or time.",
)
@click.option("--until", metavar="WHEN", help="End time; same formats as --since.  [default: now]")
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    help="[default: by the ending of --to FILE, else text]",
)
@click.option(
    "--to",
    "path",
    type=options.NO_DIRECTORY,
    metavar="FILE",
    help="File to write.  [default: stdout]",
)
@click.option(
    "--by",
    type=click.Choice(LEVELS),
    help="Rows, or sections of html.  [default: container; html: namespace]",
)
@options.selector_options
@click.option(
    "--headroom",
    type=click.FloatRange(0, 1_000),
    default=DEFAULT_HEADROOM * 100,
    show_default=True,
    metavar="PERCENT",
    help="What suggested limits add to the 99th percentile.",
)
@click.option(
    "--step",
    "step_s",
    type=options.DURATION,
    metavar="PERIOD",
    help="Prometheus: length of a step, at least its scrape interval.  [default: 1m for a day]",
)
@click.option(
    "--match",
    "matchers",
    metavar="LABELS",
    help='Prometheus: only series with these, such as \'job="hami",cluster="west"\'.',
)
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
    step_s: float | None,
    matchers: str | None,
    as_json: bool,
) -> None:
    """Report who held and used what of the GPUs: per namespace, pod, container and device.

    Memory used against limits, GPU hours allocated and busy, allocations that were held and not
    used, limits that would do, and how much of the time was recorded at all.  What was not
    recorded is a gap, and nothing is made up for it.

    \b
    hamiregion report --from node.db --since 7d --to week.html
    hamiregion report --from http://prometheus:9090 --since 24h --by namespace
    hamiregion report --from node.db --since 2026-10-01 --until 2026-11-01 --to october.csv

    html is one file that loads nothing and runs nothing, to look at and to print.  csv has one
    line per row, for spreadsheets.  Times in text and html are local: set TZ for others.

    To sign in to a Prometheus: HAMIREGION_PROMETHEUS_TOKEN, or HAMIREGION_PROMETHEUS_USER and
    HAMIREGION_PROMETHEUS_PASSWORD in the environment.

    Exit code 1 if nothing was recorded in that time, or the source cannot be read.

    JSON: schema ("hamiregion/report/1"), and the fields of Report: kind, source, node,
    resolution_s, since_ms, until_ms, made_at_ms, by, recorded_ratio, gaps, gap_count, headroom,
    round_to_bytes, total, rows (fields of Usage) and warnings.  Times are Unix milliseconds, sizes
    bytes; null is not known, or unlimited.
    """  # noqa: D301 (click looks for the character itself)
    if len(sources) > 1:
        raise click.UsageError("--from is given twice; a report is made of one source")
    source = sources[0]
    form = _form(form, path, as_json=as_json)
    since_ms, until_ms = _span(since, until)
    try:
        with _history(source, step_s, matchers) as history:
            made = make_report(
                history,
                since_ms,
                until_ms,
                by=by or ("namespace" if form == "html" else "container"),
                select=selector,
                headroom=headroom / 100,
                points=CHART_POINTS if form == "html" else 0,
                # What is asked for by a date may begin with a gap, and shows it.
                from_first_look=is_length(since),
            )
            if made.total is None:
                if selector != type(selector)():
                    raise Failure("nothing of what was chosen was recorded in that time")
                raise Failure(_nothing(history))
    except (RecordingError, PrometheusError) as error:
        raise Failure(str(error)) from None
    _write(made, form, path)


def _form(form: str | None, path: str | None, *, as_json: bool) -> str:
    if as_json:
        if form not in {None, "json"}:
            raise click.UsageError(f"--json and --format {form} contradict each other")
        return "json"
    if form is not None or path is None:
        return form or "text"
    found = _ENDINGS.get(Path(path).suffix.lower())
    if found is None and os.path.isfile(path) | (not os.path.exists(path)):  # noqa: PTH110, PTH113
        endings = ", ".join(_ENDINGS)
        raise click.UsageError(f"--to {path}: name its --format, or one of the endings {endings}")
    return found or "text"


def _span(since: str, until: str | None) -> tuple[int, int]:
    now = dt.datetime.now(tz=dt.timezone.utc)
    try:
        end = now if until is None else parse_moment(until, before=now)
        begin = parse_moment(since, before=end)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    since_ms, until_ms = (round(each.timestamp() * 1000) for each in (begin, end))
    if since_ms >= until_ms:
        raise click.UsageError("--since is not before --until")
    return since_ms, until_ms


# ---- sources -------------------------------------------------------------------------------------


def _sign_in() -> dict[str, Any]:
    """Token, or user and password, for a Prometheus; a command line is public on its machine.

    Raises:
        UsageError: Both are given.
    """
    secrets = {
        name: os.environ.get(f"HAMIREGION_PROMETHEUS_{name.upper()}")
        for name in ("token", "user", "password")
    }
    if secrets["token"] is not None and secrets["user"] is not None:
        raise click.UsageError("sign in with a token or with a user, not with both")
    return secrets


@contextlib.contextmanager
def _history(source: str, step_s: float | None, matchers: str | None) -> Iterator[History]:
    if not source.startswith(("http://", "https://")):
        for option, given in (("--step", step_s), ("--match", matchers)):
            if given is not None:
                raise click.UsageError(f"{option} is for a Prometheus, and {source} is none.")
        if "://" in source:
            raise click.UsageError(
                f"--from is a recording, or an http:// or https:// address, not {source}"
            )
        with Recording(source) as recording:
            yield recording
        return
    try:
        history = PrometheusHistory(source, step_s=step_s, matchers=matchers or "", **_sign_in())
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    yield history


def _nothing(history: History) -> str:
    if not isinstance(history, Recording):
        return (
            "that Prometheus has no hami_vgpu_memory_used_bytes in that time; does it scrape"
            " hamiregion's exporter or HAMi's monitor, and is --match right?"
        )
    span = history.span_ms()
    if span is None:
        return f"{history.path!r} holds nothing yet"
    first, last = (
        dt.datetime.fromtimestamp(each / 1000, tz=dt.timezone.utc).astimezone() for each in span
    )
    return (
        f"nothing was recorded in that time; {history.path!r} is about"
        f" {first:%Y-%m-%dT%H:%M:%S%z} to {last:%Y-%m-%dT%H:%M:%S%z}"
    )


# ---- answers -------------------------------------------------------------------------------------


def _write(made: Report, form: str, path: str | None) -> None:
    times = Times()
    heading = (
        f"{times.full(made.since_ms)} to {times.full(made.until_ms)}"
        f" ({times.zone_name(made.until_ms)}), {share(made.recorded_ratio, 1)} recorded"
    )
    blocks = (Lines([heading]), Table(_columns(made), made.rows))
    if path is None and form in {"text", "json"}:
        notes = (*made.warnings, *_too_short(made))
        show(Page("report/1", report_json(made), blocks, notes=notes), form == "json")
        return
    if form == "html":
        content = report_html(made)
    elif form == "csv":
        content = report_csv(made)
    elif form == "json":
        content = json.dumps(report_json(made)) + "\n"
    else:
        content = "\n".join(block.text() for block in blocks)
    if path is None:
        write(content)
    elif os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113
        # /dev/stdout, a pipe: what cannot be replaced is written to.
        Path(path).write_bytes(content.encode())
    else:
        _replace(path, content.encode())
    # The page has them.
    for warning in () if form == "html" else made.warnings:
        sys.stderr.write(f"Note: {printable(warning)}\n")


def _too_short(made: Report) -> list[str]:
    """Say why there are no suggestions, where that is because of the time."""
    number = sum(row.advice == "too_little_seen" for row in made.rows)
    if not number:
        return []
    what = "all of this" if number == len(made.rows) else count(number, "row")
    return [f"{what} was seen for less than an hour, too shortly to suggest limits"]


def _peak_ratio(row: Usage) -> float | None:
    limit = row.memory_limit_bytes
    return None if limit is None else row.memory_peak_bytes / limit


def _bar(row: Usage) -> Bar:
    return ratio_bar(_peak_ratio(row))


_HOURS = CellFormat("{:.2f}".format)
_NAMES = {
    "namespace": Column("NAMESPACE", lambda row: row.namespace, NAME),
    "pod": Column("POD", lambda row: row.pod or row.pod_uid, NAME),
    "container": Column("CONTAINER", lambda row: row.container, NAME),
    "index": Column("DEVICE", lambda row: row.device_index, NUMBER),
    "device": Column("UUID", lambda row: row.device_uuid, NAME),
}
_LEVELS = {
    "namespace": ("namespace",),
    "pod": ("namespace", "pod"),
    "container": ("namespace", "pod", "container", "index"),
    "device": ("device",),
}
_FIGURES = (
    Column("DRAWING", _bar, DRAWING, title="", on="terminal"),
    Column("LIMIT", lambda row: row.memory_limit_bytes, SIZE_LIMIT),
    Column("AVERAGE", lambda row: row.memory_average_bytes, SIZE),
    Column("P95", lambda row: row.memory_p95_bytes, SIZE, title="95 %"),
    Column(
        "PEAK",
        lambda row: row.memory_peak_bytes,
        SIZE,
        style=lambda row: ratio_style(_peak_ratio(row)),
    ),
    Column("GPU-H-BUSY", lambda row: row.busy_gpu_hours, _HOURS, title="GPU h busy"),
    Column("H-HELD", lambda row: row.device_hours, _HOURS, title="h held"),
    Column("H-UNUSED", lambda row: row.unused_hours, _HOURS, title="unused"),
)
_SUGGESTED = Column("SUGGESTED", lambda row: row.suggested_limit_bytes, SIZE)


# Where a row has four names, a narrow terminal shows less of its figures.
_FROM_WIDTH = {"DRAWING": ROOMY, "AVERAGE": WIDE, "P95": WIDE, "H-HELD": WIDE}


def _columns(made: Report) -> list[Column]:
    names = [_NAMES[name] for name in _LEVELS[made.by]]
    if made.by != "container":
        return [*names, *_FIGURES]
    figures = [
        attrs.evolve(column, from_width=_FROM_WIDTH.get(column.name, 0)) for column in _FIGURES
    ]
    return [*names, *figures, _SUGGESTED]


def _replace(path: str, content: bytes) -> None:
    """Write a file whole, or not at all."""
    directory = os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120
    name = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=".hamiregion-report-", dir=directory)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(file.fileno(), 0o666 & ~mask)
        os.replace(name, path)  # noqa: PTH105
    except BaseException as error:
        if name is not None:
            with contextlib.suppress(OSError):
                os.unlink(name)  # noqa: PTH108
        if isinstance(error, OSError):
            # Name the file that was asked for, not the temporary one.
            raise OSError(error.errno, error.strerror, path) from error
        raise
