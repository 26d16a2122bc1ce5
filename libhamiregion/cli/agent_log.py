"""The events of long-running work on stdout: a line each, for people or as JSON."""

from __future__ import annotations

import errno
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import attrs

from libhamiregion.node.events import Event

from .output import write, write_json

if TYPE_CHECKING:
    from collections.abc import Callable

_FULL = (errno.ENOSPC, errno.EDQUOT)


class EventLog:
    """Writes events as they come, from any thread.

    A log that nobody reads any more is no reason to leave regions as they are: `lost` is called,
    once, and the events go nowhere from then on. A disk that is full is no reason to end: what it
    does not take is left out.
    """

    def __init__(self, lost: Callable[[], None], *, as_json: bool) -> None:
        self._lost = lost
        self._as_json = as_json
        self._lock = threading.Lock()
        #: Whether nobody reads it any more.
        self.is_lost = False

    def __call__(self, event: Event) -> None:
        """Write one event."""
        with self._lock:
            if self.is_lost:
                return
            try:
                if self._as_json:
                    write_json(as_object(event))
                else:
                    write(as_line(event))
            except OSError as error:
                if error.errno not in _FULL:
                    self.is_lost = True
                    # Flushing at the end would fail as well, with a message of its own.
                    sys.stdout = None
                    self._lost()

    def say(self, event: str, message: str, **detail: Any) -> None:
        """Write an event of the agent itself."""
        self(Event(time.time(), "agent", event, message, None, detail))


def as_object(event: Event) -> dict[str, Any]:
    """An event as JSON has it: its fields."""
    return attrs.asdict(event, recurse=False)


def as_line(event: Event) -> str:
    """An event as a line: when (UTC), which task, what."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event.time_s))
    return f"{when} {event.task:<8} {event.event:<12} {event.message}\n"
