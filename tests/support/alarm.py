"""A signal that comes while a call waits."""

import contextlib
import signal
from collections.abc import Callable, Iterator


class Interrupted(Exception):
    """What a signal's handler raises, as Python's own does at Ctrl-C."""


def interrupt() -> None:
    """Raise it."""
    raise Interrupted


@contextlib.contextmanager
def alarm(after_s: float, act: Callable[[], object] = interrupt) -> Iterator[None]:
    """Have the handler of a signal act in the main thread, once, so long from now."""
    before = signal.signal(signal.SIGALRM, lambda *_: act())
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
