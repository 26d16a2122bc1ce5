"""Waiting until a long-running verb is told to end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

from libhamiregion.text import printable

from .failures import FAILED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stop:
    """A stop request, from a signal or from a thread.

    A pipe and no threading.Event: that one's lock may be held by the very code that the signal
    interrupts. The lock of the pipe is reentrant.
    """

    def __init__(self) -> None:
        # Held to write and to close: the number of a closed descriptor is soon another file's.
        self._lock = threading.RLock()
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._asked = False
        #: The signal that asked for it; None if none did.
        self.signal: int | None = None

    @property
    def wakeup_fd(self) -> int:
        """Where a byte ends a wait that has just begun."""
        return self._writing

    def ask(self) -> None:
        """Ask for the end; from any thread, more than once, and also after the end."""
        self._asked = True
        with self._lock:
            if self._writing >= 0:
                with contextlib.suppress(BlockingIOError):
                    os.write(self._writing, b".")

    def wait(self) -> None:
        """Return once somebody has asked."""
        while not self._asked:
            os.read(self._reading, 64)

    def close(self) -> None:
        """Close the pipe."""
        with self._lock:
            reading, writing = self._reading, self._writing
            self._reading = self._writing = -1
        os.close(reading)
        os.close(writing)


@contextlib.contextmanager
def stop_signals() -> Iterator[Stop]:
    """Have SIGTERM, SIGINT and SIGHUP ask for the end, which takes some seconds at most.

    All that follows is the same request: the end gives back what must not outlast the program, and
    must not be cut short.
    """
    stop = Stop()
    # Whoever started it with nohup wants it to go on.
    before = {
        number: handler
        for number in _SIGNALS
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }

    def on_signal(number: int, _: object) -> None:
        stop.signal = stop.signal or number
        stop.ask()

    # A signal that comes just before the wait would not end it: Python's handler runs when the wait
    # is over. The interpreter's own writes into the pipe at once.
    woken_before = signal.set_wakeup_fd(stop.wakeup_fd, warn_on_full_buffer=False)
    for number in before:
        signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(woken_before)
        for number, handler in before.items():
            # A repeat may come as late as in the program's last moments, and must not change its
            # end: the interpreter takes its own handlers away before it ends, and leaves this.
            signal.signal(number, handler if stop.signal is None else signal.SIG_IGN)
        stop.close()


def end_unfinished(left: Iterable[str]) -> NoReturn:
    """End the program at once with exit code 1.

    A thread that hangs in a region's call would keep the interpreter from ending: it closes regions
    then, which waits for calls in progress.

    Args:
        left: What has not come to its end in order, as sentences.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if stream is sys.stderr:
                stream.write(f"Error: not ended in order: {printable('; '.join(left))}\n")
            stream.flush()
    os._exit(FAILED)
