"""Clients of a metrics server: good ones, and every kind of bad one."""

import contextlib
import gzip
import http.client
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
from typing_extensions import Self

from support.wait import PATIENCE_S

_LONG_LINE = b"X: %65000d\r\n" % 1
GOOD_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"


@attrs.frozen
class Reply:
    """What came back; header names in lower case, the body uncompressed."""

    status: int
    headers: dict[str, str]
    body: bytes
    size: int

    @property
    def text(self) -> str:
        return self.body.decode()


class Scraper(contextlib.AbstractContextManager):
    """A client that keeps its connection, as Prometheus does."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        host, port = parts.hostname, parts.port
        host = {"::": "::1", "0.0.0.0": "127.0.0.1"}.get(host, host)
        if parts.scheme == "https":
            self.connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=PATIENCE_S, context=context
            )
        else:
            self.connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)

    def ask(self, path: str = "/metrics", method: str = "GET", **headers: str) -> Reply:
        """Ask once; `accept_encoding` in Python is `accept-encoding` on the wire."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, headers=sent)
        response = self.connection.getresponse()
        body = response.read()
        found = {name.lower(): value for name, value in response.getheaders()}
        size = len(body)
        if found.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        return Reply(response.status, found, body, size)

    def scrape(self) -> Reply:
        """Ask as Prometheus does."""
        return self.ask(accept_encoding="gzip")

    def close(self) -> None:
        self.connection.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def ask(url: str, path: str = "/metrics", method: str = "GET", **options: Any) -> Reply:
    """Ask once, on a connection of its own."""
    with Scraper(url, options.pop("context", None)) as scraper:
        return scraper.ask(path, method, connection="close", **options)


def connect(url: str, receive_buffer: int | None = None) -> socket.socket:
    """A bare connection, with as little room for what it does not read as wanted."""
    parts = urlsplit(url)
    found = socket.socket(socket.AF_INET)
    if receive_buffer is not None:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    found.settimeout(PATIENCE_S)
    try:
        found.connect((parts.hostname, parts.port))
    except OSError:
        found.close()
        raise
    return found


def reset(connection: socket.socket) -> None:
    """End a connection with RST, as a client that crashed does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def read_to_end(connection: socket.socket) -> bytes:
    """All that comes until the other side ends it, in whatever way."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


# ---- the bad ones; each returns when the server has had enough of it, or the stop is set --------


def never_sends(url: str, stop: threading.Event) -> None:
    with connect(url) as connection:
        _hold(connection, stop)


def asks_by_halves(url: str, stop: threading.Event) -> None:
    with connect(url) as connection:
        connection.sendall(GOOD_REQUEST[:20])
        _hold(connection, stop)


def asks_byte_by_byte(url: str, stop: threading.Event) -> None:
    with connect(url) as connection:
        for byte in b"GET /metrics HTTP/1.1\r\nX-A: " + b"a" * 10_000:
            try:
                connection.send(bytes([byte]))
            except OSError:
                return
            if stop.wait(0.2):
                return


def goes_before_the_answer(url: str, stop: threading.Event) -> None:
    while not stop.wait(0.05):
        connection = connect(url)
        connection.sendall(GOOD_REQUEST)
        reset(connection)


def sends_garbage(url: str, stop: threading.Event) -> None:
    while not stop.wait(0.05):
        with connect(url) as connection, contextlib.suppress(OSError):
            connection.sendall(os.urandom(3000) + b"\r\n\r\n")
            read_to_end(connection)


def sends_a_huge_head(url: str, stop: threading.Event) -> None:
    while not stop.wait(0.05):
        with connect(url) as connection, contextlib.suppress(OSError):
            connection.sendall(b"GET /metrics HTTP/1.1\r\n")
            for _ in range(99):
                connection.sendall(_LONG_LINE)
            read_to_end(connection)


def sends_a_body(url: str, stop: threading.Event) -> None:
    head = b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000000\r\n\r\n"
    while not stop.wait(0.05):
        with connect(url) as connection, contextlib.suppress(OSError):
            connection.sendall(head)
            while not stop.is_set():
                connection.sendall(b"x" * 65_536)


def _hold(connection: socket.socket, stop: threading.Event) -> None:
    connection.settimeout(0.1)
    while not stop.is_set():
        try:
            if not connection.recv(1):
                return
        except TimeoutError:
            continue
        except OSError:
            return


class Crowd:
    """Bad clients at work, each in a thread that starts anew when the server ends it."""

    def __init__(self, url: str, clients: Any, each: int = 1) -> None:
        self.stop = threading.Event()
        self.threads = [
            threading.Thread(target=self._again_and_again, args=(client, url), daemon=True)
            for client in clients
            for _ in range(each)
        ]

    def _again_and_again(self, client: Any, url: str) -> None:
        while not self.stop.is_set():
            with contextlib.suppress(OSError):
                client(url, self.stop)
            self.stop.wait(0.02)

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


# ---- what the server spends ----------------------------------------------------------------------


def resident_bytes(pid: int) -> int:
    """Memory of a process that is its own or shared, as the kernel counts it."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    """How many files, sockets included, a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class Threads:
    """Threads that a test runs beside itself, and what they raised."""

    def __init__(self, count: int, work: Any) -> None:
        self.failures: list[BaseException] = []
        # Those of a test that has failed keep no interpreter from its end.
        self._threads = [
            threading.Thread(target=self._run, args=(work, number), daemon=True)
            for number in range(count)
        ]

    def _run(self, work: Any, number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 (the test looks at it)
            self.failures.append(error)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive()


@contextlib.contextmanager
def in_threads(count: int, work: Any, within_s: float = 120.0) -> Iterator[Threads]:
    """Run `work(number)` in so many threads; at the end all of them have returned."""
    threads = Threads(count, work)
    threads.start()
    yield threads
    threads.join(within_s)
