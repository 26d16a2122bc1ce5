"""Slow, broken and hostile clients: they cost little, and nobody else notices them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs
import pytest
from scrapers import (
    BAD,
    GOOD_REQUEST,
    Crowd,
    Scraper,
    TextSource,
    ask,
    asks_by_halves,
    asks_without_reading,
    connect,
    cpu_s,
    descriptors,
    in_threads,
    never_sends,
    read_to_end,
    reads_nothing,
    resident_bytes,
    sends_a_body,
)
from support.wait import PATIENCE_S, eventually

from libhamiregion.exporter import MetricsServer, ServerLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCRIPT = Path(__file__).with_name("served_process.py")
MIB = 1 << 20
ANSWER = 2 * MIB


@attrs.frozen
class Served:
    """A server of its own process."""

    url: str
    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid


@contextlib.contextmanager
def servers() -> Iterator[Callable[..., Served]]:
    """Starts servers with an answer of so many bytes; they must end well."""
    running = []

    def start(size: int = ANSWER, **options: Any) -> Served:
        arguments = [f"{name}={value}" for name, value in options.items()]
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(size), *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        # It listens already; its own descriptors are there once it answers.
        assert ask(url, "/healthz").status == 200
        return Served(url, process)

    yield start
    for process in running:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors) == (0, "")


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Start a server for this test."""
    with servers() as start:
        yield start


