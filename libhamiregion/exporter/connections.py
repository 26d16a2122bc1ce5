"""The connections of a server, and who of them has to go.

uvicorn speaks HTTP; it waits for ever for a client that never asks or never reads. What bounds that
is here: how many connections there are, how long each may take for what, and how many answers are
held for those who read slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import functools
import logging
import socket
import ssl
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import attrs
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from .tls import has_allowed_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .bodies import Body
    from .web_reload import LiveWebConfig

    #: An ASGI application that is also told on which connection it is asked.
    App = Callable[["Connection", Any, Any, Any], Awaitable[None]]

_log = logging.getLogger(__name__)
# uvicorn's words: warnings about clients that make no sense are not worth a line each.
_uvicorn_log = logging.getLogger(f"{__name__}.uvicorn")
_uvicorn_log.setLevel(logging.ERROR)

# What one client may have waiting in this process, beside the answer that all share.
_CHUNK_BYTES: Final = 128 * 1024
_HIGH_WATER_BYTES: Final = 64 * 1024
_SWEEP_INTERVAL_S: Final = 0.5
# An end of a connection that the other side does not acknowledge.
_CLOSE_TIMEOUT_S: Final = 5.0
# Who takes nothing for so long makes way when memory for answers runs out.
_STALLED_S: Final = 1.0
# Who does not ask for so long makes way when there are too many.
_CHANCE_S: Final = 0.5
# Who reads for so long makes way when there are too many, the first first.
_READING_S: Final = 0.25
# Of the event loop, from bytes that are there to a request that is being answered.
_TURNS: Final = 4
# Our own clock is this one; uvicorn's timer for idle connections does not see half a request.
_NEVER_S: Final = 1_000_000
# The C struct that says: on close, wait for nothing.
_LINGER_NOT: Final = struct.pack("ii", 1, 0)
# What accept() says of a client that went before it was accepted.
_ENDED_ALREADY: Final = (errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO, errno.EPERM)


@attrs.frozen
class ServerLimits:
    """What one server spends on its clients at most.

    Attributes:
        connections: Open at once. One more takes the place of one that asks nothing, or of the one
            that has read its answer for longest, of those first who have most; or is refused.
        header_bytes: Of a request's head that is not whole yet.
        header_timeout_s: From connecting, or a request's first byte, to the end of its head; for
            the handshake of TLS too.
        idle_timeout_s: Between two requests. Scrapes come every 15 to 60 s, and a new connection
            for each costs more than the scrape with TLS.
        stall_timeout_s: For a client that takes nothing of its answer.
        answer_timeout_s: For a client to take all of its answer.
        render_timeout_s: For a scrape to be made; then it is a 503.
        stop_timeout_s: For answers under way when the server stops.
        answers_bytes: Of answers that are being sent. With more, new scrapes wait, and who reads
            slowest is cut off.
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


class Phase(enum.Enum):
    """What a connection is about."""

    NEW = "nothing was asked yet"
    ASKING = "a request has begun"
    ANSWERING = "a request is being answered"
    IDLE = "the next request may come"
    CLOSING = "its end is under way"


