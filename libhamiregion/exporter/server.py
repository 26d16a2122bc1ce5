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
from typing import TYPE_CHECKING, Final

from libhamiregion.text import error_text

from .app import MetricsApp, Site
from .clients import Client, ServerLimits
from .listening import ListenError, listen_on
from .log_lines import RepeatedEvents
from .web_config import LiveWebConfig, ReloadingContext, WebConfigError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from typing_extensions import Self

    from libhamiregion.errors import PathLike

    from .scrapes import Source

__all__ = ["ListenError", "MetricsServer", "ServerLimits", "WebConfigError"]

_log = logging.getLogger(__name__)

DEFAULT_LISTEN: Final = "127.0.0.1:9394"
# What accept() says of a client that went before it was accepted.
_ENDED_ALREADY: Final = (errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO, errno.EPERM)
# A newcomer takes the place of none that has just come, or just begun to read.
_GRACE_S: Final = 0.25
# Some turns of the event loop.
_LAST_CALL_S: Final = 0.05


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
        self._begun = threading.Event()
        self._stop_asked = False
        #: Begins the end; from any thread.
        self._wake: Callable[[], object] | None = None
        self._clients: dict[asyncio.Task[None], Client] = {}
        self._failures = RepeatedEvents(_log)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
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
        self._stop_asked = True
        wake = self._wake
        if wake is None:
            for listener in self._sockets:
                listener.close()
            return
        # It may have ended just now.
        with contextlib.suppress(RuntimeError):
            wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # ---- in the event loop -----------------------------------------------------------------------

    async def _serve(self) -> None:
        loop, stopping, at_once = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        def signalled() -> None:
            (at_once if stopping.is_set() else stopping).set()

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, signalled)
        tls = None
        if self._web.config.tls is not None:
            tls = ReloadingContext(ssl.PROTOCOL_TLS_SERVER)
            tls.live = self._web
        limits = self._limits
        metrics = MetricsApp(
            self._source,
            render_timeout_s=limits.render_timeout_s,
            answers_bytes=limits.answers_bytes,
        )
        site = Site(self._source, self._web, metrics, self._healthy)
        accepting = [asyncio.create_task(self._accept(each, site, tls)) for each in self._sockets]
        self._wake = functools.partial(loop.call_soon_threadsafe, stopping.set)
        self._begun.set()
        if not self._stop_asked:
            await stopping.wait()
            # What had arrived by then is taken in, and answered.
            await asyncio.sleep(_LAST_CALL_S)
        for task in accepting:
            task.cancel()
        for listener in self._sockets:
            listener.close()
        for client in self._clients.values():
            client.finish()
        if self._clients:
            waiting = asyncio.create_task(at_once.wait())
            ended = asyncio.ensure_future(asyncio.wait(self._clients))
            await asyncio.wait(
                {waiting, ended},
                timeout=limits.stop_timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        for client in self._clients.values():
            client.abort("the server stops")

    async def _accept(
        self, listener: socket.socket, site: Site, tls: ssl.SSLContext | None
    ) -> None:
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
            task = asyncio.create_task(self._attend(accepted, site, tls))
            task.add_done_callback(self._ended)
            # However many wait to be accepted, the others go on.
            await asyncio.sleep(0)

    async def _attend(
        self, accepted: socket.socket, site: Site, tls: ssl.SSLContext | None
    ) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (this coroutine runs in one)
        self._clients[task] = client = Client(accepted, self._limits)
        self._make_room(task)
        await client.serve(site, tls)

    def _make_room(self, newcomer: asyncio.Task[None]) -> None:
        """End the connection that has waited longest for its client, if there are too many."""
        if len(self._clients) <= self._limits.connections:
            return
        now = asyncio.get_running_loop().time()
        waited_s = {
            task: now - client.waiting_since
            for task, client in self._clients.items()
            if client.waiting_since is not None
            and (client.is_idle or now - client.waiting_since > _GRACE_S)
        }
        victim = max(waited_s, key=lambda task: waited_s[task], default=newcomer)
        self._clients.pop(victim).abort("there are too many")

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._clients.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.failed("client", f"{type(error).__name__}: {error_text(error)}", error)
