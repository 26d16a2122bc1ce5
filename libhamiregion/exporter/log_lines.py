"""Log lines that cannot fill a disk: one event, one short line, told ever more seldom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from libhamiregion.text import printable

if TYPE_CHECKING:
    import logging

#: Characters of a log line at most.
LINE_LIMIT: Final = 500
_KEYS_LIMIT: Final = 1024


class RepeatedEvents:
    """Logs an event at its 1st, 2nd, 4th, 8th ... time in a row.

    Threads: one at a time.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._times: dict[str, int] = {}

    def failed(self, key: str, message: str, error: BaseException | None = None) -> None:
        """Count a failure, and log it if it is its turn.

        Args:
            key: What failures of the same kind have in common; stands before the message.
            message: One line; it is escaped and cut.
            error: Its traceback is logged too where debug messages are wanted.
        """
        if key not in self._times and len(self._times) >= _KEYS_LIMIT:
            return
        times = self._times[key] = self._times.get(key, 0) + 1
        if times & (times - 1) == 0:
            repeated = f" ({times} times)" if times > 1 else ""
            # Handlers that count repetitions tell records apart by their pattern.
            pattern = key + ": %s" + repeated
            self._log.warning(pattern, printable(message, LINE_LIMIT - len(pattern)))
            self._log.debug("the traceback of that", exc_info=error)

    def recovered(self, key: str) -> bool:
        """Forget the failures of a kind; True if there were any."""
        return self._times.pop(key, None) is not None
