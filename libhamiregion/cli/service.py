"""Long-running verbs: their log, one line per event, and their end."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import attrs

from libhamiregion.services.events import Event, EventReporter
from libhamiregion.text import printable

from .failures import FAILED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from libhamiregion.node import Observer

LEVELS = ("debug", "info", "warning", "error")

_LINE_LIMIT = 500
_CUT = "..."
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


# ---- the log -------------------------------------------------------------------------------------


class ServiceLog:
    """Writes events, and this library's log records as events, a line each; from any thread.

    A line has 500 characters at most. Lines that cannot be written are dropped: neither a full disk
    nor a reader that has gone ends a service.

    Args:
        as_json: Write each event as an object with the fields of `Event`.
        on_stdout: Write to stdout instead of stderr, for a single pass whose events are the answer.
    """

    def __init__(self, *, as_json: bool, on_stdout: bool = False) -> None:
        self._as_json = as_json
        self._on_stdout = on_stdout
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Write one event."""
        line = _as_json_line(event) if self._as_json else _as_line(event)
        stream: TextIO = sys.stdout if self._on_stdout else sys.stderr
        with self._lock, contextlib.suppress(OSError):
            stream.write(line)
            stream.flush()

    def emit(self, task: str, event: str, message: str, **detail: Any) -> None:
        """Write an event of the service itself."""
        self(Event(time.time(), task, event, printable(message), None, detail))

    def capture_logging(self, level: str) -> None:
        """Write log records: this library's of this level and above, warnings of all others."""
        root = logging.getLogger()
        root.handlers[:] = [_RecordHandler(self)]
        root.setLevel(logging.WARNING)
        logging.getLogger("libhamiregion").setLevel(level.upper())


class _RecordHandler(logging.Handler):
    """Emits log records as events; of repeated warnings the 1st, 2nd, 4th, 8th ..."""

    def __init__(self, log: ServiceLog) -> None:
        super().__init__()
        self._log = log
        self._reporters: dict[str, EventReporter] = {}

    def emit(self, record: logging.LogRecord) -> None:
        names = record.name.split(".")
        task = names[1] if names[0] == "libhamiregion" and len(names) > 1 else names[0]
        level, message = record.levelname.lower(), _message(record)
        if record.levelno < logging.WARNING:
            self._log.emit(task, level, message)
            return
        reporter = self._reporters.setdefault(task, EventReporter(task, self._log))
        # By its pattern: a message may hold text from outside.
        reporter.emit(level, message, distinct=str(record.msg))


def _message(record: logging.LogRecord) -> str:
    """A record as one line: of a traceback the exception and where it was raised."""
    message = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return message
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{PurePath(where.filename).name}:{where.lineno}"
    return f"{message}: {type(error).__name__}: {error} ({place})"


def _as_line(event: Event) -> str:
    """An event as a line: when (UTC), task, kind, message."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event.time_s))
    line = f"{when} {event.task:<8} {event.event:<12} {event.message}"
    return printable(line, _LINE_LIMIT - 1) + "\n"


def _as_json_line(event: Event) -> str:
    """An event as an object on one line, ASCII only; what makes it too long is cut off."""
    fields = {"schema": "hamiregion/event/1", **attrs.asdict(event, recurse=False)}
    for name, empty in (("detail", {}), ("container", None)):
        if _excess(fields) > len(event.message) - len(_CUT):
            fields[name] = empty
    excess = _excess(fields)
    if excess > 0:
        fields["message"] = event.message[: -(excess + len(_CUT))] + _CUT
    return json.dumps(fields) + "\n"


def _excess(fields: dict[str, Any]) -> int:
    return len(json.dumps(fields)) + 1 - _LINE_LIMIT


# ---- the end -------------------------------------------------------------------------------------


class Stop:
    """A stop request.

    A pipe: the locks of a threading.Event may be held by the very code that a signal interrupts.
    """

    def __init__(self) -> None:
        self._is_asked = False
        self._reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)

    def ask(self) -> None:
        """Ask for the end; from any thread, and more than once."""
        self._is_asked = True
        with contextlib.suppress(BlockingIOError):
            os.write(self.writing, b"\0")

    def wait(self) -> None:
        """Return once the end has been asked for."""
        while not self._is_asked:
            os.read(self._reading, 1)


def on_signals(handler: Callable[..., object], *numbers: signal.Signals) -> None:
    """Handle signals; one that is ignored at the start, as SIGHUP by nohup, stays ignored."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


@contextlib.contextmanager
def stop_signals() -> Iterator[Stop]:
    """Have SIGTERM, SIGINT and SIGHUP ask for the end, which may take some seconds.

    Signals after the first one are ignored: the end must not be cut short.
    """
    stop = Stop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    is_signalled = False

    def on_signal(*_: object) -> None:
        nonlocal is_signalled
        is_signalled = True
        stop.ask()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    # A signal that comes just before the wait, or to another thread, does not interrupt it.
    signal.set_wakeup_fd(stop.writing, warn_on_full_buffer=False)
    on_signals(on_signal, *SIGNALS)
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(-1)
        if not is_signalled:
            for number, handler in before.items():
                signal.signal(number, handler)


def end_unfinished(left: Iterable[str]) -> NoReturn:
    """End the program at once with exit code 1.

    A thread that hangs in a region's call would keep the interpreter from ending: it closes regions
    then, which waits for calls in progress.

    Args:
        left: What has not ended in order, as sentences.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        sys.stderr.write(f"Error: not ended in order: {printable('; '.join(left))}\n")
        sys.stderr.flush()
    os._exit(FAILED)


def serve_documents(observer: Observer) -> None:
    """Serve the node's latest observation by the socket of this pod, if it has one."""
    from libhamiregion.services import document_socket

    if path := os.environ.get(document_socket.VARIABLE):
        document_socket.serve_documents(path, observer)


def collect_rarely() -> None:
    """Have fewer garbage collections: a tenth less time, for 11 MiB of memory."""
    gc.set_threshold(50_000)
