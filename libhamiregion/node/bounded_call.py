"""A call that may never come back: it must not hold up who has made it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class BoundedCall(Generic[T]):
    """Calls a function in a thread of its own, and waits for so long and no longer.

    While a call hangs, no second one is begun: the thread that has made it cannot be ended.

    Threads: one at a time.

    Args:
        function: What to call.
        name: Of the thread.
        keeps_late: Whether a call that comes too late is waited for again, and its result taken.
            Else nobody waits for it, and what it returns is of long ago and dropped.
    """

    def __init__(self, function: Callable[[], T], name: str, *, keeps_late: bool = False) -> None:
        self._function = function
        self._name = name
        self._keeps_late = keeps_late
        self._thread: threading.Thread | None = None
        self._result: list[T] = []
        self._error: Exception | None = None

    @property
    def hangs(self) -> bool:
        """Whether a call has not come back in time."""
        return self._thread is not None

    def __call__(self, for_s: float) -> list[T]:
        """What it returned, in a list; an empty one if it has not ended by then.

        Args:
            for_s: How long to wait, seconds.

        Raises:
            Exception: What it raised.
        """
        if self._thread is not None and not self._keeps_late:
            if self._thread.is_alive():
                return []
            self._thread = None
        if self._thread is None:
            self._result, self._error = [], None
            self._thread = threading.Thread(target=self._call, name=self._name, daemon=True)
            self._thread.start()
        self._thread.join(for_s)
        if self._thread.is_alive():
            return []
        self._thread = None
        if self._error is not None:
            raise self._error
        return self._result

    def _call(self) -> None:
        try:
            self._result.append(self._function())
        except Exception as error:  # noqa: BLE001 (raised again where it was asked for)
            self._error = error
