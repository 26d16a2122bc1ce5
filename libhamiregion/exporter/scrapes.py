"""Scrapes, made one at a time for all who ask meanwhile."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

import attrs

from .bodies import Body, Gzip

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from .working import Worker


@attrs.frozen
class Wanted:
    """What a scrape is to have.

    Attributes:
        openmetrics: The format: OpenMetrics, or else Prometheus's own.
        names: Of metrics, none else; None is all.
    """

    openmetrics: bool = False
    names: frozenset[str] | None = None


class ScrapeTimeout(Exception):
    """No scrape came in time; the message says how long one has been under way."""


@attrs.define(eq=False)
class _Batch:
    """A scrape that has not begun, and what those who wait for it want of it."""

    encodings: set[bool] = attrs.field(factory=set)
    task: asyncio.Task[dict[bool, Body]] | None = None


class Scrapes:
    """Has scrapes made in a thread, one at a time.

    Whoever asks while one is being made gets the next one, with all others who asked for the same
    meanwhile: nobody gets figures from before the question, and there is never more than one
    scrape under way and one of each kind waiting, however many ask.

    To be used on one event loop.

    Args:
        render: Makes the text, given ``openmetrics``; and ``names``, if it has that parameter.
        worker: Where it runs.
        room: Waits until there is memory for one more answer.
        timeout_s: How long to wait for an answer.
    """

    def __init__(
        self,
        render: Callable[..., bytes | Iterable[bytes]],
        worker: Worker,
        room: Callable[[], Awaitable[None]],
        timeout_s: float,
    ) -> None:
        self._render = render
        self._takes_names = _takes_names(render)
        self._worker = worker
        self._room = room
        self._timeout_s = timeout_s
        self._gzip = Gzip()
        self._waiting: dict[Wanted, _Batch] = {}
        self._turn = asyncio.Lock()
        self._running_since: float | None = None

    @property
    def running_s(self) -> float:
        """How long the scrape that is being made has been so; 0 without one."""
        if self._running_since is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._running_since

    async def get(self, wanted: Wanted, *, gzip: bool) -> Body:
        """A scrape that begins now or later.

        Raises:
            ScrapeTimeout: It takes too long, for example because a driver does not answer.
            Exception: Whatever `render` raised.
        """
        # Nobody waits behind what is known to hang: each who waits has a connection.
        if self.running_s > self._timeout_s:
            raise self._timed_out()
        if not self._takes_names:
            wanted = Wanted(wanted.openmetrics)
        batch = self._waiting.get(wanted)
        if batch is None:
            batch = self._waiting[wanted] = _Batch()
            batch.task = asyncio.create_task(self._make(batch, wanted))
            batch.task.add_done_callback(_retrieved)
        batch.encodings.add(gzip)
        assert batch.task is not None  # noqa: S101 (made above, in the same step)
        try:
            # Many wait for one scrape, and any of them may give up.
            made = await asyncio.wait_for(asyncio.shield(batch.task), self._timeout_s)
        except asyncio.TimeoutError:
            raise self._timed_out() from None
        return made[gzip]

    async def _make(self, batch: _Batch, wanted: Wanted) -> dict[bool, Body]:
        async with self._turn:
            try:
                await self._room()
            finally:
                # From here on it is too late to join.
                del self._waiting[wanted]
            encodings = frozenset(batch.encodings)
            self._running_since = asyncio.get_running_loop().time()
            try:
                return await self._worker.run(lambda: self._encoded(wanted, encodings))
            finally:
                self._running_since = None

    def _encoded(self, wanted: Wanted, encodings: frozenset[bool]) -> dict[bool, Body]:
        only = {} if wanted.names is None else {"names": wanted.names}
        body = Body.of(self._render(openmetrics=wanted.openmetrics, **only))
        return {gzip: self._gzip.compress(body, wanted) if gzip else body for gzip in encodings}

    def _timed_out(self) -> ScrapeTimeout:
        return ScrapeTimeout(f"a scrape has been under way for {self.running_s:.0f} s")


def _takes_names(render: Callable[..., object]) -> bool:
    parameters = inspect.signature(render).parameters.values()
    return any(each.name == "names" or each.kind is each.VAR_KEYWORD for each in parameters)


def _retrieved(task: asyncio.Task[dict[bool, Body]]) -> None:
    # Where all who waited have gone, nobody else looks at the error, and asyncio complains.
    if not task.cancelled():
        task.exception()
