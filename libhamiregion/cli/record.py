"""`hamiregion record`: record usage of a node's containers, for reports."""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import click

from libhamiregion import format_size, parse_size
from libhamiregion.node import Observer
from libhamiregion.report import Recorder, RecordingError, RecordingWriter
from libhamiregion.report.recorder import read_samples
from libhamiregion.report.writer import (
    DEFAULT_INTERVAL_S,
    DEFAULT_MAX_SIZE_BYTES,
    DEFAULT_RETENTION_S,
)
from libhamiregion.services.events import EventReporter
from libhamiregion.text import count_text, error_text, printable
from libhamiregion.units import parse_duration

from . import options
from .failures import Failure, bad_arguments, failures_of
from .help import verb
from .output import DRY_RUN, write, write_json
from .service import SIGNALS, ServiceLog, on_signals
from .tables import UNLIMITED
from .views import node_warnings, root_failure

if TYPE_CHECKING:
    from libhamiregion.node import Node
    from libhamiregion.report.writer import Written


@verb(
    "hamiregion record --to /var/lib/hamiregion/node.db",
    "hamiregion record --to node.db --once --dry-run",
)
@click.option(
    "--to",
    "path",
    type=options.NO_DIRECTORY,
    required=True,
    metavar="FILE",
    help="The recording; created, or continued.",
)
@click.option(
    "--interval",
    "interval_s",
    type=options.Seconds(min=0.05, max=86_400),
    default=DEFAULT_INTERVAL_S,
    show_default=True,
    metavar="SECONDS",
    help="Sampling interval.",
)
@options.option(
    "--retention",
    "retention_s",
    group="Limits",
    type=options.Parsed("period", options.none_or(UNLIMITED, parse_duration)),
    default=f"{DEFAULT_RETENTION_S / 86_400:g}d",
)
@options.option(
    "--max-size",
    "max_size_bytes",
    group="Limits",
    type=options.Parsed("size", options.none_or(UNLIMITED, parse_size)),
    default=format_size(DEFAULT_MAX_SIZE_BYTES).replace(" ", ""),
)
@click.option("--once", is_flag=True, help="Record one sample and exit.")
@options.driver_options
@options.node_options
@options.dry_run_option
@options.json_option
def record(
    path: str,
    once: bool,
    driver: options.DriverChoice,
    node_choice: options.NodeChoice,
    dry_run: bool,
    as_json: bool,
    **bounds: Any,
) -> None:
    """Record the usage of this node's containers in a file, for `hamiregion report`."""
    name = node_choice.node_name or platform.node() or None
    with bad_arguments(), failures_of(RecordingError), node_choice.open() as node:
        observer = Observer(node, sampler=driver.sampler())
        if dry_run:
            RecordingWriter(path, **bounds, dry_run=True)
            _dry_run(path, observer, as_json=as_json)
            return
        with RecordingWriter(path, node=name, **bounds) as writer:
            recorder = Recorder(observer, writer)
            every = "once" if once else f"every {writer.interval_s:g} s"
            log = _Log(node, f"{every} to {printable(path)}", as_json=as_json)
            if once:
                log.looked(recorder.look())
                failure = root_failure(node, node_choice.roots)
                if failure is not None:
                    raise Failure(failure)
            else:
                on_signals(_end, *SIGNALS)
                recorder.run(time.sleep, looked=log.looked, failed=log.failed)


def _end(*_: object) -> NoReturn:
    # A look that is being written is rolled back.
    raise SystemExit(0)


class _Log:
    """Reports the first look, failures, and recovery."""

    def __init__(self, node: Node, where: str, *, as_json: bool) -> None:
        self._node = node
        self._where: str | None = where
        self._as_json = as_json
        self._reporter = EventReporter("record", ServiceLog(as_json=as_json))

    def looked(self, written: Written) -> None:
        if self._as_json:
            write_json("look/1", written)
        elif self._where is not None:
            write(f"recording {_devices(written.allocations)} {self._where}\n")
            self._where = None
        self._reporter.recovered()
        for warning in node_warnings(self._node):
            self._reporter.emit("warning", warning, distinct=warning)

    def failed(self, error: Exception) -> None:
        if self._as_json:
            fields = {"error": type(error).__name__, "message": error_text(error)}
            write_json("look-failed/1", fields)
        self._reporter.failed("this look is a gap, the next is tried", error)


def _dry_run(path: str, observer: Observer, *, as_json: bool) -> None:
    samples = read_samples(observer.observe())
    if as_json:
        readings = [{**attrs.asdict(of), **attrs.asdict(each)} for of, each in samples.items()]
        write_json("readings/1", {"path": path, "dry_run": True, "readings": readings})
    else:
        write(f"would record {_devices(len(samples))} to {printable(path)}\n{DRY_RUN}\n")


def _devices(number: int) -> str:
    return f"{count_text(number, 'device')} of containers"
