"""Single keys from the terminal, while a live picture is shown."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

# What arrows and function keys send.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[@-~]|O.|)")


class Keyboard:
    """A context in which keys come at once and are not shown; Ctrl-C stays what it is.

    Where stdin is no terminal there are none, and waiting is all that happens.
    """

    def __init__(self) -> None:
        self._modes: list[Any] | None = None
        self._open = sys.stdin is not None and sys.stdin.isatty()

    def __enter__(self) -> Self:
        if self._open:
            self._modes = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._modes is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._modes)

    def wait(self, seconds: float) -> str:
        """Wait for a key at most so long; of several the last one, empty if there was none."""
        seconds = max(0.0, seconds)
        if not self._open:
            time.sleep(seconds)
            return ""
        descriptor = sys.stdin.fileno()
        ready, _, _ = select.select([descriptor], [], [], seconds)
        if not ready:
            return ""
        typed = os.read(descriptor, 64)
        if not typed:
            # The terminal has gone.
            self._open = False
        return _SEQUENCE.sub("", typed.decode("ascii", "replace"))[-1:]
