"""Metrics over HTTP: http.server, a thread per connection, and a deadline for every wait.

A client has 5 s from its connection to the end of its request, TLS included, and 5 s to read the
answer. The thread that accepts connections also ends those whose deadline has passed.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import selectors
import signal
import socket
import struct
import threading
import time
import zlib
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import attrs

from libhamiregion.text import error_text, printable

from .listening import listen_on
from .overview import HEADERS
from .passwords import Busy, Passwords
from .text import CONTENT_TYPE
from .web_config import WebConfig, WebConfigError, load_web_config

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from typing_extensions import Self

    from libhamiregion.errors import PathLike

    from .exporter import NodeExporter

_log = logging.getLogger(__name__)

DEFAULT_LISTEN: Final = "127.0.0.1:9394"
#: For a request from the connection on, and for reading its answer.
DEADLINE_S: Final = 5.0
#: Connections at once. One more takes the place of the oldest that waits for its client.
CONNECTIONS: Final = 64
# Scrapes come every 15 to 60 s, and a new connection for each costs more than the scrape with TLS.
_IDLE_S: Final = 90.0
_SCRAPE_S: Final = 15.0
# Shorter than a deadline, so that none is missed.
_CHECK_INTERVAL_S: Final = 4.0
# A new connection waits until the one whose place it takes had this long for its client.
_GRACE_S: Final = 0.2
_LAST_CALL_S: Final = 0.3
_HEAD_BYTES: Final = 16 * 1024
_PLAIN: Final = "text/plain; charset=utf-8"
_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="hamiregion", charset="UTF-8"'}
# Deflated, without a name or a time.
_GZIP_HEAD: Final = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
# The C struct that drops unsent data on close.
_LINGER_NOT: Final = struct.pack("ii", 1, 0)
_TLS_HANDSHAKE: Final = b"\x16"
_GZIP_ACCEPTED: Final = re.compile(r"\bgzip\b(?! *; *q=0(\.0*)?(,|$))", re.IGNORECASE)


class MetricsServer:
    """Serves metrics over HTTP: ``/metrics``, ``/healthz``, ``/readyz`` and a page at ``/``.

        with MetricsServer(exporter, ":9394"):
            ...

    or, as a program of its own, ``MetricsServer(exporter, ":9394").run()``.

    Threads: `stop` and `reload` may be called from any; everything else from the one that made it.

    Args:
        source: A `NodeExporter`.
        listen: ``HOST:PORT``, or ``:PORT`` for all addresses; one or several. Port 0 lets the
            system choose.
        web_config: The file with TLS and passwords; None is plain HTTP for everybody who can
            connect.
        healthy: For ``/healthz``: None if all is well, else the reason. It must not wait.

    Attributes:
        urls: Where it listens, such as ``http://127.0.0.1:9394``.

    Raises:
        ListenError: It is not possible to listen there.
        WebConfigError: The web configuration cannot be used.
        ValueError: `listen` is no address.
    """

    def __init__(
        self,
        source: NodeExporter,
        listen: str | Iterable[str] = DEFAULT_LISTEN,
        *,
        web_config: PathLike | None = None,
        healthy: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._web_config = web_config
        self.web = WebConfig() if web_config is None else load_web_config(web_config)
        self.source = source
        self.healthy = healthy
        self.scrapes = ScrapeCoalescer(source)
        self.passwords = Passwords(DEADLINE_S)
        self._sockets = listen_on((listen,) if isinstance(listen, str) else tuple(listen))
        scheme = "http" if self.web.tls is None else "https"
        names = [each.getsockname()[:2] for each in self._sockets]
        hosts = [(f"[{host}]" if ":" in host else host, port) for host, port in names]
        self.urls = tuple(f"{scheme}://{host}:{port}" for host, port in hosts)
        self._thread: threading.Thread | None = None
        self._connections: dict[_Connection, threading.Thread] = {}
        self.is_stopping = False
        # A byte to one of them, or its end, wakes up the thread that waits for the other.
        self._awake, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._reload_is_due = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self) -> None:
        """Serve until `stop`, SIGTERM or SIGINT, and finish the answers under way.

        SIGHUP reads the web configuration again. Signals are handled in the main thread only.
        """
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self._end())
            signal.signal(signal.SIGHUP, lambda *_: self.reload())
        try:
            self._accept_until_stopped()
        finally:
            self._close_listeners()
            self._finish()

    def start(self) -> None:
        """Serve in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="hamiregion-http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and wait until it has stopped. May be called again."""
        self._end()
        if self._thread is None:
            self._close_listeners()
        else:
            self._thread.join()

    def _end(self) -> None:
        self.is_stopping = True
        self._waker.close()

    def reload(self) -> None:
        """Have the web configuration read again before the next connection is taken.

        The result is logged. One that cannot be used changes nothing. A reload takes away neither
        TLS nor all passwords: restart for that. A signal handler may call this: it takes no lock.
        """
        self._reload_is_due = True
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def _reload(self) -> None:
        self._reload_is_due = False
        if self._web_config is None:
            _log.info("there is no web configuration to read again")
            return
        try:
            found = load_web_config(self._web_config)
            loses_users = self.web.users and not found.users
            if (found.tls is None) != (self.web.tls is None) or loses_users:
                raise WebConfigError("restart to switch TLS or passwords on or off")
        except (WebConfigError, ImportError) as error:
            _log.warning("the web configuration stays as it was: %s", printable(str(error), 400))
        else:
            self.web = found
            _log.info("the web configuration was read again")

    def _close_listeners(self) -> None:
        for each in (*self._sockets, self._awake):
            each.close()

    # ---- connections -----------------------------------------------------------------------------

    def _accept_until_stopped(self) -> None:
        with selectors.DefaultSelector() as selector:
            for each in (*self._sockets, self._awake):
                selector.register(each, selectors.EVENT_READ)
            wait_s = 0.0
            while not self.is_stopping:
                ready = [key.fileobj for key, _ in selector.select(wait_s)]
                if self._awake in ready:
                    self._awake.recv(4096)
                    ready.remove(self._awake)
                if self._reload_is_due:
                    self._reload()
                for listener in ready:
                    self._accept(listener)
                now_s = time.monotonic()
                wait_s = _CHECK_INTERVAL_S
                for connection in self._open_connections():
                    left_s = connection.deadline_s - now_s
                    if left_s < 0:
                        connection.end()
                    else:
                        wait_s = min(wait_s, left_s)
        # Connections that have arrived by now are answered.
        last_s = time.monotonic() + _LAST_CALL_S
        for each in self._sockets:
            while self._accept(each) and time.monotonic() < last_s:
                pass
        time.sleep(_LAST_CALL_S)

    def _accept(self, listener: Any) -> bool:
        """Take one new connection; returns whether there was one."""
        self._make_room()
        connection = None
        try:
            connection = _Connection(*listener.accept())
            thread = threading.Thread(
                target=self._serve, args=(connection,), name="hamiregion-client", daemon=True
            )
            self._connections[connection] = thread
            thread.start()
        except (BlockingIOError, ConnectionError):
            return False  # the client has gone already
        except (OSError, RuntimeError) as error:
            # Such as no room for one more file or thread, which passes.
            _log.warning("no new connections for a moment: %s", error_text(error))
            if connection is not None:
                self._connections.pop(connection, None)
                connection.close()
            time.sleep(1.0)
            return False
        return True

    def _make_room(self) -> None:
        """End the connection that has waited longest for its client, if there are too many."""
        still_open = self._open_connections()
        if len(still_open) < CONNECTIONS:
            return
        oldest = min(still_open, key=_Connection.rank)
        if oldest.state != "idle":
            time.sleep(max(0.0, oldest.since_s + _GRACE_S - time.monotonic()))
        oldest.end()

    def _open_connections(self) -> list[_Connection]:
        return [each for each in list(self._connections) if not each.is_ended]

    def _serve(self, connection: _Connection) -> None:
        try:
            _Handler(connection, ("", 0), self)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 (one client must not end anything else)
            trace = None if isinstance(error, OSError) else error
            _log.debug("connection ended: %s", error_text(error), exc_info=trace)
        finally:
            self._connections.pop(connection, None)
            connection.close()

    def _finish(self) -> None:
        """Wait for the answers under way, and end the other connections."""
        deadline_s = time.monotonic() + DEADLINE_S
        open_now = dict(self._connections)
        for connection in open_now:
            if connection.state in ("idle", "reading"):
                connection.end()
        for connection, thread in open_now.items():
            thread.join(max(0.0, deadline_s - time.monotonic()))
            connection.end()


class _Connection:
    """A client's socket, and since when the server has been waiting for this client.

    Attributes:
        socket: The socket.
        address: The client's address, without its port.
        state: ``"reading"`` a request, ``"making"`` or ``"sending"`` its answer, or ``"idle"``.
        since_s: Monotonic time of the last change of state.
        deadline_s: When the connection is ended, unless the state changes.
        is_ended: Whether it was ended by the server.
    """

    def __init__(self, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        self.socket = accepted
        self.address = str(address[0])
        # TLS takes the first descriptor over; this one ends the connection from another thread.
        self._control = accepted.dup()
        self._closing = threading.Lock()
        self.is_ended = False
        accepted.settimeout(None)
        self.enter("reading", DEADLINE_S)

    def enter(self, state: str, timeout_s: float) -> None:
        self.state = state
        self.since_s = time.monotonic()
        self.deadline_s = self.since_s + timeout_s

    def rank(self) -> tuple[int, float]:
        """Connections of a lower rank make room first."""
        return {"idle": 0, "making": 2}.get(self.state, 1), self.since_s

    def end(self) -> None:
        self.is_ended = True
        with self._closing, contextlib.suppress(OSError):
            if self.state == "sending":
                self._control.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            self._control.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._closing:
            self._control.close()
        self.socket.close()


class _Head(io.BufferedReader):
    """Reads requests; `left` limits the head of one, which http.server lets grow to 6 MB."""

    left = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(min(size or 0, self.left))
        self.left -= len(line)
        if not self.left:
            raise LineTooLong("head")
        return line


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    error_message_format = "%(code)d: %(message)s\n"
    error_content_type = _PLAIN
    server: MetricsServer  # type: ignore[assignment]
    rfile: _Head

    def setup(self) -> None:
        self.client: _Connection = self.request
        tls = self.server.web.tls
        self.request = self.client.socket
        # A client that speaks plain HTTP gets a sentence that it can show, and nothing else.
        self.is_refused = tls is not None and _speaks_plain(self.request)
        if tls is not None and not self.is_refused:
            self.request = tls.wrap_socket(self.request, server_side=True)
        super().setup()
        self.rfile = _Head(self.rfile.detach())

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()
        self.rfile.close()
        self.request.close()

    def handle_one_request(self) -> None:
        if self.client.state == "sending":
            self.client.enter("idle", _IDLE_S)
        is_last = self.server.is_stopping and self.client.state == "idle"
        if is_last or not self.rfile.peek(1):
            self.close_connection = True
            return
        if self.client.state == "idle":
            self.client.enter("reading", DEADLINE_S)
        self.rfile.left = _HEAD_BYTES
        super().handle_one_request()

    def do_GET(self) -> None:
        self.client.enter("making", float("inf"))
        reply = self._reply()
        self.client.enter("sending", DEADLINE_S)
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Length", str(sum(map(len, reply.parts))))
        if self.close_connection:
            self.send_header("Connection", "close")
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        for part in reply.parts if self.command != "HEAD" else ():
            self.wfile.write(part)

    do_HEAD = do_GET  # noqa: N815 (http.server calls it so)

    def _reply(self) -> Reply:
        if self.is_refused:
            self.close_connection = True
            return Reply.of(400, "this port serves HTTPS only: use https:// in the URL")
        length = self.headers.get("content-length", "0").strip("0")
        if length or "transfer-encoding" in self.headers:
            # It is not read, so nothing after it can be.
            self.close_connection = True
            return Reply.of(413, "no request here has a body")
        url = urlsplit(self.path)
        try:
            if url.path == "/healthz":
                reason = self.server.healthy()
                return Reply.of(200, "ok") if reason is None else Reply.of(503, reason)
            if url.path == "/readyz":
                return self._readiness()
            if not self._is_allowed():
                return Reply.of(401, "a user and password are needed", _CHALLENGE)
            if url.path == "/metrics":
                return self._metrics()
            if url.path == "/":
                page = self.server.source.page(url.query)
                return Reply(200, "text/html; charset=utf-8", (page,), HEADERS)
        except Busy as busy:
            return Reply.of(503, str(busy), {"Retry-After": "5"})
        except Exception as error:  # noqa: BLE001 (the log has it; other requests go on)
            reason = f"{url.path}: {type(error).__name__}: {error_text(error)}"
            _log.warning("%s", printable(reason, 400))
            _log.debug("its traceback", exc_info=error)
            return Reply.of(500, "it failed; the exporter's log says why")
        return Reply.of(404, "nothing here; the metrics are at /metrics")

    def _is_allowed(self) -> bool:
        given = self.headers.get("authorization", "")
        return self.server.passwords.allow(self.server.web.users, given, self.client.address)

    def _readiness(self) -> Reply:
        hangs_s = self.server.scrapes.running_s
        hangs = f"a scrape has been under way for {hangs_s:.0f} s"
        reason = hangs if hangs_s > DEADLINE_S else self.server.source.not_ready()
        if reason is None:
            return Reply.of(200, "ready")
        # The reason may name directories: only for those who may see the metrics.
        return Reply.of(503, f"not ready: {reason}" if self._is_allowed() else "not ready")

    def _metrics(self) -> Reply:
        headers = {"Vary": "Accept-Encoding"}
        body = self.server.scrapes.get()
        if not accepts_gzip(self.headers.get("accept-encoding", "")):
            return Reply(200, CONTENT_TYPE, [piece for piece, _ in body.blocks], headers)
        headers["Content-Encoding"] = "gzip"
        return Reply(200, CONTENT_TYPE, (body.data,), headers)

    def version_string(self) -> str:
        return "hamiregion"

    def log_message(self, *_: Any) -> None:
        """There is no log of requests."""


def _speaks_plain(client: socket.socket) -> bool:
    """Whether a client begins with anything but a TLS handshake; waits for its first byte."""
    first = client.recv(1, socket.MSG_PEEK)
    return first not in (b"", _TLS_HANDSHAKE)


@attrs.frozen
class Reply:
    """An answer."""

    status: int
    content_type: str
    parts: Collection[bytes]
    headers: Mapping[str, str]

    @classmethod
    def of(cls, status: int, text: str, headers: Mapping[str, str] | None = None) -> Reply:
        """One line of text."""
        words = printable(text, 1000)
        line = f"{words if status == 200 else f'{status}: {words}'}\n".encode()
        return cls(status, _PLAIN, (line,), headers or {})


def accepts_gzip(header: str) -> bool:
    """Whether a client takes a compressed answer.

    Args:
        header: Accept-Encoding; empty if there is none.
    """
    return _GZIP_ACCEPTED.search(header) is not None


# ---- scrapes -------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class CompressedBody:
    """The text of one scrape as a gzip file.

    Attributes:
        data: The file.
        blocks: The pieces of the text, each with its part of the file.
    """

    data: bytes = b""
    blocks: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def of(cls, pieces: Iterable[bytes], before: CompressedBody) -> CompressedBody:
        """Compress a text in pieces; those that were in the text before are not compressed again.

        Nothing after a full flush refers to what is before it: a block fits in any place.
        """
        stream = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
        known, blocks, checksum, text_bytes = dict(before.blocks), [], 0, 0
        for piece in pieces:
            block = known.get(piece) or stream.compress(piece) + stream.flush(zlib.Z_FULL_FLUSH)
            blocks.append((piece, block))
            checksum = zlib.crc32(piece, checksum)
            text_bytes += len(piece)
        end = struct.pack("<II", checksum, text_bytes & 0xFFFF_FFFF)
        data = b"".join((_GZIP_HEAD, *(block for _, block in blocks), stream.flush(), end))
        return cls(data, tuple(blocks))


class ScrapeCoalescer:
    """Makes one scrape at a time; all clients that wait meanwhile share the next one.

    Args:
        source: Makes the text.
    """

    def __init__(self, source: NodeExporter) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._began_s = float("-inf")
        self._body = CompressedBody()
        self._running_since_s: float | None = None

    @property
    def running_s(self) -> float:
        """How long the scrape that is being made has been so; 0 without one."""
        since_s = self._running_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def get(self) -> CompressedBody:
        """Return a scrape that began after this call.

        Raises:
            Busy: Another scrape takes too long.
            Exception: Whatever the source raised.
        """
        asked_s = time.monotonic()
        if not self._lock.acquire(timeout=_SCRAPE_S):
            raise Busy(f"a scrape has been under way for {self.running_s:.0f} s")
        try:
            if self._began_s < asked_s:
                began_s = self._running_since_s = time.monotonic()
                self._body = CompressedBody.of(self._source.pieces(), self._body)
                self._began_s = began_s
            return self._body
        finally:
            self._running_since_s = None
            self._lock.release()
