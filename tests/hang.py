"""No hang is endless, and none is silent: the stacks of all threads are shown, and the end comes.

pytest-timeout ends what a test waits for. It gives one time to a test and its fixtures, so that
nothing limits the end of a fixture once that time is over, nor what an interpreter waits for at
its own end. Then the process ends here; pytest-xdist says which test it was in.
"""

import faulthandler
import os
from collections.abc import Generator

import pytest
from support.wait import PATIENCE_S

_stderr = 2


def pytest_configure() -> None:
    """Keep where errors go; pytest and tests put other files in that place."""
    global _stderr  # noqa: PLW0603
    _stderr = os.dup(2)


def _end_after(seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=_stderr)


def _timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker else item.config.getoption("timeout"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _end_after(_timeout_s(item) + PATIENCE_S)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    # A test that fails has pytest cancel the above.
    _end_after(_timeout_s(item) + PATIENCE_S)
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Threads that a test left running keep the interpreter no longer than this."""
    _end_after(PATIENCE_S)
