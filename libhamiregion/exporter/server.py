"""Metrics over HTTP, for scrapers of every kind: patient, hasty, slow, broken and hostile."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import signal
import ssl
import threading
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from .app import MetricsApp, Site
from .connections import Connection, ServerLimits, make_room
from .listening import ListenError, listen_on
from .log_lines import RepeatedEvents
from .web_config import LiveWebConfig, ReloadingContext, WebConfigError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from typing_extensions import Self

    from libhamiregion.errors import PathLike

    from .node_exporter import NodeExporter
    from .scrapes import Source

__all__ = ["ListenError", "MetricsServer", "ServerLimits", "WebConfigError", "exporter_server"]

_log = logging.getLogger(__name__)

DEFAULT_LISTEN: Final = "127.0.0.1:9394"
# What accept() says of a client that went before it was accepted.
_ENDED_ALREADY: Final = (errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO, errno.EPERM)
_TICK_S: Final = 1.0
# Some turns of the event loop.
_LAST_CALL_S: Final = 0.05


class _Server(uvicorn.Server):
    """uvicorn's server; it watches clients, and wakes up once a second at most."""

    def __init__(
        self,
        site: Callable[..., Any],
        web: LiveWebConfig,
        limits: ServerLimits,
        begun: threading.Event,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                site,
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=int(limits.idle_timeout_s) + 1,
                timeout_graceful_shutdown=int(limits.stop_timeout_s) + 1,
                h11_max_incomplete_event_size=limits.header_bytes,
            )
        )
        self._web = web
        self._limits = limits
        self._begun = begun
        self._failures = RepeatedEvents(_log)
        self._context: ReloadingContext | None = None
        self._accepting: list[asyncio.Task[None]] = []
        # What is not a connection yet, the oldest first.
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}
        self.stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGTERM and SIGINT, if this is the main thread; a second one ends it at once."""
        handled = []
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self.end)
                handled.append(number)
        try:
            yield
        finally:
            for number in handled:
                asyncio.get_running_loop().remove_signal_handler(number)

    def end(self) -> None:
        """Stop after the answers under way; at once if it is stopping already."""
        self.force_exit = self.stopping.is_set()
        self.should_exit = True
        self.stopping.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        if self._web.config.tls is not None:
            self._context = ReloadingContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.live = self._web
        self.servers = []
        self._accepting = [asyncio.create_task(self._accept(each)) for each in sockets or ()]
        self.started = True
        self._begun.set()

    async def _accept(self, listener: socket.socket) -> None:
        """Take connections from a socket until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno not in _ENDED_ALREADY:
                    # Such as no room for one more file, which passes.
                    self._failures.failed(
                        "accept", f"no new connections for a moment: {error.strerror}"
                    )
                    await asyncio.sleep(1.0)
                continue
            if self._context is not None and len(self._handshakes) >= self._limits.connections:
                # The oldest first: whoever means well is through in a moment.
                next(iter(self._handshakes)).cancel()
            task = asyncio.create_task(self._greet(accepted))
            self._handshakes[task] = accepted
            task.add_done_callback(self._greeted)
            # However many wait to be accepted, the others go on.
            await asyncio.sleep(0)

    async def _greet(self, accepted: socket.socket) -> None:
        """Make a connection of what was accepted; with TLS, after its handshake."""
        timeout_s = None if self._context is None else self._limits.header_timeout_s
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._new_connection,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=timeout_s,
            )
        except (OSError, asyncio.TimeoutError):
            accepted.close()

    def _greeted(self, task: asyncio.Task[None]) -> None:
        accepted = self._handshakes.pop(task)
        if task.cancelled() or task.exception() is not None:
            accepted.close()

    def _new_connection(self) -> Connection:
        return Connection(
            self._limits,
            functools.partial(make_room, self.server_state.connections, self._limits.connections),
            config=self.config,
            server_state=self.server_state,
            app_state={},
            _loop=asyncio.get_running_loop(),
        )

    async def main_loop(self) -> None:
        """Look at the clients and at the web configuration once a second, until it stops."""
        self._tick()
        await self.stopping.wait()
        # What had arrived by then is taken in, and answered.
        await asyncio.sleep(_LAST_CALL_S)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        # First: whatever fails below, slow clients are looked at again.
        loop.call_later(_TICK_S, self._tick)
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.judge(loop.time())
        self._web.refresh()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the answers under way, then end all connections."""
        for task in (*self._accepting, *self._handshakes):
            task.cancel()
        await super().shutdown(sockets)
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.abort("the server stops")


class MetricsServer:
    """Serves metrics over HTTP: ``/metrics``, ``/healthz``, ``/readyz`` and a page at ``/``.

        with MetricsServer(exporter, ":9394"):
            ...

    or, as a program of its own, ``MetricsServer(exporter, ":9394").run()``.

    Whatever clients do, memory, connections and time are bounded (`ServerLimits`).

    Threads: `stop` may be called from any; everything else from the one that made it.

    Args:
        source: A `NodeExporter`, or anything with its `pieces` and `not_ready`.
        listen: ``HOST:PORT``, or ``:PORT`` for all addresses; one or several. Port 0 lets the
            system choose.
        web_config: The file that says how TLS and passwords are wanted; None is plain HTTP for
            everybody who can connect.
        healthy: For ``/healthz``: None if all is well, else why not. It must not wait.
        limits: The bounds.

    Attributes:
        urls: Where it listens, such as ``http://127.0.0.1:9394``.

    Raises:
        ListenError: It is not possible to listen there.
        WebConfigError: The web configuration cannot be used.
        ValueError: `listen` is no address.
    """

    def __init__(
        self,
        source: Source,
        listen: str | Iterable[str] = DEFAULT_LISTEN,
        *,
        web_config: PathLike | None = None,
        healthy: Callable[[], str | None] | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        self._source = source
        self._healthy = healthy
        self._limits = limits or ServerLimits()
        # What is wrong with it is said before anything listens.
        self._web = LiveWebConfig(web_config)
        self._sockets = listen_on((listen,) if isinstance(listen, str) else tuple(listen))
        self.urls = tuple(self._url(each) for each in self._sockets)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: _Server | None = None
        self._stop_asked = threading.Event()
        self._begun = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<MetricsServer {' '.join(self.urls)}>"

    def _url(self, listener: socket.socket) -> str:
        host, port = listener.getsockname()[:2]
        scheme = "https" if self._web.config.tls is not None else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def run(self) -> None:
        """Serve until `stop`, SIGTERM or SIGINT; then finish the answers under way.

        Signals are handled in the main thread only. A second one ends it at once.
        """
        try:
            asyncio.run(self._serve())
        finally:
            self._begun.set()
            for listener in self._sockets:
                listener.close()

    def start(self) -> None:
        """Serve in a thread of its own; returns once it does."""
        if self._thread is not None:
            raise RuntimeError("this server has been started already")
        self._thread = threading.Thread(target=self.run, name="hamiregion-http", daemon=True)
        self._thread.start()
        self._begun.wait()

    def stop(self) -> None:
        """Stop serving; where `start` began it, wait until it has stopped. May be called again."""
        self._stop_asked.set()
        loop, server = self._loop, self._server
        if loop is not None and server is not None:
            # It may have ended just now.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(functools.partial(_end_once, server))
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        elif loop is None:
            for listener in self._sockets:
                listener.close()

    async def _serve(self) -> None:
        metrics = MetricsApp(
            self._source,
            render_timeout_s=self._limits.render_timeout_s,
            answers_bytes=self._limits.answers_bytes,
        )
        site = Site(self._source, self._web, metrics, self._healthy)
        server = _Server(site, self._web, self._limits, self._begun)
        self._loop, self._server = asyncio.get_running_loop(), server
        if self._stop_asked.is_set():
            server.end()
        await server.serve(list(self._sockets))


def _end_once(server: _Server) -> None:
    if not server.stopping.is_set():
        server.end()


def exporter_server(
    exporter: NodeExporter,
    listen: str | Iterable[str] = DEFAULT_LISTEN,
    *,
    web_config: PathLike | None = None,
    healthy: Callable[[], str | None] | None = None,
    limits: ServerLimits | None = None,
) -> MetricsServer:
    """Make the server that `hamiregion exporter` is; the caller starts both.

        with NodeExporter(node) as exporter, exporter_server(exporter, ":9394"):
            ...

    Args:
        exporter: Gives the metrics, and says whether it is ready.
        listen: As for `MetricsServer`.
        web_config: As for `MetricsServer`.
        healthy: As for `MetricsServer`.
        limits: As for `MetricsServer`.

    Raises:
        ListenError: It is not possible to listen there.
        WebConfigError: The web configuration cannot be used.
        ValueError: `listen` is no address.
    """
    return MetricsServer(exporter, listen, web_config=web_config, healthy=healthy, limits=limits)
