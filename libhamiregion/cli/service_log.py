"""The log of what runs for long: one line per event, for people or as JSON, on one stream."""

from __future__ import annotations

import errno
import json
import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import attrs

from libhamiregion.node.events import Event, EventReporter
from libhamiregion.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

LEVELS = ("debug", "info", "warning", "error")

_LINE_LIMIT = 500
_CUT = "..."
_FULL = (errno.ENOSPC, errno.EDQUOT)


class ServiceLog:
    """Writes events, and this library's log records as events, a line each; from any thread.

    A line has 500 characters at most. A disk that is full ends nothing: what it does not take is
    left out. Where nobody reads the log any more, `lost` is called, once, and the rest is dropped.

    Args:
        as_json: Write each event as an object with the fields of `Event`.
        lost: Called when nobody reads the log any more.
        on_stdout: Write to stdout instead of stderr, for a single pass whose events are the answer.
    """

    def __init__(
        self,
        *,
        as_json: bool,
        lost: Callable[[], None] | None = None,
        on_stdout: bool = False,
    ) -> None:
        self._as_json = as_json
        self._lost = lost
        self._stream = "stdout" if on_stdout else "stderr"
        self._lock = threading.Lock()
        #: Whether nobody reads it any more.
        self.is_lost = False

    def __call__(self, event: Event) -> None:
        """Write one event."""
        line = as_json_line(event) if self._as_json else as_line(event)
        with self._lock:
            if self.is_lost:
                return
            try:
                stream = getattr(sys, self._stream)
                stream.write(line)
                stream.flush()
            except OSError as error:
                if error.errno in _FULL:
                    return
                self.is_lost = True
                # Flushing at the end would fail as well, with a message of its own.
                setattr(sys, self._stream, None)
                if self._lost is not None:
                    self._lost()

    def emit(self, task: str, event: str, message: str, **detail: Any) -> None:
        """Write an event of the service itself."""
        self(Event(time.time(), task, event, printable(message), None, detail))

    def capture_logging(self, level: str) -> None:
        """Write log records: this library's of this level and above, warnings of all others."""
        root = logging.getLogger()
        root.handlers[:] = [_RecordHandler(self)]
        root.setLevel(logging.WARNING)
        logging.getLogger("libhamiregion").setLevel(level.upper())
        # A log that nobody reads any more is no reason to write about that.
        logging.raiseExceptions = False


class _RecordHandler(logging.Handler):
    """Hands log records on as events; of warnings that repeat the 1st, 2nd, 4th, 8th ..."""

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
        # By its pattern: what stands in a message may come from outside.
        reporter.emit(level, message, distinct=str(record.msg))


def _message(record: logging.LogRecord) -> str:
    """A record as one line: of a traceback the exception and where it was raised."""
    message = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return message
    where = ""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        where = f" ({code.co_filename.rpartition('/')[2]}:{traceback.tb_lineno})"
        traceback = traceback.tb_next
    return f"{message}: {type(error).__name__}: {error}{where}"


def as_line(event: Event) -> str:
    """An event as a line: when (UTC), which task, what."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event.time_s))
    line = f"{when} {event.task:<8} {event.event:<12} {event.message}"
    return printable(line, _LINE_LIMIT - 1) + "\n"


def as_json_line(event: Event) -> str:
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
