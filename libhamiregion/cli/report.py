"""`hamiregion report`: who held and used what, from a recording or a Prometheus."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
from click.core import ParameterSource

from libhamiregion import format_size, parse_size
from libhamiregion.report import (
    Credentials,
    PrometheusApi,
    PrometheusError,
    PrometheusHistory,
    Recording,
    RecordingError,
    SuggestionPolicy,
    make_report,
    parse_moment,
    parse_period,
    report_csv,
    report_json,
)
from libhamiregion.report.models import LEVELS
from libhamiregion.text import printable

from . import node_options, options
from .failures import Failure
from .output import on_terminal, terminal, write, write_json
from .report_text import report_lines, report_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion.report import History, Report

FORMATS = ("text", "html", "csv", "json")
_POLICY = SuggestionPolicy()
_CHART_POINTS = 240
_SECRET_LIMIT = 64 << 10
_FOR_PROMETHEUS = frozenset(
    {"step_s", "matchers", "token_file", "user", "password_file", "ca_file", "timeout_s"}
)


@attrs.frozen
class Wanted:
    """What the command line says; the fields are the options' names."""

    source: str
    since: str
    until: str | None
    format: str | None
    path: str | None
    by: str | None
    namespace: str | None
    pod: str | None
    container: str | None
    device: str | None
    headroom: float
    round_to_bytes: int
    below_peak: bool
    observed_s: float
    points: int | None
    step_s: float | None
    matchers: str
    token_file: str | None
    user: str | None
    password_file: str | None
    ca_file: str | None
    timeout_s: float
    as_json: bool

    @property
    def chosen_format(self) -> str:
        """As said, or as the name of the file to write says."""
        if self.as_json:
            if self.format not in {None, "json"}:
                raise click.UsageError(f"--json and --format {self.format} contradict each other")
            return "json"
        if self.format is not None:
            return self.format
        ending = "" if self.path is None else Path(self.path).suffix.lstrip(".").lower()
        return {"htm": "html"}.get(ending, ending) if ending in {*FORMATS, "htm"} else "text"


def _period(_: click.Context, __: click.Parameter, typed: str | None) -> float | None:
    if typed is None:
        return None
    try:
        return parse_period(typed)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _size(_: click.Context, __: click.Parameter, typed: str) -> int:
    try:
        nbytes = parse_size(typed)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if not nbytes:
        raise click.BadParameter("nothing can be rounded to 0")
    return nbytes


def _file_option(name: str, what: str) -> Callable[[Any], Any]:
    return click.option(name, type=options.PATH, metavar="FILE", help=what)