@pytest.fixture
def here() -> Iterator[Callable[..., str]]:
    """Start a server in this process, with an answer of so many bytes; returns its URL."""
    with contextlib.ExitStack() as stack:

        def start(size: int = 1000, **limits: Any) -> str:
            source = TextSource(b"x 1\n" * (size // 4))
            server = MetricsServer(source, "127.0.0.1:0", limits=ServerLimits(**limits))
            return stack.enter_context(server).urls[0]

        yield start


@pytest.fixture(scope="module")
def impatient() -> Iterator[Served]:
    """One server for many tests, with a small answer and little patience."""
    with servers() as start:
        yield start(200_000, **SHORT)


# On a busy machine, seconds pass between two steps of a scraper that does nothing wrong.
SHORT = {"header_timeout_s": 5.0, "stall_timeout_s": 5.0, "idle_timeout_s": 10.0}


def scrape_among(url: str, rounds: int) -> None:
    """Scrape with a connection that is kept, and with one that is not."""
    with Scraper(url) as scraper:
        for _ in range(rounds):
            reply = scraper.scrape()
            assert reply.status == 200
            assert reply.text.endswith("# EOF\n")


@pytest.mark.representatives(5)
@pytest.mark.parametrize("client", BAD, ids=lambda client: client.__name__)
def test_no_bad_client_keeps_a_good_one_from_its_answer(impatient: Served, client: Any) -> None:
    before = descriptors(impatient.pid)
    with Crowd(impatient.url, [client], each=5):
        scrape_among(impatient.url, 20)
    eventually(lambda: descriptors(impatient.pid) <= before + 1)


@pytest.mark.thorough
def test_fifty_scrapers_among_all_of_them_miss_nothing_and_memory_stays_bounded(
    serve: Callable[..., Served],
) -> None:
    served = serve(ANSWER, answers_bytes=8 * MIB, **SHORT)
    scrape_among(served.url, 5)
    before = descriptors(served.pid), resident_bytes(served.pid)
    highest = 0
    with (
        Crowd(served.url, each=2),
        in_threads(50, lambda _: scrape_among(served.url, 4)) as threads,
    ):
        while threads.alive():
            highest = max(highest, resident_bytes(served.pid))
            time.sleep(0.02)
    assert threads.failures == []
    # Eight MiB of answers, one more that is being made, and what each connection takes.
    assert highest - before[1] < 40 * MIB
    eventually(lambda: descriptors(served.pid) <= before[0] + 1)


def test_who_sends_nothing_is_sent_away(here: Callable[..., str]) -> None:
    url = here(header_timeout_s=0.3)
    with contextlib.ExitStack() as stack:
        beginnings = (b"", b"GET /metr", GOOD_REQUEST + b"GET /metr")
        clients = [stack.enter_context(connect(url)) for _ in beginnings]
        for client, beginning in zip(clients, beginnings, strict=True):
            client.sendall(beginning)
        for client in clients:
            read_to_end(client)


def test_who_asks_no_more_is_sent_away_after_a_while(here: Callable[..., str]) -> None:
    with connect(here(idle_timeout_s=0.3)) as connection:
        connection.sendall(GOOD_REQUEST)
        assert read_to_end(connection).endswith(b"x 1\n")


def test_who_takes_nothing_of_its_answer_is_cut_off(here: Callable[..., str]) -> None:
    with connect(here(20 * MIB, stall_timeout_s=0.3), 4096) as connection:
        connection.sendall(GOOD_REQUEST)
        eventually(lambda: connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0)


def test_who_takes_its_answer_too_slowly_is_cut_off(here: Callable[..., str]) -> None:
    with connect(here(20 * MIB, answer_timeout_s=0.3), 65_536) as connection:
        connection.sendall(GOOD_REQUEST)
        taken = 0
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(4096):
                taken += len(part)
                time.sleep(0.002)
    assert 0 < taken < 20 * MIB


def test_idle_clients_make_way_for_new_ones_when_there_are_too_many(
    here: Callable[..., str],
) -> None:
    url = here(connections=10)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(Scraper(url)) for _ in range(10)]
        for each in idle:
            assert each.ask().status == 200
        for _ in range(30):
            # On a connection of its own each; each takes the place of the longest idle.
            assert ask(url).status == 200
        with pytest.raises(OSError, match=r"reset|closed|pipe|without"):
            idle[0].ask()


def test_clients_that_never_ask_do_not_lock_others_out(here: Callable[..., str]) -> None:
    url = here(connections=10, header_timeout_s=60)
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            # Where all places are taken, one may be refused before it knows that it is connected.
            with contextlib.suppress(OSError):
                stack.enter_context(connect(url))

        def answered() -> bool:
            with contextlib.suppress(OSError):
                return ask(url).status == 200
            return False

        eventually(answered)


def test_a_crowd_that_reads_slowly_but_steadily_does_not_lock_others_out(
    here: Callable[..., str],
) -> None:
    url = here(5 * MIB, connections=8)
    stop = threading.Event()

    def read_steadily(_: int) -> None:
        while not stop.wait(0.02):
            with contextlib.suppress(OSError), connect(url, 4096) as connection:
                connection.sendall(GOOD_REQUEST)
                while connection.recv(4096) and not stop.wait(0.05):
                    pass

    with in_threads(12, read_steadily):
        try:
            # Eight of them have taken all places.
            for _ in range(10):
                assert ask_patiently(url) == 200
        finally:
            stop.set()


def ask_patiently(url: str) -> int:
    """Prometheus asks again at once when a connection is ended before the answer."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            return ask(url, accept_encoding="gzip").status
        time.sleep(0.01)
    return 0


def test_when_all_are_busy_one_more_is_refused_and_nothing_else_happens() -> None:
    go_on = threading.Event()

    class Waiting(TextSource):
        def pieces(self, *_: Any, **__: Any) -> Iterator[memoryview]:
            assert go_on.wait(PATIENCE_S)
            yield memoryview(b"done 1\n")

    limits = ServerLimits(connections=4)
    with (
        MetricsServer(Waiting(b""), "127.0.0.1:0", limits=limits) as server,
        contextlib.ExitStack() as stack,
    ):
        url = server.urls[0]
        asking = [stack.enter_context(connect(url)) for _ in range(4)]
        for each in asking:
            each.sendall(GOOD_REQUEST)
        # The last of those that are let in has been read once one more is refused.
        with pytest.raises(OSError, match=r"reset|closed|pipe|without"):
            ask(url)
        go_on.set()
        for each in asking:
            assert each.recv(65_536).startswith(b"HTTP/1.1 200")


def test_a_server_without_room_for_one_more_file_takes_clients_when_it_has(
    here: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    url = urlsplit(here())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Scraper(url.geturl()) as known, socket.socket() as waiting:
        assert known.ask("/healthz").status == 200
        waiting.settimeout(PATIENCE_S)
        free = next(n for n in count() if not Path(f"/proc/self/fd/{n}").is_symlink())
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            waiting.connect((url.hostname, url.port))
            waiting.sendall(GOOD_REQUEST)
            eventually(lambda: "no new connections for a moment: Too many" in caplog.text)
            assert known.ask().status == 200
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert waiting.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.thorough
def test_slow_readers_hold_no_more_memory_than_they_may(serve: Callable[..., Served]) -> None:
    # As a compressed file, which is what is kept, each answer takes a quarter of that.
    served = serve(6 * MIB, answers_bytes=4 * MIB)
    scrape_among(served.url, 3)
    before = resident_bytes(served.pid)
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(connect(served.url, 4096)) for _ in range(6)]
        for slow in readers:
            slow.sendall(GOOD_REQUEST)
            assert slow.recv(10).startswith(b"HTTP/1.1")
        # A good client is served all the same: those that read nothing make way.
        scrape_among(served.url, 2)
        assert resident_bytes(served.pid) - before < 30 * MIB
        # Those that have been at it for longest were cut off, and the last one was not.
        assert rest_of(readers[0]) < 5 * MIB
        assert rest_of(readers[-1]) > 5 * MIB


def rest_of(connection: socket.socket) -> int:
    """How many bytes still come, until the answer is cut off or nothing has come for a second."""
    connection.settimeout(1.0)
    received = 0
    with contextlib.suppress(ConnectionError, TimeoutError):
        while part := connection.recv(1 << 20):
            received += len(part)
    return received


def test_clients_that_wait_cost_hardly_any_processor_time(impatient: Served) -> None:
    before = descriptors(impatient.pid)
    with Crowd(impatient.url, [never_sends, asks_by_halves], each=10):
        # Some of them come again at this moment, others are just being sent away.
        eventually(lambda: descriptors(impatient.pid) >= before + 10)
        used_s, began = cpu_s(impatient.pid), time.monotonic()
        # Until the first of them are sent away.
        eventually(lambda: descriptors(impatient.pid) < before + 10 or _over(began, 1.0))
        assert cpu_s(impatient.pid) - used_s < 0.5


def _over(began: float, seconds: float) -> bool:
    return time.monotonic() - began > seconds


def test_bodies_and_pipelines_without_end_take_no_memory(impatient: Served) -> None:
    scrape_among(impatient.url, 3)
    before = resident_bytes(impatient.pid)
    with Crowd(impatient.url, [sends_a_body, asks_without_reading, reads_nothing], each=5):
        scrape_among(impatient.url, 50)
        assert resident_bytes(impatient.pid) - before < 20 * MIB


def test_an_answer_is_not_mixed_up_with_another(impatient: Served) -> None:
    """Each client gets one whole answer, and never an older one than it had before."""

    def scrape(_: int) -> None:
        last = 0
        with Scraper(impatient.url) as scraper:
            for _ in range(20):
                text = scraper.ask(accept_encoding="gzip").text
                number = int(text.rpartition(" ")[2])
                lines = 200_000 // len('served{line="00000000"} 0123456789012\n')
                assert text.count("\n") == lines + 1
                assert number > last
                last = number

    with in_threads(8, scrape) as threads:
        pass
    assert threads.failures == []
