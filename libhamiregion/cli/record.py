"""`hamiregion record`: write down what a node's containers hold and use, for reports."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion import format_size, parse_size
from libhamiregion.node.nvml import NvmlSampler
from libhamiregion.report import (
    NodeReader,
    Recorder,
    Recording,
    RecordingError,
    RecordingWriter,
    parse_period,
)
from libhamiregion.report.writer import (
    DEFAULT_INTERVAL_S,
    DEFAULT_MAX_SIZE_BYTES,
    DEFAULT_RETENTION_S,
)
from libhamiregion.text import printable

from . import node_options, options
from .failures import Failure, sentence
from .node_words import root_failure, root_warnings
from .output import as_plain, write, write_json
from .signals import stop_signals

if TYPE_CHECKING:
    from libhamiregion.node import Node
    from libhamiregion.report import Written

_CAUSES = {
    "gap": "looks were missed: a gap",
    "clock": "the clock was set",
}


def _period(_: click.Context, __: click.Parameter, typed: str) -> float | None:
    if typed.strip().lower() == options.UNLIMITED:
        return None
    try:
        return parse_period(typed)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _size(_: click.Context, __: click.Parameter, typed: str) -> int | None:
    if typed.strip().lower() == options.UNLIMITED:
        return None
    try:
        return parse_size(typed)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@attrs.frozen
class Wanted:
    """What the command line says; the fields are the options' names."""

    path: str
    interval_s: float
    retention_s: float | None
    max_size_bytes: int | None
    once: bool
    node_name: str | None
    no_driver: bool
    library: str | None
    dry_run: bool
    roots: tuple[str, ...]
    proc: str
    pod_logs: str
    as_json: bool


@click.command()
@click.option(
    "--to",
    "path",
    type=options.NO_DIRECTORY,
    required=True,
    metavar="FILE",
    help="The recording; made if it is not there, else gone on with.",
)
@click.option(
    "--interval",
    "interval_s",
    type=options.Seconds(min=0.05, max=86_400),
    default=DEFAULT_INTERVAL_S,
    show_default=True,
    metavar="SECONDS",
    help="From look to look.",
)
@click.option(
    "--retention",
    "retention_s",
    callback=_period,
    default=f"{DEFAULT_RETENTION_S / 86_400:g}d",
    show_default=True,
    metavar="PERIOD",
    help="How long to keep what was recorded: 90m, 24h, 7d, 2w, or `unlimited`.",
)
@click.option(
    "--max-size",
    "max_size_bytes",
    callback=_size,
    default=format_size(DEFAULT_MAX_SIZE_BYTES).replace(" ", ""),
    show_default=True,
    metavar="SIZE",
    help="Size of the file at most; the oldest goes first.  4MiB or more, or `unlimited`.",
)
@click.option("--once", is_flag=True, help="One look, then end: for cron, or to try it.")
@click.option(
    "--node-name",
    envvar="NODE_NAME",
    metavar="NAME",
    help="This node's name, for reports.  [default: $NODE_NAME, else the host's name]",
)
@click.option("--no-driver", is_flag=True, help="Do not ask the driver (NVML).")
@node_options.library_option
@node_options.root_option
@options.proc_option
@node_options.pod_logs_option
@options.dry_run_option
@options.json_option
@options.no_color_option
def record(**given: Any) -> None:
    """Write down what the containers of this node hold and use, for `hamiregion report`.

    FILE is an SQLite database.  A look writes only what has changed, all of it or nothing: a
    recorder that is killed loses no look that was done.  An idle node costs a megabyte a day, 256
    busy containers with two devices each some 14 to 130.

    \b
    hamiregion record --to /var/lib/hamiregion/node.db
    hamiregion report --from /var/lib/hamiregion/node.db --since 24h --to report.html

    One recorder per FILE.  A disk that is full, or may not be written to, does not end it: it says
    so once, tries again at every look, and what it missed is a gap.  Readers need not be kept out.

    Ended by Ctrl-C or SIGTERM.  Exit codes: 0 ended in order, 1 failed (FILE is no recording, or
    damaged, or another recorder's; with --once: the look could not be written), 2 wrong usage.

    JSON: one object per look, with the keys look, series (containers' devices seen), rows
    (written), began ("start", "gap", "clock" or "continued" where a segment begins, else null) and
    size_bytes; for a look that failed, error and message.  With --dry-run: path, dry_run, and
    readings, a list of objects with the fields of Reading.
    """  # noqa: D301 (click looks for the character itself)
    wanted = Wanted(**given)
    # Not closed: a driver that does not answer would keep this from ending.
    sampler = None if wanted.no_driver else NvmlSampler(wanted.library)
    try:
        with node_options.open_node(wanted.roots, wanted.proc, wanted.pod_logs) as node:
            if wanted.dry_run:
                _dry_run(wanted, node)
                return
            with RecordingWriter(
                wanted.path,
                interval_s=wanted.interval_s,
                retention_s=wanted.retention_s,
                max_size_bytes=wanted.max_size_bytes,
                node=wanted.node_name or platform.node() or None,
            ) as writer:
                _record(wanted, node, Recorder(node, writer, sampler=sampler))
    except RecordingError as error:
        raise Failure(str(error)) from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _record(wanted: Wanted, node: Node, recorder: Recorder) -> None:
    log = _Log(wanted, node)
    if wanted.once:
        log.looked(recorder.look())
        log.fail_without_roots()
        return
    ended = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            recorder.run(ended.wait, looked=log.looked, failed=log.failed)
        except BaseException as error:  # noqa: BLE001 (raised again where it can be told)
            failures.append(error)
        finally:
            stop.ask()

    with stop_signals() as stop:
        worker = threading.Thread(target=work, name="recorder", daemon=True)
        worker.start()
        stop.wait()
        ended.set()
        worker.join()
    for failure in failures:
        raise failure
    log.ended()


