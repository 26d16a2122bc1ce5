"""Waiting for what will happen, instead of sleeping until it has."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

_CALIBRATED = "HAMIREGION_TESTS_PATIENCE_S"
_QUIET_PATIENCE_S = 60
# A bare interpreter from start to end, on two quiet cores of the kind that CI has.
_QUIET_START_S = 0.02
_MOST_TIMES_SLOWER = 8


def _start_s() -> float:
    started = time.monotonic()
    subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)
    return time.monotonic() - started


def _calibrated() -> int:
    """How long to wait on this machine as it is now, in whole seconds.

    What xdist starts takes the number of the process that started it.
    """
    if _CALIBRATED not in os.environ:
        slower = sorted(_start_s() for _ in range(5))[2] / _QUIET_START_S
        times = min(max(slower, 1.0), _MOST_TIMES_SLOWER)
        os.environ[_CALIBRATED] = str(round(_QUIET_PATIENCE_S * times))
    return int(os.environ[_CALIBRATED])


# The one number that says when a test gives up. Nothing that passes waits that long.
PATIENCE_S = _calibrated()


def on_this_machine_s(quiet_s: float) -> float:
    """What takes so long at most on two quiet cores takes this machine no longer than that."""
    return quiet_s * PATIENCE_S / _QUIET_PATIENCE_S


def eventually(condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Return once the condition is true; fail if it does not become so.

    It is asked more seldom the longer it takes: who waits takes no processor from who works.
    """
    started = time.monotonic()
    while not condition():
        waited = time.monotonic() - started
        assert waited < within_s, "it did not happen"
        time.sleep(min(max(waited / 16, 0.001), 0.025))


def goes_on(began_s: float, for_s: float, *, is_enough: bool) -> bool:
    """Whether what began then goes on: for so long, and longer until there is enough of it.

    A busy machine gives it little at once; it does not go on for ever.
    """
    lasted_s = time.monotonic() - began_s
    return lasted_s < for_s or (lasted_s < PATIENCE_S and not is_enough)