class Connection(H11Protocol):
    """One client.

    Attributes:
        phase: What it is about.
        since: Since when, on the loop's clock.
        began: When its answer began to be sent; None while there is nothing to send.
        moved: When it last took a part of that.
        answer: What is being sent to it; shared by those who asked together.
    """

    def __init__(self, connections: Connections, greeting: asyncio.Task[None]) -> None:
        super().__init__(
            config=connections.config,
            server_state=connections.state,
            app_state={},
            _loop=connections.loop,
        )
        self._connections = connections
        self._greeting = greeting
        self.logger = _uvicorn_log
        self.app = self._answer
        self.phase = Phase.NEW
        self.since = connections.loop.time()
        self.began: float | None = None
        self.moved = 0.0
        self.answer: Body | None = None

    @property
    def host(self) -> str | None:
        """Where it comes from."""
        return self.client[0] if self.client else None

    def enter(self, phase: Phase) -> None:
        """Be in another phase from now on."""
        self.phase = phase
        self.since = self._connections.loop.time()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.enter(Phase.ANSWERING)
        try:
            app = self._connections.app
            assert app is not None  # noqa: S101 (set before anything is accepted)
            await app(self, scope, receive, send)
        except asyncio.CancelledError:
            # The server stops and waits no longer; uvicorn would take it for an error of ours.
            self.cycle.disconnected = True
            self.transport.abort()
        finally:
            self.began = self.answer = None
            if self.phase is Phase.ANSWERING:
                # A part of the next request may be here already.
                self.enter(Phase.ASKING if self.conn.trailing_data[0] else Phase.IDLE)

    async def send_body(self, send: Any, body: Body) -> None:
        """Send the body of an answer, no faster than the client takes it."""
        loop = self._connections.loop
        if not body.size:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        self.answer = body
        self.began = loop.time()
        left = body.size
        for chunk in body.chunks(_CHUNK_BYTES):
            self.moved = loop.time()
            left -= len(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": left > 0})
            if self.transport.is_closing():
                # uvicorn learns of it a little later, and would miss the rest of the answer.
                self.cycle.disconnected = True
                return

    # ---- what the event loop calls ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._connections.add(self, self._greeting)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        if self.phase is Phase.CLOSING:
            return
        if self.phase is Phase.IDLE:
            self.enter(Phase.ASKING)
        try:
            super().data_received(data)
        except Exception:  # noqa: BLE001 (no client's bytes are worth a traceback)
            _log.debug("a client's bytes could not be handled", exc_info=True)
            self.transport.abort()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Take the end of what the client sends; it may still read."""
        if self.phase is Phase.ANSWERING and self.scheme != "https":
            self.cycle.keep_alive = False
            return True
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._connections.remove(self)

    def close(self) -> None:
        """End it after what is being sent; by force if that does not come about."""
        if self.phase is not Phase.CLOSING:
            self.enter(Phase.CLOSING)
            self.transport.close()

    def abort(self, why: str) -> None:
        """End it now, and have the kernel forget what the client did not read."""
        _log.debug("%s: connection ended: %s", self.client, why)
        self.enter(Phase.CLOSING)
        with contextlib.suppress(OSError):
            connected = self.transport.get_extra_info("socket")
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self.transport.abort()


class Connections:
    """All connections of a server, with the rules that bound them.

    To be used on one event loop.

    Args:
        web: The web configuration.
        limits: The bounds.

    Attributes:
        app: Answers requests; to be set before there are any.
    """

    def __init__(self, web: LiveWebConfig, limits: ServerLimits) -> None:
        self.app: App | None = None
        self.loop = asyncio.get_running_loop()
        self.state = ServerState()
        self.config = Config(
            _not_asked,
            loop="none",
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_NEVER_S,
            h11_max_incomplete_event_size=limits.header_bytes,
        )
        self.config.load()
        self._web = web
        self._limits = limits
        self._open: set[Connection] = set()
        #: What is not a connection yet, for want of its handshake, and since when.
        self._greeted: dict[asyncio.Task[None], float] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._less_held = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open) + len(self._greeted)

    # ---- how they come and go --------------------------------------------------------------------

    async def accept(self, listener: socket.socket) -> None:
        """Take connections from a socket until cancelled."""
        while True:
            try:
                accepted, _ = await self.loop.sock_accept(listener)
            except OSError as error:
                if error.errno not in _ENDED_ALREADY:
                    # Such as no room for one more file, which passes.
                    _log.warning("no new connections for a moment: %s", error.strerror)
                    await asyncio.sleep(1.0)
                continue
            if len(self) >= self._limits.connections and not await self._make_room(accepted):
                accepted.close()
            else:
                task = self.loop.create_task(self._greet(accepted))
                self._greeted[task] = self.loop.time()
                task.add_done_callback(functools.partial(self._end_greeting, accepted))
            # However many wait to be accepted, those who are in go on.
            await asyncio.sleep(0)

    def _end_greeting(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._greeted.pop(task, None)
        if task.cancelled():
            accepted.close()

    async def _greet(self, accepted: socket.socket) -> None:
        self._web.refresh()
        context = self._web.context
        greeting = asyncio.current_task()
        assert greeting is not None  # noqa: S101 (this coroutine runs in one)
        try:
            await self.loop.connect_accepted_socket(
                functools.partial(Connection, self, greeting),
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else self._limits.header_timeout_s,
            )
        except (OSError, ssl.SSLError, asyncio.TimeoutError) as error:
            _log.debug("a client did not get through its handshake: %s", error)
            accepted.close()

    def add(self, connection: Connection, greeting: asyncio.Task[None]) -> None:
        """Count a connection that has been made; it is not to be made any more."""
        self._greeted.pop(greeting, None)
        self._open.add(connection)
        self._all_gone.clear()
        if self._sweep_timer is None:
            self._sweep_timer = self.loop.call_later(_SWEEP_INTERVAL_S, self._sweep)
        tls = self._web.config.tls
        if tls is not None and tls.client_allowed_sans:
            certificate = connection.transport.get_extra_info("peercert") or {}
            if not has_allowed_name(certificate, tls.client_allowed_sans):
                connection.abort("its certificate has none of the allowed names")

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._open.discard(connection)
        self._less_held.set()
        if not self._open:
            self._all_gone.set()

    async def _make_room(self, newcomer: socket.socket) -> bool:
        """End one for another; False if there is none to be ended."""
        # After a time without the processor: what has arrived meanwhile is read before anybody is
        # found to have asked nothing.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        long_ago = self.loop.time() - _CHANCE_S
        slow = next((task for task, since in self._greeted.items() if since < long_ago), None)
        if slow is not None:
            del self._greeted[slow]
            slow.cancel()
            return True
        # Who has many connections loses one first: others from there cannot lock everybody out.
        hosts = Counter(each.host for each in self._open)
        most = max(hosts.values(), default=0)
        crowd = [each for each in self._open if hosts[each.host] == most]
        victim = self._least_needed(crowd)
        if victim is None and hosts[_host(newcomer)] < most:
            victim = self._least_needed(list(self._open))
        if victim is None:
            return False
        victim.abort("its place is needed")
        return True

    def _least_needed(self, among: list[Connection]) -> Connection | None:
        """Who asks nothing, for longest; failing that, who has read for longest."""
        now = self.loop.time()
        for phase in (Phase.NEW, Phase.ASKING, Phase.IDLE):
            # Who has just come gets a chance to ask.
            patience_s = 0.0 if phase is Phase.IDLE else _CHANCE_S
            waiting = [
                each for each in among if each.phase is phase and now - each.since >= patience_s
            ]
            if waiting:
                return min(waiting, key=lambda each: each.since)
        # Whoever scrapes takes an answer in a fraction of a second; who reads slowly on purpose
        # would keep the place for as long as it is let.
        reading = [
            (each.began, each)
            for each in among
            if each.phase is Phase.ANSWERING
            and each.began is not None
            and now - each.began > _READING_S
        ]
        return min(reading, key=lambda entry: entry[0])[1] if reading else None

    # ---- how long they may take ------------------------------------------------------------------

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in tuple(self._open):
            self._judge(connection, now)
        self._less_held.set()
        self._sweep_timer = None
        if self._open:
            self._sweep_timer = self.loop.call_later(_SWEEP_INTERVAL_S, self._sweep)

    def _judge(self, connection: Connection, now: float) -> None:
        limits = self._limits
        phase, for_s = connection.phase, now - connection.since
        if phase in (Phase.NEW, Phase.ASKING):
            if for_s > limits.header_timeout_s:
                connection.abort("no request came")
        elif phase is Phase.ANSWERING:
            if connection.began is None:
                return
            if now - connection.moved > limits.stall_timeout_s:
                connection.abort("its answer is not read")
            elif now - connection.began > limits.answer_timeout_s:
                connection.abort("its answer is read too slowly")
        elif phase is Phase.IDLE:
            unread = connection.transport.get_write_buffer_size() > 0
            if unread and for_s > limits.stall_timeout_s:
                connection.abort("its answer is not read to the end")
            elif for_s > limits.idle_timeout_s:
                connection.close()
            if connection.transport.is_closing() and connection.phase is Phase.IDLE:
                connection.enter(Phase.CLOSING)
        elif for_s > _CLOSE_TIMEOUT_S:
            connection.abort("its end did not come about")

    # ---- what they may hold ----------------------------------------------------------------------

    def held_bytes(self) -> int:
        """The size of all answers that are being sent; what they share is counted once."""
        answers = [each.answer for each in self._open if each.answer is not None]
        return sum({id(part): len(part) for answer in answers for part in answer.parts}.values())

    async def room_for_answer(self) -> None:
        """Wait until answers under way take less than they may; the slowest make way for that."""
        started = self.loop.time()
        while self.held_bytes() >= self._limits.answers_bytes:
            now = self.loop.time()
            self._cut_slowest(now, patient=now - started < 2 * _STALLED_S)
            self._less_held.clear()
            if self.held_bytes() < self._limits.answers_bytes:
                break
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._less_held.wait(), _STALLED_S / 4)

    def _cut_slowest(self, now: float, *, patient: bool) -> None:
        sending = [
            each for each in self._open if each.answer is not None and each.phase is Phase.ANSWERING
        ]
        stalled = [each for each in sending if now - each.moved > _STALLED_S]
        if stalled:
            for each in stalled:
                each.abort("its answer is not read, and memory is needed")
                each.answer = None
        elif not patient and sending:
            # All of them read a little: who has read for longest is the slowest.
            slowest = min(sending, key=lambda each: each.since)
            slowest.abort("its answer is read slowly, and memory is needed")
            slowest.answer = None

    # ---- the end ---------------------------------------------------------------------------------

    async def stop(self, hurry: asyncio.Event) -> None:
        """Finish the answers under way, then end all; sooner when `hurry` is set."""
        for task in tuple(self._greeted):
            task.cancel()
        for connection in tuple(self._open):
            if connection.phase is Phase.ANSWERING:
                connection.cycle.keep_alive = False
            else:
                connection.close()
        waits = [asyncio.ensure_future(event.wait()) for event in (self._all_gone, hurry)]
        await asyncio.wait(
            waits, timeout=self._limits.stop_timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        for wait in waits:
            wait.cancel()
        for connection in tuple(self._open):
            connection.abort("the server stops")
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()


def _host(accepted: socket.socket) -> str | None:
    try:
        return str(accepted.getpeername()[0])
    except OSError:
        return None


async def _not_asked(_scope: Any, _receive: Any, _send: Any) -> None:
    """What uvicorn's configuration wants; without these parameters it calls it for another."""
    raise RuntimeError("each connection has an application of its own")