@click.command()
@click.option(
    "--from",
    "source",
    required=True,
    metavar="FILE|URL",
    help="A recording, or the http(s) address of a Prometheus that scrapes HAMi's metrics.",
)
@click.option(
    "--since",
    default="24h",
    show_default=True,
    metavar="WHEN",
    help="That long before the end (90m, 24h, 7d, 2w), or a date and time (ISO 8601, local time"
    " unless it says otherwise).",
)
@click.option("--until", metavar="WHEN", help="The end, in the same ways.  [default: now]")
@click.option(
    "--format",
    type=click.Choice(FORMATS),
    help="[default: by the ending of --to FILE, else text]",
)
@click.option(
    "--to",
    "path",
    type=options.NO_DIRECTORY,
    metavar="FILE",
    help="Write it there, all of it or nothing.  [default: stdout]",
)
@click.option(
    "--by",
    type=click.Choice(LEVELS),
    help="What the rows are, in html the sections; `container` is one row per container and"
    " device.  [default: container, in html namespace]",
)
@node_options.selector_options
@click.option(
    "--headroom",
    type=click.FloatRange(0, 1_000),
    default=_POLICY.headroom * 100,
    show_default=True,
    metavar="PERCENT",
    help="What suggested limits add to the 99th percentile.",
)
@click.option(
    "--round-to",
    "round_to_bytes",
    callback=_size,
    default=format_size(_POLICY.round_to_bytes).replace(" ", ""),
    show_default=True,
    metavar="SIZE",
    help="What suggested limits are multiples of.",
)
@click.option("--below-peak", is_flag=True, help="Suggest limits below the highest use seen too.")
@click.option(
    "--observed",
    "observed_s",
    callback=_period,
    default="1h",
    show_default=True,
    metavar="PERIOD",
    help="How long a container must have been seen to suggest a limit for it.",
)
@click.option(
    "--points",
    type=click.IntRange(0, 10_000),
    metavar="N",
    help="Steps of charts and timelines; 0 is none.  [default: 240 in html, else 0]",
)
@click.option(
    "--step",
    "step_s",
    callback=_period,
    metavar="PERIOD",
    help="Prometheus: length of a step, at least its scrape interval.  [default: 1m for a day]",
)
@click.option(
    "--match",
    "matchers",
    default="",
    metavar="LABELS",
    help='Prometheus: only series with these, such as \'job="hami",cluster="west"\'.',
)
@_file_option("--token-file", "Prometheus: a bearer token.  [$HAMIREGION_PROMETHEUS_TOKEN]")
@click.option(
    "--user",
    envvar="HAMIREGION_PROMETHEUS_USER",
    metavar="NAME",
    help="Prometheus: basic authentication.  [$HAMIREGION_PROMETHEUS_USER]",
)
@_file_option("--password-file", "Prometheus: its password.  [$HAMIREGION_PROMETHEUS_PASSWORD]")
@_file_option("--ca-file", "Prometheus: certificates to trust in place of the system's.")
@click.option(
    "--timeout",
    "timeout_s",
    type=options.Seconds(min=0.1, max=3_600),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Prometheus: how long to wait for each answer.",
)
@options.json_option
@options.no_color_option
def report(**given: Any) -> None:
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

    Exit code 1 if nothing was recorded in that time, or the source cannot be read.

    JSON: schema ("hamiregion-report/1"), and the fields of Report: facts, since_ms, until_ms,
    made_at_ms, by, coverage, policy, total, rows (fields of Usage) and warnings.  Times are Unix
    milliseconds, sizes bytes; null is not known, or unlimited.
    """  # noqa: D301 (click looks for the character itself)
    wanted = Wanted(**given)
    chosen = wanted.chosen_format
    since_ms, until_ms = _span(wanted)
    try:
        with _history(wanted) as history:
            made = make_report(
                history,
                since_ms,
                until_ms,
                by=wanted.by or ("namespace" if chosen == "html" else "container"),  # type: ignore[arg-type]
                select=node_options.selector(
                    wanted.namespace, wanted.pod, wanted.container, wanted.device
                ),
                policy=SuggestionPolicy(
                    headroom=wanted.headroom / 100,
                    round_to_bytes=wanted.round_to_bytes,
                    below_peak=wanted.below_peak,
                    observed_s=wanted.observed_s,
                ),
                points=_points(wanted, chosen),
            )
            if made.total is None:
                raise Failure(_nothing(history, wanted))
    except (RecordingError, PrometheusError) as error:
        raise Failure(str(error)) from None
    _write(made, chosen, wanted.path)
    if chosen != "html":
        for warning in made.warnings:
            sys.stderr.write(f"note: {printable(warning)}\n")


def _points(wanted: Wanted, chosen: str) -> int:
    if wanted.points is not None:
        return wanted.points
    return _CHART_POINTS if chosen == "html" else 0


def _span(wanted: Wanted) -> tuple[int, int]:
    now = dt.datetime.now(tz=dt.timezone.utc)
    try:
        until = now if wanted.until is None else parse_moment(wanted.until, before=now)
        since = parse_moment(wanted.since, before=until)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    since_ms, until_ms = (round(each.timestamp() * 1000) for each in (since, until))
    if since_ms >= until_ms:
        raise click.UsageError("--since is not before --until")
    return since_ms, until_ms


# ---- sources -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _history(wanted: Wanted) -> Iterator[History]:
    if not wanted.source.startswith(("http://", "https://")):
        _refuse_api_options(wanted.source)
        with Recording(wanted.source) as recording:
            yield recording
        return
    try:
        api = PrometheusApi(
            wanted.source,
            credentials=_credentials(wanted),
            ca_file=wanted.ca_file,
            timeout_s=wanted.timeout_s,
        )
        history = PrometheusHistory(api, step_s=wanted.step_s, matchers=wanted.matchers)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    yield history


def _refuse_api_options(source: str) -> None:
    context = click.get_current_context()
    for option in context.command.params:
        # The environment may hold what is for other calls; what was typed is meant for this one.
        typed = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if typed and option.name in _FOR_PROMETHEUS:
            raise click.UsageError(f"{option.opts[0]} is for a Prometheus, and {source} is none.")


def _credentials(wanted: Wanted) -> Credentials | None:
    token = _secret(wanted.token_file, "HAMIREGION_PROMETHEUS_TOKEN")
    password = _secret(wanted.password_file, "HAMIREGION_PROMETHEUS_PASSWORD")
    if token is not None and wanted.user is not None:
        raise click.UsageError("sign in with a token or with a user, not with both")
    if wanted.user is None and wanted.password_file is not None:
        raise click.UsageError("--password-file needs --user")
    if token is None and wanted.user is None:
        return None
    return Credentials(token=token, user=wanted.user, password=password)


def _secret(path: str | None, variable: str) -> str | None:
    # Not as an option: what is on a command line, everybody on the machine can read.
    if path is None:
        return os.environ.get(variable)
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 (a pipe is fine as well)
        return file.read(_SECRET_LIMIT).strip()


def _nothing(history: History, wanted: Wanted) -> str:
    if any((wanted.namespace, wanted.pod, wanted.container, wanted.device)):
        return "nothing of what was chosen was recorded in that time"
    if isinstance(history, Recording):
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
    return (
        "that Prometheus has no hami_vgpu_memory_used_bytes in that time; does it scrape HAMi's"
        " monitor or hamiregion's exporter, and is --match right?"
    )


# ---- answers -------------------------------------------------------------------------------------


def _write(made: Report, chosen: str, path: str | None) -> None:
    if path is None and chosen == "text":
        if on_terminal():
            terminal().print(report_table(made))
        else:
            write(report_lines(made))
        return
    if path is None and chosen == "json":
        write_json(report_json(made))
        return
    content = _rendered(made, chosen).encode("utf-8", "backslashreplace")
    if path is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        _replace(path, content)


def _rendered(made: Report, chosen: str) -> str:
    if chosen == "html":
        from libhamiregion.report import report_html

        return report_html(made)
    if chosen == "csv":
        return report_csv(made)
    if chosen == "json":
        import json

        return json.dumps(report_json(made)) + "\n"
    return report_lines(made)


def _replace(path: str, content: bytes) -> None:
    """Write a file whole, or not at all."""
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113
        # /dev/stdout, a pipe: what cannot be replaced is written to.
        Path(path).write_bytes(content)
        return
    try:
        _replace_whole(path, content)
    except OSError as error:
        # Not the temporary file, of which whoever typed this knows nothing.
        raise OSError(error.errno, error.strerror, path) from error


def _replace_whole(path: str, content: bytes) -> None:
    directory = os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120
    descriptor, name = tempfile.mkstemp(prefix=".hamiregion-report-", dir=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(file.fileno(), 0o666 & ~mask)
        os.replace(name, path)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise
