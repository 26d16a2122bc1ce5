"""Metrics over HTTP, for scrapers of every kind: patient, hasty, slow, broken and hostile."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from .answers import Answers
from .connections import Connections, ServerLimits
from .landing import LandingFacts
from .listening import ListenAddress, ListenError, listen, parse_listen
from .passwords import Passwords
from .scrapes import Scrapes
from .web_config import WebConfigError
from .web_reload import LiveWebConfig
from .working import Worker

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from typing_extensions import Self

    from libhamiregion.errors import PathLike

__all__ = [
    "LandingFacts",
    "ListenError",
    "MetricsServer",
    "ServerLimits",
    "WebConfigError",
    "parse_listen",
]

_log = logging.getLogger(__name__)

# Some turns of the event loop.
_LAST_CALL_S: Final = 0.05
DEFAULT_LISTEN: Final = "127.0.0.1:9394"


class MetricsServer:
    """Serves metrics over HTTP: ``/metrics``, ``/healthz``, ``/readyz`` and a page at ``/``.

        with MetricsServer(exporter.render_parts, ":9394"):
            ...

    or, as a program of its own, ``MetricsServer(exporter.render_parts, ":9394").run()``.

    Scrapes are made one at a time in a thread; those who ask meanwhile share the next one, which
    begins after they asked. Text or OpenMetrics, compressed or not, as the client accepts. Whatever
    clients do, memory, connections and time are bounded (`ServerLimits`).

    Threads: `stop` may be called from any; everything else from the one that made it.

    Args:
        render: Called with ``openmetrics=True`` or ``False``; returns the text as bytes, or in
            parts. Never called twice at a time. If it takes ``names`` too, ``/metrics?name[]=NAME``
            asks for these metrics only.
        listen: ``HOST:PORT``, or ``:PORT`` for all addresses; one or several. Port 0 lets the
            system choose.
        web_config: The file that says how TLS and passwords are wanted; None is plain HTTP for
            everybody who can connect.
        landing: Tells what stands on the page at ``/``.
        ready: For ``/readyz``: None if all is well, else why not. Called in a thread, also while
            `render` runs.
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
        render: Callable[..., bytes | Iterable[bytes]],
        listen: str | Iterable[str] = DEFAULT_LISTEN,
        *,
        web_config: PathLike | None = None,
        landing: Callable[[], LandingFacts] | None = None,
        ready: Callable[[], str | None] | None = None,
        healthy: Callable[[], str | None] | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        self._render = render
        self._landing = landing
        self._ready = ready
        self._healthy = healthy
        self._limits = limits or ServerLimits()
        # What is wrong with it is said before anything listens.
        self._web = LiveWebConfig(web_config, time.monotonic)
        texts = (listen,) if isinstance(listen, str) else tuple(listen)
        self._sockets = _listen_on([parse_listen(text) for text in texts])
        self.urls = tuple(self._url(each) for each in self._sockets)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
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
        scheme = "https" if self._web.context is not None else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def run(self) -> None:
        """Serve until `stop`, SIGTERM or SIGINT; then finish the answers under way.

        Signals are handled in the main thread only. A second one ends it at once.
        """
        asyncio.run(self._serve())

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
        loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(stopping.set)
            except RuntimeError:
                # It has ended just now.
                _log.debug("the server had stopped already")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        elif self._loop is None:
            for listener in self._sockets:
                listener.close()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        stopping, hurry = asyncio.Event(), asyncio.Event()
        self._loop, self._stopping = loop, stopping
        if self._stop_asked.is_set():
            stopping.set()

        def on_signal() -> None:
            if stopping.is_set():
                hurry.set()
            stopping.set()

        handled = []
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, on_signal)
                handled.append(number)
        renderer, prober, checker = (
            Worker(f"hamiregion-{name}") for name in ("render", "probe", "password")
        )
        accepting: list[asyncio.Task[None]] = []
        try:
            connections = Connections(self._web, self._limits)
            scrapes = Scrapes(
                self._render, renderer, connections.room_for_answer, self._limits.render_timeout_s
            )
            connections.app = Answers(
                scrapes,
                self._web,
                self._landing,
                self._ready,
                self._healthy,
                prober,
                Passwords(checker),
            )
            accepting = [loop.create_task(connections.accept(each)) for each in self._sockets]
            self._begun.set()
            await stopping.wait()
            # What had arrived by then is taken in, and answered.
            await asyncio.sleep(_LAST_CALL_S)
            for task in accepting:
                task.cancel()
            self._close_sockets()
            await connections.stop(hurry)
        finally:
            self._begun.set()
            self._close_sockets()
            for worker in (renderer, prober, checker):
                worker.stop()
            for number in handled:
                loop.remove_signal_handler(number)

    def _close_sockets(self) -> None:
        for listener in self._sockets:
            listener.close()


def _listen_on(addresses: list[ListenAddress]) -> tuple[socket.socket, ...]:
    opened: list[socket.socket] = []
    try:
        for address in addresses:
            opened.extend(listen(address))
    except BaseException:
        for each in opened:
            each.close()
        raise
    return tuple(opened)