class _Log:
    """What is said while it runs: the first look, what goes wrong, and when it is right again."""

    def __init__(self, wanted: Wanted, node: Node) -> None:
        self._wanted = wanted
        self._node = node
        self._looks = 0
        self._failing: str | None = None
        self._warned: tuple[str, ...] = ()
        self._size_bytes = 0

    def looked(self, written: Written) -> None:
        self._looks += 1
        self._size_bytes = written.size_bytes
        if self._wanted.as_json:
            write_json(as_plain(written))
        elif self._looks == 1:
            every = "once" if self._wanted.once else f"every {self._wanted.interval_s:g} s"
            write(
                f"recording {_devices(written.series)} {every} to {printable(self._wanted.path)}\n"
            )
        elif written.began in _CAUSES:
            _warn(_CAUSES[written.began])
        if self._failing is not None:
            self._failing = None
            _warn("recording again")
        warnings = root_warnings(self._node)
        for warning in warnings:
            if warning not in self._warned:
                _warn(warning)
        self._warned = warnings

    def failed(self, error: Exception) -> None:
        words = sentence(error) if isinstance(error, OSError) else str(error)
        if self._wanted.as_json:
            write_json({"error": type(error).__name__, "message": words})
        if words != self._failing:
            self._failing = words
            _warn(f"{words}; trying again at every look")

    def fail_without_roots(self) -> None:
        failure = root_failure(self._node, self._wanted.roots)
        if failure is not None:
            raise Failure(failure)

    def ended(self) -> None:
        if not self._wanted.as_json:
            looks = f"{self._looks:,} look{'' if self._looks == 1 else 's'}"
            write(f"ended after {looks}; the file has {format_size(self._size_bytes)}\n")


def _dry_run(wanted: Wanted, node: Node) -> None:
    if os.path.exists(wanted.path):  # noqa: PTH110
        Recording(wanted.path).close()
    readings = NodeReader(node).readings()
    if wanted.as_json:
        listed = [as_plain(reading) for reading in readings]
        write_json({"path": wanted.path, "dry_run": True, "readings": listed})
    else:
        write(
            f"would record {_devices(len(readings))} to {printable(wanted.path)}\n"
            "dry run: nothing was written\n"
        )


def _devices(count: int) -> str:
    return f"{count:,} device{'' if count == 1 else 's'} of containers"


def _warn(words: str) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    sys.stderr.write(f"{now} {printable(words)}\n")
    sys.stderr.flush()
