"""`hamiregion record`: write down what a node's containers hold and use, for reports."""

from __future__ import annotations

import os
import platform
import threading
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion import format_size, parse_size
from libhamiregion.node import Observer
from libhamiregion.node.events import EventReporter
from libhamiregion.node.nvml import NvmlSampler
from libhamiregion.report import Recorder, Recording, RecordingError, RecordingWriter
from libhamiregion.report.recorder import read_samples
from libhamiregion.report.writer import (
    DEFAULT_INTERVAL_S,
    DEFAULT_MAX_SIZE_BYTES,
    DEFAULT_RETENTION_S,
)
from libhamiregion.text import error_text, printable
from libhamiregion.units import parse_duration

from . import options
from .failures import Failure
from .format import count
from .help import Verb
from .node_page import node_warnings, root_failure
from .output import DRY_RUN, write, write_json
from .service_log import ServiceLog
from .signals import end_unfinished, stop_signals
from .tables import UNLIMITED

if TYPE_CHECKING:
    from libhamiregion.node import Node
    from libhamiregion.report.writer import Written

    from .options import DriverChoice, NodeChoice


# A look that is being made when the end is asked for may take so long.
_LAST_LOOK_S = 15.0


@click.command(
    cls=Verb,
    examples=[
        "hamiregion record --to /var/lib/hamiregion/node.db",
        "hamiregion record --to node.db --once --dry-run",
    ],
    brief={"Limits": ("retention_s", "max_size_bytes")},
)
@click.option(
    "--to",
    "path",
    type=options.NO_DIRECTORY,
    required=True,
    metavar="FILE",
    help="The recording; made if it is not there, else continued.",
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
    type=options.Parsed("period", options.none_or(UNLIMITED, parse_duration)),
    default=f"{DEFAULT_RETENTION_S / 86_400:g}d",
    show_default=True,
    metavar="PERIOD",
    help="How much recorded time to keep: 90m, 24h, 7d, 2w, or `unlimited`.",
)
@click.option(
    "--max-size",
    "max_size_bytes",
    type=options.Parsed("size", options.none_or(UNLIMITED, parse_size)),
    default=format_size(DEFAULT_MAX_SIZE_BYTES).replace(" ", ""),
    show_default=True,
    metavar="SIZE",
    help="Size of the file at most; the oldest goes first.  4MiB or more, or `unlimited`.",
)
@click.option("--once", is_flag=True, help="One look, then end: for cron, or to try it.")
@options.driver_options
@options.node_options
@options.dry_run_option
@options.json_option
def record(
    path: str,
    once: bool,
    driver: DriverChoice,
    node_choice: NodeChoice,
    dry_run: bool,
    as_json: bool,
    **bounds: Any,
) -> None:
    """Write down what the containers of this node hold and use, for `hamiregion report`.

    FILE is an SQLite database.  A look writes only what has changed, all of it or nothing: a
    recorder that is killed loses no look that was done.  An idle node costs a megabyte a day, 256
    busy containers with two devices each some 20 to 130.

    \b
    hamiregion record --to /var/lib/hamiregion/node.db
    hamiregion report --from /var/lib/hamiregion/node.db --since 24h --to report.html

    One recorder per FILE, and nothing is made beside a FILE that is no recording.  A disk that is
    full, or read-only, does not end it, nor keep it from beginning: it says so on stderr (at the
    1st, 2nd, 4th, 8th time), tries again at every look, and what it missed is a gap.  Readers need
    not be kept out.

    Ended by Ctrl-C or SIGTERM.  Exit codes: 0 ended in order, 1 failed (FILE is no recording, or
    damaged, or another recorder's, or cannot be made there at all; with --once: the look could not
    be written), 2 wrong usage.

    JSON: one object per look, with the keys look, allocations (containers' devices seen), rows
    (written), whole (whether everything was written: at the start, each hour, after a gap) and
    size_bytes; for a look that failed, error and message.  With --dry-run: path, dry_run, and
    readings, a list of objects with the fields of Allocation and Sample.
    """  # noqa: D301 (click looks for the character itself)
    try:
        with node_choice.open() as node:
            if dry_run:
                _dry_run(path, node, as_json=as_json)
                return
            name = node_choice.node_name or platform.node() or None
            with RecordingWriter(path, node=name, must_open=once, **bounds) as writer:
                # Not closed: a driver that does not answer would keep this from ending.
                sampler = None if driver.no_driver else NvmlSampler(driver.library)
                recorder = Recorder(node, writer, sampler=sampler)
                every = "once" if once else f"every {writer.interval_s:g} s"
                log = _Log(node, f"{every} to {printable(path)}", as_json=as_json)
                if once:
                    log.looked(recorder.look())
                    failure = root_failure(node, node_choice.roots)
                    if failure is not None:
                        raise Failure(failure)
                else:
                    _run(recorder, log)
    except RecordingError as error:
        raise Failure(str(error)) from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _run(recorder: Recorder, log: _Log) -> None:
    ended = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            recorder.run(ended.wait, looked=log.looked, failed=log.failed)
        except BaseException as error:  # noqa: BLE001 (raised again in the main thread)
            failures.append(error)
        finally:
            stop.ask()

    with stop_signals() as stop:
        worker = threading.Thread(target=work, name="recorder", daemon=True)
        worker.start()
        stop.wait()
        ended.set()
        worker.join(_LAST_LOOK_S)
        if worker.is_alive():
            end_unfinished([f"a look has not ended within {_LAST_LOOK_S:g} s; it is not recorded"])
    for failure in failures:
        raise failure
    log.ended()


class _Log:
    """What is said while it runs: the first look, what goes wrong, and when it is right again."""

    def __init__(self, node: Node, where: str, *, as_json: bool) -> None:
        self._node = node
        self._where = where
        self._as_json = as_json
        self._reporter = EventReporter("record", ServiceLog(as_json=as_json))
        self._looks = 0
        self._size_bytes = 0

    def looked(self, written: Written) -> None:
        self._looks += 1
        self._size_bytes = written.size_bytes
        if self._as_json:
            write_json("look/1", written)
        elif self._looks == 1:
            write(f"recording {_devices(written.allocations)} {self._where}\n")
        self._reporter.recovered()
        for warning in node_warnings(self._node):
            self._reporter.emit("warning", warning, distinct=warning)

    def failed(self, error: Exception) -> None:
        if self._as_json:
            write_json(
                "look-failed/1", {"error": type(error).__name__, "message": error_text(error)}
            )
        self._reporter.failed("this look is a gap, the next is tried", error)

    def ended(self) -> None:
        if not self._as_json:
            size = format_size(self._size_bytes)
            write(f"ended after {count(self._looks, 'look')}; the file has {size}\n")


def _dry_run(path: str, node: Node, *, as_json: bool) -> None:
    if os.path.exists(path):  # noqa: PTH110
        Recording(path).close()
    samples = read_samples(Observer(node).observe())
    if as_json:
        readings = [{**attrs.asdict(of), **attrs.asdict(each)} for of, each in samples.items()]
        write_json("readings/1", {"path": path, "dry_run": True, "readings": readings})
    else:
        write(f"would record {_devices(len(samples))} to {printable(path)}\n{DRY_RUN}\n")


def _devices(number: int) -> str:
    return f"{count(number, 'device')} of containers"
