"""One thread that does slow things for an event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Worker:
    """Runs functions one after the other in a thread of its own.

    Unlike an executor's, the thread is a daemon: a driver that never answers must not keep the
    program from ending. It starts with the first function.

    To be used on one event loop.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = (
            queue.SimpleQueue()
        )

    def run(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Have a function called in the thread; the future has its result or error."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tasks.put((function, future))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        return future

    def stop(self) -> None:
        """End the thread after what it has been given; does not wait for it."""
        self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            function, future = task
            result, error = None, None
            try:
                result = function()
            except Exception as raised:  # noqa: BLE001 (whoever waits gets it)
                error = raised
            try:
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:
                # The loop has ended, and with it everybody who waited.
                return
            # Nothing of a task, such as a whole scrape, is kept until the next one comes.
            del task, function, future, result, error


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
