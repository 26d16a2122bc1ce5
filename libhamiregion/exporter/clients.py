"""One client of a server: HTTP/1.1 by h11, with an end to every wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import attrs
import h11

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

_log = logging.getLogger(__name__)

# What one client may have waiting in this process, beside the answer that all share.
_HIGH_WATER_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 16 * 1024
# An end of a connection that the other side does not acknowledge.
_CLOSE_TIMEOUT_S: Final = 5.0
# The C struct that says: on close, wait for nothing.
_LINGER_NOT: Final = struct.pack("ii", 1, 0)
_BOTH_DONE: Final = {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}
_CLOSE: Final = (b"connection", b"close")


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


class _Connection(asyncio.StreamReaderProtocol):
    """The streams' own protocol; says also when the client ends its side, or all is lost."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self.ended = asyncio.Event()

    def eof_received(self) -> bool | None:
        self.ended.set()
        return super().eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()
        super().connection_lost(error)


class Client:
    """One client, from its connection to its end; made in the task that serves it.

    Every wait for the client has a timer, at whose end the connection is ended.

    Args:
        connected: The socket; closed at the end.
        limits: How long to wait for what.

    Attributes:
        waiting_since: Since when it has been waiting for the client, on the loop's clock; None
            while the client waits for it. Within an answer it counts from the first wait on.
        is_idle: Whether it has been asked before, and is not now.
    """

    def __init__(self, connected: socket.socket, limits: ServerLimits) -> None:
        self._socket = connected
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        self._writer: asyncio.StreamWriter | None = None
        self._head = b""
        self._is_answering = self._is_last = False
        self.waiting_since: float | None = self._loop.time()
        self.is_idle = False

    async def serve(self, site: Callable[..., Awaitable[None]], tls: ssl.SSLContext | None) -> None:
        """Answer one request after the other, and end the connection.

        Args:
            site: An ASGI application.
            tls: What to make the connection with; None is plain HTTP.
        """
        try:
            reader = asyncio.StreamReader(limit=_READ_BYTES)
            transport, protocol = await self._loop.connect_accepted_socket(
                lambda: _Connection(reader),
                self._socket,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else self._limits.header_timeout_s,
            )
            transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
            self._writer = writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            while request := await self._request(reader):
                await self._answer(site, request, writer, protocol.ended)
                if self._is_last or self._http.states != _BOTH_DONE:
                    break
                self._http.start_next_cycle()
            with self._within(_CLOSE_TIMEOUT_S, "it does not acknowledge the end"):
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.TimeoutError, h11.ProtocolError) as error:
            _log.debug("connection ended: %r", error)
        finally:
            if self._writer is None:
                self._socket.close()
            else:
                self.abort("nothing is left to be done")

    def finish(self) -> None:
        """End it once its answer under way is sent; at once without one."""
        self._is_last = True
        if self._writer is None:
            self._end_handshake()
        elif not self._is_answering:
            self._writer.close()

    def abort(self, why: str) -> None:
        """End it now, and have the kernel forget what the client did not read."""
        if self._writer is None:
            self._end_handshake()
            return
        _log.debug("connection ended: %s", why)
        with contextlib.suppress(OSError):  # it may be closed
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self._writer.transport.abort()

    def _end_handshake(self) -> None:
        assert self._task is not None  # noqa: S101 (made in one)
        self._task.cancel()

    @contextlib.contextmanager
    def _within(self, seconds: float, otherwise: str) -> Iterator[None]:
        """End the connection if what is done here takes longer."""
        timer = self._loop.call_later(seconds, self.abort, otherwise)
        try:
            yield
        finally:
            timer.cancel()

    async def _request(self, reader: asyncio.StreamReader) -> h11.Request | None:
        """The next request, without its body; None if there is no more."""
        http, limits = self._http, self._limits
        self.waiting_since = self._loop.time()
        try:
            event = http.next_event()
            if self.is_idle and event is h11.NEED_DATA and not http.trailing_data[0]:
                with self._within(limits.idle_timeout_s, "it has been idle for too long"):
                    http.receive_data(await reader.read(_READ_BYTES))
                event = http.next_event()
            self.is_idle = False
            with self._within(limits.header_timeout_s, "its request does not come to its end"):
                while event is h11.NEED_DATA:
                    http.receive_data(await reader.read(_READ_BYTES))
                    event = http.next_event()
            return event if isinstance(event, h11.Request) else None
        except h11.RemoteProtocolError as error:
            if http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self._write_head(error.error_status_hint, [(b"content-length", b"0"), _CLOSE])
                if self._writer is not None:
                    self._writer.write(self._head)
            return None

    async def _answer(
        self,
        site: Callable[..., Awaitable[None]],
        request: h11.Request,
        writer: asyncio.StreamWriter,
        ended: asyncio.Event,
    ) -> None:
        http, transport = self._http, writer.transport
        path, _, query = _own_part(request.target).partition(b"?")
        headers = list(request.headers)
        if not has_body(headers):
            http.next_event()  # the end of the request
        scope = {
            "type": "http",
            "method": request.method.decode("ascii"),
            "path": unquote(path.decode("ascii")),
            "query_string": query,
            "headers": headers,
            "client": writer.get_extra_info("peername", ())[:2] or None,
        }

        async def receive() -> Mapping[str, Any]:
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: Mapping[str, Any]) -> None:
            if transport.is_closing():
                raise ConnectionAbortedError("the client has gone")
            if message["type"] == "http.response.start":
                self._write_head(message["status"], message["headers"])
                return
            data, self._head = self._head, b""
            data += http.send(h11.Data(data=message["body"])) or b""
            if not message["more_body"]:
                data += http.send(h11.EndOfMessage()) or b""
            writer.write(data)
            if transport.get_write_buffer_size() > _HIGH_WATER_BYTES:
                self.waiting_since = self.waiting_since or self._loop.time()
                with self._within(self._limits.stall_timeout_s, "it takes nothing of its answer"):
                    await writer.drain()

        self._is_answering, self.waiting_since = True, None
        with self._within(self._limits.answer_timeout_s, "its answer is read too slowly"):
            await site(scope, receive, send)
        self._is_answering, self.is_idle = False, True

    def _write_head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        response = h11.Response(
            status_code=status, headers=list(headers), reason=HTTPStatus(status).phrase.encode()
        )
        self._head = self._http.send(response) or b""


def has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request with these headers, names in lower case, has a body."""
    found = dict(headers)
    return b"transfer-encoding" in found or found.get(b"content-length", b"").strip(b"0") != b""


def _own_part(target: bytes) -> bytes:
    """Path and query of a request's target, which through a proxy has the whole address."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return target
    at = min((rest.find(mark) for mark in (b"/", b"?") if mark in rest), default=len(rest))
    return rest[at:] if rest[at : at + 1] == b"/" else b"/" + rest[at:]
