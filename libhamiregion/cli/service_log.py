"""What a service says about itself, on stderr: a line each, for people or as JSON."""

from __future__ import annotations

import json
import logging
import sys
import time

from libhamiregion.text import printable

LEVELS = ("debug", "info", "warning", "error")


class _Lines(logging.Formatter):
    """When (UTC), how bad, what. Nothing in it steers a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        lines = self._message(record).splitlines() or [""]
        head = f"{when} {record.levelname.lower():<7} "
        return "\n".join(
            [head + printable(lines[0]), *("    " + printable(line) for line in lines[1:])]
        )

    def _message(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            message += "\n" + self.formatException(record.exc_info)
        return message


class _Objects(_Lines):
    """The same as an object per line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "time_s": record.created,
                "level": record.levelname.lower(),
                "message": self._message(record),
            }
        )


def log_to_stderr(level: str, *, as_json: bool) -> None:
    """Show this library's messages of this level and above."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Objects() if as_json else _Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("libhamiregion").setLevel(level.upper())
    # A log that nobody reads any more is no reason to write about that.
    logging.raiseExceptions = False
