"""Waiting until a long-running verb is told to end."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stop:
    """A wish to end, from a signal or from a thread.

    A pipe and no threading.Event: that one's lock may be held by the very code that the signal
    interrupts.
    """

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        #: The signal that asked for it; None if none did.
        self.signal: int | None = None

    def ask(self) -> None:
        """Ask for the end; from any thread, and more than once."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._writing, b".")

    def wait(self) -> None:
        """Return once somebody has asked."""
        os.read(self._reading, 1)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._reading)
        os.close(self._writing)


@contextlib.contextmanager
def stop_signals() -> Iterator[Stop]:
    """Have SIGTERM, SIGINT and SIGHUP ask for the end; a second one ends the program as usual."""
    stop = Stop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(number: int, _: object) -> None:
        stop.signal = number
        restore()
        stop.ask()

    for number in _SIGNALS:
        # Whoever started it with nohup wants it to go on.
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        restore()
        stop.close()
