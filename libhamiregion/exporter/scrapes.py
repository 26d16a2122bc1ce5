"""Scrapes, made one at a time for all clients that ask meanwhile, and kept compressed."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import attrs
from isal import isal_zlib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

# On text like this level 1 takes a third of the time of level 3, for some 10 % more bytes.
_LEVEL: Final = 1
# zlib's windowBits for a gzip file.
_GZIP: Final = 31
_CHUNK_BYTES: Final = 128 * 1024
# Who unpacks keeps a copy of what is left of a part, once for each client.
_PART_BYTES: Final = 16 * 1024


class Source(Protocol):
    """Where a scrape's text comes from, such as a `NodeExporter`."""

    def pieces(self, openmetrics: bool = False) -> Iterator[bytes]:
        """The text in pieces, of which each is used before the next is asked for."""

    def not_ready(self) -> str | None:
        """Why scrapes are not complete; None if they are. Waits for nothing."""


@attrs.frozen(eq=False)
class Body:
    """The text of one scrape as a gzip file.

    Attributes:
        parts: What the file consists of; none is larger than 16 KiB.
        size: Bytes of the file.
        text_size: Bytes of the text.
    """

    parts: tuple[bytes, ...]
    size: int
    text_size: int

    @classmethod
    def of(cls, pieces: Iterator[bytes]) -> Body:
        """Compress a text piece by piece: the whole of it never exists."""
        stream = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, _GZIP)
        parts: list[bytes] = []
        text_size = 0

        def keep(made: bytes) -> None:
            parts.extend(made[at : at + _PART_BYTES] for at in range(0, len(made), _PART_BYTES))

        for piece in pieces:
            text_size += len(piece)
            keep(stream.compress(piece))
        keep(stream.flush())
        return cls(tuple(parts), sum(map(len, parts)), text_size)

    def text(self) -> Iterator[bytes]:
        """The text itself, in chunks."""
        stream: Any = isal_zlib.decompressobj(_GZIP)
        for part in self.parts:
            left = part
            while left:
                if chunk := stream.decompress(left, _CHUNK_BYTES):
                    yield chunk
                left = stream.unconsumed_tail
        if rest := stream.flush():
            yield rest


class ScrapeTimeout(Exception):
    """No scrape came in time; the message says how long one has been under way."""


class Scrapes:
    """Has scrapes made in a thread, one at a time.

    A client that asks while one is being made gets the next one, with all others who asked for the
    same format meanwhile: no client gets figures from before its question, and there is never more
    than one scrape under way and one of each format waiting, however many clients there are.

    To be used on one event loop.

    Args:
        source: Makes the text.
        timeout_s: How long to wait for an answer.
        answers_bytes: How much all answers that are being sent may take; see `sending`.
    """

    def __init__(self, source: Source, timeout_s: float, answers_bytes: int) -> None:
        self._source = source
        self._timeout_s = timeout_s
        self._answers_bytes = answers_bytes
        # By whether it is OpenMetrics.
        self._waiting: dict[bool, asyncio.Task[Body]] = {}
        self._scrape_lock = asyncio.Lock()
        self._running_since: float | None = None
        #: The body that each request is being sent; the oldest request first.
        self.sending: dict[asyncio.Task[Any], Body] = {}

    @property
    def running_s(self) -> float:
        """How long the scrape that is being made has been so; 0 without one."""
        if self._running_since is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._running_since

    async def get(self, *, openmetrics: bool) -> Body:
        """A scrape that begins now or later.

        Raises:
            ScrapeTimeout: It takes too long, for example because a driver does not answer.
            Exception: Whatever the source raised.
        """
        # No client waits behind a scrape that hangs: each one that waits has a connection.
        if self.running_s > self._timeout_s:
            raise self._timed_out()
        task = self._waiting.get(openmetrics)
        if task is None:
            task = self._waiting[openmetrics] = asyncio.create_task(self._make(openmetrics))
            task.add_done_callback(_retrieved)
        try:
            # Many wait for one scrape, and any of them may give up.
            return await asyncio.wait_for(asyncio.shield(task), self._timeout_s)
        except asyncio.TimeoutError:
            raise self._timed_out() from None

    async def _make(self, openmetrics: bool) -> Body:
        async with self._scrape_lock:
            self._make_room()
            # From here on it is too late to join.
            del self._waiting[openmetrics]
            self._running_since = asyncio.get_running_loop().time()
            try:
                return await in_thread(lambda: Body.of(self._source.pieces(openmetrics)))
            finally:
                self._running_since = None

    def _make_room(self) -> None:
        """End the answers that have been under way for longest, if all together are too large."""
        while sum({id(each): each.size for each in self.sending.values()}.values()) > (
            self._answers_bytes
        ):
            task = next(iter(self.sending))
            del self.sending[task]
            task.cancel()

    def _timed_out(self) -> ScrapeTimeout:
        return ScrapeTimeout(f"a scrape has been under way for {self.running_s:.0f} s")


def _retrieved(task: asyncio.Task[Body]) -> None:
    # Where all clients that waited have gone, nobody looks at the error, and asyncio complains.
    if not task.cancelled():
        task.exception()


def in_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Have a function called in a thread of its own; the future has its result or error.

    Unlike an executor's, the thread is a daemon: a driver that never answers must not keep the
    program from ending.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = function()
        except Exception as raised:  # noqa: BLE001 (whoever waits gets it)
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            # The loop has ended, and with it all clients that waited.
            return

    threading.Thread(target=work, name="hamiregion-work", daemon=True).start()
    return future
