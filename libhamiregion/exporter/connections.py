"""Connections that are watched: none waits for its client for ever, and idle ones make room.

uvicorn speaks HTTP, and waits for a client that never asks or never reads. A `Connection` knows
since when it has been waiting for its client; one rule for all kinds of slowness follows from that:
it is ended when its patience is over, or when it has waited longest and a newcomer needs its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from typing import TYPE_CHECKING, Any, Final

import attrs
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)
# uvicorn's words: warnings about clients that make no sense are not worth a line each.
_uvicorn_log = logging.getLogger(f"{__name__}.uvicorn")
_uvicorn_log.setLevel(logging.CRITICAL)

# What one client may have waiting in this process, beside the answer that all share.
_HIGH_WATER_BYTES: Final = 64 * 1024
# An end of a connection that the other side does not acknowledge.
_CLOSE_TIMEOUT_S: Final = 5.0
# A newcomer takes the place of none that has just come, or just begun to read.
_GRACE_S: Final = 0.25
# The C struct that says: on close, wait for nothing.
_LINGER_NOT: Final = struct.pack("ii", 1, 0)


@attrs.frozen
class ServerLimits:
    """What one server spends on its clients at most.

    Attributes:
        connections: Open at once. One more takes the place of the one that has waited longest for
            its client, be it for a request or for reading; without such a one it is refused.
        header_bytes: Of a request's head that is not whole yet.
        header_timeout_s: From connecting, or a request's first byte, to the end of its head; for
            the handshake of TLS too.
        idle_timeout_s: Between two requests. Scrapes come every 15 to 60 s, and a new connection
            for each costs more than the scrape with TLS.
        stall_timeout_s: For a client that takes nothing of its answer.
        answer_timeout_s: From a request to the end of its answer.
        render_timeout_s: For a scrape to be made; then it is a 503.
        stop_timeout_s: For answers under way when the server stops.
        answers_bytes: Of answers that are being sent, compressed. With more, those that have been
            under way for longest are ended before a new scrape is made.
    """

    connections: int = 128
    header_bytes: int = 16 * 1024
    header_timeout_s: float = 10.0
    idle_timeout_s: float = 90.0
    stall_timeout_s: float = 20.0
    answer_timeout_s: float = 120.0
    render_timeout_s: float = 30.0
    stop_timeout_s: float = 10.0
    answers_bytes: int = 16 * 1024 * 1024


class Connection(H11Protocol):
    """One client.

    Attributes:
        waiting_since: Since when it has been waiting for the client, on the loop's clock; None
            while the client waits for it.
        patience_s: How long it may.
        asked_at: When the request that is being answered came; None without one.
        slow_since: When the client first failed to keep up with the answer under way.
    """

    def __init__(
        self, limits: ServerLimits, made: Callable[[Connection], None], **given: Any
    ) -> None:
        super().__init__(**given)
        self.logger = _uvicorn_log
        self._limits = limits
        self._made = made
        self._site, self.app = self.app, self._answer
        self.waiting_since: float | None = self.loop.time()
        self.patience_s = limits.header_timeout_s
        self.asked_at: float | None = None
        self.slow_since: float | None = None
        self._is_half_closed = False

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked_at, self.waiting_since = self.loop.time(), None

        async def send_on(message: Any) -> None:
            if self.transport.is_closing():
                raise ConnectionAbortedError
            await send(message)

        try:
            await self._site(scope, receive, send_on)
        except asyncio.CancelledError:
            # Its answer took too much memory for too long, or the server stops.
            self.abort("its answer was given up")
        except ConnectionAbortedError:
            _log.debug("%s: the client went before its answer", self.client)
        finally:
            self.asked_at = self.slow_since = None
            # A part of the next request may be here already.
            has_more = bool(self.conn.trailing_data[0])
            limits = self._limits
            self._wait(limits.header_timeout_s if has_more else limits.idle_timeout_s)
            if self._is_half_closed:
                self.transport.close()

    def _wait(self, patience_s: float) -> None:
        self.waiting_since, self.patience_s = self.loop.time(), patience_s

    @property
    def is_idle(self) -> bool:
        """Whether it has been asked before, and is not now."""
        return self.asked_at is None and self.patience_s == self._limits.idle_timeout_s

    def waited_s(self, now: float) -> float:
        """How long it has been waiting for its client; 0 while it is not."""
        return 0.0 if self.waiting_since is None else now - self.waiting_since

    def judge(self, now: float) -> None:
        """End it if it has been waiting too long."""
        patience_s = self.patience_s
        if self.transport.is_closing():
            patience_s = _CLOSE_TIMEOUT_S
        elif self.asked_at is None and self.transport.get_write_buffer_size() > 0:
            patience_s = self._limits.stall_timeout_s
        if self.waited_s(now) > patience_s:
            self.abort("it has been waiting for its client for too long")
        elif self.asked_at is not None and now - self.asked_at > self._limits.answer_timeout_s:
            self.abort("its answer is read too slowly")

    def abort(self, why: str) -> None:
        """End it now, and have the kernel forget what the client did not read."""
        _log.debug("%s: connection ended: %s", self.client, why)
        with contextlib.suppress(OSError):
            connected = self.transport.get_extra_info("socket")
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self.transport.abort()

    # ---- what the event loop calls ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._wait(self._limits.header_timeout_s)
        self._made(self)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        if self.transport.is_closing():
            return
        if self.is_idle:
            self._wait(self._limits.header_timeout_s)
        try:
            super().data_received(data)
        except Exception:  # noqa: BLE001 (no client's bytes are worth a traceback)
            self.abort("its bytes could not be handled")

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Take the end of what the client sends; it may still read its answer."""
        self._is_half_closed = self.asked_at is not None and self.scheme == "http"
        return self._is_half_closed

    def pause_writing(self) -> None:
        """Wait until the client has read some."""
        super().pause_writing()
        self._wait(self._limits.stall_timeout_s)
        self.slow_since = self.slow_since or self.waiting_since

    def resume_writing(self) -> None:
        """Go on with the answer."""
        super().resume_writing()
        if self.asked_at is not None:
            self.waiting_since = None

    def shutdown(self) -> None:
        """End it after the answer under way."""
        try:
            super().shutdown()
        except Exception:  # noqa: BLE001 (whatever state a client has brought it into)
            self.abort("the server stops")


def make_room(connections: set[Any], most: int, newcomer: Connection) -> None:
    """End the connection that has waited longest for its client, if there are too many."""
    if len(connections) <= most:
        return
    now = newcomer.loop.time()

    def waited_s(each: Connection) -> float:
        return each.waited_s(now) if each.slow_since is None else now - each.slow_since

    others = [
        each
        for each in connections
        if each is not newcomer and (each.is_idle or waited_s(each) > _GRACE_S)
    ]
    victim = max(others, key=waited_s, default=newcomer)
    connections.discard(victim)
    victim.abort("there are too many")
